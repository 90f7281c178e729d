"""The record: replaced by one of many at a time, read back by everybody, and whole."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final

import pytest

from qpid_ha_broker.coordination.conformance.at_once import at_once
from qpid_ha_broker.coordination.conformance.under_test import CLUSTER, UnderTest
from qpid_ha_broker.coordination.conformance.worker import as_text, climb, from_text
from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord

FIRST: Final = ClusterRecord(CLUSTER, 1, "a", 1, ("a", "b", "c"))
SECOND: Final = ClusterRecord(CLUSTER, 2, "b", 2, ("b", "c"))
RACERS, ROUNDS = 4, 15
STEPS: Final = 15
WRITING_S: Final = 5.0
"""Then a slow one has shown enough."""
LARGEST: Final = 2**63 - 1

UNUSUAL: Final = {
    "names of all scripts": ClusterRecord(f"{CLUSTER}-žluť", 1, "Ångström", 1, ("Ångström", "日本", "🐎")),
    "characters that mean something elsewhere": ClusterRecord(
        CLUSTER, 1, "a;b", 1, ("a;b", 'q"uote', "<&>", "100%", "x=1,y=2", "back\\slash", "a'b", "{}[]")
    ),
    "a space, a tab and a line's end": ClusterRecord(CLUSTER, 1, "a b", 1, ("a b", " c ", "d\te", "f\ng")),
    "large numbers": ClusterRecord(CLUSTER, LARGEST, "a", LARGEST, ("a",)),
    "nobody in sync": ClusterRecord(CLUSTER, 1, "a", 1, ()),
    "a hundred members": ClusterRecord(CLUSTER, 1, "b0", 1, tuple(f"broker-{n}.example.com" for n in range(100))),
    "members in an order of their own": ClusterRecord(CLUSTER, 1, "c", 1, ("c", "a", "b")),
}


def changed(record: ClusterRecord, name: str) -> ClusterRecord:
    """Another one, in that field only."""
    value = getattr(record, name)
    another: object
    match value:
        case bool():
            another = not value
        case int():
            another = value + 1
        case str():
            another = f"{value}x"
        case _:
            another = value[:-1]
    return ClusterRecord(**{**record._asdict(), name: another})


def test_an_empty_one_is_empty(coordinator: Coordinator) -> None:
    assert coordinator.read() == ClusterRecord()


def test_what_was_confirmed_is_read_back(coordinator: Coordinator, other: Coordinator) -> None:
    assert coordinator.compare_and_set(ClusterRecord(), FIRST) == (True, FIRST)
    assert coordinator.read() == FIRST
    assert other.read() == FIRST


def test_what_was_replaced_is_gone(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.compare_and_set(ClusterRecord(), FIRST)

    assert other.compare_and_set(FIRST, SECOND) == (True, SECOND)
    assert coordinator.read() == SECOND


def test_a_record_can_become_empty_again(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.compare_and_set(ClusterRecord(), FIRST)

    assert other.compare_and_set(FIRST, ClusterRecord()) == (True, ClusterRecord())
    assert coordinator.read() == ClusterRecord()
    assert coordinator.compare_and_set(ClusterRecord(), SECOND) == (True, SECOND)


def test_a_writer_who_knows_less_is_told_what_is_there(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.compare_and_set(ClusterRecord(), FIRST)

    assert other.compare_and_set(ClusterRecord(), SECOND) == (False, FIRST)
    assert other.read() == FIRST


def test_a_writer_who_knows_more_than_there_is_is_told_so(coordinator: Coordinator) -> None:
    assert coordinator.compare_and_set(FIRST, SECOND) == (False, ClusterRecord())
    assert coordinator.read() == ClusterRecord()


@pytest.mark.parametrize("name", ClusterRecord._fields)
def test_a_record_is_replaced_only_if_all_of_it_is_as_expected(name: str, coordinator: Coordinator) -> None:
    coordinator.compare_and_set(ClusterRecord(), FIRST)

    assert coordinator.compare_and_set(changed(FIRST, name), SECOND) == (False, FIRST)
    assert coordinator.read() == FIRST


@pytest.mark.parametrize("name", ClusterRecord._fields)
def test_a_change_of_one_field_is_a_change(name: str, coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.compare_and_set(ClusterRecord(), FIRST)
    wanted = changed(FIRST, name)

    assert coordinator.compare_and_set(FIRST, wanted) == (True, wanted)
    assert other.read() == wanted


@pytest.mark.parametrize("record", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_all_values_survive(record: ClusterRecord, coordinator: Coordinator, under_test: UnderTest) -> None:
    assert coordinator.compare_and_set(ClusterRecord(), record) == (True, record)
    assert under_test.worker().read() == record
    assert coordinator.compare_and_set(record, SECOND) == (True, SECOND)


def test_another_process_reads_at_once_what_was_confirmed(coordinator: Coordinator, under_test: UnderTest) -> None:
    worker = under_test.worker()
    record = ClusterRecord()
    for generation in range(1, ROUNDS, 2):
        own_record = FIRST._replace(generation=generation)
        assert coordinator.compare_and_set(record, own_record) == (True, own_record)
        assert worker.read() == own_record
        record = own_record._replace(generation=generation + 1)
        assert worker.tell("compare_and_set", as_text(own_record), as_text(record)) == [True, as_text(record)]
        assert coordinator.read() == record


def test_of_many_threads_exactly_one_makes_each_step(under_test: UnderTest) -> None:
    coordinators = [under_test.connect() for _ in range(RACERS)]
    record = ClusterRecord(CLUSTER, 1, "", 0)
    coordinators[0].compare_and_set(ClusterRecord(), record)
    for step in range(ROUNDS):
        wanted = [record._replace(primary=f"racer-{number}", epoch=step + 1) for number in range(RACERS)]
        calls = [partial(own.compare_and_set, record, one) for own, one in zip(coordinators, wanted, strict=True)]
        outcomes = at_once(calls)
        record = check_step(outcomes, step + 1, coordinators[0].read())


def test_of_many_processes_exactly_one_makes_each_step(coordinator: Coordinator, under_test: UnderTest) -> None:
    workers = [under_test.worker() for _ in range(RACERS)]
    record = ClusterRecord(CLUSTER, 1, "", 0)
    coordinator.compare_and_set(ClusterRecord(), record)
    for worker in workers:
        worker.tell("ready")
    for step in range(ROUNDS):
        for number, worker in enumerate(workers):
            wanted = record._replace(primary=f"racer-{number}", epoch=record.epoch + 1)
            worker.ask("compare_and_set", as_text(record), as_text(wanted))
        answers = [worker.answer() for worker in workers]
        outcomes = [(done, from_text(there)) for done, there in answers]
        record = check_step(outcomes, step + 1, coordinator.read())


def check_step(outcomes: list[tuple[bool, ClusterRecord]], epoch: int, there: ClusterRecord) -> ClusterRecord:
    """One has made it, which is there now, and the others were told so; what is there."""
    winners = [record for done, record in outcomes if done]
    assert winners == [there], f"step {epoch} was made by {len(winners)}"
    assert there.epoch == epoch
    assert {record for _, record in outcomes} == {there}
    return there


def test_no_step_is_made_by_two_when_nobody_waits_for_the_others(
    coordinator: Coordinator, under_test: UnderTest
) -> None:
    coordinator.compare_and_set(ClusterRecord(), ClusterRecord(CLUSTER, 1, "", 0))
    worker = under_test.worker()
    worker.tell("ready")
    worker.ask("climb", "process", STEPS)
    in_threads = at_once([partial(climb, under_test.connect(), name, STEPS) for name in ("one", "two", "three")])
    made = [*chain.from_iterable(in_threads), *worker.answer()]

    assert [epoch for epoch, times in Counter(made).items() if times > 1] == []
    assert max(made) <= coordinator.read().epoch


def test_no_reader_goes_back_behind_what_was_confirmed_while_others_write(
    coordinator: Coordinator, other: Coordinator, under_test: UnderTest
) -> None:
    writer, shared = under_test.connect(), under_test.connect()
    worker = under_test.worker()
    worker.tell("ready")
    confirmed = 0
    is_over = threading.Event()
    stale: list[tuple[int, int]] = []

    def write() -> None:
        nonlocal confirmed
        record = ClusterRecord()
        end_s = time.monotonic() + WRITING_S
        try:
            for epoch in range(1, 4 * STEPS):
                if time.monotonic() > end_s:
                    break
                wanted = ClusterRecord(CLUSTER, 1, "a", epoch)
                assert writer.compare_and_set(record, wanted) == (True, wanted)
                confirmed, record = epoch, wanted
        finally:
            is_over.set()

    def read(call: Callable[[], ClusterRecord]) -> None:
        while not is_over.is_set():
            floor = confirmed
            epoch = call().epoch
            if epoch < floor:
                stale.append((floor, epoch))

    readers = (coordinator.read, other.read, shared.read, shared.read, worker.read)
    calls: list[Callable[[], None]] = [write, *(partial(read, call) for call in readers)]
    at_once(calls)

    assert confirmed > 1
    assert stale == [], "epochs that were confirmed before the read, and what was read"


def test_many_threads_may_use_one_at_once(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.compare_and_set(ClusterRecord(), FIRST)

    def use() -> None:
        for _ in range(3):
            assert coordinator.read() == FIRST
            assert coordinator.compare_and_set(SECOND, SECOND._replace(epoch=9)) == (False, FIRST)
            assert coordinator.read_note("conformance") == ""

    at_once([use] * 8)
    assert other.read() == FIRST


def test_closing_one_does_not_disturb_another(coordinator: Coordinator, under_test: UnderTest) -> None:
    closed = under_test.connect()
    closed.compare_and_set(ClusterRecord(), FIRST)
    closed.close()

    assert coordinator.compare_and_set(FIRST, SECOND) == (True, SECOND)
    assert coordinator.read() == SECOND
