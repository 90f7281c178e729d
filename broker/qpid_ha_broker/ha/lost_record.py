"""When a record that was deleted may be written anew without a person. Pure.

The safety property: a broker that is promoted in spite of an empty record holds everything that was ever confirmed.

What is confirmed is held by all who are in sync then. So something is lost only if an in-sync set that this broker was
not in confirmed it, and the record that said so is gone. Each of that set then is either not here, or does not know of
it any more, or knows and says so. The cases, each of which leaves it to a person:

1. The record is not empty. An older one was put back from a copy, and whoever did that knows more.
2. Somebody does not answer, or is not here and named in an in-sync set that somebody knows: it may have gone on.
3. Somebody leads: the record is its own business (`epoch_recorder`).
4. This broker was restarted, is not level, or has not been verified: it may itself have forgotten, or been put back.
   With all of them restarted, stores that were put back together with the record would pass for the newest.
5. Somebody knows a newer generation, or has said so before.
6. Somebody who has data has this broker not in the in-sync set of its log: the two do not agree on what came last.
7. As many as may be an in-sync set of their own (`ha.min-in-sync`) do not know what they were in: they are empty, half
   filled, or began anew.
8. Somebody goes by another coordinator, or does not say by which: this record may be empty because it is the wrong one.

Otherwise it is as without a coordinator (`verdict`): whoever was restarted from its store, and may have confirmed more,
is preferred to this broker.

Not covered: the store of a broker that had gone on alone was put back from a copy, the record deleted, and all others
were cut off, and not restarted, since before. Without a coordinator that is not covered either.
"""

from __future__ import annotations

from collections.abc import Sequence

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import CoordinatorSeen
from qpid_ha_broker.ha.frames import Answer, StoreOrigin
from qpid_ha_broker.ha.states import State


def may_be_written_anew(
    record: ClusterRecord | None,
    own: Answer,
    answers: Sequence[Answer],
    unreachable: Sequence[str],
    newest_told: int,
    coordinator: CoordinatorSeen,
) -> bool:
    """Whether none of the cases above is there. `newest_told`: the newest generation that this process was told of, or
    had recorded."""
    return (
        record == ClusterRecord()
        and not unreachable
        and _are_all_here(own, answers)
        and not any(each.state == State.PRIMARY for each in answers)
        and own.store is StoreOrigin.MEMORY
        and _was_in_sync(own)
        and max([newest_told, *(each.generation for each in answers)]) <= own.generation
        and all(own.name in each.members for each in answers if each.generation)
        and len(_forgetful(answers)) < min(each.min_in_sync for each in (own, *answers))
        and all(each.record_identity == coordinator.identity for each in answers)
    )


def _was_in_sync(answer: Answer) -> bool:
    return bool(answer.generation) and answer.complete and answer.name in answer.members


def _are_all_here(own: Answer, answers: Sequence[Answer]) -> bool:
    here = {own.name, *(each.name for each in answers)}
    named = {name for each in (own, *answers) for name in (*each.members, *each.newest_members)}
    return named <= here


def _forgetful(answers: Sequence[Answer]) -> list[str]:
    """Who may have been in a newer in-sync set, and would not know."""
    return [
        each.name
        for each in answers
        if not each.generation or not each.complete or each.store is StoreOrigin.UNVERIFIED
    ]
