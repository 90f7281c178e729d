"""Asking other brokers: all at once, with a limit, over channels that are kept for the next question.

Who does not answer in time counts as unreachable. Channels stay open for a while, because the next question is often
the one that cannot wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frame_codec import decode, encode
from qpid_ha_broker.ha.frames import Answer, FrameError, Question, Topic
from qpid_ha_broker.server.peers.peer_channels import Dialler, OutgoingChannel

log = logging.getLogger("peers")

UNUSED_S = 60.0
"""A channel for questions is kept for so long after the last one."""
OUR_NUMBERS = 1 << 40
"""The driver's own questions are numbered from here on; the core's are far below."""


SAID: Final = "amqp:"
"""What the other broker itself gave as the reason for the end of a channel begins so."""
NO_ANSWER: Final = "it took the connection, and gave no answer"


Feed = Callable[[fx.Input], None]


class QuestionCarrier(Protocol):
    """Asks other brokers."""

    def ask_for(self, effect: fx.Ask, feed: Feed) -> None:
        """`PeersAnswered` follows, to `feed`, but not at once."""


class Unanswered(NamedTuple):
    """Nothing came from an address in time."""

    why: str
    is_there: bool = False
    """A process took the connection: it said that this broker is not let in, or nothing."""


class _Lost(Exception):
    """The channel is gone before an answer came."""


class _Line:
    """A channel for questions, and who waits for an answer on it."""

    def __init__(self) -> None:
        self.channel: OutgoingChannel | None = None
        self.used_s = 0.0
        self.is_lost = False
        self.why_lost = ""
        self._unsent: list[bytes] = []
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    async def ask(self, number: int, frame: bytes) -> Answer:
        """Raises _Lost."""
        if self.is_lost or self.channel is None:
            raise _Lost(self.why_lost)
        loop = asyncio.get_running_loop()
        self.used_s = loop.time()
        waiter: asyncio.Future[Answer] = loop.create_future()
        self._waiting[number] = waiter
        if self.channel.is_open:
            self.channel.send(frame)
            self.channel.flush()
        else:
            self._unsent.append(frame)
        try:
            return await waiter
        finally:
            self._waiting.pop(number, None)

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def opened(self, channel: Channel) -> None:
        for frame in self._unsent:
            channel.send(frame)
        self._unsent.clear()

    def received(self, channel: Channel, data: bytes) -> None:
        try:
            frame = decode(data)
        except FrameError as error:
            log.warning("%s: %s", channel.peer, error)
            return
        waiter = self._waiting.get(frame.number) if isinstance(frame, Answer) else None
        if waiter is not None and isinstance(frame, Answer) and not waiter.done():
            waiter.set_result(frame)

    def closed(self, channel: Channel, reason: str) -> None:
        self.is_lost, self.why_lost = True, reason
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(_Lost(reason))


class PeerAsker:
    """Asks brokers by address, and keeps a channel to each for the next question."""

    def __init__(self, dialler: Dialler) -> None:
        self._dialler = dialler
        self._lines: dict[str, _Line] = {}
        self._last_number = OUR_NUMBERS

    def number(self) -> int:
        """For a question of the driver's own."""
        self._last_number += 1
        return self._last_number

    async def ask(self, question: Question, addresses: Sequence[str], limit_s: float) -> dict[str, Answer | Unanswered]:
        """What each of `addresses` has answered within `limit_s`, in their order, or why nothing came."""
        frame = encode(question)
        answers = await asyncio.gather(*[self._ask_one(address, question, frame, limit_s) for address in addresses])
        return dict(zip(addresses, answers, strict=True))

    async def _ask_one(self, address: str, question: Question, frame: bytes, limit_s: float) -> Answer | Unanswered:
        """A kept channel may lead to a process that is gone without a word: then a new one is tried at once.

        But a demand to hand over is made once: it is long in being answered, and must not seem to be two.
        """
        line: _Line | None = None
        try:
            async with asyncio.timeout(limit_s):
                kept = self._lines.get(address)
                if kept is not None:
                    patience_s = limit_s if question.topic is Topic.STEP_DOWN else limit_s / 3
                    try:
                        async with asyncio.timeout(patience_s):
                            return await kept.ask(question.number, frame)
                    except (_Lost, TimeoutError):
                        self._forget(address, kept)
                line = self._new_line(address, limit_s)
                return await line.ask(question.number, frame)
        except _Lost as lost:
            return Unanswered(str(lost), str(lost).startswith(SAID))
        except TimeoutError:
            is_there = line is None or (line.channel is not None and line.channel.was_connected)
            return Unanswered(NO_ANSWER, True) if is_there else Unanswered(f"no answer within {limit_s:g} s")

    def _new_line(self, address: str, limit_s: float) -> _Line:
        line = _Line()
        line.channel = self._dialler.dial(address, line, limit_s)
        self._lines[address] = line
        return line

    def _forget(self, address: str, line: _Line) -> None:
        if self._lines.get(address) is line:
            del self._lines[address]
        if line.channel is not None:
            line.channel.close("not needed any more")

    def tick(self, now_s: float) -> None:
        """Keep channels alive; let go of those that are lost, or that nobody has used for long."""
        for address, line in list(self._lines.items()):
            if line.is_lost or (line.is_idle and now_s - line.used_s > UNUSED_S):
                self._forget(address, line)
            elif line.channel is not None:
                line.channel.heartbeat(int(now_s * 1000))

    def close(self) -> None:
        """Let go of all channels."""
        for address, line in list(self._lines.items()):
            self._forget(address, line)
