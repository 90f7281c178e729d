"""Books of a queue with several consumers: who had which message, from when to when, and how that ended.

`Ledger` asks what became of messages; this also asks for each *sending* of one (its tag), whether two had it at once,
and whether it came again after a broker had confirmed that it is gone. A consumer that has a message has it until:

| ending | when | may it come again? |
| --- | --- | --- |
| `ACCEPTED`, `REJECTED` | the broker has confirmed that | never |
| `RETURNED` | it was released: from then on others may have it | yes, marked |
| `BROKEN` | the connection ended first | yes, marked; also when the answer was on its way |

The promise: what was released, or was with a consumer whose connection broke, is answered by somebody in the end;
nothing is accepted or rejected a second time; and what was `out_twice` names who had it, so that whoever knows which
broker was disturbed can tell whether that excuses it.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import combinations
from typing import Any, Final, NamedTuple

from proton import Delivery, Message

from qpid_ha_demo.ledger import Arrival, Ledger, LedgerAudit
from qpid_ha_demo.load import DemoConsumer, arrival_of, producer_of

LINGER_S: Final = 0.3
"""The longest time that a consumer keeps a message before it answers."""
_LINGERS: Final = 8
_NEAR: Final = 3
_RELEASED_OF, _REJECTED_OF = 20, 33
"""One in so many is released when it comes first, and rejected."""


class Ending(StrEnum):
    """See above."""

    OPEN = "open"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RETURNED = "returned"
    BROKEN = "broken"


_GONE: Final = (Ending.ACCEPTED, Ending.REJECTED)


class Held(NamedTuple):
    """A consumer had a message."""

    tag: str
    """Of the sending."""
    number: int
    at: str
    """The address of the broker that it came from."""
    from_s: float
    until_s: float = math.inf
    ending: Ending = Ending.OPEN


class OutTwice(NamedTuple):
    """Two had the same sending at once, or it came again after it was gone."""

    number: int
    at: str
    """The broker that handed out what it should not have had: no answer was confirmed there."""
    other: str
    when_s: float
    """When the second one got it."""


class Late(NamedTuple):
    """A message that came behind a later one of its producer."""

    number: int
    arrivals: tuple[Arrival, ...]
    """Of it, and of those just before and behind it in the order of their numbers."""
    held: tuple[Held, ...]
    """Who had it."""


@dataclass(frozen=True)
class DeliveryAudit(LedgerAudit):
    """The account of the ledger, and of who had what. `lost`: confirmed, and no consumer ever answered for it."""

    out_twice: tuple[OutTwice, ...]
    accepted_again: tuple[int, ...]
    """Accepted, and another consumer's answer to the same sending was confirmed, too."""
    rejected_again: tuple[int, ...]
    """The same of what was rejected."""
    released_lost: tuple[int, ...]
    """Released, and no consumer ever answered for it."""
    broken_lost: tuple[int, ...]
    """With a consumer whose connection broke, and no consumer ever answered for it."""
    late: tuple[Late, ...]
    """Of what is out of order, all that is known."""
    accepted: int
    rejected: int
    returned: int
    broken: int

    @property
    def is_flawless(self) -> bool:
        """What was out twice is for others to judge."""
        broken = self.accepted_again or self.rejected_again or self.released_lost or self.broken_lost
        return super().is_flawless and not broken


@dataclass
class DeliveryLedger(Ledger):
    """The books of one producer. Consumers are threads of one process: `held` is only appended to."""

    held: list[Held] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    """Accepted or rejected, perhaps without a word of the broker."""

    @property
    def missing(self) -> int:
        """Confirmed, and not answered for yet."""
        return sum(number not in self.answered for number in list(self.confirmed_at_s))

    def audit(self, still_held: Sequence[Held] = ()) -> DeliveryAudit:
        """`still_held`: what consumers had a moment ago."""
        base = super().audit()
        facts = {each.name: getattr(base, each.name) for each in fields(base)}
        facts["lost"] = tuple(sorted(self.confirmed_at_s.keys() - self.answered))
        ended = list(self.held)
        known = {(each.tag, each.from_s) for each in ended}
        held = [*ended, *(each for each in still_held if (each.tag, each.from_s) not in known)]
        again, out_twice = _twice(held)
        endings = Counter(each.ending for each in held)
        return DeliveryAudit(
            **facts,
            out_twice=out_twice,
            accepted_again=tuple(each.number for each in again if each.ending is Ending.ACCEPTED),
            rejected_again=tuple(each.number for each in again if each.ending is Ending.REJECTED),
            late=tuple(self._late(number, held) for number in base.out_of_order),
            released_lost=self._never_answered(held, Ending.RETURNED),
            broken_lost=self._never_answered(held, Ending.BROKEN),
            accepted=endings[Ending.ACCEPTED],
            rejected=endings[Ending.REJECTED],
            returned=endings[Ending.RETURNED],
            broken=endings[Ending.BROKEN],
        )

    def _late(self, number: int, held: Sequence[Held]) -> Late:
        near = tuple(each for each in self.arrivals if abs(each.number - number) <= _NEAR)
        return Late(number, near, tuple(each for each in held if abs(each.number - number) <= _NEAR))

    def _never_answered(self, held: Sequence[Held], ending: Ending) -> tuple[int, ...]:
        return tuple(sorted({each.number for each in held if each.ending is ending} - self.answered))


def _twice(held: Sequence[Held]) -> tuple[list[Held], tuple[OutTwice, ...]]:
    """Of what was finished twice, how it was the first time; and what was out twice."""
    of_sending: dict[str, list[Held]] = {}
    for each in held:
        of_sending.setdefault(each.tag, []).append(each)
    again: list[Held] = []
    out: list[OutTwice] = []
    for stretches in of_sending.values():
        for first, second in combinations(sorted(stretches, key=lambda each: each.from_s), 2):
            if first.ending in _GONE and second.ending in _GONE:
                again.append(first)
            elif first.ending in _GONE or second.from_s < first.until_s:
                stale, other = (second, first) if first.ending in _GONE else (first, second)
                out.append(OutTwice(first.number, stale.at, other.at, second.from_s))
    return again, tuple(out)


class AnsweringConsumer(DemoConsumer):
    """Keeps each message for a moment; then accepts it, or releases or rejects one in a while, and is told of that.

    What it does with a message follows from its number, so all consumers do the same.
    """

    def __init__(self, urls: Sequence[str], queue: str, name: str, ledgers: Mapping[str, DeliveryLedger]) -> None:
        """`ledgers`: of each producer."""
        super().__init__(urls, queue, next(iter(ledgers.values())), auto_accept=False)
        self._name, self._ledgers = name, ledgers
        self._kept: dict[str, tuple[Held, DeliveryLedger]] = {}
        """By the link's own tag."""
        self._due: dict[float, deque[tuple[float, Any, Arrival]]] = {}
        """What is to be answered, by how long it is kept."""
        self._is_to_break = False

    def break_connection(self) -> None:
        """End it with all that was not answered; another one follows. Asked from another thread."""
        self._is_to_break = True

    def held_now(self, producer: str) -> list[Held]:
        """Of that producer's messages."""
        ledger = self._ledgers[producer]
        return [held for held, of in list(self._kept.values()) if of is ledger]

    def on_message(self, event: Any) -> None:
        """Write down who has it, and answer later."""
        if self._connect_at_s is not None or event.connection != self._connection:
            return  # it came on a connection that has ended
        message: Message = event.message
        arrival = arrival_of(message)._replace(by=self._name)
        ledger = self._ledgers[producer_of(message)]
        ledger.arrive(arrival)
        held = Held(str(message.correlation_id), arrival.number, self.connected_to, arrival.at_s)
        self._kept[event.delivery.tag] = held, ledger
        linger_s = LINGER_S * (arrival.number % _LINGERS) / _LINGERS
        self._due.setdefault(linger_s, deque()).append((arrival.at_s + linger_s, event.delivery, arrival))

    def step(self) -> None:
        """Answer what was kept for long enough."""
        if self._is_to_break:
            self._is_to_break = False
            self.break_now()
            return
        now_s = time.monotonic()
        for waiting in self._due.values():
            while waiting and waiting[0][0] <= now_s:
                _, delivery, arrival = waiting.popleft()
                self._answer(delivery, arrival)

    def _answer(self, delivery: Any, arrival: Arrival) -> None:
        if arrival.number % _RELEASED_OF == 0 and not arrival.marked:
            self._end(delivery.tag, Ending.RETURNED)
            delivery.update(Delivery.RELEASED)
            delivery.settle()
            return
        self._kept[delivery.tag][1].answered.add(arrival.number)
        delivery.update(Delivery.REJECTED if arrival.number % _REJECTED_OF == 0 else Delivery.ACCEPTED)

    def on_settled(self, event: Any) -> None:
        """The broker has confirmed the answer."""
        is_rejected = event.delivery.local_state == Delivery.REJECTED
        self._end(event.delivery.tag, Ending.REJECTED if is_rejected else Ending.ACCEPTED)
        event.delivery.settle()

    def lost(self) -> None:
        """Others may have what was here."""
        for tag in tuple(self._kept):
            self._end(tag, Ending.BROKEN)
        self._due.clear()

    def _end(self, tag: str, ending: Ending) -> None:
        if tag in self._kept:
            held, ledger = self._kept.pop(tag)
            ledger.held.append(held._replace(until_s=time.monotonic(), ending=ending))
