"""What drives the handing on of messages: to whom, when it is tried again, and what becomes of it where a set moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from model_support import message
from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.forward_frames import ForwardBegin, ForwardDone, ForwardFrame, ForwardMessage, decode, encode
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.sets.forward_links import ForwardArrivals, ForwardLinks
from several_sets import WITNESS, SeveralSets


class SubChannel:
    """One end, of which the other one is the test's."""

    peer = "beta"
    unsent_bytes = 0

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.sent: list[ForwardFrame] = []

    def send(self, data: bytes) -> None:
        """It is sent."""
        self.sent.append(decode(data))

    def close(self, reason: str) -> None:
        """It ends."""
        self.is_open = False


class Broker:
    """A broker with several sets, of which others lead `red` at first; and its driver."""

    def __init__(self) -> None:
        self.sets = SeveralSets()
        self.container: Container = self.sets.container
        self.sets.lead_elsewhere("red")
        self.red = self.sets.set("red")
        self.red.resources.replicated.log.add_witness(WITNESS)
        self.dialled: list[SubChannel] = []
        self.is_reachable = True
        host = cast(Host, self)
        self.links = ForwardLinks(host, "alpha", self._dial, self.find, lambda _: False)
        self.arrivals = ForwardArrivals(host, "red", self.find)

    def _dial(self, set_name: str, listener: PeerListener) -> Channel | None:
        channel = SubChannel(is_open=False)
        self.dialled.append(channel)
        if not self.is_reachable:
            return None

        def opened() -> None:
            channel.is_open = True
            listener.opened(channel)

        asyncio.get_running_loop().call_soon(opened)
        return channel

    def find(self, set_name: str) -> HostedSet | None:
        """As of a set that is led here."""
        return None if self.red.read_only else self.red

    def schedule_turn(self) -> None:
        """The test has them."""

    want_turn = schedule_turn

    def lead(self, generation: int) -> None:
        """This broker leads `red`, in that generation."""
        self.red.resources.replication.read_only = ""
        self.red.resources.replicated.write(ev.GenerationStarted(generation, "alpha", "", 0, False, ""))
        self.red.read_only = False

    def forward(self, *texts: str) -> None:
        for text in texts:
            self.links.forwarder.forward("red", ("red",), message(text))

    async def work(self) -> None:
        """A turn, and a round of the loop."""
        self.links.work()
        await asyncio.sleep(0)
        self.links.work()

    async def commit(self) -> None:
        self.sets.acknowledge("red")
        self.links.tell_committed()
        self.arrivals.tell_committed()

    @property
    def is_idle(self) -> bool:
        return self.links.forwarder.senders["red"].is_idle

    @property
    def queued(self) -> int:
        return self.sets.count("red")


Story = Callable[[Broker], Awaitable[None]]


def tell(story: Story) -> None:
    async def run() -> None:
        await story(Broker())

    asyncio.run(run())


def test_what_is_kept_for_who_led_the_set_before_is_taken_here() -> None:
    async def story(broker: Broker) -> None:
        broker.forward("1", "2")
        await broker.work()
        (channel,) = broker.dialled
        assert [type(frame) for frame in channel.sent] == [ForwardBegin, ForwardMessage, ForwardMessage]
        broker.lead(2)
        await broker.work()
        assert (broker.queued, channel.is_open, broker.is_idle) == (2, False, False)
        assert not broker.links.forwarder.has_unwritten("red")
        await broker.commit()
        assert broker.is_idle

    tell(story)


def test_it_is_taken_here_however_often_others_were_tried_in_vain() -> None:
    async def story(broker: Broker) -> None:
        broker.is_reachable = False
        broker.forward("1")
        await broker.work()
        broker.lead(2)
        await broker.work()
        assert broker.queued == 1

    tell(story)


def test_the_next_primary_is_tried_at_once_though_the_last_one_was_tried_in_vain() -> None:
    async def story(broker: Broker) -> None:
        broker.is_reachable = False
        broker.forward("1")
        await broker.work()
        assert len(broker.dialled) == 1
        broker.is_reachable = True
        broker.links.primary_changed("red")
        await broker.work()
        assert [len(channel.sent) for channel in broker.dialled] == [0, 2]

    tell(story)


def test_what_was_taken_here_and_not_committed_goes_to_who_leads_the_set_next() -> None:
    async def story(broker: Broker) -> None:
        broker.forward("1")
        broker.lead(2)
        await broker.work()
        broker.sets.lead_elsewhere("red")
        broker.links.tell_committed()
        assert not broker.is_idle
        await broker.work()
        assert broker.links.forwarder.has_unwritten("red")
        await broker.work()
        assert [type(frame) for frame in broker.dialled[-1].sent] == [ForwardBegin, ForwardMessage]

    tell(story)


@pytest.mark.parametrize("leads_again", [True, False])
def test_a_broker_that_has_lost_the_set_meanwhile_ends_the_sub_channel_and_confirms_nothing(leads_again: bool) -> None:
    async def story(broker: Broker) -> None:
        broker.lead(2)
        end = SubChannel()
        channel = cast(Channel, end)
        broker.arrivals.opened(channel)
        broker.arrivals.received(channel, encode(ForwardBegin(b"gamma/red")))
        taken = ForwardMessage(1, ("red",), False, 4, 0, b"", 0, message("1").payload)
        broker.arrivals.received(channel, encode(taken))
        broker.sets.lead_elsewhere("red")
        if leads_again:
            broker.lead(4)
        await broker.commit()
        assert (end.sent, end.is_open) == ([], False)

    tell(story)


def test_a_broker_that_leads_the_set_confirms_what_is_committed() -> None:
    async def story(broker: Broker) -> None:
        broker.lead(2)
        end = SubChannel()
        channel = cast(Channel, end)
        broker.arrivals.opened(channel)
        broker.arrivals.received(channel, encode(ForwardBegin(b"gamma/red")))
        taken = ForwardMessage(1, ("red",), False, 4, 0, b"", 0, message("1").payload)
        broker.arrivals.received(channel, encode(taken))
        broker.arrivals.tell_committed()
        assert end.sent == []
        await broker.commit()
        assert (end.sent, end.is_open) == ([ForwardDone(1)], True)

    tell(story)


def test_there_is_no_sender_for_default() -> None:
    async def story(broker: Broker) -> None:
        assert not broker.links.forwarder.has_unwritten(DEFAULT_SET)

    tell(story)
