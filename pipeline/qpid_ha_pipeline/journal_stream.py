"""Streams of journals: what brokers write, as they write it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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

from qpid_ha_broker.store.blocks import FILE_HEADER_BYTES
from qpid_ha_broker.store.layout import segment_numbers

from .errors import PipelineError, rows_told_plainly, told_plainly
from .journal.batches import read_group
from .journal.filters import RowFilters
from .journal.part import JournalPart, grouped, part_of
from .journal.positions import (
    NOWHERE,
    JournalPlace,
    JournalStep,
    first_place,
    look_from,
    pieces_between,
    place_after,
    steps,
    why_lost,
)
from .journal.stores import Directory, StoreId, find, identities
from .journal.survey import Known, SurveyedStore, Wanted
from .options import Isolation, JournalOptions
from .schema import check_schema

Offsets = dict[str, dict[str, int]]
"""What Spark keeps: for each store, by its `StoreId`, a `JournalPlace`."""


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver for as long as the query; what it gives is in the offsets alone."""

    def __init__(self, options: JournalOptions, schema: StructType) -> None:
        check_schema(schema)
        if options.is_permissive:
            raise PipelineError("mode=permissive: only for a batch: a stream must not go on past what it may yet read")
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
        stores = {name: look_from(each, NOWHERE) for name, each in self._directories().items()}
        if given == "earliest":
            return _offsets({name: first_place(store) for name, store in stores.items()})
        if given == "latest":
            return _offsets({name: self._frontier(store, first_place(store)) for name, store in stores.items()})
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
        begins = {name: _place(start, name, each) for name, each in directories.items()}
        ways = {name: self._way(name, directories[name], begin, _enough(limit)) for name, begin in begins.items()}
        total = sum(_size(step, limit) for way in ways.values() for step in way)
        places = {**self._missing(start, directories), **begins}
        for name, way in ways.items():
            share = _share(limit, sum(_size(step, limit) for step in way), total)
            for step in way:
                size = _size(step, limit)
                if share is not None and size > share and places[name] != begins[name]:
                    break
                share = None if share is None else share - size
                places[name] = step.place
                if share is not None and share <= 0:
                    break
        return _offsets(places)

    @told_plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """What is written from now on is not of this run."""
        self._target = {name: self._end_of(each) for name, each in self._directories().items()}

    @told_plainly
    def reportLatestOffset(self) -> Offsets | None:
        """How far the journals go, for the query's progress."""
        return _offsets({name: self._end_of(each) for name, each in self._directories().items()})

    def _end_of(self, directory: Directory) -> JournalPlace:
        """Seldom before the last segment: so that is looked at first."""
        for number in reversed(segment_numbers(directory.disk)):
            begin = JournalPlace(number, FILE_HEADER_BYTES, 0, 0)
            found = self._frontier(look_from(directory, begin), begin)
            if found != begin:
                return found
        return first_place(look_from(directory, NOWHERE))

    def _frontier(self, store: SurveyedStore, begin: JournalPlace) -> JournalPlace:
        place = begin
        for step in self._steps(store, begin):
            place = step.place
        return place

    def _steps(self, store: SurveyedStore, begin: JournalPlace) -> Iterator[JournalStep]:
        return steps(store, begin, only_committed=self._options.isolation is not Isolation.ALL)

    def _missing(self, start: Offsets, directories: Mapping[StoreId, Directory]) -> dict[StoreId, JournalPlace]:
        """Where to go on with stores that were read and are not here: they may come back."""
        known = {*directories, *(directory.path for directory in directories.values())}
        missing = {name: JournalPlace.from_json(place) for name, place in start.items() if name not in known}
        if missing and self._options.fail_on_data_loss:
            raise PipelineError(
                f"{', '.join(missing)}: read before, and not among the stores that are here now: bring it back, or set"
                " failOnDataLoss=false to go on with the others"
            )
        return missing

    def _way(self, name: StoreId, directory: Directory, begin: JournalPlace, wanted: Wanted) -> list[JournalStep]:
        store, begin = self._look(directory, begin, wanted)
        target = self._target.get(name) if self._target is not None else None
        return [
            step
            for step in self._steps(store, begin)
            if target is None or (step.place.segment, step.place.offset) <= (target.segment, target.offset)
        ]

    def _look(self, directory: Directory, begin: JournalPlace, wanted: Wanted) -> tuple[SurveyedStore, JournalPlace]:
        """What is behind `begin`; where that is gone, either an error or what is left."""
        known = self._known.setdefault(directory.path, {})
        store = look_from(directory, begin, wanted=wanted, known=known)
        lost = why_lost(store, begin)
        if lost is None:
            return store, begin
        if self._options.fail_on_data_loss:
            raise PipelineError(
                f"{directory.path}: {lost}; to go on with what is left, set failOnDataLoss=false, or begin with a new"
                " checkpoint"
            )
        store = look_from(directory, NOWHERE, wanted=wanted, known=known)
        return store, first_place(store)

    # --- reading

    @told_plainly
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """What lies between two offsets."""
        parts: list[JournalPart] = []
        for name, directory in self._directories().items():
            begin, until = _place(start, name, directory), _place(end, name, directory)
            if (begin.segment, begin.offset) != (until.segment, until.offset):
                parts += self._parts(directory, begin, until)
        return grouped(parts, self._options.partition_bytes)

    def _parts(self, directory: Directory, begin: JournalPlace, end: JournalPlace) -> Iterator[JournalPart]:
        store, begin = self._look(directory, begin, lambda number, _events, _bytes: number <= end.segment)
        most = store.committed_lsn if self._options.isolation is not Isolation.ALL else None
        for segment, piece in pieces_between(store, begin, end, self._options.partition_bytes):
            if self._filters.may_be_in(piece):
                skip = begin.skip + 1 if begin.skip and (segment.number, piece.begin) == begin[:2] else 0
                yield part_of(store, segment, piece, max_lsn=most, min_lsn=skip)

    @rows_told_plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        return read_group(partition, arrow, self._filters, self._options)

    def _directories(self) -> dict[StoreId, Directory]:
        return identities(find(self._options.paths, self._options.set))


def _offsets(places: Mapping[StoreId, JournalPlace]) -> Offsets:
    return {name: place.to_json() for name, place in places.items()}


def _place(offsets: Offsets, name: StoreId, directory: Directory) -> JournalPlace:
    """A store that has come since is read from its beginning.

    It goes by its path in a checkpoint of an older release, and as long as nobody had written in it.
    """
    found = offsets.get(name, offsets.get(directory.path))
    return NOWHERE if found is None else JournalPlace.from_json(found)


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
    """`{"BROKER or PATH": {"generation": G, "lsn": N}, ...}`; what is not named is read from its beginning."""
    expected = 'expected earliest, latest, or JSON such as {"node1": {"generation": 2, "lsn": 1017}}'
    try:
        document: Any = json.loads(given)
    except ValueError:
        raise PipelineError(f"startingOffsets: {expected}, found {given!r}") from None
    if not isinstance(document, dict) or not all(isinstance(value, dict) for value in document.values()):
        raise PipelineError(f"startingOffsets: {expected}, found {given!r}")
    places = {}
    for name, store in stores.items():
        broker = store.segments[0].header.broker if store.segments else ""
        asked = document.pop(name, None) or document.pop(store.directory.path, None) or document.pop(broker, None)
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
    return place_after(store, lsn)
