"""Asking other brokers: all at once, with a limit, over channels that are kept for the next question.

Who does not answer in time counts as unreachable. Channels stay open for a while, because the next question is often
the one that cannot wait. There is no task and no channel for each question: when a broker fails, the members of three
hundred sets ask at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frame_codec import decode, encode
from qpid_ha_broker.ha.frames import Answer, FrameError, Question, Topic
from qpid_ha_broker.server.peers.peer_links import ChannelOpener, OpenedChannel

log = logging.getLogger("peers")

UNUSED_S = 60.0
"""A channel for questions is kept for so long after the last one."""


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


Outcome = dict[str, Answer | Unanswered]
"""What each address has answered in time, in their order, or why nothing came."""


class _Query:
    """A question that was put to several brokers."""

    __slots__ = ("_done", "addresses", "answers", "frame", "kept", "limit_s", "lines", "number", "question", "timers")

    def __init__(
        self, question: Question, number: int, addresses: Sequence[str], limit_s: float, done: Callable[[Outcome], None]
    ) -> None:
        self.question = question
        self.number = number
        """On the channels, where the members of several sets may ask."""
        self.frame = encode(question._replace(number=number))
        self.addresses = addresses
        self.limit_s = limit_s
        self.answers: Outcome = {}
        self.lines: dict[str, _Line] = {}
        """Where each address was asked."""
        self.kept: dict[str, None] = {}
        """Addresses asked on a channel that may lead to a process which is gone: they are asked again, once."""
        self.timers: list[asyncio.TimerHandle] = []
        self._done = done

    def put(self, address: str, answer: Answer | Unanswered) -> None:
        """That one has answered, or never will."""
        self.answers[address] = answer
        if len(self.answers) == len(self.lines):
            self.finish()

    def finish(self) -> None:
        """There is nobody to wait for any more."""
        for timer in self.timers:
            timer.cancel()
        self._done({address: self.answers[address] for address in self.addresses})


class _Line:
    """A channel for questions, and who waits for an answer on it. For the listener's methods see `PeerListener`."""

    channel: OpenedChannel

    def __init__(self, asker: PeerAsker, address: str) -> None:
        self.address = address
        self.used_s = 0.0
        self.waiting: dict[int, _Query] = {}
        self._asker = asker
        self._unsent: list[bytes] = []

    def ask(self, query: _Query) -> None:
        self.used_s = asyncio.get_running_loop().time()
        query.lines[self.address] = self
        self.waiting[query.number] = query
        if self.channel.is_open:
            self.channel.send(query.frame)
            self.channel.flush()
        else:
            self._unsent.append(query.frame)

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
        query = self.waiting.pop(frame.number, None) if isinstance(frame, Answer) else None
        if query is not None and isinstance(frame, Answer):
            query.put(self.address, frame._replace(number=query.question.number))

    def closed(self, channel: Channel, reason: str) -> None:
        self._asker.lost(self, reason)


class PeerAsker:
    """The promise: each question comes to its outcome once, within the limit that it sets, and not at once.

    `may_be_stale`: a kept channel may lead to a process that is gone without a word, so a new one is tried when it is
    silent for long, or lost; where channels share a connection, that one sees to it.
    """

    def __init__(self, opener: ChannelOpener, *, may_be_stale: bool = True) -> None:
        self._opener = opener
        self._may_be_stale = may_be_stale
        self._lines: dict[str, _Line] = {}
        self._numbers = itertools.count(1)

    def put(
        self, question: Question, addresses: Sequence[str], limit_s: float, done: Callable[[Outcome], None]
    ) -> None:
        """Ask all of `addresses`, whatever the number of `question`; `done` hears what came of it within `limit_s`."""
        query = _Query(question, next(self._numbers), addresses, limit_s, done)
        call_later = asyncio.get_running_loop().call_later
        # Before a channel is opened, which has the same limit: whether it was taken is known as long as it is there.
        query.timers = [call_later(limit_s if addresses else 0, self._end, query)]
        if self._may_be_stale:
            query.kept = {address: None for address in addresses if address in self._lines}
        # But a demand to hand over is made once: it is long in being answered, and must not seem to be two.
        if query.kept and question.topic is not Topic.STEP_DOWN:
            query.timers.append(call_later(limit_s / 3, self._replace_silent, query))
        query.lines = {address: self._line(address, limit_s) for address in addresses}
        for line in query.lines.values():
            line.ask(query)

    def ask_for(self, effect: fx.Ask, feed: Feed) -> None:
        """See `QuestionCarrier`."""
        question, addresses, limit_s = effect
        self.put(question, addresses, limit_s, lambda outcome: feed(peers_answered(question.number, outcome)))

    async def ask(self, question: Question, addresses: Sequence[str], limit_s: float) -> Outcome:
        """What came of it."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.put(question, addresses, limit_s, lambda answers: None if outcome.done() else outcome.set_result(answers))
        return await outcome

    def _line(self, address: str, limit_s: float) -> _Line:
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = _Line(self, address)
            line.channel = self._opener.dial(address, line, limit_s)
        return line

    def _replace_silent(self, query: _Query) -> None:
        for address in [address for address in query.kept if address not in query.answers]:
            line = query.lines[address]
            if self._lines.get(address) is line:
                self._forget(line)
            self._ask_again(query, line)

    def _ask_again(self, query: _Query, line: _Line) -> None:
        line.waiting.pop(query.number, None)
        query.kept.pop(line.address, None)
        self._line(line.address, query.limit_s).ask(query)

    def lost(self, line: _Line, reason: str) -> None:
        """A channel is gone, or could not be opened."""
        if self._lines.get(line.address) is line:
            del self._lines[line.address]
        for query in list(line.waiting.values()):
            if line.address in query.kept:
                self._ask_again(query, line)
            else:
                query.put(line.address, Unanswered(reason, reason.startswith(SAID)))

    def _end(self, query: _Query) -> None:
        for address, line in query.lines.items():
            if address not in query.answers:
                line.waiting.pop(query.number, None)
                late = Unanswered(f"no answer within {query.limit_s:g} s")
                query.put(address, Unanswered(NO_ANSWER, True) if line.channel.was_connected else late)
        if not query.lines:
            query.finish()

    def _forget(self, line: _Line) -> None:
        del self._lines[line.address]
        line.channel.close("not needed any more")

    def tick(self, now_s: float) -> None:
        """Now and then: let go of channels that nobody has used for long."""
        for line in list(self._lines.values()):
            if not line.waiting and now_s - line.used_s > UNUSED_S:
                self._forget(line)

    def close(self) -> None:
        """Let go of all channels; who waits hears of it when its time is over."""
        for line in list(self._lines.values()):
            self._forget(line)


def peers_answered(number: int, outcome: Outcome) -> fx.PeersAnswered:
    """What the core is told."""
    answers = tuple([answer for answer in outcome.values() if isinstance(answer, Answer)])
    unanswered = {address: answer for address, answer in outcome.items() if isinstance(answer, Unanswered)}
    silent = tuple([fx.SilentPeer(address, answer.why) for address, answer in unanswered.items() if answer.is_there])
    return fx.PeersAnswered(number, answers, tuple(unanswered), silent)
