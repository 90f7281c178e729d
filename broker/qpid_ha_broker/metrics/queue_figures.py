"""The figures of single queues: which queues, and what is told of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import translate
from re import compile as compile_pattern
from typing import Final

from qpid_ha_broker.metrics.exposition import column_pieces, family_text, label_text
from qpid_ha_broker.metrics.families import QUEUES, QUEUES_SHOWN
from qpid_ha_broker.model.queues.queue import Queue

STEP: Final = 50
"""Queues that are looked at between two pieces."""


class QueueChoice:
    """Which queues are told of by themselves: those whose names match one of `patterns`, `most` at most."""

    def __init__(self, patterns: Iterable[str], most: int) -> None:
        self.most = most
        self.patterns = tuple(patterns)
        self._takes_all = "*" in self.patterns
        self._matches = compile_pattern("|".join(map(translate, self.patterns)) or r"(?!)").match

    def takes(self, name: str) -> bool:
        """Whether a queue of that name may be among them."""
        return self._takes_all or self._matches(name) is not None


class QueueCounters:
    """The promise: what is told of a queue's counters never goes down as long as the queue is the same.

    The model takes messages out again, as if they had not come, when a backup's log turns out to be another one than
    the primary's. Prometheus would take that for a restart, and count all of them once more.
    """

    def __init__(self) -> None:
        self._told: dict[Queue, tuple[int, int]] = {}
        self._next: dict[Queue, tuple[int, int]] = {}

    def of(self, queue: Queue) -> tuple[int, int]:
        """Enqueued and dequeued so far."""
        messages = queue.messages
        enqueued, dequeued = messages.enqueued_total, messages.dequeued_total
        before = self._told.get(queue)
        if before is not None:
            enqueued, dequeued = max(enqueued, before[0]), max(dequeued, before[1])
        self._next[queue] = enqueued, dequeued
        return enqueued, dequeued

    def scrape_ended(self) -> None:
        """Forget the queues that were not asked for."""
        self._told, self._next = self._next, {}


def oldest_age_s(queue: Queue, now_ms: int) -> float:
    """Since its oldest message was written to this broker's log; 0: it is empty, or that is not known."""
    if not queue.messages.count:
        return 0.0
    oldest = queue.messages.browsing_cursor(0).peek()
    if oldest is None:
        return 0.0
    notes = queue.log.write_times.between(oldest.id - 1, oldest.id, 1)
    return max(now_ms - notes[0][0], 0) / 1000 if notes else 0.0


def queue_pieces(
    queues: Iterable[tuple[str, Queue]], choice: QueueChoice, counters: QueueCounters, now_ms: int
) -> Iterator[str]:
    """The text of all families of queues; an empty piece where nothing is to be sent yet.

    `queues`: with the name of the set of each, those that are there now; what is deleted meanwhile is left out or not.
    """
    labels: list[str] = []
    rows: list[tuple[float, ...]] = []
    left_out = 0
    for number, (set_name, queue) in enumerate(queues):
        if number % STEP == STEP - 1:
            yield ""
        if queue.deleted:
            continue
        if len(rows) >= choice.most or not choice.takes(queue.name):
            left_out += 1
            continue
        labels.append(label_text(("queue", "set"), (queue.name, set_name)))
        messages = queue.messages
        rows.append(
            (
                messages.count,
                messages.size,
                messages.acquired,
                messages.schedule.count,
                len(queue.dispatcher.consumers),
                oldest_age_s(queue, now_ms),
                *counters.of(queue),
            )
        )
    counters.scrape_ended()
    for column, family in enumerate(QUEUES.values()):
        yield from column_pieces(family, labels, [row[column] for row in rows])
    yield family_text(QUEUES_SHOWN["qpid_ha_queues_shown"], {(): len(rows)})
    yield family_text(QUEUES_SHOWN["qpid_ha_queues_left_out"], {(): left_out})
