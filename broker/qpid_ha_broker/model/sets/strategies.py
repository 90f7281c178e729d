"""How the log of a resource set is shared: who may write, who hands out messages, and when what is submitted counts.

| | of | who may write | who hands out |
| --- | --- | --- | --- |
| `HotStandby` | `default`, and sets with a name | the one broker that leads the set | the same |
| `Alone` | what a broker keeps beside `default` | it, while it leads `default` | the same |
| `Copied` | a queue: a copy of another cluster's | that cluster | nobody here: it may be browsed |
| `Grouped` (a module of its own) | a set with a name | each member of the group | the owner of the queue |

| | what is submitted counts | it is committed | proof that it leads |
| --- | --- | --- | --- |
| `HotStandby` | at once, here | when all in sync have acknowledged it | the member's |
| `Alone` | at once | when its store has | not needed: nobody else has a copy |
| `Copied` | as in the set that holds the queue | as in that set | not needed |
| `Grouped` | once the group has given it its place | when all in sync have it on disk | all in sync know the owner |

The member's proof: docs/architecture.md, "Who may hand out". What another cluster sends for a copy is committed there,
and is submitted here to the set that holds the queue, by `ha.queue_copy` alone. Whoever only follows or observes a set
has a `HotStandby` that is read-only: what it applies was delivered to it, and it may lead at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from qpid_ha_broker.events.types import Event
from qpid_ha_broker.model.errors import ModelError, NotPrimary, QueueLocked
from qpid_ha_broker.model.logs.log import Commitment, CommitToken, Log
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.queue import Queue, QueueStrategy
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner
from qpid_ha_broker.model.replication import has_replicated_messages
from qpid_ha_broker.model.sets.catalog import Catalog
from qpid_ha_broker.model.sets.exclusive_use import ExclusiveUse

ByHand = Callable[[Sequence[int]], object]
"""Does what applying the events of a unit would come to, with what is at hand; it is called with their LSNs."""


class LocalCopy(Protocol):
    """This broker's copy of a resource set."""

    log: Log
    catalog: Catalog

    def deliver(self, events: Sequence[Event], by_hand: ByHand | None) -> CommitToken:
        """Append `events` to the log, as a unit if they are not one, and let them count."""


class Replication(QueueStrategy, Protocol):
    """The strategy of one set, at this broker: that of its queues, unless one has its own."""

    @property
    def lead_proof(self) -> LeadProof:
        """How sure it is that nobody else hands out the messages of the set."""

    @property
    def unplaced(self) -> Commitment | None:
        """Over once all that was submitted here so far is committed, or void; None: it all has its place in the log."""

    def submit(self, copy: LocalCopy, events: Sequence[Event], by_hand: ByHand | None) -> CommitToken:
        """Have `events` delivered to all copies, all of them or none."""

    def tells_returns(self, queue: Queue, *, was_seen: bool) -> bool:
        """Whether it has to be written that messages come back to `queue` that did not fail; `was_seen`: a client may
        have seen them."""

    def note_due(self, queue: Queue) -> None:
        """Messages of `queue` have to leave that this broker may not be the one to remove: they have expired, are to be
        purged, or newer ones have come in their place."""

    def leaving(self, queue: Queue) -> Sequence[Entry]:
        """Messages that are in `queue`, and of which it was submitted here that they leave it."""


class HotStandby:
    """One broker writes, the others follow. Nothing is refused unless somebody says why."""

    counts_later = False
    """What is submitted does not count at once."""
    unplaced_bytes = 0
    """Of messages that were submitted and do not count yet: nobody else knows that they are in memory."""

    def __init__(self) -> None:
        self._refusal: ModelError | None = None
        self._read_only = ""
        self.is_restricted = self.counts_later
        """There is a `refusal`, or it is `read_only`, or `counts_later`: looked at where every message passes."""
        self.not_primary: Callable[[str], ModelError] = NotPrimary
        """Makes the error for who wants to write where it is `read_only`, of that text."""
        self.became_read_only: Callable[[], None] = _nothing
        """Called when nothing may be written from now on: to end what was to be written in portions."""
        self.lead_proof = LeadProof.ALONE
        """How sure it was that this broker leads, when that was looked at last."""
        self.exclusive_use = ExclusiveUse()

    @property
    def unplaced(self) -> Commitment | None:
        """As `Replication.unplaced`."""
        return None

    @property
    def is_full(self) -> bool:
        """So much was submitted that publishers should wait."""
        return False

    @property
    def refusal(self) -> ModelError | None:
        """Why nothing may be published to replicated queues now; None: it may."""
        return self._refusal

    @refusal.setter
    def refusal(self, refusal: ModelError | None) -> None:
        self._refusal = refusal
        self.is_restricted = bool(refusal or self._read_only or self.counts_later)

    @property
    def read_only(self) -> str:
        """As `QueueStrategy.read_only`, naming the state and the primary."""
        return self._read_only

    @read_only.setter
    def read_only(self, text: str) -> None:
        self._read_only = text
        self.is_restricted = bool(text or self._refusal or self.counts_later)
        if text:
            self.became_read_only()

    def submit(self, copy: LocalCopy, events: Sequence[Event], by_hand: ByHand | None) -> CommitToken:
        """As `Replication.submit`: nobody else writes, so the order is known at once."""
        return copy.deliver(events, by_hand)

    def hands_out(self, queue: Queue) -> bool:
        """As `QueueStrategy.hands_out`."""
        return not self._read_only

    def is_used_elsewhere(self, queue: Queue) -> bool:
        """Whether clients of another broker consume from `queue`, as far as that is known here."""
        return False

    def is_first(self) -> bool:
        """Whether this broker, where it may write, does what one has to do for all."""
        return True

    def has_link(self, queue: Queue, link: SessionOwner) -> bool:
        """Whether what a session holds on a link to `queue` is answered at this broker, where it may write."""
        return True

    def take_link(self, queue: Queue, link: SessionOwner, epoch: int) -> CommitToken | None:
        """Have it answered here, for the connection of the session with that epoch: what to wait for. None: it is."""
        return None

    def leave_link(self, queue: Queue, link: SessionOwner) -> None:
        """The link has ended here."""

    def when_answering(self, queue: Queue, link: SessionOwner, epoch: int, give_back: Callable[[], bool]) -> None:
        """Have `give_back` called when what is held on that link is answered here; for good, with EVERYTHING as the
        epoch. It is not where a later connection has the session. `give_back` returns False where the link stays in use
        here."""
        give_back()

    def deletes_unused(self, queue: Queue) -> bool:
        """Whether this broker has `queue` deleted, which deletes itself and which nobody here uses."""
        return True

    def tells_returns(self, queue: Queue, *, was_seen: bool) -> bool:
        """As `Replication.tells_returns`: marks say as much as has to be known, or a setting has all of it told."""
        return False

    def facts_of(self, queue: Queue) -> Mapping[str, object]:
        """What operators are told of `queue` because of how it is shared."""
        return {}

    def note_due(self, queue: Queue) -> None:
        """As `Replication.note_due`: whoever hands out sees it itself."""

    def leaving(self, queue: Queue) -> Sequence[Entry]:
        """As `Replication.leaving`: what is submitted counts."""
        return ()

    def check_writable(self) -> None:
        """Raises NotPrimary, or what `not_primary` makes."""
        if self._read_only:
            raise self.not_primary(self._read_only)

    def check_publish(self, queues: Iterable[Queue]) -> None:
        """Raises NotPrimary, and the `refusal` if one of `queues` is replicated."""
        self.check_writable()
        refusal = self._refusal
        if refusal is not None and any(map(has_replicated_messages, queues)):
            raise type(refusal)(str(refusal))  # a new one each time: an error that is raised again keeps all its traces


class Alone:
    """Nobody else has a copy; it is served with a set that others have, or not at all."""

    unplaced: Commitment | None = None

    def __init__(self, served_with: Replication) -> None:
        self._served_with = served_with
        self.lead_proof = LeadProof.ALONE

    @property
    def read_only(self) -> str:
        """As `QueueStrategy.read_only`."""
        return self._served_with.read_only

    def submit(self, copy: LocalCopy, events: Sequence[Event], by_hand: ByHand | None) -> CommitToken:
        """As `Replication.submit`."""
        return copy.deliver(events, by_hand)

    def hands_out(self, queue: Queue) -> bool:
        """As `QueueStrategy.hands_out`."""
        return self._served_with.hands_out(queue)

    def tells_returns(self, queue: Queue, *, was_seen: bool) -> bool:
        """As `Replication.tells_returns`."""
        return False

    def note_due(self, queue: Queue) -> None:
        """As `Replication.note_due`: whoever hands out sees it itself."""

    def leaving(self, queue: Queue) -> Sequence[Entry]:
        """As `Replication.leaving`: what is submitted counts."""
        return ()


class Copied:
    """The promise: nothing is decided here about messages of a queue that another cluster writes, time included.

    Their expiry, limits and consumers are that cluster's. `read_only` says whose copy the queue is, and how that ends.
    """

    __slots__ = ("read_only",)

    def __init__(self, read_only: str) -> None:
        self.read_only = read_only

    def hands_out(self, queue: Queue) -> bool:
        """As `QueueStrategy.hands_out`."""
        return False


def check_unlocked(queue: Queue) -> None:
    """Raises QueueLocked."""
    refusal = queue.refusal
    if refusal:
        raise QueueLocked(refusal)


def _nothing() -> None:
    pass
