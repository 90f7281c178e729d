"""Who runs what when the tests run in several processes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from suite import scheduling
from suite.gate import ROOT
from suite.scheduling import SPARK, WITHOUT_SESSION, GroupScheduling, group_of, takes_a_lab

UNIT = [f"tests/unit/test_{name}.py::test_{number}" for name in "abc" for number in range(3)]
SPARKS = [f"tests/pipeline/test_{name}.py::test_{number}" for name in "ab" for number in range(3)]
LAB = [f"tests/lab/test_{name}.py::test_{number}" for name in "abcde" for number in range(3)]


class Worker:
    """A process of pytest-xdist: it runs what it was sent, one test each turn, but the last one only when more comes
    or nothing more will."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.sent: list[int] = []
        self.done: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def upcoming(self) -> int | None:
        waiting = self.sent[len(self.done) :]
        return waiting[0] if len(waiting) > 1 or (waiting and self.shutting_down) else None


@pytest.fixture(autouse=True)
def expected_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's modules take longest."""
    monkeypatch.setattr(scheduling, "expected_s", lambda file, part: 100.0 if "pipeline" in file else 1.0)


def run(
    tests: list[str], processes: int, until: float | None = None, ends_its_process: str = ""
) -> dict[str, list[str]]:
    """What each process ran, in order. `ends_its_process`: that test does, and another process takes its place."""
    workers = [Worker(f"gw{number}") for number in range(processes)]
    options = SimpleNamespace(loadscopereorder=until is None, tx=processes * ["popen"])
    ours = {"part": "all", "until": until}
    scheduling = GroupScheduling(
        SimpleNamespace(getvalue=lambda name: getattr(options, name), getoption=ours.__getitem__, option=options)
    )
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, tests)
    scheduling.schedule()
    ended: list[Worker] = []
    while any(worker.upcoming is not None for worker in workers):
        for worker in workers:
            if (index := worker.upcoming) is None:
                continue
            worker.done.append(index)
            if tests[index] == ends_its_process:
                workers[workers.index(worker)] = _replaced(scheduling, worker, tests)
                ended.append(worker)
                break
            scheduling.mark_test_complete(worker, index)
    return {worker.gateway.id: [tests[index] for index in worker.done] for worker in [*workers, *ended]}


def _replaced(scheduling: GroupScheduling, worker: Worker, tests: list[str]) -> Worker:
    """As pytest-xdist does it."""
    assert scheduling.remove_node(worker) == tests[worker.done[-1]]
    successor = Worker(f"{worker.gateway.id} again")
    scheduling.add_node(successor)
    scheduling.add_node_collection(successor, tests)
    scheduling.schedule()
    return successor


def groups(tests: list[str]) -> list[str]:
    """In the order in which they began."""
    return list(dict.fromkeys(map(group_of, tests)))


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 8])
def test_every_test_runs_once_and_groups_stay_together(processes: int) -> None:
    ran = run([*UNIT, *SPARKS, *LAB], processes)

    assert sorted(test for tests in ran.values() for test in tests) == sorted([*UNIT, *SPARKS, *LAB])
    began = Counter(group for tests in ran.values() for group in groups(tests))
    assert set(began.values()) == {1}, "each group is in one process"
    assert all([group_of(test) for test in tests] == sorted(map(group_of, tests), key=groups(tests).index)
               for tests in ran.values())  # fmt: skip


def test_of_three_processes_two_begin_with_the_labs_and_one_with_the_longest_of_the_rest() -> None:
    ran = run([*UNIT, *LAB, *SPARKS], 3)

    assert [takes_a_lab(groups(tests)[0]) for tests in ran.values()] == [True, True, False]
    assert groups(ran["gw2"])[0] == SPARK


def test_who_has_a_lab_takes_the_groups_that_need_one_first() -> None:
    ran = run([*UNIT, *SPARKS, *LAB], 3)

    for name in ("gw0", "gw1"):
        needs = [takes_a_lab(group) for group in groups(ran[name])]
        assert needs == sorted(needs, reverse=True)


def test_where_the_time_is_limited_what_was_named_first_begins_first() -> None:
    ran = run([*UNIT, *SPARKS], 1, until=1e9)

    assert groups(ran["gw0"]) == [*groups(UNIT), SPARK]


def test_simulated_clusters_are_shared_out_one_by_one() -> None:
    clusters = [f"tests/simulation/test_simulation.py::test_many[{number}]" for number in range(4)]

    ran = run(clusters, 2)

    assert [len(tests) for tests in ran.values()] == [2, 2]


def test_the_modules_that_have_no_use_for_a_session_of_spark_are_there() -> None:
    assert [file for file in WITHOUT_SESSION if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("last", [UNIT[0], UNIT[4], UNIT[-1]])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_all_tests_run_though_one_of_them_ends_its_process(processes: int, last: str) -> None:
    ran = run([*UNIT, *SPARKS], processes, ends_its_process=last)

    assert sorted(test for tests in ran.values() for test in tests) == sorted([*UNIT, *SPARKS])
