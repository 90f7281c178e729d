"""Which of several stores an event is read from, where the stores are replicas of one log.

The brokers of a cluster write the same events, each into its own store, until somebody is promoted who lacks some of
them: then a store holds a branch with which the cluster did not go on. The log that counts is that of the store which
`qpid-ha store best` puts first (`store.best.leading`); each other one agrees with it up to an LSN, which follows from
the histories of generations (`ha.history.common_lsn`), and what it has beyond that is discarded.

1. The log begins where a store does from which on the stores together hold all events, up to the end; of several, where
   the most is told. What was before comes from that store's snapshot.
2. From there on events come from the leading store, wherever it has them and they are whole.
3. Where it has not, because it was folded or is damaged, they come from the store that goes furthest.
4. Where none has, it is damage of the leading store.
5. Logs that brokers keep for themselves have no replicas, and come from each store.

A store that nobody has led yet cannot be compared, and is a log of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.layout import LOCAL_BASE, RecordKind
from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.ha.history import common_lsn
from qpid_ha_broker.store.best import leading
from qpid_ha_broker.store.facts import Integrity, StoreFacts
from qpid_ha_broker.store.survey import NO_LIMIT, limits_of
from qpid_ha_pipeline.errors import JournalDamaged
from qpid_ha_pipeline.options import Isolation, JournalOptions, Replicas

from .part import ALL, NONE, JournalPart, LsnRange, Origin, StatePart, Substitute, origin_of, part_of
from .scan import Scan, Window
from .survey import TAIL_BYTES, SurveyedPiece, SurveyedSegment, SurveyedStore


class Extent(NamedTuple):
    """Events of the log that counts, which lie in a piece and can be read."""

    lsns: LsnRange
    segment: SurveyedSegment
    piece: SurveyedPiece


class ReplicaStore:
    """A store, and how far it agrees with the log that counts."""

    def __init__(self, store: SurveyedStore, history: Sequence[GenerationEntry], common: int = NO_LIMIT) -> None:
        """`common`: the last LSN up to which it agrees."""
        self.store = store
        self.history = tuple(history)
        self.common_lsn = common

    @property
    def last_lsn(self) -> int:
        """The last event of the log that counts which it has."""
        return min(self.common_lsn, self.store.last_lsn)

    @property
    def begins_within(self) -> bool:
        """Whether what it begins with is of the log that counts."""
        return self.store.complete_from - 1 <= self.common_lsn

    @property
    def files(self) -> Iterator[tuple[SurveyedSegment, SurveyedPiece]]:
        """All pieces, those of the snapshot first."""
        base = self.store.base
        for segment in (*((base.file,) if base is not None else ()), *self.store.counting_segments):
            for piece in segment.pieces:
                yield segment, piece

    @property
    def has_own_log(self) -> bool:
        """Whether anything was written into the log that its broker keeps for itself."""
        return any(segment.header.first_local_lsn > LOCAL_BASE + 1 for segment in self.store.segments) or any(
            piece.has_local for _, piece in self.files
        )

    @cached_property
    def extents(self) -> list[Extent]:
        """In segments, ascending and apart. What comes later with a lower LSN truncated what was before, also where the
        block that says so is damaged."""
        limit_of, extents, before = limits_of(self.store.taken_back), list[Extent](), NO_LIMIT
        pieces = [(segment, piece) for segment in self.store.counting_segments for piece in segment.pieces]
        for segment, piece in reversed(pieces):
            last = min(piece.last_lsn, limit_of((segment.number, piece.begin)), self.common_lsn, before - 1)
            if piece.first_lsn <= last:
                extents.append(Extent(LsnRange(piece.first_lsn, last), segment, piece))
            if piece.first_lsn <= piece.last_lsn:
                before = min(before, piece.first_lsn)
        return extents[::-1]

    def extent_at(self, lsn: int) -> Extent | None:
        """The one that has it."""
        place = bisect_right(self.extents, lsn, key=lambda extent: extent.lsns.first) - 1
        return self.extents[place] if place >= 0 and self.extents[place].lsns.last >= lsn else None

    def next_after(self, lsn: int) -> int:
        """The first LSN behind that one with which an extent begins; NO_LIMIT: there is none."""
        place = bisect_right(self.extents, lsn, key=lambda extent: extent.lsns.first)
        return self.extents[place].lsns.first if place < len(self.extents) else NO_LIMIT


class ReplicatedLog:
    """The replicated log of a resource set, of which each replica holds a part. The leading one comes first."""

    def __init__(self, replicas: Sequence[ReplicaStore]) -> None:
        self.replicas = tuple(replicas)

    @property
    def leading(self) -> ReplicaStore:
        """Whose log counts."""
        return self.replicas[0]

    @property
    def committed_lsn(self) -> int:
        """The highest LSN of which a replica that agrees says that it was committed."""
        return max(min(replica.store.committed_lsn, replica.common_lsn) for replica in self.replicas)

    @cached_property
    def beginning(self) -> ReplicaStore:
        """With whose beginning the log begins."""
        fitting = sorted(
            (replica for replica in self.replicas if replica.begins_within and replica.store.segments),
            key=lambda replica: (replica.store.complete_from, replica is not self.leading),
        )
        return next((replica for replica in fitting if self._is_whole_from(replica.store.complete_from)), self.leading)

    def _is_whole_from(self, lsn: int) -> bool:
        return all(isinstance(run, _Run) for run in self.runs(lsn))

    def runs(self, begin: int) -> Iterator[_Run | LsnRange]:
        """From which replica events are read, from `begin` on to the end; a range: no replica has these."""
        cursor, end = begin, self.leading.last_lsn
        while cursor <= end:
            holders = [
                (replica, extent) for replica in self.replicas if (extent := replica.extent_at(cursor)) is not None
            ]
            if not holders:
                following = min(replica.next_after(cursor) for replica in self.replicas)
                yield LsnRange(cursor, min(end, following - 1))
                cursor = following
                continue
            replica, extent = holders[0]
            if replica is not self.leading:
                replica, extent = max(holders, key=lambda pair: pair[1].lsns.last)
            last = extent.lsns.last
            if replica is not self.leading:
                last = min(last, self.leading.next_after(cursor) - 1)
            yield _Run(replica, extent, LsnRange(cursor, last))
            cursor = last + 1


class _Run(NamedTuple):
    """Events that are read from one piece of a replica."""

    replica: ReplicaStore
    extent: Extent
    lsns: LsnRange


# --- which log counts


def logs_of(stores: Iterable[SurveyedStore]) -> list[ReplicatedLog]:
    """The logs of which these stores are replicas."""
    families: dict[tuple[str, str], list[SurveyedStore]] = {}
    for store in stores:
        families.setdefault((store.cluster, store.set) if store.cluster else ("", store.directory.path), []).append(
            store
        )
    return [log for family in families.values() for log in _logs(family)]


def _logs(stores: Sequence[SurveyedStore]) -> list[ReplicatedLog]:
    """Of one cluster. A store that is alone has nobody to be compared with, so nothing is read for that."""
    if len(stores) == 1:
        status = stores[0].status
        history = [GenerationEntry(*entry) for entry in status.history] if status is not None else []
        return [ReplicatedLog([ReplicaStore(stores[0], history)])]
    replicas = [ReplicaStore(store, history_of(store)) for store in stores]
    led = [replica for replica in replicas if replica.history]
    alone = [ReplicatedLog([replica]) for replica in replicas if not replica.history]
    return [_compared(led), *alone] if led else alone


def _compared(replicas: Sequence[ReplicaStore]) -> ReplicatedLog:
    facts = [_facts(str(number), replica) for number, replica in enumerate(replicas)]
    first = replicas[int(leading(facts).where)]
    others = [
        ReplicaStore(
            replica.store, replica.history, common_lsn(replica.history, replica.store.last_lsn, first.history, NO_LIMIT)
        )
        for replica in replicas
        if replica is not first
    ]
    return ReplicatedLog([ReplicaStore(first.store, first.history), *others])


def _facts(where: str, replica: ReplicaStore) -> StoreFacts:
    """What headers and STATUS tell of it, which is what the verdict goes by."""
    store, status = replica.store, replica.store.status
    return StoreFacts(
        where,
        broker=store.segments[-1].header.broker if store.segments else "",
        cluster=store.cluster,
        history=replica.history,
        epoch=status.epoch if status is not None else 0,
        members=status.members if status is not None else (),
        last_lsn=store.last_lsn,
        committed_lsn=store.committed_lsn,
        integrity=Integrity.DAMAGED if store.damages else Integrity.OK,
    )


_GENERATION: Final = int(RecordKind.GENERATION_STARTED)


def history_of(store: SurveyedStore) -> tuple[GenerationEntry, ...]:
    """The generations of its log: those of STATUS, and those that were begun since it was written."""
    entries = [GenerationEntry(*entry) for entry in store.status.history] if store.status is not None else []
    headers = [segment.header for segment in (*store.segments, *([store.base.file] if store.base is not None else []))]
    newest = max((header.generation for header in headers), default=0)
    is_behind = newest > (entries[-1].generation if entries else 0)
    for lsn, event in _generations(store, whole=is_behind):
        if not entries or event.generation > entries[-1].generation:
            entries.append(GenerationEntry(event.generation, event.primary, lsn))
    return tuple(entry for entry in entries if entry.first_lsn <= store.last_lsn)


def _generations(store: SurveyedStore, *, whole: bool) -> Iterator[tuple[int, ev.GenerationStarted]]:
    """The generations that begin at the end of the journal, or anywhere in it."""
    origin, left, chosen = origin_of(store, ()), TAIL_BYTES, list[JournalPart]()
    files = (store.base.file, *store.segments) if store.base is not None and whole else store.segments
    for segment in reversed(files):
        if not segment.pieces:
            continue
        if left <= 0 and not whole:
            break
        begin = segment.pieces[0].begin if whole else max(segment.pieces[0].begin, segment.tail_at)
        piece = SurveyedPiece(begin, segment.pieces[-1].end, 0, NO_LIMIT, False)
        left -= piece.end - begin
        chosen.append(part_of(origin, segment, piece))
    for part in reversed(chosen):
        for window in Scan(part).windows():
            if isinstance(window, Window):
                records, counting = window.records, window.counting()
                starts = records.kinds == _GENERATION
                for index in np.flatnonzero(starts if counting is None else starts & counting):
                    record = records.event(int(index))
                    if isinstance(record.event, ev.GenerationStarted):
                        yield record.lsn, record.event


def covering(store: SurveyedStore, lsns: LsnRange) -> Iterator[tuple[SurveyedSegment, SurveyedPiece, LsnRange]]:
    """The pieces of a store in which these events are. Raises JournalDamaged where it has not all of them."""
    replica, cursor = ReplicaStore(store, ()), lsns.first
    while cursor <= lsns.last:
        extent = replica.extent_at(cursor)
        if extent is None:
            raise JournalDamaged(store.directory.path, 0, f"LSN {cursor} is not in it")
        yield extent.segment, extent.piece, extent.lsns.within(LsnRange(cursor, lsns.last))
        cursor = extent.lsns.last + 1


# --- from which store what is read


def event_parts(log: ReplicatedLog, options: JournalOptions) -> Iterator[JournalPart]:
    """What is read of a log. Raises JournalDamaged unless permissive, where no replica has what it should."""
    only_committed, replicas = options.isolation is Isolation.COMMITTED, options.replicas
    if replicas is Replicas.ONE:
        committed = LsnRange(0, log.committed_lsn) if only_committed else ALL
        yield from _each_event_once(log, committed, options.is_permissive)
        return
    for replica in log.replicas:
        _require_whole(replica, options.is_permissive)
        allowed = LsnRange(0, replica.store.committed_lsn) if only_committed else ALL
        if replicas is Replicas.DISCARDED:
            allowed = allowed.within(LsnRange(replica.common_lsn + 1, NO_LIMIT))
            if allowed.is_empty or replica.store.last_lsn <= replica.common_lsn:
                continue
        origin = _origin(replica)
        for segment, piece in replica.files:
            if replicas is Replicas.ALL or piece.last_lsn > replica.common_lsn:
                yield part_of(origin, segment, piece, allowed, with_local=replicas is Replicas.ALL)
        yield from _damages(replica)


def _each_event_once(log: ReplicatedLog, allowed: LsnRange, is_permissive: bool) -> Iterator[JournalPart]:
    beginning = log.beginning
    complete_from = beginning.store.complete_from
    ranges: dict[tuple[ReplicaStore, int, int], list[LsnRange]] = {}
    """By replica, segment and offset of the piece."""
    for run in log.runs(complete_from):
        if isinstance(run, _Run):
            place = (run.replica, run.extent.segment.number, run.extent.piece.begin)
            is_all = run.lsns == run.extent.lsns and len(log.replicas) == 1
            ranges.setdefault(place, []).append(ALL if is_all else run.lsns)
        else:
            _require_whole(log.leading, is_permissive)
    for replica in log.replicas:
        if replica.store.damages and (replica.has_own_log or len(log.replicas) == 1):
            _require_whole(replica, is_permissive)  # no other store has those events
        origin = _origin(replica, log, complete_from)
        for segment, piece in replica.files:
            if segment.is_snapshot:
                lsns = [LsnRange(0, complete_from - 1) if replica is beginning else NONE]
            else:
                lsns = ranges.get((replica, segment.number, piece.begin), [NONE])
            for turn, lsn_range in enumerate(lsns):
                chosen, with_local = lsn_range.within(allowed), piece.has_local and not turn
                if with_local or not chosen.is_empty:
                    yield part_of(origin, segment, piece, chosen, with_local=with_local)
        yield from _damages(replica)


def _origin(replica: ReplicaStore, log: ReplicatedLog | None = None, complete_from: int | None = None) -> Origin:
    origin = origin_of(replica.store, replica.history)
    discarded_from = min(replica.common_lsn, NO_LIMIT) + 1
    if log is None:
        return replace(origin, discarded_from=discarded_from)
    others = tuple(
        Substitute(other.store.directory, other.common_lsn) for other in log.replicas if other is not replica
    )
    return replace(
        origin, discarded_from=discarded_from, substitutes=others, committed_lsn=log.committed_lsn,
        complete_from=origin.complete_from if complete_from is None else complete_from,
    )  # fmt: skip


def _require_whole(replica: ReplicaStore, is_permissive: bool) -> None:
    if replica.store.damages and not is_permissive:
        raise JournalDamaged(*replica.store.damages[0])


def _damages(replica: ReplicaStore) -> Iterator[JournalPart]:
    """Reads nothing: tells of what the driver has found."""
    if replica.store.damages and replica.store.segments:
        segment, nothing = replica.store.segments[0], SurveyedPiece(0, 0, 1, 0, False)
        part = part_of(_origin(replica), segment, nothing)
        yield replace(part, damages=replica.store.damages)


def state_parts(log: ReplicatedLog, options: JournalOptions) -> Iterator[StatePart]:
    """What is read for the state. Raises JournalDamaged unless permissive."""
    replicas, is_permissive = options.replicas, options.is_permissive
    for replica in log.replicas:
        origin, lsns, with_local = _origin(replica), ALL, True
        if replicas is Replicas.DISCARDED:
            lsns, with_local = LsnRange(replica.common_lsn + 1, NO_LIMIT), False
            if replica.store.last_lsn <= replica.common_lsn:
                continue
        elif replicas is Replicas.ONE and replica is not _stateful(log):
            if not replica.has_own_log:
                continue
            lsns = NONE
        _require_whole(replica, is_permissive)
        size = sum(piece.end - piece.begin for _, piece in replica.files)
        yield StatePart(origin, size, lsns, with_local, is_permissive)


def _stateful(log: ReplicatedLog) -> ReplicaStore:
    """Of which the state is made: the leading one, or if that is damaged one that is as far."""
    level = [replica for replica in log.replicas if replica.last_lsn >= log.leading.store.last_lsn]
    return next((replica for replica in level if not replica.store.damages), log.leading)
