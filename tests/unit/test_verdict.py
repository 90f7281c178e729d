"""Stories about who may be promoted. The sentences are for operators: only their point is checked."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.ha.effects import ClusterRecord
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


NOT_OF_OTHER_SETS = re.compile(
    r"coordinator|brokers-url|qpid-ha (promote|activation|backups)|\bagent|acemaker|--force(?!`)"
)
RECORDED = ClusterRecord("uuid", 3, "a", 7, ("a", "b", "c"))


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


@pytest.mark.parametrize("changed", [{"state": State.CATCHUP}, {"complete": False}])
def test_a_broker_in_catch_up_is_refused(changed: dict[str, Any]) -> None:
    assert "catching up" in refusal(verdict(broker("b", **changed), broker("c")))


def test_a_broker_that_a_peer_knows_to_be_left_out_is_refused_and_told_by_whom() -> None:
    text = refusal(verdict(broker("b"), broker("c", epoch=8, members=("a", "c"))))
    assert "c knows a newer in-sync set" in text
    assert "a, c" in text


def test_a_broker_that_the_coordinator_knows_to_be_left_out_is_refused() -> None:
    record = ClusterRecord("uuid", 3, "a", 9, ("a",))
    assert "the coordinator knows" in refusal(verdict(broker("b"), record=record, has_coordinator=True))


def test_a_newer_generation_beats_any_epoch_of_an_older_one() -> None:
    text = refusal(verdict(broker("b", epoch=50), broker("c", generation=4, epoch=1, members=("c",))))
    assert "generation 4" in text


def test_without_the_coordinator_s_record_nobody_is_promoted() -> None:
    assert "coordinator" in refusal(verdict(broker("b"), broker("c"), has_coordinator=True))


def test_a_broker_without_data_is_refused_beside_one_that_has_some() -> None:
    assert "c does" in refusal(verdict(fresh("b"), broker("c")))


@pytest.mark.parametrize("given", [{}, {"record": ClusterRecord(), "has_coordinator": True}])
def test_the_first_start_needs_everybody_because_an_empty_record_may_be_a_lost_one(given: dict[str, Any]) -> None:
    assert "a:5672" in refusal(verdict(fresh("b"), fresh("c"), **given))
    assert isinstance(verdict(fresh("b"), fresh("c"), unreachable=(), **given), Accept)


def test_who_lost_the_memory_that_a_record_speaks_of_is_refused() -> None:
    record = ClusterRecord("uuid", 3, "a", 7, ("a", "b", "c"))
    assert "--force" in refusal(verdict(fresh("b"), fresh("c"), record=record, has_coordinator=True))


def test_who_is_named_in_the_set_but_lost_its_memory_is_left_out_of_the_next_one() -> None:
    found = verdict(broker("b"), fresh("c"))
    assert isinstance(found, Accept)
    assert found.members == ("b",)


def test_half_of_the_brokers_are_not_enough_where_a_majority_decides() -> None:
    assert "cannot be asked" in refusal(verdict(broker("b"), min_in_sync=2))


def test_as_many_unreachable_brokers_as_must_be_in_sync_may_have_gone_on_alone() -> None:
    both = ("a:5672", "c:5672")
    assert "cannot be asked" in refusal(verdict(broker("b"), min_in_sync=2, unreachable=both))
    assert isinstance(verdict(broker("b"), broker("c"), min_in_sync=2), Accept)
    record = ClusterRecord("uuid", 3, "a", 7, ("a", "b", "c"))
    decided = verdict(broker("b"), min_in_sync=2, unreachable=both, record=record, has_coordinator=True)
    assert isinstance(decided, Accept)


def test_who_was_told_of_a_newer_generation_waits_for_all_who_may_have_been_in_it() -> None:
    """`b` led it with `c`, lost its disk, and was filled by the stale primary `a`: it does not look forgetful."""
    own, filled = broker("a", members=("a",)), broker("b", members=("a",))
    given: dict[str, Any] = {"min_in_sync": 2, "own_primary": "a", "told": ToldGeneration(4, "c")}
    text = refusal(verdict(own, filled, unreachable=("c:5672",), **given))
    assert "c said before that its log knows generation 4" in text
    assert isinstance(verdict(own, filled, broker("c", members=("a",)), unreachable=(), **given), Accept)


@pytest.mark.parametrize("knows_it", ["b", "c"])
def test_a_newer_generation_that_somebody_here_knows_is_none_to_wait_for(knows_it: str) -> None:
    own, other = (broker(name, generation=4 if name == knows_it else 3, members=("b", "c")) for name in "bc")
    assert isinstance(verdict(own, other, min_in_sync=2, told=ToldGeneration(4, "a")), Accept)


@pytest.mark.parametrize("forgetful", [fresh("c"), broker("c", complete=False)], ids=["empty", "halfway"])
def test_one_that_remembers_nothing_may_have_gone_on_with_one_that_cannot_be_asked(forgetful: Answer) -> None:
    assert "a:5672, c cannot be asked" in refusal(verdict(broker("b"), forgetful, min_in_sync=2))
    assert isinstance(verdict(broker("b"), broker("c"), min_in_sync=2), Accept)


def test_where_everybody_is_here_nothing_is_left_of_what_some_have_forgotten() -> None:
    assert isinstance(verdict(broker("b"), fresh("a"), fresh("c"), min_in_sync=2, unreachable=()), Accept)


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


def test_force_begins_nothing_anew_beside_a_broker_that_holds_data() -> None:
    """The others would belong to another cluster then, and stop for good."""
    assert "no data, and c does: use --force there" in refusal(verdict(fresh("b"), broker("c"), force=True))


# --- after a crash of everybody: each broker has what its store kept


def restarted(name: str, **changed: Any) -> Answer:
    """A broker that has its log from a store that nobody closed."""
    return broker(name, store=StoreOrigin.DIRTY, **changed)


def test_the_furthest_store_leads_once_the_whole_in_sync_set_is_back() -> None:
    found = verdict(restarted("b", lsn=120), restarted("a", lsn=119), restarted("c", lsn=118), unreachable=())
    assert isinstance(found, Accept)


def test_a_store_that_is_behind_names_the_one_that_is_not() -> None:
    text = refusal(verdict(restarted("c", lsn=118), restarted("a"), restarted("b", lsn=120), unreachable=()))
    assert "the store of b goes further" in text


def test_of_equal_stores_any_may_lead() -> None:
    for own, others in (("a", "bc"), ("b", "ac"), ("c", "ab")):
        assert isinstance(verdict(restarted(own), *map(restarted, others), unreachable=()), Accept)


def test_a_store_waits_for_those_who_may_hold_more() -> None:
    text = refusal(verdict(restarted("b"), restarted("c"), unreachable=("a:5672",)))
    assert "a of the last in-sync set cannot be asked" in text


def test_who_had_left_the_in_sync_set_need_not_be_waited_for() -> None:
    without_a = {"epoch": 8, "members": ("b", "c")}
    assert isinstance(verdict(restarted("b", **without_a), restarted("c", **without_a)), Accept)


def test_a_store_that_was_left_behind_never_leads() -> None:
    text = refusal(verdict(restarted("a"), restarted("b", epoch=8, members=("b", "c")), unreachable=()))
    assert "newer in-sync set without this broker" in text


def test_whoever_did_not_crash_leads_instead_of_a_store() -> None:
    assert "unlike c" in refusal(verdict(restarted("b"), broker("c"), restarted("a"), unreachable=()))
    assert isinstance(verdict(broker("c"), restarted("b"), restarted("a"), unreachable=()), Accept)


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


def test_one_that_is_being_brought_level_is_no_witness_of_what_was_confirmed() -> None:
    found = verdict(restarted("b"), restarted("a"), broker("c", complete=False), unreachable=())
    assert isinstance(found, Accept)


def test_the_coordinators_record_counts_after_a_crash_too() -> None:
    record = ClusterRecord("uuid", 3, "a", 8, ("a", "b"))
    given: dict[str, Any] = {"record": record, "has_coordinator": True, "unreachable": ()}
    assert isinstance(verdict(restarted("b"), restarted("a", epoch=8, members=("a", "b")), **given), Accept)
    assert "a of the last in-sync set" in refusal(verdict(restarted("b"), restarted("c"), **given))


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


def test_an_operator_may_want_to_be_asked() -> None:
    answers = restarted("a"), restarted("c")
    assert "ha.auto-recover is off" in refusal(verdict(restarted("b"), *answers, unreachable=(), auto_recover=False))
    assert isinstance(verdict(restarted("b"), *answers, unreachable=(), auto_recover=False, is_chosen=True), Accept)


def test_a_broker_whose_store_has_failed_does_not_lead() -> None:
    assert "has failed" in refusal(verdict(broker("b", store=StoreOrigin.FAILED), broker("c")))
    assert isinstance(verdict(broker("b", store=StoreOrigin.FAILED), broker("c"), force=True), Accept)


def test_a_chosen_store_need_not_wait() -> None:
    assert isinstance(verdict(restarted("b"), is_chosen=True), Accept)


def test_stores_that_were_closed_together_need_not_be_compared() -> None:
    assert isinstance(verdict(broker("b", store=StoreOrigin.CLEAN)), Accept)


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


def test_the_first_primary_of_a_cluster_that_died_before_it_wrote_anything_may_try_again() -> None:
    """The coordinator names it; its store says that it wanted that generation, and holds nothing of it."""
    given: dict[str, Any] = {
        "record": ClusterRecord("uuid", 1, "b", 1, ("b",), claimed=True),
        "has_coordinator": True,
        "unreachable": (),
    }
    claimant = fresh("b")._replace(promised=1, claims=(1,))
    assert isinstance(verdict(claimant, fresh("a"), fresh("c"), **given), Accept)
    assert "generation 1 was confirmed by b" in refusal(verdict(fresh("b"), fresh("a"), fresh("c"), **given))
    assert "generation 1 was confirmed by b" in refusal(verdict(fresh("a"), claimant, **given))
    begun = {**given, "record": ClusterRecord("uuid", 1, "b", 1, ("b",))}
    assert "generation 1 was confirmed by b" in refusal(verdict(claimant, fresh("a"), **begun))
    given["record"] = ClusterRecord("uuid", 1, "b", 2, ("a", "b"), claimed=True)
    assert "generation 1 was confirmed by a, b" in refusal(verdict(claimant, fresh("a"), **given))


@pytest.mark.parametrize("store", [StoreOrigin.MEMORY, StoreOrigin.DIRTY])
@pytest.mark.parametrize("changed", [{}, {"min_in_sync": 2}, {"record": RECORDED, "has_coordinator": True}])
def test_a_store_that_was_closed_in_order_gives_way_to_whoever_in_sync_went_on_since(
    store: StoreOrigin, changed: dict[str, Any]
) -> None:
    """It was put back from a copy of the time when the whole cluster was shut down."""
    copy = broker("b", store=StoreOrigin.CLEAN, generation=2, epoch=4, lsn=90)
    text = refusal(verdict(copy, broker("a", store=store), unreachable=("c:5672",), **changed))
    assert "put back since: a goes further, to LSN 100 (here 90)" in text


def test_but_not_to_one_that_is_not_in_sync_by_its_own_log() -> None:
    own = broker("b", store=StoreOrigin.CLEAN)
    assert isinstance(verdict(own, broker("c", lsn=200, members=("a", "b")), unreachable=("a:5672",)), Accept)


def test_a_member_that_came_back_empty_cannot_say_whether_it_had_gone_on_alone() -> None:
    text = refusal(verdict(restarted("b"), restarted("a"), fresh("c"), unreachable=()))
    assert "c of the last in-sync set cannot be asked" in text
    given: dict[str, Any] = {"record": ClusterRecord("uuid", 3, "a", 7, ("a", "b", "c")), "has_coordinator": True}
    assert isinstance(verdict(restarted("b"), restarted("a"), fresh("c"), unreachable=(), **given), Accept)


# --- a record that was lost, or is older than what the logs know


EMPTY = ClusterRecord()


def beside(record: ClusterRecord, own: Answer, *answers: Answer, **changed: Any) -> Verdict:
    """With that record, and everybody there."""
    given: dict[str, Any] = {"record": record, "has_coordinator": True, "unreachable": ()}
    return verdict(own, *answers, **{**given, **changed})


@pytest.mark.parametrize("record", [EMPTY, RECORDED._replace(generation=2)])
def test_a_record_that_does_not_know_a_generation_is_refused_whoever_knows_that_one(record: ClusterRecord) -> None:
    assert "but the log of b knows generation 3" in refusal(beside(record, broker("b"), broker("c")))
    behind = broker("c", generation=2)
    assert "but the log of b knows generation 3" in refusal(beside(record, behind, broker("b", epoch=1)))


def test_a_record_from_before_a_departure_is_refused_by_who_knows_that_it_counted() -> None:
    without_c = CommittedSet(3, 9, ("a", "b"))
    own = broker("b", epoch=9, members=("a", "b"))
    assert "knows epoch 9, without some of those" in refusal(beside(RECORDED, own, own_committed=without_c))
    assert isinstance(beside(RECORDED._replace(epoch=9, members=("a", "b")), own, own_committed=without_c), Accept)


@pytest.mark.parametrize(
    "committed",
    [
        pytest.param(None, id="a set that may not be committed was perhaps never recorded"),
        pytest.param(CommittedSet(3, 9, ("a", "b", "c", "d")), id="one that grew is committed before it is recorded"),
        pytest.param(CommittedSet(2, 9, ("a", "b")), id="epochs of two generations are not compared"),
    ],
)
def test_a_log_that_is_newer_than_the_record_proves_nothing_by_itself(committed: CommittedSet | None) -> None:
    assert isinstance(beside(RECORDED, broker("b", epoch=9), broker("c"), own_committed=committed), Accept)


def test_another_primary_of_the_same_generation_shows_that_the_record_is_not_the_one_there_was() -> None:
    assert "a leads that generation, not c" in refusal(beside(RECORDED._replace(primary="c"), broker("b")))


def test_force_begins_a_new_record_and_gives_up_no_more_than_it_must() -> None:
    everybody = beside(EMPTY, broker("b"), broker("c"), broker("a"), force=True)
    alone = beside(EMPTY, broker("b"), broker("c"), force=True, unreachable=("a:5672",))
    assert isinstance(everybody, Accept)
    assert isinstance(alone, Accept)
    assert (everybody.members, everybody.is_forced) == (("b", "c"), False)
    assert (alone.members, alone.is_forced) == (("b",), True)


# --- stores that are older than the record


LATER = ClusterRecord("uuid", 5, "a", 7, ("a", "b", "c"))
CLAIMED = LATER._replace(claimed=True)


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


def test_one_store_that_knows_the_record_is_enough() -> None:
    """It was in sync, so it holds all that was confirmed."""
    newest = restarted("a", generation=5)
    assert isinstance(beside(LATER, newest, restarted("b"), restarted("c"), own_primary="a"), Accept)
    assert "the store of a goes further" in refusal(beside(LATER, restarted("b"), newest, restarted("c")))


def test_one_that_is_halfway_through_a_catch_up_does_not_vouch_for_the_others() -> None:
    halfway = restarted("c", generation=5, complete=False)
    assert "no store here" in refusal(beside(LATER, restarted("b"), restarted("a"), halfway))


def test_a_candidate_that_died_before_its_first_event_says_so_itself() -> None:
    """Its claim was on its disk before the coordinator was asked."""
    died = restarted("a", promised=5, claims=(5,))
    assert isinstance(beside(CLAIMED, restarted("b"), died, restarted("c")), Accept)
    assert isinstance(beside(CLAIMED, died, restarted("b"), restarted("c")), Accept)
    assert "no store here" in refusal(
        beside(CLAIMED, restarted("b", promised=5, claims=(5,)), restarted("a"), restarted("c"))
    )


def test_a_newer_claim_of_the_recorded_primary_tells_nothing_of_the_recorded_one() -> None:
    """Its store was put back from before, and an operator's force has made it want to lead again (seed 2401269)."""
    by_force = restarted("a", promised=6, claims=(6,))
    assert "no store here" in refusal(beside(CLAIMED, restarted("b"), by_force, restarted("c")))
    assert "no store here" in refusal(beside(CLAIMED, by_force, restarted("b"), restarted("c")))
    assert "began anew" in refusal(beside(CLAIMED, refilled("b"), by_force))
    # Nor does what it promised to somebody else.
    promised = restarted("a", promised=5, promised_to="b")
    assert "no store here" in refusal(beside(CLAIMED, restarted("b"), promised, restarted("c")))


def test_but_it_does_where_the_recorded_claim_is_on_its_disk_beside_those_that_were_never_recorded() -> None:
    again = restarted("a", promised=7, claims=(5, 6, 7))
    assert isinstance(beside(CLAIMED, restarted("b"), again, restarted("c")), Accept)
    assert isinstance(beside(CLAIMED, again, restarted("b"), restarted("c")), Accept)
    assert isinstance(beside(CLAIMED, refilled("b"), again), Accept)


def test_but_not_where_the_record_says_that_its_generation_has_begun() -> None:
    """All stores are put back from copies of the moment after its claim, and nobody came or went since."""
    died = restarted("a", promised=5, claims=(5,))
    assert "no store here" in refusal(beside(LATER, restarted("b"), died, restarted("c")))
    assert "no store here" in refusal(beside(LATER, died, restarted("b"), restarted("c")))


def test_a_record_that_says_claimed_again_after_it_had_begun_went_back() -> None:
    own = broker("a", generation=5)
    again = beside(CLAIMED, own, broker("b", generation=5), own_primary="a", own_record=LATER)
    assert "had generation 5, epoch 7, which had begun, recorded" in refusal(again)
    assert isinstance(beside(CLAIMED, own, broker("b", generation=5), own_primary="a", own_record=CLAIMED), Accept)
    assert isinstance(beside(LATER, own, broker("b", generation=5), own_primary="a", own_record=CLAIMED), Accept)


def test_but_not_once_its_generation_went_on_which_the_record_s_epoch_tells() -> None:
    """All stores are put back from copies of the moment between its claim and its first event."""
    first, second = CLAIMED._replace(generation=4, epoch=8), CLAIMED._replace(generation=4, epoch=9)
    copies = restarted("a", promised=4, claims=(4,)), restarted("b"), restarted("c")
    assert isinstance(beside(first, *copies), Accept)
    assert "no store here" in refusal(beside(second, *copies))
    assert "no store here" in refusal(beside(second, *reversed(copies)))


def test_two_candidates_in_a_row_that_died_before_their_first_events_stop_nobody() -> None:
    first, second = CLAIMED._replace(epoch=9), CLAIMED._replace(epoch=10)
    stores = restarted("a", promised=5, claims=(5,)), restarted("b", promised=4, claims=(4,)), restarted("c")
    assert isinstance(beside(first, *stores), Accept)
    assert "no store here" in refusal(beside(second, *stores))


def test_a_claim_adds_to_the_epoch_what_it_adds_to_the_generation() -> None:
    """Generation 4 was promised to somebody who was never recorded: that it is left out must not hide a change."""
    accept = beside(RECORDED, broker("b"), broker("c", promised=4))
    assert isinstance(accept, Accept)
    assert (accept.generation, accept.epoch) == (5, RECORDED.epoch + 2)
    claimed = RECORDED._replace(generation=accept.generation, primary="b", epoch=accept.epoch, claimed=True)
    copies = restarted("b", promised=5, claims=(5,)), restarted("a"), restarted("c")
    assert isinstance(beside(claimed, *copies), Accept)
    assert "no store here" in refusal(beside(claimed._replace(epoch=claimed.epoch + 1), *copies))


def test_who_was_not_restarted_knows_that_nothing_was_confirmed_without_it() -> None:
    assert isinstance(beside(LATER, broker("b"), restarted("a"), restarted("c")), Accept)
    assert isinstance(beside(LATER, broker("b"), unreachable=("a:5672", "c:5672")), Accept)
    assert "unlike b" in refusal(beside(LATER, restarted("c"), broker("b"), restarted("a")))


# --- a broker that began anew, and was level with a primary that the record may not name


def refilled(name: str, **changed: Any) -> Answer:
    return broker(name, store=StoreOrigin.UNVERIFIED, **changed)


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


def test_one_that_followed_the_recorded_generation_since_it_began_anew_may_lead() -> None:
    assert isinstance(beside(LATER, refilled("b", generation=5, epoch=3)), Accept)


def test_nor_does_it_vouch_for_stores_that_are_older_than_the_record() -> None:
    assert "no store here" in refusal(beside(LATER, restarted("b"), refilled("c"), restarted("a")))


def test_it_may_lead_where_the_recorded_primary_says_that_it_never_began() -> None:
    assert isinstance(beside(CLAIMED._replace(epoch=9), refilled("b"), restarted("a", promised=5, claims=(5,))), Accept)


# --- a broker that lacks what somebody knows to be committed


def told(name: str, position: tuple[int, int], **changed: Any) -> Answer:
    return broker(name, committed_generation=position[0], committed_lsn=position[1], **changed)


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


@pytest.mark.parametrize("position", [(3, 100), (2, 500), (0, 0)])
def test_who_has_all_that_others_know_to_be_committed_may_lead(position: tuple[int, int]) -> None:
    assert isinstance(verdict(broker("b"), told("c", position)), Accept)


def test_what_one_said_that_does_not_answer_any_more_counts_as_well() -> None:
    before = ToldCommit(LogPosition(3, 101), "c")
    assert "c was told that LSN 101" in refusal(verdict(broker("b"), told_committed=before, unreachable=("c:5672",)))


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
