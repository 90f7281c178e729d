"""May this broker become primary? One pure function, which explains itself in a sentence.

The safety property that it defends: a broker that is promoted without an operator's override holds everything that was
ever confirmed. Whoever was in the newest in-sync set does; so the question is whether a newer one could exist than
those that can be seen, and whether this broker's memory is still the one that was in it.

A name in the record is not a memory. A broker counts as one of the recorded set only if it still has what it held in
that set: it was not restarted since it was in sync with a primary that the record named then, or its own log has the
recorded generation. One that was emptied or put back, and then followed a primary that had slept, has neither, however
level it is with that one.

A coordinator's record answers the first part only while it is the newest record that there ever was, and the stores
here are the newest that there ever were. Either may be lost, or put back from a copy; then the other one shows it, and
who goes on with what is left is an operator's decision (docs/decisions/0004-coordinators.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import NO_COORDINATOR_SEEN, CoordinatorSeen, SilentPeer
from qpid_ha_broker.ha.frames import Answer, LogPosition, StoreOrigin
from qpid_ha_broker.ha.history import log_end
from qpid_ha_broker.ha.lost_record import may_be_written_anew
from qpid_ha_broker.ha.other_coordinators import why_not_beside
from qpid_ha_broker.ha.record_keeper import COORDINATOR, FORCE, RecordKeeper
from qpid_ha_broker.ha.states import State


class Refusal(NamedTuple):
    """An expected no: a value, not an exception, for whoever asked."""

    text: str
    """Why not, and what to do where there is something."""


class CommittedSet(NamedTuple):
    """An in-sync set in a broker's log of which that broker was told that it is committed."""

    generation: int
    epoch: int
    members: tuple[str, ...]


class ToldGeneration(NamedTuple):
    """The newest generation that another broker's log had when this process asked it, now or before; 0: none."""

    generation: int
    source: str


TOLD_OF_NONE = ToldGeneration(0, "")


class ToldCommit(NamedTuple):
    """The furthest event of which another broker said, now or before, that it was told that it is committed."""

    position: LogPosition
    source: str


NONE_COMMITTED = ToldCommit(LogPosition(0, 0), "")


def told_commit(answer: Answer) -> ToldCommit:
    """What an answer says of that."""
    return ToldCommit(LogPosition(answer.committed_generation, answer.committed_lsn), answer.name)


@dataclass(frozen=True)
class PromotionEvidence:
    """What there is to judge by. `own`: what this broker would answer to a peer; `record` None: not to be had."""

    own: Answer
    own_primary: str
    """Who wrote the last generation of this broker's log; empty for an empty one."""
    answers: tuple[Answer, ...]
    unreachable: tuple[str, ...]
    record: ClusterRecord | None
    has_coordinator: bool
    min_in_sync: int
    handed_over_by: str = ""
    """The primary that stepped down for this broker."""
    force: bool = False
    is_chosen: bool = False
    """All stores were compared, and this broker's was chosen."""
    auto_recover: bool = True
    own_committed: CommittedSet | None = None
    """The newest one of this broker's log; None: it was told of none since it was started."""
    own_record: ClusterRecord | None = None
    """The last one that the coordinator has confirmed to this process."""
    newest_told: ToldGeneration = TOLD_OF_NONE
    told_committed: ToldCommit = NONE_COMMITTED
    keeper: RecordKeeper = COORDINATOR
    """The words for a refusal."""
    silent: tuple[SilentPeer, ...] = ()
    """Of `unreachable`: who is there, or may be."""
    lacks_transient: bool = True
    """Messages that are not durable may have been lost with the process before."""
    coordinator: CoordinatorSeen = NO_COORDINATOR_SEEN
    """Which one this broker goes by."""


class StepDownFirst(NamedTuple):
    """Yes, once the live primary has handed over."""

    primary: str


class Accept(NamedTuple):
    """Yes: as primary of `generation`, with an in-sync set to begin with."""

    generation: int
    epoch: int
    members: tuple[str, ...]
    text: str
    is_forced: bool = False
    """What only other brokers hold is given up, because an operator said so."""


Verdict = Refusal | StepDownFirst | Accept


class _View(NamedTuple):
    """Somebody's knowledge of the in-sync set; the greatest is the newest."""

    generation: int
    epoch: int
    members: tuple[str, ...]
    last: tuple[str, ...]
    """Of the last set alone: `Answer.newest_members`."""
    source: str


def judge(evidence: PromotionEvidence) -> Verdict:
    """The promotion verdict. The first of these that applies:

    1. A broker of the same name or of another cluster, a coordinator that cannot be read, or somebody who goes by
       another one (`other_coordinators`): no, not even by force.
    2. An operator's force (`_why_not_by_force`): no, against a broker that is there, or may be; else on to 6.
       An empty record that may be written anew (`lost_record`): as without a coordinator, if that is a yes.
    3. Its store has failed, or it lacks messages because it is catching up: no.
    4. It is empty (`_why_not_empty`): no, if anybody has data, or may have, other than what this broker sent in a
       generation of which it is known to have confirmed nothing (`_is_of_mere_claims`).
    5. It has data (`_why_not_with_data`), and
       a. the newest in-sync set that is known is without this broker: no;
       b. the record is older than a log (`_outdated_record`): no, nobody knows who was in sync last;
       c. it was restarted after a crash (`_why_not_from_store`): no, if one of the in-sync set was not restarted,
          cannot be asked, or goes further, or if that is for an operator to decide; or after an end in good order:
          no, if one of the in-sync set goes further, or was not restarted;
       d. the stores are older than the record (`_outdated_stores`): no, they are copies;
          or it began anew and followed a primary that is older than the record (`_why_unverified`): no;
       e. it was not restarted, and one that was may have confirmed something without it (`_why_left_out`): no;
       f. there is no coordinator, and who may have gone on without it cannot be asked, or somebody said once that it
          knows a generation which nobody here does (`_why_no_majority`): no;
       g. somebody was told of a commit that it lacks (`_why_behind_commit`): no.
    6. Another broker leads: yes, once that one has handed over.
    7. Nothing of that: yes.

    Rows 3 to 5 send to another broker. Where that one would send back (`_is_dead_end`), each of them says what an
    operator can do.
    """
    strangers = _stranger(evidence)
    if strangers:
        return Refusal(strangers)
    verdict = _judge(evidence)
    if isinstance(verdict, Refusal) and FORCE not in verdict.text and _is_dead_end(evidence):
        return Refusal(f"{verdict.text}. {_what_an_operator_can_do(evidence)}")
    return verdict


def _judge(evidence: PromotionEvidence) -> Verdict:
    """All but the first row, without a word about dead ends."""
    if evidence.force:
        reason = _why_not_by_force(evidence)
        if not reason and _outdated_record(evidence) is not None:
            evidence = _without_record(evidence)
    elif _is_record_deleted(evidence) and (plain := _without_record(evidence)) is not evidence:
        accept = _accept(plain)
        anew = f"{evidence.keeper.name}'s record was deleted, and is written anew: all brokers are here and agree"
        return accept._replace(text=f"{accept.text}; {anew}")
    elif evidence.own.store is StoreOrigin.FAILED:
        reason = (
            "the store of this broker has failed, and it holds what came since in memory only:"
            f" {evidence.keeper.promote} another one"
        )
    elif evidence.own.state == State.CATCHUP or not evidence.own.complete:
        reason = f"this broker is still catching up and lacks messages: {evidence.keeper.promote} one that is ready"
    elif evidence.own.generation:
        reason = _why_not_with_data(evidence)
    else:
        reason = _why_not_empty(evidence)
    if reason:
        return Refusal(reason)
    live = next((answer for answer in evidence.answers if answer.state == State.PRIMARY), None)
    if live is not None and live.name != evidence.handed_over_by:
        return StepDownFirst(live.name)
    return _accept(evidence)


def _stranger(evidence: PromotionEvidence) -> str:
    own, keeper = evidence.own, evidence.keeper
    for answer in evidence.answers:
        if answer.name == own.name:
            return f"two brokers are called {own.name}: give each its own `name` and restart one of them"
        if own.cluster and answer.cluster and own.cluster != answer.cluster:
            return keeper.foreign_log.format(broker=answer.name, theirs=answer.cluster, ours=own.cluster)
    record = evidence.record
    if record is None and evidence.has_coordinator:
        return f"{keeper.name} cannot be reached, and without its record nobody knows who is in sync: try again"
    if record is not None and record.cluster and own.cluster and record.cluster != own.cluster:
        foreign = keeper.foreign_record.format(theirs=record.cluster, ours=own.cluster)
        return f"{foreign}{keeper.foreign_candidate}"
    return why_not_beside(own, evidence.coordinator, evidence.answers, record, keeper)


def _is_dead_end(evidence: PromotionEvidence) -> bool:
    """Whether all are here who were in sync last, nobody leads, and none of them may: then nothing comes of asking
    another one, or of time.

    What another one would say is judged by what it has answered. It may know more that is against it (what it had
    recorded itself, say), and then its own refusal names the command.
    """
    here = (evidence.own, *evidence.answers)
    if evidence.force or evidence.unreachable or any(broker.state == State.PRIMARY for broker in here):
        return False
    if not set(_newest_view(evidence).members) <= {broker.name for broker in here}:
        return False
    return all(isinstance(_judge(_seen_by(broker, evidence)), Refusal) for broker in here)


def _seen_by(broker: Answer, evidence: PromotionEvidence) -> PromotionEvidence:
    """What one of those who are here would judge by, where nobody has to be asked first."""
    evidence = replace(evidence, auto_recover=True)
    if broker is evidence.own:
        return evidence
    others = tuple(other for other in (evidence.own, *evidence.answers) if other is not broker)
    recorded = evidence.record.primary if evidence.record is not None else ""
    primary = evidence.own_primary if broker.generation == evidence.own.generation else recorded
    return replace(
        evidence, own=broker, own_primary=primary, answers=others, is_chosen=False, own_committed=None, own_record=None,
        lacks_transient=False,
    )  # fmt: skip


def _what_an_operator_can_do(evidence: PromotionEvidence) -> str:
    """In a dead end. The least is given up with one that is whole and was in sync, though its store has failed."""
    here, keeper = (evidence.own, *evidence.answers), evidence.keeper
    commit = max([evidence.told_committed, *map(told_commit, here)]).position
    members = _newest_view(evidence).members

    def rank(broker: Answer) -> tuple[bool, bool, bool, LogPosition]:
        was_in_sync = broker.name in members and _was_in_sync(broker)
        return bool(broker.generation) and broker.complete, log_end(broker) >= commit, was_in_sync, log_end(broker)

    best = max(here, key=rank)
    return (
        f"All are here, and none of them may lead: {keeper.look_around}. If what those had who were in sync is lost for"
        f" good, {keeper.force_on.format(broker=best.name)} goes on from LSN {best.lsn} of generation"
        f" {best.generation}, and gives up what was confirmed besides"
    )


def _why_not_by_force(evidence: PromotionEvidence) -> str:
    """Force gives up what is lost for good; a broker that is there has lost nothing. So it is refused when

    1. a process took the connection and gave no answer: it does not let this broker in, or it was stopped. It may lead,
       and serve clients;
    2. this broker is empty, and one that answers is not;
    3. one that answers holds what is committed, and this broker lacks that.

    An operator who means it stops that broker first.
    """
    keeper = evidence.keeper
    if evidence.silent:
        return f"force is for what is lost for good: {_why_they_may_have(evidence)}"
    if not evidence.own.generation:
        owners = _owners(evidence)
        if not owners:
            return ""
        use_force = keeper.if_lost.format(broker=owners)
        return f"this broker holds no data, and {owners} does: {use_force} there, or erase that store to begin anew"
    further = [
        answer
        for answer in evidence.answers
        if answer.complete and log_end(answer) >= told_commit(answer).position > log_end(evidence.own)
    ]
    if not further:
        return ""
    best = max(further, key=log_end)
    return (
        f"{best.name} is there, and holds what was committed up to LSN {best.committed_lsn} of generation"
        f" {best.committed_generation}; this broker's log ends at LSN {evidence.own.lsn} of generation"
        f" {evidence.own.generation}, and the rest would be given up: {keeper.promote} that one, or stop it first"
    )


def _why_they_may_have(evidence: PromotionEvidence) -> str:
    there = "; ".join(f"{broker.address}: {broker.why}" for broker in evidence.silent)
    return (
        f"somebody is there and could not be asked ({there}), and may lead, or hold what this broker lacks. Let all"
        " brokers answer this one (is its login the same on all of them?), or stop those that do not"
    )


def _owners(evidence: PromotionEvidence) -> str:
    return " and ".join(answer.name for answer in evidence.answers if answer.generation)


def _why_not_empty(evidence: PromotionEvidence) -> str:
    """For a broker without data: a first start, or one that has lost its memory."""
    own, record = evidence.own, evidence.record
    is_our_own = (
        record is not None
        and record.claimed
        and _has_claimed(own, record)
        and _is_as_claimed(record, (own, *evidence.answers))
    )
    is_all_mere_claims = is_our_own and all(_is_of_mere_claims(answer, own, record) for answer in evidence.answers)
    owners = "" if is_all_mere_claims else _owners(evidence)
    if owners:
        return f"this broker holds no data, and {owners} does: {evidence.keeper.promote} that one"
    if evidence.silent:
        return f"this broker holds no data: {_why_they_may_have(evidence)}"
    if record is not None and record.generation and not is_our_own:  # ours: we died before anything was confirmed
        members = ", ".join(record.members)
        return (
            f"this broker holds no data; generation {record.generation} was confirmed by {members}: start those,"
            f" or {_if_lost(evidence)} if their data is lost for good"
        )
    if evidence.unreachable and not is_our_own:  # an empty record may be a lost one
        return (
            f"this broker holds no data, and {', '.join(evidence.unreachable)} cannot be asked for any: start all"
            f" brokers, or {_if_lost(evidence)} if there is none"
        )
    return _why_behind_commit(evidence) if is_our_own else ""


def _is_of_mere_claims(answer: Answer, own: Answer, record: ClusterRecord | None) -> bool:
    """Whether what a broker holds, if anything, is what `own`, which is empty now, sent it as a primary that never
    began: then nothing of it was confirmed, and `own` is the one that was in sync, alone.

    A claim is on the disk of its primary before it is recorded, and the first event of its generation comes to the same
    disk; nothing is committed that this one's disk does not hold. So it confirmed nothing in a generation that it has
    claimed and has nothing of. Backups are sent events all the same before they are on its disk, and may keep them. It
    had none from before either: it was empty when it was judged, as it is now, so it was alone in its first set, and
    what was older was not there, or was given up by an operator. What shows each of these:

    1. The record names nobody else in sync. Who was let in later would be in that one's own log, and may lead.
    2. The broker's newest generation is one that `own` has claimed. One that it has not is of another primary, or was
       claimed by `own` and began, and its store was emptied since.
    3. By the broker's own log nobody else was in sync. Nobody at all: it was welcomed, and is sent the rest.
    4. It is of the cluster of the record.

    Whoever knows of a commit shows that it began after all (`_why_behind_commit`).
    """
    if not answer.generation:
        return True
    return (
        record is not None
        and record.members == (own.name,)
        and answer.generation in own.claims
        and set(answer.members) <= {own.name}
        and answer.cluster in ("", record.cluster)
    )


def _if_lost(evidence: PromotionEvidence) -> str:
    return evidence.keeper.if_lost.format(broker=evidence.own.name)


def _why_not_with_data(evidence: PromotionEvidence) -> str:
    own, keeper = evidence.own, evidence.keeper
    if own.name not in own.members:
        members = ", ".join(own.members)
        return f"this broker is not in the in-sync set of its own log ({members}): {keeper.promote} one of those"
    view = _newest_view(evidence)
    if own.name not in view.members:
        return (
            f"{view.source} knows a newer in-sync set without this broker (generation {view.generation}, epoch"
            f" {view.epoch}: {', '.join(view.members)}): {keeper.promote} one of those; {keeper.look_around}"
        )
    outdated = _outdated_record(evidence)
    if outdated is not None:
        return outdated.text
    why = _why_not_from_store(evidence, view)
    if not why:
        outdated = _outdated_stores(evidence)
        why = outdated.text if outdated is not None else _why_unverified(evidence) or _why_left_out(evidence)
    if not why and not evidence.has_coordinator and evidence.min_in_sync > 1:
        why = _why_no_majority(evidence)
    return why or _why_behind_commit(evidence)


def _outdated_record(evidence: PromotionEvidence) -> Refusal | None:
    """The record is not the newest one that there was: it is lost, or was put back from a copy.

    Each of these proves it, because whatever is in a log in this way had been recorded before:

    1. A generation, in the log of whoever answers, or has answered: it is recorded before its first event is written.
    2. What the coordinator has confirmed to this broker.
    3. Another primary of the same generation: only one of them was recorded, and the other record replaced it.
    4. A committed in-sync set without somebody who is in the record: a departure counts only once it is recorded. (A
       set in the log that is not known to be committed, or that has more members, proves nothing: its primary may have
       died before it was recorded.)
    """
    record, own, committed, confirmed = evidence.record, evidence.own, evidence.own_committed, evidence.own_record
    if record is None:
        return None
    at = record.generation, record.epoch
    furthest = max((own, *evidence.answers), key=lambda answer: answer.generation)
    has_left = committed is not None and not set(record.members) <= set(committed.members)
    if furthest.generation > record.generation:
        proof = f"the log of {furthest.name} knows generation {furthest.generation}"
    elif evidence.newest_told.generation > record.generation:
        proof = (
            f"{evidence.newest_told.source} said before that its log knows generation {evidence.newest_told.generation}"
        )
    elif confirmed is not None and confirmed.position > record.position:
        begun = ", which had begun," if confirmed[:5] == record[:5] else ""
        proof = f"this broker had generation {confirmed.generation}, epoch {confirmed.epoch}{begun} recorded"
    elif own.generation == record.generation and evidence.own_primary != record.primary:
        proof = f"in this broker's log {evidence.own_primary} leads that generation, not {record.primary}"
    elif committed is not None and has_left and committed[:2] > at and committed.generation == record.generation:
        proof = f"this broker's log knows epoch {committed.epoch}, without some of those"
    else:
        return None
    keeper = evidence.keeper
    return Refusal(
        f"{keeper.name}'s record {shown_record(record)}, but {proof}: the record was lost or put back from a copy,"
        f" and who was in sync last is not known. {keeper.rewrite.format(broker=furthest.name)}"
        f"{_who_cannot_be_asked(evidence)}; {keeper.look_around}"
    )


def shown_record(record: ClusterRecord) -> str:
    """What it says, as the end of a sentence."""
    if not record.generation:
        return "is empty"
    return f"says generation {record.generation}, epoch {record.epoch}: {', '.join(record.members)}"


def _outdated_stores(evidence: PromotionEvidence) -> Refusal | None:
    """The record knows of something newer than everybody who is here: the stores were put back from a copy.

    Who was not restarted since it was in sync need not fear that. For a store it takes one of:

    1. Somebody in sync, this broker perhaps, whose log knows what the record says. Its primary had that on disk before
       it was recorded, so it does, unless its store is a copy.
    2. The primary that the record names, who has on disk that it wanted just that generation, but nothing of it: then
       nothing of it was ever confirmed. Unless the record has changed since: then that generation went on, and the
       store is a copy of just that moment.
    3. A member that was not restarted and knows nothing of that generation: nothing was confirmed without it.
    """
    record, own = evidence.record, evidence.own
    if record is None or own.store not in (StoreOrigin.DIRTY, StoreOrigin.CLEAN):
        return None
    here = (own, *evidence.answers)
    at = record.generation, record.epoch
    if any((answer.generation, answer.epoch) >= at and _was_in_sync(answer) for answer in here):
        return None
    if _is_mere_claim(record, here):
        return None
    if any(_is_awake(answer, record) and answer.name in record.members for answer in evidence.answers):
        return None
    newest = max(here, key=lambda answer: (answer.generation, answer.epoch, answer.lsn))
    keeper = evidence.keeper
    return Refusal(
        f"{keeper.name}'s record says generation {record.generation}, epoch {record.epoch}, led by {record.primary},"
        f" and no store here goes further than generation {newest.generation}, epoch {newest.epoch}: they were put back"
        f" from a copy, or the newer ones are missing{_who_cannot_be_asked(evidence)}. Bring those back;"
        f" {keeper.force_on.format(broker=newest.name)} gives up all that was confirmed after LSN {newest.lsn} of"
        f" generation {newest.generation}; {keeper.look_around}"
    )


def _why_unverified(evidence: PromotionEvidence) -> str:
    """For a broker that has been level with a primary since its process began, and has not seen it in the record since.

    With the recorded generation in its log it followed the recorded primary, and holds all that this one had. Without
    it, this broker may have been recorded, then emptied or put back, and filled again by a primary that had slept since
    before: it would have forgotten what the record speaks of. Unless nothing was ever confirmed in that generation, and
    this broker goes as far as the one that claimed it, which was filled by nobody who had slept.
    """
    record, own = evidence.record, evidence.own
    if own.store is not StoreOrigin.UNVERIFIED or record is None or own.generation >= record.generation:
        return ""
    is_mere_claim = _is_mere_claim(record, (own, *evidence.answers))
    further = [answer for answer in evidence.answers if _has_claimed(answer, record) and log_end(answer) > log_end(own)]
    if is_mere_claim and not further:
        return ""
    holders = [
        answer.name
        for answer in evidence.answers
        if answer.name in record.members
        and (
            _is_awake(answer, record)
            or (answer.generation >= record.generation and _was_in_sync(answer))
            or (is_mere_claim and answer in further)
        )
    ]
    keeper = evidence.keeper
    what_to_do = (
        _promote(holders, keeper)
        if holders
        else f"start those who were in sync then, {', '.join(record.members)}, with what they held; if that is lost for"
        f" good, {keeper.force.format(broker=own.name)} gives up all that generation {record.generation} has confirmed"
    )
    return (
        f"{keeper.name}'s record says generation {record.generation}, led by {record.primary}, and this broker began"
        f" anew and has followed generation {own.generation} only: {what_to_do}{_who_cannot_be_asked(evidence)}"
        f"{'' if holders else f'; {keeper.look_around}'}"
    )


def _is_mere_claim(record: ClusterRecord, here: Sequence[Answer]) -> bool:
    """Whether the recorded primary is here, has on disk that it wanted that generation, and has nothing of it.

    1. A record which says that the generation has begun is none, whatever is here.
    2. The recorded primary has that claim on disk, and perhaps newer ones that nobody recorded, and its log has nothing
       of it: it never began, because its first event would be on the same disk.
    3. That one has a newer claim, and not that of the recorded generation: its store was put back from a copy of
       before, and wants to lead again, by force perhaps. What it confirmed in between it does not know.
    4. It has neither, or promised something to somebody else: the same.
    """
    is_claimed = any(_has_claimed(answer, record) for answer in here)
    return record.claimed and is_claimed and _is_as_claimed(record, here)


def _has_claimed(answer: Answer, record: ClusterRecord) -> bool:
    """Whether the broker is the recorded primary, by a claim that it has on disk, with nothing of that generation."""
    return answer.name == record.primary and answer.generation < record.generation in answer.claims


def _is_as_claimed(record: ClusterRecord, here: Sequence[Answer]) -> bool:
    """Whether nobody in sync came or went since what is known here, so that it may be the record of a mere claim.

    A claim adds to the recorded epoch what it adds to the generation (`_claimed_epoch`), and each change of an in-sync
    set adds one. So the epoch is further ahead than the generation once a change was recorded, however many candidates
    died in between. It may have left out the claimant for a while, whose log on disk ends before that: then something
    was confirmed that it lacks, though a crash has taken the change itself out of all logs that are here.
    """
    # Who was just welcomed knows the generation before it knows a set of it.
    knowing = [answer for answer in here if answer.members or not answer.generation]
    newest = max(knowing or here, key=lambda answer: (answer.generation, answer.epoch))
    return record.epoch - newest.epoch <= record.generation - newest.generation


def _who_cannot_be_asked(evidence: PromotionEvidence) -> str:
    return f" ({', '.join(evidence.unreachable)} cannot be asked)" if evidence.unreachable else ""


def _is_record_deleted(evidence: PromotionEvidence) -> bool:
    """Whether the record was deleted for certain, and what these brokers know is enough."""
    confirmed = 0 if evidence.own_record is None else evidence.own_record.generation
    return (
        evidence.keeper == COORDINATOR
        and evidence.record == ClusterRecord()
        and _outdated_record(evidence) is not None
        and may_be_written_anew(
            evidence.record, evidence.own, evidence.answers, evidence.unreachable,
            max(evidence.newest_told.generation, confirmed), evidence.coordinator,
        )
    )  # fmt: skip


def _without_record(evidence: PromotionEvidence) -> PromotionEvidence:
    """For who is to lead although the record is lost: as without a coordinator, if that tells who is in sync.

    Everybody has to be here. Then an operator's word for a lost record does not cost the others their place.
    """
    plain = replace(evidence, force=False, record=None, has_coordinator=False)
    is_enough = not evidence.unreachable and not isinstance(_judge(plain), Refusal)
    return plain if is_enough else evidence


def _why_not_from_store(evidence: PromotionEvidence, view: _View) -> str:
    """After a crash of everybody: whoever was in the last in-sync set may hold more than this broker's disk kept.

    When all of them are here, the furthest holds everything that was confirmed; before that nobody can know. All that
    were closed in order together hold the same; if one in sync holds more, this one was put back from a copy. Whoever
    was not restarted at all, because it never heard of the shutdown perhaps, also has the messages that no store keeps.

    That one may not lead itself where somebody's log has a newer set without it (`_is_shut_out`). Then nobody is sent
    there who holds all that it does.
    """
    own, keeper = evidence.own, evidence.keeper
    if own.store not in (StoreOrigin.DIRTY, StoreOrigin.CLEAN) or evidence.is_chosen:
        return ""
    members = [answer for answer in evidence.answers if answer.name in view.members]
    # Who was recorded but died before its own log had that cannot lead, and what it alone has was not confirmed.
    best = max(filter(_was_in_sync, members), key=log_end, default=own)
    is_behind = log_end(best) > log_end(own)
    further = f"{best.name} goes further, to LSN {best.lsn} (here {own.lsn}): {keeper.promote} that one"
    is_clean = own.store is StoreOrigin.CLEAN
    if is_clean and is_behind:
        return f"this store was closed in order, and put back since: {further}"
    awake = [
        member.name
        for member in members
        if _is_awake(member, evidence.record)
        and not _left_out_by(member, evidence)
        and not (_is_shut_out(member, evidence) and _holds_all_of(member, evidence))
    ]
    if awake:
        return f"this broker was restarted, unlike {' and '.join(awake)}: {_promote(awake, keeper)}"
    if is_clean:
        return ""
    # One that came back empty cannot say whether it had gone on alone; a coordinator can.
    telling = [answer.name for answer in members if answer.generation or evidence.has_coordinator]
    missing = sorted(set(view.members) - {own.name, *telling})
    if missing:
        return (
            f"this store was not closed in order, and {', '.join(missing)} of the last in-sync set cannot be asked:"
            " start them with their stores; if one is lost for good, `qpid-ha store best` tells what that costs, and"
            f" {keeper.look_around}"
        )
    if not evidence.auto_recover:
        return "this store was not closed in order, and ha.auto-recover is off: see `qpid-ha store best`"
    return f"the store of {further}" if is_behind else ""


def _is_shut_out(member: Answer, evidence: PromotionEvidence) -> bool:
    """Whether that broker would say that it may not lead, for a newer in-sync set without it is known. Perhaps that
    set never counted: its primary was restarted, and does not know either."""
    return member.name not in _newest_view(_seen_by(member, evidence)).members


def _holds_all_of(member: Answer, evidence: PromotionEvidence) -> bool:
    """Whether this log, which is of the same history, goes as far, and lacks no messages that a store does not keep."""
    return not evidence.lacks_transient and log_end(evidence.own) >= log_end(member)


def _is_awake(answer: Answer, record: ClusterRecord | None) -> bool:
    """Whether the broker was not restarted since it was in sync, and its own log says that it was."""
    followed_record = record is not None and 0 < record.generation <= answer.generation
    is_memory = answer.store is StoreOrigin.MEMORY or (answer.store is StoreOrigin.UNVERIFIED and followed_record)
    return is_memory and bool(answer.generation) and _was_in_sync(answer)


def _was_in_sync(answer: Answer) -> bool:
    """By its own log; it lacks nothing of that."""
    return answer.complete and answer.name in answer.members


def _may_be_alone(restarted: Answer, other: Answer, evidence: PromotionEvidence) -> bool:
    """Whether what `restarted` has from its store may have been confirmed without `other`, which lacks it.

    Its log has a newer in-sync set without that one, and goes further; whether the set ever counted is not in it. A
    coordinator knows.
    """
    is_left_out = other.name not in restarted.newest_members
    is_newer = (restarted.generation, restarted.epoch) > (other.generation, other.epoch)
    is_further = log_end(restarted) > log_end(other)
    is_dirty_member = restarted.store is StoreOrigin.DIRTY and _was_in_sync(restarted)
    is_possible = is_newer and is_further and _may_have_confirmed(restarted, evidence)
    return not evidence.has_coordinator and is_dirty_member and is_left_out and is_possible


def _left_out_by(answer: Answer, evidence: PromotionEvidence) -> list[str]:
    """Who may have confirmed something without that broker, of all that can be asked."""
    return [broker.name for broker in (evidence.own, *evidence.answers) if _may_be_alone(broker, answer, evidence)]


def _may_have_confirmed(restarted: Answer, evidence: PromotionEvidence) -> bool:
    """Whether enough brokers may have followed the generation that `restarted` knows.

    Of those that can be asked, whoever is in an older one never did; one that lost its data, or is halfway through a
    catch-up, may have.
    """
    others = [broker for broker in (evidence.own, *evidence.answers) if broker.name != restarted.name]
    may_follow = [broker for broker in others if broker.generation >= restarted.generation or not broker.complete]
    empty = [broker for broker in others if not broker.generation]
    return 1 + len(may_follow) + len(empty) + len(evidence.unreachable) >= restarted.min_in_sync


def _why_left_out(evidence: PromotionEvidence) -> str:
    """For a broker that was not restarted."""
    own = evidence.own
    further = [] if own.store is StoreOrigin.DIRTY or evidence.is_chosen else _left_out_by(own, evidence)
    if not further:
        return ""
    return (
        f"what {' and '.join(further)} kept goes further, and may have been confirmed without this broker:"
        f" {_promote(further, evidence.keeper)}"
    )


def _why_behind_commit(evidence: PromotionEvidence) -> str:
    """Another broker knows of an event that it is committed, and this one lacks it: so it was put back, or left behind.

    All who were in sync held that event before anybody was told, so whoever else lacks it must not lead either. Who was
    told may have dropped it itself since, and know no more than that it was.
    """
    own, keeper = evidence.own, evidence.keeper
    commit = max([evidence.told_committed, *map(told_commit, evidence.answers)])
    if commit.position <= log_end(own):
        return ""
    return (
        f"{commit.source} was told that LSN {commit.position.lsn} of generation {commit.position.generation} is"
        f" committed, and this broker's log ends at LSN {own.lsn} of generation {own.generation}: it was put"
        f" back from a copy, or others went on without it: {keeper.promote} one that goes further"
        f"{_who_cannot_be_asked(evidence)};"
        f" {keeper.force.format(broker=own.name)} gives up what came after"
    )


def _promote(names: list[str], keeper: RecordKeeper) -> str:
    return f"{keeper.promote} {'that one' if len(names) == 1 else 'one of those'}"


def _why_no_majority(evidence: PromotionEvidence) -> str:
    """Without a coordinator, enough others must remember: those who do not could have gone on without this broker.

    A broker that was started anew remembers nothing, and may have confirmed, with one that cannot be asked, what nobody
    here knows. If all can be asked, whatever else was confirmed is in no memory any more.
    """
    forgetful = [answer.name for answer in evidence.answers if not answer.generation or not answer.complete]
    silent = [*evidence.unreachable, *forgetful]
    newest, here = evidence.newest_told, max(answer.generation for answer in (evidence.own, *evidence.answers))
    if evidence.unreachable and newest.generation > here:  # with one who has forgotten it, and was filled since perhaps
        return (
            f"{newest.source} said before that its log knows generation {newest.generation}, which nobody here does,"
            f" and {', '.join(evidence.unreachable)} cannot be asked: start all that were in it first"
        )
    half = (1 + len(evidence.answers) + len(evidence.unreachable)) / 2
    if 1 + len(evidence.answers) > half and (not evidence.unreachable or len(silent) < evidence.min_in_sync):
        return ""
    return (
        f"{', '.join(silent)} cannot be asked what they confirmed, and may have gone on without this broker: start"
        " one that remembers first"
    )


def _newest_view(evidence: PromotionEvidence) -> _View:
    """What a store says with its newest set has those before in it, as they may never have been replaced. A record of
    that generation tells: who was in none since then has left, and what came after was confirmed without it.

    Where a mere claim is recorded of a broker that has lost that it was in sync, and so cannot lead, the last set
    before it counts.
    """
    own, record, views = evidence.own, evidence.record, []
    here = (own, *evidence.answers)
    is_void = (
        record is not None
        and _is_mere_claim(record, here)
        and not any(answer.name == record.primary and _was_in_sync(answer) for answer in here)
    )
    if record is not None and not is_void:  # first: of the same epoch it says who was in it for certain
        views.append(_View(record.generation, record.epoch, record.members, record.members, evidence.keeper.name))
    others = sorted(
        evidence.answers, key=lambda answer: answer.name
    )  # not in the order in which they happened to answer
    for source, answer in (("this broker", own), *((answer.name, answer) for answer in others)):
        views.append(_View(answer.generation, answer.epoch, answer.members, answer.newest_members, source))
    newest = max(views, key=lambda view: view[:2])
    if is_void:
        return newest._replace(members=newest.last)
    if record is None or newest.generation != record.generation:
        return newest
    since = {*record.members, *newest.last}
    return newest._replace(members=tuple(name for name in newest.members if name in since))


def _accept(evidence: PromotionEvidence) -> Accept:
    own, view = evidence.own, _newest_view(evidence)
    promised = [answer.promised for answer in evidence.answers]
    generations = [view.generation, own.promised, evidence.newest_told.generation, *promised]
    # Whoever has a name in the set but not its memory any more cannot stay: it would have to say so at once anyway.
    hollow = {answer.name for answer in evidence.answers if not answer.complete or answer.name not in answer.members}
    recorded = evidence.record.primary if evidence.record is not None else ""
    gone = {evidence.own_primary, recorded} - {evidence.handed_over_by}
    # Nor who may lack something: whoever finds a name in a set takes it that nothing older was confirmed without it.
    lacking = {answer.name for answer in evidence.answers if _left_out_by(answer, evidence)}
    staying = set() if evidence.force else set(view.members) - gone - hollow - lacking
    members = tuple(sorted(staying | {own.name}))
    text = f"in sync with {', '.join(members)}"
    generation = max(generations) + 1
    return Accept(generation, _claimed_epoch(evidence, view, generation), members, text, evidence.force)


def _claimed_epoch(evidence: PromotionEvidence, view: _View, generation: int) -> int:
    """The epoch with which `generation` begins. It is newer than all of older generations, whatever its number.

    In a record it adds as much as the generation does, and to what was recorded: so a later candidate tells a mere
    claim from a change that counted (`_is_as_claimed`). A set that nobody recorded may be in this broker's memory only,
    while its disk hangs: it would look like such a change to all, once this broker is started anew.
    """
    if not evidence.has_coordinator:
        return view.epoch + 1
    record, epoch = evidence.record, view.epoch
    if record is not None and record.generation == view.generation:
        epoch = record.epoch
    return epoch + generation - view.generation
