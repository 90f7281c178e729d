"""Stories about what clients leave behind when they go, in which way they may: nothing that only a collector frees.

The oldest generation of the broker's garbage collector never runs (`command_line.tame_garbage_collector`), because a
million queued messages are no garbage. So what clients make must be freed by reference counts alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from weakref import ref

import proton
import pytest

from live_objects import growth, leave_out_what_lives, no_collector
from paired_engines import PairedBroker, PairedClient
from paired_links import subscribe
from paired_peers import Cluster
from paired_proxy import PairedProxy
from paired_remote import TARGET, PairedRemote
from paired_transactions import PairedCoordinator, publish
from qpid_ha_broker.amqp.links.bridges import InboundBridge, OutboundBridge
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.cluster_map import ClusterMap
from session_clients import open_session
from session_support import FIRST
from several_sets import SeveralSets

ROUNDS = 12


@pytest.fixture(scope="module", autouse=True)
def only_what_is_made_here() -> None:
    leave_out_what_lives()


class World:
    """A broker to which clients come, `direct` or `proxied`."""

    def __init__(self, way: str) -> None:
        proxy = PairedProxy() if way == "proxied" else None
        self.primary = PairedBroker() if proxy is None else proxy.primary
        self.entry = self.primary if proxy is None else proxy.proxy
        self.broker = self.primary if proxy is None else cast(PairedBroker, proxy)
        self.settle_down = self.broker.settle_down

    def gone(self, client: PairedClient) -> None:
        """Its socket is closed, if it was not, and what the test holds of it is let go of."""
        if not client._is_lost:
            client.vanish()
        self.settle_down()
        self.entry.clients.remove(client)
        client.transport.unbind()
        client.transport, client.connection, client.session = cast(Any, (None, None, None))
        self.forget()

    def forget(self) -> None:
        """What only tests collect."""
        for paired in (self.primary, self.entry):
            paired.container.tick()  # what time would have changed of deleted queues
            for hosted in paired.container.sets.values():
                hosted.resources.catalog.headers._known.clear()  # 4096 at most, for what is alike
            paired.batches.clear()
            paired.container.take_notices()


@pytest.fixture(params=["direct", "proxied"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def closes(world: World, client: PairedClient) -> None:
    client.connection.close()
    world.settle_down()


def is_lost(world: World, client: PairedClient) -> None:
    client.vanish()


def ends_its_session(world: World, client: PairedClient) -> None:
    client.session.close()
    world.settle_down()


def detaches(world: World, client: PairedClient) -> None:
    for link in links_of(client):
        link.detach()
    world.settle_down()


def closes_links(world: World, client: PairedClient) -> None:
    for link in links_of(client):
        link.close()
    world.settle_down()


def is_ended(world: World, client: PairedClient) -> None:
    client.peer.end(AmqpError(CONNECTION_FORCED, "by hand"))
    world.settle_down()


def is_sent_away(world: World, client: PairedClient) -> None:
    client.peer.send_away(AmqpError(CONNECTION_FORCED, "by hand"))
    world.settle_down()


def links_are_ended(world: World, client: PairedClient) -> None:
    for endpoint in client.peer.links:
        endpoint.end(AmqpError(CONNECTION_FORCED, "by hand"))
    world.settle_down()


def links_are_ended_and_close(world: World, client: PairedClient) -> None:
    links_are_ended(world, client)
    closes_links(world, client)


def links_are_ended_and_detach(world: World, client: PairedClient) -> None:
    links_are_ended(world, client)
    detaches(world, client)


ENDS: list[Callable[[World, PairedClient], None]] = [
    closes,
    is_lost,
    ends_its_session,
    detaches,
    closes_links,
    is_ended,
    is_sent_away,
    links_are_ended,
]
LINK_ENDS = [
    ends_its_session,
    detaches,
    closes_links,
    links_are_ended,
    links_are_ended_and_close,
    links_are_ended_and_detach,
]


def links_of(client: PairedClient) -> list[Any]:
    found, link = [], cast(Any, client.connection).link_head(0)
    while link is not None:
        found.append(link)
        link = link.next(0)
    return found


def free_links(client: PairedClient) -> None:
    for link in links_of(client):
        link.free()


def attach_every_kind(client: PairedClient) -> None:
    """Links of every kind, with messages that are answered, and ones that are not."""
    publisher = client.sender("q")
    client.send_all(publisher, "a", "b", "c")
    consumer = client.receiver("q", 2)
    (first, _), *_ = client.received(consumer)
    first.update(proton.Delivery.ACCEPTED)
    first.settle()
    client.send_all(client.sender(None), "nowhere")
    subscribe(client, "amq.topic", "topic", filters={"x": ("apache.org:legacy-amqp-topic-binding:string", "#")})
    subscribe(client, "q", "browser", filters={"s": ("apache.org:selector-filter:string", "x = 1")})
    subscribe(client, "amq.topic", "durable", durable=True)
    subscribe(client, None, "dynamic", dynamic=True)
    client.sender("amq.fanout")
    client.receiver("$management", 1)
    client.sender("$management")
    client.receiver("amq.there-is-none")
    client.sender("amq.there-is-none")
    coordinator = PairedCoordinator(client)
    coordinator.discharge(coordinator.declare())
    coordinator.discharge(coordinator.declare(), fails=True)
    client.send_all(publisher, publish(client, publisher, coordinator.declare(), "in a transaction") and "d")


@pytest.mark.parametrize("ends", ENDS)
def test_a_connection_with_links_of_every_kind_leaves_nothing_behind(
    ends: Callable[[World, PairedClient], None], world: World
) -> None:
    def each() -> None:
        world.primary.container.default.configuration.declare_queue("q", {})
        client = world.broker.connect()
        attach_every_kind(client)
        ends(world, client)
        world.gone(client)
        world.primary.container.default.configuration.delete_queue("q")
        world.settle_down()

    assert growth(each, ROUNDS) == {}


@pytest.mark.parametrize("ends", LINK_ENDS)
def test_links_of_every_kind_leave_nothing_behind_on_a_connection_that_goes_on(
    ends: Callable[[World, PairedClient], None], world: World
) -> None:
    client = world.broker.connect()

    def each() -> None:
        world.primary.container.default.configuration.declare_queue("q", {})
        client.session = client.connection.session()
        client.session.open()
        attach_every_kind(client)
        ends(world, client)
        free_links(client)
        client.session.close()
        world.settle_down()
        client.session.free()
        client.session = None
        world.primary.container.default.configuration.delete_queue("q")
        world.settle_down()
        world.forget()

    assert growth(each, ROUNDS) == {}


@pytest.mark.parametrize("ends", ENDS)
def test_a_session_leaves_nothing_behind(ends: Callable[[World, PairedClient], None], world: World) -> None:
    def each() -> None:
        client = open_session(world.broker, FIRST)
        client.receiver("q", 1)
        client.sender("q")
        ends(world, client)
        world.gone(client)

    world.primary.container.default.configuration.declare_queue("q", {})
    assert growth(each, ROUNDS) == {}


def test_a_session_that_is_refused_or_stolen_or_times_out_leaves_nothing_behind(world: World) -> None:
    def each() -> None:
        refused = open_session(world.broker, FIRST, resume=True)
        first = open_session(world.broker, FIRST)
        first.receiver("q", 1)
        thief = open_session(world.broker, FIRST)
        thief.receiver("q", 1)
        assert refused.connection.remote_condition
        assert first.connection.remote_condition
        thief.vanish()
        for client in (refused, first, thief):
            world.gone(client)
        for broker in (world.primary, world.entry):
            broker.container.now_ms += 100_000
            broker.container.tick()
        world.settle_down()
        assert not world.primary.container.default.resources.replicated.state.sessions.by_id

    world.primary.container.default.configuration.declare_queue("q", {})
    assert growth(each, ROUNDS) == {}


def test_who_says_nothing_or_is_not_served_leaves_nothing_behind(world: World) -> None:
    def each() -> None:
        world.entry.accept().lost()
        world.entry.container.greeting.refusal = AmqpError(CONNECTION_FORCED, "not now")
        client = world.broker.connect()
        world.gone(client)
        world.entry.container.greeting.refusal = None
        noise = world.entry.accept()
        noise.receive(b"GET / HTTP/1.1\r\n\r\n")
        noise.take_output()
        noise.lost()
        world.settle_down()
        world.forget()

    assert growth(each, ROUNDS) == {}


def ask_management(client: PairedClient, *names: str) -> None:
    replies, requests = client.receiver("$management", 10), client.sender("$management")
    for name in names:
        request: Any = proton.Message(reply_to="$management", correlation_id=1)
        request.properties = {"operation": "READ", "type": "queue", "name": name}
        client.send_all(requests, request)
    assert len(client.received(replies)) == len(names)


@pytest.mark.parametrize("ends", ENDS)
def test_links_to_several_sets_led_elsewhere_leave_nothing_behind(ends: Callable[[World, PairedClient], None]) -> None:
    here, there = SeveralSets(), SeveralSets()
    proxy = PairedProxy(primary=there, proxy=here)
    here.container.default.read_only = False
    here.lead_elsewhere("red")
    there.lead_elsewhere("default")
    world = World("direct")
    world.primary, world.entry, world.broker, world.settle_down = (
        there,
        here,
        cast(PairedBroker, proxy),
        proxy.settle_down,
    )

    def each() -> None:
        client = world.broker.connect()
        anonymous = client.sender(None)
        for name in ("red", "blue", "plain"):
            client.send_all(anonymous, proton.Message(name, address=name))
        ask_management(client, "red", "blue", "amq.there-is-none")
        consumers = [client.receiver(name, 10) for name in ("red", "blue", "plain")]
        for consumer in consumers:
            for delivery, _ in client.received(consumer):
                delivery.update(proton.Delivery.ACCEPTED)
                delivery.settle()
        world.settle_down()
        ends(world, client)
        world.gone(client)
        for broker, name in ((there, "red"), (here, "blue")):  # a queue keeps a block of its last messages
            broker.set(name).configuration.delete_queue(name)
            broker.declare(name, name)
        here.container.default.configuration.delete_queue("plain")
        here.container.default.configuration.declare_queue("plain", {})
        world.settle_down()
        world.forget()

    assert growth(each, ROUNDS) == {}


@pytest.mark.parametrize("can", [True, False], ids=["stream", "messages"])
@pytest.mark.parametrize("goes", ["the peer", "the channel"])
def test_a_broker_of_the_cluster_leaves_nothing_behind(goes: str, can: bool) -> None:
    cluster = Cluster(here=can)

    def each() -> None:
        backup = cluster.backup()
        backup.client.send(b"frame")
        backup.settle_down()
        if goes == "the channel":
            cluster.peers.channels[-1].close("by hand")
            backup.settle_down()
        backup.vanish()
        backup.client.engine.close()
        del backup.client
        cluster.peers.channels.clear()
        cluster.peers.frames.clear()
        cluster.peers.reasons.clear()
        cluster.turn()
        cluster.batches.clear()
        cluster.container.take_notices()

    assert growth(each, ROUNDS) == {}


def free_far(remote: PairedRemote) -> None:
    """What the other broker has of links and sessions that have ended."""
    link = cast(Any, remote.far).link_head(proton.Endpoint.REMOTE_CLOSED)
    while link is not None:
        following = link.next(proton.Endpoint.REMOTE_CLOSED)
        link.close()
        link.free()
        link = following
    remote.settle_down()
    session = remote.far.session_head(proton.Endpoint.REMOTE_CLOSED)
    while session is not None:
        session.close()
        remote.settle_down()
        session.free()
        session = remote.far.session_head(proton.Endpoint.REMOTE_CLOSED)
    remote.settle_down()


def forget_far(remote: PairedRemote, *, is_broken: bool) -> None:
    """What only tests collect of another broker, and of the connection to it if that is `is_broken`."""
    if is_broken:
        remote.transport.unbind()
        remote.connect_far()
    else:
        free_far(remote)
    for several in (remote.refusals, remote.warnings, remote.ended, remote.redirects, remote.again):
        several.clear()
    remote.links.clear()
    remote.here.batches.clear()
    remote.here.container.take_notices()


REMOTE_ENDS = ["client closes", "client is lost", "refused there", "ended there", "connection breaks"]


@pytest.mark.parametrize("end", REMOTE_ENDS)
@pytest.mark.parametrize("kind", ["publisher", "consumer"])
def test_a_link_to_another_broker_leaves_nothing_behind(kind: str, end: str) -> None:
    remote = PairedRemote()

    def each() -> None:
        client = remote.client()
        link = client.sender("orders") if kind == "publisher" else client.receiver("orders", 5)
        if end == "refused there":
            remote.refuse("amqp:not-found", "there is none")
        else:
            far = remote.answer(5 if kind == "publisher" else 0)
            if kind == "publisher":
                client.send_all(link, "a")
            if end == "ended there":
                far.condition = proton.Condition("amqp:resource-deleted", "gone")
                far.close()
                remote.settle_down()
            del far
        if end == "connection breaks":
            remote.cut()
        elif end != "client is lost":
            client.connection.close()
            remote.settle_down()
        client.vanish()
        remote.settle_down()
        remote.here.clients.remove(client)
        forget_far(remote, is_broken=end == "connection breaks")

    assert growth(each, ROUNDS) == {}


@pytest.mark.parametrize("end", ["by hand", "refused there", "connection breaks", "deleted"])
@pytest.mark.parametrize("kind", [InboundBridge, OutboundBridge])
def test_a_bridge_leaves_nothing_behind(kind: Any, end: str) -> None:
    remote = PairedRemote()
    default = remote.here.container.default

    def each() -> None:
        default.configuration.declare_queue("q", {})
        bridge = kind(default, remote.here.queue("q"), TARGET, remote, remote.here.container)
        remote.begin(bridge)
        if end == "refused there":
            remote.refuse("amqp:not-found", "there is none")
        else:
            remote.answer(5 if kind is OutboundBridge else 0)
        if end == "connection breaks":
            remote.cut()
        default.configuration.delete_queue("q")
        remote.settle_down()
        bridge.finish(closed=True)
        remote.settle_down()
        remote.here.container.tick()
        forget_far(remote, is_broken=end == "connection breaks")

    assert growth(each, ROUNDS) == {}


def test_the_map_that_a_controller_drafts_with_every_input_is_freed_with_it() -> None:
    with no_collector():
        draft = ClusterMap()
        draft.replace(ClusterMap())
        freed = ref(draft)
        del draft
        assert freed() is None
