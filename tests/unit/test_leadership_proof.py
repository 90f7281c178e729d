"""Stories about a primary that may have been replaced: who cannot prove that it leads gives consumers nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import proton
import pytest

from member_harness import StoreRequest
from paired_engines import PairedBroker, PairedClient
from paired_links import subscribe
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.process_time import ProcessTime
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.sequence import Holder
from small_cluster import Node, SmallCluster, three

UNPROVEN_S, SILENCE_S = 0.3, 1.5
BACKUPS = "backups"


def test_both_times_are_a_part_of_what_others_need_to_replace_a_primary() -> None:
    settings = MemberSettings("a", "a-1", ("a:5672", "b:5672"), replace_s=4.0)
    assert (settings.unproven_s, settings.silence_s) == (2 * UNPROVEN_S, 2 * SILENCE_S)


def seen_by_browsers(cluster: SmallCluster, name: str) -> list[str]:
    """What somebody sees who begins to look at that broker now, who may write there or not."""
    resources = cluster[name].resources
    queue, browser = resources.catalog.queues["q"], Consumer(browsing=True)
    resources.subscribe(queue, browser, browser)
    browser.credit, browser.window_bytes = 100, 1_000_000
    resources.catalog.wake(queue)
    handouts = resources.hand_out(0, 100)
    resources.unsubscribe(queue, browser, 0)
    return [entry.resident_body().decode().rpartition(";")[2] for handout in handouts for entry in handout.entries]


def test_who_was_replaced_shows_nothing_of_its_own_that_may_be_taken_back() -> None:
    cluster = three(has_coordinator=True)
    cluster["a"].declare("q")
    cluster["a"].publish("q", "committed")
    cluster.settle()
    cluster.cut("a", "b", "c")
    cluster["a"].publish("q", "taken back")
    cluster.run()
    assert cluster.promote("b").done
    cluster["b"].publish("q", "new")
    cluster.wait(10.0)
    assert not cluster["a"].is_in(State.PRIMARY)
    assert cluster["a"].bodies("q") == ["committed", "taken back"]
    assert seen_by_browsers(cluster, "a") == ["committed"]
    cluster.heal()
    cluster.wait(10.0)
    cluster.settle()
    assert seen_by_browsers(cluster, "a") == ["committed", "new"]


def test_who_has_handed_over_shows_all_that_its_successor_says_is_committed() -> None:
    cluster = cluster_with_queue()
    cluster["a"].publish("q", "x")
    cluster["a"].step()
    assert cluster.demote("a").done
    cluster.run()
    assert cluster.promote("b").done
    cluster.settle()
    cluster.wait(2.0)
    assert seen_by_browsers(cluster, "a") == ["x"]


# --- the core


def cluster_with_queue(**settings: object) -> SmallCluster:
    cluster = three(**settings)
    cluster["a"].declare("q")
    cluster.settle()
    return cluster


def proof(cluster: SmallCluster, woke_s: float = 0.0) -> LeadProof:
    return cluster["a"].member.lead_proof(cluster.now_s, woke_s)


def last_lsn(cluster: SmallCluster) -> int:
    return cluster["a"].resources.replicated.log.last_lsn


def publish(cluster: SmallCluster) -> None:
    cluster["a"].publish("q", "x")
    cluster.run()


def test_a_primary_whose_backups_answer_has_proven_that_it_leads_and_writes_nothing_for_that() -> None:
    cluster = cluster_with_queue()
    publish(cluster)
    before = last_lsn(cluster)
    for _ in range(50):
        cluster.wait(0.1)
        assert proof(cluster) is LeadProof.PROVEN
    assert last_lsn(cluster) == before


def test_where_nothing_is_committed_any_more_what_was_committed_before_is_given_for_a_moment_only() -> None:
    cluster = cluster_with_queue()
    cluster.cut("a", "b", "c")
    publish(cluster)
    assert proof(cluster) is LeadProof.PROVEN
    cluster.wait(UNPROVEN_S - 0.1)
    publish(cluster)
    assert proof(cluster) is LeadProof.PROVEN
    cluster.wait(0.2)
    assert proof(cluster) is LeadProof.MISSING


def test_a_primary_in_a_minority_gives_nothing_for_as_long_as_the_split_lasts() -> None:
    cluster = cluster_with_queue(has_coordinator=True, backup_timeout_s=2.0)
    cluster.record_is_reachable = False
    cluster.cut("a", "b", "c")
    cluster.wait(2.0)
    for _ in range(40):
        publish(cluster)
        assert proof(cluster) is LeadProof.MISSING
        cluster.wait(0.2)
    assert cluster["a"].member.status.members == ("a",), "as it would have it; nobody has recorded that"


def test_who_has_dropped_all_others_gives_nothing_before_that_is_recorded() -> None:
    cluster = cluster_with_queue(has_coordinator=True, backup_timeout_s=2.0)
    cluster.record_is_reachable = False
    cluster.cut("a", "b", "c")  # where nothing is published: the departure is the first that is sent
    for _ in range(100):
        cluster.wait(0.1)
        if cluster["a"].member.status.members == ("a",):
            break
    assert proof(cluster) is LeadProof.MISSING, "whoever was dropped may lead"
    cluster.record_is_reachable = True
    cluster.wait(1.0)
    assert proof(cluster) is LeadProof.PROVEN


def taken(cluster: SmallCluster) -> list[str]:
    """What somebody gets who comes to take all."""
    resources = cluster["a"].resources
    resources.replication.lead_proof = proof(cluster)
    return [entry.resident_body().decode().rpartition(";")[2] for entry in cluster["a"].take("q", 100)]


def test_a_primary_that_is_alone_by_the_record_gives_what_is_committed_and_writes_nothing_for_that() -> None:
    cluster = cluster_with_queue()
    cluster.kill("b")
    cluster.kill("c")
    cluster.settle()
    assert cluster["a"].member.status.members == ("a",)
    publish(cluster)
    cluster.wait(10.0)
    before = last_lsn(cluster)
    assert proof(cluster, woke_s=cluster.now_s) is LeadProof.PROVEN
    assert last_lsn(cluster) == before
    assert taken(cluster) == ["x"]


class NodeWithDisk(Node):
    """Its disk has at once what it is given, or when a test says so."""

    is_disk_slow = False

    def give_to_store(self, request: StoreRequest) -> None:
        self.written = request
        if not self.is_disk_slow:
            self.has_synced()

    def has_synced(self) -> None:
        """What was written last."""
        if isinstance(self.written, fx.Persist):
            self.feed(fx.Persisted(self.written.number))
        elif isinstance(self.written, fx.WriteCheckpoint):
            self.feed(fx.CheckpointPersisted(self.written.number))


class ClusterWithDisks(SmallCluster):
    """Each broker has a store."""

    def make_node(self, name: str, settings: MemberSettings) -> NodeWithDisk:
        return NodeWithDisk(self, name, replace(settings, has_store=True))


def test_who_is_alone_gives_nothing_that_it_may_lack_itself_when_it_starts_anew() -> None:
    cluster = ClusterWithDisks("a")
    primary = cluster["a"]
    assert isinstance(primary, NodeWithDisk)
    assert cluster.promote("a").done
    cluster.run()
    primary.declare("q")
    cluster.settle()
    primary.is_disk_slow = True
    publish(cluster)
    assert taken(cluster) == []
    primary.has_synced()
    cluster.run()
    assert taken(cluster) == ["x"]


def test_who_is_alone_gives_nothing_that_waits_for_others_who_may_lead_next_without_it() -> None:
    cluster = cluster_with_queue(has_coordinator=True, min_in_sync=2)
    cluster.cut("a", "b", "c")
    publish(cluster)
    cluster.wait(10.0)
    cluster.settle()
    assert cluster["a"].member.status.members == ("a",)
    assert taken(cluster) == []


def test_a_standalone_broker_gives_what_there_is() -> None:
    cluster = SmallCluster("a", addresses=(), has_store=True)
    cluster.run()
    cluster["a"].declare("q")
    cluster["a"].publish("q", "x")
    assert cluster["a"].committed < last_lsn(cluster)
    assert proof(cluster) is LeadProof.ALONE
    assert taken(cluster) == ["x"]


def test_one_that_was_stopped_gives_nothing_before_all_in_sync_have_acknowledged_something_that_came_later() -> None:
    cluster = cluster_with_queue()
    cluster["a"].publish("q", "x")
    cluster["a"].step()  # it goes to the backups, whose answers come while the primary does not run
    cluster["a"].paused = True
    cluster.run()
    cluster.now_s += 5.0
    cluster["a"].paused = False
    woke_s = cluster.now_s
    assert proof(cluster, woke_s) is LeadProof.MISSING
    while cluster["a"].inbox:
        cluster["a"].step()
    assert cluster["a"].committed >= last_lsn(cluster) - 1, "the message; what is to be acknowledged has not gone"
    assert proof(cluster, woke_s) is LeadProof.MISSING
    cluster.run()
    assert proof(cluster, woke_s) is LeadProof.PROVEN


def test_one_that_was_stopped_and_has_nothing_to_send_writes_an_empty_unit_once() -> None:
    cluster = cluster_with_queue()
    cluster.now_s += 5.0
    woke_s, before = cluster.now_s, last_lsn(cluster)
    cluster.cut("a", "b", "c")
    for _ in range(3):
        assert proof(cluster, woke_s) is LeadProof.MISSING
        cluster.run()
    assert last_lsn(cluster) == before + 1


def test_who_has_heard_of_a_backup_for_too_long_gives_nothing_before_it_has() -> None:
    cluster = cluster_with_queue()
    cluster["c"].paused = True
    cluster.wait(SILENCE_S + 0.2)
    publish(cluster)
    assert proof(cluster) is LeadProof.MISSING
    cluster["c"].paused = False
    cluster.run()
    assert proof(cluster) is LeadProof.PROVEN


def test_where_backups_send_nothing_by_themselves_a_commit_tells_that_they_are_there() -> None:
    cluster = cluster_with_queue(has_heartbeats=False)
    cluster.wait(SILENCE_S + 0.2)
    publish(cluster)
    before = last_lsn(cluster)
    assert proof(cluster) is LeadProof.PROVEN, "by what has just been committed"
    cluster.wait(SILENCE_S + 0.2)
    assert proof(cluster) is LeadProof.MISSING
    cluster.run()
    assert proof(cluster) is LeadProof.PROVEN
    assert last_lsn(cluster) == before + 1


def test_where_commits_take_long_and_go_on_they_prove_that_it_leads() -> None:
    cluster = cluster_with_queue()
    cluster["c"].paused = True
    for _ in range(5):
        publish(cluster)
        cluster.wait(0.1)
    assert proof(cluster) is LeadProof.MISSING
    cluster["c"].step()  # the first of them
    cluster["c"].paused = False
    cluster["c"].step()
    cluster["c"].paused = True
    while cluster["a"].inbox:
        cluster["a"].step()
    assert cluster["a"].committed < last_lsn(cluster)
    assert proof(cluster) is LeadProof.PROVEN


def test_a_process_that_was_not_looked_at_for_a_while_was_stopped() -> None:
    process = ProcessTime(0.3)
    assert process.look(10.0) == 0.0
    assert process.look(10.2) == 0.0
    assert process.look(10.6) == 10.6
    assert process.look(10.7) == 10.6


# --- consumers


class Primary:
    """A broker with a witness, which proves as much as the test says."""

    def __init__(self, *, log_acquisitions: bool = False) -> None:
        self.broker = PairedBroker(log_acquisitions=log_acquisitions)
        self.log: Log = self.broker.container.default.resources.replicated.log
        self.proof = LeadProof.ALONE
        self.broker.container.default.prove_lead = lambda: self.proof
        administration = self.broker.container.administration
        administration.create_queue("q", {})
        administration.create_queue("own", {"qpid.replicate": "none"})
        self.log.add_witness(BACKUPS)
        self.client: PairedClient = self.broker.connect()

    def becomes(self, proof: LeadProof) -> None:
        self.proof = proof
        self.broker.settle_down()

    def commit(self, lsn: int | None = None) -> None:
        self.log.acknowledge(BACKUPS, self.log.last_lsn if lsn is None else lsn)
        self.broker.settle_down()


@pytest.mark.parametrize("filters", [{}, {"f": ("apache.org:selector-filter:string", "n IS NULL")}])
def test_who_takes_gets_nothing_while_it_is_not_proven_and_goes_on_when_it_is(filters: dict[str, Any]) -> None:
    primary = Primary()
    client = primary.client
    consumers = [client.attach(subscribe(client, "q", f"c{number}", filters=filters), 10) for number in range(2)]
    primary.proof = LeadProof.MISSING
    client.publish("q", "1", "2")
    assert [client.bodies(each) for each in consumers] == [[], []]
    primary.commit()
    assert [client.bodies(each) for each in consumers] == [[], []]
    primary.becomes(LeadProof.PROVEN)
    assert sorted(body for each in consumers for body in client.bodies(each)) == ["1", "2"]


def test_who_takes_gets_what_is_committed_where_others_could_lead() -> None:
    primary = Primary()
    client = primary.client
    consumer = client.receiver("q", 10)
    primary.proof = LeadProof.PROVEN
    client.publish("q", "1")
    first_lsn = primary.log.last_lsn
    client.publish("q", "2")
    assert client.bodies(consumer) == []
    primary.commit(first_lsn)
    assert client.bodies(consumer) == ["1"]
    primary.becomes(LeadProof.ALONE)
    client.publish("q", "3")
    assert client.bodies(consumer) == ["2", "3"]


def test_who_only_looks_and_who_takes_what_nobody_else_has_wait_for_no_proof() -> None:
    primary = Primary()
    client = primary.client
    browser = client.attach(subscribe(client, "q", browse=True), 10)
    consumer = client.receiver("own", 10)
    primary.proof = LeadProof.MISSING
    client.publish("q", "1")
    client.publish("own", "2")
    primary.commit()
    assert (client.bodies(browser), client.bodies(consumer)) == (["1"], ["2"])


@pytest.mark.parametrize("proof", [LeadProof.MISSING, LeadProof.PROVEN])
def test_a_drain_is_answered_when_what_is_there_may_be_given(proof: LeadProof) -> None:
    primary = Primary()
    client = primary.client
    client.publish("q", "1")
    primary.proof = proof
    consumer = client.receiver("q")
    consumer.drain(10)
    primary.broker.settle_down()
    assert (client.bodies(consumer), consumer.credit) == ([], 10)
    primary.commit()
    if proof is LeadProof.MISSING:
        assert (client.bodies(consumer), consumer.credit) == ([], 10)
        primary.becomes(LeadProof.PROVEN)
    assert (client.bodies(consumer), consumer.credit) == (["1"], 0)


def test_what_was_handed_out_and_waits_is_taken_from_nobody_who_has_it_when_its_link_has_ended() -> None:
    """As where another broker led meanwhile, and this one does again."""
    primary = Primary(log_acquisitions=True)
    client = primary.client
    consumer = client.receiver("q", 1)
    primary.commit()
    client.publish("q", "1")
    (entry,) = primary.broker.queue("q").messages
    assert not entry.is_free
    assert client.bodies(consumer) == []
    consumer.close()
    primary.broker.settle_down()
    entry.holder = by_now = Holder()
    primary.commit()
    assert entry.holder is by_now


def test_what_a_consumer_accepts_is_settled_when_that_is_committed_and_no_sooner() -> None:
    primary = Primary()
    client = primary.client
    consumer = client.receiver("q", 10, answers_first=True)
    client.publish("q", "1")
    ((delivery, _),) = client.received(consumer)
    primary.proof = LeadProof.MISSING
    delivery.update(proton.Delivery.ACCEPTED)
    primary.broker.settle_down()
    assert not delivery.settled
    primary.commit()
    assert delivery.settled
