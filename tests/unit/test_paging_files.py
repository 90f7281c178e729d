"""Stories about payloads on disk whose files come, go, or are damaged, and what a message there costs."""

from __future__ import annotations

import gc
import tracemalloc
from random import Random

import pytest

from model_support import bodies, body, event_of, message
from paged_core import PagedCore, filled, numbers, paged
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.model.queues.paged import BodyDamaged, BodyRef, BodySource, read_bodies
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import load_bodies

# --- files come and go


def test_messages_move_to_the_file_that_replaces_theirs() -> None:
    core = PagedCore()
    queue = filled(core)
    old = core.bodies.names
    core.write([LogRecord(entry.id, event_of(entry), False) for entry in queue.messages])
    new = core.close_file()
    tally = core.page_out(new, outdated=tuple(old))
    assert tally.moved == queue.messages.paged
    gc.collect()
    assert core.bodies.names == [new]
    assert core.consume(queue) == numbers(20)


def test_a_message_leaves_for_a_snapshot_that_names_only_the_queues_which_still_have_it() -> None:
    core = PagedCore()
    gone, one, other, alone = queues = [core.queue(name) for name in ("gone", "one", "other", "alone")]
    messages = [message(str(number), durable=True) for number in range(10)]
    core.publish(core.exchange("three", "fanout", gone, one, other), *messages)
    core.publish(core.exchange("two", "fanout", gone, alone), *messages)
    core.close_file()
    core.consume(gone)
    left = {entry.id: event_of(entry) for queue in queues for entry in queue.messages}
    snapshot = {lsn: event._replace(queues=event.queues[1:]) for lsn, event in sorted(left.items())}
    assert {event.queues for event in snapshot.values()} == {(one.id, other.id), (alone.id,)}
    core.write([LogRecord(lsn, event, False) for lsn, event in snapshot.items()])
    core.page_out(core.close_file())
    assert [len(paged(queue)) for queue in queues] == [0, 9, 9, 9]
    assert core.consume(one) == core.consume(other) == core.consume(alone) == numbers(10)


def test_a_file_that_was_deleted_is_read_as_long_as_it_is_needed() -> None:
    core = PagedCore()
    queue = filled(core)
    (name,) = core.bodies.names
    core.bodies.hold([name])
    core.disk.remove(name)
    assert core.consume(queue) == numbers(20)


def test_a_record_that_was_taken_back_never_stands_for_its_successor() -> None:
    """After a failover the same LSN is another message's, of the same length, in the same queue."""
    core = PagedCore()
    queue = core.queue("q")
    core.publish(queue, message("1", durable=True), message("2", durable=True))
    void = [LogRecord(entry.id, event_of(entry)._replace(payload=b";;X"), False) for entry in queue.messages]
    core.write(void)
    core.journal.roll()
    core.page_out()
    assert paged(queue) == []
    core.published_and_paged_out()
    assert paged(queue) == [1]
    assert core.consume(queue) == ["1", "2"]


# --- loading


def test_bodies_are_loaded_in_any_order_wherever_they_are_and_stay_there() -> None:
    core = PagedCore()
    queue = filled(core)
    entries = list(queue.messages)[::-3]
    assert [body(each) for each in load_bodies(entries)] == numbers(20)[::-3]
    assert paged(queue) == list(range(1, 20))


def test_a_body_that_is_paged_out_is_not_read_by_the_way() -> None:
    core = PagedCore()
    here, there = list(filled(core, 2).messages)
    assert body(here.resident_body()) == "0"
    with pytest.raises(LookupError, match="is paged out"):
        there.resident_body()
    with pytest.raises(LookupError, match="is in memory"):
        here.ref()


# --- damage


def damage(core: PagedCore, queue: Queue, at: int, into: int = 40) -> BodyRef:
    """Flip a bit of the record of that message."""
    found = list(queue.messages)[at].ref()
    data = bytearray(core.disk.peek(found.source.name))  # type: ignore[attr-defined]
    data[found.offset + into] ^= 1
    core.disk.put(found.source.name, bytes(data))  # type: ignore[attr-defined]
    return found


def test_a_damaged_message_is_told_with_its_place_and_not_skipped() -> None:
    core = PagedCore()
    queue = filled(core)
    hurt = damage(core, queue, 12)
    consumer = core.consumer(queue)
    assert bodies(core.take(queue, consumer)) == numbers(12)
    (problem,) = core.damaged
    assert (problem.file, problem.offset, problem.lsn) == (hurt.source.name, hurt.offset, hurt.lsn)
    assert "CRC-32" in str(problem)
    assert core.paging.unreadable == 1
    assert core.take(queue, consumer) == []
    assert queue.messages.count == 20
    assert len(core.damaged) == 1, "it is told once"
    with pytest.raises(BodyDamaged):
        load_bodies([entry for entry in queue.messages if entry.id == hurt.lsn])


@pytest.mark.parametrize("into", range(38))
def test_no_bit_of_a_record_can_change_unnoticed(into: int) -> None:
    core = PagedCore()
    queue = filled(core, 3)
    (result,) = read_bodies([damage(core, queue, 2, into)])
    assert isinstance(result, BodyDamaged)


def test_another_message_in_its_place_is_no_message() -> None:
    core = PagedCore()
    queue = filled(core, 3)
    _, one, two = queue.messages
    (result,) = read_bodies([BodyRef(one.id, one.ref().source, two.ref().offset, one.size)])
    assert isinstance(result, BodyDamaged)
    assert "another record" in str(result)


def test_a_disk_that_fails_is_told_as_what_it_is() -> None:
    core = PagedCore()
    queue = filled(core)
    (name,) = core.bodies.names
    core.disk.remove(name)
    core.take(queue, core.consumer(queue))
    assert len(core.damaged) == 19
    assert "No such file" in str(core.damaged[0])
    assert queue.messages.count == 20


# --- what it costs


def test_a_message_on_disk_takes_far_less_than_its_size() -> None:
    core = PagedCore()
    queue = core.queue("q")
    core.publish(queue, *(message("x" * 1020, durable=True) for _ in range(200)))
    name = core.close_file()
    entries = list(queue.messages)
    source = core.bodies.file(name)
    tracemalloc.start()
    made = [BodyRef(entry.id, source, 300_000 + 7 * entry.id, entry.size) for entry in entries]
    each = tracemalloc.get_traced_memory()[0] / len(made)
    tracemalloc.stop()
    assert each < 120


def test_neighbours_are_read_together() -> None:
    core = PagedCore()
    queue = filled(core, 1000)
    refs = [entry.ref() for entry in list(queue.messages)[1:]]
    source = _Counting(refs[0].source)
    moved = [BodyRef(ref.lsn, source, ref.offset, ref.size) for ref in refs]
    Random(1).shuffle(moved)
    results = read_bodies(moved)
    assert sorted(body(each) for each in results if isinstance(each, bytes)) == sorted(numbers(1000)[1:])
    assert source.reads == 1


class _Counting:
    def __init__(self, source: BodySource) -> None:
        self.name = source.name
        self._source = source
        self.reads = 0

    def read(self, offset: int, length: int) -> bytes:
        self.reads += 1
        return self._source.read(offset, length)
