"""Consumers that take credit back while messages are on their way to them, one broker or two away from their queue.

So does Proton's `BlockingConnection.create_receiver(credit=N)`: it gives 2 N and takes N back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import proton
import pytest

from paired_engines import PairedBroker, PairedClient, broker_engine
from paired_proxy import PairedProxy
from paired_remote import TARGET, PairedRemote
from qpid_ha_broker.amqp.links.consumer_credit import HELD_S
from qpid_ha_broker.amqp.links.remote_connection import RemoteConnection
from qpid_ha_broker.amqp.links.remote_links import QUIET_S
from qpid_ha_broker.amqp.wire.peer_frames import OUR_PRODUCT
from session_clients import consume, open_session

RELEASED = proton.Delivery.RELEASED


class Clock:
    """Of a broker, in a test's hands."""

    def __init__(self, broker: PairedBroker) -> None:
        self.now_s = 0.0
        broker.container.clock = lambda: self.now_s


@pytest.fixture
def proxied() -> PairedProxy:
    return PairedProxy()


@pytest.fixture
def clock(proxied: PairedProxy) -> Clock:
    return Clock(proxied.proxy)


def publish(proxied: PairedProxy, *texts: str, queue: str = "q") -> None:
    proxied.primary.connect().publish(queue, *texts)


def holders(proxied: PairedProxy) -> list[bool]:
    """Of each message at the primary, in order: somebody has it."""
    return [entry.holder is not None for entry in proxied.primary.queue("q").messages]


def marked(proxied: PairedProxy) -> list[bool]:
    """Of each message at the primary, in order: whoever gets it next is told that somebody had it."""
    return [entry.acquired_before for entry in proxied.primary.queue("q").messages]


def taken_back(proxied: PairedProxy, link: Any, come: int) -> None:
    """Of eight messages that are under way four have lost their credit, and `come` have come to the proxy."""
    publish(proxied, *"12345678")
    proxied.settle_down()
    link.flow(-4)
    proxied.settle_down()
    proxied.let_through(come)


def two_held(proxied: PairedProxy) -> tuple[PairedClient, Any]:
    """A client that has credit for the first four of eight; of the others its proxy has two, and gets two."""
    client = proxied.client()
    link = client.receiver("q", 8)
    with proxied.held_up():
        taken_back(proxied, link, 6)
    return client, link


def direct(proxied: PairedProxy, credit: int) -> list[str]:
    """What a consumer at the primary itself gets."""
    client = PairedClient(proxied.primary, container="direct")
    return client.bodies(client.receiver("q", credit))


# --- order


def attach_plain(client: PairedClient) -> Any:
    return client.receiver("q")


def attach_presettled(client: PairedClient) -> Any:
    link = client.session.receiver("presettled")
    link.source.address = "q"
    link.snd_settle_mode = proton.Link.SND_SETTLED
    return client.attach(link)


def attach_browsing(client: PairedClient) -> Any:
    link = client.session.receiver("browsing")
    link.source.address = "q"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    return client.attach(link)


def attach_browsing_presettled(client: PairedClient) -> Any:
    link = client.session.receiver("browsing")
    link.source.address = "q"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.snd_settle_mode = proton.Link.SND_SETTLED
    return client.attach(link)


@pytest.mark.parametrize("attach", [attach_plain, attach_presettled, attach_browsing, attach_browsing_presettled])
def test_what_came_without_credit_is_given_first_when_there_is_credit_again(
    proxied: PairedProxy, attach: Callable[[PairedClient], Any]
) -> None:
    client = proxied.client()
    link = attach(client)
    link.flow(8)
    proxied.settle_down()
    with proxied.held_up():
        taken_back(proxied, link, 6)
        assert client.bodies(link) == list("1234")
        link.flow(4)
        proxied.settle_down()
        assert client.bodies(link) == list("56")
    assert client.bodies(link) == list("78")


def test_a_client_that_gives_twice_its_credit_and_takes_half_back_gets_all_in_order(proxied: PairedProxy) -> None:
    """As Proton's blocking receiver does, which gives one more for each message that it takes."""
    client = proxied.client()
    publish(proxied, *map(str, range(60)))
    link = client.receiver("q")
    link.flow(10)
    link.flow(10)
    client.exchange()
    with proxied.held_up():
        proxied.settle_down()
        link.flow(-10)
        proxied.settle_down()
        came = client.bodies(link)
        for _ in range(6):
            proxied.let_through(2)
            more = client.bodies(link)
            came += more
            link.flow(len(more))
            proxied.settle_down()
    while more := client.bodies(link):
        came += more
        link.flow(len(more))
        proxied.settle_down()
    assert came == list(map(str, range(60)))


def test_a_session_gets_first_what_came_without_credit(proxied: PairedProxy, clock: Clock) -> None:
    client = open_session(cast(PairedBroker, proxied))
    link = consume(client, "q", 8)
    with proxied.held_up():
        taken_back(proxied, link, 6)
        proxied.let_through(len(frames_under_way(proxied)))
    came = client.bodies(link)
    clock.now_s += 10 * HELD_S
    proxied.settle_down()
    assert holders(proxied) == [True] * 8, "what the session was given is nobody else's"
    link.flow(6)
    publish(proxied, "9")
    proxied.settle_down()
    assert came + client.bodies(link) == list("123456789")


def frames_under_way(proxied: PairedProxy) -> list[int]:
    """The sizes of the frames that are held up."""
    data, sizes = bytes(proxied._under_way or b""), []
    while data:
        sizes.append(int.from_bytes(data[:4], "big"))
        data = data[sizes[-1] :]
    return sizes


# --- what becomes of it when the client wants no more


def test_what_is_held_for_long_goes_back_as_it_was_and_comes_in_order_all_the_same(
    proxied: PairedProxy, clock: Clock
) -> None:
    client, link = two_held(proxied)
    assert client.bodies(link) == list("1234")
    assert holders(proxied) == [True] * 8
    under_way = proxied.proxy.container.relayed.bytes
    clock.now_s = HELD_S - 0.01
    proxied.settle_down()
    assert holders(proxied) == [True] * 8
    clock.now_s = HELD_S
    proxied.settle_down()
    assert holders(proxied) == [True] * 4 + [False] * 4
    assert marked(proxied) == [False] * 8
    assert proxied.proxy.container.relayed.bytes == under_way // 2
    assert not proxied.proxy.container.relayed.holding
    assert direct(proxied, 1) == ["5"]
    link.flow(4)
    proxied.settle_down()
    assert client.bodies(link) == list("678")


def test_nothing_goes_back_while_more_of_it_is_on_its_way(proxied: PairedProxy, clock: Clock) -> None:
    client = proxied.client()
    link = client.receiver("q", 8)
    with proxied.held_up():
        taken_back(proxied, link, 6)
        clock.now_s += 2 * HELD_S
        proxied.settle_down()
        assert holders(proxied) == [True] * 8
    assert holders(proxied) == [True] * 4 + [False] * 4


def test_the_time_begins_anew_when_the_client_takes_something(proxied: PairedProxy, clock: Clock) -> None:
    client, link = two_held(proxied)
    for _ in range(3):
        clock.now_s += 0.9 * HELD_S
        link.flow(1)
        proxied.settle_down()
    assert client.bodies(link) == list("1234567")
    assert holders(proxied) == [True] * 8


@pytest.mark.parametrize("credit", [0, 1, 4, 5])
def test_a_drain_is_answered_with_what_is_held_as_far_as_credit_goes_and_the_rest_goes_back(
    proxied: PairedProxy, credit: int
) -> None:
    client = proxied.client()
    link = client.receiver("q", 8)
    with proxied.held_up():
        taken_back(proxied, link, 6)
        assert client.bodies(link) == list("1234")
    link.drain(credit)
    proxied.settle_down()
    came = client.bodies(link)
    assert came == list("5678")[:credit]
    assert link.credit == 0
    assert holders(proxied) == [True] * (4 + len(came)) + [False] * (4 - len(came))
    assert marked(proxied) == [False] * 8
    link.drained()
    link.drain_mode = False
    link.flow(9)
    proxied.settle_down()
    assert came + client.bodies(link) == list("5678")


def test_what_is_held_goes_back_with_the_clients_link(proxied: PairedProxy) -> None:
    _, link = two_held(proxied)
    link.close()
    proxied.settle_down()
    assert holders(proxied) == [False] * 8
    assert marked(proxied) == [True] * 4 + [False] * 4
    assert proxied.proxy.container.relayed.bytes == 0
    assert not proxied.proxy.container.relayed.holding


def test_what_is_held_comes_again_in_order_when_the_primary_is_lost_meanwhile(proxied: PairedProxy) -> None:
    client, link = two_held(proxied)
    proxied.cut()
    link.flow(2)
    proxied.settle_down()
    proxied.connect_upstream()
    assert proxied.proxy.container.relayed.holding == {}
    link.flow(3)
    proxied.settle_down()
    assert client.bodies(link) == list("12345678")


def test_a_browser_misses_nothing_of_what_was_held_for_long(proxied: PairedProxy, clock: Clock) -> None:
    client = proxied.client()
    link = attach_browsing(client)
    link.flow(8)
    proxied.settle_down()
    with proxied.held_up():
        taken_back(proxied, link, 6)
    clock.now_s += 10 * HELD_S
    proxied.settle_down()
    link.drain(1)
    proxied.settle_down()
    link.drained()
    link.drain_mode = False
    link.flow(8)
    proxied.settle_down()
    assert client.bodies(link) == list("12345678")


# --- nodes of other brokers


def offer(paired: PairedRemote, far: Any, *texts: str, settled: bool = False) -> list[Any]:
    """The other broker sends messages, which are under way."""
    deliveries = []
    for text in texts:
        deliveries.append(far.delivery(text))
        far.stream(proton.Message(text).encode())
        far.advance()
        if settled:
            deliveries[-1].settle()
    return deliveries


def shrunk(paired: PairedRemote) -> tuple[PairedClient, Any, Any]:
    """A client that has given credit for four messages and taken back two, of which the other broker has not heard."""
    client = paired.client()
    near = client.receiver("orders", 4)
    far = paired.answer()
    near.flow(-2)
    client.exchange()
    paired.here.turn()
    return client, near, far


@pytest.mark.parametrize("settled", [False, True])
def test_what_another_broker_has_sent_without_credit_by_then_is_given_first(settled: bool) -> None:
    paired = PairedRemote()
    client, near, far = shrunk(paired)
    deliveries = offer(paired, far, *"123", settled=settled)
    paired.settle_down()
    near.flow(2)
    paired.settle_down()
    deliveries += offer(paired, far, "4", settled=settled)
    paired.settle_down()
    assert client.bodies(near) == list("1234")
    assert not any(delivery.remote_state for delivery in deliveries)


def test_what_another_broker_has_sent_goes_back_to_it_when_it_has_no_credit_any_more() -> None:
    paired = PairedRemote()
    client, near, far = shrunk(paired)
    first = offer(paired, far, *"123")
    paired.settle_down()
    paired.wait(HELD_S)
    assert first[2].remote_state == 0, "the other broker has not ended the drain: there may be more on its way"
    far.drained()
    paired.settle_down()
    assert [delivery.remote_state for delivery in first] == [0, 0, RELEASED]
    assert first[2].settled
    near.flow(1)
    paired.settle_down()
    assert far.credit == 1
    assert client.bodies(near) == list("12")


def test_what_another_broker_sends_settled_is_kept_with_what_came_before_it() -> None:
    paired = PairedRemote()
    client, near, far = shrunk(paired)
    offer(paired, far, *"12")
    offer(paired, far, "3", settled=True)
    (last,) = offer(paired, far, "4")
    paired.settle_down()
    paired.wait(HELD_S)
    assert last.remote_state == RELEASED
    near.flow(1)
    paired.settle_down()
    assert client.bodies(near) == list("123")


def test_nothing_goes_back_to_a_broker_that_says_nothing_of_drains_before_it_is_silent() -> None:
    paired = PairedRemote(product="RabbitMQ")
    client, near, far = shrunk(paired)
    (*_, late) = offer(paired, far, *"123")
    paired.settle_down()
    paired.wait(HELD_S)
    assert far.credit == 0
    assert late.remote_state == 0, "more may be on its way, for the credit that was taken back just now"
    paired.wait(QUIET_S)
    assert (late.remote_state, late.settled) == (RELEASED, True)
    assert client.bodies(near) == list("12")


# --- two brokers away


class Hops:
    """A client of a broker outside of the cluster, for which `orders` is a queue at a proxy of the cluster."""

    def __init__(self, proxied: PairedProxy) -> None:
        self.proxied = proxied
        self.remote = PairedRemote(product=OUR_PRODUCT)
        self.far = proxied.proxy.accept()
        setattr(self.remote, "_exchange", self._exchange)  # noqa: B010 - a method, which mypy lets nobody replace
        self.remote.here.carriers[:] = [self._exchange]
        self.is_held_up = False
        """What the proxy says does not reach the broker outside."""
        self._under_way = bytearray()
        self.remote.upstream = RemoteConnection(
            broker_engine(), "here/1", "proxy", lambda: None, self.remote.ended.append
        )
        self.settle_down()

    def _exchange(self) -> bool:
        upstream = self.remote.upstream
        assert upstream is not None
        outgoing = upstream.take_output()
        self.far.receive(outgoing)
        self.proxied.settle_down()
        self._under_way += self.far.take_output()
        incoming = b"" if self.is_held_up else bytes(self._under_way)
        if incoming:
            self._under_way.clear()
            upstream.receive(incoming)
        return bool(outgoing or incoming)

    def let_through(self, transfers: int) -> None:
        """So many messages of what the proxy has said."""
        upstream = self.remote.upstream
        assert upstream is not None
        while transfers and self._under_way:
            size = int.from_bytes(self._under_way[:4], "big")
            frame = bytes(self._under_way[:size])
            del self._under_way[:size]
            transfers -= frame[8:11] == b"\x00S\x14"
            upstream.receive(frame)
        self.settle_down()

    def settle_down(self) -> None:
        self.remote.here.settle_down()


@pytest.mark.parametrize("late", ["at the first", "at the second"])
def test_a_client_two_brokers_away_gets_all_in_order(proxied: PairedProxy, late: str) -> None:
    hops = Hops(proxied)
    client = PairedClient(hops.remote.here)
    link = client.receiver("orders", 8)
    if late == "at the first":
        with proxied.held_up():
            publish(proxied, *"12345678", queue=TARGET.node)
            proxied.settle_down()
            link.flow(-4)
            hops.settle_down()
            proxied.let_through(6)
            hops.settle_down()
            came = client.bodies(link)
            link.flow(4)
            hops.settle_down()
    else:
        hops.is_held_up = True
        publish(proxied, *"12345678", queue=TARGET.node)
        hops.settle_down()
        link.flow(-4)
        hops.settle_down()
        hops.let_through(6)
        came = client.bodies(link)
        link.flow(4)
        hops.settle_down()
        hops.is_held_up = False
    hops.settle_down()
    came += client.bodies(link)
    publish(proxied, *"9abc", queue=TARGET.node)
    link.flow(4)
    hops.settle_down()
    assert came + client.bodies(link) == list("123456789abc")
