"""Reading live queues: what is there now, and what comes, without taking anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .amqp.browsing import LiveQueue, PlaceLost, QueuePlace
from .amqp.options import ReadOptions
from .amqp.primary import PrimaryConnection
from .amqp.queues import NoSuchQueue, QueueFacts
from .amqp.rows import batch_of, check_live_schema
from .errors import PipelineError, told_plainly

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
        self._queues: dict[str, LiveQueue] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_primary": None, "_queues": {}}

    def _queue(self, name: str) -> LiveQueue:
        if self._primary is None:
            self._primary = PrimaryConnection(self._options.cluster)
        if name not in self._queues:
            self._queues[name] = LiveQueue(self._primary, name)
        return self._queues[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """No connection stays while nothing is asked: a broker that stops would wait for an answer on it."""
        if self._primary is not None:
            self._primary.close()

    def _facts(self, name: str) -> QueueFacts:
        try:
            return self._queue(name).facts()
        except NoSuchQueue:
            raise _no_queue(name) from None

    def _places(self, asked: str | dict[str, int]) -> dict[str, QueuePlace]:
        """As `startingOffsets` or `endingOffsets` say; a queue that is not named begins at its head."""
        places = {}
        for name in self._options.queues:
            facts = self._facts(name)
            if isinstance(asked, dict):
                message_id = asked.get(name, 0)
            else:
                message_id = facts.newest_message if asked == "latest" else 0
            places[name] = QueuePlace.at(facts, message_id)
        return places

    def _first(self, name: str, begin: QueuePlace) -> QueuePlace:
        """Before the first message that there is: tasks share what lies behind it."""
        found = self._queue(name).first_after(begin) if self._options.partitions > 1 else None
        return begin if found is None else begin._replace(message_id=found - 1)

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
                source = f"{self._options.cluster.digest}/{begin.queue_id}{begin.broker and '@'}{begin.broker}/{share}"
                try:
                    for chunk in LiveQueue(primary, queue).between(begin, end):
                        yield batch_of(chunk, queue, begin.queue_id, source, arrow)
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

    @told_plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Of the ids that there are."""
        with self:
            begins, ends = self._places(self._options.starting), self._places(self._options.ending)
            newest = self._places("latest")
            return self._split([
                Span(name, self._first(name, begin), min(ends[name].message_id, newest[name].message_id))
                for name, begin in begins.items()
            ])  # fmt: skip

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        return self._read(partition)


class AmqpStreamReader(_LiveReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver for as long as the query; what it gives is in the offsets alone."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: dict[str, QueuePlace] | None = None
        self._newest: dict[str, QueuePlace] = {}

    @told_plainly
    def initialOffset(self) -> Offsets:
        """As `startingOffsets` says."""
        with self:
            begins = self._places(self._options.starting)
            return _offsets({name: self._first(name, begin) for name, begin in begins.items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        """As `maxOffsetsPerTrigger` says."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @told_plainly
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """From `start` as far as everything is committed, and no further than `limit`."""
        with self:
            begins = {name: self._begin(name, start) for name in self._options.queues}
            ends = {name: self._end(name, begin) for name, begin in begins.items()}
            self._newest = dict(ends)
            if isinstance(limit, ReadMaxRows):
                self._shorten(begins, ends, limit.max_rows)
            return _offsets(ends)

    def _shorten(self, begins: dict[str, QueuePlace], ends: dict[str, QueuePlace], max_rows: int) -> None:
        """Every row has an id of its own, so a range of ids has at most so many rows."""
        waiting = [name for name, begin in begins.items() if ends[name].message_id > begin.message_id]
        for name in waiting:
            first = self._queue(name).first_after(begins[name])
            if first is not None:
                most = first + max(max_rows // len(waiting), 1) - 1
                ends[name] = ends[name]._replace(message_id=min(ends[name].message_id, most))

    def _begin(self, name: str, start: Offsets) -> QueuePlace:
        if name not in start:  # added to the option `queue` since: from its head
            return QueuePlace.at(self._facts(name), 0)
        place = QueuePlace(**start[name])
        try:
            self._queue(name).facts_for(place)
        except (PlaceLost, NoSuchQueue) as error:
            self._lost(name, error)
            return self._anew(name, place)
        return place

    def _anew(self, name: str, place: QueuePlace) -> QueuePlace:
        """The head of whatever has that name now."""
        try:
            return QueuePlace.at(self._queue(name).facts(), 0)
        except NoSuchQueue:
            return place

    def _end(self, name: str, begin: QueuePlace) -> QueuePlace:
        try:
            facts = self._queue(name).facts()
        except NoSuchQueue as error:
            self._lost(name, error)
            return begin
        newest = max(begin.message_id, facts.newest_message)
        if self._target is not None and name in self._target and self._target[name].queue_id == begin.queue_id:
            newest = max(begin.message_id, min(newest, self._target[name].message_id))
        return begin._replace(message_id=newest)

    @told_plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is not of this run."""
        with self:
            self._target = self._places("latest")

    def reportLatestOffset(self) -> Offsets | None:
        """How far the queues went when they were last asked, for the query's progress."""
        return _offsets(self._newest) if self._newest else None

    @told_plainly
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """What lies between two offsets."""
        spans = []
        for name, kept in end.items():
            until = QueuePlace(**kept)
            begin = QueuePlace(**start[name]) if name in start else until._replace(message_id=0)
            if begin.queue_id != until.queue_id:  # it was lost, and failOnDataLoss is off
                begin = until._replace(message_id=0)
            if begin.message_id < until.message_id:
                spans.append(Span(name, begin, until.message_id))
        with self:
            return self._split(spans)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        return self._read(partition)


def _offsets(places: dict[str, QueuePlace]) -> Offsets:
    return {name: place._asdict() for name, place in places.items()}


def _no_queue(name: str) -> PipelineError:
    return PipelineError(f"there is no queue {name}: see `qpid-ha queue list`, or declare it before it is read")
