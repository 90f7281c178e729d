"""What an operator's force may do, and to whom: never to a broker that is there, or may be."""

from __future__ import annotations

from typing import Any

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import SilentPeer
from qpid_ha_broker.ha.frames import Answer
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import Accept, PromotionEvidence, Refusal, judge
from small_cluster import Node, SmallCluster, three

RECORD = ClusterRecord("uuid", 3, "a", 7, ("a", "b"))


def broker(name: str, **changed: Any) -> Answer:
    members = ("a", "b")
    answer = Answer(1, name, f"{name}-1", "uuid", "connecting", 3, 7, members, members, 100, True, 0, "", True, "", 1)
    return answer._replace(**changed)


def forced(own: Answer, *answers: Answer, **changed: Any) -> Accept | Refusal:
    given: dict[str, Any] = {"unreachable": ("a:5672",), "record": RECORD, "has_coordinator": True, "min_in_sync": 1}
    found = judge(PromotionEvidence(own=own, own_primary="a", answers=answers, force=True, **{**given, **changed}))
    assert isinstance(found, Accept | Refusal)
    return found


EMPTY = broker("c", cluster="", generation=0, epoch=0, members=(), lsn=0)
WHO_IS_THERE = (
    SilentPeer("a:5672", "amqp:unauthorized-access: Authentication failed"),
    SilentPeer("a:5672", "it took the connection, and gave no answer"),
)


@pytest.mark.parametrize("own", [EMPTY, broker("b")])
@pytest.mark.parametrize("there", WHO_IS_THERE)
def test_force_does_not_go_against_a_broker_that_is_there_or_may_be(own: Answer, there: SilentPeer) -> None:
    found = forced(own, silent=(there,))
    assert isinstance(found, Refusal)
    assert f"a:5672: {there.why}" in found.text
    assert "--force" not in found.text
    assert isinstance(forced(own), Accept), "nobody listens there"


def test_nor_is_it_advised_against_one() -> None:
    evidence = PromotionEvidence(
        own=EMPTY, own_primary="", answers=(), unreachable=("a:5672",), record=RECORD, has_coordinator=True,
        min_in_sync=1, silent=WHO_IS_THERE[:1],
    )  # fmt: skip
    found = judge(evidence)
    assert isinstance(found, Refusal)
    assert "--force" not in found.text
    assert "Authentication failed" in found.text


def test_nor_against_one_that_answers_and_holds_what_was_committed_without_this_broker() -> None:
    further = broker("b", lsn=120, committed_generation=3, committed_lsn=110)
    found = forced(broker("c"), further)
    assert isinstance(found, Refusal)
    assert "b is there, and holds what was committed up to LSN 110 of generation 3" in found.text
    assert isinstance(forced(broker("c"), further._replace(complete=False)), Accept), "it could not lead either"
    assert isinstance(forced(broker("c"), further._replace(committed_lsn=100)), Accept), "nobody was told of more"


def with_a_message() -> SmallCluster:
    """`a` leads and serves, with `b`."""
    cluster = three(has_coordinator=True)
    cluster["a"].declare("q")
    cluster["a"].publish("q", "confirmed")
    cluster.settle()
    return cluster


def test_an_empty_broker_whose_login_is_refused_cannot_be_forced_to_lead_beside_a_primary_that_serves() -> None:
    cluster = with_a_message()
    cluster.kill("c")
    c = cluster.start("c")
    for name in "ab":
        cluster[name].not_let_in.add("c")
        c.not_let_in.add(name)
    cluster.settle()
    refused = cluster.promote("c", force=True)
    assert not refused.done
    cluster.wait(15)
    assert cluster["a"].is_in(State.PRIMARY)
    assert cluster["b"].is_in(State.READY)
    assert cluster["b"].bodies("q") == ["confirmed"]


@pytest.mark.parametrize("has_coordinator", [True, False])
def test_nobody_who_holds_messages_follows_an_empty_broker_that_was_forced_to_lead(has_coordinator: bool) -> None:
    """Its machine was cut off, and whoever forced it took the others for lost."""
    cluster = three(has_coordinator=has_coordinator)
    cluster["a"].declare("q")
    cluster["a"].publish("q", "confirmed")
    cluster.settle()
    cluster.kill("c")
    cluster.start("c")
    cluster.cut("c", "a", "b")
    cluster.wait(5)
    assert cluster.promote("c", force=True).done
    cluster.heal()
    cluster.wait(30)
    assert cluster["c"].member.status.cluster != cluster["a"].member.status.cluster
    assert cluster["a"].bodies("q") == cluster["b"].bodies("q") == ["confirmed"]
    assert cluster["a"].is_in(State.PRIMARY), cluster["a"].notices[-3:]
    for name in "ac":
        assert "leads another cluster" in cluster[name].member.status.problem


class TwoCoordinators(SmallCluster):
    """`c` has another one than all others."""

    other: ClusterRecord | None = ClusterRecord()

    def write_record(self, node: Node, number: int, expected: ClusterRecord, wanted: ClusterRecord) -> None:
        if node.name != "c":
            super().write_record(node, number, expected, wanted)
            return
        self.record, self.other = self.other, self.record
        super().write_record(node, number, expected, wanted)
        self.record, self.other = self.other, self.record

    def read_record_of_c(self, number: int) -> None:
        self["c"].feed(fx.RecordRead(number, self.other))


def test_two_primaries_of_two_coordinators_hear_of_each_other_although_neither_has_anything_to_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = TwoCoordinators("b", "c", has_coordinator=True)
    monkeypatch.setattr(cluster["c"], "read_record", cluster.read_record_of_c)
    for number, name in enumerate("bc", 1):
        cluster[name].feed(fx.PromoteAsked(number))
    cluster.run()
    cluster.cut("b", "c")
    assert [cluster[name].state for name in "bc"] == [State.PRIMARY, State.PRIMARY]
    cluster.heal()
    cluster.wait(12)
    for name, other in ("bc", "cb"):
        assert f"{other} (cluster " in cluster[name].member.status.problem
        assert "is ha.coordinator the same on all brokers?" in cluster[name].member.status.problem
    cluster.kill("c")
    cluster.nodes["c"] = SmallCluster.start(cluster, "c")
    cluster.wait(30)
    assert not cluster["b"].member.status.problem
