"""Stories about brokers that start without reading the messages of their snapshot."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final

import pytest

from kept_core import IDENTITY, AnyCommands, KeptCore, copied, durable_picture
from model_support import TextReader, bodies, event_of, message
from paged_core import PagedCore
from qpid_ha_broker.events.layout import PLAIN
from qpid_ha_broker.model.paging import Tally
from qpid_ha_broker.model.queues.paged import BodyDamaged
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import NO_LIMIT, load_bodies
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.store import snapshot_index
from qpid_ha_broker.store.bodies import Bodies
from qpid_ha_broker.store.errors import StoreDamaged
from qpid_ha_broker.store.fold import fold
from qpid_ha_broker.store.layout import (
    snapshot_index_numbers,
    snapshot_index_path,
    snapshot_numbers,
    snapshot_path,
)
from qpid_ha_broker.store.recovery import Recovered, recover
from qpid_ha_broker.store.unloading import Unloading
from simulated_disk import SimulatedDisk

EVERY_ONE_STAYS: Final[Mapping[int, int]] = MappingProxyType({})


def stored(count: int, **arguments: str | int) -> KeptCore:
    """A store with messages 0, 1, ... in a snapshot, in the queue "q"."""
    core = KeptCore()
    core.publish(core.queue("q", **arguments), *(message(str(n), durable=True) for n in range(count)))
    return snapshot_made(core)


def snapshot_made(core: KeptCore) -> KeptCore:
    dump, number = core.begin_dump()
    core.write_dump(dump, number, list(iter(lambda: dump.next(1000), None)))
    core.journal.drop_before(number)
    core.keep()
    return core


class Started:
    """A broker that started with what is on a disk, and has another one for what comes."""

    def __init__(self, disk: SimulatedDisk, cold_from_bytes: int = 0, memory_bytes: int = 1 << 40) -> None:
        self.bodies = Bodies(disk)
        resources = Resources(TextReader())
        self.unloading = Unloading(self.bodies, memory_bytes, cold_from_bytes)
        self.facts: Recovered = recover(disk, resources.sets, apply_all=True, unloading=self.unloading)
        self.core = PagedCore(resources=resources)
        self.queue = resources.catalog.queues["q"]


def fold_all(core: KeptCore) -> None:
    core.keep()
    core.journal.roll()
    fold(core.disk, core.journal.number, IDENTITY)
    core.journal.drop_before(core.journal.number)


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(n) for n in range(first, count)]


def cold_ids(queue: Queue) -> list[int]:
    return [message_id for cold in queue.messages.cold.within(0, NO_LIMIT) for message_id in cold.ids()]


def disk_of(core: KeptCore) -> SimulatedDisk:
    return copied(core.disk)


def test_a_start_knows_how_much_there_is_and_gives_it_out_in_order() -> None:
    broker = Started(disk_of(stored(50)))
    queue = broker.queue
    assert (queue.messages.count, queue.messages.paged) == (50, queue.messages.size)
    assert len(cold_ids(queue)) == 50
    broker.core.publish(queue, message("new", durable=True))
    assert broker.core.consume(queue) == [*numbers(50), "new"]
    assert (queue.messages.count, queue.messages.size, queue.messages.paged) == (0, 0, 0)
    assert broker.core.catalog.memory_bytes == 0
    assert broker.core.damaged == []


def test_what_was_removed_since_the_snapshot_does_not_come_back_and_its_neighbours_do() -> None:
    core = stored(50)
    queue = core.catalog.queues["q"]
    assert core.consume(queue, 2) == numbers(2)
    core.keep()
    broker = Started(disk_of(core))
    assert broker.facts.lost_transient == 0
    assert len(cold_ids(broker.queue)) in (47, 48), "all but what was packed with what is gone"
    assert broker.core.consume(broker.queue) == numbers(50, 2)


def test_a_last_value_queue_knows_all_its_messages() -> None:
    broker = Started(disk_of(stored(20, last_value_queue_key="key")))
    assert cold_ids(broker.queue) == []
    assert broker.core.consume(broker.queue) == numbers(20)


def test_what_expires_or_has_failed_is_known_and_the_rest_is_cold() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, *(message(str(n), durable=True, ttl_ms=1000 * (n == 10)) for n in range(30)))
    consumer = core.consumer(queue)
    core.resources.release(queue, core.take(queue, consumer, 1), failed=True)
    core.leave(queue, consumer)
    broker = Started(disk_of(snapshot_made(core)))
    first, *_ = queue.messages
    assert 0 < len(cold_ids(broker.queue)) < 29
    assert broker.queue.messages.expiries.next_ms is not None
    entry = broker.queue.messages.find(first.id)
    assert entry is not None
    assert entry.delivery_count == 1
    assert [event_of(entry).payload for entry in broker.queue.messages] == [
        event_of(entry).payload for entry in queue.messages
    ]


@pytest.mark.parametrize("priorities", [1, 10])
def test_a_small_snapshot_is_read_as_a_whole_and_so_is_one_of_an_older_release(priorities: int) -> None:
    disk = disk_of(stored(20, priorities=priorities))
    assert Started(disk, cold_from_bytes=1 << 20).queue.messages.paged == 0
    disk.remove(snapshot_index_path(2))
    broker = Started(disk)
    assert (broker.queue.messages.paged, broker.facts.notes) == (0, ())


def test_a_snapshot_that_is_read_as_a_whole_leaves_payloads_on_disk_for_which_there_is_no_room() -> None:
    broker = Started(disk_of(stored(20)), cold_from_bytes=1 << 20, memory_bytes=0)
    assert broker.queue.messages.paged == broker.queue.messages.size > 0
    assert broker.core.consume(broker.queue) == numbers(20)


def test_an_index_that_is_damaged_costs_a_note() -> None:
    disk = disk_of(stored(20))
    disk.put(snapshot_index_path(2), disk.peek(snapshot_index_path(2))[:-1])
    broker = Started(disk)
    assert broker.queue.messages.paged == 0
    (note,) = broker.facts.notes
    assert snapshot_index_path(2) in note
    assert "all of snapshots/00000000000000000002.snap was read" in note


# --- levels of priority


def with_levels(count: int, priorities: int = 10, *, ttl_ms: Mapping[int, int] = EVERY_ONE_STAYS) -> KeptCore:
    """Messages 0, 1, ... in the queue "q", of the priorities 0 to 9 in turn."""
    core = KeptCore()
    queue = core.queue("q", priorities=priorities)
    for n in range(count):
        core.publish(queue, message(str(n), priority=n % 10, durable=True, ttl_ms=ttl_ms.get(n, 0)))
    return snapshot_made(core)


def cold_by_level(queue: Queue) -> dict[int, int]:
    """How many messages of each level are cold."""
    levels = Counter[int]()
    for cold in queue.messages.cold.within(0, NO_LIMIT):
        levels[queue.messages.level_of(cold.header.priority)] += cold.count
    return dict(levels)


def by_priority(ids: Iterable[int]) -> list[str]:
    return [str(n) for n in sorted(ids, key=lambda n: (-(n % 10), n))]


def test_messages_of_each_level_are_cold_and_are_given_out_level_by_level() -> None:
    broker = Started(disk_of(with_levels(300)))
    queue = broker.queue
    assert len(cold_ids(queue)) == queue.messages.count == 300
    assert queue.messages.paged == queue.messages.size
    broker.core.publish(queue, message("309", priority=9, durable=True))
    assert broker.core.consume(queue, 40) == by_priority([*range(300), 309])[:40]
    queue.messages.check_invariants()
    assert broker.core.consume(queue) == by_priority(range(300))[39:]
    assert (queue.messages.count, queue.messages.size, queue.messages.paged) == (0, 0, 0)
    assert (broker.core.catalog.memory_bytes, broker.core.damaged) == (0, [])


def test_what_has_left_one_level_leaves_those_of_others_cold() -> None:
    core = with_levels(300)
    assert core.consume(core.catalog.queues["q"], 20) == by_priority(range(300))[:20]
    core.keep()
    broker = Started(disk_of(core))
    assert cold_by_level(broker.queue) == {**dict.fromkeys(range(9), 30), 9: 8}, "its stretches are of three messages"
    broker.core.publish(broker.queue, message("309", priority=9, durable=True))
    assert broker.core.consume(broker.queue) == by_priority([*range(300), 309])[20:]


def test_a_level_knows_what_it_has_of_several_priorities_and_the_others_are_cold() -> None:
    """Of five levels the lowest and the highest have several priorities, which came in turn."""
    broker = Started(disk_of(with_levels(300, 5)))
    cold = cold_by_level(broker.queue)
    assert (cold[1], cold[2], cold[3]) == (30, 30, 30)
    assert max(cold[0], cold[4]) < 10, "only what lies between two blocks is of one priority"
    order = sorted(range(300), key=lambda n: (-min(max(n % 10 - 2, 0), 4), n))
    assert broker.core.consume(broker.queue) == list(map(str, order))


def test_what_expires_makes_known_what_is_around_it_in_its_level() -> None:
    broker = Started(disk_of(with_levels(300, ttl_ms={155: 1000})))
    assert cold_by_level(broker.queue) == {**dict.fromkeys(range(10), 30), 5: 26}
    assert broker.queue.messages.expiries.next_ms is not None
    assert broker.core.consume(broker.queue) == by_priority(range(300))


def test_levels_stay_cold_and_point_to_the_snapshot_that_replaces_their_file() -> None:
    core = with_levels(300)
    core.consume(core.catalog.queues["q"], 1)
    core.keep()
    broker = Started(disk_of(core))
    before, (old,) = cold_ids(broker.queue), broker.bodies.names
    assert cold_by_level(broker.queue) == {**dict.fromkeys(range(10), 30), 9: 27}
    core.journal.roll()
    number = core.journal.number
    disk = disk_of(core)
    fold(disk, number, IDENTITY)
    newer = Bodies(disk)
    for piece in newer.pieces(snapshot_path(number)):
        for _ in broker.core.paging.visit(piece, {old}, Tally()):
            pass
    gc.collect()
    assert (broker.bodies.names, newer.names) == ([], [snapshot_path(number)])
    assert cold_ids(broker.queue) == before
    assert broker.core.consume(broker.queue) == by_priority(range(300))[1:]


def test_going_through_files_for_room_opens_no_level_that_is_cold_and_lets_others_go() -> None:
    """One that is in memory lies among those of other levels that are cold, by its id."""
    broker = Started(disk_of(with_levels(300)))
    (name,) = broker.bodies.names
    _, second = islice(broker.queue.messages, 2)
    assert second.header.priority == 9
    broker.core.catalog.replace_body(broker.queue, second, load_bodies([second])[0])
    for piece in broker.bodies.pieces(name):
        for _ in broker.core.paging.visit(piece, (), Tally()):
            pass
    assert broker.queue.messages.resident == 0
    assert cold_by_level(broker.queue) == {**dict.fromkeys(range(10), 30), 9: 27}


def test_a_removal_looks_into_the_stretches_of_all_levels_and_unpacks_the_one_that_has_it() -> None:
    core = with_levels(300)
    queue = core.catalog.queues["q"]
    lowest = [entry for entry in queue.messages if not entry.header.priority][4]
    core.resources.accept(queue, [lowest])
    core.keep()
    broker = Started(disk_of(core))
    assert cold_by_level(broker.queue) == {**dict.fromkeys(range(10), 30), 0: 27}
    assert broker.queue.messages.find(lowest.id) is None
    assert broker.core.consume(broker.queue) == by_priority(n for n in range(300) if n != 40)


@pytest.mark.parametrize("seed", range(12))
def test_a_broker_that_read_only_the_index_lives_as_one_that_read_all(seed: int) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    core = KeptCore()
    commands = AnyCommands(core, random, durable=1)
    for _ in range(150):
        commands.step()
    core.queue("q")
    disk = disk_of(snapshot_made(core))
    cold, whole = Started(disk), Started(disk, cold_from_bytes=1 << 40)
    assert cold.facts._replace(bytes_read=0) == whole.facts._replace(bytes_read=0)
    lives = []
    for broker in (cold, whole):
        chance = Random(seed)
        life: list[object] = []
        for name in sorted(broker.core.catalog.queues):
            queue = broker.core.catalog.queues[name]
            consumer, browser = broker.core.consumer(queue), broker.core.browser(queue)
            life.append(bodies(broker.core.take(queue, browser, chance.randrange(20))))
            taken = broker.core.take(queue, consumer, chance.randrange(1, 9))
            life.append(bodies(taken))
            broker.core.resources.release(queue, taken[::2], chance.random() < 0.5)
            broker.core.resources.accept(queue, taken[1::2])
            life.append([entry.id for entry in queue.messages.newest_before(1 << 64, chance.randrange(1, 20))])
            queue.messages.check_invariants()
        life.append(durable_picture(broker.core.sets))
        lives.append(life)
    assert lives[0] == lives[1]
    assert cold.core.damaged == []


# --- damage


def test_no_byte_of_a_cold_message_changes_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is read, where all is looked through, and at the next start, which refuses it with its place."""
    monkeypatch.setattr(snapshot_index, "COPIED_BYTES", 1000)
    written, path = disk_of(stored(5)), snapshot_path(2)
    whole, sound = written.peek(path), Started(written)
    refs = [ref for cold in sound.queue.messages.cold.within(0, NO_LIMIT) for ref in cold.refs()]
    assert [each for each in sound.bodies.checked(path) if each is not None] == []
    for ref in refs:
        for at in range(ref.offset, ref.offset + PLAIN.size + ref.size):
            written.put(path, whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
            broker = Started(written)
            for entry in broker.queue.messages:
                if entry.id != ref.lsn:
                    load_bodies([entry])
                    continue
                with pytest.raises(BodyDamaged) as damaged:
                    load_bodies([entry])
                assert (damaged.value.file, damaged.value.offset) == (path, ref.offset)
            assert [each.file for each in broker.bodies.checked(path) if each is not None] == [path]
    broker.bodies.distrust(path)
    with pytest.raises(StoreDamaged, match="CRC-32") as raised:
        Started(written)
    assert raised.value.file == path


def test_a_consumer_gets_what_lies_before_a_damaged_message_and_that_one_is_told() -> None:
    disk, path = disk_of(stored(30)), snapshot_path(2)
    broker = Started(disk)
    refs = [ref for cold in broker.queue.messages.cold.within(0, NO_LIMIT) for ref in cold.refs()]
    whole, at = disk.peek(path), refs[16].offset + PLAIN.size
    disk.put(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert broker.core.consume(broker.queue) == numbers(16)
    assert [(each.file, each.offset, each.lsn) for each in broker.core.damaged] == [
        (path, refs[16].offset, refs[16].lsn)
    ]
    assert broker.core.paging.unreadable == 1
    assert broker.queue.messages.count == 14
    broker.queue.messages.check_invariants()


def test_what_a_start_reads_of_a_snapshot_is_checked_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_index, "COPIED_BYTES", 0)
    written, path = disk_of(stored(5)), snapshot_path(2)
    whole = written.peek(path)
    at = whole.index(b"alpha", 512)
    written.put(path, whole[:at] + b"omega" + whole[at + 5 :])
    with pytest.raises(StoreDamaged, match="CRC-32") as raised:
        Started(written)
    assert raised.value.file == path


def test_old_indexes_go_with_their_snapshots() -> None:
    core = stored(5)
    assert core.disk.names("snapshots") == [Path(snapshot_index_path(2)).name, Path(snapshot_path(2)).name]
    fold_all(core)
    (number,) = snapshot_numbers(core.disk)
    assert snapshot_index_numbers(core.disk) == [number]
    assert number > 2


# --- another snapshot


def test_what_is_cold_stays_so_and_points_to_the_snapshot_that_replaces_its_file() -> None:
    core = stored(60)
    core.consume(core.catalog.queues["q"], 1)
    core.keep()
    disk = disk_of(core)
    broker = Started(disk)
    before, paging = cold_ids(broker.queue), broker.core.paging
    (old,) = {cold.source.name for cold in broker.queue.messages.cold.within(0, NO_LIMIT)}
    core.journal.roll()
    number = core.journal.number
    disk = disk_of(core)
    fold(disk, number, IDENTITY)
    bodies_there = Bodies(disk)
    for piece in bodies_there.pieces(snapshot_path(number)):
        for _ in paging.visit(piece, {old}, Tally()):
            pass
    gc.collect()
    assert broker.bodies.names == [], "nobody points to the old file"
    assert bodies_there.names == [snapshot_path(number)]
    assert cold_ids(broker.queue) == before
    assert broker.core.consume(broker.queue) == numbers(60, 1)


def test_what_a_newer_snapshot_has_in_part_is_pointed_to_one_by_one() -> None:
    core = stored(60)
    broker = Started(disk_of(core))
    (old,) = broker.bodies.names
    core.resources.accept(
        core.catalog.queues["q"], core.take(core.catalog.queues["q"], core.consumer(core.queue("q")), 32)[31:]
    )
    fold_all(core)
    (number,) = snapshot_numbers(core.disk)
    newer = Bodies(core.disk)
    for piece in newer.pieces(snapshot_path(number)):
        for _ in broker.core.paging.visit(piece, {old}, Tally()):
            pass
    assert newer.names == [snapshot_path(number)]
    assert broker.bodies.names == [old], "of what is gone here and is still there"
    assert broker.core.consume(broker.queue) == numbers(60)
    assert broker.core.damaged == []


def test_going_through_files_for_room_opens_nothing_that_is_cold() -> None:
    broker = Started(disk_of(stored(60)))
    (name,) = broker.bodies.names
    for piece in broker.bodies.pieces(name):
        for _ in broker.core.paging.visit(piece, (), Tally()):
            pass
    assert len(cold_ids(broker.queue)) == 60
