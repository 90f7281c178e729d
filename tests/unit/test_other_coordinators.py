"""Two coordinators: who may be promoted beside whom, and that of two primaries that hear each other one confirms."""

from __future__ import annotations

from typing import Any

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import NO_COORDINATOR_SEEN, CoordinatorSeen
from qpid_ha_broker.ha.frame_codec import encode
from qpid_ha_broker.ha.frames import WITH_CLOCK, WITH_IDENTITY, Answer, Frame, Question, Topic
from qpid_ha_broker.ha.other_coordinators import least_in_sync, why_not_beside
from qpid_ha_broker.ha.record_keeper import COORDINATOR
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.resources import Resources
from small_cluster import Node, SmallCluster

OURS, THEIRS = CoordinatorSeen("1" * 32, "file:/ours"), CoordinatorSeen("2" * 32, "file:/theirs")
RECORD = ClusterRecord("uuid", 3, "a", 7, ("b", "c"))


def broker(name: str, seen: CoordinatorSeen, **changed: Any) -> Answer:
    members = ("b", "c")
    answer = Answer(1, name, f"{name}-1", "uuid", "connecting", 3, 7, members, members, 100, True, 0, "", True, "", 1)
    return answer._replace(record_identity=seen.identity, record_place=seen.place, **changed)


OWN = broker("b", OURS)


@pytest.mark.parametrize("seen", [NO_COORDINATOR_SEEN, OURS, OURS._replace(place="file:/by-another-name")])
def test_who_names_none_or_the_same_one_is_judged_as_ever(seen: CoordinatorSeen) -> None:
    assert not why_not_beside(OWN, OURS, [broker("c", seen, state="primary")], ClusterRecord(), COORDINATOR)
    assert not why_not_beside(OWN, NO_COORDINATOR_SEEN, [broker("c", seen)], ClusterRecord(), COORDINATOR), (
        "ours was not read yet"
    )


@pytest.mark.parametrize(
    ("other", "record"),
    [
        ({}, ClusterRecord()),
        ({"generation": 0}, RECORD._replace(claimed=True)),
        ({"state": "primary"}, RECORD),
        ({"state": "primary", "generation": 2}, RECORD),
        ({"generation": 4}, RECORD),
        ({"name": "d"}, RECORD),
        ({}, RECORD._replace(generation=4)),
        ({}, RECORD._replace(cluster="another")),
        ({}, None),
    ],
)
def test_nobody_is_promoted_beside_another_coordinator_that_the_cluster_may_have_gone_by(
    other: dict[str, Any], record: ClusterRecord | None
) -> None:
    why = why_not_beside(OWN, OURS, [broker("c", THEIRS)._replace(**other)], record, COORDINATOR)
    assert "file:/ours (11111111)" in why
    assert "file:/theirs (22222222)" in why


@pytest.mark.parametrize("other", [{}, {"name": "d", "generation": 2}, {"name": "d", "generation": 0, "cluster": ""}])
def test_one_wrong_configuration_keeps_nobody_from_following_the_record_that_the_cluster_went_by(
    other: dict[str, Any],
) -> None:
    assert not why_not_beside(OWN, OURS, [broker("c", THEIRS)._replace(**other)], RECORD, COORDINATOR)


def test_of_two_brokers_with_two_records_at_most_one_may_be_promoted() -> None:
    """Two records of one log, each as its own broker may have had it written: the second one by force."""
    own, other = broker("b", OURS), broker("c", THEIRS)
    for ours in range(2, 5):
        for theirs in range(2, 5):
            for own_generation in range(1, ours + 1):
                for other_generation in range(1, theirs + 1):
                    record = ClusterRecord("uuid", ours, "b", 9, ("b", "c"))
                    forced = ClusterRecord("uuid", theirs, "c", 9, ("c",))
                    own = own._replace(generation=own_generation)
                    other = other._replace(generation=other_generation)
                    may = [
                        not why_not_beside(own, OURS, [other], record, COORDINATOR),
                        not why_not_beside(other, THEIRS, [own], forced, COORDINATOR),
                    ]
                    assert may.count(True) < 2, (own, other, record, forced)


@pytest.mark.parametrize(("brokers", "least"), [(2, 2), (3, 2), (4, 3), (5, 3)])
def test_two_halves_have_no_majority(brokers: int, least: int) -> None:
    assert least_in_sync(brokers) == least


# --- the same with real cores


class TwoCoordinators(SmallCluster):
    """Those of `elsewhere` have another coordinator than all others."""

    def __init__(self, *names: str, elsewhere: str, are_told: bool = True) -> None:
        self.elsewhere = elsewhere
        self.are_told = are_told
        self.other_record: ClusterRecord | None = ClusterRecord()
        super().__init__(*names, has_coordinator=True)
        self.run()

    def start(self, name: str) -> Node:
        node = super().start(name)
        if self.are_told:
            node.feed(THEIRS if name in self.elsewhere else OURS)
        return node

    def make_node(self, name: str, settings: Any) -> Node:
        return NodeOfOne(self, name, settings)

    def write_record(self, node: Node, number: int, expected: ClusterRecord, wanted: ClusterRecord) -> None:
        self.swap(node)
        super().write_record(node, number, expected, wanted)
        self.swap(node)

    def swap(self, node: Node) -> None:
        if node.name in self.elsewhere:
            self.record, self.other_record = self.other_record, self.record

    def confirms(self, name: str) -> bool:
        """Whether a message that is published there now is confirmed."""
        node = self[name]
        if not node.is_in(State.PRIMARY) or node.resources.replication.refusal is not None:
            return False
        lsn = node.publish("q", "text")
        self.run()
        return node.committed >= lsn


class NodeOfOne(Node):
    """With the coordinator that it has."""

    def prepare(self, resources: Resources) -> None:
        super().prepare(resources)
        self.sent: list[Frame] = []

    def send_frame(self, link: int, frame: Frame) -> None:
        self.sent.append(frame)
        super().send_frame(link, frame)

    def read_record(self, number: int) -> None:
        assert isinstance(self.cluster, TwoCoordinators)
        self.cluster.swap(self)
        super().read_record(number)
        self.cluster.swap(self)


def test_at_a_first_start_nobody_begins_a_cluster_beside_another_coordinator() -> None:
    cluster = TwoCoordinators("a", "b", "c", elsewhere="c")
    for number, name in enumerate("ac", 1):
        cluster[name].feed(fx.PromoteAsked(number))
    cluster.run()
    assert [cluster[name].state for name in "abc"] == [State.CONNECTING] * 3
    for name in "ac":
        assert "file:/ours (11111111)" in cluster[name].member.status.problem
        assert "file:/theirs (22222222)" in cluster[name].member.status.problem
        assert not cluster.promote(name, force=True).done


def both_lead(*names: str, elsewhere: str, are_told: bool = True) -> TwoCoordinators:
    """The first name, and the first one of `elsewhere`, each of a cluster of its own."""
    cluster = TwoCoordinators(*names, elsewhere=elsewhere, are_told=are_told)
    for one in names:
        cluster.cut(one, *(other for other in names if (one in elsewhere) != (other in elsewhere)))
    for name in (names[0], elsewhere[0]):
        assert cluster.promote(name, force=True).done, cluster[name].notices
    cluster.settle()
    for name in (names[0], elsewhere[0]):
        cluster[name].declare("q")
        cluster.settle()
        assert cluster.confirms(name)
    return cluster


@pytest.mark.parametrize("are_told", [True, False], ids=["of this release", "of the one before"])
def test_of_two_clusters_that_hear_each_other_the_one_of_more_than_half_confirms(are_told: bool) -> None:
    cluster = both_lead("a", "b", "c", elsewhere="c", are_told=are_told)
    cluster.heal()
    cluster.wait(12)
    assert [cluster[name].state for name in "abc"] == [State.PRIMARY, State.READY, State.PRIMARY]
    assert cluster.confirms("a")
    assert not cluster.confirms("c")
    assert "c (cluster " in cluster["a"].member.status.problem
    assert "a (cluster " in cluster["c"].member.status.problem
    assert ("file:/theirs (22222222)" in cluster["a"].member.status.problem) == are_told


@pytest.mark.parametrize("names", ["ac", "abcd"])
def test_two_halves_confirm_nothing_until_a_person_has_ended_one(names: str) -> None:
    cluster = both_lead(*names, elsewhere="cd" if "d" in names else "c")
    cluster.heal()
    cluster.wait(12)
    assert not cluster.confirms("a")
    assert not cluster.confirms("c")
    for name in cluster.elsewhere:
        cluster.kill(name)
    cluster.wait(12)
    assert not cluster.confirms("a"), "it may be cut off, and go on"
    assert cluster.promote("a", force=True).done
    assert cluster.confirms("a"), "an operator says that nobody else leads"


def test_what_waited_is_confirmed_once_the_other_one_follows() -> None:
    cluster = both_lead("a", "c", elsewhere="c")
    cluster.heal()
    cluster.wait(3)
    cluster["a"].declare("later")
    lsn = cluster["a"].resources.replicated.log.last_lsn
    cluster.wait(1)
    assert cluster["a"].committed < lsn
    cluster.kill("c")
    cluster.elsewhere = ""
    cluster.start("c")
    cluster.wait(15)
    assert cluster["c"].is_in(State.READY), cluster["c"].notices
    assert cluster["a"].committed >= lsn
    assert not cluster["a"].member.status.problem
    assert cluster.confirms("a")


def test_who_is_promoted_makes_itself_known_to_a_primary_that_asks_seldom() -> None:
    """With backups in sync it looks every ten seconds only; the other one says at once that it leads."""
    cluster = both_lead("a", "b", "c", elsewhere="c")
    cluster.kill("c")
    cluster.heal()
    cluster.wait(12)
    assert not cluster["a"].member.status.problem
    cluster.other_record = ClusterRecord()
    cluster.are_told = False  # as a broker of the release before
    c = cluster.start("c")
    cluster.cut("c", "a", "b")
    assert cluster.promote("c", force=True).done
    cluster.heal()
    cluster.wait(3)
    assert c.is_in(State.PRIMARY)
    assert "c (cluster " in cluster["a"].member.status.problem


def test_a_backup_with_another_coordinator_is_named_by_its_primary_and_keeps_nobody_from_taking_over() -> None:
    cluster = TwoCoordinators("a", "b", "c", elsewhere="")
    assert cluster.promote("a").done
    cluster.settle()
    cluster["c"].feed(THEIRS)
    cluster.wait(12)
    assert "c by file:/theirs (22222222)" in cluster["a"].member.status.problem
    cluster.elsewhere = "c"
    cluster.kill("a")
    cluster.wait(1)
    refused = cluster.promote("c", failover=True)
    assert not refused.done
    assert cluster.promote("b", failover=True).done
    cluster["c"].feed(OURS)
    cluster.wait(12)
    assert not cluster["b"].member.status.problem


def test_an_older_broker_is_sent_nothing_that_it_did_not_ask_for() -> None:
    cluster = TwoCoordinators("a", "b", elsewhere="")
    node = cluster["a"]
    assert isinstance(node, NodeOfOne)
    for request, is_told in (("", False), (WITH_CLOCK, False), (WITH_IDENTITY, True)):
        question = Question(7, Topic.STATUS, "b", "b-9", "", 0, 0, "b:5672", request=request)
        node.feed(fx.FrameReceived(99, question))
        cluster.run()
        answer = node.sent[-1]
        assert isinstance(answer, Answer)
        assert (answer.record_identity == OURS.identity) == is_told
        assert (b"record_identity" in encode(answer)) == is_told
