"""What the members of all sets ask other brokers, over one sub-channel to each: no task and no channel per question.

A broker has to ask for three hundred sets at once when another one fails.
"""

from __future__ import annotations

import asyncio
import itertools
import logging

from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.bundles import Purpose
from qpid_ha_broker.ha.frame_codec import decode, encode
from qpid_ha_broker.ha.frames import Answer, FrameError
from qpid_ha_broker.server.clients.shared_connections import SharedConnections
from qpid_ha_broker.server.peers.peer_asker import NO_ANSWER, SAID, Feed
from qpid_ha_broker.server.peers.sub_channels import SubChannel

log = logging.getLogger("peers")

UNUSED_S = 20.0
"""A sub-channel for questions is kept for so long after the last one."""


class _SetQuestion:
    """A question that was put to several brokers."""

    __slots__ = ("addresses", "answers", "awaited", "feed", "number", "silent", "timer")

    def __init__(self, effect: fx.Ask, feed: Feed) -> None:
        self.number = effect.question.number
        """As the member has numbered it."""
        self.addresses = effect.addresses
        self.awaited = set(effect.addresses)
        self.answers: dict[str, Answer] = {}
        self.silent: list[fx.SilentPeer] = []
        self.feed = feed
        self.timer: asyncio.TimerHandle | None = None


class SetQuestions:
    """The promise: each question of a member is answered by one input, within the limit that it sets.

    For the listener's methods see `peer_frames.PeerListener`.
    """

    def __init__(self, shared: SharedConnections) -> None:
        self._shared = shared
        self._channels: dict[str, SubChannel] = {}
        self._used_s: dict[str, float] = {}
        self._unsent: dict[Channel, list[bytes]] = {}
        """Until the sub-channel is open."""
        self._asked: dict[int, _SetQuestion] = {}
        self._numbers = itertools.count(1)

    def ask_for(self, effect: fx.Ask, feed: Feed) -> None:
        """`PeersAnswered` follows, to `feed`, but not at once."""
        loop = asyncio.get_running_loop()
        number, asked = next(self._numbers), _SetQuestion(effect, feed)
        self._asked[number] = asked
        asked.timer = loop.call_later(effect.limit_s if asked.awaited else 0, self._finish, number)
        frame = encode(effect.question._replace(number=number))
        for address in effect.addresses:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._shared.open(address, "", Purpose.ASK, self)
                self._channels[address] = channel
                self._unsent[channel] = []
            self._used_s[address] = loop.time()
            if channel.is_open:
                channel.send(frame)
            else:
                self._unsent[channel].append(frame)

    def _finish(self, number: int) -> None:
        asked = self._asked.pop(number, None)
        if asked is None:
            return
        if asked.timer is not None:
            asked.timer.cancel()
        answers = tuple([asked.answers[address] for address in asked.addresses if address in asked.answers])
        unreachable = tuple([address for address in asked.addresses if address not in asked.answers])
        for address in asked.awaited:
            channel = self._channels.get(address)
            if channel is not None and channel.is_open:
                asked.silent.append(fx.SilentPeer(address, NO_ANSWER))
        asked.feed(fx.PeersAnswered(asked.number, answers, unreachable, tuple(asked.silent)))

    # --- what the sub-channels tell

    def opened(self, channel: Channel) -> None:
        """Frames can be sent."""
        for frame in self._unsent.pop(channel, []):
            channel.send(frame)

    def received(self, channel: Channel, data: bytes) -> None:
        """An answer came."""
        try:
            frame = decode(data)
        except FrameError as error:
            log.warning("%s: %s", channel.peer, error)
            return
        asked = self._asked.get(frame.number) if isinstance(frame, Answer) else None
        if asked is None or not isinstance(frame, Answer):
            return
        address = next((address for address, each in self._channels.items() if each is channel), "")
        if address in asked.awaited:
            asked.awaited.discard(address)
            asked.answers[address] = frame._replace(number=asked.number)
            if not asked.awaited:
                self._finish(frame.number)

    def closed(self, channel: Channel, reason: str) -> None:
        """That broker cannot be asked."""
        self._unsent.pop(channel, None)
        for address in [address for address, each in self._channels.items() if each is channel]:
            del self._channels[address]
            for number, asked in list(self._asked.items()):
                if address in asked.awaited and reason.startswith(SAID):
                    asked.silent.append(fx.SilentPeer(address, reason))
                asked.awaited.discard(address)
                if not asked.awaited:
                    self._finish(number)

    # --- now and then

    def tick(self) -> None:
        """Let go of sub-channels that nobody has used for long."""
        now_s = asyncio.get_running_loop().time()
        for address, channel in list(self._channels.items()):
            if now_s - self._used_s[address] > UNUSED_S:
                del self._channels[address]
                channel.close("not needed any more")

    def close(self) -> None:
        """Nobody waits for an answer any more."""
        for asked in self._asked.values():
            if asked.timer is not None:
                asked.timer.cancel()
        self._asked.clear()
