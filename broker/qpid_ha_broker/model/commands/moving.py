"""Messages that move from one queue to others of the same log, in portions: each is in one of them at any time.

A portion is one unit of the log, with the messages that come and the word that they leave: wherever the log is cut, by
a crash or by another primary, both are there or neither is.

| command | goes to | leaves its queue | who holds it keeps it |
| --- | --- | --- | --- |
| move | the queue that is named | yes | yes: it stays |
| copy | the queue that is named | no | yes: it is copied all the same |
| retry | the queue in which it died last | yes | yes: it stays |
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from qpid_ha_broker.events.types import DequeueReason
from qpid_ha_broker.model.errors import (
    InUse,
    InvalidArgument,
    ModelError,
    NotFound,
    NotPrimary,
    OtherSet,
    QueueFull,
    fresh,
)
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.message_reader import CompiledSelector, MessageReader
from qpid_ha_broker.model.queues.paged import BodyDamaged
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import NO_LIMIT, Entry, load_bodies
from qpid_ha_broker.model.sets.purge import free_holders
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.strategies import check_unlocked
from qpid_ha_broker.model.transactions.plan import Departure, EnqueuePlan
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.model.work import Task

PORTION_MESSAGES: Final = 50
PORTION_BYTES: Final = 256 * 1024
"""Of one unit of the log, at least one message: a millisecond or two of work."""
PASSED_MOST: Final = 2000
"""Messages that consumers hold, which a portion may step over."""


class MoveSelection(NamedTuple):
    """Which messages of a queue are meant: the oldest `most` of those that match, or one."""

    most: int = NO_LIMIT
    message_id: int | None = None
    selector: str = ""
    """As JMS has it; empty: all match."""
    died_in: str = ""
    """Dead letters of that queue only; empty: of any."""


class _Arrival(NamedTuple):
    """A message of the source that goes to `target`."""

    entry: Entry
    message: Message
    target: Queue


class QueueMove:
    """The promise: each message is in one of the queues, and in one only, whenever the log ends. A copy is a message of
    its own, and the original stays as it was.

    It takes messages that were there when it was asked for and that no consumer holds, in the order in which they
    came. It stops before the first that its target has no room for: nothing is dropped for it.

    `written`: None while it goes on; then what to wait for until all of it is committed. `failure`: why it was given
    up; the `count` messages that had moved by then stay where they are.

    In a group a portion waits for the one before: what is on its way to the target is not seen there, and may come to
    nothing.
    """

    def __init__(
        self,
        resources: Resources,
        source: Queue,
        target: Queue | None,
        selection: MoveSelection,
        *,
        copies: bool = False,
    ) -> None:
        """`target` None: each goes to the queue in which it died last. Raises InvalidArgument for a wrong selector."""
        self.source, self.target = source, target
        self.counts: Counter[str] = Counter()
        """Messages that have moved, by the queue to which."""
        self.held = 0
        """Messages that stay because somebody holds them."""
        self.passed = 0
        """Messages that stay because the selector does not match them, or because they died in no queue of this log."""
        self.written: CommitToken | None = None
        self.failure: ModelError | None = None
        self._resources = resources
        self._most = selection.most
        self._died_in = selection.died_in
        self._copies = copies
        self._reader = resources.catalog.reader
        self._selector = _compiled(self._reader, selection.selector)
        self._last_id, self._newest_id = 0, source.log.last_lsn
        if selection.message_id is not None:
            self._last_id, self._newest_id = selection.message_id - 1, selection.message_id
        self._log = source.log
        self._portion: CommitToken | None = None
        """In a group, the last one: it counts later."""
        self._portion_counts: Counter[str] = Counter()
        self._has_seen_all = False

    @property
    def count(self) -> int:
        """Messages that have moved, or copies that were made."""
        return self.counts.total()

    @property
    def is_ready(self) -> bool:
        """Whether it is known what has become of the last portion."""
        return self._portion is None or self._portion.is_committed or self._portion.failure is not None

    def run(self) -> Task:
        """A portion at each step."""
        while self.failure is None and self.written is None:
            self._check()
            if self.failure is None:
                self._move_portion()
            if self.failure is None and (self._has_seen_all or self.count >= self._most):
                self.written = self._resources.written if self._portion is None else self._portion
            yield

    def _check(self) -> None:
        """Whether it may go on."""
        if self._portion is not None and self._portion.failure is not None:
            self.counts -= self._portion_counts
            self._give_up(type(self._portion.failure), str(self._portion.failure))
        refusal = self._resources.replication.read_only
        if refusal:
            self._give_up(NotPrimary, refusal)
        for queue in (self.source, self.target):
            if queue is None:
                continue
            if queue.deleted:
                self._give_up(NotFound, f"queue {queue.name} was deleted meanwhile")
            elif queue.refusal:
                self._give_up(InUse, queue.refusal)
            elif queue.log is not self._log:
                self._give_up(InUse, f"the replication of queue {queue.name} was changed meanwhile")

    def _give_up(self, kind: type[ModelError], why: str) -> None:
        if self.failure is None:
            where = "where they died" if self.target is None else self.target.name
            how = "were copied" if self._copies else "have moved"
            moved = f"{self.count} messages {how} from {self.source.name} to {where}"
            self.failure = kind(f"{moved}, and the rest not: {why}")

    def _move_portion(self) -> None:
        entries = self._next_entries()
        try:
            bodies = load_bodies(entries)
        except BodyDamaged as damage:
            self._give_up(NotFound, str(damage))
            return
        arrivals = [
            _Arrival(entry, _message(entry, self.source.annotated(entry, body, self._reader.annotated)), target)
            for entry, body in zip(entries, bodies, strict=True)
            if (target := self._target_of(body)) is not None
        ]
        self.passed += len(entries) - len(arrivals)
        plan, fit, problem = self._plan(arrivals)
        if problem is not None and fit:
            plan, fit, _ = self._plan(arrivals[:fit])
        if plan is not None and fit:
            leaving = [] if self._copies else [arrival.entry for arrival in arrivals[:fit]]
            departures = [Departure(self.source, leaving, DequeueReason.MOVED)] if leaving else []
            token = self._resources.carry_out(plan, departures)
            counts = Counter(arrival.target.name for arrival in arrivals[:fit])
            self.counts += counts
            if self._resources.replication.counts_later:
                self._portion, self._portion_counts = token, counts
        if problem is not None:
            self._give_up(type(problem), str(problem))

    def _target_of(self, body: bytes) -> Queue | None:
        """Where a message goes; None: it stays."""
        if self._selector is not None and not _matches(self._reader, self._selector, body):
            return None
        if self.target is not None:
            return self.target
        name = self._reader.died_in(body)
        origin = self._resources.catalog.queues.get(name) if name == (self._died_in or name) else None
        if origin is None or origin is self.source or not origin.arguments.alternate_exchange:
            return None
        is_there = origin.log is self._log and not origin.deleted and not origin.refusal and not origin.locked
        return origin if is_there and not origin.arguments.last_value_queue_key else None

    def _next_entries(self) -> list[Entry]:
        cursor = self.source.messages.browsing_cursor(self._last_id)
        now_ms, entries, size, passed = self._resources.catalog.now_ms, list[Entry](), 0, 0
        free = free_holders(self.source)
        most = min(PORTION_MESSAGES, self._most - self.count)
        while len(entries) < most and passed < PASSED_MOST:
            entry = cursor.peek()
            if entry is None or entry.id > self._newest_id:
                self._has_seen_all = True
                break
            if entries and size + entry.size > PORTION_BYTES:
                break
            cursor.skip()
            self._last_id = entry.id
            if (self._copies or entry.holder in free) and not 0 < entry.header.expires_at_ms <= now_ms:
                entries.append(entry)
                size += entry.size
            else:
                passed += 1
                self.held += entry.holder not in free and not self._copies
        return entries

    def _plan(self, arrivals: list[_Arrival]) -> tuple[EnqueuePlan | None, int, ModelError | None]:
        """A plan for all of them; or for how many there is room, and why not for the next one."""
        now_ms = self._resources.catalog.now_ms
        plan: EnqueuePlan | None = None
        for number, (_, message, target) in enumerate(arrivals):
            try:
                if plan is None:
                    plan = self._resources.plan((target,), message, now_ms, routed=False)
                else:
                    plan.add((target,), message, now_ms, routed=False)
            except ModelError as error:
                return None, number, fresh(error)
            if plan.displaced or plan.outranked or plan.over_limits:
                plan.abandon()
                text = f"queue {target.name} is a full ring: for what comes, something would have to go"
                return None, number, QueueFull(text)
        return plan, len(arrivals), None


def _message(entry: Entry, body: bytes) -> Message:
    """Without the number that its producer gave it: that is known, and the message would be taken for a copy."""
    header = entry.header
    return Message(body, header.durable, header.priority, header.expires_at_ms, due_at_ms=header.due_at_ms)


def begin_move(
    resources: Resources,
    source: Queue,
    target: Queue | None,
    selection: MoveSelection = MoveSelection(),  # noqa: B008 - it never changes
    *,
    copies: bool = False,
) -> QueueMove:
    """Move, copy or (without a target) retry messages: see above. Raises ModelError where nothing can be moved.

    More than a portion takes its time; consumers that take some of it meanwhile have it.
    """
    resources.replication.check_writable()
    if target is not None:
        _check_queues(source, target)
    check_unlocked(source)
    if selection.message_id is not None:
        _check_available(source, selection.message_id, copies=copies)
    move = QueueMove(resources, source, target, selection, copies=copies)
    is_short = selection.message_id is not None or source.messages.count <= PORTION_MESSAGES
    resources.purges.owned.begin(source, move.run(), is_short=is_short, is_ready=lambda: move.is_ready)
    return move


def _compiled(reader: MessageReader, selector: str) -> CompiledSelector | None:
    if not selector:
        return None
    try:
        return reader.selector(selector)
    except ValueError as error:
        raise InvalidArgument(f"selector: {error}") from error


def _matches(reader: MessageReader, selector: CompiledSelector, body: bytes) -> bool:
    try:
        return selector.matches(reader.lookup(body))
    except ModelError:  # what cannot be read has nothing that a selector could match
        return False


def _check_queues(source: Queue, target: Queue) -> None:
    if source is target:
        raise InvalidArgument(f"{source.name} and {target.name} are the same queue: give another one to move to")
    check_unlocked(target)
    if target.arguments.last_value_queue_key:
        raise InUse(f"queue {target.name} keeps the last value of each key: what comes would take a newer one's place")
    if source.log is not target.log:
        raise OtherSet(
            f"the messages of {source.name} and of {target.name} are not in one log, for only one of them is"
            " replicated: no step could move a message from one to the other; consume it there and publish it here"
        )


def _check_available(source: Queue, message_id: int, *, copies: bool) -> None:
    entry = source.messages.find(message_id)
    if entry is None:
        raise NotFound(f"queue {source.name} has no message {message_id}")
    if not copies and entry.holder not in free_holders(source):
        raise InUse(f"somebody has acquired message {message_id} of queue {source.name}")
