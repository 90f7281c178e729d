"""Anonymous relays at a broker that relays: each message goes to the broker that leads its set, and none is lost."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import queued_bodies
from paired_links import condition
from paired_proxy import PairedProxy
from paired_transactions import TRANSACTIONAL, PairedCoordinator, publish_message
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.links import anonymous_relay
from qpid_ha_broker.amqp.links.anonymous_relay import SetPublisher
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.sections import PRODUCER, SEQUENCE
from several_sets import SeveralSets

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED


class Sets(PairedProxy):
    """The proxy leads `blue`, the primary the rest: `default` with the queue `plain`, and `red`."""

    def __init__(self, settings: ContainerSettings | None = None) -> None:
        self.here = SeveralSets()
        self.there = SeveralSets(settings)
        super().__init__(primary=self.there, proxy=self.here)
        self.here.lead_elsewhere("red")
        self.one = self.client()
        self.link = self.one.sender(None)

    def send(self, *messages: tuple[str, str], settled: bool = False) -> list[Any]:
        """Of each address and body."""
        deliveries = []
        for address, text in messages:
            deliveries.append(self.one.send(self.link, proton.Message(text, address=address)))
            if settled:
                deliveries[-1].settle()
        self.settle_down()
        return deliveries

    def publish(self, transaction_id: bytes, *addresses: str) -> list[Any]:
        """The same in a transaction; each says where it goes."""
        messages = [proton.Message(f"to {address}", address=address) for address in addresses]
        deliveries = [publish_message(self.one, self.link, transaction_id, message) for message in messages]
        self.settle_down()
        return deliveries

    def publishers(self) -> list[str]:
        """The sets to which there is a far link."""
        return [link.set_name for link in self.links if isinstance(link, SetPublisher)]


def red(sets: Sets) -> list[str]:
    return queued_bodies(sets.there.set("red").resources.catalog.queues["red"])


@pytest.fixture
def sets() -> Sets:
    return Sets()


def states(deliveries: list[Any]) -> list[Any]:
    return [delivery.remote_state for delivery in deliveries]


def test_each_message_goes_to_who_leads_the_set_of_its_address(sets: Sets) -> None:
    deliveries = sets.send(("red", "1"), ("blue", "2"), ("plain", "3"), ("red", "4"))
    assert states(deliveries) == [ACCEPTED] * 4
    assert red(sets) == ["1", "4"]
    assert queued_bodies(sets.here.set("blue").resources.catalog.queues["blue"]) == ["2"]
    assert queued_bodies(sets.there.queue("plain")) == ["3"]
    assert sets.publishers() == ["red", "default"]
    assert sets.here.container.relayed.bytes == 0


def test_an_exchange_is_routed_by_who_leads_default(sets: Sets) -> None:
    default = sets.there.container.default
    configuration = default.configuration
    configuration.bind("amq.direct", "plain", "key", {})
    (delivery,) = sets.send(("amq.direct/key", "a"))
    assert delivery.remote_state == ACCEPTED
    assert queued_bodies(sets.there.queue("plain")) == ["a"]


def test_nothing_is_accepted_before_its_own_set_has_committed_it(sets: Sets) -> None:
    log = sets.there.set("red").resources.replicated.log
    log.add_witness("backup")
    one, other = sets.send(("red", "a"), ("plain", "b"))
    assert (one.settled, other.remote_state) == (False, ACCEPTED)
    log.acknowledge("backup", log.last_lsn)
    sets.there.set("red").touch()
    sets.settle_down()
    assert one.remote_state == ACCEPTED


@pytest.mark.parametrize("deliver", [False, True])
def test_what_is_not_answered_is_sent_again_and_is_there_once_and_in_order(sets: Sets, deliver: bool) -> None:
    log = sets.there.set("red").resources.replicated.log
    log.add_witness("backup")
    first = sets.send(("red", "a"), ("plain", "b"))
    late = [sets.one.send(sets.link, proton.Message(text, address="red")) for text in "cd"]
    sets.one.exchange()
    sets.cut(deliver=deliver)
    paused = sets.send(("red", "e"), ("blue", "f"))
    assert [delivery.settled for delivery in (*first, *late, *paused)] == [False, True, False, False, False, True]
    sets.connect_upstream()
    log.acknowledge("backup", log.last_lsn)
    sets.there.set("red").touch()
    sets.settle_down()
    assert states([*first, *late, *paused]) == [ACCEPTED] * 6
    assert red(sets) == list("acde")


@pytest.mark.parametrize("numbering", [{}, {PRODUCER: "its own", SEQUENCE: 7}])
def test_what_was_taken_is_there_once_though_the_queue_of_one_before_it_was_deleted(
    sets: Sets, numbering: dict[str, Any]
) -> None:
    default, container = sets.there.container.default, sets.there.container
    container.nodes.settings = type(container.nodes.settings)(auto_create=False)
    default.configuration.declare_queue("going", {})
    log = default.resources.replicated.log
    log.add_witness("backup")
    annotations = {proton.symbol(name): value for name, value in numbering.items()}
    first = sets.one.send(sets.link, proton.Message("a", address="going", annotations=annotations or None))
    before = [first, *sets.send(("plain", "b"))]
    sets.cut()
    default.configuration.delete_queue("going")
    sets.connect_upstream()
    log.remove_witness("backup")
    default.touch()
    sets.settle_down()
    after = sets.send(("going", "c"), ("plain", "d"))
    assert queued_bodies(sets.there.queue("plain")) == ["b", "d"]
    assert states([*before, *after]) == [ACCEPTED, ACCEPTED, REJECTED, ACCEPTED]


def test_what_a_deleted_queue_did_not_take_is_refused_when_it_is_sent_again(sets: Sets) -> None:
    default, container = sets.there.container.default, sets.there.container
    container.nodes.settings = type(container.nodes.settings)(auto_create=False)
    default.configuration.declare_queue("going", {})
    sets.send(("plain", "a"))
    sets.cut()
    default.configuration.delete_queue("going")
    deliveries = sets.send(("going", "b"), ("plain", "c"))
    sets.connect_upstream()
    assert states(deliveries) == [REJECTED, ACCEPTED]
    assert queued_bodies(sets.there.queue("plain")) == ["a", "c"]


def test_refusals_are_those_of_the_primary_and_of_one_message(sets: Sets) -> None:
    sets.there.set("red").configuration.declare_queue("small", {"qpid.max_count": 1, "qpid.policy_type": "reject"})
    sets.there.directory.queues["small"] = sets.here.directory.queues["small"] = "red"
    settings = type(sets.there.container.nodes.settings)(auto_create=False)
    sets.there.container.nodes.settings = settings
    deliveries = sets.send(
        ("red", "1"), ("small", "2"), ("small", "3"), ("red", "4"), ("nowhere", "5"), ("plain", "6"), ("", "7")
    )
    assert states(deliveries) == [ACCEPTED, ACCEPTED, REJECTED, ACCEPTED, REJECTED, ACCEPTED, REJECTED]
    names = [each.remote.condition.name for each in deliveries if each.remote_state == REJECTED]
    assert names == ["amqp:resource-limit-exceeded", "amqp:not-found", "amqp:not-found"]
    assert red(sets) == ["1", "4"]


def test_what_the_client_has_settled_takes_of_the_credit_until_the_primary_has_it(sets: Sets) -> None:
    limit = sets.here.container.settings.publisher_credit
    log = sets.there.set("red").resources.replicated.log
    sets.send(("red", "first"))  # now the far link is there
    log.add_witness("backup")
    before = sets.link.credit
    sets.send(*[("red", "x")] * (before - 1), settled=True)
    assert (sets.link.credit, len(red(sets))) == (1, before)
    log.acknowledge("backup", log.last_lsn)
    sets.there.set("red").touch()
    sets.settle_down()
    assert sets.link.credit == limit


def test_the_credit_is_a_publishers_and_no_more_is_kept_here(sets: Sets) -> None:
    limit = sets.here.container.settings.publisher_credit
    assert sets.link.credit == limit
    sets.cut()
    for settled in (False, True):
        sets.send(*[("red", "x")] * (limit // 2), settled=settled)
    assert sets.link.credit == 0
    sets.connect_upstream()
    assert (sets.link.credit, len(red(sets))) == (limit, limit)
    assert sets.here.container.relayed.bytes == 0


def test_who_sends_more_than_it_may_is_ended(sets: Sets) -> None:
    sets.cut()
    limit = sets.here.container.settings.publisher_credit
    for _ in range(limit):
        sets.one.send(sets.link, proton.Message("x", address="red"))
    sets.settle_down()
    anonymous: Any = next(iter(sets.one.peer.links))
    assert len(anonymous._publishers["red"]._kept) == limit
    anonymous.link.flow(-1)  # Proton's client sends nothing that it has no credit for
    anonymous.transfer(None, proton.Message("x", address="red").encode(), False, 0)
    sets.settle_down()
    assert condition(sets.link) == "amqp:link:transfer-limit-exceeded"
    assert sets.here.container.relayed.bytes == 0


def test_a_full_primary_stops_the_client(sets: Sets) -> None:
    container = sets.there.container
    container.settings = type(container.settings)("primary", "0", memory_limit_bytes=1)
    sets.send(("red", "first"))
    limit = sets.here.container.settings.publisher_credit
    for _ in range(4):
        count = sets.link.credit
        if count == 0:
            break
        sets.send(*[("red", "x")] * count)
    assert sets.link.credit == 0
    kept = next(link for link in sets.links if isinstance(link, SetPublisher))._kept
    assert len(kept) <= limit


def test_a_set_that_moves_is_a_pause_and_those_to_one_address_stay_in_order(sets: Sets) -> None:
    hosted = sets.there.set("red")
    log = hosted.resources.replicated.log
    log.add_witness("backup")
    before = sets.send(("red", "a"))
    hosted.read_only, hosted.resources.replication.read_only = True, "moving"
    hosted.end_links(ServedElsewhere(sets.there.directory, "red"), browsers=False)
    during = sets.send(("red", "b"))
    hosted.read_only, hosted.resources.replication.read_only = False, ""
    log.remove_witness("backup")
    sets.attach_those_left()
    assert states([*before, *during]) == [ACCEPTED] * 2
    assert red(sets) == ["a", "b"]
    here = sets.here.set("red")
    here.read_only, here.resources.replication.read_only = False, ""
    assert states(sets.send(("red", "c"))) == [ACCEPTED]  # as long as the far link is there, in its order
    assert red(sets) == ["a", "b", "c"]


def test_an_address_of_which_has_to_be_asked_holds_up_what_is_behind_it(sets: Sets) -> None:
    wait = sets.here.directory.locating = NodeWait("asked")
    deliveries = sets.send(("new", "1"), ("red", "2"), ("blue", "3"))
    assert not any(each.settled for each in deliveries)
    assert red(sets) == []
    sets.there.declare("red", "new")
    sets.here.directory.queues["new"], sets.here.directory.locating = "red", None
    wait.ready()
    sets.settle_down()
    assert states(deliveries) == [ACCEPTED] * 3
    assert queued_bodies(sets.there.set("red").resources.catalog.queues["new"]) == ["1"]


def test_an_address_of_which_nobody_says_anything_is_refused_and_what_is_behind_it_is_not(sets: Sets) -> None:
    sets.here.directory.locating = NodeWait("asked")
    deliveries = sets.send(("new", "1"), ("red", "2"))
    now_s = 100.0
    sets.here.container.clock = lambda: now_s
    sets.here.container.tick()
    sets.settle_down()
    assert states(deliveries) == [REJECTED, ACCEPTED]
    assert deliveries[0].remote.condition.name == "amqp:resource-locked"


class AskedInTransaction:
    """A client that has published in a transaction to an address of which is asked, and behind it."""

    def __init__(self, sets: Sets) -> None:
        self.sets = sets
        self.wait = sets.here.directory.locating = NodeWait("asked")
        self.coordinator = PairedCoordinator(sets.one)
        self.id = self.coordinator.declare()
        for address, text in (("new", "1"), ("red", "2")):
            delivery = sets.one.send(sets.link, proton.Message(text, address=address))
            delivery.local.data = [self.id]
            delivery.update(TRANSACTIONAL)
        sets.settle_down()

    def is_told(self) -> None:
        self.sets.there.declare("red", "new")
        self.sets.here.directory.queues["new"], self.sets.here.directory.locating = "red", None
        self.wait.ready()
        self.sets.settle_down()


@pytest.mark.parametrize("has_ended", [False, True], ids=["goes on", "the broker has ended the link"])
def test_a_commit_that_overtakes_an_address_of_which_is_asked_does_not_count(sets: Sets, has_ended: bool) -> None:
    asked = AskedInTransaction(sets)
    if has_ended:
        (endpoint,) = [each for each in sets.one.peer.links if each.link.name == sets.link.name]
        endpoint.end(AmqpError("amqp:resource-deleted", "gone"))
    commit = asked.coordinator.discharge(asked.id)
    assert commit.remote_state == REJECTED
    assert commit.remote.condition.name == "amqp:transaction:rollback"
    asked.is_told()
    assert red(sets) == []


def test_a_commit_after_the_answers_counts_though_an_address_was_asked_for(sets: Sets) -> None:
    asked = AskedInTransaction(sets)
    asked.is_told()
    assert asked.coordinator.discharge(asked.id).remote_state == ACCEPTED
    assert queued_bodies(sets.there.set("red").resources.catalog.queues["new"]) == ["1"]
    assert red(sets) == ["2"]


def test_a_rollback_may_overtake_an_address_of_which_is_asked(sets: Sets) -> None:
    asked = AskedInTransaction(sets)
    assert asked.coordinator.discharge(asked.id, fails=True).remote_state == ACCEPTED
    asked.is_told()
    assert red(sets) == []


def test_a_directory_that_knows_less_than_the_primary_is_named(sets: Sets) -> None:
    sets.there.declare("red", "new")
    (refused,) = sets.send(("new", "a"))  # it is taken for one of `default` here
    assert (refused.remote_state, refused.remote.condition.name) == (REJECTED, "amqp:resource-locked")
    assert "new belongs to the resource set red, which proxy does not know yet: try again" in str(
        refused.remote.condition.description
    )
    sets.here.directory.queues["new"] = "red"
    assert states(sets.send(("new", "b"))) == [ACCEPTED]


def test_far_links_that_wait_for_nothing_make_room_for_others(sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anonymous_relay, "FAR_LINKS", 1)
    log = sets.there.set("red").resources.replicated.log
    sets.send(("plain", "a"))
    sets.send(("red", "b"))
    assert sets.publishers() == ["red"]
    log.add_witness("backup")
    sets.send(("red", "c"))
    sets.send(("plain", "d"))
    assert sets.publishers() == ["red", "default"]


def test_a_client_that_goes_leaves_nothing(sets: Sets) -> None:
    sets.send(("red", "a"), ("plain", "b"))
    sets.link.close()
    sets.settle_down()
    assert sets.links == {}
    assert sets.upstream is not None
    assert len(sets.upstream) == 0
    assert len(sets._producers) == 2


def test_a_primary_of_an_older_version_is_named_in_each_refusal(sets: Sets) -> None:
    assert sets.upstream is not None
    sets.upstream.relays_sets = False
    refused, other = sets.send(("red", "a"), ("blue", "b"))
    assert (refused.remote_state, refused.remote.condition.name) == (REJECTED, "amqp:not-implemented")
    assert "upgrade it" in str(refused.remote.condition.description)
    assert other.remote_state == ACCEPTED
    sets.upstream.relays_sets = True
    assert states(sets.send(("red", "c"))) == [ACCEPTED]


@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_is_in_the_set_of_its_first_message(sets: Sets, fails: bool) -> None:
    coordinator = PairedCoordinator(sets.one)
    for address, other in (("red", "blue"), ("blue", "red")):
        work = coordinator.declare()
        assert states(sets.publish(work, address, address)) == [TRANSACTIONAL, TRANSACTIONAL]
        assert coordinator.discharge(work, fails=fails).remote_state == ACCEPTED
        work = coordinator.declare()
        assert states(sets.publish(work, address)) == [TRANSACTIONAL]
        (refused,) = sets.publish(work, other)
        assert (refused.remote_state, refused.remote.condition.name) == (REJECTED, "amqp:not-implemented")
        assert coordinator.discharge(work, fails=fails).remote_state == (ACCEPTED if fails else REJECTED)
    expected = [] if fails else ["to red", "to red"]
    assert red(sets) == expected
    assert len(queued_bodies(sets.here.set("blue").resources.catalog.queues["blue"])) == len(expected)


def test_a_commit_waits_for_messages_that_the_primary_gives_no_credit_for() -> None:
    sets = Sets(ContainerSettings("primary", "0", publisher_credit=2))
    hosted = sets.there.set("red")
    log = hosted.resources.replicated.log
    log.add_witness("backup")
    sets.send(("red", "1"), ("red", "2"))  # all of its credit, until they are committed
    coordinator = PairedCoordinator(sets.one)
    work = coordinator.declare()
    delivery = sets.one.send(sets.link, proton.Message("3", address="red"))
    delivery.local.data = [work]
    delivery.update(TRANSACTIONAL)
    commit = coordinator.discharge(work)
    assert (delivery.settled, commit.settled) == (False, False)
    for _ in range(2):
        log.acknowledge("backup", log.last_lsn)
        hosted.touch()
        sets.settle_down()
    assert (delivery.remote_state, commit.remote_state) == (TRANSACTIONAL, ACCEPTED)
    assert red(sets) == ["1", "2", "3"]


def test_a_transaction_that_was_lost_is_not_sent_again(sets: Sets) -> None:
    coordinator = PairedCoordinator(sets.one)
    work = coordinator.declare()
    assert states(sets.publish(work, "red")) == [TRANSACTIONAL]
    sets.cut()
    sets.connect_upstream()
    assert coordinator.discharge(work).remote.condition.name == "amqp:transaction:rollback"
    assert red(sets) == []
    assert states(sets.send(("red", "b"))) == [ACCEPTED]


def test_what_waits_here_to_be_committed_ends_the_link_when_the_set_is_led_elsewhere(sets: Sets) -> None:
    blue = sets.here.set("blue")
    blue.resources.replicated.log.add_witness("backup")
    sets.send(("blue", "a"))
    sets.here.lead_elsewhere("blue")
    blue.end_links(AmqpError("amqp:link:redirect", "elsewhere"), browsers=False)
    sets.settle_down()
    assert condition(sets.link) == "amqp:link:redirect"


def test_a_link_goes_on_when_default_is_led_elsewhere(sets: Sets) -> None:
    default = sets.here.container.default
    default.read_only = False
    link = sets.one.sender(None)
    default.read_only = True
    default.end_links(AmqpError("amqp:link:redirect", "elsewhere"), browsers=False)
    sets.settle_down()
    assert condition(link) is None


def test_a_link_without_anything_to_be_committed_goes_on_when_a_set_is_led_elsewhere(sets: Sets) -> None:
    blue = sets.here.set("blue")
    sets.send(("blue", "a"))
    sets.here.lead_elsewhere("blue")
    blue.end_links(AmqpError("amqp:link:redirect", "elsewhere"), browsers=False)
    (delivery,) = sets.send(("blue", "b"))
    assert delivery.remote_state == ACCEPTED
    assert queued_bodies(sets.there.set("blue").resources.catalog.queues["blue"]) == ["b"]
