"""One connection between two processes, with what is in flight on it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from qpid_ha_broker.ha.effects import Input, PeersAnswered, SilentPeer
from qpid_ha_broker.ha.frames import Answer, Frame, Question


class Bye(NamedTuple):
    """The sender has closed the channel, after all that it sent before."""

    reason: str


class Damaged(NamedTuple):
    """What was a frame once."""

    problem: str


Parcel = Frame | Bye | Damaged


class Host(Protocol):
    """A machine with a broker on it, as the network sees it."""

    index: int
    name: str
    process: int
    """Counts the starts: what was meant for an earlier process does not reach a later one."""
    is_up: bool
    is_paused: bool

    def feed(self, happening: Input, delivery: Delivery | None = None) -> None:
        """Let the broker know; at once, or when it can listen again. `delivery` is told when it has."""

    def next_link(self) -> int:
        """A number for a channel that a peer opened."""


class Call:
    """One question to many: who has answered, and who is still expected."""

    def __init__(self, question: Question, addresses: tuple[str, ...]) -> None:
        self.question = question
        self.expected = list(addresses)
        self.unreachable: list[str] = []
        self.taken: set[str] = set()
        """Where a process is, which takes connections also while it is stopped."""
        self.answers: list[Answer] = []
        self.is_over = False

    def settle(self, address: str, answer: Answer | None) -> None:
        """`address` has answered, or never will."""
        self.expected.remove(address)
        if answer is None:
            self.unreachable.append(address)
        else:
            self.answers.append(answer)

    def end(self) -> PeersAnswered:
        """Who has not answered by now is unreachable."""
        self.is_over = True
        unreachable = tuple(sorted([*self.expected, *self.unreachable]))
        silent = tuple(SilentPeer(address, "it said nothing") for address in sorted(self.taken & set(self.expected)))
        return PeersAnswered(self.question.number, tuple(self.answers), unreachable, silent)


class End:
    """One side of a channel."""

    __slots__ = (
        "address",
        "call",
        "held",
        "host",
        "in_flight",
        "is_known",
        "is_open",
        "is_writable",
        "last_at_s",
        "link",
        "process",
    )

    def __init__(self, host: Host, link: int, call: Call | None = None, address: str = "") -> None:
        self.host = host
        self.process = host.process
        self.link = link
        self.call = call
        self.address = address
        """Whom a call asks here."""
        self.is_open = True
        self.is_known = call is None
        """The broker there knows the number of the link."""
        self.is_writable = True
        # Of what goes out at this end:
        self.in_flight = 0
        self.last_at_s = 0.0
        self.held: deque[Parcel] = deque()
        """Waits until a partition is over."""

    @property
    def is_alive(self) -> bool:
        return self.is_open and self.host.is_up and self.process == self.host.process


class Channel:
    """Ordered both ways; `ends[0]` opened it. Broken: nothing is taken any more, what is in flight may arrive."""

    __slots__ = ("drops", "ends", "is_broken")

    def __init__(self, opener: End, other: End) -> None:
        self.ends = (opener, other)
        self.is_broken = False
        self.drops = False

    def other(self, end: End) -> End:
        return self.ends[1] if end is self.ends[0] else self.ends[0]


class Delivery:
    """Makes room on the channel once the receiver has dealt with a frame."""

    __slots__ = ("limit", "sender")

    def __init__(self, sender: End, limit: int) -> None:
        self.sender = sender
        self.limit = limit

    def done(self) -> bool:
        """Whether the sender may write again now."""
        sender = self.sender
        sender.in_flight -= 1
        if not sender.is_writable and sender.in_flight <= self.limit // 2:
            sender.is_writable = True
            return True
        return False
