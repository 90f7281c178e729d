"""Queues that are filled from, and emptied into, nodes of another broker, whatever that broker says."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import queued_bodies, take_messages
from paired_remote import TARGET, PairedRemote
from qpid_ha_broker.access.rules import permissions_of_arguments
from qpid_ha_broker.amqp.links.bridges import (
    BRIDGES,
    PAUSE_MOST_S,
    WINDOW_MESSAGES,
    Bridge,
    InboundBridge,
    OutboundBridge,
)
from qpid_ha_broker.amqp.links.remote_probe import PATIENCE_S, RemoteProbe
from qpid_ha_broker.amqp.nodes.terminus import NO_CREATE
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.amqp.wire.message_path import MESSAGE_PATH
from qpid_ha_broker.amqp.wire.remote_path import REMOTE_PATH, Step, check_ends_here
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED
RELEASED, MODIFIED = proton.Delivery.RELEASED, proton.Delivery.MODIFIED
OWN_WAY = "here's-uuid\nhere\nq"


@pytest.fixture
def paired() -> PairedRemote:
    return PairedRemote(product="qpid-ha")


def declare(paired: PairedRemote, **arguments: Any) -> None:
    named = {f"qpid.{name}": value for name, value in arguments.items()}
    paired.here.container.default.configuration.declare_queue("q", named)


def inbound(paired: PairedRemote, **arguments: Any) -> Any:
    """A bridge that fills `q`, as the other broker has it."""
    declare(paired, **arguments)
    default = paired.here.container.default
    paired.begin(InboundBridge(default, paired.here.queue("q"), TARGET, paired, paired.here.container))
    return paired.answer()


def outbound(paired: PairedRemote, *texts: str, credit: int = 10, **arguments: Any) -> Any:
    """A bridge that empties `q`, in which there are these messages."""
    declare(paired, **arguments)
    paired.client().publish("q", *[proton.Message(text) for text in texts])
    default = paired.here.container.default
    paired.begin(OutboundBridge(default, paired.here.queue("q"), TARGET, paired, paired.here.container))
    return paired.answer(credit)


def offer(paired: PairedRemote, far: Any, *messages: Any) -> list[Any]:
    """The other broker sends messages."""
    deliveries = []
    for number, message in enumerate(messages):
        delivery = far.delivery(f"{far.name}-{number}-{paired.now_s}-{id(message)}")
        far.stream((message if isinstance(message, proton.Message) else proton.Message(message)).encode())
        far.advance()
        deliveries.append(delivery)
    paired.settle_down()
    return deliveries


def told(paired: PairedRemote, delivery: Any, state: Any) -> None:
    delivery.update(state)
    delivery.settle()
    paired.settle_down()


def texts(found: list[tuple[Any, Any]]) -> list[Any]:
    return [message.body for _, message in found]


def held(paired: PairedRemote) -> list[Any]:
    """What the queue has."""
    return queued_bodies(paired.here.queue("q"))


def ended(paired: PairedRemote) -> bool:
    return not paired.links and not any(isinstance(link, Bridge) for link in paired.here.container.default.links)


# --- filled


def test_what_comes_is_accepted_there_when_it_is_committed_here(paired: PairedRemote) -> None:
    far = inbound(paired)
    log = paired.here.container.default.resources.replicated.log
    log.add_witness("backup")
    deliveries = offer(paired, far, "a", "b")
    assert held(paired) == ["a", "b"]
    assert not any(delivery.settled for delivery in deliveries)
    log.acknowledge("backup", log.last_lsn)
    paired.settle_down()
    assert [delivery.remote_state for delivery in deliveries] == [ACCEPTED] * 2


def test_of_an_exchange_of_ours_a_subscription_is_asked_for_that_waits_and_goes_with_the_queue(
    paired: PairedRemote,
) -> None:
    far = inbound(paired)
    assert far.remote_source.address == TARGET.node
    assert far.remote_source.expiry_policy == proton.Terminus.EXPIRE_NEVER
    assert far.name == "qpid-ha/here's-uuid/q"
    assert far.remote_properties[proton.symbol(REMOTE_PATH)] == OWN_WAY.split("\n")
    (bridge,) = paired.links
    bridge.finish(closed=False)
    paired.settle_down()
    assert not far.state & proton.Endpoint.REMOTE_CLOSED
    assert ended(paired)


def test_others_are_not_asked_to_keep_anything_for_us() -> None:
    paired = PairedRemote(product="other")
    far = inbound(paired)
    assert far.remote_source.expiry_policy != proton.Terminus.EXPIRE_NEVER


def test_where_nothing_outlives_its_link_a_link_has_to_do(paired: PairedRemote) -> None:
    declare(paired)
    default = paired.here.container.default
    paired.begin(InboundBridge(default, paired.here.queue("q"), TARGET, paired, paired.here.container))
    paired.refuse("amqp:not-implemented", "it is a node of yet another broker")
    paired.connect_far()
    assert paired.answer().remote_source.expiry_policy != proton.Terminus.EXPIRE_NEVER


def test_no_more_is_under_way_than_the_window(paired: PairedRemote) -> None:
    far = inbound(paired)
    assert far.credit == WINDOW_MESSAGES
    offer(paired, far, *["x"] * WINDOW_MESSAGES)
    assert WINDOW_MESSAGES // 2 < far.credit <= WINDOW_MESSAGES


def test_while_the_queue_is_full_messages_wait_in_their_order_and_are_not_accepted(paired: PairedRemote) -> None:
    far = inbound(paired, max_count=1)
    deliveries = offer(paired, far, "a", "b", "c")
    assert [delivery.remote_state for delivery in deliveries] == [ACCEPTED, 0, 0]
    assert "full" in paired.warnings[0]
    client = paired.client()
    receiver = client.receiver("q", 10)
    for expected in "abc":
        ((delivery, message),) = client.received(receiver)
        assert message.body == expected
        told(paired, delivery, ACCEPTED)
        paired.wait(PAUSE_MOST_S)
    assert [delivery.remote_state for delivery in deliveries] == [ACCEPTED] * 3


def test_what_the_other_broker_takes_back_while_it_waits_is_not_touched_again(paired: PairedRemote) -> None:
    far = inbound(paired, max_count=1)
    _, waits, _ = offer(paired, far, "a", "b", "c")
    waits.settle()
    paired.settle_down()
    client = paired.client()
    receiver = client.receiver("q", 10)
    found = []
    for _ in range(2):
        for delivery, message in client.received(receiver):
            found.append(message.body)
            told(paired, delivery, ACCEPTED)
        paired.wait(PAUSE_MOST_S)
    assert found == ["a", "c"]


def test_what_is_no_message_is_rejected_and_the_rest_comes(paired: PairedRemote) -> None:
    far = inbound(paired)
    far.delivery("bad")
    far.stream(b"no message")
    bad = far.current
    far.advance()
    (good,) = offer(paired, far, "a")
    assert (bad.remote_state, good.remote_state) == (REJECTED, ACCEPTED)
    assert held(paired) == ["a"]
    assert "cannot be in a queue here" in paired.warnings[0]


def test_a_message_that_was_here_before_stops_the_bridge_and_stays_there(paired: PairedRemote) -> None:
    far = inbound(paired)
    looped: Any = proton.Message("b", annotations={MESSAGE_PATH: f"{OWN_WAY}\nother\nthere\nx"})
    first, back, behind = offer(paired, far, "a", looped, "c")
    assert (first.remote_state, back.remote_state, behind.remote_state) == (ACCEPTED, 0, 0)
    assert far.remote_condition.name == "amqp:not-allowed"
    assert "here/q -> there/x -> here/q" in far.remote_condition.description
    assert held(paired) == ["a"]
    assert len(paired.again) == 1  # somebody may have mended it by then


def test_after_the_other_broker_was_lost_the_bridge_goes_on(paired: PairedRemote) -> None:
    far = inbound(paired, max_count=1)
    offer(paired, far, "a", "b")
    paired.cut()
    paired.connect_far()
    again = paired.answer()
    assert again.credit == WINDOW_MESSAGES
    assert paired.here.queue("q").messages.count == 1


def test_a_refusal_is_tried_again_and_told(paired: PairedRemote) -> None:
    declare(paired)
    default = paired.here.container.default
    paired.begin(InboundBridge(default, paired.here.queue("q"), TARGET, paired, paired.here.container))
    paired.refuse("amqp:not-found", "no such queue")
    assert [error.name for error in paired.refusals] == ["amqp:not-found"]
    assert len(paired.again) == 1
    paired.connect_far()
    assert paired.answer().credit == WINDOW_MESSAGES


def test_when_another_broker_leads_nothing_more_is_taken_or_accepted(paired: PairedRemote) -> None:
    far = inbound(paired)
    hosted = paired.here.container.default
    hosted.resources.replication.read_only = "another one leads"
    hosted.end_links(AmqpError(CONNECTION_FORCED, "another one leads"), browsers=True)
    paired.settle_down()
    (delivery,) = offer(paired, far, "a")
    assert delivery.remote_state in (0, None)
    assert held(paired) == []
    assert ended(paired)


# --- emptied


def test_a_message_leaves_the_queue_when_the_other_broker_has_accepted_it(paired: PairedRemote) -> None:
    far = outbound(paired, "a", "b")
    (one, first), (two, second) = take_messages(far)
    assert (first.body, second.body) == ("a", "b")
    assert first.annotations[MESSAGE_PATH] == OWN_WAY
    assert held(paired) == ["a", "b"]
    told(paired, one, ACCEPTED)
    assert held(paired) == ["b"]
    told(paired, two, ACCEPTED)
    assert held(paired) == []


def test_no_more_is_sent_than_the_other_broker_has_credit_for(paired: PairedRemote) -> None:
    far = outbound(paired, "a", "b", "c", credit=1)
    assert texts(take_messages(far)) == ["a"]
    far.flow(5)
    paired.settle_down()
    assert texts(take_messages(far)) == ["b", "c"]


def test_what_has_no_room_there_stays_and_is_sent_again_from_there_on_after_a_pause(paired: PairedRemote) -> None:
    far = outbound(paired, "a", "b", "c", credit=2)
    (one, _), (two, _) = take_messages(far)
    one.local.condition = proton.Condition("amqp:resource-limit-exceeded", "full")
    told(paired, one, REJECTED)
    two.local.condition = proton.Condition("amqp:resource-limit-exceeded", "full")
    told(paired, two, REJECTED)
    far.flow(10)
    paired.settle_down()
    assert take_messages(far) == []
    assert held(paired) == ["a", "b", "c"]
    assert "full" in paired.warnings[0]
    paired.wait(PAUSE_MOST_S)
    found = take_messages(far)
    assert texts(found) == ["a", "b", "c"]
    assert [message.first_acquirer for _, message in found] == [False, False, True]


@pytest.mark.parametrize("state", [RELEASED, MODIFIED])
def test_what_is_released_there_stays(paired: PairedRemote, state: Any) -> None:
    far = outbound(paired, "a")
    ((delivery, _),) = take_messages(far)
    told(paired, delivery, state)
    assert held(paired) == ["a"]
    paired.wait(PAUSE_MOST_S)
    ((again, _),) = take_messages(far)
    told(paired, again, ACCEPTED)
    assert held(paired) == []


def test_what_is_rejected_for_good_is_a_dead_letter(paired: PairedRemote) -> None:
    configuration = paired.here.container.default.configuration
    configuration.declare_exchange("dead", "fanout", {})
    configuration.declare_queue("letters", {})
    configuration.bind("dead", "letters", "", {})
    far = outbound(paired, "a", "b", alternate_exchange="dead")
    (one, _), (two, _) = take_messages(far)
    one.local.condition = proton.Condition("amqp:decode-error", "what is this")
    told(paired, one, REJECTED)
    told(paired, two, ACCEPTED)
    assert held(paired) == []
    assert paired.here.queue("letters").messages.count == 1
    assert "what is this" in paired.warnings[0]


def test_what_has_no_answer_when_the_other_broker_is_lost_is_sent_again_marked_and_in_order(
    paired: PairedRemote,
) -> None:
    far = outbound(paired, "a", "b", "c")
    (one, _), _, _ = take_messages(far)
    told(paired, one, ACCEPTED)
    paired.cut()
    assert held(paired) == ["b", "c"]
    assert paired.here.queue("q").messages.acquired == 0
    paired.connect_far()
    found = take_messages(paired.answer(10))
    assert [(message.body, message.first_acquirer) for _, message in found] == [("b", False), ("c", False)]
    assert paired.here.container.held.unsettled_bytes > 0
    for delivery, _ in found:
        told(paired, delivery, ACCEPTED)
    assert paired.here.container.held.unsettled_bytes == 0


def test_a_message_that_went_over_this_bridge_before_ends_here(paired: PairedRemote) -> None:
    declare(paired)
    looped: Any = proton.Message("back", annotations={MESSAGE_PATH: f"{OWN_WAY}\nother\nthere\nx"})
    paired.client().publish("q", looped, proton.Message("new"))
    default = paired.here.container.default
    paired.begin(OutboundBridge(default, paired.here.queue("q"), TARGET, paired, paired.here.container))
    ((delivery, message),) = take_messages(paired.answer(10))
    assert message.body == "new"
    assert "came back" in paired.warnings[0]
    told(paired, delivery, ACCEPTED)
    assert held(paired) == []


def test_a_way_that_is_too_long_stops_the_bridge_and_keeps_the_message(paired: PairedRemote) -> None:
    declare(paired)
    path = "\n".join(f"id{number}\nbroker{number}\nq" for number in range(8))
    paired.client().publish("q", proton.Message("far", annotations={MESSAGE_PATH: path}))
    default = paired.here.container.default
    paired.begin(OutboundBridge(default, paired.here.queue("q"), TARGET, paired, paired.here.container))
    assert take_messages(paired.answer(10)) == []
    assert held(paired) == ["far"]
    assert "shorten the way" in paired.warnings[0]


def test_a_deleted_queue_ends_its_bridge(paired: PairedRemote) -> None:
    far = outbound(paired, "a")
    take_messages(far)
    paired.here.container.default.configuration.delete_queue("q")
    paired.settle_down()
    assert ended(paired)
    assert paired.here.container.held.unsettled_bytes == 0


def test_when_another_broker_leads_what_was_sent_stays_in_the_queue(paired: PairedRemote) -> None:
    far = outbound(paired, "a")
    ((delivery, _),) = take_messages(far)
    hosted = paired.here.container.default
    hosted.resources.replication.read_only = "another one leads"
    hosted.end_links(AmqpError(CONNECTION_FORCED, "another one leads"), browsers=True)
    told(paired, delivery, ACCEPTED)
    assert held(paired) == ["a"]
    assert ended(paired)


@pytest.mark.parametrize("argument", BRIDGES)
def test_an_argument_that_asks_for_a_bridge_needs_a_permission_on_the_node_that_it_names(argument: str) -> None:
    url = "amqp://partner/their-orders"
    assert QueueArguments.parse({argument: url}).bridge == (argument, url)
    assert {node for _, node in permissions_of_arguments({argument: url})} == {url}


def test_a_link_that_a_bridge_began_does_not_end_at_its_own_queue() -> None:
    path = (Step("us", "a", "q"), Step("them", "b", "x"))
    check_ends_here(path, "us", "other")
    check_ends_here(path, "else", "q")
    with pytest.raises(AmqpError, match="a/q -> b/x -> q"):
        check_ends_here(path, "us", "q")


# --- looked for


def probe(paired: PairedRemote) -> RemoteProbe:
    made = RemoteProbe(TARGET, paired, paired.now_s)
    paired.begin(made)
    return made


def test_a_node_that_is_there_is_found_and_nothing_stays_attached(paired: PairedRemote) -> None:
    made = probe(paired)
    far = paired.answer(10)
    wished = far.remote_target.capabilities
    wished.rewind()
    wished.next()
    assert wished.get_symbol() == NO_CREATE
    assert paired.found_there == [made]
    assert not paired.links
    assert far.state & proton.Endpoint.REMOTE_CLOSED


def test_a_node_that_is_not_there_is_told(paired: PairedRemote) -> None:
    probe(paired)
    paired.far_link().target.type = proton.Terminus.UNSPECIFIED
    paired.refuse("amqp:not-found", "no such queue")
    assert [error.name for error in paired.refusals] == ["amqp:not-found"]
    assert not paired.links


def test_a_broker_that_does_not_answer_is_not_waited_for(paired: PairedRemote) -> None:
    probe(paired)
    paired.wait(PATIENCE_S)
    assert not paired.links
