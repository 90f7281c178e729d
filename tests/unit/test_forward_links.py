"""What drives the handing on of messages: to whom, when it is tried again, and what becomes of it where a set moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest

from model_support import message
from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.bundles import Purpose
from qpid_ha_broker.ha.forward_frames import (
    ForwardBegin,
    ForwardCode,
    ForwardDone,
    ForwardFrame,
    ForwardMessage,
    ForwardRefused,
    decode,
    encode,
)
from qpid_ha_broker.ha.forwarding import ForwardedMessage, ForwardReceiver, ForwardSender
from qpid_ha_broker.model.errors import NotPrimary, QueueFull
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.server.runtime.broker_addresses import BrokerAddresses
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.runtime.logs import NoticeLog
from qpid_ha_broker.server.sets import forward_links
from qpid_ha_broker.server.sets.forward_links import SetForwarding
from qpid_ha_broker.server.sets.set_host import SetHost
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


class Brokers:
    """Others, as far as they are connected to: see `SharedConnections`."""

    def __init__(self) -> None:
        self.dialled: list[SubChannel] = []
        self.is_reachable = True

    def open(self, address: str, set_name: str, purpose: Purpose, listener: PeerListener) -> Channel:
        """Who does not answer is not reached."""
        channel = SubChannel(is_open=False)
        self.dialled.append(channel)

        def opened() -> None:
            channel.is_open = True
            listener.opened(channel)

        asyncio.get_running_loop().call_soon(opened if self.is_reachable else partial(listener.closed, channel, "lost"))
        return channel


class Broker:
    """A broker with several sets, of which others lead `red` at first; and its driver."""

    is_in_turn = False

    def __init__(self) -> None:
        self.sets = SeveralSets()
        self.container: Container = self.sets.container
        self.notices = NoticeLog()
        self.sets.lead_elsewhere("red")
        self.red = self.sets.set("red")
        self.red.resources.replicated.log.add_witness(WITNESS)
        self.others = Brokers()
        self.dialled = self.others.dialled
        self.primary = "amqp://beta"
        """Of `red`, as the map says; this broker is `amqp://alpha`."""
        hosts = SimpleNamespace(shared=self.others, arrivals=None)
        addresses = SimpleNamespace(of_primary=lambda set_name: self.primary, own=lambda: "amqp://alpha")
        self.forwarding = SetForwarding(
            cast(Host, self), cast(SetHost, hosts), ClusterMap(), cast(BrokerAddresses, addresses), "alpha"
        )
        self.accept: Callable[[str], PeerListener | str] = hosts.arrivals

    def schedule_turn(self) -> None:
        """The test has them."""

    tell_committed = schedule_turn

    def lead(self, generation: int) -> None:
        """This broker leads `red`, in that generation."""
        self.red.resources.replication.read_only = ""
        self.red.resources.replicated.write(ev.GenerationStarted(generation, "alpha", "", 0, False, ""))
        self.red.read_only = False

    def cease_to_lead(self) -> None:
        """Another broker leads `red`: as its member would have it."""
        self.sets.lead_elsewhere("red")
        self.red.end_links(ServedElsewhere(self.container.directory, "red"), browsers=False)

    def forward(self, *texts: str, queues: tuple[str, ...] = ("red",)) -> list[ForwardedMessage]:
        return [self.forwarding.forward("red", queues, message(text)) for text in texts]

    async def work(self, rounds: int = 4) -> None:
        """So many rounds of the loop, each with a turn."""
        for _ in range(rounds):
            self.sets.turn()
            self.forwarding.work()
            await asyncio.sleep(0)

    async def commit(self) -> None:
        self.sets.acknowledge("red")
        await self.work()

    @property
    def sender(self) -> ForwardSender:
        return self.forwarding.links["red"].sender

    @property
    def queued(self) -> int:
        return self.sets.count("red")

    def arrive(self, *frames: ForwardFrame) -> SubChannel:
        """Another broker opens a sub-channel, and says so."""
        end = SubChannel()
        listener = self.accept("red")
        assert not isinstance(listener, str)
        self.listener, channel = listener, cast(Channel, end)
        listener.opened(channel)
        for frame in frames:
            listener.received(channel, encode(frame))
        return end


Story = Callable[[Broker], Awaitable[None]]


def tell(story: Story) -> None:
    async def run() -> None:
        await story(Broker())

    asyncio.run(run())


def taken(number: int, text: str = "m") -> ForwardMessage:
    return ForwardMessage(number, ("red",), False, 4, 0, b"", 0, message(text).payload)


def test_what_is_kept_for_who_led_the_set_before_is_taken_here() -> None:
    async def story(broker: Broker) -> None:
        broker.forward("1", "2")
        await broker.work()
        (channel,) = broker.dialled
        assert [type(frame) for frame in channel.sent] == [ForwardBegin, ForwardMessage, ForwardMessage]
        broker.lead(2)
        await broker.work()
        assert (broker.queued, channel.is_open, broker.sender.is_idle) == (2, False, False)
        assert not broker.forwarding.has_unwritten("red")
        await broker.commit()
        assert broker.sender.is_idle
        assert not broker.red.links, "what comes next is written at once"

    tell(story)


def test_nothing_is_handed_on_while_another_broker_may_have_the_exchange() -> None:
    async def story(broker: Broker) -> None:
        default = broker.container.default
        broker.forward("sent before")
        await broker.work()
        (channel,) = broker.dialled
        default.prove_lead = lambda: LeadProof.MISSING
        waits, _ = broker.forward("1", "2")
        await broker.work()
        assert [type(frame) for frame in channel.sent] == [ForwardBegin, ForwardMessage]
        default.prove_lead = lambda: LeadProof.PROVEN
        await broker.work()
        assert [type(frame) for frame in channel.sent] == [ForwardBegin, *[ForwardMessage] * 3]
        assert waits.failure is None

    tell(story)


def test_who_has_the_exchange_no_more_hands_on_what_was_sent_before_and_nothing_else() -> None:
    async def story(broker: Broker) -> None:
        default = broker.container.default
        (sent,) = broker.forward("sent before")
        await broker.work()
        default.prove_lead = lambda: LeadProof.MISSING
        unsent = broker.forward("1", "2")
        await broker.work()
        default.read_only = True  # it was replaced, and has found out
        default.prove_lead = lambda: LeadProof.PROVEN
        await broker.work()
        assert [type(frame) for frame in broker.dialled[0].sent] == [ForwardBegin, ForwardMessage]
        assert (sent.failure, [type(message.failure) for message in unsent]) == (None, [NotPrimary] * 2)
        broker.sender.check_invariants()

    tell(story)


def test_it_is_taken_here_however_often_others_were_tried_in_vain() -> None:
    async def story(broker: Broker) -> None:
        broker.others.is_reachable = False
        broker.forward("1")
        await broker.work()
        broker.lead(2)
        await broker.work()
        assert broker.queued == 1

    tell(story)


def test_the_next_primary_is_tried_at_once_though_the_last_one_was_tried_in_vain() -> None:
    async def story(broker: Broker) -> None:
        broker.others.is_reachable = False
        broker.forward("1")
        await broker.work()
        assert len(broker.dialled) == 1
        broker.others.is_reachable = True
        broker.primary = "amqp://gamma"
        await broker.work()
        assert [len(channel.sent) for channel in broker.dialled] == [0, 2]

    tell(story)


@pytest.mark.parametrize("answers", [True, False], ids=["it refuses", "it is not reached"])
def test_who_does_not_lead_the_set_yet_is_asked_again_after_a_pause_and_not_in_each_turn(answers: bool) -> None:
    """A sub-channel is open before the other broker has agreed to it. Who answers is about to lead, and the pause is
    the first one each time."""

    async def story(broker: Broker) -> None:
        broker.others.is_reachable = answers
        broker.forward("1")
        link, asked_ms = broker.forwarding.links["red"], list[int]()
        for now_ms in range(0, 1000, 10):
            link.work(now_ms / 1000)
            await asyncio.sleep(0)
            if len(broker.dialled) > len(asked_ms):
                asked_ms.append(now_ms)
                if answers:
                    channel = cast(Channel, broker.dialled[-1])
                    link.work(now_ms / 1000)
                    link.received(channel, encode(ForwardRefused(0, ForwardCode.NOT_PRIMARY, "gamma leads")))
        pauses = [later - earlier for earlier, later in pairwise(asked_ms)]
        assert pauses[:3] == pytest.approx([50, 50, 50] if answers else [50, 100, 200], abs=10)

    tell(story)


def test_who_is_recorded_as_primary_and_does_not_serve_the_set_yet_dials_nobody() -> None:
    async def story(broker: Broker) -> None:
        broker.primary = "amqp://alpha"
        broker.forward("1")
        await broker.work()
        assert broker.dialled == []
        broker.lead(2)
        await broker.work()
        assert broker.queued == 1

    tell(story)


def test_what_was_taken_here_and_not_committed_goes_to_who_leads_the_set_next() -> None:
    async def story(broker: Broker) -> None:
        broker.forward("1")
        broker.lead(2)
        await broker.work()
        broker.cease_to_lead()
        assert broker.forwarding.has_unwritten("red"), "at once: what comes must not go another way"
        assert not broker.sender.is_idle
        await broker.work()
        assert broker.forwarding.has_unwritten("red")
        assert [type(frame) for frame in broker.dialled[-1].sent] == [ForwardBegin, ForwardMessage]

    tell(story)


def test_a_steady_publisher_comes_to_write_at_once_though_nothing_is_committed() -> None:
    """In each round of the loop it brings another message, behind those that are on their way."""

    async def story(broker: Broker) -> None:
        broker.forward("1", "2")
        broker.lead(2)
        handed_on = 0
        for number in range(5):
            await broker.work(1)
            if broker.forwarding.has_unwritten("red"):
                broker.forward(str(number))
                handed_on += 1
        assert handed_on < 5
        assert not broker.sender.is_idle
        assert broker.queued == 2 + handed_on

    tell(story)


def test_much_is_taken_here_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_links, "SENT_MOST", 4)

    async def story(broker: Broker) -> None:
        broker.forward(*map(str, range(10)))
        broker.lead(2)
        seen = []
        for _ in range(6):
            await broker.work(1)
            broker.red.flush_accepted()
            seen.append(broker.queued)
        assert seen[-1] == 10
        assert all(later - earlier <= 4 for earlier, later in pairwise(seen))
        assert not broker.forwarding.has_unwritten("red")

    tell(story)


def test_here_too_a_refused_message_fails_and_those_behind_it_are_taken_once() -> None:
    async def story(broker: Broker) -> None:
        tokens = [broker.forward(name, queues=(name,))[0] for name in ("full", "full", "red", "full", "red")]
        broker.forwarding._map.apply(1, ev.SetPlaced("red", ("alpha",), (), "", 0, 0))
        broker.forwarding._map.apply(2, ev.QueuePlaced("full", "red", {}, False))
        broker.lead(2)
        broker.red.configuration.declare_queue("full", {"qpid.max_count": 1})
        await broker.work(12)
        assert not broker.forwarding.has_unwritten("red")
        await broker.commit()
        assert [token.is_committed for token in tokens] == [True, False, True, False, True]
        assert isinstance(tokens[1].failure, QueueFull)
        assert broker.queued == 2

    tell(story)


def test_nothing_fails_and_nothing_is_written_here_once_the_set_is_about_to_be_handed_over() -> None:
    async def story(broker: Broker) -> None:
        (token,) = broker.forward("1")
        broker.lead(2)
        await broker.work(1)
        broker.red.read_only = True
        await broker.work()
        assert (broker.queued, token.failure, broker.forwarding.has_unwritten("red")) == (0, None, True)

    tell(story)


@pytest.mark.parametrize("leads_again", [True, False])
def test_a_broker_that_has_lost_the_set_meanwhile_ends_the_sub_channel_and_confirms_nothing(leads_again: bool) -> None:
    """Its log may have come as far as what it had taken, with the messages of others in their place."""

    async def story(broker: Broker) -> None:
        broker.lead(2)
        end = broker.arrive(ForwardBegin(b"gamma/red"), taken(1))
        await broker.work()
        broker.cease_to_lead()
        assert not end.is_open
        if leads_again:
            broker.lead(4)
        await broker.commit()
        assert (end.sent, end.is_open) == ([], False)

    tell(story)


def test_a_broker_that_leads_the_set_confirms_what_is_committed() -> None:
    async def story(broker: Broker) -> None:
        broker.lead(2)
        end = broker.arrive(ForwardBegin(b"gamma/red"), taken(1))
        await broker.work()
        assert (end.sent, broker.queued) == ([], 1)
        await broker.commit()
        assert (end.sent, end.is_open) == ([ForwardDone(1)], True)

    tell(story)


def test_a_broker_that_does_not_lead_the_set_says_so() -> None:
    async def story(broker: Broker) -> None:
        assert broker.accept("red") == "this broker does not lead the resource set red"
        broker.lead(2)
        end, listener = SubChannel(), broker.accept("red")
        assert not isinstance(listener, str)
        broker.cease_to_lead()
        listener.opened(cast(Channel, end))
        assert not end.is_open

    tell(story)


def test_what_is_no_frame_of_a_sender_ends_the_sub_channel() -> None:
    async def story(broker: Broker) -> None:
        broker.lead(2)
        end = broker.arrive(ForwardDone(1))
        assert (end.sent, end.is_open) == ([], False)
        assert not broker.red.links

    tell(story)


def test_what_a_sender_believes_to_be_lost_does_not_go_on_beside_its_next_sub_channel() -> None:
    async def story(broker: Broker) -> None:
        broker.lead(2)
        first = broker.arrive(ForwardBegin(b"gamma/red"), taken(1))
        second = broker.arrive(ForwardBegin(b"gamma/red"), taken(1))
        await broker.work()
        await broker.commit()
        assert (first.is_open, second.is_open, broker.queued) == (False, True, 1)
        assert second.sent == [ForwardDone(1)]

    tell(story)


def test_a_producer_that_hands_on_is_not_forgotten_for_new_ones_as_long_as_it_is_connected() -> None:
    """What is sent again would be there twice."""

    async def story(broker: Broker) -> None:
        broker.red.resources.deduplication.producers = 10
        broker.lead(2)
        first = broker.arrive(ForwardBegin(b"gamma/red"), taken(1))
        for number in range(20):
            broker.arrive(ForwardBegin(b"%d/red" % number), taken(1))
            await broker.work(1)
            broker.listener.closed(cast(Channel, broker), "gone")
        await broker.commit()
        assert first.is_open
        again = broker.arrive(ForwardBegin(b"gamma/red"), taken(1))
        await broker.commit()
        assert again.sent == [ForwardDone(1)]
        assert broker.queued == 21

    tell(story)


def test_a_bug_ends_the_sub_channel_and_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: Broker) -> None:
        broker.lead(2)
        end = broker.arrive(ForwardBegin(b"gamma/red"), taken(1))
        await broker.work()
        monkeypatch.setattr(ForwardReceiver, "committed", None)
        await broker.commit()
        assert (end.is_open, dict(broker.red.links)) == (False, {})
        assert broker.notices.bugs_total == 1

    tell(story)


def test_there_is_no_sender_for_default() -> None:
    async def story(broker: Broker) -> None:
        assert not broker.forwarding.has_unwritten(DEFAULT_SET)

    tell(story)
