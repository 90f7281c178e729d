"""A queue: its name and arguments, who uses it, and its three parts.

`messages` is what it holds, `dispatcher` who takes from it, `limits` what may still come in. A queue never writes to
the log; the resource set does, and lets every event count here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from qpid_ha_broker.events.types import SessionAcquired
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.queues.dispatcher import NO_STANDING, Consumer, ConsumerStanding, Dispatcher
from qpid_ha_broker.model.queues.handout_marks import QueueMark
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.limits import QueueLimits
from qpid_ha_broker.model.queues.orders import make_order
from qpid_ha_broker.model.queues.queue_arguments import FullPolicy, QueueArguments, Replicate
from qpid_ha_broker.model.queues.queued_messages import QueuedMessages
from qpid_ha_broker.model.queues.sequence import Entry, Holder, SessionOwner


class QueueStrategy(Protocol):
    """Who may write what happens to the messages of a queue, and who hands them out, as seen from this broker."""

    @property
    def read_only(self) -> str:
        """Why nothing of that may be written here; empty: it may."""

    def hands_out(self, queue: Queue) -> bool:
        """Whether this broker decides who gets the messages of `queue`, and which of them leave it unasked."""


class Queue:
    """What is known of a queue besides its messages. Callers that need a part of it ask that part."""

    __slots__ = (
        "arguments",
        "deleted",
        "detects_groups",
        "dispatcher",
        "displaces",
        "durable_headers",
        "exclusive_owner",
        "held",
        "id",
        "ids",
        "limits",
        "locked",
        "log",
        "mark",
        "messages",
        "name",
        "needs_care",
        "owner",
        "redelivered_below",
        "replication",
        "reserved_until_ms",
        "strategy",
        "transient_headers",
        "unused_since_ms",
        "used",
    )

    def __init__(self, queue_id: int, name: str, arguments: QueueArguments, log: Log, replication: Replicate) -> None:
        self.id = queue_id
        self.ids = (queue_id,)
        self.durable_headers: dict[int, MessageHeader] = {}
        """Of messages that are in this queue alone, do not expire and have no key, by priority."""
        self.transient_headers: dict[int, MessageHeader] = {}
        """The same for those that are not durable."""
        self.name = name
        self.log = log
        """Where its messages are written; the queue itself may be in another one."""
        self.replication = replication
        self.messages = QueuedMessages(name, make_order(arguments))
        self.limits = QueueLimits(name, self.messages, arguments)
        self.dispatcher = Dispatcher(self.messages, self.limits, by_priority=arguments.priorities > 1)
        self.deleted = False
        self.locked = ""
        """Why nobody may publish or consume while this broker deletes it; empty: it does not."""
        self.strategy: QueueStrategy | None = None
        """Its own; None: that of the set that holds its messages."""
        self.exclusive_owner: object | None = None
        self.used = False
        """It has had a consumer, here or at a primary before."""
        self.owner = ""
        """Who has it alone, as the log tells: see `following.owner_name`."""
        self.reserved_until_ms = 0
        """Until then nobody but `owner` gets it, and it does not delete itself: its users may be on their way here."""
        self.held = NOTHING_HELD
        """By id: messages that are held for sessions of clients, which `SessionHoldings` changes."""
        self.redelivered_below = 0
        """Messages up to this id may have been given to somebody by a primary before."""
        self.mark = QueueMark()
        """How far it was handed out, for who leads after this broker."""
        self.unused_since_ms: int | None = None
        self.change_arguments(arguments)

    def change_arguments(self, arguments: QueueArguments) -> None:
        """Other limits for the same messages. The order is fixed when a queue is made."""
        self.arguments = arguments
        self.limits.change_arguments(arguments)
        care = arguments.message_ttl_ms or arguments.last_value_queue_key or self.refusal
        self.needs_care = bool(self.limits.is_bounded or care)
        """There is something to decide about a message that comes: see `Resources.enqueue_plain`."""
        self.detects_groups = arguments.detects_groups
        """A message of a group that comes has the queue keep them together: see `Resources.note_group`."""
        self.dispatcher.has_single_taker = arguments.sharing.single_active
        self.displaces = bool(arguments.last_value_queue_key) or arguments.policy_type is FullPolicy.RING
        """Something that comes may take the place of what is there."""
        if arguments.tombstone_of:
            self.mark_deleted()

    @property
    def refusal(self) -> str:
        """Why nobody may publish to the queue, consume from it or purge it, whoever leads its set; empty: they may."""
        return self.locked or ("" if self.strategy is None else self.strategy.read_only)

    def lock(self, why: str) -> None:
        """Have `locked` say `why`; empty: as before."""
        self.locked = why
        self.change_arguments(self.arguments)

    def use_strategy(self, strategy: QueueStrategy | None) -> None:
        """Have `strategy` say who writes it and hands out from it; None: that of its set."""
        self.strategy = strategy
        self.change_arguments(self.arguments)

    def change_id(self, queue_id: int) -> None:
        """The queue counts as one that another event declared."""
        self.id, self.ids = queue_id, (queue_id,)
        self.durable_headers, self.transient_headers = {}, {}

    def add_header(self, durable: bool, priority: int) -> MessageHeader:
        """Make one of `durable_headers` or `transient_headers`."""
        headers = self.durable_headers if durable else self.transient_headers
        header = headers[priority] = MessageHeader(self.ids, durable, priority, 0, "")
        return header

    def mark_deleted(self) -> None:
        """The queue is deleted, or but a tombstone. `needs_care` leads a late publisher to where that is noticed."""
        self.deleted = self.needs_care = True

    def is_redelivered(self, entry: Entry) -> bool:
        """Whether somebody may have seen it: it was sent, or came back, or was there when this broker began to lead."""
        return entry.acquired_before or entry.id <= self.redelivered_below

    def deliveries_before(self, entry: Entry) -> int:
        """How often a consumer is told that it was delivered before: one that a primary before may have made counts
        here, and not towards the delivery limit, for nobody knows whether it was made, or failed."""
        return entry.delivery_count + (entry.id <= self.redelivered_below)

    def annotated(self, entry: Entry, body: bytes, merge: Callable[[bytes, bytes], bytes]) -> bytes:
        """`body`, of `entry`, with what consumers have said of it: see `MessageReader.annotated`, which `merge` is."""
        said = self.messages.annotations.get(entry.id)
        return merge(body, said) if said else body

    def renumber(self, new_ids: Mapping[int, int]) -> None:
        """Give every message another id, in the same order. Who holds one goes on holding it."""
        self.redelivered_below = _renumbered(self.redelivered_below, new_ids)
        self.mark.highest = _renumbered(self.mark.highest, new_ids)
        self.messages.renumber(new_ids)

    # --- who uses it

    def subscribe(self, consumer: Consumer, standing: ConsumerStanding = NO_STANDING) -> None:
        """Serve `consumer` from now on, as soon as it has credit. Who only looks does not use the queue."""
        self.dispatcher.subscribe(consumer, standing)
        if not consumer.browsing:
            self.unused_since_ms = None

    def unsubscribe(self, consumer: Consumer, now_ms: int) -> None:
        """Serve it no more. What it holds is for the caller to give back."""
        self.dispatcher.unsubscribe(consumer)
        if not self.dispatcher.has_takers:
            self.exclusive_owner = None
            if not consumer.browsing:
                self.unused_since_ms = max(now_ms, self.reserved_until_ms)

    def reserve(self, until_ms: int) -> None:
        """Its users were connected to another broker: give them until then to come back."""
        self.reserved_until_ms = until_ms
        self.unused_since_ms = until_ms if self.used and not self.dispatcher.has_takers else None

    def keep_for_return(self, until_ms: int) -> None:
        """Its users are connected to a broker of which nothing is heard: give them until then to come back."""
        self.reserved_until_ms = until_ms
        if not self.dispatcher.has_takers:
            self.unused_since_ms = until_ms

    def returned(self) -> None:
        """The publisher for whom it was made is back; consumers count for themselves."""
        if not self.used:
            self.unused_since_ms = None

    def is_due_for_deletion(self, now_ms: int) -> bool:
        """Whether the queue deletes itself, and nobody has consumed from it for as long as it was told to wait since
        somebody did."""
        if not self.arguments.auto_delete or self.unused_since_ms is None or self.dispatcher.has_takers:
            return False
        return now_ms - self.unused_since_ms >= self.arguments.auto_delete_delay_s * 1000


class SessionLink(Holder):
    """What one consumer of a session holds of one queue: `ids`, in the order in which they went out; one at least."""

    __slots__ = ("ids", "link", "name", "queue", "session", "session_owner")

    def __init__(self, session: int, name: str, link: str, queue: Queue) -> None:
        self.session = session
        """The session's id."""
        self.name = name
        """Its UUID."""
        self.link = link
        self.queue = queue
        self.ids: dict[int, None] = {}
        self.session_owner = self.owner

    @property
    def owner(self) -> SessionOwner:
        """For whom it holds them."""
        return SessionOwner(self.session, self.name, self.link)

    @property
    def key(self) -> tuple[int, str, str, Queue]:
        """What it is found by."""
        return self.session, self.name, self.link, self.queue

    def acquired(self, ids: Iterable[int]) -> SessionAcquired:
        """The event that gives it `ids`."""
        return SessionAcquired(self.queue.id, self.session, self.name, self.link, tuple(ids))


def _renumbered(most: int, new_ids: Mapping[int, int]) -> int:
    """The new id of the last message whose old one was not above `most`; 0: there is none."""
    return max((new_id for old_id, new_id in new_ids.items() if old_id <= most), default=0)


NOTHING_HELD: Final[dict[int, SessionLink]] = {}
"""Of nearly all queues; never changed."""
