"""A log that a stream follows, of which it reads several replicas: which of them gives the events of a batch.

The promise: of the replicas of a log a stream gives each committed event once, in the order of the log. What was given
is known from the offsets alone, so a batch that is repeated is the same: all events up to the position that goes
furthest, by generation and LSN.

1. A batch comes from one replica, the reader: it ends where the furthest offset of the batch does.
2. Its events begin behind what was delivered before, whichever replica that came from.
3. A stream begins with the replica that goes back furthest, as far as the newest one agrees with it.
4. No other replica's offset passes that of the reader, nor the point up to which both have the same events: what lies
   behind its offset was delivered.
5. A replica whose snapshot begins behind what was delivered lacks the events in between: it is the reader only if all
   do.
6. Where the reader's history says that the delivered generation ended before the last delivered event, the cluster
   went on without the events behind that: they were delivered, and are discarded.

Logs that brokers keep for themselves come from each store. Not promised: after two forced promotions, of which the
second brings back what the first one discarded, that comes again: offsets do not tell what was delivered before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.ha.history import common_lsn
from qpid_ha_broker.store.survey import NO_LIMIT

from .part import LsnRange, Substitute
from .positions import JournalPlace, JournalStep, end_of_generation
from .replicas import ReplicaStore
from .stores import StoreId
from .survey import SurveyedStore

Position = tuple[int, int]
"""Generation and LSN."""


class FollowedReplica(NamedTuple):
    """A store, and what of it was read."""

    name: StoreId
    store: SurveyedStore
    begin: JournalPlace
    history: tuple[GenerationEntry, ...]
    lost: str | None
    """Why what follows the last offset is not there any more, so that `begin` is behind it."""

    @property
    def has_own_log(self) -> bool:
        """Whether its broker keeps a log for itself."""
        return ReplicaStore(self.store, self.history).has_own_log

    def lacks(self, delivered: Position) -> bool:
        """Whether the replica has not all events behind those that were delivered, although the stream has begun."""
        base = self.store.base
        is_ahead = base is not None and self.begin[:2] <= (base.file.number, 0)
        if self.lost is not None and base is None:
            return True
        return is_ahead and base is not None and base.last_lsn > delivered[1] > 0


class FollowedLog:
    """The replicas of one log, and the position up to which all its events were delivered."""

    def __init__(self) -> None:
        self.replicas: list[FollowedReplica] = []
        self.delivered: Position = (0, 0)

    def forget_former_store(self) -> None:
        """A store that was made anew, and is no replica of another one, has its LSNs from the beginning."""
        if len(self.replicas) == 1 and self.replicas[0].lost is not None and self.replicas[0].store.base is None:
            self.delivered = (0, 0)

    def furthest(self, ways: Mapping[StoreId, Sequence[JournalStep]]) -> tuple[FollowedReplica, int]:
        """Who gives the next batch, and up to which LSN it may. `ways`: where each of them can go."""
        ends = {
            replica.name: (ways[replica.name][-1].place if ways[replica.name] else replica.begin)
            for replica in self.replicas
        }
        newest = max(self.replicas, key=lambda replica: self._rank(replica, ends[replica.name].in_log))
        if self.delivered[1]:
            return newest, NO_LIMIT
        for replica in sorted(self.replicas, key=lambda replica: replica.store.complete_from):
            common = common_lsn(replica.history, NO_LIMIT, newest.history, NO_LIMIT)
            if min(common, ends[replica.name].lsn) >= newest.store.complete_from - 1 and common:
                return replica, common
        return newest, NO_LIMIT

    def reader(self, ends: Mapping[StoreId, JournalPlace]) -> FollowedReplica | None:
        """Who gave, or gives, the batch with these ends; None: it is not here."""
        last = max(place.in_log for place in ends.values())
        level = [replica for replica in self.replicas if ends[replica.name].in_log == last]
        return max(level, key=lambda replica: self._rank(replica, last), default=None)

    def _rank(self, replica: FollowedReplica, end: Position) -> tuple[bool, int, int, int]:
        """Of those that are as far a stream begins with the one that goes back furthest."""
        age = -replica.store.complete_from if not self.delivered[1] else 0
        return not replica.lacks(self.delivered), *end, age

    def committed_lsn(self, replica: FollowedReplica) -> int:
        """Of the replica's events the last of which any store says that it was committed."""
        return max(
            min(witness.store.committed_lsn, common_lsn(witness.history, NO_LIMIT, replica.history, NO_LIMIT))
            if witness is not replica
            else witness.store.committed_lsn
            for witness in self.replicas
        )

    def new_lsns(self, reader: FollowedReplica) -> LsnRange:
        """The LSNs of the reader's events that were not delivered."""
        return LsnRange(min(self.delivered[1], self._agreed_lsn(reader)) + 1)

    def discarded(self, reader: FollowedReplica) -> LsnRange:
        """Events that were delivered, and that the cluster then went on without."""
        return LsnRange(self._agreed_lsn(reader) + 1, self.delivered[1])

    def _agreed_lsn(self, reader: FollowedReplica) -> int:
        """Up to where what was delivered, and went that far, is what the reader has."""
        generation, lsn = self.delivered
        if any(entry.generation == generation for entry in reader.history):
            return end_of_generation(reader.history, generation)
        common = [
            common_lsn(replica.history, lsn, reader.history, NO_LIMIT)
            for replica in self.replicas
            if any(entry.generation == generation for entry in replica.history)
        ]
        return min(common, default=end_of_generation(reader.history, generation))

    def bound(self, replica: FollowedReplica, reader: FollowedReplica, end: JournalPlace) -> int:
        """The last LSN to which the offset of another replica may go in a batch that ends there."""
        return min(end.lsn, common_lsn(replica.history, NO_LIMIT, reader.history, NO_LIMIT))

    def substitutes(self, reader: FollowedReplica) -> tuple[Substitute, ...]:
        """Who else has the reader's events, and up to where."""
        return tuple(
            Substitute(
                replica.store.directory,
                common_lsn(replica.history, replica.store.last_lsn, reader.history, NO_LIMIT),
            )
            for replica in self.replicas
            if replica is not reader
        )


def log_of(name: StoreId) -> str:
    """The log of which a store is a replica: its cluster and its set."""
    return f"{name.partition('/')[0]}/{name.rpartition('/')[2]}"
