"""A dump takes little at a time; with the journal it is exact, as test_store_recovery shows for any commands."""

from __future__ import annotations

import pytest

from kept_core import KeptCore, copied, durable_picture, recovered
from model_support import message
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.types import Enqueued, QueueDeclared, Released
from qpid_ha_broker.ha.browser import Browsers, objects_frame
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.ha.frames import Chunk
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.store.dump import PIECE_LENGTH, Dump
from qpid_ha_broker.store.errors import StoreDamaged


def pieces_of(dump: Dump, max_bytes: int = 1 << 20) -> list[list[LogRecord]]:
    return [decode(piece).records for piece in iter(lambda: dump.next(max_bytes), None)]


def messages_of(pieces: list[list[LogRecord]]) -> list[list[int]]:
    found = [[record.lsn for record in piece if isinstance(record.event, Enqueued)] for piece in pieces]
    return [ids for ids in found if ids]


def catch_up(backup: Resources, primary: Resources, common_lsn: int) -> None:
    """Up to the last of the queues of `primary`, which writes nothing meanwhile."""
    catching_up = CatchUp(backup.replicated, common_lsn)
    catching_up.discard_after_common()
    held = {frame.queue: frame.ranges for frame in catching_up.holdings()}
    state, lsn = primary.replicated.state, primary.replicated.log.last_lsn
    catching_up.objects(objects_frame(state, 2, lsn))
    browsers = Browsers(state, 2, lsn, held, max_messages=100, max_bytes=1 << 20, window=100)
    while isinstance(frame := browsers.next(100), Chunk):
        catching_up.chunk(frame)
    catching_up.finish()


def test_configuration_comes_first_then_messages_the_newest_first() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, *(message(str(each), durable=True) for each in range(2 * PIECE_LENGTH + 10)))
    pieces = pieces_of(Dump(core.sets))
    assert any(isinstance(record.event, QueueDeclared) for record in pieces[0])
    ids = messages_of(pieces)
    assert [len(each) for each in ids] == [PIECE_LENGTH, PIECE_LENGTH, 10]
    assert [each[0] for each in ids] == sorted([each[0] for each in ids], reverse=True)


def test_a_piece_is_hardly_larger_than_asked_but_has_a_message() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, *(message("x" * 1000, durable=True) for _ in range(10)), message("y" * 9000, durable=True))
    ids = messages_of(pieces_of(Dump(core.sets), max_bytes=3500))
    assert [len(each) for each in ids] == [1, 3, 3, 3, 1]


def test_a_message_of_several_queues_is_dumped_once() -> None:
    core = KeptCore()
    queues = [core.queue(name) for name in "pqr"]
    exchange = core.exchange("x", "fanout", *queues)
    core.publish(exchange, message("one", durable=True), message("two", durable=True))
    core.consume(queues[0], 1)
    core.keep()
    dump, number = core.begin_dump()
    pieces = list(iter(lambda: dump.next(1000), None))
    events = [record.event for piece in pieces for record in decode(piece).records]
    ids = tuple(queue.id for queue in queues)
    assert [event.queues for event in events if isinstance(event, Enqueued)] == [ids, ids[1:]]
    core.write_dump(dump, number, pieces)
    assert durable_picture(recovered(core.disk)[0].sets) == durable_picture(core.sets)


def test_what_a_primary_has_brought_back_is_dumped_where_a_snapshot_knew_another_queue_alone() -> None:
    """A removal that nobody else had was in the snapshot with which a backup came back: it is taken back."""
    core = KeptCore()
    queues = [core.queue(name) for name in "pqr"]
    core.publish(core.exchange("x", "fanout", *queues), message("one", durable=True), message("two", durable=True))
    core.keep()
    rolled, common_lsn = core.journal.roll(), core.log.last_lsn
    early = copied(core.disk)
    primary = recovered(early)[0]
    core.consume(queues[1])
    dump, number = core.begin_dump()
    core.write_dump(dump, number, list(iter(lambda: dump.next(1000), None)))
    core.journal.drop_before(number)
    backup = recovered(core.disk)[0]
    catch_up(backup, primary, common_lsn)
    assert durable_picture(backup.sets) == durable_picture(primary.sets)
    again = Dump(backup.sets)
    core.disk = early
    core.write_dump(again, rolled, list(iter(lambda: again.next(1000), None)))
    assert durable_picture(recovered(early)[0].sets) == durable_picture(primary.sets)


def test_failed_deliveries_during_a_dump_count_once_before_and_after_their_message_was_dumped() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, *(message(text, durable=True) for text in "abc"))
    consumer = core.consumer(queue)

    def fail_all() -> None:
        core.resources.release(queue, core.take(queue, consumer), failed=True)

    fail_all()
    dump, number = core.begin_dump()
    pieces = []
    while (piece := dump.next(1)) is not None:
        fail_all()
        pieces.append(piece)
    fail_all()
    core.keep()
    core.write_dump(dump, number, pieces)
    resources, _ = recovered(core.disk)
    live = [entry.delivery_count for entry in queue.messages]
    assert [entry.delivery_count for entry in resources.catalog.queues["q"].messages] == live
    assert sum(isinstance(record.event, Released) for piece in pieces for record in decode(piece).records) > 3


def test_a_dump_that_is_ahead_of_its_journal_is_refused() -> None:
    """Its messages may have gone by what nobody kept: the writer of a dump waits until the journal has it."""
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, *(message(text, durable=True) for text in "abc"))
    dump, number = core.begin_dump()
    core.consume(queue, 2)
    pieces = list(iter(lambda: dump.next(1000), None))
    early = copied(core.disk)
    core.keep()
    core.write_dump(dump, number, pieces)
    assert durable_picture(recovered(core.disk)[0].sets) == durable_picture(core.sets)
    path = f"snapshots/{number:020d}.snap"
    file = core.disk.open(path)
    early.put(path, file.read(0, file.size))
    with pytest.raises(StoreDamaged, match="was made of"):
        recovered(early)


def test_the_end_counts_what_is_in_it_and_what_is_left_out() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, message("kept", durable=True), "not", "not either")
    dump = Dump(core.sets)
    last = core.log.last_lsn
    core.publish(queue, message("later", durable=True))
    assert sum(map(len, messages_of(pieces_of(dump)))) == 1
    end = dump.end()
    assert (end.last_lsn, end.counts_lsn, end.messages, end.transient) == (last, last + 1, 1, 2)
