"""Which brokers are known to be in sync, for whoever looks at a cluster. Pure.

While somebody leads, its in-sync set is the answer. While nobody does, a broker's own log is not: the primary may have
dropped that broker, and had this recorded, after the last event that the log has. So what is said is yes, no or
unknown, with who says so; the first of these cases that applies:

1. A primary answers: its set, whoever answers besides.
2. The record was read, is of a generation that has begun, and no log here has a newer set. Whoever is not in it is not
   in sync. Whoever is in it, answers, and has the recorded generation in its log holds all that was confirmed. Of all
   others of it nobody knows: they do not answer, or were emptied or put back.
3. The record was read, and a log has a newer set, or the generation was wanted and has perhaps not begun: a change was
   not recorded before the primary died. Whoever is in neither set is not in sync, of all others nobody knows.
4. The record cannot be read: whoever the newest set of all logs here leaves out is not in sync, and of those in it
   nobody knows; a newer one may be recorded.
5. There is no coordinator, and all of that newest set answer and have its generation: there was no newer one, because
   its primary is among them. They are in sync.
6. There is none, and some of them do not answer: as 4.

This is for people to look at. Who may be promoted is judged by more (`verdict`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Answer
from qpid_ha_broker.ha.states import LEADING, State

CURRENT = (*LEADING, State.READY, State.OBSERVER)
"""The states in which a broker's own in-sync set is that of a primary which it has heard, or is."""


class InSyncWord(StrEnum):
    """Whether a broker is in sync."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class KnownInSync(NamedTuple):
    """`sure`: they are in sync. `possible`: they may be. `source`: who says so, in words that follow "as"."""

    sure: frozenset[str]
    possible: frozenset[str]
    source: str

    def of(self, name: str) -> InSyncWord:
        """Of one broker; who is in neither set is not in sync."""
        if name in self.sure:
            return InSyncWord.YES
        return InSyncWord.UNKNOWN if name in self.possible else InSyncWord.NO


def known_in_sync(brokers: Sequence[Answer], record: ClusterRecord | None, *, has_coordinator: bool) -> KnownInSync:
    """Of a cluster. `brokers`: all that answer. `record`: None if it was not read; it is not needed where one leads."""
    primary = max((each for each in brokers if each.state in LEADING), key=_set_position, default=None)
    if primary is not None:
        members = frozenset(primary.members) or frozenset({primary.name})
        return KnownInSync(members, frozenset(), f"{primary.name} says, which is {primary.state}")
    newest = max(brokers, key=_set_position)
    last = frozenset(newest.newest_members)
    in_log = f"the log of {newest.name} says (generation {newest.generation}, epoch {newest.epoch})"
    if record is not None and record.generation:
        recorded = frozenset(record.members)
        in_record = f"the record says (generation {record.generation}, epoch {record.epoch})"
        if record.claimed or _set_position(newest) > (record.generation, record.epoch):
            return KnownInSync(frozenset(), recorded | last, f"{in_record}, and {in_log}, while nobody leads")
        sure = _with_generation(brokers, recorded, record.generation)
        return KnownInSync(sure, recorded - sure, f"{in_record}, while nobody leads")
    sure = frozenset() if has_coordinator else _with_generation(brokers, last, newest.generation)
    if sure == last:
        return KnownInSync(sure, frozenset(), f"{in_log}, and all of those answer, while nobody leads")
    why = "the record is empty, or cannot be read" if has_coordinator else "some of those cannot be asked"
    return KnownInSync(frozenset(), last, f"{in_log}; {why}, and nobody leads")


def _set_position(broker: Answer) -> tuple[int, int]:
    return broker.generation, broker.epoch


def _with_generation(brokers: Sequence[Answer], members: frozenset[str], generation: int) -> frozenset[str]:
    """Who of `members` answers, and holds what a broker of that generation does."""
    return frozenset(
        each.name for each in brokers if each.name in members and each.complete and each.generation >= generation
    )
