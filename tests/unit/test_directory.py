"""Queues in two logs: whatever dies in between, none is left over, and none goes that nobody has deleted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpid_ha_broker.cluster import directory
from qpid_ha_broker.cluster.directory import DirectoryDifference, SetLeader, compare
from qpid_ha_broker.cluster.messages import UnplacedQueue
from qpid_ha_broker.cluster_map import DELETION, TOMBSTONE_OF, ClusterMap
from qpid_ha_broker.events import types as ev

LEADER = SetLeader("s", "alpha", 3)
ENTRY = 3
"""The id of the entry that `a_map` has first."""


def a_map(*events: ev.MapEvent, generation: int = 3, primary: str = "alpha") -> ClusterMap:
    there = ClusterMap()
    record = ev.SetRecorded("s", "c", generation, primary, 1, (primary,), False)
    for lsn, event in enumerate([ev.SetPlaced("s", ("alpha",), (), "", 0, 0), record, *events], start=1):
        there.apply(lsn, event)
    return there


def placed(deleting: bool = False, **arguments: str) -> ev.QueuePlaced:
    return ev.QueuePlaced("q", "s", {"qpid.max_count": 5, **arguments}, deleting)


ENTRIES = {
    "none": (),
    "there": (placed(),),
    "deleting": (placed(deleting=True),),
    "deleting on conditions": (placed(True, **{DELETION: "c0ffee"}),),
}
QUEUES: dict[str, dict[str, ev.Arguments]] = {
    "none": {},
    "there": {"q": {"a": 1}},
    "tombstone": {"q": {"a": 1, TOMBSTONE_OF: ENTRY}},
    "older tombstone": {"q": {"a": 1, TOMBSTONE_OF: ENTRY - 1}},
}


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("is_committed", [True, False])
def test_the_table_of_what_is_missing(entry: str, queue: str, is_committed: bool) -> None:
    there = a_map(*ENTRIES[entry])
    difference = compare(LEADER, there, () if is_committed else ("q",), QUEUES[queue])
    assert difference is not None
    kept, difference = difference.kept, difference._replace(kept=())
    expected = {
        ("none", "there"): DirectoryDifference(unplaced=(UnplacedQueue("s", "q", {"a": 1}),)),
        ("none", "tombstone"): DirectoryDifference(tombstones=("q",)),
        ("none", "older tombstone"): DirectoryDifference(tombstones=("q",)),
        ("there", "none"): DirectoryDifference(declare=tuple(there.queues.values())),
        ("there", "tombstone"): DirectoryDifference(deleted=(ENTRY,)),
        ("there", "older tombstone"): DirectoryDifference(tombstones=("q",)),
        ("deleting", "none"): DirectoryDifference(deleted=(ENTRY,)),
        ("deleting", "there"): DirectoryDifference(delete=("q",)),
        ("deleting", "tombstone"): DirectoryDifference(deleted=(ENTRY,)),
        ("deleting", "older tombstone"): DirectoryDifference(tombstones=("q",)),
        ("deleting on conditions", "none"): DirectoryDifference(deleted=(ENTRY,)),
        ("deleting on conditions", "tombstone"): DirectoryDifference(deleted=(ENTRY,)),
        ("deleting on conditions", "older tombstone"): DirectoryDifference(tombstones=("q",)),
    }
    nothing = DirectoryDifference()
    assert difference == (expected.get((entry, queue), nothing) if is_committed else nothing)
    is_kept = is_committed and (entry, queue) == ("deleting on conditions", "there")
    assert [(queue.id, queue.deletion, queue.generation) for queue in kept] == [(ENTRY, "c0ffee", 3)] * is_kept


@pytest.mark.parametrize(
    "there", [ClusterMap(), a_map(placed(), generation=2), a_map(placed(), generation=3, primary="beta")]
)
def test_nobody_compares_with_a_map_that_may_be_older_than_its_generation(there: ClusterMap) -> None:
    assert compare(LEADER, there, (), {}) is None


# --- two logs, of which either may lose what it has not committed


class Frozen(dict[str, ev.Scalar]):
    """Arguments of which a world can be a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


@dataclass(frozen=True)
class SetEvent:
    """Of the set's log: a queue is declared, is but a tombstone from now on, or is deleted with its record."""

    name: str
    kind: str
    entry: int = 0
    """The id of that for which it is declared, or a tombstone."""


@cache
def map_of(events: tuple[ev.MapEvent, ...]) -> ClusterMap:
    """Nobody changes it."""
    there = ClusterMap()
    for lsn, event in enumerate(events, start=1):
        there.apply(lsn, event)
    return there


@dataclass(frozen=True)
class World:
    """`default` with its controller, and the set `s` with its primary. Each log is a list and a length that is sure."""

    default: tuple[ev.MapEvent, ...] = (ev.SetPlaced("s", ("alpha",), (), "", 0, 0),)
    committed: int = 1
    set_log: tuple[SetEvent, ...] = ()
    set_committed: int = 0
    generation: int = 0
    """In which the set is led; 0: nobody does."""
    seen: int = 0
    """So much of `default` its primary has read."""
    orders: frozenset[int] = frozenset()
    """Entries whose queues are to be deleted, as primaries are told sooner or later."""
    reports: frozenset[tuple[int, int]] = frozenset()
    """Of the primary: how far the set's log has to be committed, and the entry that can go then."""
    on_the_way: frozenset[int] = frozenset()
    """Entries that can go, as primaries have said; which may be late."""
    asked: frozenset[int] = frozenset()
    """Entries whose queues somebody wanted deleted."""
    deaths: int = 0

    # --- what follows from the logs

    def map_at(self, length: int) -> ClusterMap:
        return map_of(self.default[:length])

    @property
    def map(self) -> ClusterMap:
        """As the controller has it."""
        return self.map_at(len(self.default))

    def queues(self, length: int | None = None) -> dict[str, ev.Arguments]:
        there: dict[str, ev.Arguments] = {}
        for event in self.set_log[:length]:
            if event.kind == "declared":
                assert event.name not in there, "declared twice"
                there[event.name] = {}
            elif event.kind == "tombstone":
                assert TOMBSTONE_OF not in there[event.name], "deleted twice"
                there[event.name] = {TOMBSTONE_OF: event.entry}
            else:
                del there[event.name]
        return there

    def write(self, *events: ev.MapEvent) -> World:
        return replace(self, default=(*self.default, *events))

    # --- what happens

    def place(self, name: str) -> World | None:
        return None if name in self.map.queues else self.write(ev.QueuePlaced(name, "s", Frozen(), False))

    def ask(self, entry: int) -> World:
        """Somebody wants its queue deleted."""
        return replace(self, orders=self.orders | {entry}, asked=self.asked | {entry})

    def ask_as_before(self, entry: int, **conditions: str) -> World:
        """The same, of a controller of the release before."""
        queue = self.map.queues_by_id[entry]
        asked = self.write(ev.QueuePlaced(queue.name, "s", Frozen(conditions), True))
        return replace(asked, asked=asked.asked | {entry})

    def controller_dies(self, kept: int) -> World:
        """Some of what was not committed is in the log of the next one, and is known to the leader if that read it."""
        default, seen = self.default[:kept], min(self.seen, kept)
        return replace(self, default=default, committed=kept, seen=seen, deaths=self.deaths + 1)

    def leader_dies(self, kept: int, seen: int) -> World:
        """The next one has all that is committed, some of the rest, and an old map. It leads by a committed record."""
        generation = self.generation + 1
        world = self.write(ev.SetRecorded("s", "c", generation, "alpha", 1, ("alpha",), False))
        return replace(
            world, set_log=self.set_log[:kept], set_committed=kept, generation=generation, seen=seen,
            committed=len(world.default), reports=frozenset(), deaths=self.deaths + 1,
        )  # fmt: skip

    def lead(self) -> tuple[World, list[SetEvent | int]]:
        """Compare; and what the leader may do next: events, or orders to carry out. Raises AssertionError."""
        there, queues = self.map_at(self.seen), self.queues()
        uncommitted = {
            event.name if isinstance(event, ev.QueuePlaced) else self.map_at(lsn).queues_by_id[event.queue].name
            for lsn, event in enumerate(self.default[: self.seen])
            if lsn >= self.committed and isinstance(event, ev.QueuePlaced | ev.QueueRemoved)
        }
        difference = directory.compare(SetLeader("s", "alpha", self.generation), there, uncommitted, queues)
        if difference is None:
            return self, []
        assert not difference.unplaced, (
            f"{difference.unplaced} lost an entry, and no log has lost what it had committed"
        )
        reports = self.reports | {(len(self.set_log), entry) for entry in difference.deleted}
        world = replace(self, reports=reports)
        for kept in difference.kept:
            queue = self.map.queues_by_id.get(kept.id)
            if queue is not None and queue.deletion == kept.deletion != "":
                world = world.write(ev.QueuePlaced(queue.name, "s", Frozen(), False))
        ordered = [there.queues_by_id[entry] for entry in self.orders if entry in there.queues_by_id]
        return world, [
            *[SetEvent(queue.name, "declared", queue.id) for queue in difference.declare],
            *[SetEvent(name, "deleted") for name in difference.delete],
            *[SetEvent(name, "deleted") for name in difference.tombstones],
            *[
                queue.id
                for queue in ordered
                if queue.name not in uncommitted and queue.name in queues and TOMBSTONE_OF not in queues[queue.name]
            ],
        ]

    def carry_out(self, act: SetEvent | int, *, in_use: bool = False) -> World:
        """Do one of those. A queue that is `in_use` is not deleted; an order is carried out, or refused, once."""
        if isinstance(act, SetEvent):
            return replace(self, set_log=(*self.set_log, act))
        event = SetEvent(self.map_at(self.seen).queues_by_id[act].name, "tombstone", act)
        return replace(self, orders=self.orders - {act}, set_log=self.set_log if in_use else (*self.set_log, event))

    def send(self) -> World:
        """What is known to be committed is on its way."""
        due = {report for report in self.reports if report[0] <= self.set_committed}
        return replace(self, reports=self.reports - due, on_the_way=self.on_the_way | {entry for _, entry in due})

    def arrive(self, entry: int) -> World:
        world = replace(self, on_the_way=self.on_the_way - {entry})
        queue = self.map.queues_by_id.get(entry)
        if queue is None:
            return world
        there = self.queues(self.set_committed).get(queue.name, {TOMBSTONE_OF: entry})
        assert there == {TOMBSTONE_OF: entry}, f"{queue.name} is there, and its name is free"
        return world.write(ev.QueueRemoved(entry))

    def settled(self) -> World:
        """Nobody dies any more, and everything arrives."""
        world = self if self.generation else self.leader_dies(0, 1)
        before = None
        while world != before:
            before = world
            world = replace(world, committed=len(world.default), set_committed=len(world.set_log))
            world, acts = replace(world, seen=len(world.default)).lead()
            world = (world.carry_out(acts[0]) if acts else world).send()
            for entry in world.on_the_way:
                world = world.arrive(entry)
        return world

    def check_in_the_end(self) -> None:
        """All is as it should be once nothing happens any more."""
        world = self.settled()
        assert not any(queue.deleting for queue in world.map.queues.values()), "a deletion that does not end"
        assert world.queues().keys() == world.map.queues.keys()
        assert not any(TOMBSTONE_OF in arguments for arguments in world.queues().values()), "a tombstone that stays"
        removed = {event.queue for event in world.default if isinstance(event, ev.QueueRemoved)}
        assert removed <= world.asked
        declared = Counter(event.entry for event in world.set_log if event.kind == "declared")
        assert set(declared.values()) <= {1}, "declared anew: what it held is gone, and nobody has deleted it"


# --- all that can happen to one queue, whoever dies between any two steps

ENTRIES_MOST = 2
DEATHS_MOST = 2


def next_worlds(world: World) -> Iterator[World]:
    """One step further."""
    there = world.map
    if sum(isinstance(event, ev.QueuePlaced) for event in world.default) < ENTRIES_MOST and "q" not in there.queues:
        yield world.write(ev.QueuePlaced("q", "s", Frozen(), False))
    yield from [world.ask(entry) for entry in there.queues_by_id if entry not in world.asked]
    if world.committed < len(world.default):
        yield replace(world, committed=len(world.default))
    if world.set_committed < len(world.set_log):
        yield replace(world, set_committed=len(world.set_log))
    if world.seen < len(world.default):
        yield replace(world, seen=world.seen + 1)
        yield replace(world, seen=len(world.default))
    compared, acts = world.lead()
    yield compared
    yield from [compared.carry_out(act) for act in acts]
    yield world.send()
    yield from [world.arrive(entry) for entry in world.on_the_way]
    if world.deaths < DEATHS_MOST:
        yield from [world.controller_dies(kept) for kept in {world.committed, len(world.default)}]
        for kept in {world.set_committed, len(world.set_log)}:
            yield from [world.leader_dies(kept, seen) for seen in {2, world.committed}]


def explore() -> int:
    """Every world that can come of one in which a queue is there, each settled; how many. Raises AssertionError."""
    first = World().leader_dies(0, 2).write(ev.QueuePlaced("q", "s", Frozen(), False)).settled()
    first = replace(first, deaths=0)
    known, due = {first}, deque([first])
    while due:
        world = due.popleft()
        world.check_in_the_end()
        for following in next_worlds(world):
            if following not in known:
                known.add(following)
                due.append(following)
    return len(known)


def test_whoever_dies_between_any_two_steps_of_a_deletion_it_ends_as_it_should() -> None:
    assert explore() > 4_000


Queues = Mapping[str, ev.Arguments]
Difference = DirectoryDifference | None


def by_name_alone(leader: SetLeader, there: ClusterMap, uncommitted: Container[str], queues: Queues) -> Difference:
    """A tombstone counts for whichever entry has the name."""
    taken = {
        name: {TOMBSTONE_OF: there.queues[name].id} if TOMBSTONE_OF in arguments and name in there.queues else arguments
        for name, arguments in queues.items()
    }
    return compare(leader, there, uncommitted, taken)


def with_any_map(leader: SetLeader, there: ClusterMap, uncommitted: Container[str], queues: Queues) -> Difference:
    """Whoever leads compares with what it has, though it may be old."""
    generation = there.sets["s"].record.generation
    return compare(leader._replace(generation=generation), there, uncommitted, queues)


def with_all_that_was_read(leader: SetLeader, there: ClusterMap, _: Container[str], queues: Queues) -> Difference:
    """What the map says counts before it is committed."""
    return compare(leader, there, (), queues)


def without_tombstones(world: World, act: SetEvent | int, *, in_use: bool = False) -> World:
    """A queue is deleted with its record, as one of `default`."""
    done = carry_out(world, act, in_use=in_use)
    plain = [replace(event, kind="deleted") if event.kind == "tombstone" else event for event in done.set_log]
    return replace(done, set_log=tuple(plain))


def told_before_it_is_committed(world: World) -> World:
    due = {entry for _, entry in world.reports}
    return replace(world, reports=frozenset(), on_the_way=world.on_the_way | due)


carry_out = World.carry_out


@pytest.mark.parametrize(
    ("place", "name", "bug", "problem"),
    [
        (directory, "compare", by_name_alone, "assert"),
        (directory, "compare", with_any_map, "lost an entry"),
        (directory, "compare", with_all_that_was_read, "declared anew"),
        (World, "carry_out", without_tombstones, "declared anew"),
        (World, "send", told_before_it_is_committed, "its name is free"),
    ],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, bug: Callable[..., object], problem: str
) -> None:
    monkeypatch.setattr(place, name, bug)

    with pytest.raises(AssertionError, match=problem):
        explore()


# --- several queues, conditions, and a controller of the release before


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_whoever_dies_and_whatever_is_late_a_set_has_the_queues_of_its_entries_in_the_end(seed: int) -> None:
    random, world = Random(seed), World()
    for _ in range(120):
        world = random_step(random, world)
    world.check_in_the_end()


def random_step(random: Random, world: World) -> World:
    there = world.map
    entries = sorted(there.queues_by_id)
    match random.randrange(16):
        case 0 | 1:
            return world.place(random.choice("abc")) or world
        case 2 | 3 if entries:
            return world.ask(random.choice(entries))
        case 4 if entries and not there.queues_by_id[entry := random.choice(entries)].deleting:
            return world.ask_as_before(entry, **random.choice([{}, {DELETION: str(len(world.default))}]))
        case 5 | 6:
            return replace(world, committed=random.randint(world.committed, len(world.default)))
        case 7 | 8:
            return replace(world, set_committed=random.randint(world.set_committed, len(world.set_log)))
        case 9 | 10:
            return replace(world, seen=random.randint(world.seen, len(world.default)))
        case 11 | 12 if world.generation:
            world, acts = world.lead()
            return world.carry_out(random.choice(acts), in_use=random.random() < 0.3) if acts else world
        case 13:
            world = world.send()
            arriving = [entry for entry in world.on_the_way if random.random() < 0.7]
            for entry in arriving:
                world = world.arrive(entry)
            return world
        case 14:
            return world.controller_dies(random.randint(world.committed, len(world.default)))
        case 15:
            kept = random.randint(world.set_committed, len(world.set_log))
            return world.leader_dies(kept, random.randint(1, world.committed))
    return world


def test_a_queue_without_an_entry_keeps_what_it_holds_and_gets_one() -> None:
    there = a_map()
    difference = compare(LEADER, there, (), {"q": {"qpid.max_count": 5}})
    assert difference is not None
    assert (difference.delete, difference.unplaced) == ((), (UnplacedQueue("s", "q", {"qpid.max_count": 5}),))
    there.apply(9, ev.QueuePlaced("q", "s", difference.unplaced[0].arguments, False))
    assert compare(LEADER, there, (), {"q": {}}) == DirectoryDifference()
