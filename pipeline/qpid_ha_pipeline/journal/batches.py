"""From windows to Arrow batches: only the columns that are wanted, and only of the rows that pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.layout import BODIES, RecordKind
from qpid_ha_broker.events.scan import RecordError
from qpid_ha_kernel import Kernel
from qpid_ha_pipeline.errors import JournalDamaged, PipelineError
from qpid_ha_pipeline.options import JournalOptions, Mode
from qpid_ha_pipeline.schema import MESSAGE_COLUMNS

from .details import details_of
from .filters import RowFilters
from .kernel_scan import chosen_kernel
from .names import Naming, QueueNames
from .part import JournalPart, LsnRange, PartGroup, StatePart, Substitute, part_of
from .records import IS_MESSAGE, NONE, Enqueueds, Ints, Mask, Records, Rows, details, event_name
from .replicas import covering
from .scan import DamagedBlock, Scan, Window
from .state import StoreState
from .survey import Damage, look
from .text import binaries, named, texts, times

if TYPE_CHECKING:
    from .messages import Messages

_EVENTS: Final[list[str | None]] = [event_name(RecordKind(code)) if code in BODIES else None for code in range(256)]
_DEQUEUED, _RELEASED = int(RecordKind.DEQUEUED), int(RecordKind.RELEASED)
_REASONS: Final[list[str | None]] = [*(reason.name.lower() for reason in ev.DequeueReason), "failed", None]
_FAILED, _NO_REASON = len(_REASONS) - 2, len(_REASONS) - 1
_QUEUE_EVENTS: Final = [int(kind) for kind, body in BODIES.items() if "queue" in body.fields]
_GENERATION, _DECLARED = int(RecordKind.GENERATION_STARTED), int(RecordKind.QUEUE_DECLARED)
_PLACED: Final = int(RecordKind.QUEUE_PLACED)
_TELLS: Final = np.isin(np.arange(256), [_GENERATION, _DECLARED, _PLACED])
"""Kinds of which a reader keeps something for the rows of others."""


def read_group(
    group: InputPartition, schema: pa.Schema, filters: RowFilters, options: JournalOptions
) -> Iterator[pa.RecordBatch]:
    """All batches of what one task reads. Raises JournalDamaged, PipelineError."""
    if isinstance(group, PartGroup):  # else it is Spark's stand-in for no partitions at all
        for part in group.parts:
            if isinstance(part, StatePart):
                yield from read_state(part, schema, filters, options)
            else:
                yield from Batches(part, schema, filters, options).read()


def read_state(
    part: StatePart, schema: pa.Schema, filters: RowFilters, options: JournalOptions
) -> Iterator[pa.RecordBatch]:
    """All batches of what is in a store now. Raises JournalDamaged, PipelineError.

    A store that is damaged has no state that one could know: in permissive mode that is all that is told of it.
    """
    try:
        state = StoreState(part)
    except JournalDamaged as error:
        if not part.is_permissive:
            raise
        if "damage" in schema.names:
            yield damage_rows(schema, [Damage(error.file, error.offset, error.text)])
        return
    if (configuration := state.configuration) is not None:
        yield from Batches(configuration.part, schema, filters, options).of_window(configuration)
    for file in state.files:
        yield from Batches(file, schema, filters, options, state).read()


class Batches:
    """Makes the batches of one part. `schema`: of Arrow, the wanted columns in their order.

    `state`: of its rows only those that tell of what is there now.
    """

    def __init__(
        self, part: JournalPart, schema: pa.Schema, filters: RowFilters, options: JournalOptions,
        state: StoreState | None = None,
    ) -> None:  # fmt: skip
        self._part = part
        self._schema = schema
        self._filters = filters
        self._options = options
        self._state = state
        self._kernel = chosen_kernel(options.kernel)
        self._scan = Scan(part, checks=options.checksums, kernel=self._kernel)
        self._damages = list(part.damages)
        others = [substitute.directory for substitute in part.origin.substitutes]
        self._names = QueueNames(part.origin.directory, part.origin.taken_back, others)
        self._generation = part.segment.header.generation
        self._generations = list(part.origin.generations)

    def read(self) -> Iterator[pa.RecordBatch]:
        """All batches. Raises JournalDamaged unless permissive, PipelineError."""
        if self._part.bytes:
            for window in self._scan.windows():
                yield from self._around(window) if isinstance(window, DamagedBlock) else self.of_window(window)
                del window  # before the next one is read, which can then have its memory
        if self._damages and "damage" in self._schema.names:
            yield damage_rows(self._schema, self._damages)

    def of_window(self, window: Window) -> Iterator[pa.RecordBatch]:
        """The rows of one window. Raises as `read`."""
        try:
            batch = self._batch(window)
        except RecordError as error:
            yield from self._around(self._scan.damaged_in(window, error))
            return
        if batch is not None:
            yield batch

    def _around(self, block: DamagedBlock) -> Iterator[pa.RecordBatch]:
        """What was in a damaged block, from a replica that has it, or what is left of it."""
        rows = self._substituted(block.lsns) if block.lsns is not None else None
        if not self._options.is_permissive:
            if rows is None:
                raise JournalDamaged(*block.damage)
            yield from rows
            return
        if rows is not None or block.header is None:
            self._damages.append(block.damage)
            yield from rows or ()
            return
        window, damages = self._scan.whole_records(block.header)
        self._damages += damages
        if window is not None:
            yield from self.of_window(window)

    def _substituted(self, lsns: LsnRange) -> list[pa.RecordBatch] | None:
        """The rows of these events from the first replica that has them whole; None: there is none."""
        for substitute in self._part.origin.substitutes:
            if lsns.last <= substitute.last_lsn:
                with suppress(JournalDamaged, PipelineError):
                    return list(self._from(substitute, lsns))
        return None

    def _from(self, substitute: Substitute, lsns: LsnRange) -> Iterator[pa.RecordBatch]:
        """Raises JournalDamaged where it has not all of them."""
        directory = substitute.directory
        store = look(directory, is_permissive=True, piece_bytes=1)  # block by block: others may be damaged, too
        own = replace(
            self._part.origin, directory=directory, taken_back=store.taken_back, cluster=store.cluster, substitutes=()
        )
        for segment, piece, chosen in covering(store, lsns):
            part = part_of(own, segment, piece, chosen, with_local=False)
            strict = replace(self._options, mode=Mode.STRICT)
            yield from Batches(part, self._schema, self._filters, strict, self._state).read()

    def _batch(self, window: Window) -> pa.RecordBatch | None:
        records = window.records
        kinds = records.kinds
        chosen: Mask | None = window.counting()
        generations = self._learn(records, chosen)
        if self._state is not None:
            kept = IS_MESSAGE[kinds]
            chosen = kept if chosen is None else chosen & kept
        if self._filters.has("event"):
            accepted = self._accepted_kinds[kinds]
            chosen = accepted if chosen is None else chosen & accepted
        if self._filters.has("lsn"):
            passing = self._filters.lsns(records.lsns)
            chosen = passing if chosen is None else chosen & passing
        if self._filters.has("generation"):
            passing = self._filters.generations(generations(records.lsns))
            chosen = passing if chosen is None else chosen & passing
        rows = Rows(records, None if chosen is None or chosen.all() else np.flatnonzero(chosen))
        view = WindowView(window, rows, self._names, generations, self._kernel)
        view = view.kept(self._passing(view))
        if not len(rows):
            return None
        return pa.RecordBatch.from_arrays([view.column(name) for name in self._schema.names], schema=self._schema)

    @cached_property
    def _accepted_kinds(self) -> Mask:
        return np.array([self._filters.accepts("event", name) for name in _EVENTS], np.bool_)

    def _passing(self, view: WindowView) -> Mask | None:
        passing = self._state.is_there(view.rows) if self._state is not None else None
        if self._filters.has("queue"):
            codes, names = view.queues
            accepted = np.array([self._filters.accepts("queue", name) for name in names], np.bool_)
            passing = accepted[codes] if passing is None else passing & accepted[codes]
        return passing

    def _learn(self, records: Records, counting: Mask | None) -> GenerationsOf:
        """How to know the generation of each record; and the names of queues that are declared in passing."""
        lsns, begun = records.lsns, self._generations
        tells = _TELLS[records.kinds]
        for index in np.flatnonzero(tells if counting is None else tells & counting):
            record = records.event(int(index))
            if isinstance(record.event, Naming):
                self._names.learn(int(lsns[index]), record.event)
            elif isinstance(record.event, ev.GenerationStarted) and (not begun or record.lsn > begun[-1][0]):
                begun.append((record.lsn, record.event.generation))
        generations = GenerationsOf(tuple(begun), self._generation)
        if len(records):
            self._generation = max(self._generation, int(generations(lsns[-1:])[0]))
        return generations


class GenerationsOf:
    """The generation of each LSN, where some begin (`begun`: first LSN and generation, ascending); of the broker's own
    log, whose LSNs are negative, it is `own`."""

    def __init__(self, begun: tuple[tuple[int, int], ...], own: int) -> None:
        self._first = np.array([lsn for lsn, _ in begun], np.int64)
        self._values = np.array([0, *(generation for _, generation in begun)], np.int64)
        self._own = own

    def __call__(self, lsns: Ints) -> Ints:
        """One for each."""
        if not len(self._first):
            return np.full(len(lsns), self._own, np.int64)
        of_lsn = self._values[np.searchsorted(self._first, lsns, side="right")]
        return np.where(lsns < 0, self._own, of_lsn)


class WindowView:
    """The rows of a window, seen column by column."""

    def __init__(
        self, window: Window, rows: Rows, names: QueueNames, generations: GenerationsOf, kernel: Kernel | None
    ) -> None:
        """`kernel`: to find bodies with."""
        self.window = window
        self.rows = rows
        self.part = window.part
        self._names = names
        self._generations = generations
        self._kernel = kernel

    def kept(self, passing: Mask | None) -> WindowView:
        """Only these rows from now on; None: all of them. What is known of their queues stays."""
        if passing is None or passing.all():
            return self
        self.rows.keep(passing)
        view = WindowView(self.window, self.rows, self._names, self._generations, self._kernel)
        if "queues" in vars(self):
            codes, names = self.queues
            view.queues = codes[passing], names
        return view

    def column(self, name: str) -> pa.Array:
        """One column, for all rows."""
        if name in MESSAGE_COLUMNS:
            return self._of_messages(self._messages.column(name))
        return _MAKERS[name](self)

    def constant(self, value: str, count: int | None = None) -> pa.Array:
        """A column with one value for all."""
        return pa.repeat(pa.scalar(value or None, pa.string()), len(self.rows) if count is None else count)

    @cached_property
    def lsns(self) -> Ints:
        return self.window.records.lsns[self.rows.record]

    @cached_property
    def generations(self) -> Ints:
        return self._generations(self.lsns)

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
        return IS_MESSAGE[self.rows.kinds]

    @cached_property
    def _owners(self) -> tuple[Ints, pa.Array]:
        """The records that are messages, each once, and for each row which of them; null: none."""
        record = self.rows.record
        if self.is_enqueued.all() and (len(record) < 2 or (record[1:] > record[:-1]).all()):
            return record, pa.array(np.arange(len(record)))
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

        return Messages(self.window.records.data, self.enqueueds.starts, self.enqueueds.ends, self._kernel)

    def _of_messages(self, values: pa.Array) -> pa.Array:
        """From one value per message to one per row."""
        chosen, index = self._owners
        return values if len(chosen) == len(self.rows) else values.take(index)

    def of_enqueued(self, make: Callable[[Enqueueds], Any]) -> pa.Array:
        """A fixed field of messages, as an array of Arrow or of numpy."""
        values = make(self.enqueueds)
        return self._of_messages(values if isinstance(values, pa.Array) else pa.array(values))


def _committed(view: WindowView) -> pa.Array:
    return pa.array(view.lsns <= view.part.origin.committed_lsn)


def _written(view: WindowView, missing: Mask | None = None) -> pa.Array:
    if view.part.segment.is_snapshot:  # nobody knows any more
        return pa.nulls(len(view.rows), pa.timestamp("us", tz="UTC"))
    return times(view.window.written_ms()[view.rows.record], missing)


def _reason(view: WindowView) -> pa.Array:
    kinds = view.rows.kinds
    codes = np.full(len(kinds), _NO_REASON, np.int64)
    for kind in (_DEQUEUED, _RELEASED):
        rows = np.flatnonzero(kinds == kind)
        if len(rows):
            codes_read = details(view.window.records, view.rows.record[rows]).astype(np.int64)
            codes[rows] = codes_read if kind == _DEQUEUED else np.where(codes_read == 1, _FAILED, _NO_REASON)
    return named(codes, _REASONS)


def _expires(events: Enqueueds) -> pa.Array:
    return _times_of(events.expires_ms)


def _due(events: Enqueueds) -> pa.Array:
    return _times_of(events.due_ms)


def _times_of(numbers: Ints) -> pa.Array:
    """Null where it is 0."""
    bounded = np.minimum(numbers.view(np.uint64), np.uint64(_LAST_MS)).astype(np.int64)
    return times(bounded, bounded == 0)


_LAST_MS: Final = 253_402_300_799_000
"""The end of the year 9999, which is the last that Spark can show."""


def _key(view: WindowView) -> pa.Array:
    data = view.window.records.data
    return view.of_enqueued(
        lambda events: texts(data, events.key_starts, events.key_ends, events.key_ends > events.key_starts)
    )


def _payload(view: WindowView) -> pa.Array:
    return view.of_enqueued(lambda events: binaries(view.window.records.data, events.starts, events.ends))


def _numbers_or_null(values: Ints) -> pa.Array:
    return pa.array(values, mask=values == NONE)


_MAKERS: Final[dict[str, Callable[[WindowView], pa.Array]]] = {
    "cluster": lambda view: view.constant(view.part.segment.header.cluster or view.part.origin.cluster),
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
    "durable": lambda view: view.of_enqueued(lambda events: events.durable),
    "priority": lambda view: view.of_enqueued(lambda events: events.priority),
    "expires_at": lambda view: view.of_enqueued(_expires),
    "due_at": lambda view: view.of_enqueued(_due),
    "key": _key,
    "size": lambda view: view.of_enqueued(lambda events: events.ends - events.starts),
    "payload": _payload,
    "details": lambda view: details_of(view.window.records, view.rows),
    "from_snapshot": lambda view: pa.repeat(view.part.segment.is_snapshot, len(view.rows)),
    "discarded": lambda view: pa.array(view.lsns >= view.part.origin.discarded_from),
    "complete_from": lambda view: pa.repeat(view.part.origin.complete_from, len(view.rows)),
    "file": lambda view: view.constant(view.part.file),
    "offset": lambda view: _numbers_or_null(view.window.file_offsets()[view.rows.record]),
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
