"""Reading live queues: what is there now, and what comes, without taking anything."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .amqp.browsing import LiveQueue, PlaceLost, QueuePlace
from .amqp.options import Boundary, ReadOptions
from .amqp.primary import PrimaryConnection
from .amqp.queues import NoSuchQueue, PrimaryManagement, QueueFacts
from .amqp.rows import ENQUEUED_AT, BrowsedSource, batch_of, check_live_schema
from .errors import PipelineError, rows_told_plainly, told_plainly

Offsets = dict[str, dict[str, Any]]
"""What Spark keeps: for each queue a `QueuePlace`."""


class Span(NamedTuple):
    """Messages of a queue behind `begin` and up to the id `end`."""

    queue: str
    begin: QueuePlace
    end: int
    share: str = ""
    """Which of how many tasks that share the queue reads it: of all batches, it has ids that rise."""


class Spans(InputPartition):
    """What one task reads."""

    def __init__(self, spans: Sequence[Span]) -> None:
        super().__init__(None)
        self.spans = tuple(spans)


class _LiveReader:
    """What batch and stream have in common. Travels to the executors without its connection."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_live_schema(schema)
        self._options = options
        self._schema = schema
        self._primary: PrimaryConnection | None = None
        self._management: PrimaryManagement | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_primary": None, "_management": None}

    def _connected(self) -> tuple[PrimaryConnection, PrimaryManagement]:
        if self._primary is None or self._management is None:
            self._primary = PrimaryConnection(self._options.cluster)
            self._management = PrimaryManagement(self._primary)
        return self._primary, self._management

    def _queue(self, name: str) -> LiveQueue:
        primary, management = self._connected()
        return LiveQueue(primary, name, management)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """No connection stays while nothing is asked: a broker that stops would wait for an answer on it."""
        if self._primary is not None:
            self._primary.close()

    def _there(self) -> dict[str, QueueFacts]:
        """Of the queues that are read those that there are, as they are now."""
        selection = self._options.selection
        _, management = self._connected()
        return management.facts(selection.names) if selection.names else management.queues(selection.has)

    def _selected(self) -> dict[str, QueueFacts]:
        """The same where none may be missing that has a name."""
        there = self._there()
        for name in self._options.selection.names:
            if name not in there:
                raise _no_queue(name)
        return there

    def _places(self, there: dict[str, QueueFacts], asked: Boundary) -> dict[str, QueuePlace]:
        """Where `asked` is in each queue; where it does not name one, at its head."""
        return {name: QueuePlace.at(facts, self._position(name, facts, asked)) for name, facts in there.items()}

    def _position(self, name: str, facts: QueueFacts, asked: Boundary) -> int:
        if asked.times_ms is not None:
            time_ms = asked.time_of(name)
            return 0 if time_ms is None else self._queue(name).position_before(time_ms)
        if isinstance(asked.places, dict):
            return asked.places.get(name, 0)
        return facts.newest_message if asked.places == "latest" else 0

    def _first(self, name: str, begin: QueuePlace) -> QueuePlace:
        """Before the first message that there is: tasks share what lies behind it."""
        first_id = self._queue(name).first_after(begin) if self._options.partitions > 1 else None
        return begin if first_id is None else begin._replace(message_id=first_id - 1)

    def _split(self, spans: Sequence[Span]) -> list[Spans]:
        """Into `numPartitions` tasks: each reads a range of ids of each queue.

        The ranges follow from the spans alone: a batch that is repeated is split as before, whatever is gone meanwhile.
        """
        count = self._options.partitions
        parts: list[list[Span]] = [[] for _ in range(count)]
        for queue, begin, end, _ in spans:
            first = begin.message_id
            bounds = [first + (end - first) * at // count for at in range(count + 1)]
            for at, (low, high) in enumerate(pairwise(bounds)):
                if low < high:
                    parts[at].append(Span(queue, begin._replace(message_id=low), high, f"{at}.{count}"))
        return [Spans(part) for part in parts if part]

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        if not isinstance(partition, Spans):
            return  # Spark's stand-in for no partitions at all
        with PrimaryConnection(self._options.cluster) as primary:
            for queue, begin, end, share in partition.spans:
                name = f"{self._options.cluster.digest}/{begin.source}/{share}"
                live = LiveQueue(primary, queue)
                try:
                    times = live.write_times(begin, end) if ENQUEUED_AT.name in self._schema.names else None
                    source = BrowsedSource(name, queue, begin.queue_id, times)
                    for chunk in live.between(begin, end):
                        yield batch_of(chunk, source, arrow)
                except (PlaceLost, NoSuchQueue) as error:
                    self._lost(queue, error)

    def _lost(self, name: str, error: PlaceLost | NoSuchQueue) -> None:
        """Messages are gone that nobody has read. Raises PipelineError unless that is all the same."""
        if self._options.fail_on_data_loss:
            reason = f"queue {name} was deleted" if isinstance(error, NoSuchQueue) else str(error)
            raise PipelineError(
                f"{reason}; to go on with what is there, set failOnDataLoss=false, or begin with a new checkpoint"
            ) from None


class AmqpReader(_LiveReader, DataSourceReader):
    """What is there now."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.consumes:
            raise PipelineError("consume: a table may be read twice, or not at all: only a stream consumes")

    @told_plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Of the ids that there are."""
        with self:
            there = self._selected()
            begins, ends = self._places(there, self._options.starting), self._places(there, self._options.ending)
            return self._split([
                Span(name, self._first(name, begin), min(ends[name].message_id, there[name].newest_message))
                for name, begin in begins.items()
            ])  # fmt: skip

    @rows_told_plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        return self._read(partition)


class AmqpStreamReader(_LiveReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver for as long as the query; what it gives is in the offsets alone."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.ending != Boundary("latest"):
            raise PipelineError("endingOffsets, endingTimestamp: a stream has no end: read a table")
        if options.consumes and options.starting != Boundary("earliest"):
            raise PipelineError(
                "consume: messages that were skipped would be consumed with those that were read: leave out the"
                " starting offsets or times, or read without consume"
            )
        self._target: dict[str, QueuePlace] | None = None
        """Where a run with what is available now ends; None: it goes on."""
        self._newest: dict[str, QueueFacts] = {}
        self._last_batch_s: float | None = None

    @told_plainly
    def initialOffset(self) -> Offsets:
        """As `startingOffsets`, or the time, says."""
        with self:
            begins = self._places(self._selected(), self._options.starting)
            return _offsets({name: self._first(name, begin) for name, begin in begins.items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of those that there are: `latestOffset` keeps to all of them."""
        limits = self._options.limits
        if limits.max_rows is not None:
            return ReadMaxRows(limits.max_rows)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_rows is None else ReadMinRows(limits.min_rows)

    @told_plainly
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """From `start` as far as everything is committed, and no further than the limits say.

        What lies before `start` is of batches that were committed: Spark asks for no further one before that.
        """
        with self:
            if self._options.consumes:
                self._consume(start)
            self._newest = self._there()
            begins = self._begins(start)
            ends = {name: self._end(name, begin) for name, begin in begins.items()}
            if self._waits_for_more(begins, ends, limit):
                return start
            if isinstance(limit, ReadMaxRows):
                self._shorten(begins, ends, limit.max_rows)
            if self._options.limits.max_bytes is not None and not isinstance(limit, ReadAllAvailable):
                self._shorten_bytes(begins, ends, self._options.limits.max_bytes)
            if ends != begins:
                self._last_batch_s = time.monotonic()
            return _offsets(ends)

    def _consume(self, start: Offsets) -> None:
        """All before `start`, also what an earlier run of the query has left. What is lost is told by `_begin`."""
        for name, kept in start.items():
            place = QueuePlace(**kept)
            if place.message_id and self._options.selection.has(name):
                with suppress(PlaceLost, NoSuchQueue):
                    self._queue(name).accept(place)

    def _waits_for_more(self, begins: dict[str, QueuePlace], ends: dict[str, QueuePlace], limit: ReadLimit) -> bool:
        """Whether there are too few messages for a batch now."""
        limits, last_s = self._options.limits, self._last_batch_s
        if limits.min_rows is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if last_s is None or time.monotonic() - last_s >= limits.max_delay_s:
            return False
        count = 0
        for name, begin in begins.items():
            if count < limits.min_rows and ends[name].message_id > begin.message_id:
                count += self._queue(name).count_after(begin, limits.min_rows - count)
        return count < limits.min_rows

    def _shorten(self, begins: dict[str, QueuePlace], ends: dict[str, QueuePlace], max_rows: int) -> None:
        """Every row has an id of its own, so a range of ids has at most so many rows."""
        waiting = _waiting(begins, ends)
        for name in waiting:
            first = self._queue(name).first_after(begins[name])
            if first is not None:
                most = first + max(max_rows // len(waiting), 1) - 1
                ends[name] = ends[name]._replace(message_id=min(ends[name].message_id, most))

    def _shorten_bytes(self, begins: dict[str, QueuePlace], ends: dict[str, QueuePlace], max_bytes: int) -> None:
        """Each queue has its share; a message that is larger comes alone."""
        waiting = _waiting(begins, ends)
        for name in waiting:
            last = self._queue(name).end_of_bytes(begins[name], ends[name].message_id, max_bytes // len(waiting))
            ends[name] = ends[name]._replace(message_id=last)

    def _begins(self, start: Offsets) -> dict[str, QueuePlace]:
        """Where each queue goes on that is read now."""
        selection = self._options.selection
        begins = {}
        for name in dict.fromkeys([*start, *selection.names, *self._newest]):
            if selection.has(name) and (place := self._begin(name, start)) is not None:
                begins[name] = place
        return begins

    def _begin(self, name: str, start: Offsets) -> QueuePlace | None:
        """None: it is not read now."""
        facts = self._newest.get(name)
        if name not in start:
            if facts is None:
                raise _no_queue(name)
            if self._target is not None and name not in self._target:
                return None  # it came after this run had begun
            return QueuePlace.at(facts, 0)  # it is new, or was added to the option `queue`: from its head
        place = QueuePlace(**start[name])
        try:
            if facts is None:
                raise NoSuchQueue(name)
            self._queue(name).check(place, facts)
            if facts.log_position < place.message_id:
                self._queue(name).facts_for(place)
        except (PlaceLost, NoSuchQueue) as error:
            self._lost(name, error)
            if facts is not None:
                return QueuePlace.at(facts, 0)
            return place if name in self._options.selection.names else None
        return place

    def _end(self, name: str, begin: QueuePlace) -> QueuePlace:
        facts = self._newest.get(name)
        if facts is None:
            return begin
        newest = max(begin.message_id, facts.newest_message)
        if self._target is not None and name in self._target and self._target[name].queue_id == begin.queue_id:
            newest = max(begin.message_id, min(newest, self._target[name].message_id))
        return begin._replace(message_id=newest)

    @told_plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is not of this run."""
        with self:
            self._target = self._places(self._selected(), Boundary("latest"))

    def reportLatestOffset(self) -> Offsets | None:
        """How far the queues went when they were last asked, and how many messages they had, for the progress."""
        newest = {
            name: {**QueuePlace.at(facts, facts.newest_message).kept, "messages": facts.messages}
            for name, facts in self._newest.items()
        }
        return newest or None

    @told_plainly
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """What lies between two offsets."""
        spans = []
        for name, kept in end.items():
            until = QueuePlace(**kept)
            begin = QueuePlace(**start[name]) if name in start else until._replace(message_id=0)
            if (begin.set, begin.queue_id) != (until.set, until.queue_id):  # it was lost, and failOnDataLoss is off
                begin = until._replace(message_id=0)
            if begin.message_id < until.message_id:
                spans.append(Span(name, begin, until.message_id))
        with self:
            return self._split(spans)

    @rows_told_plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        return self._read(partition)


def _offsets(places: dict[str, QueuePlace]) -> Offsets:
    return {name: place.kept for name, place in places.items()}


def _waiting(begins: dict[str, QueuePlace], ends: dict[str, QueuePlace]) -> list[str]:
    return [name for name, begin in begins.items() if ends[name].message_id > begin.message_id]


def _no_queue(name: str) -> PipelineError:
    return PipelineError(f"there is no queue {name}: see `qpid-ha queue list`, or declare it before it is read")
