"""A delivery that its sender takes back (AMQP 1.0 section 2.7.5): it is forgotten, and its credit comes back."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker
from paired_proxy import PairedProxy, paired_broker
from paired_remote import TARGET, PairedRemote
from paired_transactions import TRANSACTIONAL, PairedCoordinator
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.links.bridges import InboundBridge
from qpid_ha_broker.amqp.wire.conditions import DETACH_FORCED, AmqpError
from qpid_ha_broker.amqp.wire.engine import credit
from raw_peer import OPEN, SENDER, SOURCE, attach, begin, described, encoded, frame
from raw_peer import TARGET as TARGET_CODE
from raw_peer import transfer as whole_transfer

COORDINATOR = 0x30
HALF = b"\x00\x53\x75\xb0\x00\x00\x00\xff" + b"x" * 99
"""The beginning of a message of one data section."""


def aborted(number: int, *, is_first: bool, settled: bool = False, more: bool = False) -> bytes:
    """The transfer that takes the message `number` back; `is_first`: nothing of it was sent before."""
    numbers = [proton.uint(number), number.to_bytes(4, "big"), proton.uint(0)] if is_first else [None, None, None]
    return frame(0x14, [proton.uint(0), *numbers, settled, more, None, None, False, True])


class RawPublisher:
    """A client that speaks by hand, on one link with handle 0."""

    def __init__(self, broker: Any, target: Any) -> None:
        self._broker = broker
        self.peer: Connection = broker.accept()
        fields = ["s", proton.uint(0), SENDER, proton.ubyte(2), proton.ubyte(0), described(SOURCE, ["s"]), target]
        link = frame(0x12, [*fields, None, None, proton.uint(0)])
        self.say(b"AMQP\x00\x01\x00\x00", frame(OPEN, ["raw", "localhost"]), begin(), link)

    def say(self, *parts: bytes) -> None:
        """Each of these is read, and has a turn."""
        for part in parts:
            self.peer.receive(part)
            self.peer.take_output()
            self._broker.settle_down()
            self.peer.take_output()

    @property
    def link(self) -> Any:
        """The broker's end of the link; None: it has ended."""
        return next(iter(self.peer.links), None)


def target_of(node: str) -> Any:
    """The target of a link to that node."""
    targets: dict[str, Any] = {
        "queue": described(TARGET_CODE, ["q"]),
        "exchange": described(TARGET_CODE, ["amq.fanout"]),
        "anonymous relay": described(TARGET_CODE, []),
        "$management": described(TARGET_CODE, ["$management"]),
        "coordinator": described(COORDINATOR, [None]),
    }
    return targets[node]


NODES = ("queue", "exchange", "anonymous relay", "$management", "coordinator")
WAYS = {
    "after a part": [whole_transfer(0, 0, HALF, more=True), aborted(0, is_first=False)],
    "after two parts": [
        whole_transfer(0, 0, HALF, more=True),
        whole_transfer(0, 0, HALF, more=True),
        aborted(0, is_first=False),
    ],
    "at once": [aborted(0, is_first=True)],
    "settled": [whole_transfer(0, 0, HALF, more=True, settled=True), aborted(0, is_first=False, settled=True)],
    "with more": [whole_transfer(0, 0, HALF, more=True), aborted(0, is_first=False, more=True)],
    "read together": [whole_transfer(0, 0, HALF, more=True) + aborted(0, is_first=False)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("kind", ["direct", "proxied"])
def test_an_aborted_delivery_is_forgotten_and_the_link_goes_on(kind: str, node: str, way: str) -> None:
    broker = paired_broker(kind)
    broker.container.default.configuration.declare_queue("q", {})
    client = RawPublisher(broker, target_of(node))
    client.say(*WAYS[way])
    assert client.link is not None, "the link ended"
    assert not client.peer.has_ended
    assert broker.queue("q").messages.count == 0
    assert (client.peer.partial_bytes, client.peer.container.held.partial_bytes) == (0, 0)
    if node == "queue":
        client.say(whole_transfer(0, 1, proton.Message("next").encode()))
        assert broker.queue("q").messages.count == 1


@pytest.mark.parametrize("kind", ["direct", "proxied"])
def test_credit_for_aborted_deliveries_comes_back(kind: str) -> None:
    settings = ContainerSettings("test", "0", publisher_credit=10)
    broker: Any = PairedBroker(settings) if kind == "direct" else PairedProxy(settings)
    broker.container.default.configuration.declare_queue("q", {})
    client = RawPublisher(broker, target_of("queue"))
    for number in range(50):
        client.say(whole_transfer(0, number, HALF, more=True), aborted(number, is_first=False))
    assert client.link is not None
    assert credit(client.link.link) > 0
    client.say(whole_transfer(0, 50, proton.Message("next").encode()))
    assert broker.queue("q").messages.count == 1


def test_what_else_is_on_the_connection_goes_on() -> None:
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("q", {})
    client = RawPublisher(broker, target_of("queue"))
    client.say(attach("other", 1, SENDER, "q"))
    client.say(whole_transfer(0, 0, HALF, more=True), aborted(0, is_first=False))
    client.say(whole_transfer(1, 1, proton.Message("other").encode()))
    assert broker.queue("q").messages.count == 1


def take_back_in(number: bytes, broker: PairedBroker, sender: Any) -> None:
    """A delivery of that transaction, of which half has come."""
    taken_back = sender.delivery("a")
    taken_back.local.data = [number]
    taken_back.update(TRANSACTIONAL)
    sender.stream(HALF)
    broker.settle_down()
    taken_back.abort()


def test_an_aborted_delivery_of_a_transaction_is_no_part_of_it() -> None:
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("q", {})
    client = broker.connect()
    coordinator = PairedCoordinator(client)
    number = coordinator.declare()
    sender = client.sender("q")
    take_back_in(number, broker, sender)
    kept = client.send(sender, proton.Message("kept"))
    kept.local.data = [number]
    kept.update(TRANSACTIONAL)
    broker.settle_down()
    assert coordinator.discharge(number).remote_state == proton.Delivery.ACCEPTED
    assert client.bodies(client.receiver("q", 10)) == ["kept"]


def test_an_aborted_delivery_for_a_link_that_the_broker_has_ended_fails_no_transaction() -> None:
    broker = PairedBroker()
    configuration = broker.container.default.configuration
    configuration.declare_queue("q", {})
    configuration.declare_queue("gone", {})
    client = broker.connect()
    coordinator = PairedCoordinator(client)
    number = coordinator.declare()
    sender, other = client.sender("gone"), client.sender("q")
    take_back_in(number, broker, sender)
    (link,) = [link for link in client.peer.links if link.link.name == sender.name]
    client.peer.end_link(link, AmqpError(DETACH_FORCED, "a test"))
    kept = client.send(other, proton.Message("kept"))
    kept.local.data = [number]
    kept.update(TRANSACTIONAL)
    broker.settle_down()
    assert coordinator.discharge(number).remote_state == proton.Delivery.ACCEPTED


def _take_back(remote: PairedRemote, link: Any, times: int) -> None:
    for number in range(times):
        delivery = link.delivery(f"aborted-{number}")
        link.stream(encoded("x" * 50)[:20])
        remote.settle_down()
        delivery.abort()
        remote.settle_down()


def test_what_another_broker_takes_back_is_forgotten_by_a_bridge_which_goes_on() -> None:
    remote = PairedRemote()
    container = remote.here.container
    container.now_ms = 0
    queue = container.default.configuration.declare_queue("orders", {})
    bridge = InboundBridge(container.default, queue, TARGET, remote, container)
    remote.begin(bridge)
    far = remote.answer()
    before = far.credit
    _take_back(remote, far, 500)
    assert far.credit * 2 >= before, "what was taken back has used up credit for ever"
    delivery = far.delivery("whole")
    far.stream(proton.Message("whole").encode())
    far.advance()
    remote.settle_down()
    assert queue.messages.count == 1
    assert delivery.remote_state == proton.Delivery.ACCEPTED
    assert remote.again == []


def test_what_another_broker_takes_back_does_not_come_to_a_client_of_its_node_here() -> None:
    remote = PairedRemote()
    client = remote.client()
    receiver = client.receiver("orders", 5)
    far = remote.answer()
    remote.settle_down()
    _take_back(remote, far, 20)
    far.delivery("whole")
    far.stream(proton.Message("whole").encode())
    far.advance()
    remote.settle_down()
    assert client.bodies(receiver) == ["whole"]
