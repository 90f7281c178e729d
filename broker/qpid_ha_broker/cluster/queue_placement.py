"""Which set a queue belongs to, as clients declare and delete queues, and as their sets' primaries report.

The directory has an entry before the set has the queue, and until the set's primary says that it has deleted it: so
there is no queue without an entry, whoever dies in between. See `cluster.directory`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.keeper import ReplicaKeeper
from qpid_ha_broker.cluster.messages import AnswerRequest, BrokerReport, DeleteQueue, LocateQueue, SettleQueue
from qpid_ha_broker.cluster.reports import DEFAULT
from qpid_ha_broker.cluster_map import PlacedQueue, SetEntry
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.set_names import set_name_problem
from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.model.errors import (
    REASONS,
    AlreadyExists,
    ControllerRefusal,
    InUse,
    InvalidArgument,
    ModelError,
    NotFound,
    Unavailable,
)
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, check_in_group

PENDING_LIMIT_S = 5.0
"""So long an answer waits for the primary of the set."""


class WaitingRequest(NamedTuple):
    """Somebody who wants to hear when it is done."""

    done: AnswerRequest
    pending: str
    """What is said instead when it takes too long."""
    until_s: float


class WantedDeletion(NamedTuple):
    """A queue that somebody wants deleted, and waits for that."""

    number: int
    """Of the request."""
    queue: PlacedQueue
    conditions: tuple[bool, bool]
    """Only if it is empty, only if it is unused."""
    until_s: float
    generation: int = 0
    """Of the primary of its set that was told."""
    order: int = 0
    """Which that one answers; 0: none was."""


class ClusterRefusal(Exception):
    """What was asked for cannot be done; the text says why, and what to do.

    `kind`: the error of whoever has asked.
    """

    def __init__(self, text: str, kind: type[ModelError] = ControllerRefusal) -> None:
        super().__init__(text)
        self.kind = kind


class EarlyRefusal(ClusterRefusal):
    """A broker has not said yet what is waited for, which it does soon: who it is, after its start, unless it is of an
    older release; or that an earlier replica is gone."""


class QueueDirectory:
    """Decides where queues are, and makes the sets that this takes."""

    def __init__(self, ctx: ControllerContext, keeper: ReplicaKeeper) -> None:
        self._ctx, self._keeper = ctx, keeper
        self._complained: set[str] = set()
        self._declared: dict[str, int] = {}
        """By set: it has the queues of all entries up to this one, as its primary has said to this controller."""
        self._waiting: dict[str, list[WaitingRequest]] = {}
        """By queue: who is to hear when it is declared."""
        self._deletions: list[WantedDeletion] = []
        self._older: set[str] = set()
        """Brokers of the release before, as far as this controller has heard of them."""

    def began(self) -> None:
        """A new controller: whoever waited asks again."""
        self._declared.clear()
        self._waiting.clear()
        self._deletions.clear()
        self._older.clear()

    def settle(self, number: int, asked: SettleQueue) -> None:
        """Have it in its set. Raises ClusterRefusal."""
        there = self._ctx.map.queues.get(asked.name)
        if there is None:
            name = self._make_missing(asked)
            _check_strategy(self._ctx.draft.sets[name], asked.arguments)
            self._ctx.write(ev.QueuePlaced(asked.name, name, asked.arguments, False))
        else:
            name = there.set
            if there.deleting or any(wanted.queue.id == there.id for wanted in self._deletions):
                raise ClusterRefusal(f"queue {asked.name} is being deleted: try again", InUse)
            _check_same(there, asked.arguments)
        done = AnswerRequest(number, True, f"queue {asked.name} is in {name}", {"set": name, "created": there is None})
        if asked.wait and (there is None or there.id > self._declared.get(name, 0)):
            text = f"queue {asked.name} is to be in {name}, whose primary is not known to have it yet"
            self._wait(asked.name, done, f"{text}: it is made as soon as there is one")
        else:
            self._ctx.answer(done)

    def _wait(self, queue: str, done: AnswerRequest, pending: str) -> None:
        until_s = self._ctx.now_s + PENDING_LIMIT_S
        self._waiting.setdefault(queue, []).append(WaitingRequest(done, pending, until_s))

    def tick(self) -> None:
        """Whoever has waited for long hears how it is."""
        for queue, waiting in list(self._waiting.items()):
            late = [each for each in waiting if self._ctx.now_s >= each.until_s]
            for each in late:
                result = {**each.done.result, "pending": True}
                self._ctx.answer(each.done._replace(text=each.pending, result=result))
            self._keep_waiting(queue, [each for each in waiting if each not in late])
        for wanted in [wanted for wanted in self._deletions if self._ctx.now_s >= wanted.until_s]:
            text = f"queue {wanted.queue.name} is to be deleted from {wanted.queue.set}, whose primary has not answered"
            self._refuse(wanted, f"{text}: whether it is gone is not known, try again", Unavailable)
        self._deletions = [self._ordered(wanted) for wanted in self._deletions]

    def _keep_waiting(self, queue: str, waiting: list[WaitingRequest]) -> None:
        if waiting:
            self._waiting[queue] = waiting
        else:
            self._waiting.pop(queue, None)

    def _tell(self, queue: str) -> None:
        """What they have waited for has come."""
        for each in self._waiting.pop(queue, []):
            self._ctx.answer(each.done)

    def delete(self, number: int, asked: DeleteQueue) -> None:
        """Have its set delete it. Raises ClusterRefusal."""
        there = self._ctx.map.queues.get(asked.name)
        if there is None:
            raise ClusterRefusal(f"there is no queue {asked.name} in the directory", NotFound)
        conditions, replicas = (asked.if_empty, asked.if_unused), self._ctx.draft.sets[there.set].replicas
        older = self._older.intersection(replicas)
        if older and any(conditions):
            text = f"queue {asked.name} cannot be deleted on conditions while {min(older)} is of an older release"
            raise ClusterRefusal(f"{text}: upgrade it, or try again without", Unavailable)
        if there.deletion or (older and not there.deleting):
            self._ctx.write(ev.QueuePlaced(there.name, there.set, there.declared, True))
        until_s = self._ctx.now_s + PENDING_LIMIT_S
        self._deletions.append(self._ordered(WantedDeletion(number, there, conditions, until_s)))

    def _ordered(self, wanted: WantedDeletion) -> WantedDeletion:
        """The same, with the primary of the set told about it: the one that leads now, once."""
        ctx, queue = self._ctx, wanted.queue
        entry = ctx.draft.sets.get(queue.set)
        if entry is None or entry.record.generation == wanted.generation or self._older.intersection(entry.replicas):
            return wanted
        order = ctx.order_deletion(queue, wanted.conditions)
        return wanted._replace(generation=entry.record.generation, order=order)

    def deletion_answered(self, number: int, done: bool, text: str) -> None:
        """The primary of a set has said what comes of an order; other numbers are of other orders."""
        for wanted in [wanted for wanted in self._deletions if wanted.order == number and not done]:
            self._refuse(wanted, text, InUse)

    def _refuse(self, wanted: WantedDeletion, text: str, kind: type[ModelError]) -> None:
        self._deletions.remove(wanted)
        self._ctx.answer(AnswerRequest(wanted.number, False, text, {"reason": REASONS[kind]}))

    def _tell_deleted(self, queue: PlacedQueue) -> None:
        for wanted in [wanted for wanted in self._deletions if wanted.queue.id == queue.id]:
            self._deletions.remove(wanted)
            text = f"queue {queue.name} is deleted from {queue.set}"
            self._ctx.answer(AnswerRequest(wanted.number, True, text, {"set": queue.set, "id": queue.id}))

    def locate(self, number: int, asked: LocateQueue) -> None:
        """Say where it is, as far as that is committed."""
        there = self._ctx.map.queues.get(asked.name)
        name = "" if there is None or there.deleting else there.set
        text = f"queue {asked.name} is in {name}" if name else f"the directory has no queue {asked.name}"
        self._ctx.answer(AnswerRequest(number, True, text, {"set": name}))

    def reported(self, report: BrokerReport) -> None:
        """What a primary says of queues. Of who does not lead the set, nothing counts."""
        ctx, broker = self._ctx, report.broker.name
        (self._older.discard if report.reads_tombstones else self._older.add)(broker)
        for queue_id in dict.fromkeys(report.deleted_queues):
            queue = ctx.map.queues_by_id.get(queue_id)
            if queue is not None and ctx.draft.sets[queue.set].record.primary == broker:
                ctx.write(ev.QueueRemoved(queue_id))
                self._tell_deleted(queue)
        for kept in report.kept_queues:
            queue = ctx.map.queues_by_id.get(kept.id)
            if queue is not None and queue.deletion == kept.deletion != "":
                record = ctx.draft.sets[queue.set].record
                if (record.primary, record.generation) == (broker, kept.generation):
                    ctx.write(ev.QueuePlaced(queue.name, queue.set, queue.declared, False))
                    ctx.note("info", f"queue {queue.name} of {queue.set} is not deleted: {kept.text}")
        for declared in report.declared_queues:
            self._declared[declared.set] = max(declared.id, self._declared.get(declared.set, 0))
        if report.declared_queues:
            self._tell_declared()
        placed: set[str] = set()
        for found in report.unplaced_queues:
            entry = ctx.draft.sets.get(found.set)
            there = ctx.map.queues.get(found.name)
            if entry is None or entry.record.primary != broker or found.name in placed:
                continue
            if there is None:
                placed.add(found.name)
                ctx.write(ev.QueuePlaced(found.name, found.set, found.arguments, False))
                ctx.note(
                    "warning", f"set {found.set} has a queue {found.name} that the directory has lost: it has it now"
                )
            elif there.set != found.set and found.name not in self._complained:
                self._complained.add(found.name)
                ctx.note("error", f"set {found.set} has a queue {found.name}, which the directory has in {there.set}")

    def _tell_declared(self) -> None:
        for name in list(self._waiting):
            queue = self._ctx.map.queues.get(name)
            if queue is not None and not queue.deleting and queue.id <= self._declared.get(queue.set, 0):
                self._tell(name)

    def _make_missing(self, asked: SettleQueue) -> str:
        """The set of a new queue, which is there then. Raises ClusterRefusal."""
        if asked.set in self._ctx.draft.sets:
            return asked.set
        if not asked.missing:
            text = f"there is no resource set {asked.set}: `qpid-ha set create {asked.set}` makes it"
            raise ClusterRefusal(text, InvalidArgument)
        return self.make(SetEntry(asked.set, (), preferred=asked.preferred or self._least_preferred()))

    def _least_preferred(self) -> str:
        """The open broker at which the fewest sets should have their primary."""
        ctx = self._ctx
        counts = {name: 0 for name in ctx.draft.brokers if ctx.is_up(name) and ctx.may_lead(name)}
        for entry in ctx.draft.sets.values():
            if entry.preferred in counts:
                counts[entry.preferred] += 1
        return min(counts, key=lambda name: (counts[name], name), default="")

    def make(self, entry: SetEntry) -> str:
        """Make a set, with replicas where it has none yet. Raises ClusterRefusal."""
        ctx, name = self._ctx, entry.name
        brokers = ctx.draft.brokers
        if name == DEFAULT or name in ctx.draft.sets:
            raise ClusterRefusal(f"there is a resource set {name} already{self._why_not_turned(entry)}")
        problem = set_name_problem(name)
        if problem is not None:
            raise ClusterRefusal(problem)
        if entry.is_group:
            self._check_group(entry)
        for broker in dict.fromkeys([*entry.replicas, *([entry.preferred] if entry.preferred else [])]):
            self.check_open(broker, entry.replicas)
        if entry.replicas and entry.preferred and entry.preferred not in entry.replicas:
            raise ClusterRefusal(f"{entry.preferred} should lead {name}, and is to have no replica of it")
        if len(set(entry.replicas)) != len(entry.replicas):
            raise ClusterRefusal(f"a broker has at most one replica of {name}")
        most = max(entry.min_replicas, entry.min_in_sync)
        machines = len({broker.place.machine for broker in brokers.values()})
        if most > machines:
            place = "broker" if machines == len(brokers) else "machine"
            there = f"there {'is' if machines == 1 else 'are'} {counted(machines, place)}"
            raise ClusterRefusal(f"{name} wants {counted(most, 'replica')}, and {there}")
        if not entry.replicas:
            first = (entry.preferred,) if entry.preferred else ()
            wanted = self._keeper.wanted(entry).number
            entry = entry._replace(replicas=first)
            entry = entry._replace(replicas=(*first, *self._keeper.choose(entry, wanted - len(first))))
        if not entry.replicas:
            raise ClusterRefusal(f"no broker is open for a replica of {name}")
        ctx.make_set(entry)
        self._keeper.trigger([name])
        return name

    def _check_group(self, entry: SetEntry) -> None:
        """Raises ClusterRefusal. A broker of a release that knows no groups could not read the log any more."""
        if entry.preferred:
            raise ClusterRefusal(f"{entry.name} is to be a group: each of its brokers serves it, so none is preferred")
        releases = {broker.name: broker.version for broker in self._ctx.draft.brokers.values()}
        if len(set(releases.values())) > 1:
            each = ", ".join(f"{name} {version}" for name, version in sorted(releases.items()))
            raise ClusterRefusal(f"an older release may not know groups: have all brokers on one first (now {each})")

    def _why_not_turned(self, wanted: SetEntry) -> str:
        """Of a set that is there; empty: it is what was wanted."""
        there = self._ctx.draft.sets.get(wanted.name)
        if there is None or there.is_group == wanted.is_group:
            return ""
        return (
            f", with the strategy {there.strategy}, and that never changes: make another set with `--strategy"
            f" {wanted.strategy}`, and queues in that; `qpid-ha queue export` and `queue import` take messages there"
        )

    def check_open(self, broker: str, beside: Iterable[str] = ()) -> None:
        """Whether it can have another replica, `beside` those of a set that stay. Raises ClusterRefusal."""
        there = self._ctx.draft.brokers.get(broker)
        if there is None:
            brokers = ", ".join(sorted(self._ctx.draft.brokers))
            raise ClusterRefusal(f"there is no broker {broker} that knows resource sets; there are {brokers}")
        if there.draining:
            raise ClusterRefusal(f"{broker} is being drained: `qpid-ha undrain {broker}` lets it have replicas again")
        if not self._ctx.is_up(broker):
            raise ClusterRefusal(f"{broker} is away: start it, or choose another one")
        entries = [self._ctx.draft.brokers[name] for name in beside if name in self._ctx.draft.brokers]
        for other in entries:
            if other.name != broker and other.place.machine == there.place.machine:
                raise ClusterRefusal(
                    f"{broker} is on the machine of {other.name}, which has a replica: choose another machine"
                )


def _check_strategy(entry: SetEntry, asked: Arguments) -> None:
    """Raises ClusterRefusal where the members of a group could not have such a queue."""
    if entry.is_group:
        try:
            check_in_group(QueueArguments.parse(asked))
        except InvalidArgument as error:
            raise ClusterRefusal(str(error), InvalidArgument) from None


def _check_same(there: PlacedQueue, asked: Arguments) -> None:
    """Raises ClusterRefusal where the queue was declared with other arguments."""
    try:
        is_same = QueueArguments.parse(asked).means_the_same_as(QueueArguments.parse(there.declared))
    except InvalidArgument as error:
        raise ClusterRefusal(str(error), InvalidArgument) from None
    if not is_same:
        raise ClusterRefusal(
            f"queue {there.name} exists in {there.set} with other arguments: {dict(there.declared)}", AlreadyExists
        )
