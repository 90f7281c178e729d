"""Two coordinators make two clusters: what a broker may do while another one goes by another coordinator, or leads
another cluster at an address of this one. Pure.

The safety property: of two brokers that hear each other at most one confirms, whichever coordinators they go by. Each
coordinator has an identity, a UUID in its note `identity` (`coordination.identity`), which brokers tell in answers.

| this broker | the other one says | so this one |
| --- | --- | --- |
| any | not which coordinator it has (it is older, or has not read it yet), or the same | goes by logs and the record |
| does not lead | another coordinator, and that it leads | is not promoted, by force neither |
| does not lead | another one, and that it does not lead | is promoted only if the cluster went by the record here |
| leads | another one, and that it does not lead | goes on, and says so |
| leads | that it leads the same log, of a newer generation (or of this one: by name) | steps down |
| leads | that it leads another log | confirms while more than half of all brokers are in sync |

The cluster went by the record here (`_went_by`) if that says that its generation has begun, this broker's log has that
generation, and each one with another coordinator is in the record's in-sync set, or behind. Of two brokers with two
records only one can say so: both would be of one generation, each in the in-sync set of the other's record; but a
second record of the same log is only begun by force, and that leaves nobody else in the set.

More than half of all brokers are in one in-sync set at most, because each acknowledges to one primary; and nothing is
committed without all in sync. So what each side knows of the other, and since when, does not matter.

Not covered: what was confirmed before they heard of each other; brokers that never do; and a coordinator whose data
were copied to another place, identity and all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import CoordinatorSeen
from qpid_ha_broker.ha.frames import Answer
from qpid_ha_broker.ha.record_keeper import RecordKeeper
from qpid_ha_broker.ha.states import State

SHOWN_CHARACTERS: Final = 8
"""Of an identity, in sentences."""


def with_another(own: CoordinatorSeen, answers: Iterable[Answer]) -> tuple[Answer, ...]:
    """Who says that it goes by another coordinator than this broker; in the order of their names."""
    others = [each for each in answers if own.identity and each.record_identity not in ("", own.identity)]
    return tuple(sorted(others, key=lambda each: each.name))


def describe(own: CoordinatorSeen, others: Sequence[Answer], keeper: RecordKeeper) -> str:
    """A sentence about all of them, with what to do; `others` is not empty."""
    theirs = ", ".join(f"{each.name} by {_shown(each.record_place, each.record_identity)}" for each in others)
    return f"this broker goes by {keeper.name} {_shown(own.place, own.identity)}, {theirs}: {keeper.same_record}"


def _shown(place: str, identity: str) -> str:
    return f"{place or '?'} ({identity[:SHOWN_CHARACTERS]})"


def why_not_beside(
    own: Answer,
    coordinator: CoordinatorSeen,
    answers: Iterable[Answer],
    record: ClusterRecord | None,
    keeper: RecordKeeper,
) -> str:
    """Why this broker, which does not lead, may not be promoted; empty: it may, as far as this goes."""
    others = with_another(coordinator, answers)
    if not others or (record is not None and _went_by(record, own, others)):
        return ""
    return f"two records would make two clusters: {describe(coordinator, others, keeper)}"


def _went_by(record: ClusterRecord, own: Answer, others: Sequence[Answer]) -> bool:
    """Whether the cluster of this broker's log, and of those, went by `record`."""
    has_begun = record.generation > 0 and not record.claimed
    is_own = record.cluster == own.cluster and own.generation == record.generation
    return has_begun and is_own and all(_follows(each, record) for each in others)


def _follows(other: Answer, record: ClusterRecord) -> bool:
    if other.state == State.PRIMARY:
        return False
    is_in_sync = other.name in record.members and other.generation == record.generation
    return is_in_sync or other.generation < record.generation


def least_in_sync(brokers: int) -> int:
    """How many of `brokers` have to be in sync beside somebody who leads another cluster at one of their addresses."""
    return brokers // 2 + 1
