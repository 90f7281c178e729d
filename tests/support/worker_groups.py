"""Which tests share a process of pytest-xdist, and which process gets which of these groups next.

Who shares something that is expensive to make runs in one process: a lab, Spark, the fixtures of a module. A lab waits
for its clusters half of the time, and other tests for processes that they start, so two labs run beside two processes
without one; the longest groups begin first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

SPARK: Final = "Spark"
WITHOUT_SESSION: Final = tuple(
    f"tests/pipeline/test_{name}.py"
    for name in (
        "amqp_limits", "amqp_sets", "amqp_stream", "class_archive", "connect", "journal_damage", "journal_rows",
        "journal_selection", "journal_views", "pipeline_demo", "random_histories", "sink_repeats", "slim_wheel",
        "standalone_cluster",
    )
)  # fmt: skip
"""They start Spark as a user does, or need none, and have no use for the session of the others."""
LABS: Final = 2
"""Processes that make a lab each; at least one makes none."""
EXPECTED_S: Final[Mapping[str, float]] = {
    SPARK: 450,
    "tests/pipeline/test_connect.py": 40,
    "tests/pipeline/test_slim_wheel.py": 30,
    "tests/pipeline/test_random_histories.py": 60,
    "tests/pipeline/test_pipeline_demo.py": 195,
    "tests/pipeline/test_standalone_cluster.py": 150,
    "tests/integration/test_demo.py": 90,
    "tests/integration/test_failover.py": 90,
    "tests/integration/test_bench.py": 170,
    "tests/integration/test_conformance.py": 120,
    "tests/integration/test_resource_sets.py": 70,
    "tests/integration/test_replica_counts.py": 60,
    "tests/integration/test_observers.py": 60,
    "tests/integration/test_set_stores.py": 60,
    "tests/integration/test_sets_cli.py": 60,
    "tests/integration/test_sets_total_crash.py": 40,
    "tests/integration/test_etcd_coordinator.py": 60,
    "tests/integration/test_rgmanager_scripts.py": 130,
    "tests/integration/test_durable_broker.py": 60,
    "tests/integration/test_long_steps.py": 90,
    "tests/integration/test_total_crash.py": 35,
    "tests/integration/test_attack.py": 25,
    "tests/integration/test_failover_decisions.py": 35,
    "tests/integration/test_coordinator_failures.py": 90,
    "tests/integration/test_zookeeper_coordinator.py": 60,
    "tests/integration/test_ocf_tester.py": 25,
    "tests/simulation/test_simulation.py": 290,
    "tests/simulation/test_power_cuts.py": 100,
    "tests/lab/test_blackouts.py": 170,
    "tests/lab/test_rgmanager.py": 140,
    "tests/lab/test_partitions.py": 110,
    "tests/lab/test_choice.py": 100,
    "tests/lab/test_conformance.py": 150,
    "tests/lab/test_disks.py": 60,
    "tests/lab/test_configurations.py": 50,
    "tests/lab/test_lab_itself.py": 60,
}
"""Of groups that take longer than the number of their tests tells, from `./dev test --durations=0`. Only the order
matters, so nobody has to keep it exact."""
_TEST_S: Final[Mapping[str, float]] = {"tests/lab/": 12.0, "tests/integration/": 1.0, "": 0.05}
"""Of any other test below that directory."""


def group_of(node_id: str) -> str:
    """The name of the group: a path, or Spark."""
    file = node_id.partition("::")[0]
    return SPARK if "tests/pipeline/" in f"/{file}" and not file.endswith(WITHOUT_SESSION) else file


def takes_a_lab(group: str) -> bool:
    """Does its process need one? Any process that has made one for another group will do."""
    return "tests/lab/" in f"/{group}"


def expected_s(group: str, tests: int) -> float:
    """How long it takes, roughly."""
    return EXPECTED_S.get(group, tests * next(test_s for place, test_s in _TEST_S.items() if place in f"/{group}"))


def next_group(waiting: Mapping[str, Sequence[str]], *, has_lab: bool) -> str:
    """The longest of those that suit the process, else of all. `waiting`: the tests of each group, at least one."""

    def longest(groups: Iterable[str]) -> str:
        return max(groups, key=lambda group: expected_s(group, len(waiting[group])), default="")

    return longest(group for group in waiting if takes_a_lab(group) == has_lab) or longest(waiting)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """A process gets another group when it has begun the last but one test of those that it has."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        with_lab = self.nodes[: max(1, min(LABS, len(self.nodes) - 1))]
        waiting = {group: list(tests) for group, tests in self.workqueue.items()}
        self.workqueue.move_to_end(next_group(waiting, has_lab=node in with_lab), last=False)
        super()._assign_work_unit(node)
