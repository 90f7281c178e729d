"""The channels of the core's links: frames in and out, and how much waits on each."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.peer_link import PeerChannel
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, RESOURCE_LIMIT, UNAUTHORIZED_ACCESS
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frame_codec import decode, encode
from qpid_ha_broker.ha.frames import Answer, Batch, Frame, FrameError, Question, Topic
from qpid_ha_broker.ha.link_ends import LinkEnd, end_of
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.server.peers.page_questions import PageAsked, PageRequest, nobody_shows
from qpid_ha_broker.server.peers.peer_channels import OutgoingChannel
from qpid_ha_broker.server.peers.sub_channels import SubChannel
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.host import Host

log = logging.getLogger("cluster")

OF_DRIVER: Final = (Topic.QUERY, Topic.CONNECTIONS)
"""What the core is not asked about."""
FULL_BYTES = 1024 * 1024
"""Unsent on a channel: beyond it, only the live stream is sent."""
ROOMY_BYTES = 256 * 1024
CUT_BYTES = 256 * 1024 * 1024
"""Unsent on a channel: beyond it, the peer is given up. It can come back and compare."""


def link_end(reason: str) -> LinkEnd:
    """Of the text with which a channel has ended: an AMQP condition with its description, or that of a sub-channel's
    end, or what the operating system said."""
    if reason.startswith(UNAUTHORIZED_ACCESS):
        return LinkEnd.NOT_LET_IN
    if reason.startswith(RESOURCE_LIMIT):
        return LinkEnd.NO_PLACE
    return end_of(reason.removeprefix(f"{CONNECTION_FORCED}: "))


ConnectionsAsked = Callable[[Question], tuple[bool, str]]
"""What another broker wants of the connections here: whether it is had, and the answer as JSON, or why not."""

FactsAsked = Callable[[str], Mapping[str, object]]
CommandAsked = Callable[[str], Awaitable[Mapping[str, object] | None]]
"""Carries out what a broker of the cluster passes on; None: it wants facts."""
"""What another broker gets besides the facts of this one, by what it has asked for; an older one asks for nothing."""


class Link:
    """A channel under the number by which the core knows it."""

    __slots__ = ("channel", "is_known", "number", "writable")

    def __init__(self, number: int, channel: Channel, *, is_known: bool) -> None:
        self.number = number
        self.channel = channel
        self.is_known = is_known
        """The core has heard of it."""
        self.writable = True


class OpenedChannel(Channel, Protocol):
    """One that this broker opens."""

    may_read: Callable[[], bool]
    """Asked after each piece that was read. Until it says yes again, the other end has to wait."""

    @property
    def was_connected(self) -> bool:
        """Whether somebody took the connection."""

    def flush(self) -> None:
        """Write what was sent."""


class ChannelOpener(Protocol):
    """Opens channels to addresses."""

    def dial(self, address: str, listener: PeerListener, limit_s: float) -> OpenedChannel:
        """A channel that is being opened; `listener` hears whether it was, within `limit_s`."""


class LinksHost(Host, Protocol):
    """What the channels need of the broker."""

    def unwritten_bytes(self, connection: Connection) -> int:
        """What its socket has not taken yet."""

    async def facts(self) -> dict[str, object]:
        """What `qpid-ha query` shows."""


class PeerLinks:
    """The promise: the core hears of each link that it knows: that it is open, what came, and once that it is lost.

    Both ends are here: channels that this broker opens for the core, and those that peers open. For the listener's
    methods see `peer_frames.PeerListener`. `has_room`: whether more of a stream may be read.
    """

    def __init__(
        self,
        broker: LinksHost,
        member: Member,
        dialler: ChannelOpener,
        feed: Callable[[fx.Input], None],
        has_room: Callable[[], bool],
    ) -> None:
        self.is_any_full = False
        """More waits on a channel than should, as of the last `watch`."""
        self._broker = broker
        self._member = member
        self._dialler = dialler
        self._feed = feed
        self.has_room = has_room
        self.connections_asked: ConnectionsAsked = _nobody_tells
        self.facts_asked: FactsAsked = _nothing_besides
        self.page_asked: PageAsked = nobody_shows
        self.command_asked: CommandAsked = _no_command
        self._links: dict[int, Link] = {}
        self._numbers: dict[Channel, int] = {}
        self._incoming = itertools.count(1)
        self._unflushed: dict[OutgoingChannel, None] = {}
        self._encoded: tuple[Batch | None, bytes] = (None, b"")
        self._answers = BackgroundTasks()

    @property
    def count(self) -> int:
        """How many channels there are."""
        return len(self._links)

    # --- what the channels tell

    def accept(self, channel: SubChannel) -> PeerListener | str:
        """Another broker wants to follow the set on it."""
        channel.may_read = self.has_room
        return self

    def opened(self, channel: Channel) -> None:
        """One that we opened is there, or a peer has opened one."""
        number = self._numbers.get(channel)
        if number is not None:
            self._feed(fx.LinkOpened(number))
            return
        number = self._numbers[channel] = next(self._incoming)
        self._links[number] = Link(number, channel, is_known=False)

    def received(self, channel: Channel, data: bytes) -> None:
        """A frame came."""
        number = self._numbers.get(channel)
        if number is None:
            return
        self._links[number].is_known = True
        try:
            frame = decode(data)
        except FrameError as error:
            self._feed(fx.FrameDamaged(number, str(error)))
            return
        if not isinstance(frame, Question) or frame.topic not in OF_DRIVER:
            self._feed(fx.FrameReceived(number, frame))
        elif frame.topic is Topic.QUERY:
            self._answers.start(self._answer_query(number, frame))
        else:
            self.send(fx.Send(number, self._answer_connections(frame)))

    async def _answer_query(self, link: int, question: Question) -> None:
        text = json.dumps(await self._told(question))
        self.send(fx.Send(link, self._member.answer(question.number, True, text)))
        self.flush()

    async def _told(self, question: Question) -> Mapping[str, object]:
        """In answer to a query, by what it asks for besides: a part of the page, a command, or more facts."""
        page = PageRequest.read(question.request)
        if page is not None:
            return (await self.page_asked(page)).facts()
        cluster = self._member.status.cluster
        is_ours = bool(cluster) and cluster == question.cluster
        told = await self.command_asked(question.request) if is_ours else None
        return {**await self._broker.facts(), **self.facts_asked(question.request)} if told is None else told

    def _answer_connections(self, question: Question) -> Answer:
        cluster = self._member.status.cluster
        if cluster and question.cluster and cluster != question.cluster:
            return self._member.answer(question.number, False, f"this broker belongs to the cluster {cluster}")
        return self._member.answer(question.number, *self.connections_asked(question))

    def asked(self, channel: Channel, question: Question) -> None:
        """A question came on a channel that is for questions about several sets; the answer goes there."""
        if channel not in self._numbers:
            self.opened(channel)
        number = self._numbers[channel]
        self._links[number].is_known = True
        self._feed(fx.FrameReceived(number, question))

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone."""
        number = self._numbers.pop(channel, None)
        if number is None:
            return
        link = self._links.pop(number)
        if link.is_known:
            self._feed(fx.LinkLost(number, reason, link_end(reason)))

    # --- what the core wants

    def connect(self, effect: fx.Connect) -> None:
        """`LinkOpened` or `LinkLost` follows."""
        channel = self._dialler.dial(effect.address, self, self._member.settings.link_timeout_s)
        channel.may_read = self.has_room
        self._numbers[channel] = effect.link
        self._links[effect.link] = Link(effect.link, channel, is_known=True)

    def send(self, effect: fx.Send) -> None:
        """Written with the next `flush`, or at the end of the turn."""
        link = self._links.get(effect.link)
        if link is None:  # it was lost, and the core will hear of it
            return
        channel = link.channel
        channel.send(self._encode(effect.frame))
        if isinstance(channel, OutgoingChannel):
            self._unflushed[channel] = None
        elif not self._broker.is_in_turn:
            self._broker.schedule_turn()

    def _encode(self, frame: Frame) -> bytes:
        """A batch for several backups is encoded once."""
        if not isinstance(frame, Batch):
            return encode(frame)
        if self._encoded[0] is not frame:
            self._encoded = (frame, encode(frame))
        return self._encoded[1]

    def close(self, effect: fx.Close) -> None:
        """The core has forgotten the link; what was sent on it still goes out."""
        link = self._links.pop(effect.link, None)
        if link is not None:
            del self._numbers[link.channel]
            link.channel.close(effect.reason)
            self._broker.schedule_turn()

    def flush(self) -> None:
        """All effects of an input are carried out: write what was sent on channels of our own."""
        self._encoded = (None, b"")
        if self._unflushed:
            channels, self._unflushed = self._unflushed, {}
            for channel in channels:
                channel.flush()

    # --- now and then

    def watch(self) -> None:
        """Let the core know which links are full, and which are not any more; give up peers that do not read."""
        for link in list(self._links.values()):
            unsent = link.channel.unsent_bytes
            if isinstance(link.channel, PeerChannel):
                unsent += self._broker.unwritten_bytes(link.channel.connection)
            if unsent > CUT_BYTES:
                log.warning("%s is given up: %d bytes wait for it", link.channel.peer, unsent)
                link.channel.close("it does not read")
                self.closed(link.channel, f"{unsent} bytes wait for it")
            elif link.is_known and (unsent > FULL_BYTES if link.writable else unsent < ROOMY_BYTES):
                link.writable = not link.writable
                self._feed(fx.LinkWritable(link.number, link.writable))
        self.is_any_full = not all(link.writable for link in self._links.values())

    def close_all(self, reason: str) -> None:
        """The broker ends, and the core hears of nothing any more."""
        self._answers.cancel()
        for link in list(self._links.values()):
            link.channel.close(reason)
        self._links.clear()
        self._numbers.clear()


def _nothing_besides(_request: str) -> Mapping[str, object]:
    """Nobody else has anything to tell."""
    return {}


async def _no_command(_request: str) -> Mapping[str, object] | None:
    """Nobody carries out commands here."""
    return None


def _nobody_tells(_question: Question) -> tuple[bool, str]:
    return False, "nobody tells of connections here"
