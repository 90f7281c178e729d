"""Messages that came to an exchange here, for queues of sets that other brokers lead: handed on, once each.

Each process has a sender for each of these sets, which numbers what it hands on; the primary of the set has a receiver
for each sub-channel. What is not known to be committed is kept, and sent again to the next primary. That this makes no
copy rests on the de-duplication of numbered messages (`model.producers`), which knows one number of a producer, the
highest. So four things must not happen. The receiver sees to the first two, `model.publishing` to the third:

1. A message is accepted after one that was refused while the sender does not know of the refusal: it would send the
   refused one again to the next primary, which would take it for a duplicate, and it would count as accepted. Behind a
   refusal the receiver therefore takes nothing before it reads a Skip; the sender sends again what came behind.
2. What was taken counts as committed because the log of another primary has come as far: a receiver confirms nothing
   once its set has been led by others, and its sender begins again.
3. A message overtakes an earlier one of its publisher that is kept here, because this broker leads the set by now: see
   `ForwardSender.has_unwritten`.
4. Numbers come in another order than that of the first time. A sender sends what it keeps in that order.

A message whose publisher numbers it keeps that number, so it is known also when another broker handed it on before.
Where the primary of the set remembers no producers (`deduplication.producers` is 0), what is sent again may be there
twice. A numbered message is kept as a durable one is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.errors import ModelError, NotEnoughReplicas, NotFound, NotPrimary, OtherSet, QueueFull
from qpid_ha_broker.model.logs.log import CommitToken, Log
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.message_clock import MessageClock
from qpid_ha_broker.model.sets.resources import Resources
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

    def __init__(self, set_name: str, producer: bytes, is_gone: Callable[[str], bool], limits: ForwardLimits) -> None:
        """`producer`: a name of this process and set alone. `is_gone`: that queue is no more, or is being deleted."""
        self.set_name = set_name
        self._producer = producer
        self._is_gone = is_gone
        self._limits = limits
        self._number = 0
        self._kept: deque[ForwardedMessage] = deque()
        """By ascending numbers."""
        self._bytes = 0
        self._frames: list[ForwardFrame] = []
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
        payload, durable, priority, expires_at_ms, producer, sequence = message
        frame = ForwardMessage(
            self._number, queues, durable, priority, expires_at_ms, producer, sequence, payload
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
        self._frames = [ForwardBegin(self._producer), *(each.frame for each in self._kept)]

    def disconnected(self) -> None:
        """It has ended; what it had answered until then was received."""
        self.is_connected = False
        self._frames = []
        self._written = 0

    def written(self, number: int) -> None:
        """This broker leads the set, and has in its log what has that number or a lower one and was not refused."""
        self._written = number

    def take_frames(self) -> list[ForwardFrame]:
        """What is to be sent now."""
        frames, self._frames = self._frames, []
        return frames

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
        self._frames = [ForwardSkip(number), *later]

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


class SetForwarder:
    """Hands messages on to all sets that are led elsewhere (a `model.publishing.Forwarder`); a driver has connections.

    A driver looks at `senders` after each turn, sends what they have, and touches the container's set `default` when
    one has had an answer.
    """

    def __init__(self, make_sender: Callable[[str], ForwardSender]) -> None:
        self._make_sender = make_sender
        self.senders: dict[str, ForwardSender] = {}
        """By set."""

    @property
    def is_full(self) -> bool:
        """One of them is."""
        return any(sender.is_full for sender in self.senders.values())

    def has_unwritten(self, set_name: str) -> bool:
        """See `ForwardSender.has_unwritten`."""
        sender = self.senders.get(set_name)
        return sender is not None and sender.has_unwritten

    def forward(self, set_name: str, queues: tuple[str, ...], message: Message) -> ForwardedMessage:
        """Hand `message` on."""
        sender = self.senders.get(set_name)
        if sender is None:
            sender = self.senders[set_name] = self._make_sender(set_name)
        return sender.forward(queues, message)


@dataclass
class _Taken:
    """What was taken, and what it waits for."""

    number: int
    token: CommitToken


class ForwardReceiver:
    """The promise: on one sub-channel nothing is taken behind what was refused, before the sender knows of that, and
    nothing is confirmed that the broker has not committed itself, as the primary that it was when it took it."""

    def __init__(self, resources: Resources, exchanges: MessageClock) -> None:
        """`resources`: of the set that the sub-channel is about. `exchanges`: the clock of `default`, by which the
        other broker says when a message expires: both know it from the primary of `default`."""
        self._resources = resources
        self._exchanges = exchanges
        self._generation = _generation_of(resources)
        self._producer = b""
        self._last = 0
        self._refused = 0
        """The number that was refused, and the sender does not know; 0: none."""
        self._waiting: deque[_Taken] = deque()

    @property
    def is_outdated(self) -> bool:
        """The set is not led here, or has been led by another broker since: what was taken may be in no log."""
        return bool(self._resources.replicated.read_only) or _generation_of(self._resources) != self._generation

    @property
    def last(self) -> int:
        """What has this number or a lower one was taken, unless it was refused."""
        return self._last if not self._refused else self._refused - 1

    def received(self, frame: ForwardFrame, now_ms: int) -> list[ForwardFrame]:
        """What the sender says; returns answers. Raises FrameError; the sub-channel is then to be ended."""
        if isinstance(frame, ForwardBegin):
            if self._producer:
                raise FrameError("expected one beginning")
            self._producer = frame.producer
        elif isinstance(frame, ForwardSkip):
            if not frame.number or frame.number != self._refused:
                raise FrameError(f"{frame.number} is skipped, and {self._refused} was refused last")
            self._last, self._refused = frame.number - 1, 0
        elif isinstance(frame, ForwardMessage):
            return self._message(frame, now_ms)
        else:
            raise FrameError(f"expected a message, found {type(frame).__name__}")
        return []

    def committed(self) -> list[ForwardFrame]:
        """What is to be told after a turn, or a commit."""
        if self.is_outdated:
            return []
        number = 0
        while self._waiting and self._waiting[0].token.is_committed:
            number = self._waiting.popleft().number
        return [ForwardDone(number)] if number else []

    def _message(self, frame: ForwardMessage, now_ms: int) -> list[ForwardFrame]:
        if not self._producer or frame.number <= self._last:
            raise FrameError(f"message {frame.number} after {self._last}")
        if self._refused:
            return []
        self._last = frame.number
        try:
            self._waiting.append(_Taken(frame.number, self._publish(frame, now_ms)))
        except NotPrimary as error:
            self._refused = frame.number
            return [ForwardRefused(0, ForwardCode.NOT_PRIMARY, str(error)[:REFUSAL_CHARACTERS])]
        except ModelError as error:
            self._refused = frame.number
            self._resources.deduplication.note_refused(frame.producer, frame.sequence)
            code = _CODES.get(type(error), ForwardCode.REFUSED)
            return [ForwardRefused(frame.number, code, str(error)[:REFUSAL_CHARACTERS])]
        return []

    def _publish(self, frame: ForwardMessage, now_ms: int) -> CommitToken:
        resources = self._resources
        resources.replicated.check_writable()
        producer, sequence = (frame.producer, frame.sequence) if frame.producer else (self._producer, frame.number)
        expires_at_ms = resources.catalog.clock.converted(frame.expires_at_ms, self._exchanges)
        message = Message(frame.payload, frame.durable, frame.priority, expires_at_ms, producer, sequence)
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


def _generation_of(resources: Resources) -> int:
    """In which the set is led, as far as its log says; 0: nobody has led it."""
    generations = resources.replicated.state.generations
    return generations[-1][1].generation if generations else 0


class ForwardingHere:
    """In place of a sub-channel, where the broker of the sender leads the set: the same frames, without their bytes."""

    def __init__(self, sender: ForwardSender, receiver: ForwardReceiver) -> None:
        self._sender = sender
        self._receiver = receiver
        self._frames: deque[ForwardFrame] = deque()
        sender.connected()

    @property
    def is_over(self) -> bool:
        """The sender has to begin again, with whoever leads the set now."""
        return self._receiver.is_outdated or not self._sender.is_connected

    def deliver(self, now_ms: int, budget: Budget) -> bool:
        """Have taken what the sender keeps, in order; returns whether there is more of it than there was time for.

        `now_ms`: by the clock of the set.
        """
        sender, receiver = self._sender, self._receiver
        while sender.is_connected:
            if not self._frames:
                self._frames += sender.take_frames()
            if not self._frames:
                sender.written(receiver.last)
                return False
            if budget.is_spent:
                return True
            for answer in receiver.received(self._frames.popleft(), now_ms):
                self._frames.clear()  # it is refused: what was behind it is sent again
                sender.received(answer)
        return False

    def tell_committed(self) -> bool:
        """After a turn, or a commit; returns whether the sender was told anything."""
        answers = self._receiver.committed() if self._sender.is_connected else []
        for answer in answers:
            self._sender.received(answer)
        return bool(answers)
