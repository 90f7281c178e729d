"""From windows to Arrow batches: only the columns that are wanted, and only of the rows that pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.layout import BODIES, RecordKind
from qpid_ha_broker.events.scan import RecordError
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import MESSAGE_COLUMNS

from .details import details_of
from .filters import RowFilters
from .names import QueueNames
from .part import JournalPart, PartGroup
from .records import NONE, Enqueueds, Ints, Mask, Records, Rows, details
from .scan import Scan, Window
from .survey import Damage
from .text import binaries, named, texts, times

if TYPE_CHECKING:
    from .messages import Messages

_EVENTS: Final[list[str | None]] = [RecordKind(code).name.lower() if code in BODIES else None for code in range(256)]
_DEQUEUED, _RELEASED = int(RecordKind.DEQUEUED), int(RecordKind.RELEASED)
_REASONS: Final[list[str | None]] = [*(reason.name.lower() for reason in ev.DequeueReason), "failed", None]
_FAILED, _NO_REASON = len(_REASONS) - 2, len(_REASONS) - 1
_QUEUE_EVENTS: Final = [int(kind) for kind, body in BODIES.items() if "queue" in body.fields]
_GENERATION, _DECLARED = int(RecordKind.GENERATION_STARTED), int(RecordKind.QUEUE_DECLARED)


def read_group(
    group: InputPartition, schema: pa.Schema, filters: RowFilters, options: JournalOptions
) -> Iterator[pa.RecordBatch]:
    """All batches of what one task reads. Raises as `Scan.windows` does."""
    if isinstance(group, PartGroup):  # else it is Spark's stand-in for no partitions at all
        for part in group.parts:
            yield from Batches(part, schema, filters, options).read()


class Batches:
    """Makes the batches of one part. `schema`: of Arrow, the wanted columns in their order."""

    def __init__(self, part: JournalPart, schema: pa.Schema, filters: RowFilters, options: JournalOptions) -> None:
        self._part = part
        self._schema = schema
        self._filters = filters
        self._scan = Scan(part, is_permissive=options.is_permissive, checks=options.checksums)
        self._names = QueueNames(part.directory, part.taken_back)
        self._generation = part.segment.header.generation

    def read(self) -> Iterator[pa.RecordBatch]:
        """All batches. Raises as `Scan.windows` does."""
        wants_damages = "damage" in self._schema.names
        if self._part.end > self._part.begin:
            for window in self._scan.windows():
                try:
                    batch = self._batch(window)
                except RecordError as error:
                    self._scan.damaged_in(window, error)
                    continue
                if batch is not None:
                    yield batch
        if wants_damages and self._scan.damages:
            yield damage_rows(self._schema, self._scan.damages)

    def _batch(self, window: Window) -> pa.RecordBatch | None:
        records = window.records
        kinds = records.kinds
        generations = self._learn(records)
        chosen: Mask | None = window.counting()
        if self._filters.has("event"):
            accepted = self._accepted_kinds[kinds]
            chosen = accepted if chosen is None else chosen & accepted
        if self._filters.has("lsn"):
            passing = self._filters.lsns(records.lsns)
            chosen = passing if chosen is None else chosen & passing
        if self._filters.has("generation"):
            passing = self._filters.generations(generations)
            chosen = passing if chosen is None else chosen & passing
        rows = Rows(records, None if chosen is None else np.flatnonzero(chosen))
        view = WindowView(window, rows, self._names, generations)
        rows.keep(self._passing(view))
        if not len(rows):
            return None
        view = WindowView(window, rows, self._names, generations)
        return pa.RecordBatch.from_arrays([view.column(name) for name in self._schema.names], schema=self._schema)

    @cached_property
    def _accepted_kinds(self) -> Mask:
        return np.array([self._filters.accepts("event", name) for name in _EVENTS], np.bool_)

    def _passing(self, view: WindowView) -> Mask | None:
        if not self._filters.has("queue"):
            return None
        codes, names = view.queues
        accepted = np.array([self._filters.accepts("queue", name) for name in names], np.bool_)
        passing: Mask = accepted[codes]
        return passing

    def _learn(self, records: Records) -> Ints:
        """The generation of each record; and the names of queues that are declared in passing."""
        lsns, generations = records.lsns, np.full(len(records), self._generation, np.int64)
        if self._part.generations:
            first = np.array([lsn for lsn, _ in self._part.generations], np.int64)
            values = np.array([0, *(generation for _, generation in self._part.generations)], np.int64)
            known = values[np.searchsorted(first, lsns, side="right")]
            generations = np.maximum(generations, np.where(lsns < 0, 0, known))
        for index in np.flatnonzero((records.kinds == _GENERATION) | (records.kinds == _DECLARED)):
            record = records.event(int(index))
            if isinstance(record.event, ev.GenerationStarted):
                generations[index:] = np.maximum(generations[index:], record.event.generation)
            elif isinstance(record.event, ev.QueueDeclared):
                self._names.learn(int(lsns[index]), record.event)
        if len(generations):
            self._generation = int(generations[-1])
        return generations


class WindowView:
    """The rows of a window, seen column by column."""

    def __init__(self, window: Window, rows: Rows, names: QueueNames, generations: Ints) -> None:
        self.window = window
        self.rows = rows
        self.part = window.part
        self._names = names
        self._generations = generations

    def column(self, name: str) -> pa.Array:
        """One column, for all rows."""
        if name in MESSAGE_COLUMNS:
            return self._of_messages(self._messages.column(name))
        return _MAKERS[name](self)

    def constant(self, value: str, count: int | None = None) -> pa.Array:
        """The same for all."""
        return pa.repeat(pa.scalar(value or None, pa.string()), len(self.rows) if count is None else count)

    @cached_property
    def lsns(self) -> Ints:
        return self.window.records.lsns[self.rows.record]

    @cached_property
    def generations(self) -> Ints:
        return self._generations[self.rows.record]

    @cached_property
    def queue_ids(self) -> Ints:
        """Also of events that are about a queue without being about messages."""
        ids, records = self.rows.queue_ids, self.window.records
        others = np.flatnonzero(ids == NONE)
        for index in others[np.isin(self.rows.kinds[others], [*_QUEUE_EVENTS, _DECLARED])]:
            owner = int(self.rows.record[index])
            event = records.event(owner).event
            queue = getattr(event, "queue", None)
            ids[index] = int(records.lsns[owner]) if queue is None else np.uint64(queue).astype(np.int64)
        return ids

    @cached_property
    def queues(self) -> tuple[Ints, list[str | None]]:
        """The names that occur, and for each row which of them."""
        encoded = pa.array(self.queue_ids).dictionary_encode()
        ids = encoded.dictionary.to_pylist()
        return encoded.indices.to_numpy(), [None if queue == NONE else self._names.name(queue) for queue in ids]

    @cached_property
    def is_enqueued(self) -> Mask:
        return self.rows.kinds == RecordKind.ENQUEUED  # type: ignore[no-any-return]

    @cached_property
    def _owners(self) -> tuple[Ints, pa.Array]:
        """The records that are messages, each once, and for each row which of them; null: none."""
        record = self.rows.record
        chosen, places = np.unique(record[self.is_enqueued], return_inverse=True)
        index = np.zeros(len(record), np.int64)
        index[self.is_enqueued] = places
        return chosen, pa.array(index, mask=~self.is_enqueued)

    @cached_property
    def enqueueds(self) -> Enqueueds:
        return Enqueueds(self.window.records, self._owners[0])

    @cached_property
    def _messages(self) -> Messages:
        from .messages import Messages  # only here is Proton needed: not every cluster has it where it only counts

        return Messages(self.window.records.data, self.enqueueds.starts, self.enqueueds.ends)

    def _of_messages(self, values: pa.Array) -> pa.Array:
        """From one value per message to one per row."""
        chosen, index = self._owners
        return values if len(chosen) == len(self.rows) else values.take(index)

    def of_enqueued(self, make: Callable[[Enqueueds], Any]) -> pa.Array:
        """A fixed field of messages, as an array of Arrow or of numpy."""
        values = make(self.enqueueds)
        return self._of_messages(values if isinstance(values, pa.Array) else pa.array(values))


def _committed(view: WindowView) -> pa.Array:
    return pa.array(view.lsns <= view.part.committed_lsn)


def _written(view: WindowView, missing: Mask | None = None) -> pa.Array:
    return times(view.window.written_ms()[view.rows.record], missing)


def _reason(view: WindowView) -> pa.Array:
    kinds = view.rows.kinds
    codes = np.full(len(kinds), _NO_REASON, np.int64)
    for kind in (_DEQUEUED, _RELEASED):
        rows = np.flatnonzero(kinds == kind)
        if len(rows):
            found = details(view.window.records, view.rows.record[rows]).astype(np.int64)
            codes[rows] = found if kind == _DEQUEUED else np.where(found == 1, _FAILED, _NO_REASON)
    return named(codes, _REASONS)


def _expires(found: Enqueueds) -> pa.Array:
    expires = np.minimum(found.expires_ms.view(np.uint64), np.uint64(_LAST_MS)).astype(np.int64)
    return times(expires, expires == 0)


_LAST_MS: Final = 253_402_300_799_000
"""The end of the year 9999, which is the last that Spark can show."""


def _key(view: WindowView) -> pa.Array:
    data = view.window.records.data
    return view.of_enqueued(lambda found: texts(data, found.key_starts, found.starts, found.starts > found.key_starts))


def _payload(view: WindowView) -> pa.Array:
    return view.of_enqueued(lambda found: binaries(view.window.records.data, found.starts, found.ends))


def _numbers_or_null(values: Ints) -> pa.Array:
    return pa.array(values, mask=values == NONE)


_MAKERS: Final[dict[str, Callable[[WindowView], pa.Array]]] = {
    "cluster": lambda view: view.constant(view.part.segment.header.cluster or view.part.cluster),
    "broker": lambda view: view.constant(view.part.segment.header.broker),
    "set": lambda view: view.constant(view.part.segment.header.set),
    "generation": lambda view: pa.array(view.generations),
    "lsn": lambda view: pa.array(view.lsns),
    "local": lambda view: pa.array(view.lsns < 0),
    "committed": _committed,
    "in_transaction": lambda view: pa.array(view.window.records.parts(view.rows.record)),
    "event": lambda view: named(view.rows.kinds.astype(np.int64), _EVENTS),
    "queue": lambda view: named(*view.queues),
    "queue_id": lambda view: _numbers_or_null(view.queue_ids),
    "message_id": lambda view: _numbers_or_null(view.rows.message_ids),
    "written_at": _written,
    "enqueued_at": lambda view: _written(view, ~view.is_enqueued),
    "reason": _reason,
    "durable": lambda view: view.of_enqueued(lambda found: found.durable),
    "priority": lambda view: view.of_enqueued(lambda found: found.priority),
    "expires_at": lambda view: view.of_enqueued(_expires),
    "key": _key,
    "size": lambda view: view.of_enqueued(lambda found: found.ends - found.starts),
    "payload": _payload,
    "details": lambda view: details_of(view.window.records, view.rows),
    "file": lambda view: view.constant(view.part.file),
    "offset": lambda view: pa.array(view.window.file_offsets()[view.rows.record]),
    "damage": lambda view: pa.nulls(len(view.rows), pa.string()),
}


def damage_rows(schema: pa.Schema, damages: list[Damage]) -> pa.RecordBatch:
    """One row for each place, with nothing but where and what."""
    known = {
        "file": [damage.file for damage in damages],
        "offset": [damage.offset for damage in damages],
        "damage": [damage.text for damage in damages],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(known.get(field.name, [None] * len(damages)), field.type) for field in schema], schema=schema
    )
