"""Streams of journals: what brokers write, as they write it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.store.blocks import FILE_HEADER_BYTES
from qpid_ha_broker.store.layout import segment_numbers

from .errors import JournalDamaged, PipelineError, rows_told_plainly, told_plainly
from .journal.batches import read_group
from .journal.filters import RowFilters
from .journal.followed import FollowedLog, FollowedReplica, Position, log_of
from .journal.part import NONE, JournalPart, LsnRange, grouped, origin_of, part_of
from .journal.positions import (
    NOWHERE,
    JournalPlace,
    JournalStep,
    first_place,
    generation_at,
    look_from,
    pieces_between,
    place_after,
    steps,
    why_lost,
)
from .journal.replicas import covering, history_of
from .journal.stores import Directory, StoreId, find, identities
from .journal.survey import Known, SurveyedStore, Wanted
from .options import Isolation, JournalOptions, Replicas, View
from .schema import check_schema

Offsets = dict[str, dict[str, int]]
"""What Spark keeps: for each store, by its `StoreId`, a `JournalPlace`."""


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver for as long as the query; what it gives is in the offsets alone."""

    def __init__(self, options: JournalOptions, schema: StructType) -> None:
        check_schema(schema)
        if options.is_permissive:
            raise PipelineError("mode=permissive: only for a batch: a stream must not go on past what it may yet read")
        if options.view is View.STATE:
            raise PipelineError("view=state: only for a batch: a stream begins with the state, and goes on with events")
        if options.replicas is Replicas.DISCARDED:
            raise PipelineError("replicas=discarded: only for a batch: a stream follows the log that counts")
        self._options = options
        self._schema = schema
        self._filters = RowFilters(options)
        self._target: dict[str, JournalPlace] | None = None
        self._known: dict[str, Known] = {}
        """By store: segments that were looked at before."""

    # --- where to begin

    @told_plainly
    def initialOffset(self) -> Offsets:
        """As `startingOffsets` says."""
        given = self._options.starting_offsets
        stores = {name: look_from(directory, NOWHERE) for name, directory in self._directories().items()}
        if given == "earliest":
            return _offsets({name: first_place(store) for name, store in stores.items()})
        if given == "latest":
            isolation = self._options.isolation
            return _offsets({name: _frontier(store, first_place(store), isolation) for name, store in stores.items()})
        return _offsets(_asked_places(given, stores))

    def getDefaultReadLimit(self) -> ReadLimit:
        """As `maxRowsPerTrigger` or `maxBytesPerTrigger` says. A row is an event here."""
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    # --- how far to go

    @told_plainly
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """From `start` as far as may be, and no further than `limit`: at least one block, if there is any."""
        directories = self._directories()
        places = {**self._missing(start, directories), **_places(start, directories)}
        wanted = _enough(limit)
        logs = list(self._logs(start, directories, lambda _name: wanted).values())
        ways = {replica.name: self._way(log, replica) for log in logs for replica in log.replicas}
        readers = []
        for log in logs:
            reader, last = log.furthest(ways)
            ways[reader.name] = [step for step in ways[reader.name] if step.place.lsn <= last]
            readers.append(reader)
        total = sum(_size(step, limit) for reader in readers for step in ways[reader.name])
        for log, reader in zip(logs, readers, strict=True):
            self._check_loss(log, reader)
            way = ways[reader.name]
            share = _share(limit, sum(_size(step, limit) for step in way), total)
            places[reader.name] = _end(reader.begin, way, log.delivered, limit, share)
            for replica in log.replicas:
                if replica is not reader:  # it is read for its own log
                    bound = log.bound(replica, reader, places[reader.name])
                    places[replica.name] = _last_place(replica, ways[replica.name], bound)
        return _offsets(places)

    @told_plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """What is written from now on is not of this run. What of the rest was committed, another replica may know."""
        self._target = {name: self._end_of(directory, Isolation.ALL) for name, directory in self._directories().items()}

    @told_plainly
    def reportLatestOffset(self) -> Offsets | None:
        """How far the journals go, for the query's progress."""
        isolation = self._options.isolation
        return _offsets({name: self._end_of(directory, isolation) for name, directory in self._directories().items()})

    def _end_of(self, directory: Directory, isolation: Isolation | None) -> JournalPlace:
        """Seldom before the last segment: so that is looked at first."""
        for number in reversed(segment_numbers(directory.disk)):
            begin = JournalPlace(number, FILE_HEADER_BYTES, 0, 0)
            frontier = _frontier(look_from(directory, begin), begin, isolation)
            if frontier != begin:
                return frontier
        store = look_from(directory, NOWHERE)
        return _frontier(store, first_place(store), isolation)

    def _missing(self, start: Offsets, directories: Mapping[StoreId, Directory]) -> dict[StoreId, JournalPlace]:
        """Where to go on with stores that were read and are not here: they may come back."""
        known = {*directories, *(directory.path for directory in directories.values())}
        missing = {name: JournalPlace.from_json(place) for name, place in start.items() if name not in known}
        lost = [name for name in missing if not self._has_moved(name, directories)]
        if lost and self._options.fail_on_data_loss:
            raise PipelineError(
                f"{', '.join(lost)}: read before, and not among the stores that are here now: bring it back, or set"
                " failOnDataLoss=false to go on with the others"
            )
        return missing

    def _has_moved(self, name: StoreId, directories: Iterable[StoreId]) -> bool:
        """Whether the store was a replica of a set that moves from broker to broker, which nobody keeps events of his
        own in, and another replica is here."""
        if self._options.replicas is Replicas.ALL or name.endswith(f"/{DEFAULT_SET}"):
            return False
        return any(log_of(other) == log_of(name) for other in directories)

    def _way(self, log: FollowedLog, replica: FollowedReplica) -> list[JournalStep]:
        target = self._target.get(replica.name) if self._target is not None else None
        committed = None if self._options.isolation is Isolation.ALL else log.committed_lsn(replica)
        return [
            step
            for step in steps(replica.store, replica.begin, replica.history, committed)
            if target is None or (step.place.segment, step.place.offset) <= (target.segment, target.offset)
        ]

    def _logs(
        self, start: Offsets, directories: Mapping[StoreId, Directory], wanted: Callable[[StoreId], Wanted]
    ) -> dict[str, FollowedLog]:
        """What lies behind `start`. A replica that is damaged is left out as long as there is another one."""
        begins, logs, damages = _places(start, directories), dict[str, FollowedLog](), dict[str, PipelineError]()
        for name, directory in directories.items():
            log = name if self._is_alone(name, directory) else log_of(name)
            try:
                replica = self._look(name, directory, begins[name], wanted(name))
            except JournalDamaged as error:
                damages.setdefault(log, error)
                continue
            log = log if replica.history else name  # nobody has led it: it cannot be compared
            followed = logs.setdefault(log, FollowedLog())
            followed.replicas.append(replica)
            followed.delivered = max(followed.delivered, begins[name].in_log)
        for log, damage in damages.items():
            if log not in logs:
                raise damage
        for name, place in start.items():  # those that are not here, too
            if log_of(name) in logs:
                followed = logs[log_of(name)]
                followed.delivered = max(followed.delivered, JournalPlace.from_json(place).in_log)
        for followed in logs.values():
            followed.forget_former_store()
        return logs

    def _is_alone(self, name: StoreId, directory: Directory) -> bool:
        """Whether the store is no replica of others, or is not to be taken for one."""
        return name == directory.path or self._options.replicas is Replicas.ALL

    def _look(self, name: StoreId, directory: Directory, begin: JournalPlace, wanted: Wanted) -> FollowedReplica:
        """What is behind `begin`, or what is left where that is gone."""
        known = self._known.setdefault(directory.path, {})
        store = look_from(directory, begin, wanted=wanted, known=known)
        lost = why_lost(store, begin)
        if lost is not None or (not begin.offset and begin.segment < store.first_number):
            store = look_from(directory, NOWHERE, wanted=wanted, known=known)
            begin = first_place(store)
        return FollowedReplica(name, store, begin, history_of(store), lost)

    def _check_loss(self, log: FollowedLog, reader: FollowedReplica) -> None:
        """Raises PipelineError for events that the stream cannot give any more, or should not have given."""
        if not self._options.fail_on_data_loss:
            return
        go_on = "to go on with what is left, set failOnDataLoss=false, or begin with a new checkpoint"
        for replica in log.replicas:
            path = replica.store.directory.path
            if replica.lost is not None and (
                replica.has_own_log or (replica.lacks(log.delivered) and replica is reader)
            ):
                raise PipelineError(f"{path}: {replica.lost}; {go_on}")
        if reader.lacks(log.delivered):
            raise PipelineError(
                f"{reader.store.directory.path}: the events after LSN {log.delivered[1]} are in no store any more, what"
                f" is kept begins after LSN {reader.store.complete_from - 1}; {go_on}"
            )
        discarded = log.discarded(reader)
        if not discarded.is_empty:
            raise PipelineError(
                f"LSNs {discarded.first} to {discarded.last}, which were read before, were discarded: the cluster went"
                f" on without them, as {reader.store.directory.path} has it; {go_on}"
            )

    # --- reading

    @told_plainly
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """What lies between two offsets."""
        directories = self._directories()
        ends = _places(end, directories)
        logs = self._logs(start, directories, lambda name: partial(_is_before, ends[name].segment))
        parts: list[JournalPart] = []
        for key, log in logs.items():
            its_ends = {name: JournalPlace.from_json(place) for name, place in end.items() if log_of(name) == key}
            its_ends |= {replica.name: ends[replica.name] for replica in log.replicas}
            parts += self._parts(log, its_ends)
        return grouped(parts, self._options.partition_bytes)

    def _parts(self, log: FollowedLog, ends: Mapping[StoreId, JournalPlace]) -> Iterator[JournalPart]:
        reader = log.reader(ends)
        last = max(place.in_log for place in ends.values())
        if reader is not None:
            self._check_loss(log, reader)
        elif last > log.delivered:  # it is damaged, or not here any more
            yield from self._from_another(log, last)
        for replica in log.replicas:
            if replica.begin[:2] < ends[replica.name][:2]:
                yield from self._of_replica(log, replica, ends[replica.name], is_reader=replica is reader)

    def _of_replica(
        self, log: FollowedLog, replica: FollowedReplica, end: JournalPlace, *, is_reader: bool
    ) -> Iterator[JournalPart]:
        store, lsns, origin = replica.store, NONE, origin_of(replica.store, replica.history)
        if is_reader and self._options.isolation is Isolation.ALL and len(log.replicas) == 1:
            lsns = LsnRange(replica.begin.skip + 1 if replica.begin.skip else 0)  # what was taken back comes again
        elif is_reader:
            lsns = log.new_lsns(replica)
            origin = replace(origin, substitutes=log.substitutes(replica))
        if is_reader and self._options.isolation is not Isolation.ALL:
            lsns = lsns.within(LsnRange(0, log.committed_lsn(replica)))
        for segment, piece in pieces_between(store, replica.begin, end, self._options.partition_bytes):
            if self._filters.may_be_in(piece) and (is_reader or piece.has_local):
                yield part_of(origin, segment, piece, lsns, with_local=piece.has_local)

    def _from_another(self, log: FollowedLog, last: Position) -> Iterator[JournalPart]:
        """The events of a batch whose reader cannot be read, from the first replica that has them all."""
        for replica in log.replicas:
            store = look_from(replica.store.directory, NOWHERE)
            history = history_of(store)
            if generation_at(history, last[1]) == last[0]:
                lsns = log.new_lsns(replica).within(LsnRange(0, last[1]))
                with suppress(JournalDamaged):
                    yield from [
                        part_of(origin_of(store, history), segment, piece, chosen, with_local=False)
                        for segment, piece, chosen in covering(store, lsns)
                    ]
                    return
        raise PipelineError(
            f"no replica that can be read has the events of generation {last[0]} up to LSN {last[1]}: bring the store"
            " back from which they were read"
        )

    @rows_told_plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        return read_group(partition, arrow, self._filters, self._options)

    def _directories(self) -> dict[StoreId, Directory]:
        return identities(find(self._options.paths, self._options.sets))


def _frontier(store: SurveyedStore, begin: JournalPlace, isolation: Isolation | None) -> JournalPlace:
    """How far it goes from there, as far as it says itself."""
    place, committed = begin, None if isolation is Isolation.ALL else store.committed_lsn
    for step in steps(store, begin, history_of(store), committed):
        place = step.place
    return place


def _offsets(places: Mapping[StoreId, JournalPlace]) -> Offsets:
    return {name: place.to_json() for name, place in places.items()}


def _places(offsets: Offsets, directories: Mapping[StoreId, Directory]) -> dict[StoreId, JournalPlace]:
    """Where each of these stores is."""
    return {name: _place(offsets, name, directory) for name, directory in directories.items()}


def _place(offsets: Offsets, name: StoreId, directory: Directory) -> JournalPlace:
    """A store that has come since is read from its beginning.

    It goes by its path in a checkpoint of an older release, and as long as nobody had written in it.
    """
    place = offsets.get(name, offsets.get(directory.path))
    return NOWHERE if place is None else JournalPlace.from_json(place)


def _end(
    begin: JournalPlace, way: Sequence[JournalStep], delivered: Position, limit: ReadLimit, share: int | None
) -> JournalPlace:
    """How far to go: past what was delivered, and else no further than the share allows. None: as far as may be.

    Who reads it again knows the reader by its being furthest.
    """
    place = begin
    for step in way:
        size = _size(step, limit)
        is_new = place != begin and place.in_log > delivered
        if share is not None and is_new and (share <= 0 or size > share):
            break
        share = None if share is None else share - size
        place = step.place
    return place


def _last_place(replica: FollowedReplica, way: Sequence[JournalStep], bound: int) -> JournalPlace:
    """The last one on the way that has no event behind `bound` before it."""
    place = replica.begin
    for step in way:
        if step.place.lsn > bound:
            break
        place = step.place
    return place


def _is_before(last: int, number: int, _events: int, _bytes: int) -> bool:
    return number <= last


def _size(step: JournalStep, limit: ReadLimit) -> int:
    return step.bytes if isinstance(limit, ReadMaxBytes) else step.events


def _enough(limit: ReadLimit) -> Wanted:
    """So much of a store has to be seen block by block; of the rest, what is void and what is committed will do."""
    if isinstance(limit, ReadMaxRows):
        return lambda _number, events, _bytes: events <= limit.max_rows
    if isinstance(limit, ReadMaxBytes):
        return lambda _number, _events, length: length <= limit.max_bytes
    return lambda _number, _events, _bytes: True


def _share(limit: ReadLimit, here: int, total: int) -> int | None:
    """Of what may be read, as much as this store has of what there is. None: all."""
    if isinstance(limit, ReadMaxRows):
        most = limit.max_rows
    elif isinstance(limit, ReadMaxBytes):
        most = limit.max_bytes
    else:
        return None
    return most if total <= most else most * here // total


def _asked_places(given: str, stores: Mapping[StoreId, SurveyedStore]) -> dict[StoreId, JournalPlace]:
    """`{"BROKER, BROKER/SET or PATH": {"generation": G, "lsn": N}, ...}`; what is not named is read from its beginning.

    A broker alone names the one store of it that is here, or that of `default`.
    """
    expected = 'expected earliest, latest, or JSON such as {"node1": {"generation": 2, "lsn": 1017}}'
    try:
        document: Any = json.loads(given)
    except ValueError:
        raise PipelineError(f"startingOffsets: {expected}, found {given!r}") from None
    if not isinstance(document, dict) or not all(isinstance(value, dict) for value in document.values()):
        raise PipelineError(f"startingOffsets: {expected}, found {given!r}")
    places = {}
    brokers = {name: store.segments[0].header.broker if store.segments else "" for name, store in stores.items()}
    counts = Counter(brokers.values())
    for name, store in stores.items():
        broker = brokers[name]
        keys = [name, store.directory.path, f"{broker}/{store.set}"]
        if counts[broker] == 1 or store.set == DEFAULT_SET:
            keys.append(broker)
        asked = next((document.pop(key) for key in keys if document.get(key)), None)
        if asked is None:
            places[name] = first_place(store)
        elif "segment" in asked:
            places[name] = JournalPlace.from_json(asked)
        else:
            places[name] = _after(store, asked, expected)
    if document:
        raise PipelineError(f"startingOffsets: names {', '.join(document)}, of which there is no store here")
    return places


def _after(store: SurveyedStore, asked: Mapping[str, Any], expected: str) -> JournalPlace:
    lsn = asked.get("lsn")
    if type(lsn) is not int or lsn < 0:
        raise PipelineError(f"startingOffsets: {expected}, found {dict(asked)!r}")
    return place_after(store, lsn, history_of(store))
