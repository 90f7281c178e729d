"""Which tests share a process of pytest-xdist, and which process gets which of these groups next.

Who shares something that is expensive to make runs in one process: a lab, Spark, the fixtures of a module. A lab waits
for its clusters half of the time, and other tests for processes that they start, so two labs run beside two processes
without one. The longest groups begin first, and where the time is limited those that were named first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

from suite.gate import Part, file_of
from suite.times import expected_s

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


def group_of(node_id: str) -> str:
    """The name of the group: a path, or Spark, or a simulated test, which shares nothing with others."""
    file = file_of(node_id)
    if "tests/simulation/" in f"/{file}":
        return node_id
    return SPARK if "tests/pipeline/" in f"/{file}" and not file.endswith(WITHOUT_SESSION) else file


def takes_a_lab(group: str) -> bool:
    """Does its process need one? Any process that has made one for another group will do."""
    return "tests/lab/" in f"/{group}"


def seconds_of(tests: Iterable[str], part: Part) -> float:
    """How long a group takes, roughly. `tests`: its node ids."""
    return sum(expected_s(file, part) for file in {file_of(test) for test in tests})


def next_group(waiting: Mapping[str, Sequence[str]], part: Part, *, has_lab: bool, longest_first: bool = True) -> str:
    """Of those that suit the process, else of all. `waiting`: the tests of each group, at least one."""
    suitable = [group for group in waiting if takes_a_lab(group) == has_lab] or list(waiting)
    return max(suitable, key=lambda group: seconds_of(waiting[group], part)) if longest_first else suitable[0]


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """A process gets another group when it has begun the last but one test of those that it has."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """It has ended; returns the test in which it did, if that was no ordinary end. It has failed: once more it
        would end the next process, too."""
        units = self.assigned_work.pop(node)
        waiting = [(unit, test) for unit in units.values() for test, is_over in unit.items() if not is_over]
        if not waiting:
            return None
        unit, fatal = waiting[0]
        unit[fatal] = True
        self.workqueue.update({group: unit for group, unit in units.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return str(fatal)

    def _reschedule(self, node: Any) -> None:
        """A process runs a test once it knows the next one, or that there is none. One that has come in the place of
        another one, which a test has ended, would wait with a single test for ever."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        with_lab = self.nodes[: max(1, min(LABS, len(self.nodes) - 1))]
        waiting = {group: list(tests) for group, tests in self.workqueue.items()}
        group = next_group(
            waiting,
            Part(self.config.getoption("part")),
            has_lab=node in with_lab,
            longest_first=self.config.getoption("until") is None,
        )
        self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)
