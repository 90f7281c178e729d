"""Messages that move from one queue to another of the same log, in portions: each is in one of the two at any time.

A portion is one unit of the log, with the messages that come and the word that they leave: wherever the log is cut, by
a crash or by another primary, both are there or neither is.
"""

from __future__ import annotations

from typing import Final

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


class QueueMove:
    """The promise: each message is in one of the two queues, and in one only, whenever the log ends.

    It takes messages that were there when it was asked for and that no consumer holds, in the order in which they
    came, `most` of them. It stops before the first that the target has no room for: nothing is dropped for it.

    `written`: None while it goes on; then what to wait for until all of it is committed. `failure`: why it was given
    up; the `count` messages that had moved by then stay where they are.

    In a group a portion waits for the one before: what is on its way to the target is not seen there, and may come to
    nothing.
    """

    def __init__(self, resources: Resources, source: Queue, target: Queue, most: int) -> None:
        self.source, self.target = source, target
        self.count = 0
        """Messages that have moved."""
        self.held = 0
        """Messages that stay because somebody holds them."""
        self.written: CommitToken | None = None
        self.failure: ModelError | None = None
        self._resources = resources
        self._most = most
        self._last_id, self._newest_id = 0, source.log.last_lsn
        self._log = source.log
        self._portion: CommitToken | None = None
        """In a group, the last one: it counts later."""
        self._portion_length = 0
        self._has_seen_all = False

    def only(self, message_id: int) -> None:
        """Take no other message."""
        self._last_id, self._newest_id = message_id - 1, message_id

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
            self.count -= self._portion_length
            self._give_up(type(self._portion.failure), str(self._portion.failure))
        refusal = self._resources.replication.read_only
        if refusal:
            self._give_up(NotPrimary, refusal)
        for queue in (self.source, self.target):
            if queue.deleted:
                self._give_up(NotFound, f"queue {queue.name} was deleted meanwhile")
            elif queue.refusal:
                self._give_up(InUse, queue.refusal)
            elif queue.log is not self._log:
                self._give_up(InUse, f"the replication of queue {queue.name} was changed meanwhile")

    def _give_up(self, kind: type[ModelError], why: str) -> None:
        if self.failure is None:
            moved = f"{self.count} messages have moved from {self.source.name} to {self.target.name}"
            self.failure = kind(f"{moved}, and the rest not: {why}")

    def _move_portion(self) -> None:
        entries = self._next_entries()
        try:
            messages = [_message(entry, body) for entry, body in zip(entries, load_bodies(entries), strict=True)]
        except BodyDamaged as damage:
            self._give_up(NotFound, str(damage))
            return
        plan, fit, problem = self._plan(messages)
        if problem is not None and fit:
            plan, fit, _ = self._plan(messages[:fit])
        if plan is not None and fit:
            token = self._resources.carry_out(plan, [Departure(self.source, entries[:fit], DequeueReason.MOVED)])
            self.count += fit
            if self._resources.replication.counts_later:
                self._portion, self._portion_length = token, fit
        if problem is not None:
            self._give_up(type(problem), str(problem))

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
            if entry.holder in free and not 0 < entry.header.expires_at_ms <= now_ms:
                entries.append(entry)
                size += entry.size
            else:
                passed += 1
                self.held += entry.holder not in free
        return entries

    def _plan(self, messages: list[Message]) -> tuple[EnqueuePlan | None, int, ModelError | None]:
        """A plan for all of them; or for how many there is room, and why not for the next one."""
        now_ms, targets = self._resources.catalog.now_ms, (self.target,)
        plan: EnqueuePlan | None = None
        for number, message in enumerate(messages):
            try:
                if plan is None:
                    plan = self._resources.plan(targets, message, now_ms, routed=False)
                else:
                    plan.add(targets, message, now_ms, routed=False)
            except ModelError as error:
                return None, number, fresh(error)
            if plan.displaced or plan.outranked or plan.over_limits:
                plan.abandon()
                text = f"queue {self.target.name} is a full ring: for what comes, something would have to go"
                return None, number, QueueFull(text)
        return plan, len(messages), None


def _message(entry: Entry, body: bytes) -> Message:
    """Without the number that its producer gave it: that is known, and the message would be taken for a copy."""
    header = entry.header
    return Message(body, header.durable, header.priority, header.expires_at_ms, due_at_ms=header.due_at_ms)


def begin_move(
    resources: Resources, source: Queue, target: Queue, *, most: int = NO_LIMIT, message_id: int | None = None
) -> QueueMove:
    """Move `most` messages, or the one with that id. Raises ModelError where nothing can be moved.

    More than a portion takes its time; consumers that take some of it meanwhile have it.
    """
    resources.replication.check_writable()
    _check_queues(source, target)
    move = QueueMove(resources, source, target, most)
    if message_id is not None:
        _check_available(source, message_id)
        move.only(message_id)
    is_short = message_id is not None or source.messages.count <= PORTION_MESSAGES
    resources.purges.owned.begin(source, move.run(), is_short=is_short, is_ready=lambda: move.is_ready)
    return move


def _check_queues(source: Queue, target: Queue) -> None:
    if source is target:
        raise InvalidArgument(f"{source.name} and {target.name} are the same queue: give another one to move to")
    check_unlocked(source)
    check_unlocked(target)
    if target.arguments.last_value_queue_key:
        raise InUse(f"queue {target.name} keeps the last value of each key: what comes would take a newer one's place")
    if source.log is not target.log:
        raise OtherSet(
            f"the messages of {source.name} and of {target.name} are not in one log, for only one of them is"
            " replicated: no step could move a message from one to the other; consume it there and publish it here"
        )


def _check_available(source: Queue, message_id: int) -> None:
    entry = source.messages.find(message_id)
    if entry is None:
        raise NotFound(f"queue {source.name} has no message {message_id}")
    if entry.holder not in free_holders(source):
        raise InUse(f"somebody has acquired message {message_id} of queue {source.name}")
