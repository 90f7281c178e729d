"""What was handed out to a consumer and never left the broker: it counts as no delivery, and others can have it."""

from __future__ import annotations

from random import Random
from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from paired_proxy import PairedProxy
from paired_remote import PairedRemote
from qpid_ha_broker.amqp.connections.relayed_memory import COPIES
from qpid_ha_broker.amqp.links.consumer_credit import HELD_S
from qpid_ha_broker.model.queues.queue import Queue
from session_clients import session_properties
from session_support import FIRST

FRAME_BYTES = 1024
COUNT = 10


class Narrow:
    """A client whose session takes few frames, and that reads nothing."""

    def __init__(self, broker: Any, frames: int, properties: dict[str, Any] | None = None) -> None:
        self.broker = broker
        self.client = PairedClient(broker, properties)
        self.client.transport.max_frame_size = FRAME_BYTES
        self.client.session.incoming_capacity = frames * FRAME_BYTES
        broker.settle_down()

    def consume(self, credit: int = COUNT, *, is_settled: bool = False, browse: bool = False, name: str = "in") -> Any:
        """A consumer's link."""
        link = self.client.session.receiver(name)
        link.source.address = "q"
        link.snd_settle_mode = proton.Link.SND_SETTLED if is_settled else proton.Link.SND_UNSETTLED
        if browse:
            link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
        return self.client.attach(link, credit)


def filled(broker: Any, *, count: int = COUNT, size: int = 700, **arguments: int) -> Queue:
    """The queue `q`, with messages: their bodies are a number, and then as long as that."""
    arguments = {"delivery_limit": 1} | arguments
    queue: Queue = broker.container.default.configuration.declare_queue(
        "q", {f"qpid.{name}": value for name, value in arguments.items()}
    )
    client = PairedClient(broker)
    broker.settle_down()
    client.publish("q", *[f"{number}".ljust(size) for number in range(count)])
    return queue


def left_in(broker: Any, seen: int = 2) -> list[tuple[str, int]]:
    """What another client gets: bodies, and delivery-counts. `seen`: of these, so many may have been with somebody."""
    client = PairedClient(broker)
    broker.settle_down()
    got = client.received(client.receiver("q", 1000))
    if not isinstance(broker, PairedProxy):  # whose client it was that had it, the primary does not ask
        assert sum(not (message.first_acquirer or message.delivery_count) for _, message in got) <= seen
    return [(message.body.strip(), message.delivery_count) for _, message in got]


def fresh(numbers: range) -> list[tuple[str, int]]:
    """As `left_in` shows messages that nobody had."""
    return [(str(number), 0) for number in numbers]


@pytest.mark.parametrize("end", ["vanish", "end of session", "close of connection", "close"])
def test_what_waits_for_a_window_comes_back_as_it_was(broker: PairedBroker, end: str) -> None:
    filled(broker)
    narrow = Narrow(broker, frames=2)
    link = narrow.consume()
    assert link.queued == 2
    if end == "vanish":
        narrow.client.vanish()
    elif end == "close":
        link.close()
    elif end == "end of session":
        narrow.client.session.close()
    else:
        narrow.client.connection.close()
    broker.settle_down()
    left = left_in(broker)
    assert left[-8:] == fresh(range(2, COUNT))
    assert len(left) == (8 if end == "vanish" else COUNT), "two have been sent, and may have been seen"


@pytest.mark.parametrize("end", ["vanish", "close"])
def test_what_waits_for_a_socket_comes_back_as_it_was(broker: PairedBroker, end: str) -> None:
    filled(broker)
    client = PairedClient(broker)
    broker.settle_down()
    client.peer.window.pause()
    link = client.receiver("q", COUNT)
    assert link.queued == 0
    if end == "vanish":
        client.vanish()
    else:
        link.close()
    broker.settle_down()
    assert left_in(broker) == fresh(range(COUNT))


@pytest.mark.parametrize("end", ["vanish", "close"])
def test_a_presettled_link_takes_what_was_sent_and_no_more(broker: PairedBroker, end: str) -> None:
    queue = filled(broker)
    narrow = Narrow(broker, frames=3)
    link = narrow.consume(is_settled=True)
    assert link.queued == 3
    assert queue.messages.count == COUNT - 3
    if end == "vanish":
        narrow.client.vanish()
    else:
        link.close()
    broker.settle_down()
    assert left_in(broker) == fresh(range(3, COUNT))


def test_what_a_client_has_no_window_for_others_can_have(broker: PairedBroker) -> None:
    filled(broker)
    Narrow(broker, frames=2).consume()
    assert left_in(broker) == fresh(range(2, COUNT))


@pytest.mark.parametrize("drain", [False, True])
def test_what_credit_was_taken_back_for_others_can_have(broker: PairedBroker, drain: bool) -> None:
    """In the same read as the window opens again: the credit is what counts."""
    filled(broker)
    narrow = Narrow(broker, frames=2)
    link = narrow.consume()
    if drain:
        link.drain(0)
    else:
        link.flow(-8)
    broker.settle_down()
    assert left_in(broker)[-8:] == fresh(range(2, COUNT))
    assert link.queued == 2


def test_a_message_of_which_a_part_has_left_counts_as_a_delivery(broker: PairedBroker) -> None:
    filled(broker, count=3, size=5 * FRAME_BYTES, delivery_limit=9)
    narrow = Narrow(broker, frames=2)
    narrow.consume()
    narrow.client.vanish()
    broker.settle_down()
    assert left_in(broker) == [("0", 1), ("1", 0), ("2", 0)]


def test_links_of_one_session_share_its_window(broker: PairedBroker) -> None:
    filled(broker)
    narrow = Narrow(broker, frames=3)
    links = [narrow.consume(name=f"in-{number}") for number in range(3)]
    assert sum(link.queued for link in links) == 3
    narrow.client.vanish()
    broker.settle_down()
    assert len(left_in(broker)) == COUNT - 3


def test_a_slow_client_gets_all_of_it_in_order(broker: PairedBroker) -> None:
    filled(broker, count=50, size=400)
    narrow = Narrow(broker, frames=3)
    link = narrow.consume(credit=100)
    found = []
    while got := narrow.client.received(link):
        for delivery, message in got:
            found.append(message.body.strip())
            delivery.update(proton.Delivery.ACCEPTED)
            delivery.settle()
        broker.settle_down()
    assert found == [str(number) for number in range(50)]


def test_slow_browsers_of_one_session_see_everything_in_order(broker: PairedBroker) -> None:
    queue = filled(broker, count=30)
    narrow = Narrow(broker, frames=3)
    links = [narrow.consume(credit=100, browse=True, name=f"in-{number}") for number in range(3)]
    found: list[list[str]] = [[], [], []]
    for _ in range(100):
        for link, seen in zip(links, found, strict=True):
            for delivery, message in narrow.client.received(link):
                seen.append(message.body.strip())
                delivery.settle()
        broker.settle_down()
    assert found == [[str(number) for number in range(30)]] * 3
    assert queue.messages.acquired == 0


def test_what_was_handed_out_in_the_turn_in_which_the_socket_breaks_was_never_sent() -> None:
    broker = PairedBroker()
    queue = filled(broker)
    client = broker.connect()
    link = client.receiver("q", 0)
    link.flow(COUNT)
    outgoing = client.transport.peek(client.transport.pending())
    client.peer.receive(bytes(outgoing or b""))
    broker.turn()
    assert queue.messages.acquired == COUNT
    client.vanish()
    broker.settle_down()
    assert left_in(broker) == fresh(range(COUNT))


def test_a_detach_that_comes_before_the_output_was_taken_leaves_nothing_to_be_sent() -> None:
    broker = PairedBroker()
    filled(broker)
    client = broker.connect()
    link = client.receiver("q", 0)
    link.flow(COUNT)
    client.peer.receive(bytes(client.transport.peek(client.transport.pending()) or b""))
    client.transport.pop(client.transport.pending())
    broker.turn()
    link.close()
    client.peer.receive(bytes(client.transport.peek(client.transport.pending()) or b""))
    client.transport.pop(client.transport.pending())
    broker.settle_down()
    assert link.queued == 0
    assert link.state & proton.Endpoint.REMOTE_CLOSED
    assert left_in(broker) == fresh(range(COUNT))


def test_what_a_transaction_accepted_is_not_touched_by_what_was_never_sent() -> None:
    broker = PairedBroker()
    filled(broker, delivery_limit=1)
    narrow = Narrow(broker, frames=2)
    client = narrow.client
    coordinator = client.session.sender("coordinator")
    coordinator.target.type = proton.Terminus.COORDINATOR
    client.attach(coordinator)
    declare = proton.Message(body=proton.Described(proton.symbol("amqp:declare:list"), []))
    (declared,) = client.send_all(coordinator, declare)
    link = narrow.consume()
    delivery = link.current
    delivery.local.data = [bytes(declared.remote.data[0]), proton.Described(proton.ulong(0x24), [])]
    delivery.update(0x34)
    broker.settle_down()
    client.vanish()
    broker.settle_down()
    assert [body for body, _ in left_in(broker)] == [str(number) for number in range(2, COUNT)]


def test_a_remote_node_is_not_told_of_failures_of_what_its_client_was_never_sent() -> None:
    remote = PairedRemote()
    client = remote.client()
    link = client.receiver("orders", COUNT)
    far = remote.answer()
    deliveries = []
    for number in range(4):
        if number == 2:
            client.peer.window.pause()
        deliveries.append(far.delivery(str(number)))
        far.stream(proton.Message("x").encode())
        far.advance()
        remote.settle_down()
    assert link.queued == 2
    held = remote.here.container.relayed.bytes
    assert held == 4 * COPIES * len(proton.Message("x").encode())
    client.vanish()
    remote.settle_down()
    assert remote.here.container.relayed.bytes == 0
    states = [delivery.remote_state for delivery in deliveries]
    assert states == [proton.Delivery.MODIFIED] * 2 + [proton.Delivery.RELEASED] * 2


def test_what_a_relayed_client_accepted_presettled_is_gone_though_the_primary_is_lost_before_it_heard() -> None:
    proxy = PairedProxy()
    queue = filled(proxy, count=2)
    client = proxy.client()
    receiver = client.session.receiver("in")
    receiver.source.address = "q"
    receiver.snd_settle_mode = proton.Link.SND_SETTLED
    client.attach(receiver, 1)
    assert len(client.received(receiver)) == 1
    assert queue.messages.count == 1
    proxy.cut()
    proxy.connect_upstream()
    proxy.settle_down()
    assert queue.messages.count == 1


def held_for_a_socket(proxy: PairedProxy) -> tuple[Queue, PairedClient, Any]:
    """The queue, and a client's link for which its proxy has all messages, and cannot write them."""
    queue = filled(proxy, count=0)
    client = proxy.client()
    link = client.receiver("q", COUNT)
    client.peer.window.pause()
    PairedClient(proxy.primary).publish("q", *map(str, range(COUNT)))
    proxy.settle_down()
    return queue, client, link


def test_what_a_proxy_holds_for_a_socket_comes_back_as_it_was() -> None:
    proxy = PairedProxy()
    queue, client, link = held_for_a_socket(proxy)
    assert link.queued == 0
    assert queue.messages.acquired == COUNT
    client.vanish()
    proxy.settle_down()
    assert proxy.proxy.container.relayed.bytes == proxy.primary.container.held.unsettled_bytes == 0
    assert left_in(proxy) == fresh(range(COUNT))


def test_what_a_proxy_holds_for_a_socket_goes_back_when_the_credit_is_taken_back() -> None:
    proxy = PairedProxy()
    proxy.proxy.container.clock = lambda: 0.0
    queue, client, link = held_for_a_socket(proxy)
    link.flow(-COUNT)
    proxy.settle_down()
    proxy.proxy.container.clock = lambda: HELD_S
    proxy.settle_down()
    assert queue.messages.acquired == 0
    assert left_in(proxy) == fresh(range(COUNT))
    client.peer.window.resume()
    proxy.settle_down()
    assert link.queued == 0


def test_what_a_proxy_holds_for_a_socket_comes_once_when_the_primary_is_lost_meanwhile() -> None:
    proxy = PairedProxy()
    filled(proxy, count=0, delivery_limit=0)
    client = proxy.client()
    link = client.receiver("q", COUNT)
    client.peer.window.pause()
    PairedClient(proxy.primary).publish("q", *map(str, range(COUNT)))
    proxy.settle_down()
    proxy.cut()
    client.peer.window.resume()
    proxy.connect_upstream()
    proxy.settle_down()
    assert client.bodies(link) == [str(number) for number in range(COUNT)]


def test_what_a_session_was_never_sent_does_not_count_when_the_session_expires() -> None:
    broker = PairedBroker()
    filled(broker)
    narrow = Narrow(broker, frames=3, properties=session_properties(FIRST))
    links = [narrow.consume(0, name=f"in-{number}") for number in range(2)]
    for link in links:
        link.flow(COUNT)
    broker.settle_down()
    assert sum(link.queued for link in links) == 3
    assert sum(len(held.ids) for held in broker.container.default.resources.catalog.holdings) > 3
    narrow.client.vanish()
    broker.container.now_ms += 120_000
    broker.container.tick()
    broker.settle_down()
    left = left_in(broker)
    assert (len(left), {count for _, count in left}) == (COUNT - 3, {0})


@pytest.mark.parametrize("order", ["one by one", "all at once"])
def test_what_a_session_was_never_sent_comes_first_in_its_order_on_its_next_link(order: str) -> None:
    broker = PairedBroker()
    filled(broker, delivery_limit=0)
    narrow = Narrow(broker, frames=2, properties=session_properties(FIRST))
    narrow.consume()
    narrow.client.vanish()
    broker.settle_down()
    client = PairedClient(broker, session_properties(FIRST))
    broker.settle_down()
    link = client.receiver("q", 1 if order == "one by one" else 100, name="in")
    found: list[str] = []
    while got := client.received(link):
        for delivery, message in got:
            found.append(message.body.strip())
            delivery.update(proton.Delivery.ACCEPTED)
            delivery.settle()
            if order == "one by one":
                link.flow(1)
        broker.settle_down()
    assert found == [str(number) for number in range(COUNT)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_slow_clients_do_nothing_is_lost_and_what_they_got_counts(broker: PairedBroker, seed: int) -> None:
    draw = Random(seed)
    filled(broker, count=0, delivery_limit=0)
    filler = PairedClient(broker)
    broker.settle_down()
    sender = filler.sender("q")
    sent = failed = 0
    accepted: dict[int, int] = {}
    """By number of a message: how often it had failed before."""
    clients: list[tuple[Narrow, list[Any]]] = []
    for _ in range(80):
        chance = draw.random()
        if chance < 0.25:
            bodies = [f"{sent + more}".ljust(draw.choice((10, 700, 2500))) for more in range(draw.randint(1, 5))]
            filler.send_all(sender, *bodies)
            sent += len(bodies)
        elif chance < 0.35 or not clients:
            narrow = Narrow(broker, frames=draw.randint(1, 4))
            clients.append((narrow, [narrow.consume(draw.randint(0, 8), name=f"in-{n}") for n in range(2)]))
        elif chance < 0.5:
            narrow, links = clients.pop(draw.randrange(len(clients)))
            failed += sum(link.unsettled for link in links)
            narrow.client.vanish()
        elif chance < 0.6:
            _, links = draw.choice(clients)
            link = draw.choice(links)
            link.flow(draw.choice((1, 5, -min(3, link.credit))))
        elif chance < 0.65:
            draw.choice(clients)[1][0].drain(0)
        else:
            narrow, links = draw.choice(clients)
            for delivery, message in narrow.client.received(draw.choice(links)):
                accepted[int(message.body.strip())] = message.delivery_count
                delivery.update(proton.Delivery.ACCEPTED)
                delivery.settle()
        broker.settle_down()
        broker.check_invariants()
    for narrow, _ in clients:
        narrow.client.connection.close()
    broker.settle_down()
    left = {int(body): count for body, count in left_in(broker, seen=sent)}
    assert sorted([*accepted, *left]) == list(range(sent))
    assert sum(accepted.values()) + sum(left.values()) == failed
