"""What a replicating browser tells a backup: newest first, only what it lacks, and a bounded piece at a time."""

from __future__ import annotations

import pytest

from model_support import Core, message
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.ha.browser import IDS_PER_CHUNK, LIGHT_CHUNKS, Browsers, Ranges, ReplicatingBrowser
from qpid_ha_broker.ha.frames import CaughtUp, Chunk
from qpid_ha_broker.model.queues.queue import Queue

PLENTY = 1 << 30


def queue_of(count: int, core: Core | None = None) -> tuple[Core, Queue]:
    """A queue with the id 1 and messages with the ids 2 to count + 1."""
    core = core or Core()
    queue = core.queue("orders")
    core.publish(queue, *[f"m{number}" for number in range(count)])
    return core, queue


def chunks_of(
    queue: Queue, up_to_lsn: int, holdings: Ranges = (), max_messages: int = 1000, max_bytes: int = PLENTY
) -> list[Chunk]:
    browser = ReplicatingBrowser(queue, up_to_lsn, holdings)
    chunks = []
    while not browser.done:
        chunks.append(browser.next_chunk(7, max_messages, max_bytes))
    return chunks


def ids(chunk: Chunk) -> list[int]:
    decoded = decode(chunk.data)
    assert decoded.problem is None
    assert all(isinstance(record.event, Enqueued) and not record.part for record in decoded.records)
    return [record.lsn for record in decoded.records]


def accept(core: Core, queue: Queue, *message_ids: int) -> None:
    core.resources.accept(queue, [entry for each in message_ids if (entry := queue.messages.find(each))])


# --- one queue


def test_an_empty_backup_gets_everything_newest_first() -> None:
    _, queue = queue_of(7)
    chunks = chunks_of(queue, 8, max_messages=3)
    assert [ids(chunk) for chunk in chunks] == [[6, 7, 8], [3, 4, 5], [2]]
    assert [(chunk.low, chunk.high, chunk.last) for chunk in chunks] == [(6, 8, False), (3, 5, False), (0, 2, True)]
    assert {(chunk.generation, chunk.queue) for chunk in chunks} == {(7, queue.id)}


def test_a_message_consumed_before_it_was_replicated_is_not_sent() -> None:
    core, queue = queue_of(6)
    browser = ReplicatingBrowser(queue, 7, ())
    assert ids(browser.next_chunk(7, 2, PLENTY)) == [6, 7]
    accept(core, queue, 2, 3, 5)
    assert ids(browser.next_chunk(7, 2, PLENTY)) == [4]
    assert browser.done


def test_what_came_after_the_objects_is_left_to_the_stream() -> None:
    core, queue = queue_of(2)
    browser = ReplicatingBrowser(queue, 3, ())
    core.publish(queue, "later")
    assert ids(browser.next_chunk(7, 10, PLENTY)) == [2, 3]


def test_what_a_backup_holds_is_not_sent_again_and_what_is_gone_is_dropped() -> None:
    core, queue = queue_of(8)
    accept(core, queue, 3, 4, 9)
    (chunk,) = chunks_of(queue, 9, [(2, 5), (8, 9)])
    assert ids(chunk) == [6, 7]
    assert chunk.dropped == (3, 4, 9)
    assert chunk.last


def test_all_gone_is_one_chunk_that_says_so() -> None:
    core, queue = queue_of(3)
    accept(core, queue, 2, 3, 4)
    (chunk,) = chunks_of(queue, 9, [(2, 2), (4, 4)])
    assert (chunk.dropped, chunk.data, chunk.last) == ((2, 4), b"", True)


def test_failed_deliveries_are_told_of_sent_and_of_held_messages() -> None:
    core, queue = queue_of(4)
    for message_id in (2, 3, 3, 5):
        entry = queue.messages.find(message_id)
        assert entry is not None
        core.resources.release(queue, [entry], failed=True)
    (chunk,) = chunks_of(queue, 5, [(3, 3)])
    assert chunk.failures == ((2, 1), (3, 2), (5, 1))


def test_what_a_consumer_holds_on_the_primary_is_replicated_too() -> None:
    core, queue = queue_of(3)
    core.take(queue, core.consumer(queue), credit=2)
    (chunk,) = chunks_of(queue, 4)
    assert ids(chunk) == [2, 3, 4]


def test_priorities_do_not_matter_only_age_does() -> None:
    core = Core()
    queue = core.queue("urgent", priorities=10)
    for priority in (9, 0, 5, 9, 1):
        core.publish(queue, message("m", priority=priority))
    assert [ids(chunk) for chunk in chunks_of(queue, 6, max_messages=2)] == [[5, 6], [3, 4], [2]]


def test_a_chunk_ends_where_its_bytes_are_used_up_but_has_one_message_at_least() -> None:
    _, queue = queue_of(3)
    assert [ids(chunk) for chunk in chunks_of(queue, 4, max_bytes=1)] == [[4], [3], [2]]


def test_a_range_of_millions_is_dealt_with_in_pieces() -> None:
    _, queue = queue_of(1)
    browser = ReplicatingBrowser(queue, 10_000_000, [(1, 10_000_000)])
    first = browser.next_chunk(7, 1000, PLENTY)
    second = browser.next_chunk(7, 1000, PLENTY)
    assert len(first.dropped) == len(second.dropped) == IDS_PER_CHUNK
    assert first.dropped[-1] == 10_000_000
    assert second.high == first.low - 1 == 10_000_000 - IDS_PER_CHUNK


def test_a_backup_that_holds_everything_costs_a_bounded_piece_at_a_time_too() -> None:
    _, queue = queue_of(2 * IDS_PER_CHUNK)
    chunks = chunks_of(queue, 2 * IDS_PER_CHUNK + 1, [(2, 2 * IDS_PER_CHUNK + 1)])
    assert len(chunks) in (2, 3)
    assert all(not chunk.data and not chunk.dropped for chunk in chunks)


@pytest.mark.parametrize("holdings", [[(3, 4), (2, 3)], [(4, 3), (2, 4)], [(2, 4), (2, 4)], [(-5, 4)], [(0, 4)]])
def test_a_confused_backup_does_not_confuse_its_primary(holdings: list[tuple[int, int]]) -> None:
    _, queue = queue_of(4)
    (chunk,) = chunks_of(queue, 5, [*holdings, (6, 1 << 62)])
    assert ids(chunk) == [5]
    assert set(chunk.dropped) <= {1}


# --- all queues


def browsers_of(core: Core, window: int = 2, holdings: dict[str, Ranges] | None = None) -> Browsers:
    by_id = {core.catalog.queues[name].id: ranges for name, ranges in (holdings or {}).items()}
    return Browsers(
        core.state, 7, core.log.last_lsn, by_id, max_messages=2, max_bytes=PLENTY, window=window
    )  # fmt: skip


def core_with(**counts: int) -> Core:
    core = Core()
    for name in counts:
        core.queue(name)
    for name, count in counts.items():
        core.publish(core.catalog.queues[name], *["m"] * count)
    return core


def all_frames(browsers: Browsers) -> list[Chunk | CaughtUp]:
    """With a backup that takes in everything at once."""
    frames: list[Chunk | CaughtUp] = []
    while (frame := browsers.next(PLENTY)) is not None:
        frames.append(frame)
        assert browsers.acknowledged(sum(isinstance(each, Chunk) for each in frames)) == ""
    return frames


def test_queue_after_queue_is_brought_level_and_then_the_end_is_told_once() -> None:
    core = core_with(a=3, b=1)
    *chunks, end = all_frames(browsers_of(core))
    assert [chunk.queue for chunk in chunks if isinstance(chunk, Chunk)] == [1, 1, 2]
    assert end == CaughtUp(7, core.log.last_lsn)


def test_no_more_is_sent_than_the_backup_has_room_for() -> None:
    browsers = browsers_of(core_with(a=8), window=2)
    assert isinstance(browsers.next(PLENTY), Chunk)
    assert isinstance(browsers.next(PLENTY), Chunk)
    assert (browsers.has_window, browsers.next(PLENTY)) == (False, None)
    assert browsers.acknowledged(1) == ""
    assert isinstance(browsers.next(PLENTY), Chunk)


def test_an_acknowledgement_ahead_of_what_was_sent_is_noticed() -> None:
    browsers = browsers_of(core_with(a=8))
    browsers.next(PLENTY)
    assert "2 chunks; 1 were sent" in browsers.acknowledged(2)


def test_queues_with_nothing_to_tell_cost_no_frame() -> None:
    core = core_with(**{f"q{number}": 0 for number in range(50)})
    assert len(all_frames(browsers_of(core))) == 1


def test_many_queues_that_only_drop_something_do_not_wait_for_the_backup() -> None:
    core = core_with(**{f"q{number}": 0 for number in range(50)})
    browsers = browsers_of(core, window=1, holdings={f"q{number}": [(1, 1)] for number in range(50)})
    frames = [browsers.next(PLENTY) for _ in range(51)]
    assert isinstance(frames[-1], CaughtUp)
    assert LIGHT_CHUNKS > 50


def test_a_queue_that_was_deleted_meanwhile_is_left_out() -> None:
    core = core_with(a=5, b=5)
    browsers = browsers_of(core, window=100)
    browsers.next(PLENTY)
    core.configuration.delete_queue("a")
    core.configuration.delete_queue("b")
    assert isinstance(browsers.next(PLENTY), CaughtUp)


def test_a_queue_that_was_declared_meanwhile_comes_by_the_stream() -> None:
    core = core_with(a=1)
    browsers = browsers_of(core)
    core.publish(core.queue("new"), "m")
    assert [type(frame) for frame in all_frames(browsers)] == [Chunk, CaughtUp]
