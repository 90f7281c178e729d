"""Queues in two logs: whatever dies in between, none is left over, and none goes that nobody has deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpid_ha_broker.cluster.directory import (
    DeletionConditions,
    DirectoryDifference,
    KeptQueues,
    SetLeader,
    compare,
    conditions_of,
    is_withdrawn,
    with_conditions,
)
from qpid_ha_broker.cluster.messages import KeptQueue, UnplacedQueue
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev

LEADER = SetLeader("s", "alpha", 3)


def a_map(*events: ev.MapEvent, generation: int = 3, primary: str = "alpha") -> ClusterMap:
    there = ClusterMap()
    record = ev.SetRecorded("s", "c", generation, primary, 1, (primary,), False)
    for lsn, event in enumerate([ev.SetPlaced("s", ("alpha",), (), "", 0, 0), record, *events], start=1):
        there.apply(lsn, event)
    return there


def placed(deleting: bool = False) -> ev.QueuePlaced:
    return ev.QueuePlaced("q", "s", {"qpid.max_count": 5}, deleting)


@pytest.mark.parametrize("has_queue", [True, False])
@pytest.mark.parametrize("entry", ["none", "there", "deleting"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_the_table_of_what_is_missing(entry: str, has_queue: bool, is_committed: bool) -> None:
    there = a_map() if entry == "none" else a_map(placed(entry == "deleting"))
    found = compare(LEADER, there, () if is_committed else ("q",), {"q": {"a": 1}} if has_queue else {})
    expected = {
        ("none", True): DirectoryDifference(unplaced=(UnplacedQueue("s", "q", {"a": 1}),)),
        ("there", False): DirectoryDifference(declare=tuple(there.queues.values())),
        ("deleting", True): DirectoryDifference(delete=("q",)),
        ("deleting", False): DirectoryDifference(deleted=(3,)),
    }
    nothing = DirectoryDifference()
    assert found == (expected.get((entry, has_queue), nothing) if is_committed else nothing)


@pytest.mark.parametrize(
    "there", [ClusterMap(), a_map(placed(), generation=2), a_map(placed(), generation=3, primary="beta")]
)
def test_nobody_compares_with_a_map_that_may_be_older_than_its_generation(there: ClusterMap) -> None:
    assert compare(LEADER, there, (), {}) is None


# --- two logs, of which either may lose what it has not committed


@dataclass
class SetEvent:
    """Of the set's log: the queue is declared, or deleted."""

    name: str
    declared: bool
    id: int
    """Of its entry."""


@dataclass
class Leader:
    """A process that leads the set. It has the set's log, and has read that of `default` up to `seen`."""

    generation: int
    seen: int
    reports: list[tuple[int, DirectoryDifference]] = field(default_factory=list)
    """What it will tell the controller once the log is committed so far."""
    kept: KeptQueues = field(default_factory=KeptQueues)


class TwoLogs:
    """`default` with its controller, and the set `s` with its primary. Each log is a list and a length that is sure."""

    def __init__(self, seed: int, names: str = "abc") -> None:
        self.random, self.names = Random(seed), names
        self.default: list[ev.MapEvent] = [ev.SetPlaced("s", ("alpha",), (), "", 0, 0)]
        self.committed = 1
        self.set_log: list[SetEvent] = []
        self.set_committed = 0
        self.generation = 0
        self.leader: Leader | None = None
        self.asked_to_delete: set[int] = set()
        self.in_use: set[str] = set()
        """Queues whose deletion would be refused now, if it is on a condition."""
        self.asked = 0
        """Deletions on conditions."""
        self.on_the_way: list[DirectoryDifference | KeptQueue] = []
        """Reports, which may be late."""

    # --- what follows from the logs

    def map_at(self, length: int) -> ClusterMap:
        there = ClusterMap()
        for lsn, event in enumerate(self.default[:length], start=1):
            there.apply(lsn, event)
        return there

    def queues(self, length: int | None = None) -> dict[str, ev.Arguments]:
        found: dict[str, ev.Arguments] = {}
        for event in self.set_log[:length]:
            if event.declared:
                assert event.name not in found, "declared twice"
                found[event.name] = {}
            else:
                del found[event.name]
        return found

    def write(self, event: ev.MapEvent) -> None:
        self.default.append(event)

    # --- what happens

    def place(self) -> None:
        there, name = self.map_at(len(self.default)), self.random.choice(self.names)
        if name not in there.queues:
            self.write(ev.QueuePlaced(name, "s", {}, False))

    def delete(self) -> None:
        queues = list(self.map_at(len(self.default)).queues.values())
        if queues:
            queue = self.random.choice(queues)
            self.asked_to_delete.add(queue.id)
            self.write(ev.QueuePlaced(queue.name, "s", {}, True))

    def delete_on_condition(self) -> None:
        queues = [each for each in self.map_at(len(self.default)).queues.values() if not each.deleting]
        if queues:
            queue = self.random.choice(queues)
            self.asked += 1
            conditions = with_conditions({}, DeletionConditions(if_unused=True), f"deletion-{self.asked}")
            self.asked_to_delete.add(queue.id)
            self.write(ev.QueuePlaced(queue.name, "s", conditions, True))

    def use(self) -> None:
        self.in_use ^= {self.random.choice(self.names)}

    def commit(self) -> None:
        self.committed = self.random.randint(self.committed, len(self.default))

    def commit_set(self) -> None:
        self.set_committed = self.random.randint(self.set_committed, len(self.set_log))

    def controller_dies(self) -> None:
        """Some of what was not committed is in the log of the next one, and is known to the leader if that read it."""
        kept = self.random.randint(self.committed, len(self.default))
        del self.default[kept:]
        self.committed = kept
        if self.leader is not None:
            self.leader.seen = min(self.leader.seen, kept)

    def leader_dies(self) -> None:
        """The next one has all that is committed, some of the rest, and an old map. It leads by a committed record."""
        self.generation += 1
        kept = self.random.randint(self.set_committed, len(self.set_log))
        del self.set_log[kept:]
        self.write(ev.SetRecorded("s", "c", self.generation, "alpha", 1, ("alpha",), False))
        before = self.random.randint(1, self.committed)
        self.committed = len(self.default)
        self.leader = Leader(self.generation, before)

    def read_map(self) -> None:
        """What the leader has read goes beyond what is committed."""
        if self.leader is not None:
            self.leader.seen = self.random.randint(self.leader.seen, len(self.default))

    def lead(self) -> None:
        """Compare, and do some of it."""
        leader = self.leader
        if leader is None:
            return
        there = self.map_at(leader.seen)
        uncommitted = {
            event.name if isinstance(event, ev.QueuePlaced) else self.map_at(lsn).queues_by_id[event.queue].name
            for lsn, event in enumerate(self.default[: leader.seen])
            if lsn >= self.committed and isinstance(event, ev.QueuePlaced | ev.QueueRemoved)
        }
        who = SetLeader("s", "alpha", leader.generation)
        found = compare(who, there, uncommitted, self.queues())
        if found is None:
            return
        leader.reports.append((len(self.set_log), found))
        todo = [SetEvent(queue.name, True, queue.id) for queue in found.declare]
        leader.kept.begin(leader.generation, there, uncommitted)
        for queue in [there.queues[name] for name in found.delete]:
            if leader.kept.has(queue):
                continue
            if any(conditions_of(queue)) and queue.name in self.in_use:
                leader.kept.keep(queue, leader.generation, "in use")
            else:
                todo.append(SetEvent(queue.name, False, queue.id))
        self.random.shuffle(todo)
        self.set_log += todo[: self.random.randint(0, len(todo))]

    def report(self) -> None:
        """What is known to be committed is on its way, and some of that arrives."""
        if self.leader is not None:
            reports, self.leader.reports = self.leader.reports, []
            for length, found in reports:
                if length <= self.set_committed:
                    self.on_the_way.append(found)
                else:
                    self.leader.reports.append((length, found))
            self.on_the_way += self.leader.kept.report(self.map_at(self.leader.seen))
        while self.on_the_way and self.random.random() < 0.7:
            self.arrived(self.on_the_way.pop(0))

    def arrived(self, found: DirectoryDifference | KeptQueue) -> None:
        there = self.map_at(len(self.default))
        if isinstance(found, KeptQueue):
            queue = there.queues_by_id.get(found.id)
            if queue is not None and is_withdrawn(queue, there.sets["s"].record, "alpha", found):
                self.write(ev.QueuePlaced(queue.name, "s", {}, False))
            return
        for queue_id in found.deleted:
            if queue_id in there.queues_by_id:
                assert there.queues_by_id[queue_id].name not in self.queues(self.set_committed), "gone, and is there"
                self.write(ev.QueueRemoved(queue_id))
        for each in found.unplaced:
            raise AssertionError(f"{each.name} lost its entry, and no log has lost what it had committed")

    def settle(self) -> None:
        """Nobody dies any more, and everything arrives."""
        if self.leader is None:
            self.leader_dies()
        assert self.leader is not None
        for _ in range(12):
            self.committed, self.set_committed = len(self.default), len(self.set_log)
            self.leader.seen = len(self.default)
            for _ in range(8):
                self.lead()
            self.set_committed = len(self.set_log)
            for _ in range(20):
                self.report()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_whoever_dies_and_whatever_is_late_a_set_has_the_queues_of_its_entries_in_the_end(seed: int) -> None:
    world = TwoLogs(seed)
    common: list[Callable[[], None]] = [world.commit, world.commit_set, world.read_map, world.lead, world.report]
    steps = [*common, *common, world.place, world.place, world.delete, world.controller_dies, world.leader_dies]
    for _ in range(120):
        world.random.choice(steps)()
    check_in_the_end(world)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_queue_that_is_said_to_be_kept_keeps_what_it_holds_whoever_dies_and_whatever_is_late(seed: int) -> None:
    world = TwoLogs(seed, "a")
    common: list[Callable[[], None]] = [world.commit, world.commit_set, world.read_map, world.lead, world.report]
    steps = [*common, *common, world.place, world.delete_on_condition, world.delete_on_condition, world.use, world.use]
    rare = [world.delete, world.controller_dies, world.leader_dies, world.leader_dies]
    for _ in range(200):
        world.random.choice(rare if world.random.random() < 0.04 else steps)()
    check_in_the_end(world)


def one_that_is_kept() -> TwoLogs:
    """The primary has found that the queue is in use, and its report is late; by now the queue is not in use."""
    world = TwoLogs(1, "a")
    world.leader_dies()
    world.place()
    go_on(world)
    world.delete_on_condition()
    world.in_use = {"a"}
    go_on(world)
    assert world.leader is not None
    world.on_the_way += world.leader.kept.report(world.map_at(world.leader.seen))
    assert len(world.on_the_way) == 1
    world.in_use = set()
    return world


def go_on(world: TwoLogs) -> None:
    """The primary reads all, does all, and all of that is committed."""
    assert world.leader is not None
    world.committed = world.leader.seen = len(world.default)
    for _ in range(8):
        world.lead()
    world.set_committed = len(world.set_log)


def test_a_primary_that_has_said_that_it_keeps_a_queue_keeps_it_when_the_condition_holds_later() -> None:
    world = one_that_is_kept()
    go_on(world)
    assert list(world.queues()) == ["a"]
    check_in_the_end(world)
    assert list(world.queues()) == ["a"]


def test_what_an_earlier_primary_found_does_not_count_once_the_next_one_has_deleted_the_queue() -> None:
    world = one_that_is_kept()
    world.leader_dies()
    go_on(world)
    assert not world.queues()
    check_in_the_end(world)
    assert not world.queues()
    said = [event.deleting for event in world.default if isinstance(event, ev.QueuePlaced)]
    assert said == [False, True], "withdrawn, though it is deleted"


def check_in_the_end(world: TwoLogs) -> None:
    """Nobody dies any more, and all is as it should be."""
    world.settle()
    there = world.map_at(len(world.default))
    assert not any(queue.deleting for queue in there.queues.values()), "a deletion that does not come to its end"
    assert world.queues().keys() == there.queues.keys()
    removed = {event.queue for event in world.default if isinstance(event, ev.QueueRemoved)}
    assert removed <= world.asked_to_delete
    declared = Counter(event.id for event in world.set_log if event.declared)
    assert set(declared.values()) <= {1}, "declared anew: what it held is gone, and somebody was told that it stays"
    assert not withdrawn_though_unconditional(world.default)


def withdrawn_though_unconditional(log: list[ev.MapEvent]) -> list[str]:
    """Queues whose deletion was asked for in any case, and that stayed."""
    there, found = ClusterMap(), []
    for lsn, event in enumerate(log, start=1):
        before = there.queues.get(event.name) if isinstance(event, ev.QueuePlaced) else None
        there.apply(lsn, event)
        if before is not None and before.deleting and not any(conditions_of(before)):
            found += [] if there.queues[before.name].deleting else [before.name]
    return found


def test_a_queue_without_an_entry_keeps_what_it_holds_and_gets_one() -> None:
    there = a_map()
    found = compare(LEADER, there, (), {"q": {"qpid.max_count": 5}})
    assert found is not None
    assert (found.delete, found.unplaced) == ((), (UnplacedQueue("s", "q", {"qpid.max_count": 5}),))
    there.apply(9, ev.QueuePlaced("q", "s", found.unplaced[0].arguments, False))
    assert compare(LEADER, there, (), {"q": {}}) == DirectoryDifference()
