"""Messages that came to an exchange here, for queues of sets that other brokers lead: handed on, once each.

An exchange that forwards is a numbered publisher of each of these sets. Its end here is a sender, which numbers what it
hands on; at the primary of the set it is a publisher's link like any other, with a receiver. What is not known to be
committed is kept, and sent again to the next primary. That this makes no copy rests on the de-duplication of numbered
messages (`model.producers`), which knows one number of a producer, the highest. So four things must not happen:

1. A message is accepted after one that was refused while the sender does not know of the refusal: it would send the
   refused one again to the next primary, which would take it for a duplicate, and it would count as accepted. Behind a
   refusal the receiver therefore takes nothing before it reads a Skip; the sender sends again what came behind.
2. What was taken counts as committed because the log of another primary has come as far: a receiver ends with all
   links of the set when its broker leads it no more (`HostedSet.end_links`), and its sender begins again.
3. A message overtakes an earlier one of its publisher that is kept here, because this broker leads the set by now:
   `model.publishing` goes by `ForwardSender.has_unwritten`.
4. Numbers come in another order than that of the first time. A sender sends what it keeps in that order.

A message whose publisher numbers it keeps that number, so it is known also when another broker handed it on before.
Where the primary of the set remembers no producers (`deduplication.producers` is 0), what is sent again may be there
twice. A numbered message is kept as a durable one is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import Final, NamedTuple

from qpid_ha_broker.ha.forward_frames import (
    ForwardBegin,
    ForwardCode,
    ForwardDone,
    ForwardFrame,
    ForwardMessage,
    ForwardRefused,
    ForwardSkip,
)
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.model.errors import ModelError, NotEnoughReplicas, NotFound, NotPrimary, OtherSet, QueueFull
from qpid_ha_broker.model.logs.log import CommitToken, Log
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.message_clock import MessageClock, by_clock
from qpid_ha_broker.model.sets.resources import UNIT_BYTES, UNIT_MESSAGES, Resources, publish_numbered
from qpid_ha_broker.model.transactions.transaction import Message

REFUSAL_CHARACTERS: Final = 1000
_ERRORS: Final[dict[ForwardCode, type[ModelError]]] = {
    ForwardCode.NOT_FOUND: NotFound,
    ForwardCode.FULL: QueueFull,
    ForwardCode.NOT_ENOUGH_REPLICAS: NotEnoughReplicas,
    ForwardCode.REFUSED: OtherSet,
}
_CODES: Final[dict[type[ModelError], ForwardCode]] = {error: code for code, error in _ERRORS.items()}


class ForwardLimits(NamedTuple):
    """What one sender may keep before publishers wait."""

    messages: int = 10_000
    bytes: int = 16 * 1024 * 1024


DEFAULT_LIMITS: Final = ForwardLimits()


class ForwardedMessage:
    """What a publisher waits for: a message that was handed on."""

    __slots__ = ("failure", "frame", "is_committed")

    def __init__(self, frame: ForwardMessage) -> None:
        self.frame = frame
        self.is_committed = False
        self.failure: ModelError | None = None

    def waits_for(self, log: Log) -> bool:
        """For none that is here."""
        return False


class ForwardSender:
    """The promise: what it was given is committed once in each of its queues, or its token says why not.

    Whatever happens to connections and primaries; but what it keeps goes with the process, and publishers of that were
    told nothing.
    """

    def __init__(
        self, set_name: str, producer: bytes, is_gone: Callable[[str], bool], limits: ForwardLimits = DEFAULT_LIMITS
    ) -> None:
        """`producer`: a name of this process and set alone. `is_gone`: that queue is no more, or is being deleted."""
        self.set_name = set_name
        self._producer = producer
        self._is_gone = is_gone
        self._limits = limits
        self._number = 0
        self._sent = 0
        """The highest number that anybody was sent."""
        self._kept: deque[ForwardedMessage] = deque()
        """By ascending numbers."""
        self._bytes = 0
        self._frames: deque[ForwardFrame] = deque()
        self.is_connected = False
        self._written = 0
        """What has this number or a lower one is in the log of the set at this broker; 0: not known of any."""

    @property
    def is_full(self) -> bool:
        """Publishers should wait before they give more."""
        return len(self._kept) >= self._limits.messages or self._bytes >= self._limits.bytes

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way."""
        return not self._kept

    @property
    def has_unwritten(self) -> bool:
        """Something is on its way that is not known to be in the log of the set at this broker.

        As long as it is so, whatever comes for the set goes this way, also where this broker leads the set by now:
        written there at once, it would overtake what is kept, and that would then be taken for duplicates. What is
        written need not be committed: what comes later is behind it in the log.
        """
        return bool(self._kept) and self._kept[-1].frame.number > self._written

    def forward(self, queues: tuple[str, ...], message: Message) -> ForwardedMessage:
        """Hand `message` on."""
        self._number += 1
        payload, durable, priority, expires_at_ms, producer, sequence, due_at_ms = message
        frame = ForwardMessage(
            self._number, queues, durable, priority, expires_at_ms, producer, sequence, payload, due_at_ms
        )  # fmt: skip
        handed_on = ForwardedMessage(frame)
        self._kept.append(handed_on)
        self._bytes += len(payload)
        if self.is_connected:
            self._frames.append(frame)
        return handed_on

    def connected(self) -> None:
        """There is a new sub-channel, to who is believed to lead the set."""
        self.is_connected = True
        self._written = 0
        self._frames = deque([ForwardBegin(self._producer), *(each.frame for each in self._kept)])

    def disconnected(self) -> None:
        """It has ended; what it had answered until then was received."""
        self.is_connected = False
        self._frames.clear()
        self._written = 0

    def written(self, number: int) -> None:
        """This broker leads the set, and has in its log what has that number or a lower one and was not refused; 0: not
        any more."""
        self._written = number

    def take_frame(self) -> ForwardFrame | None:
        """What is to be sent next; None: there is nothing now."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        if isinstance(frame, ForwardMessage):
            self._sent = max(self._sent, frame.number)
        return frame

    def give_up_unsent(self) -> None:
        """Another broker has the exchange: it is given again what nobody was told of, and may have handed on what came
        later by now."""
        while self._kept and self._kept[-1].frame.number > self._sent:
            handed_on = self._kept.pop()
            self._bytes -= len(handed_on.frame.payload)
            handed_on.failure = NotPrimary("this broker does not lead the resource set default any more")
        self._frames = deque(
            frame for frame in self._frames if not isinstance(frame, ForwardMessage) or frame.number <= self._sent
        )

    def received(self, frame: ForwardFrame) -> None:
        """An answer. Raises FrameError for what is none; the sub-channel is then to be ended."""
        if isinstance(frame, ForwardDone):
            self._done(frame.number)
        elif isinstance(frame, ForwardRefused):
            self._refused(frame)
        else:
            raise FrameError(f"expected an answer, found {type(frame).__name__}")

    def _done(self, number: int) -> None:
        if number > self._number:
            raise FrameError(f"{number} is committed, and {self._number} was the last that was sent")
        while self._kept and self._kept[0].frame.number <= number:
            done = self._kept.popleft()
            self._bytes -= len(done.frame.payload)
            done.is_committed = True

    def _refused(self, refused: ForwardRefused) -> None:
        number, code, text = refused
        if code is ForwardCode.NOT_PRIMARY:
            self.disconnected()
            return
        at = next((at for at, each in enumerate(self._kept) if each.frame.number == number), None)
        if at is None:
            raise FrameError(f"{number} is refused, which is not on its way")
        self._settle(at, code, text)
        later = [each.frame for each in self._kept if each.frame.number >= number]
        self._frames = deque([ForwardSkip(number), *later])

    def _settle(self, at: int, code: ForwardCode, text: str) -> None:
        """One was refused: it has failed, unless all that it lacked was a queue that is not there any more."""
        handed_on = self._kept[at]
        frame = handed_on.frame
        there = tuple([name for name in frame.queues if not self._is_gone(name)])
        if code is ForwardCode.NOT_FOUND and there != frame.queues:
            handed_on.frame = frame._replace(queues=there)
            if there:
                return
            handed_on.is_committed = True
        else:
            handed_on.failure = _ERRORS[code](f"resource set {self.set_name}: {text}")
        del self._kept[at]
        self._bytes -= len(frame.payload)

    def check_invariants(self) -> None:
        """Raise AssertionError where what is kept is out of order or not what was counted; for tests."""
        numbers = [each.frame.number for each in self._kept]
        if numbers != sorted(set(numbers)) or any(each.is_committed or each.failure for each in self._kept):
            raise AssertionError(f"kept: {numbers}")
        if self._bytes != sum(len(each.frame.payload) for each in self._kept):
            raise AssertionError(f"counted {self._bytes} bytes")
        if self._written and not self.is_connected:
            raise AssertionError(f"{self._written} should be in the log here, and nobody takes anything")


class _Taken(NamedTuple):
    """What was taken up to a number, and what it waits for."""

    number: int
    token: CommitToken


class ForwardReceiver:
    """The promise: on one sub-channel nothing is taken behind what was refused, before the sender knows of that.

    What comes for one queue without a limit waits for `write`, so that all of a turn is one unit of the log.
    """

    def __init__(self, resources: Resources, exchanges: MessageClock, make_room: Callable[[], None]) -> None:
        """`resources`: of the set that the sub-channel is about. `exchanges`: the clock of `default`, by which the
        other broker says when a message expires: both know it from the primary of `default`. `make_room`: carry out
        what consumers have accepted, before it is asked how full a queue is."""
        self._resources = resources
        self._exchanges = exchanges
        self._make_room = make_room
        self._producer = b""
        self._last = 0
        self._refused = 0
        """The number that was refused, and the sender does not know; 0: none."""
        self._unwritten: list[ForwardMessage] = []
        self._unwritten_bytes = 0
        self._waiting: deque[_Taken] = deque()

    @property
    def has_unwritten(self) -> bool:
        """Something waits for `write`."""
        return bool(self._unwritten)

    @property
    def is_idle(self) -> bool:
        """All that was taken is confirmed."""
        return not (self._unwritten or self._waiting)

    @property
    def written(self) -> int:
        """What has this number or a lower one is in the log, unless it was refused."""
        if self._unwritten:
            return self._unwritten[0].number - 1
        return self._refused - 1 if self._refused else self._last

    def received(self, frame: ForwardFrame, now_ms: int) -> list[ForwardFrame]:
        """What the sender says; returns answers. Raises FrameError; the sub-channel is then to be ended."""
        if isinstance(frame, ForwardMessage):
            return self._message(frame, now_ms)
        if isinstance(frame, ForwardBegin):
            if self._producer:
                raise FrameError("expected one beginning")
            self._producer = frame.producer
        elif isinstance(frame, ForwardSkip):
            if not frame.number or frame.number != self._refused:
                raise FrameError(f"{frame.number} is skipped, and {self._refused} was refused last")
            self._last, self._refused = frame.number - 1, 0
        else:
            raise FrameError(f"expected a message, found {type(frame).__name__}")
        return []

    def write(self, now_ms: int) -> list[ForwardFrame]:
        """Write what was received: all that comes for one queue together, or one by one where some of it is refused."""
        unwritten, self._unwritten, self._unwritten_bytes = self._unwritten, [], 0
        for queue, group in groupby(unwritten, self._queue_without_limit):
            frames = list(group)
            if queue is not None:
                try:
                    token = publish_numbered(self._resources, queue, [self._read(frame) for frame in frames], now_ms)
                except ModelError:
                    pass  # which of them is refused, and why, shows one by one
                else:
                    self._waiting.append(_Taken(frames[-1].number, token))
                    continue
            self._make_room()
            for frame in frames:
                try:
                    self._waiting.append(_Taken(frame.number, self._publish(frame, now_ms)))
                except ModelError as error:
                    return [self._refuse(frame, error)]
        return []

    def committed(self) -> list[ForwardFrame]:
        """What is to be told after a turn, or a commit.

        What fails now, as in a group where others were faster, is to be sent once more: then it shows why.
        """
        number = 0
        while self._waiting and self._waiting[0].token.is_committed:
            number = self._waiting.popleft().number
        told: list[ForwardFrame] = [ForwardDone(number)] if number else []
        failure = self._waiting[0].token.failure if self._waiting else None
        if failure is not None:
            self._refused = self._waiting[0].number
            self._waiting.clear()
            told.append(ForwardRefused(0, ForwardCode.NOT_PRIMARY, str(failure)[:REFUSAL_CHARACTERS]))
        return told

    def _message(self, frame: ForwardMessage, now_ms: int) -> list[ForwardFrame]:
        if not self._producer or frame.number <= self._last:
            raise FrameError(f"message {frame.number} after {self._last}")
        if self._refused:
            return []
        self._last = frame.number
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame.payload)
        has_room = len(self._unwritten) < UNIT_MESSAGES and self._unwritten_bytes < UNIT_BYTES
        return [] if has_room and self._queue_without_limit(frame) is not None else self.write(now_ms)

    def _refuse(self, frame: ForwardMessage, error: ModelError) -> ForwardRefused:
        """It is not taken, and neither is what came behind it."""
        self._refused = frame.number
        text = str(error)[:REFUSAL_CHARACTERS]
        if isinstance(error, NotPrimary):
            return ForwardRefused(0, ForwardCode.NOT_PRIMARY, text)
        self._resources.deduplication.note_refused(frame.producer, frame.sequence)
        return ForwardRefused(frame.number, _CODES.get(type(error), ForwardCode.REFUSED), text)

    def _queue_without_limit(self, frame: ForwardMessage) -> Queue | None:
        """The only one that gets a message which its publisher has not numbered; None: there is more to be decided."""
        if frame.producer or len(frame.queues) != 1:
            return None
        queue = self._resources.catalog.queues.get(frame.queues[0])
        return None if queue is None or queue.needs_care else queue

    def _read(self, frame: ForwardMessage) -> Message:
        producer, sequence = (frame.producer, frame.sequence) if frame.producer else (self._producer, frame.number)
        message = Message(
            frame.payload, frame.durable, frame.priority, frame.expires_at_ms, producer, sequence, frame.due_at_ms
        )
        return by_clock(message, self._resources.catalog.clock, self._exchanges)

    def _publish(self, frame: ForwardMessage, now_ms: int) -> CommitToken:
        resources, message = self._resources, self._read(frame)
        resources.replication.check_writable()
        known_at = resources.known_at(message)
        if known_at is not None:
            return known_at
        return resources.carry_out(resources.plan(self._queues(frame.queues), message, now_ms, routed=True), [])

    def _queues(self, names: tuple[str, ...]) -> tuple[Queue, ...]:
        there = self._resources.catalog.queues
        missing = [name for name in names if name not in there]
        if missing:
            raise NotFound(f"there is no queue {missing[0]}")
        return tuple([there[name] for name in names if not there[name].deleted])  # its entry, and bindings, follow
