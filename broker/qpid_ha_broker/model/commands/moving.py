"""Messages that move from one queue to others of the same log, in portions: each is in one of them at any time.

A portion is one unit of the log, with the messages that come and the word that they leave: wherever the log is cut, by
a crash or by another primary, both are there or neither is.

| command | goes to | leaves its queue | who holds it keeps it | where there is no room |
| --- | --- | --- | --- | --- |
| move | the queue that is named | yes | yes: it stays | the move ends before it |
| copy | the queue that is named | no | yes: it is copied all the same | the same |
| retry | the queue in which it died last | yes | yes: it stays | the same |
| redirect | all queues to which an exchange leads with it | yes | yes: it stays | it stays, and the others go on |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.events.counted import counted
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
from qpid_ha_broker.model.exchanges.exchange import Exchange
from qpid_ha_broker.model.exchanges.notices import NOTICE_EXCHANGE, is_for_notices
from qpid_ha_broker.model.logs.log import DEFAULT_SET, CommitToken, Log
from qpid_ha_broker.model.message_reader import CompiledSelector, MessageReader
from qpid_ha_broker.model.queues.paged import BodyDamaged
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import NO_LIMIT, Entry, load_bodies
from qpid_ha_broker.model.sets.catalog import Catalog, Destinations
from qpid_ha_broker.model.sets.purge import free_holders
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.strategies import check_unlocked
from qpid_ha_broker.model.transactions.plan import Departure, EnqueuePlan
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.model.work import Task

PORTION_MESSAGES: Final = 50
PORTION_BYTES: Final = 256 * 1024
"""Of one unit of the log, at least one message, which counts for each queue to which it goes: a millisecond or two of
work."""
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


class Redirection(NamedTuple):
    """Messages are published to an exchange, as if their publishers did it now."""

    exchange: Exchange
    catalog: Catalog
    """That of `default`, which has all exchanges and bindings."""
    key: str | None = None
    """The routing key of all of them; None: each has its own subject."""


class Stay(Enum):
    """Why a message stays in its queue."""

    HELD = "held"
    """Somebody has acquired it."""
    PASSED = "passed"
    """It is not meant: the selector does not match it, or it died in no queue of this log."""
    UNROUTED = "unrouted"
    """No binding leads anywhere with it, or what bindings ask for cannot be read in it."""
    FULL = "full"
    """A queue to which it would go has no room for it, or has kept out an earlier one, which it must not overtake."""


class MoveTargets(Protocol):
    """Where the messages of a move go."""

    @property
    def text(self) -> str:
        """As an error has it: `to orders`."""

    @property
    def without(self) -> Stay:
        """What it is called that a message goes nowhere."""

    @property
    def skips_full(self) -> bool:
        """Whether the move goes on behind a message for which there is no room; else it ends there."""

    def check(self, log: Log) -> None:
        """Raises ModelError where no message of `log` may go there any more."""

    def of(self, body: bytes) -> tuple[Queue, ...]:
        """The queues to which a message goes, all of them; none: it stays. Raises ModelError: the move ends there."""


class _NamedQueue:
    """All go to one queue."""

    without = Stay.PASSED
    skips_full = False

    def __init__(self, target: Queue) -> None:
        self._targets = (target,)
        self.text = f"to {target.name}"

    def check(self, log: Log) -> None:
        """See `MoveTargets`."""
        for queue in self._targets:
            _check_unchanged(queue, log)

    def of(self, _body: bytes) -> tuple[Queue, ...]:
        """See `MoveTargets`."""
        return self._targets


class _Origins:
    """Each goes to the queue in which it died last."""

    text = "to where they died"
    without = Stay.PASSED
    skips_full = False

    def __init__(self, source: Queue, catalog: Catalog, died_in: str) -> None:
        self._source = source
        self._catalog = catalog
        self._died_in = died_in

    def check(self, log: Log) -> None:
        """See `MoveTargets`: it is asked for each message."""

    def of(self, body: bytes) -> tuple[Queue, ...]:
        """See `MoveTargets`."""
        name = self._catalog.reader.died_in(body)
        origin = self._catalog.queues.get(name) if name == (self._died_in or name) else None
        if origin is None or origin is self._source or not origin.arguments.alternate_exchange:
            return ()
        try:
            _check_target(self._catalog, self._source, origin)
        except ModelError:
            return ()
        return () if origin.deleted else (origin,)


class _ExchangeRoutes:
    """Each goes where the exchange leads with it, its own queue included."""

    without = Stay.UNROUTED
    skips_full = True

    def __init__(self, resources: Resources, source: Queue, redirection: Redirection) -> None:
        """Raises NotFound, and OtherSet where a binding leads to a queue of another log."""
        self._exchange, self._catalog, self._key = redirection
        self._resources = resources
        self._source = source
        self.text = f"through exchange {self._exchange.name}"
        self.check(source.log)
        for queue in self._within(self._bound()):
            _check_log(source, queue)

    def check(self, log: Log) -> None:
        """See `MoveTargets`."""
        if self._exchange.id not in self._catalog.exchanges_by_id:
            raise NotFound(f"exchange {self._exchange.name} was deleted")

    def of(self, body: bytes) -> tuple[Queue, ...]:
        """See `MoveTargets`."""
        try:
            key = self._catalog.reader.routing_key(body) if self._key is None else self._key
            there = self._catalog.destinations(self._exchange, key, body)
        except ModelError:  # nobody can say where that goes
            return ()
        queues = self._within(there)
        for queue in queues:
            _check_target(self._catalog, self._source, queue)
        return queues

    def _bound(self) -> Destinations:
        """All queues to which the exchange leads with some message; its alternate exchange may lead to others."""
        ids, queues, placed = self._exchange.queues, self._catalog.queues_by_id, self._catalog.map.queues_by_id
        return Destinations(
            tuple([queues[queue_id] for queue_id in ids if queue_id in queues]),
            tuple([placed[queue_id] for queue_id in ids if queue_id in placed]),
        )

    def _within(self, there: Destinations) -> tuple[Queue, ...]:
        """The queues of a route, if all are of the set of the source. Raises OtherSet, and NotFound for one that the
        directory has, and the set has not yet."""
        own, source = self._resources.name, self._source
        if own == DEFAULT_SET:
            for placed in there.placed:
                raise other_set(source.name, own, placed.name, placed.set)
            return there.queues
        for queue in there.queues:
            raise other_set(source.name, own, queue.name, DEFAULT_SET)
        queues = []
        for placed in there.placed:
            if placed.set != own:
                raise other_set(source.name, own, placed.name, placed.set)
            own_queue = self._resources.catalog.queues.get(placed.name)
            if own_queue is None and not placed.deleting:
                raise NotFound(f"queue {placed.name} is not there yet in resource set {own}: ask again")
            if own_queue is not None and not own_queue.deleted:
                queues.append(own_queue)
        return tuple(queues)


class _Arrival(NamedTuple):
    """A message of the source that goes to `targets`."""

    entry: Entry
    message: Message
    targets: tuple[Queue, ...]


class _LookedAt(NamedTuple):
    """What a portion has looked at."""

    entries: list[Entry]
    """Those that may leave."""
    held: list[int]
    """The ids of those that somebody holds."""
    last_id: int
    is_whole: bool
    """There are no more behind them."""


class _Portion(NamedTuple):
    """What was submitted in a group, and counts later."""

    written: CommitToken
    messages: int
    arrived: Counter[str]


class QueueMove:
    """The promise: each message is in its queue or in all those to which it goes, whenever the log ends. A copy is a
    message of its own, and the original stays as it was.

    It takes messages that were there when it was asked for and that no consumer holds, in the order in which they
    came, also where they come back to their own queue. Nothing is dropped for them: where there is no room, it stops
    before the message, or (`MoveTargets.skips_full`) leaves it, and what comes behind it for the same queues.

    `written`: None while it goes on; then what to wait for until all of it is committed. `failure`: why it was given
    up; the `count` messages that had moved by then stay where they are.

    In a group a portion waits for the one before: what is on its way to the target is not seen there, and may come to
    nothing.
    """

    def __init__(
        self,
        resources: Resources,
        source: Queue,
        targets: MoveTargets,
        selection: MoveSelection,
        *,
        copies: bool = False,
    ) -> None:
        """Raises InvalidArgument for a wrong selector."""
        self.source = source
        self.count = 0
        """Messages that have moved, or copies that were made."""
        self.counts: Counter[str] = Counter()
        """The same, by the queue to which: one that came to several counts for each."""
        self.stays: Counter[Stay] = Counter()
        """Messages that were looked at and stay."""
        self.no_room = ""
        """Why the first of those that are FULL stays; empty: there are none."""
        self.written: CommitToken | None = None
        self.failure: ModelError | None = None
        self._resources = resources
        self._targets = targets
        self._most = selection.most
        self._copies = copies
        self._selector = _compiled(resources.catalog.reader, selection.selector)
        self._last_id, self._newest_id = 0, source.log.last_lsn
        if selection.message_id is not None:
            self._last_id, self._newest_id = selection.message_id - 1, selection.message_id
        self._log = source.log
        self._kept_out: set[Queue] = set()
        """For which an earlier message stays: none may overtake it."""
        self._portion: _Portion | None = None
        """In a group, the last one."""
        self._has_seen_all = False

    @property
    def held(self) -> int:
        """Messages that stay because somebody holds them."""
        return self.stays[Stay.HELD]

    @property
    def passed(self) -> int:
        """Messages that stay because they are not meant."""
        return self.stays[Stay.PASSED]

    @property
    def is_ready(self) -> bool:
        """Whether it is known what has become of the last portion."""
        written = None if self._portion is None else self._portion.written
        return written is None or written.is_committed or written.failure is not None

    def run(self) -> Task:
        """A portion at each step."""
        while self.failure is None and self.written is None:
            self._check()
            if self.failure is None:
                self._move_portion()
            if self.failure is None and (self._has_seen_all or self.count >= self._most):
                self.written = self._resources.written if self._portion is None else self._portion.written
            yield

    def _check(self) -> None:
        """Whether it may go on."""
        portion = self._portion
        if portion is not None and portion.written.failure is not None:
            self.count -= portion.messages
            self.counts -= portion.arrived
            self._give_up(portion.written.failure)
        refusal = self._resources.replication.read_only
        if refusal:
            self._give_up(NotPrimary(refusal))
        try:
            _check_unchanged(self.source, self._log)
            self._targets.check(self._log)
        except ModelError as error:
            self._give_up(error)

    def _give_up(self, why: ModelError) -> None:
        if self.failure is None:
            how = (
                ("message was copied", "messages were copied")
                if self._copies
                else ("message has moved", "messages have moved")
            )
            moved = f"{counted(self.count, *how)} from {self.source.name} {self._targets.text}"
            self.failure = type(why)(f"{moved}, and the rest not: {why}")

    def _move_portion(self) -> None:
        look = self._look()
        try:
            bodies = load_bodies(look.entries)
        except BodyDamaged as damage:
            self._give_up(NotFound(str(damage)))
            return
        arrivals, problem = self._arrivals(look, bodies)
        plan, fit, no_room = self._plan(arrivals)
        while self._targets.skips_full and isinstance(no_room, QueueFull):
            arrivals = self._without_kept_out(arrivals, fit, str(no_room))
            plan, fit, no_room = self._plan(arrivals)
        if no_room is not None and fit:
            plan, fit, _ = self._plan(arrivals[:fit])
        if plan is not None and fit:
            leaving = [] if self._copies else [arrival.entry for arrival in arrivals[:fit]]
            departures = [Departure(self.source, leaving, DequeueReason.MOVED)] if leaving else []
            token = self._resources.carry_out(plan, departures)
            counts = Counter(target.name for arrival in arrivals[:fit] for target in arrival.targets)
            self.count += fit
            self.counts += counts
            if self._resources.replication.counts_later:
                self._portion = _Portion(token, fit, counts)
        problem = no_room or problem
        if problem is not None:
            self._give_up(problem)

    def _arrivals(self, look: _LookedAt, bodies: Sequence[bytes]) -> tuple[list[_Arrival], ModelError | None]:
        """What goes somewhere; up to where that cannot be said, and why not, or where it is enough for one unit."""
        arrivals, reader = list[_Arrival](), self._resources.catalog.reader
        last_id, is_whole, coming = look.last_id, look.is_whole, 0
        problem: ModelError | None = None
        for entry, body in zip(look.entries, bodies, strict=True):
            if self._selector is not None and not _matches(reader, self._selector, body):
                self.stays[Stay.PASSED] += 1
                continue
            try:
                targets = self._targets.of(body)
            except ModelError as error:
                problem = fresh(error)
                break
            if not targets:
                self.stays[self._targets.without] += 1
                continue
            if not self._kept_out.isdisjoint(targets):
                self.stays[Stay.FULL] += 1
                continue
            coming += len(targets)
            if arrivals and coming > PORTION_MESSAGES:
                last_id, is_whole = entry.id - 1, False
                break
            sent = self.source.annotated(entry, body, reader.annotated)
            arrivals.append(_Arrival(entry, _message(entry, sent), targets))
        self.stays[Stay.HELD] += sum(1 for held in look.held if held <= last_id)
        self._last_id, self._has_seen_all = last_id, is_whole
        return arrivals, problem

    def _without_kept_out(self, arrivals: list[_Arrival], full: int, why: str) -> list[_Arrival]:
        """The arrivals but for number `full`, for which there is no room, and what would overtake it in a queue."""
        self.no_room = self.no_room or why
        self._kept_out.update(arrivals[full].targets)
        behind = [arrival for arrival in arrivals[full:] if self._kept_out.isdisjoint(arrival.targets)]
        self.stays[Stay.FULL] += len(arrivals) - full - len(behind)
        return [*arrivals[:full], *behind]

    def _look(self) -> _LookedAt:
        cursor = self.source.messages.browsing_cursor(self._last_id)
        now_ms, entries, size, passed = self._resources.catalog.now_ms, list[Entry](), 0, 0
        held, last_id, is_whole = list[int](), self._last_id, False
        free = free_holders(self.source)
        most = min(PORTION_MESSAGES, self._most - self.count)
        while len(entries) < most and passed < PASSED_MOST:
            entry = cursor.peek()
            if entry is None or entry.id > self._newest_id:
                is_whole = True
                break
            if entries and size + entry.size > PORTION_BYTES:
                break
            cursor.skip()
            last_id = entry.id
            if (self._copies or entry.holder in free) and not 0 < entry.header.expires_at_ms <= now_ms:
                entries.append(entry)
                size += entry.size
            else:
                passed += 1
                if entry.holder not in free and not self._copies:
                    held.append(entry.id)
        return _LookedAt(entries, held, last_id, is_whole)

    def _plan(self, arrivals: list[_Arrival]) -> tuple[EnqueuePlan | None, int, ModelError | None]:
        """A plan for all of them; or for how many there is room, and why not for the next one."""
        now_ms = self._resources.catalog.now_ms
        plan: EnqueuePlan | None = None
        for number, (_, message, targets) in enumerate(arrivals):
            try:
                if plan is None:
                    plan = self._resources.plan(targets, message, now_ms, routed=False)
                else:
                    plan.add(targets, message, now_ms, routed=False)
            except ModelError as error:
                return None, number, fresh(error)
            if plan.displaced or plan.outranked or plan.over_limits:
                plan.abandon()
                names = " or ".join(target.name for target in targets)
                return (
                    None,
                    number,
                    QueueFull(f"queue {names} is a full ring: for what comes, something would have to go"),
                )
        return plan, len(arrivals), None


def _message(entry: Entry, body: bytes) -> Message:
    """Without the number that its producer gave it: that is known, and the message would be taken for a copy."""
    header = entry.header
    return Message(body, header.durable, header.priority, header.expires_at_ms, due_at_ms=header.due_at_ms)


def begin_move(
    resources: Resources,
    source: Queue,
    target: Queue | Redirection | None,
    selection: MoveSelection = MoveSelection(),  # noqa: B008 - it never changes
    *,
    copies: bool = False,
) -> QueueMove:
    """Move, copy, redirect or (without a target) retry messages: see above. Raises ModelError where nothing can be
    moved.

    More than a portion takes its time; consumers that take some of it meanwhile have it.
    """
    resources.replication.check_writable()
    targets = _targets(resources, source, target, selection)
    check_unlocked(source)
    if selection.message_id is not None:
        _check_available(source, selection.message_id, copies=copies)
    move = QueueMove(resources, source, targets, selection, copies=copies)
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


def _targets(
    resources: Resources, source: Queue, target: Queue | Redirection | None, selection: MoveSelection
) -> MoveTargets:
    """Raises ModelError where nothing of `source` may go there."""
    match target:
        case Queue():
            if source is target:
                raise InvalidArgument(
                    f"{source.name} and {target.name} are the same queue: give another one to move to"
                )
            _check_target(resources.catalog, source, target)
            return _NamedQueue(target)
        case Redirection():
            if is_for_notices(target.exchange.name):
                raise InvalidArgument(f"the broker alone publishes to {target.exchange.name}: use another exchange")
            return _ExchangeRoutes(resources, source, target)
    return _Origins(source, resources.catalog, selection.died_in)


def _check_target(catalog: Catalog, source: Queue, target: Queue) -> None:
    """Whether messages of `source` may go to `target`, which `catalog` has. Raises ModelError."""
    check_unlocked(target)
    if catalog.takes_notices_alone(target):
        raise InUse(f"{target.name} is for notices of {NOTICE_EXCHANGE}, and nothing else comes into it: use another")
    if target.arguments.last_value_queue_key:
        raise InUse(f"queue {target.name} keeps the last value of each key: what comes would take a newer one's place")
    _check_log(source, target)


def _check_log(source: Queue, target: Queue) -> None:
    if source.log is not target.log:
        raise OtherSet(
            f"the messages of {source.name} and of {target.name} are not in one log, for only one of them is"
            " replicated: no step could move a message from one to the other; consume it there and publish it here"
        )


def other_set(source: str, source_set: str, target: str, target_set: str) -> OtherSet:
    """The error for messages of queue `source` that would go to a queue of another set."""
    return OtherSet(
        f"{source} is in the resource set {source_set}, {target} in {target_set}: nothing is committed in two sets at"
        " once, so a message could be lost or be there twice; export the queue and import it there, then purge it here"
    )


def _check_unchanged(queue: Queue, log: Log) -> None:
    """Whether a move from or to `queue` may go on that has begun in `log`. Raises ModelError."""
    if queue.deleted:
        raise NotFound(f"queue {queue.name} was deleted meanwhile")
    if queue.refusal:
        raise InUse(queue.refusal)
    if queue.log is not log:
        raise InUse(f"the replication of queue {queue.name} was changed meanwhile")


def _check_available(source: Queue, message_id: int, *, copies: bool) -> None:
    entry = source.messages.find(message_id)
    if entry is None:
        raise NotFound(f"queue {source.name} has no message {message_id}")
    if not copies and entry.holder not in free_holders(source):
        raise InUse(f"somebody has acquired message {message_id} of queue {source.name}")
