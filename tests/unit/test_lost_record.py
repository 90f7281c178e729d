"""A record that was deleted: it is written anew without a person where that can cost nothing, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import NO_COORDINATOR_SEEN, CoordinatorSeen, PromoteAsked
from qpid_ha_broker.ha.frames import Answer, StoreOrigin
from qpid_ha_broker.ha.lost_record import may_be_written_anew
from qpid_ha_broker.ha.record_keeper import controller_of
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import Accept, PromotionEvidence, Refusal, judge
from small_cluster import SmallCluster, three

EMPTY = ClusterRecord()
MEMBERS = ("a", "b", "c")


def broker(name: str, **changed: Any) -> Answer:
    """In sync with all others when the primary was lost, and not restarted since."""
    answer = Answer(1, name, f"{name}-1", "uuid", "connecting", 3, 7, MEMBERS, MEMBERS, 100, True, 0, "", True, "", 1)
    return answer._replace(**changed)


def emptied(name: str, **changed: Any) -> Answer:
    return broker(name, cluster="", generation=0, epoch=0, members=(), newest_members=(), lsn=0, **changed)


def may(own: Answer, *others: Answer, **changed: Any) -> bool:
    given: dict[str, Any] = {
        "record": EMPTY, "unreachable": (), "newest_told": 3, "coordinator": NO_COORDINATOR_SEEN,
    }  # fmt: skip
    return may_be_written_anew(own=own, answers=others, **{**given, **changed})


A, B, C = map(broker, MEMBERS)
KEPT = broker("a", store=StoreOrigin.DIRTY)
"""The primary before, which was killed, and has its store."""
UUID = "1" * 32

NOT_WITHOUT_A_PERSON: dict[str, bool] = {
    "1. the record was put back from a copy": may(B, A, C, record=ClusterRecord("uuid", 2, "a", 4, MEMBERS)),
    "1. it cannot be read": may(B, A, C, record=None),
    "2. one does not answer": may(B, C, unreachable=("a:5672",)),
    "2. one of the in-sync set has left ha.brokers-url": may(B, C),
    "2. one whom only another one knows": may(B, A, C._replace(members=("b", "c", "d"))),
    "2. one of a set that may never have counted": may(B, A, C._replace(newest_members=("b", "d"))),
    "3. one leads": may(B, A._replace(state="primary"), C),
    "4. this broker has its store alone": may(B._replace(store=StoreOrigin.DIRTY), A, C),
    "4. or one that was closed in order": may(B._replace(store=StoreOrigin.CLEAN), A, C),
    "4. or began anew": may(B._replace(store=StoreOrigin.UNVERIFIED), A, C),
    "4. or is half filled": may(B._replace(complete=False), A, C),
    "4. or was not in sync": may(B._replace(members=("a", "c")), A, C),
    "4. or is empty": may(emptied("b"), A, C),
    "5. one knows a newer generation": may(B, A._replace(generation=4), C),
    "5. one said so before": may(B, A, C, newest_told=4),
    "6. one was in sync with others": may(B, A, C._replace(members=("a", "c"))),
    "7. one lost its disk, and may have gone on alone": may(B, emptied("a"), C),
    "7. or is half filled": may(B, A._replace(complete=False), C),
    "7. or began anew, and followed a primary that slept perhaps": may(B, A._replace(store=StoreOrigin.UNVERIFIED), C),
    "7. two, though one would be too few": may(
        B._replace(min_in_sync=2), emptied("a", min_in_sync=2), emptied("c", min_in_sync=2)
    ),
    "7. by its own configuration one would be enough": may(B._replace(min_in_sync=2), emptied("a"), C),
    "8. one goes by another coordinator": may(
        B, A._replace(record_identity="2" * 32), C._replace(record_identity=UUID), coordinator=CoordinatorSeen(UUID, "")
    ),
    "8. one does not say by which": may(B, A, C._replace(record_identity=UUID), coordinator=CoordinatorSeen(UUID, "")),
}


@pytest.mark.parametrize("case", NOT_WITHOUT_A_PERSON)
def test_a_record_is_not_written_anew_without_a_person_where_that_may_cost_something(case: str) -> None:
    assert NOT_WITHOUT_A_PERSON[case] is False


def test_it_is_where_all_are_here_and_nobody_can_have_forgotten_a_newer_set() -> None:
    assert may(B, A, C)
    assert may(B, KEPT, C)
    two = [each._replace(min_in_sync=2) for each in (B, emptied("a"), C)]
    assert may(*two), "one alone could confirm nothing"
    same = [each._replace(record_identity=UUID) for each in (A, C)]
    assert may(B, *same, coordinator=CoordinatorSeen(UUID, "file:/shared"))


def evidence(own: Answer, *answers: Answer, **changed: Any) -> PromotionEvidence:
    given: dict[str, Any] = {"unreachable": (), "record": EMPTY, "has_coordinator": True, "min_in_sync": 1}
    return PromotionEvidence(own=own, own_primary="a", answers=answers, **{**given, **changed})


def test_who_is_promoted_then_is_in_sync_with_all_who_remember_and_says_what_it_did() -> None:
    found = judge(evidence(B, KEPT, C))
    assert isinstance(found, Accept)
    assert (found.generation, found.epoch, found.members, found.is_forced) == (4, 8, ("b", "c"), False)
    assert found.text.endswith(
        "the coordinator's record was deleted, and is written anew: all brokers are here and agree"
    )


def test_whoever_kept_more_in_its_store_is_preferred_as_without_a_coordinator() -> None:
    alone = KEPT._replace(epoch=8, newest_members=("a",), lsn=120)
    found = judge(evidence(B, alone, C))
    assert isinstance(found, Refusal)
    told = C._replace(committed_generation=3, committed_lsn=101)
    assert isinstance(judge(evidence(B, KEPT, told)), Refusal), "somebody was told of a commit that it lacks"


def test_the_record_of_another_set_is_the_business_of_the_controller() -> None:
    assert isinstance(judge(replace(evidence(B, KEPT, C), keeper=controller_of("orders"))), Refusal)


# --- the same with real cores


def without_a_primary(**settings: Any) -> SmallCluster:
    """`a` has confirmed a message, and was killed; then the record was deleted."""
    cluster = three(has_coordinator=True, **settings)
    cluster["a"].declare("q")
    cluster["a"].publish("q", "confirmed")
    cluster.settle()
    cluster.kill("a")
    cluster.record = EMPTY
    cluster.settle()
    return cluster


def test_an_agent_promotes_once_the_last_one_is_back_where_one_alone_confirms_nothing() -> None:
    cluster = without_a_primary(min_in_sync=2)
    assert "`qpid-ha promote --force` on the one that is furthest" in cluster.promote("b", failover=True).text
    cluster.start("a")
    cluster.settle()
    assert "this broker holds no data" in cluster.promote("a", failover=True).text
    assert cluster.promote("b", failover=True).done
    cluster.settle()
    assert [cluster[name].bodies("q") for name in "abc"] == [["confirmed"]] * 3
    assert cluster.record is not None
    assert cluster.record[:3] == (cluster["b"].member.status.cluster, 2, "b")
    assert cluster.record.members == ("a", "b", "c")
    assert cluster["b"].member.history()[-1]["forced"] is False


def test_it_stays_with_a_person_where_the_one_that_came_back_empty_may_have_confirmed_alone() -> None:
    cluster = without_a_primary()
    cluster.start("a")
    cluster.settle()
    for name in "abc":
        assert not cluster.promote(name, failover=True).done
    assert cluster.promote("b", force=True).done


def test_of_two_who_try_at_once_one_writes_it() -> None:
    cluster = three(has_coordinator=True)
    cluster.demote("a")
    cluster.record = EMPTY
    for number, name in enumerate("bc", 9000):
        cluster[name].feed(PromoteAsked(number, failover=True))
    cluster.settle()
    assert [cluster[name].state for name in "abc"].count(State.PRIMARY) == 1
