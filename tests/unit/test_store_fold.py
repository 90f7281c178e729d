"""A fold says in one snapshot what the segments before it said, and nothing else changes."""

from __future__ import annotations

from random import Random

import pytest

from kept_core import IDENTITY, AnyCommands, KeptCore, check_transient, copied, durable_picture, recovered
from model_support import message, transaction_of
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Enqueued, Released
from qpid_ha_broker.store.blocks import BlockKind
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.fold import Folded, FoldError, fold
from qpid_ha_broker.store.layout import segment_path
from qpid_ha_broker.store.reading import BlockReader, read_header
from simulated_disk import SimulatedDisk


@pytest.mark.parametrize("seed", range(24))
def test_what_was_folded_comes_back_as_it_would_have_without(seed: int) -> None:
    """Snapshots of all kinds follow each other: of the running state, and folded from it and what came since."""
    core = KeptCore(log_acquisitions=seed % 4 == 0)
    random = Random(seed)
    commands = AnyCommands(core, random, durable=1 if seed % 3 == 0 else 0.8)
    for _ in range(5):
        for _ in range(random.randint(1, 40)):
            commands.step()
            core.keep()
        if random.random() < 0.3:
            dump_while(core, commands, random)
        else:
            fold_all(core)
        resources, facts = recovered(core.disk)
        assert durable_picture(resources.sets) == durable_picture(core.sets)
        assert (facts.last_lsn, facts.local_lsn) == core.sets.log_ends
        check_transient(facts, core, commands)


def test_the_same_segments_give_the_same_bytes() -> None:
    def folded_once() -> bytes:
        core = KeptCore()
        commands = AnyCommands(core, Random(5))
        for _ in range(100):
            commands.step()
            core.keep()
        return content(core.disk, fold_all(core).path)

    assert folded_once() == folded_once()


def test_only_messages_that_are_still_there_are_copied() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, *(message(str(each), durable=True) for each in range(100)))
    core.consume(queue, 90)
    folded = fold_all(core)
    assert folded.messages == 10
    events = events_of(core.disk, folded.path)
    assert [event.payload for event in events if isinstance(event, Enqueued)] == [
        b";;%d" % each for each in range(90, 100)
    ]


def test_a_message_that_one_of_its_queues_has_given_away_is_written_for_the_others() -> None:
    core = KeptCore()
    p, q = core.queue("p"), core.queue("q")
    core.publish(core.exchange("x", "fanout", p, q), message("one", durable=True), message("two", durable=True))
    core.consume(p, 1)
    events = events_of(core.disk, fold_all(core).path)
    assert [event.queues for event in events if isinstance(event, Enqueued)] == [(q.id,), (p.id, q.id)]


def test_failed_deliveries_are_told_of_messages_that_are_still_there() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, *(message(text, durable=True) for text in "ab"))
    consumer = core.consumer(queue)
    for _ in range(2):
        entries = core.take(queue, consumer)
        core.resources.release(queue, entries, failed=True)
    core.resources.accept(queue, core.take(queue, consumer)[:1])
    events = events_of(core.disk, fold_all(core).path)
    kept = next(iter(queue.messages))
    assert [event for event in events if isinstance(event, Released)] == [Released(queue.id, (kept.id,), True)] * 2


def test_messages_of_a_transaction_are_whole_messages_afterwards() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.resources.commit(transaction_of(*((queue, message(text, durable=True)) for text in "abc")), 0)
    core.keep()
    path = fold_all(core).path
    assert not any(record.part for record in records_of(core.disk, path))
    assert durable_picture(recovered(core.disk)[0].sets) == durable_picture(core.sets)


def test_what_was_taken_back_is_not_folded() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, message("stays", durable=True))
    core.keep()
    last = core.log.last_lsn
    core.publish(queue, message("goes", durable=True))
    core.keep()
    core.journal.stage(BlockKind.TAKEN_BACK, last, last, last, 0, b"")
    core.journal.flush()
    number = core.journal.roll()
    folded = fold(core.disk, number, IDENTITY)
    assert (folded.messages, folded.last_lsn) == (1, last)


def test_a_fold_leaves_nothing_behind_when_the_disk_is_full() -> None:
    disk = SimulatedDisk(Random(1))
    core = KeptCore(disk)
    core.publish(core.queue("q"), *(message("x" * 1000, durable=True) for _ in range(30)))
    core.keep()
    number = core.journal.roll()
    disk.capacity = sum(len(disk.peek(path)) for path in (segment_path(1), segment_path(2))) + 5000
    with pytest.raises(OSError, match="space"):
        fold(disk, number, IDENTITY)
    assert disk.names("snapshots") == []
    disk.capacity = None
    assert fold(disk, number, IDENTITY).messages == 30


def test_a_fold_that_cannot_be_says_why() -> None:
    core = KeptCore()
    core.keep()
    with pytest.raises(FoldError, match="not there"):
        fold(core.disk, 2, IDENTITY)
    with pytest.raises(FoldError, match="nothing to fold"):
        fold(core.disk, 1, IDENTITY)
    number = core.journal.roll()
    fold(core.disk, number, IDENTITY)
    with pytest.raises(FoldError, match="there already"):
        fold(core.disk, number, IDENTITY)


def test_a_fold_does_not_look_at_the_segment_that_is_being_written() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, message("one", durable=True))
    core.keep()
    number = core.journal.roll()
    core.publish(queue, message("two", durable=True))
    core.keep()
    path = segment_path(number)
    torn = bytearray(content(core.disk, path))
    torn[512 + 64 + 5] ^= 1
    disk = copied(core.disk)
    disk.put(path, bytes(torn))
    assert fold(disk, number, IDENTITY).messages == 1


def fold_all(core: KeptCore) -> Folded:
    """Fold what there is, and let it replace what it was made of."""
    core.keep()
    number = core.journal.roll()
    folded = fold(core.disk, number, IDENTITY)
    core.journal.drop_before(number)
    return folded


def dump_while(core: KeptCore, commands: AnyCommands, random: Random) -> None:
    dump, number = core.begin_dump()
    pieces = []
    while (piece := dump.next(random.choice([1, 50, 1000]))) is not None:
        pieces.append(piece)
        for _ in range(random.randint(0, 2)):
            commands.step()
            core.keep()
    core.write_dump(dump, number, pieces)
    core.journal.drop_before(number)


def content(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    data = file.read(0, file.size)
    file.close()
    return data


def records_of(disk: Disk, path: str):  # type: ignore[no-untyped-def]
    file = disk.open(path)
    blocks = list(BlockReader(file, read_header(file)))
    return [record for block in blocks[:-1] for record in decode(block.data).records]


def events_of(disk: Disk, path: str):  # type: ignore[no-untyped-def]
    return [record.event for record in records_of(disk, path)]
