"""A watch: nobody who waits for its calls knows less than there is for longer than `WATCH_S`."""

from __future__ import annotations

import threading
import time
from typing import Final

from qpid_ha_broker.coordination.conformance.under_test import CLUSTER, NOTES, UnderTest
from qpid_ha_broker.coordination.conformance.watcher import Watcher
from qpid_ha_broker.coordination.conformance.worker import as_text
from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord

WATCH_S: Final = 5.0
SILENCE_S: Final = 1.5
PAUSES_S: Final = (0.0, 0.01, 0.05, 0.1, 0.3, 0.0, 0.02)
BURST: Final = 12


def watching(under_test: UnderTest, coordinator: Coordinator, expected: ClusterRecord) -> Watcher:
    """Somebody who has seen what is there."""
    watcher = Watcher(coordinator)
    under_test.on_close(watcher.end)
    assert watcher.sees(expected, WATCH_S)
    return watcher


def record_of(epoch: int) -> ClusterRecord:
    return ClusterRecord(CLUSTER, 1, "a", epoch)


def test_each_change_is_followed_by_a_call(coordinator: Coordinator, other: Coordinator, under_test: UnderTest) -> None:
    watcher = watching(under_test, other, ClusterRecord())
    record = ClusterRecord()
    for epoch in range(1, 5):
        coordinator.compare_and_set(record, record_of(epoch))
        record = record_of(epoch)
        assert watcher.sees(record, WATCH_S), f"no call after change {epoch}"


def test_a_change_by_another_process_is_followed_by_a_call(coordinator: Coordinator, under_test: UnderTest) -> None:
    worker = under_test.worker()
    watcher = watching(under_test, coordinator, ClusterRecord())

    worker.tell("compare_and_set", as_text(ClusterRecord()), as_text(record_of(1)))

    assert watcher.sees(record_of(1), WATCH_S)


def test_a_change_soon_after_a_call_is_followed_by_another_call(
    coordinator: Coordinator, other: Coordinator, under_test: UnderTest
) -> None:
    watcher = watching(under_test, other, ClusterRecord())
    record = ClusterRecord()
    for number, pause_s in enumerate(PAUSES_S):
        for epoch in (2 * number + 1, 2 * number + 2):
            coordinator.compare_and_set(record, record_of(epoch))
            record = record_of(epoch)
            time.sleep(pause_s)
        assert watcher.sees(record, WATCH_S), f"no call after a change that came {pause_s:g} s after another one"


def test_the_last_change_of_a_burst_is_followed_by_a_call(
    coordinator: Coordinator, other: Coordinator, under_test: UnderTest
) -> None:
    watcher = watching(under_test, other, ClusterRecord())
    record = ClusterRecord()
    for epoch in range(1, BURST):
        coordinator.compare_and_set(record, record_of(epoch))
        record = record_of(epoch)

    assert watcher.sees(record, WATCH_S)


def test_a_changed_note_is_followed_by_a_call(
    coordinator: Coordinator, other: Coordinator, under_test: UnderTest
) -> None:
    watcher = watching(under_test, other, ClusterRecord())
    texts = ["one", "two", ""]
    for before, text in zip(["", *texts], texts, strict=False):
        coordinator.replace_note(NOTES[0], before, text)
        assert watcher.sees_note(text, WATCH_S), f"no call after {text!r}"


def test_calls_come_from_a_thread_of_the_coordinator(
    coordinator: Coordinator, other: Coordinator, under_test: UnderTest
) -> None:
    watcher = watching(under_test, coordinator, ClusterRecord())

    coordinator.compare_and_set(ClusterRecord(), record_of(1))  # by itself, too

    assert watcher.sees(record_of(1), WATCH_S)
    assert threading.get_ident() not in watcher.threads


def test_two_watchers_hear_of_the_same_change(
    coordinator: Coordinator, other: Coordinator, under_test: UnderTest
) -> None:
    watchers = [watching(under_test, own, ClusterRecord()) for own in (coordinator, coordinator, other)]
    watchers[1].unwatch()

    other.compare_and_set(ClusterRecord(), record_of(1))

    assert watchers[0].sees(record_of(1), WATCH_S)
    assert watchers[2].sees(record_of(1), WATCH_S)


def test_after_the_end_of_a_watch_there_is_silence(
    coordinator: Coordinator, other: Coordinator, under_test: UnderTest
) -> None:
    watcher = watching(under_test, other, ClusterRecord())
    still = watching(under_test, under_test.connect(), ClusterRecord())
    coordinator.compare_and_set(ClusterRecord(), record_of(1))
    assert watcher.sees(record_of(1), WATCH_S)

    watcher.unwatch()
    time.sleep(SILENCE_S)  # a call that was under way
    calls = watcher.calls
    coordinator.compare_and_set(record_of(1), record_of(2))
    assert still.sees(record_of(2), WATCH_S)
    time.sleep(SILENCE_S)

    assert watcher.calls == calls
