"""Stories about work in portions: who comes when, and when it ends."""

from __future__ import annotations

import itertools
import weakref

from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.work import EMPTIED_LENGTH, Task, WorkQueue, emptied, finish, used_up

SPENT = Budget(lambda: 0.0, 0.0)


def budget_of(looks: int) -> Budget:
    """One that is spent when it has been asked so many times."""
    clock = itertools.count()
    return Budget(lambda: next(clock), looks)


def task(name: str, portions: int, done: list[str]) -> Task:
    for _ in range(portions):
        done.append(name)
        yield


def test_tasks_take_turns_and_one_that_comes_later_waits_for_a_portion_of_each() -> None:
    work, done = WorkQueue(), list[str]()
    work.add(task("a", 3, done))
    work.add(task("b", 2, done))
    work.run(budget_of(3))
    work.add(task("c", 1, done))
    work.run()
    assert "".join(done) == "ababac"
    assert not work


def test_a_run_does_one_portion_even_where_there_is_no_time() -> None:
    work, done = WorkQueue(), list[str]()
    work.add(task("a", 2, done))
    work.run(SPENT)
    assert (done, bool(work)) == (["a"], True)


def test_what_is_added_by_a_task_is_done_too() -> None:
    work, done = WorkQueue(), list[str]()

    def parent() -> Task:
        work.add(task("child", 1, done))
        yield
        done.append("parent")

    work.add(parent())
    work.run()
    assert sorted(done) == ["child", "parent"]
    assert not work


def test_a_task_that_was_finished_elsewhere_is_not_done_again() -> None:
    work, done = WorkQueue(), list[str]()
    urgent = task("urgent", 3, done)
    work.add(urgent)
    work.add(task("other", 1, done))
    work.run(SPENT)
    finish(urgent)
    assert done == ["urgent"] * 3
    work.run()
    assert done == [*["urgent"] * 3, "other"]
    assert not work


def test_what_is_used_up_is_let_go_of_one_by_one() -> None:
    class Link:
        pass

    links = [Link() for _ in range(3)]
    there = weakref.WeakSet(links)
    left = []
    for link in used_up(links):
        del link
        left.append(len(there))
    assert left == [2, 1, 0]


def test_large_collections_are_emptied_in_portions() -> None:
    for collection in (dict.fromkeys(range(2 * EMPTIED_LENGTH + 1)), list(range(2 * EMPTIED_LENGTH + 1))):
        left = [len(collection) for _ in emptied(collection)]
        assert left == [EMPTIED_LENGTH + 1, 1, 0]
