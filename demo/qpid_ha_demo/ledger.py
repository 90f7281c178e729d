"""What became of each message: who was told that it is safe, what arrived, and the account of both.

The publisher writes down every confirmation, the consumer every arrival, and only in the end the two are compared. The
account knows nothing of brokers, so it cannot be kind to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class Arrival(NamedTuple):
    """One delivery to the consumer."""

    number: int
    at_s: float
    marked: bool
    """The broker says that somebody may have had it before: `first-acquirer` is false, or `delivery-count` not 0."""
    sent_again: bool
    """The publisher says that it sent this before, and heard nothing."""
    by: str = ""
    """Which consumer has it, where a queue has several: each gets a part, and what comes again goes to any of them."""


@dataclass
class Ledger:
    """Both books. Times are of `time.monotonic()`, which all processes of a machine share."""

    sent: int = 0
    confirmed_at_s: dict[int, float] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    """Those whose first sending was not accepted: they were sent again, behind others."""
    arrivals: list[Arrival] = field(default_factory=list)
    arrived: set[int] = field(default_factory=set)

    def confirm(self, number: int, at_s: float) -> None:
        """The publisher was told that the message is safe."""
        self.confirmed_at_s.setdefault(number, at_s)

    def arrive(self, arrival: Arrival) -> None:
        """The consumer has it."""
        self.arrivals.append(arrival)
        self.arrived.add(arrival.number)

    @property
    def missing(self) -> int:
        """Confirmed, and not here yet: once nothing is under way any more, lost."""
        # A snapshot, because the publisher's thread goes on writing; `list` of a dict is one step of the interpreter.
        return sum(number not in self.arrived for number in list(self.confirmed_at_s))

    def longest_gap_s(self, began_s: float, ended_s: float) -> float:
        """The longest time between these two in which nothing was confirmed."""
        within = sorted(at_s for at_s in list(self.confirmed_at_s.values()) if began_s <= at_s <= ended_s)
        return max(later_s - earlier_s for earlier_s, later_s in pairwise([began_s, *within, ended_s]))

    def explain(self, number: int) -> str:
        """What is known of a message that came out of order: when it came, what was ahead of it, and its marks."""
        at = next(index for index, arrival in enumerate(self.arrivals) if arrival.number == number)
        arrival = self.arrivals[at]
        ahead = max((earlier.number for earlier in self.arrivals[:at]), default=0)
        marks = [word for word, said in (("marked", arrival.marked), ("sent again", arrival.sent_again)) if said]
        confirmed_s = self.confirmed_at_s.get(number)
        since = (
            "never confirmed" if confirmed_s is None else f"{arrival.at_s - confirmed_s:.3f} s after its confirmation"
        )
        return f"{number} behind {ahead}, {since}, {' and '.join(marks) or 'without a mark'}"

    def audit(self) -> LedgerAudit:
        """The account, to be drawn up when both sides are done."""
        copies = _copies(self.arrivals)
        return LedgerAudit(
            sent=self.sent,
            confirmed=len(self.confirmed_at_s),
            refused=len(self.refused),
            received=len(self.arrived),
            lost=tuple(sorted(self.confirmed_at_s.keys() - self.arrived)),
            duplicates_marked=copies.marked,
            duplicates_sent_again=copies.sent_again,
            duplicates_unmarked=copies.unmarked,
            out_of_order=_out_of_order(self.arrivals, self.refused),
        )


@dataclass(frozen=True)
class LedgerAudit:
    """What the books say. `received` counts each message once."""

    sent: int
    confirmed: int
    refused: int
    received: int
    lost: tuple[int, ...]
    duplicates_marked: int
    """Copies that the broker itself said may be copies."""
    duplicates_sent_again: int
    """Copies that the publisher made, because a failover took the answer to its first sending."""
    duplicates_unmarked: tuple[int, ...]
    """Copies of which nobody warned the consumer: a broken promise."""
    out_of_order: tuple[int, ...]

    @property
    def duplicates_announced(self) -> int:
        """Copies of which the broker or the publisher warned the consumer."""
        return self.duplicates_marked + self.duplicates_sent_again

    @property
    def is_flawless(self) -> bool:
        """Nothing that was confirmed is missing, no copy came without its mark, and all came in order."""
        return not (self.lost or self.duplicates_unmarked or self.out_of_order)


class _DeliveredCopies(NamedTuple):
    marked: int
    sent_again: int
    unmarked: tuple[int, ...]


def _copies(arrivals: Iterable[Arrival]) -> _DeliveredCopies:
    seen: set[int] = set()
    warned: set[int] = set()
    marked = sent_again = 0
    unmarked: list[int] = []
    for arrival in arrivals:
        if arrival.sent_again:  # said once is enough: the first one may come last, from a connection that was stuck
            warned.add(arrival.number)
        if arrival.number not in seen:
            seen.add(arrival.number)
        elif arrival.marked:
            marked += 1
        elif arrival.number in warned:
            sent_again += 1
        else:
            unmarked.append(arrival.number)
    return _DeliveredCopies(marked, sent_again, tuple(unmarked))


def _out_of_order(arrivals: Iterable[Arrival], refused: set[int]) -> tuple[int, ...]:
    """Messages whose first arrival was after that of a later one at the same consumer. One that was refused and sent
    again may be late; of several consumers also what another one may have had first, or what its publisher has sent
    again, while another one has the first sending."""
    seen: set[int] = set()
    late: list[int] = []
    highest: dict[str, int] = {}
    for arrival in arrivals:
        if arrival.number in seen or arrival.number in refused:
            continue
        seen.add(arrival.number)
        if arrival.by and (arrival.marked or arrival.sent_again):
            continue
        before = highest.get(arrival.by, -1)
        if arrival.number < before:
            late.append(arrival.number)
        highest[arrival.by] = max(before, arrival.number)
    return tuple(late)
