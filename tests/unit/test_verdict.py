"""Stories about who may be promoted. The sentences are for operators: only their point is checked."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Answer, LogPosition, StoreOrigin
from qpid_ha_broker.ha.record_keeper import controller_of
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import (
    Accept,
    CommittedSet,
    PromotionEvidence,
    Refusal,
    StepDownFirst,
    ToldCommit,
    ToldGeneration,
    Verdict,
    judge,
)


def broker(name: str, **changed: Any) -> Answer:
    """A backup that was in sync with a and the others when it lost its primary."""
    members = changed.get("members", ("a", "b", "c"))
    answer = Answer(1, name, f"{name}-1", "uuid", "connecting", 3, 7, members, members, 100, True, 0, "", True, "", 1)
    return answer._replace(**changed)


def fresh(name: str) -> Answer:
    """A broker that has just been started, with an empty memory."""
    return broker(name, cluster="", generation=0, epoch=0, members=(), lsn=0)


def restarted(name: str, **changed: Any) -> Answer:
    """A broker that has its log from a store that nobody closed."""
    return broker(name, store=StoreOrigin.DIRTY, **changed)


def refilled(name: str, **changed: Any) -> Answer:
    """One that began anew, and was level with a primary that the record may not name."""
    return broker(name, store=StoreOrigin.UNVERIFIED, **changed)


def told(name: str, position: tuple[int, int], **changed: Any) -> Answer:
    """One that was told that so much is committed."""
    return broker(name, committed_generation=position[0], committed_lsn=position[1], **changed)


NOT_OF_OTHER_SETS = re.compile(
    r"coordinator|brokers-url|qpid-ha (promote|activation|backups)|\bagent|acemaker|--force(?!`)"
)
RECORDED = ClusterRecord("uuid", 3, "a", 7, ("a", "b", "c"))
EMPTY = ClusterRecord()
LATER = ClusterRecord("uuid", 5, "a", 7, ("a", "b", "c"))
CLAIMED = LATER._replace(claimed=True)


def verdict(own: Answer, *answers: Answer, **changed: Any) -> Verdict:
    """With `a` gone, and the primary so far, unless told otherwise."""
    given: dict[str, Any] = {
        "own_primary": "a" if own.generation else "", "unreachable": ("a:5672",), "record": None,
        "has_coordinator": False, "min_in_sync": 1,
    }  # fmt: skip
    evidence = PromotionEvidence(own=own, answers=answers, **{**given, **changed})
    found = judge(evidence)
    check_words_of_other_sets(evidence, found)
    return found


def check_words_of_other_sets(evidence: PromotionEvidence, found: Verdict) -> None:
    """Of a set other than `default` the verdict is the same, and speaks of what such a set has."""
    there = judge(replace(evidence, keeper=controller_of("orders")))
    assert type(there) is type(found)
    if isinstance(there, Refusal):
        assert not NOT_OF_OTHER_SETS.search(there.text), there.text


def refusal(found: Verdict) -> str:
    assert isinstance(found, Refusal), found
    return found.text


A, B, C = broker("a"), broker("b"), broker("c")
OLD_A, OLD_B, OLD_C = restarted("a"), restarted("b"), restarted("c")
WITHOUT_A: dict[str, Any] = {"epoch": 8, "members": ("b", "c")}
WITHOUT_C: dict[str, Any] = {"epoch": 9, "members": ("a", "b")}
ALL_HERE: dict[str, Any] = {"unreachable": ()}
OF_TWO: dict[str, Any] = {"min_in_sync": 2}


def beside_record(record: ClusterRecord | None, **others: Any) -> dict[str, Any]:
    """With that record, and everybody there."""
    return {"record": record, "has_coordinator": True, "unreachable": (), **others}


def claims(name: str, *numbers: int) -> Answer:
    """One that died with these claims on its disk, which is where a claim is before the coordinator is asked."""
    return restarted(name, promised=numbers[-1], claims=numbers)


NEVER_BEGAN = ClusterRecord("uuid", 1, "b", 1, ("b",), claimed=True)
CLAIMANT = fresh("b")._replace(promised=1, claims=(1,))
FIRST_EVENTS = broker(
    "a", generation=1, epoch=1, members=("b",), newest_members=("b",), lsn=8, store=StoreOrigin.UNVERIFIED
)
FIRST_EVENTS_OF_C = FIRST_EVENTS._replace(name="c", instance="c-1")
JUST_WELCOMED = FIRST_EVENTS_OF_C._replace(state=State.CATCHUP, epoch=0, members=(), lsn=0, complete=False)
IN_SYNC_WITH_CLAIMANT = FIRST_EVENTS_OF_C._replace(epoch=2, members=("b", "c"), newest_members=("b", "c"))
FOURTH = CLAIMED._replace(generation=4, epoch=8)
OF_B = "generation 1 was confirmed by b"
NONE_KNOWS = "no store here"
WHO_MAY_LEAD: dict[str, tuple[Answer, tuple[Answer, ...], dict[str, Any], str]] = {
    "not one in catch-up": (broker("b", state=State.CATCHUP), (C,), {}, "catching up"),
    "nor one that is not complete": (broker("b", complete=False), (C,), {}, "catching up"),
    "nor whom the coordinator knows to be left out": (
        B, (), beside_record(RECORDED._replace(epoch=9, members=("a",)), unreachable=("a:5672",)),
        "the coordinator knows"),
    "a newer generation beats any epoch of an older one": (
        broker("b", epoch=50), (broker("c", generation=4, epoch=1, members=("c",)),), {}, "generation 4"),
    "nobody without the coordinator's record": (B, (C,), {"has_coordinator": True}, "coordinator"),
    "nobody without data beside one that has some": (fresh("b"), (C,), {}, "c does"),
    "not by force either": (fresh("b"), (C,), {"force": True}, "no data, and c does: use --force there"),
    "the first start needs everybody": (fresh("b"), (fresh("c"),), {}, "a:5672"),
    "an empty record may be a lost one": (
        fresh("b"), (fresh("c"),), {"record": EMPTY, "has_coordinator": True}, "a:5672"),
    "everybody is here": (fresh("b"), (fresh("c"),), ALL_HERE, ""),
    "with an empty record as well": (fresh("b"), (fresh("c"),), beside_record(EMPTY), ""),
    "not who lost the memory that a record speaks of": (
        fresh("b"), (fresh("c"),), {"record": RECORDED, "has_coordinator": True}, "--force"),
    # --- as many as must be in sync and cannot be asked may have gone on alone
    "half are not enough where a majority decides": (B, (), OF_TWO, "cannot be asked"),
    "nor is one of three": (B, (), {**OF_TWO, "unreachable": ("a:5672", "c:5672")}, "cannot be asked"),
    "two of three are": (B, (C,), OF_TWO, ""),
    "one of three with a record is": (B, (), beside_record(RECORDED, unreachable=("a:5672", "c:5672"), **OF_TWO), ""),
    # `b` led 4 with `c`, lost its disk, and was filled by the stale primary `a`: it does not look forgetful.
    "who was told of a newer generation waits for all who may have been in it": (
        broker("a", members=("a",)), (broker("b", members=("a",)),),
        {**OF_TWO, "own_primary": "a", "newest_told": ToldGeneration(4, "c"), "unreachable": ("c:5672",)},
        "c said before that its log knows generation 4"),
    "and they are here": (
        broker("a", members=("a",)), (broker("b", members=("a",)), broker("c", members=("a",))),
        {**OF_TWO, "own_primary": "a", "newest_told": ToldGeneration(4, "c"), "unreachable": ()}, ""),
    "what this one knows is none to wait for": (
        broker("b", generation=4, members=("b", "c")), (broker("c", members=("b", "c")),),
        {**OF_TWO, "newest_told": ToldGeneration(4, "a")}, ""),
    "nor what another one here knows": (
        broker("b", members=("b", "c")), (broker("c", generation=4, members=("b", "c")),),
        {**OF_TWO, "newest_told": ToldGeneration(4, "a")}, ""),
    "an empty one may have gone on with one that cannot be asked": (
        B, (fresh("c"),), OF_TWO, "a:5672, c cannot be asked"),
    "so may one that is halfway": (B, (broker("c", complete=False),), OF_TWO, "a:5672, c cannot be asked"),
    "where all are here nothing is left of what some forgot": (
        B, (fresh("a"), fresh("c")), {**OF_TWO, **ALL_HERE}, ""),
    # --- after a crash of everybody: each broker has what its store kept
    "the furthest store leads once the whole in-sync set is back": (
        restarted("b", lsn=120), (restarted("a", lsn=119), restarted("c", lsn=118)), ALL_HERE, ""),
    "one that is behind names the one that is not": (
        restarted("c", lsn=118), (OLD_A, restarted("b", lsn=120)), ALL_HERE, "the store of b goes further"),
    "of equal stores a": (OLD_A, (OLD_B, OLD_C), ALL_HERE, ""),
    "of equal stores b": (OLD_B, (OLD_A, OLD_C), ALL_HERE, ""),
    "of equal stores c": (OLD_C, (OLD_A, OLD_B), ALL_HERE, ""),
    "a store waits for those who may hold more": (
        OLD_B, (OLD_C,), {"unreachable": ("a:5672",)}, "a of the last in-sync set cannot be asked"),
    "not for who had left the set": (restarted("b", **WITHOUT_A), (restarted("c", **WITHOUT_A),), {}, ""),
    "nor does that one lead": (
        OLD_A, (restarted("b", **WITHOUT_A),), ALL_HERE, "newer in-sync set without this broker"),
    "a store yields to who did not crash": (OLD_B, (C, OLD_A), ALL_HERE, "unlike c"),
    "who leads": (C, (OLD_B, OLD_A), ALL_HERE, ""),
    "one that is being brought level is no witness": (OLD_B, (OLD_A, broker("c", complete=False)), ALL_HERE, ""),
    "the coordinator's record counts, too": (
        OLD_B, (restarted("a", epoch=8, members=("a", "b")),),
        beside_record(RECORDED._replace(epoch=8, members=("a", "b"))), ""),
    "and its members are waited for": (
        OLD_B, (OLD_C,), beside_record(RECORDED._replace(epoch=8, members=("a", "b"))), "a of the last in-sync set"),
    "an operator may want to be asked": (
        OLD_B, (OLD_A, OLD_C), {**ALL_HERE, "auto_recover": False}, "ha.auto-recover is off"),
    "and has chosen": (OLD_B, (OLD_A, OLD_C), {**ALL_HERE, "auto_recover": False, "is_chosen": True}, ""),
    "a chosen store need not wait": (OLD_B, (), {"is_chosen": True}, ""),
    "a store that has failed does not lead": (broker("b", store=StoreOrigin.FAILED), (C,), {}, "has failed"),
    "but by force": (broker("b", store=StoreOrigin.FAILED), (C,), {"force": True}, ""),
    "stores that were closed together need not be compared": (broker("b", store=StoreOrigin.CLEAN), (), {}, ""),
    "nor with one that is not in sync by its own log": (
        broker("b", store=StoreOrigin.CLEAN), (broker("c", lsn=200, members=("a", "b")),), {}, ""),
    "one that came back empty cannot say whether it had gone on alone": (
        OLD_B, (OLD_A, fresh("c")), ALL_HERE, "c of the last in-sync set cannot be asked"),
    "the record can": (OLD_B, (OLD_A, fresh("c")), beside_record(RECORDED), ""),
    # The coordinator names it; its store says that it wanted that generation, and holds nothing of it.
    "a first primary that died before it wrote may try again": (
        CLAIMANT, (fresh("a"), fresh("c")), beside_record(NEVER_BEGAN), ""),
    "not one that wanted nothing": (fresh("b"), (fresh("a"), fresh("c")), beside_record(NEVER_BEGAN), OF_B),
    "nor another one": (fresh("a"), (CLAIMANT,), beside_record(NEVER_BEGAN), OF_B),
    "nor where it has begun": (CLAIMANT, (fresh("a"),), beside_record(NEVER_BEGAN._replace(claimed=False)), OF_B),
    "nor where it went on": (
        CLAIMANT, (fresh("a"),), beside_record(NEVER_BEGAN._replace(epoch=2, members=("a", "b"))),
        "generation 1 was confirmed by a, b"),
    # Others have what it sent them, which never was on its disk. None of them was in sync.
    "nor do those stop it who have events of that claim alone": (
        CLAIMANT, (FIRST_EVENTS, FIRST_EVENTS._replace(name="c", complete=False)), beside_record(NEVER_BEGAN), ""),
    "nor one that is about to be sent them": (
        CLAIMANT, (fresh("a"), JUST_WELCOMED), beside_record(NEVER_BEGAN), ""),
    "nor one that has those of an earlier claim": (
        CLAIMANT._replace(claims=(1, 2)), (FIRST_EVENTS._replace(generation=2, epoch=2), FIRST_EVENTS_OF_C),
        beside_record(NEVER_BEGAN._replace(generation=2, epoch=2)), ""),
    "nor do they lead": (FIRST_EVENTS, (CLAIMANT, FIRST_EVENTS_OF_C), beside_record(NEVER_BEGAN), "in-sync set of its"),
    "but one does that was in sync": (
        CLAIMANT, (fresh("a"), IN_SYNC_WITH_CLAIMANT), beside_record(NEVER_BEGAN), "holds no data, and c does"),
    "and may lead, though nobody recorded that": (
        IN_SYNC_WITH_CLAIMANT, (CLAIMANT, FIRST_EVENTS), beside_record(NEVER_BEGAN, own_primary="b"), ""),
    "or that has older data": (
        CLAIMANT._replace(claims=(2,)), (fresh("a"), FIRST_EVENTS_OF_C),
        beside_record(NEVER_BEGAN._replace(generation=2, epoch=2)), "holds no data, and c does"),
    "or that had older data before it was welcomed": (
        CLAIMANT, (fresh("a"), JUST_WELCOMED._replace(members=("a", "c"))), beside_record(NEVER_BEGAN), "c does"),
    "or that is of another cluster": (
        CLAIMANT, (FIRST_EVENTS._replace(cluster="other"), fresh("c")), beside_record(NEVER_BEGAN), "a does"),
    "or where that generation has begun": (
        CLAIMANT, (FIRST_EVENTS, fresh("c")), beside_record(NEVER_BEGAN._replace(claimed=False)), "a does"),
    "or was recorded with others in sync": (
        CLAIMANT, (FIRST_EVENTS, fresh("c")), beside_record(NEVER_BEGAN._replace(members=("b", "c"))), "a does"),
    "or where somebody was told that something of it is committed": (
        CLAIMANT, (FIRST_EVENTS._replace(committed_generation=1, committed_lsn=8), fresh("c")),
        beside_record(NEVER_BEGAN), "a was told that LSN 8"),
    # --- a record that was lost, or is older than what the logs know
    "an empty record does not know the generation": (
        B, (C,), beside_record(EMPTY), "but the log of b knows generation 3"),
    "nor does an old one": (
        B, (C,), beside_record(RECORDED._replace(generation=2)), "but the log of b knows generation 3"),
    "another one here knows that it is empty": (
        broker("c", generation=2), (broker("b", epoch=1),), beside_record(EMPTY),
        "but the log of b knows generation 3"),
    "or that it is old": (
        broker("c", generation=2), (broker("b", epoch=1),), beside_record(RECORDED._replace(generation=2)),
        "but the log of b knows generation 3"),
    "who knows that a departure counted refuses a record from before it": (
        broker("b", **WITHOUT_C), (), beside_record(RECORDED, own_committed=CommittedSet(3, 9, ("a", "b"))),
        "knows epoch 9, without some of those"),
    "not the one that has it": (
        broker("b", **WITHOUT_C), (),
        beside_record(RECORDED._replace(**WITHOUT_C), own_committed=CommittedSet(3, 9, ("a", "b"))), ""),
    "a set that may not be committed was perhaps never recorded": (
        broker("b", epoch=9), (C,), beside_record(RECORDED, own_committed=None), ""),
    "one that grew is committed before it is recorded": (
        broker("b", epoch=9), (C,),
        beside_record(RECORDED, own_committed=CommittedSet(3, 9, ("a", "b", "c", "d"))), ""),
    "epochs of two generations are not compared": (
        broker("b", epoch=9), (C,), beside_record(RECORDED, own_committed=CommittedSet(2, 9, ("a", "b"))), ""),
    "another primary of the generation shows that the record is not the one there was": (
        B, (), beside_record(RECORDED._replace(primary="c")), "a leads that generation, not c"),
    # --- stores that are older than the record
    "one store that knows the record is enough: it was in sync": (
        restarted("a", generation=5), (OLD_B, OLD_C), beside_record(LATER, own_primary="a"), ""),
    "the others name it": (
        OLD_B, (restarted("a", generation=5), OLD_C), beside_record(LATER), "the store of a goes further"),
    "one that is halfway through a catch-up does not vouch for the others": (
        OLD_B, (OLD_A, restarted("c", generation=5, complete=False)), beside_record(LATER), NONE_KNOWS),
    "a candidate that died before its first event says so": (
        OLD_B, (claims("a", 5), OLD_C), beside_record(CLAIMED), ""),
    "and may lead": (claims("a", 5), (OLD_B, OLD_C), beside_record(CLAIMED), ""),
    "another one's claim says nothing": (claims("b", 5), (OLD_A, OLD_C), beside_record(CLAIMED), NONE_KNOWS),
    # Its store was put back from before, and an operator's force has made it want to lead again (seed 2401269).
    "nor does a newer claim of the recorded primary": (
        OLD_B, (claims("a", 6), OLD_C), beside_record(CLAIMED), NONE_KNOWS),
    "which does not lead by it": (claims("a", 6), (OLD_B, OLD_C), beside_record(CLAIMED), NONE_KNOWS),
    "nor one that began anew": (refilled("b"), (claims("a", 6),), beside_record(CLAIMED), "began anew"),
    "nor does what it promised to somebody else": (
        OLD_B, (restarted("a", promised=5, promised_to="b"), OLD_C), beside_record(CLAIMED), NONE_KNOWS),
    "the recorded claim counts beside those that were never recorded": (
        OLD_B, (claims("a", 5, 6, 7), OLD_C), beside_record(CLAIMED), ""),
    "for its primary, too": (claims("a", 5, 6, 7), (OLD_B, OLD_C), beside_record(CLAIMED), ""),
    "and for one that began anew": (refilled("b"), (claims("a", 5, 6, 7),), beside_record(CLAIMED), ""),
    # All stores are put back from copies of the moment after its claim, and nobody came or went since.
    "not where the record says that its generation has begun": (
        OLD_B, (claims("a", 5), OLD_C), beside_record(LATER), NONE_KNOWS),
    "nor for its primary": (claims("a", 5), (OLD_B, OLD_C), beside_record(LATER), NONE_KNOWS),
    "a record that says claimed again after it had begun went back": (
        broker("a", generation=5), (broker("b", generation=5),),
        beside_record(CLAIMED, own_primary="a", own_record=LATER),
        "had generation 5, epoch 7, which had begun, recorded"),
    "not one that says it still": (
        broker("a", generation=5), (broker("b", generation=5),),
        beside_record(CLAIMED, own_primary="a", own_record=CLAIMED), ""),
    "nor one that says begun": (
        broker("a", generation=5), (broker("b", generation=5),),
        beside_record(LATER, own_primary="a", own_record=CLAIMED), ""),
    # All stores are put back from copies of the moment between its claim and its first event.
    "a generation that never went on": (claims("a", 4), (OLD_B, OLD_C), beside_record(FOURTH), ""),
    "one that did, which the record's epoch tells": (
        claims("a", 4), (OLD_B, OLD_C), beside_record(FOURTH._replace(epoch=9)), NONE_KNOWS),
    "and tells the others": (
        OLD_C, (OLD_B, claims("a", 4)), beside_record(FOURTH._replace(epoch=9)), NONE_KNOWS),
    "two candidates in a row that died stop nobody": (
        claims("a", 5), (claims("b", 4), OLD_C), beside_record(CLAIMED._replace(epoch=9)), ""),
    "unless something came of one": (
        claims("a", 5), (claims("b", 4), OLD_C), beside_record(CLAIMED._replace(epoch=10)), NONE_KNOWS),
    "who was not restarted knows that nothing was confirmed without it": (
        B, (OLD_A, OLD_C), beside_record(LATER), ""),
    "alone, too": (B, (), beside_record(LATER, unreachable=("a:5672", "c:5672")), ""),
    "and is preferred": (OLD_C, (B, OLD_A), beside_record(LATER), "unlike b"),
    "one that followed the recorded generation since it began anew may lead": (
        refilled("b", generation=5, epoch=3), (), beside_record(LATER), ""),
    "but vouches for no store that is older than the record": (
        OLD_B, (refilled("c"), OLD_A), beside_record(LATER), NONE_KNOWS),
    "it may lead where the recorded primary says that it never began": (
        refilled("b"), (claims("a", 5),), beside_record(CLAIMED._replace(epoch=9)), ""),
    "unless that one goes further, which was filled by nobody who had slept": (
        refilled("b", lsn=99), (claims("a", 5), OLD_C), beside_record(CLAIMED),
        "generation 3 only: promote that one"),
    "then that one may": (claims("a", 5), (refilled("b", lsn=99), OLD_C), beside_record(CLAIMED), ""),
    # --- what somebody knows to be committed
    "who has all of it may lead": (B, (told("c", (3, 100)),), {}, ""),
    "more of an older generation is less": (B, (told("c", (2, 500)),), {}, ""),
    "nothing is known": (B, (told("c", (0, 0)),), {}, ""),
    "what one said that does not answer any more counts as well": (
        B, (), {"told_committed": ToldCommit(LogPosition(3, 101), "c"), "unreachable": ("c:5672",)},
        "c was told that LSN 101"),
}  # fmt: skip
"""The candidate, who answers, what else is known, and what its refusal names; nothing where it is accepted."""


@pytest.mark.parametrize("title", WHO_MAY_LEAD)
def test_who_may_lead(title: str) -> None:
    own, others, known, named = WHO_MAY_LEAD[title]
    found = verdict(own, *others, **known)
    if named:
        assert named in refusal(found)
    else:
        assert isinstance(found, Accept), found


def test_a_member_of_the_newest_in_sync_set_is_promoted_and_the_dead_primary_leaves_the_set() -> None:
    found = verdict(broker("b"), broker("c"))
    assert isinstance(found, Accept)
    assert (found.generation, found.epoch, found.members) == (4, 8, ("b", "c"))


def test_a_primary_that_handed_over_stays_in_the_set() -> None:
    found = verdict(broker("b"), broker("c"), broker("a"), unreachable=(), handed_over_by="a")
    assert isinstance(found, Accept)
    assert found.members == ("a", "b", "c")


def test_a_live_primary_is_asked_to_hand_over_first() -> None:
    found = verdict(broker("b"), broker("a", state="primary"), unreachable=())
    assert found == StepDownFirst("a")


def test_a_broker_that_a_peer_knows_to_be_left_out_is_refused_and_told_by_whom() -> None:
    text = refusal(verdict(broker("b"), broker("c", epoch=8, members=("a", "c"))))
    assert "c knows a newer in-sync set" in text
    assert "a, c" in text


def test_who_is_named_in_the_set_but_lost_its_memory_is_left_out_of_the_next_one() -> None:
    found = verdict(broker("b"), fresh("c"))
    assert isinstance(found, Accept)
    assert found.members == ("b",)


def test_the_new_generation_is_above_everything_that_was_promised_or_seen() -> None:
    found = verdict(broker("b", promised=9), broker("c", promised=11))
    assert isinstance(found, Accept)
    assert found.generation == 12


def test_force_overrides_doubt_but_neither_a_second_broker_of_that_name_nor_another_cluster() -> None:
    for found in (verdict(broker("b", complete=False), broker("c"), force=True), verdict(fresh("b"), force=True)):
        assert isinstance(found, Accept)
        assert found.members == ("b",)
    assert "two brokers are called b" in refusal(verdict(broker("b"), broker("b", instance="other"), force=True))
    assert "cluster other" in refusal(verdict(broker("b"), broker("c", cluster="other"), force=True))
    record = ClusterRecord("other", 3, "a", 7, ("b",))
    assert "cluster other" in refusal(verdict(broker("b"), record=record, has_coordinator=True, force=True))


# --- after a crash of everybody: each broker has what its store kept


def test_a_generation_that_too_few_can_have_followed_yields_to_those_who_went_on_in_the_one_before() -> None:
    dropped_c = {"generation": 4, "epoch": 9, "newest_members": ("a", "b"), "lsn": 90}
    began, followed = restarted("b", **dropped_c, min_in_sync=2), restarted("a", **dropped_c)
    went_on = broker("c", lsn=120)

    assert "unlike c" in refusal(verdict(began, went_on, broker("a"), unreachable=()))
    assert isinstance(verdict(went_on, began, broker("a"), unreachable=()), Accept)
    for third, unreachable in ((followed, ()), (fresh("a"), ()), (None, ("a:5672",))):
        seen = [] if third is None else [third]
        found = verdict(went_on, began, *seen, unreachable=unreachable)
        assert refusal(found).startswith("what b ")
        assert "kept goes further" in refusal(found)


def test_a_store_whose_last_set_was_perhaps_never_heard_of_waits_for_those_in_it_and_they_lack_nothing() -> None:
    """`b` has dropped `d` and come back. What it confirmed since, `a` and `c` hold; and perhaps `d` was never out."""
    everybody = ("a", "b", "c", "d")
    dropped_d = restarted("b", epoch=8, members=everybody, newest_members=("a", "b", "c"), lsn=101, min_in_sync=3)
    a, c, d = (broker(name, members=everybody, min_in_sync=3) for name in "acd")

    assert "unlike a and c" in refusal(verdict(dropped_d, a, c, d, own_primary="b", unreachable=()))
    assert isinstance(verdict(a, dropped_d, c, d, own_primary="b", unreachable=()), Accept)
    assert "what b kept goes further" in refusal(verdict(d, a, dropped_d, c, own_primary="b", unreachable=()))


def test_one_that_did_not_crash_and_was_left_out_holds_up_nobody_who_knows_what_was_confirmed_without_it() -> None:
    """`a` and `b` went on without `c`, and crashed; nobody takes it that `c` has what the new primary began with."""
    left_out = broker("c", epoch=6, lsn=90, min_in_sync=2)
    a, b = (restarted(name, newest_members=("a", "b"), lsn=120, min_in_sync=2) for name in "ab")

    found = verdict(a, left_out, b, own_primary="b", unreachable=())

    assert isinstance(found, Accept)
    assert found.members == ("a",)
    assert "what a and b kept goes further" in refusal(verdict(left_out, a, b, unreachable=()))


def test_a_newcomer_whose_own_log_does_not_say_that_it_was_in_sync_holds_nobody_up() -> None:
    """It was recorded and died before its log had that: it cannot lead, and what it alone has was not confirmed."""
    record = ClusterRecord("uuid", 3, "a", 8, ("a", "b", "c"))
    given: dict[str, Any] = {"record": record, "has_coordinator": True, "unreachable": ()}
    newcomer = restarted("c", lsn=120, members=("a", "b"))

    recorder = restarted("a", epoch=8)  # which has on disk what it has recorded

    found = verdict(recorder, restarted("b", lsn=90), newcomer, **given)

    assert isinstance(found, Accept)
    assert "c" not in found.members
    assert "not in the in-sync set of its own log" in refusal(verdict(newcomer, recorder, **given))


def test_a_set_that_was_perhaps_never_recorded_leaves_somebody_who_may_lead() -> None:
    """The primary left both others out, and crashed before the coordinator had heard of that, or after: `a` was told of
    it, and cannot know either."""
    record = ClusterRecord("uuid", 3, "c", 7, ("a", "b", "c"))
    primary = restarted("c", epoch=9, members=("a", "b", "c"), newest_members=("c",), lsn=120)
    told, untold = broker("a", epoch=9, members=("c",), lsn=120), broker("b")
    given: dict[str, Any] = {"record": record, "has_coordinator": True, "unreachable": (), "own_primary": "c"}
    assert "not in the in-sync set of its own log" in refusal(verdict(told, primary, untold, **given))
    assert "a knows a newer in-sync set without this broker" in refusal(verdict(untold, primary, told, **given))
    assert isinstance(verdict(primary, told, untold, lacks_transient=False, **given), Accept)
    assert "none of them may lead" in refusal(verdict(primary, told, untold, lacks_transient=True, **given))
    longer = untold._replace(lsn=121)
    assert "unlike b" in refusal(verdict(primary, told, longer, lacks_transient=False, **given)), "it may hold more"
    alone = {**given, "record": record._replace(primary="c")}
    assert "unlike b" in refusal(verdict(primary, untold, lacks_transient=False, **alone)), "it may lead itself"


@pytest.mark.parametrize("changed", [{}, {"min_in_sync": 2}, {"record": RECORDED, "has_coordinator": True}])
def test_a_store_that_was_closed_in_order_gives_way_to_one_in_sync_that_never_heard_of_the_shutdown(
    changed: dict[str, Any],
) -> None:
    """That one alone has what is not durable."""
    (a, b), awake = (broker(name, store=StoreOrigin.CLEAN) for name in "ab"), broker("c")
    assert "unlike c" in refusal(verdict(b, a, awake, unreachable=(), **changed))
    assert isinstance(verdict(awake, a, b, unreachable=(), **changed), Accept)
    # One that was dropped before cannot lead, and holds nobody up.
    dropped: dict[str, Any] = {"epoch": 8, "members": ("a", "b")}
    a, b = (each._replace(**dropped) for each in (a, b))
    recorded = {**changed, "record": RECORDED._replace(epoch=8, members=("a", "b"))} if "record" in changed else changed
    assert isinstance(verdict(b, a, awake, unreachable=(), **recorded), Accept)


@pytest.mark.parametrize("store", [StoreOrigin.MEMORY, StoreOrigin.DIRTY])
@pytest.mark.parametrize("changed", [{}, {"min_in_sync": 2}, {"record": RECORDED, "has_coordinator": True}])
def test_a_store_that_was_closed_in_order_gives_way_to_whoever_in_sync_went_on_since(
    store: StoreOrigin, changed: dict[str, Any]
) -> None:
    """It was put back from a copy of the time when the whole cluster was shut down."""
    copy = broker("b", store=StoreOrigin.CLEAN, generation=2, epoch=4, lsn=90)
    text = refusal(verdict(copy, broker("a", store=store), unreachable=("c:5672",), **changed))
    assert "put back since: a goes further, to LSN 100 (here 90)" in text


# --- a record that was lost, or is older than what the logs know


def beside(record: ClusterRecord, own: Answer, *answers: Answer, **changed: Any) -> Verdict:
    """With that record, and everybody there."""
    return verdict(own, *answers, **beside_record(record, **changed))


def test_force_begins_a_new_record_and_gives_up_no_more_than_it_must() -> None:
    everybody = beside(EMPTY, broker("b"), broker("c"), broker("a"), force=True)
    alone = beside(EMPTY, broker("b"), broker("c"), force=True, unreachable=("a:5672",))
    assert isinstance(everybody, Accept)
    assert isinstance(alone, Accept)
    assert (everybody.members, everybody.is_forced) == (("b", "c"), False)
    assert (alone.members, alone.is_forced) == (("b",), True)


# --- stores that are older than the record


@pytest.mark.parametrize("store", [StoreOrigin.DIRTY, StoreOrigin.CLEAN])
@pytest.mark.parametrize("changed", [{}, {"is_chosen": True}])
@pytest.mark.parametrize("record", [LATER, RECORDED._replace(epoch=8)])
def test_stores_that_are_older_than_the_record_are_not_led_from(
    store: StoreOrigin, changed: dict[str, Any], record: ClusterRecord
) -> None:
    own, *others = (broker(name, store=store) for name in "bac")
    text = refusal(beside(record, own, *others, **changed))
    assert f"record says generation {record.generation}, epoch {record.epoch}" in text
    assert "goes further than generation 3, epoch 7" in text
    assert "gives up all that was confirmed after LSN 100" in text
    assert isinstance(beside(record, own, *others, force=True), Accept)


def test_a_claim_adds_to_the_epoch_what_it_adds_to_the_generation() -> None:
    """Generation 4 was promised to somebody who was never recorded: that it is left out must not hide a change."""
    accept = beside(RECORDED, broker("b"), broker("c", promised=4))
    assert isinstance(accept, Accept)
    assert (accept.generation, accept.epoch) == (5, RECORDED.epoch + 2)
    claimed = RECORDED._replace(generation=accept.generation, primary="b", epoch=accept.epoch, claimed=True)
    copies = restarted("b", promised=5, claims=(5,)), restarted("a"), restarted("c")
    assert isinstance(beside(claimed, *copies), Accept)
    assert "no store here" in refusal(beside(claimed._replace(epoch=claimed.epoch + 1), *copies))


def claimed_by(accept: Verdict, primary: str) -> ClusterRecord:
    assert isinstance(accept, Accept)
    return ClusterRecord("uuid", accept.generation, primary, accept.epoch, accept.members, claimed=True)


@pytest.mark.parametrize("unrecorded", [1, 2])
def test_a_candidate_that_loses_a_set_which_nobody_recorded_with_its_memory_still_shows_that_it_never_began(
    unrecorded: int,
) -> None:
    """`a` died as it left out `c`, before it had that recorded; the disk of `b` hung, and loses the end of the log."""
    own = broker("b", epoch=RECORDED.epoch + unrecorded, members=("a", "b"), newest_members=("a", "b"))
    record = claimed_by(beside(RECORDED, own, unreachable=("a:5672", "c:5672")), "b")
    assert record.members == ("b",)
    own = restarted("b", lsn=90, promised=4, claims=(4,))
    assert isinstance(beside(record, own, restarted("a"), restarted("c")), Accept)
    assert "without this broker" in refusal(beside(record, restarted("a"), own, restarted("c")))


def test_but_not_where_it_was_out_of_sync_in_between_for_a_while_and_may_lack_what_was_confirmed_then() -> None:
    """`b` was left out, which counted, and came back, recorded or not yet; its disk knows nothing of either."""
    left_out = RECORDED._replace(epoch=8, members=("a",))
    back = broker("b", epoch=9, members=("a", "b"), newest_members=("a", "b"))
    for recorded in (left_out, left_out._replace(epoch=9, members=("a", "b"))):
        record = claimed_by(beside(recorded, back, unreachable=("a:5672", "c:5672")), "b")
        own = restarted("b", lsn=90, promised=4, claims=(4,))
        assert "no store here" in refusal(beside(record, own, unreachable=("a:5672", "c:5672")))


def test_a_claim_goes_on_from_a_log_that_is_newer_than_a_record_which_an_operator_gives_up() -> None:
    accept = beside(RECORDED._replace(generation=2, epoch=4), broker("b"), unreachable=("a:5672",), force=True)
    assert isinstance(accept, Accept)
    assert (accept.generation, accept.epoch) == (4, 8)


# --- a broker that began anew, and was level with a primary that the record may not name


@pytest.mark.parametrize("epoch", [3, 7, 50])
def test_who_was_emptied_and_filled_by_a_primary_that_slept_is_not_the_one_whom_the_record_names(epoch: int) -> None:
    """It led generation 5 or followed it, and what was confirmed then it does not remember."""
    own = refilled("b", epoch=epoch)
    for record in (LATER, LATER._replace(primary="b", members=("b",))):
        text = refusal(beside(record, own, broker("c", store=StoreOrigin.UNVERIFIED, members=("a", "b"))))
        assert f"led by {record.primary}, and this broker began anew and has followed generation 3 only" in text
        assert "`qpid-ha promote --force` gives up all that generation 5 has confirmed" in text
        assert isinstance(beside(record, own, broker("c"), force=True), Accept)


def test_it_gives_way_to_who_remembers_that_generation_or_was_never_restarted() -> None:
    for other in (broker("c"), broker("c", generation=5), restarted("c", generation=5), refilled("c", generation=5)):
        assert refusal(beside(LATER, refilled("b"), other)).endswith("generation 3 only: promote that one")
        assert isinstance(beside(LATER, other, refilled("b"), refilled("a")), Accept)


# --- a broker that lacks what somebody knows to be committed


@pytest.mark.parametrize("store", [StoreOrigin.MEMORY, StoreOrigin.CLEAN])
@pytest.mark.parametrize("position", [(3, 101), (4, 90)])
def test_who_lacks_what_another_one_knows_to_be_committed_is_refused_whatever_that_one_holds_itself(
    store: StoreOrigin, position: tuple[int, int]
) -> None:
    """In the middle of a comparison, and out of sync by its own log, it contradicts nobody otherwise."""
    halfway = told("c", position, generation=3, members=("a",), complete=False, epoch=6)
    text = refusal(verdict(broker("b", store=store), halfway))
    assert f"c was told that LSN {position[1]} of generation {position[0]} is committed" in text
    assert "ends at LSN 100 of generation 3" in text
    assert isinstance(verdict(broker("b", store=store), halfway, force=True), Accept)


STORES = st.sampled_from(list(StoreOrigin))
NUMBERS = st.integers(0, 4)


@st.composite
def answers(draw: st.DrawFn, name: str) -> Answer:
    """Any broker, as it may answer."""
    members = tuple(sorted(draw(st.sets(st.sampled_from("abc"), min_size=1))))
    return broker(
        name, generation=draw(NUMBERS), epoch=draw(NUMBERS), members=members, newest_members=members, lsn=draw(NUMBERS),
        store=draw(STORES), complete=draw(st.booleans()), promised=draw(NUMBERS), min_in_sync=draw(st.integers(1, 2)),
        claims=tuple(sorted(draw(st.sets(NUMBERS)))),
    )  # fmt: skip


@given(data=st.data())
def test_nobody_leads_against_a_log_that_proves_the_record_old_or_from_stores_that_it_proves_old(
    data: st.DataObject,
) -> None:
    own = data.draw(answers("a"))
    others = [data.draw(answers(name)) for name in data.draw(st.sets(st.sampled_from("bc")))]
    record = data.draw(
        st.builds(
            ClusterRecord, st.just("uuid"), NUMBERS, st.sampled_from("abc"), NUMBERS, st.just(("a", "b")), st.booleans()
        )
    )
    unreachable = data.draw(st.sampled_from([(), ("c:5672",)]))

    found = beside(record, own, *others, own_primary=data.draw(st.sampled_from("abc")), unreachable=unreachable)

    if not isinstance(found, Refusal):
        here = (own, *others)
        assert max(each.generation for each in here) <= record.generation
        newest = max(here, key=lambda each: (each.generation, each.epoch))
        may_be_a_copy = own.generation and own.store in (StoreOrigin.DIRTY, StoreOrigin.CLEAN)
        is_unchanged = record.epoch - newest.epoch <= record.generation - newest.generation
        has_claimed = any(each.name == record.primary and record.generation in each.claims for each in here)
        nothing_came_of_it = record.claimed and is_unchanged and has_claimed
        vouch = [
            each for each in here
            if (each.generation, each.epoch) >= (record.generation, record.epoch)
            or (each.store is StoreOrigin.MEMORY and each.generation)
            or (each.store is StoreOrigin.UNVERIFIED and each.generation >= record.generation)
        ]  # fmt: skip
        assert vouch or nothing_came_of_it or not may_be_a_copy
        may_have_forgotten = own.generation and own.store is StoreOrigin.UNVERIFIED
        assert own.generation >= record.generation or nothing_came_of_it or not may_have_forgotten


def test_who_had_left_by_the_record_does_not_lead_though_a_store_with_a_newer_set_has_the_older_ones_in_it() -> None:
    """c was dropped, and that was recorded; then a lost b, too, which was not. What b had acknowledged by then is
    confirmed. Now a and b come back from their stores, and c was never restarted."""
    record = ClusterRecord("uuid", 3, "a", 8, ("a", "b"))
    a = restarted("a", epoch=9, newest_members=("a",), lsn=120)
    b = restarted("b", lsn=110)
    c = broker("c", lsn=100)
    assert "without this broker" in refusal(verdict(c, a, b, **beside_record(record)))
    assert "a goes further" in refusal(verdict(b, a, c, **beside_record(record)))
    accepted = verdict(a, b, c, **beside_record(record))
    assert isinstance(accepted, Accept)
    assert "c" not in accepted.members


def test_who_came_back_after_the_record_may_lead() -> None:
    record = ClusterRecord("uuid", 3, "a", 8, ("a", "b"))
    a = restarted("a", epoch=9, newest_members=("a", "b", "c"), lsn=120)
    assert isinstance(verdict(broker("c", epoch=9, lsn=120), a, **beside_record(record)), Accept)


def test_who_led_before_a_claim_that_never_began_leads_where_the_claimant_has_lost_that_it_was_in_sync() -> None:
    """b had joined a, and claimed the next generation when a was gone. Its disk has the claim, and of its log not even
    that it joined."""
    claim = ClusterRecord("uuid", 4, "b", 8, ("b",), claimed=True)
    a = restarted("a", epoch=7, members=("a", "b"), lsn=115)
    b = restarted("b", epoch=6, members=("a",), lsn=112, claims=(4,), promised=4)
    assert "in-sync set of its own log" in refusal(verdict(b, a, **beside_record(claim)))
    accepted = verdict(a, b, **beside_record(claim))
    assert isinstance(accepted, Accept)
    assert (accepted.generation, accepted.members) == (5, ("a",))
    begun = claim._replace(claimed=False)
    assert "without this broker" in refusal(verdict(a, b, **beside_record(begun)))
    went_on = claim._replace(epoch=9)
    assert "without this broker" in refusal(verdict(a, b, **beside_record(went_on)))


def test_who_was_dropped_before_a_claim_that_never_began_does_not_lead() -> None:
    claim = ClusterRecord("uuid", 4, "b", 9, ("b",), claimed=True)
    a = restarted("a", epoch=8, members=("a", "b", "c"), newest_members=("a", "b"), lsn=115)
    b = restarted("b", epoch=8, members=("a", "b", "c"), newest_members=("a", "b"), lsn=115, claims=(4,), promised=4)
    assert "without this broker" in refusal(verdict(broker("c"), a, b, **beside_record(claim)))
