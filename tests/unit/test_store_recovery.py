"""What was kept comes back, whatever it was; what was changed since is found out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from zlib import crc32

import pytest

from kept_core import (
    SEGMENT_BYTES,
    AnyCommands,
    KeptCore,
    check_transient,
    copied,
    durable_picture,
    files_of,
    recovered,
    with_everything,
)
from model_support import TextReader, message, transaction_of
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.types import Enqueued, TransactionCommitted
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.store.blocks import BlockKind, encode_block
from qpid_ha_broker.store.checking import check
from qpid_ha_broker.store.dump import Dump
from qpid_ha_broker.store.errors import NewerFormat, StoreDamaged
from qpid_ha_broker.store.facts import Integrity
from qpid_ha_broker.store.inspection import examine
from qpid_ha_broker.store.layout import segment_numbers, segment_path
from qpid_ha_broker.store.recovery import recover
from qpid_ha_broker.store.status import STATUS_FILE
from simulated_disk import SimulatedDisk

SEEDS = range(24)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_state_comes_back_from_the_journal_that_it_wrote(seed: int) -> None:
    core = KeptCore(log_acquisitions=seed % 4 == 0)
    commands = AnyCommands(core, Random(seed), durable=1 if seed % 3 == 0 else 0.8)
    for step in range(120):
        commands.step()
        core.keep()
        if step % 40 == 39:
            core.journal.roll()
    resources, facts = recovered(core.disk)
    assert durable_picture(resources.sets) == durable_picture(core.sets)
    assert (facts.last_lsn, facts.local_lsn) == core.sets.log_ends
    assert (resources.replicated.log.last_lsn, resources.sets.local_log.last_lsn) == core.sets.log_ends
    assert facts.next_number == core.journal.number + 1
    assert facts.previous_bytes == core.journal.position
    assert facts.notes == ()
    check_transient(facts, core, commands)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_and_what_follows_is_as_good_as_the_whole_journal(seed: int) -> None:
    """The dump goes on while commands do: some of it at a time, with any number of commands in between."""
    core = KeptCore(log_acquisitions=seed % 4 == 0)
    random = Random(seed)
    commands = AnyCommands(core, random, durable=1 if seed % 3 == 0 else 0.8)
    run(commands, 60)
    dump, number = core.begin_dump()
    pieces = []
    while (piece := dump.next(random.choice([1, 50, 1000]))) is not None:
        pieces.append(piece)
        run(commands, random.randint(0, 3))
    run(commands, random.randint(0, 10))
    whole = copied(core.disk)
    core.write_dump(dump, number, pieces)
    core.journal.drop_before(number)
    resources, facts = recovered(core.disk)
    assert facts.snapshot_number == number
    assert durable_picture(resources.sets) == durable_picture(core.sets)
    check_transient(facts, core, commands)
    assert durable_picture(recovered(whole)[0].sets) == durable_picture(core.sets)


def test_what_is_not_durable_is_gone_and_counted() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, message("kept", durable=True), "gone", "gone, too", "taken")
    consumer = core.consumer(queue)
    core.resources.accept(queue, core.take(queue, consumer)[3:])
    core.publish(core.exchange("x", "fanout", queue, core.queue("p")), message("kept twice", durable=True), "lost")
    core.keep()
    resources, facts = recovered(core.disk)
    assert durable_picture(resources.sets) == durable_picture(core.sets)
    assert (facts.messages, facts.lost_transient) == (3, 4)


def test_messages_come_back_as_possibly_delivered_before() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, message("one", durable=True))
    core.keep()
    resources, _ = recovered(core.disk)
    found = resources.catalog.queues["q"]
    assert [entry.id <= found.redelivered_below for entry in found.messages] == [True]
    token = resources.publish(found, message("two", durable=True), core.now_ms)
    assert token.lsn > found.redelivered_below


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_after_a_restart_that_is_marked_which_somebody_may_have_had_and_nothing_else(is_snapshot: bool) -> None:
    core = KeptCore()
    core.resources.replicated.state.marks.inherit(is_next=True)
    core.resources.replicated.take_over(core.now_ms, 0)
    core.resources.replicated.begin_marks()
    taken, left = core.queue("taken"), core.queue("left")
    for queue in (taken, left):
        core.publish(queue, *(message(text, durable=True) for text in ("one", "two", "three")))
    consumer = core.consumer(taken)
    core.give_credit(taken, consumer, 2)
    core.hand_out()
    core.commit()
    core.hand_out()
    core.leave(taken, consumer)
    core.keep()
    if is_snapshot:
        dump, number = core.begin_dump()
        core.write_dump(dump, number, list(iter(lambda: dump.next(1 << 20), None)))
        for older in range(1, number):
            core.disk.remove(segment_path(older))
    resources, _ = recovered(core.disk)
    resources.replicated.state.marks.inherit(is_next=True)
    resources.replicated.take_over(core.now_ms, 0)
    queues = resources.catalog.queues
    marked = {name: [queue.is_redelivered(entry) for entry in queue.messages] for name, queue in queues.items()}
    assert marked == {"taken": [True, True, False], "left": [False, False, False]}


def test_what_was_taken_back_is_void_and_what_came_instead_counts() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, message("stays", durable=True))
    core.keep()
    last = core.log.last_lsn
    lost = encode_all([LogRecord(last + at, enqueued(queue.id, b"void %d" % at), False) for at in (1, 2, 3)])
    core.journal.stage(BlockKind.EVENTS, last + 1, last + 3, last, 0, lost)
    core.journal.stage(BlockKind.TAKEN_BACK, last + 1, last + 1, last, 0, b"")
    core.journal.roll()
    other = encode_all([LogRecord(last + 2, enqueued(queue.id, b"instead"), False)])
    core.journal.stage(BlockKind.EVENTS, last + 2, last + 2, last + 1, 0, other)
    core.journal.flush()
    resources, facts = recovered(core.disk)
    found = [entry.resident_body() for entry in resources.catalog.queues["q"].messages]
    assert found == [b";;stays", b"void 1", b"instead"]
    assert (facts.last_lsn, facts.committed_lsn) == (last + 2, last + 1)


def test_a_unit_of_which_a_part_was_taken_back_does_not_count_at_all() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.keep()
    last = core.log.last_lsn
    core.resources.commit(transaction_of((queue, "one"), (queue, "two")), core.now_ms)
    core.keep()
    core.journal.stage(BlockKind.TAKEN_BACK, last + 2, last + 2, last, 0, b"")
    core.journal.flush()
    resources, facts = recovered(core.disk)
    assert resources.catalog.queues["q"].messages.count == 0
    assert facts.last_lsn == last + 2


def test_what_is_not_known_to_be_committed_is_held_unless_somebody_is_alone() -> None:
    core = KeptCore()
    core.committed_lsn = 0
    queue = core.queue("q")
    core.publish(queue, message("committed", durable=True))
    core.keep()
    committed = core.committed_lsn = core.log.last_lsn
    core.publish(queue, message("first", durable=True), "second, not durable")
    core.keep()
    core.resources.commit(
        transaction_of((queue, message("third", durable=True)), (queue, message("fourth", durable=True))), 0
    )
    core.keep()

    resources, facts = recovered(core.disk, apply_all=False)
    assert [entry.resident_body() for entry in resources.catalog.queues["q"].messages] == [b";;committed"]
    assert (facts.last_lsn, facts.committed_lsn, facts.journal_lsn) == (committed, committed, core.log.last_lsn)
    spans = [(batch.first_lsn, batch.last_lsn) for batch in facts.held]
    assert spans == [(committed + 1, committed + 2), (committed + 3, committed + 5)]
    for batch in facts.held:
        for record in batch.records:
            resources.replicated.follow([record])
    assert durable_picture(resources.sets) == durable_picture(core.sets)

    resources, facts = recovered(core.disk, apply_all=True)
    assert facts.held == ()
    assert durable_picture(resources.sets) == durable_picture(core.sets)


def test_a_commitment_inside_of_a_unit_holds_all_of_it() -> None:
    core = KeptCore()
    core.committed_lsn = 0
    queue = core.queue("q")
    core.keep()
    before = core.log.last_lsn
    core.resources.commit(transaction_of((queue, message("a", durable=True)), (queue, message("b", durable=True))), 0)
    core.keep()
    core.committed_lsn = before + 1
    core.publish(queue, message("later", durable=True))
    core.keep()
    resources, facts = recovered(core.disk, apply_all=False)
    assert (facts.last_lsn, resources.catalog.queues["q"].messages.count) == (before, 0)
    assert [len(batch.records) for batch in facts.held] == [3, 1]


def test_what_a_good_block_holds_must_be_good_records_and_whole_units() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.keep()
    last = core.log.last_lsn
    good = encode_all([LogRecord(last + 1, enqueued(queue.id, b"body"), False)])
    part = encode_all([LogRecord(last + 1, enqueued(queue.id, b"body"), True)])
    short = part + encode_all([LogRecord(last + 2, TransactionCommitted(2), False)])
    for data, text in ((good[:-1] + b"?", "CRC-32"), (short, "a unit of 2 events"), (part, "does not end")):
        other = copied(core.disk)
        path = segment_path(core.journal.number)
        head = encode_block(core.journal.number, BlockKind.EVENTS, last + 1, last + 2, last, 0, 512, data)
        page = core.disk.open(path).read(0, core.journal.position)
        other.put(path, (page + head + data).ljust(SEGMENT_BYTES, b"\0"))
        with pytest.raises(StoreDamaged, match=text) as raised:
            recovered(other)
        assert raised.value.file == path


def test_no_flipped_byte_leads_to_another_state_without_a_word() -> None:
    """Found out with file and offset, or a torn end that is noted, or nothing that counts."""
    core = with_everything()
    core.status.change(history=((1, "alpha", 1),))
    core.status.write()
    right = durable_picture(recovered(copied(core.disk))[0].sets)
    core.publish(core.catalog.queues["q"], message("the last group", durable=True))
    core.keep()
    newest = durable_picture(recovered(copied(core.disk))[0].sets)
    outcomes = Counter[str]()
    for path in files_of(core.disk):
        data = core.disk.open(path).read(0, SEGMENT_BYTES)
        for at in used_bytes(data):
            disk = copied(core.disk)
            disk.put(path, data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
            outcomes[outcome_of(disk, path, newest, right)] += 1
    assert all(outcomes[each] for each in ("damaged", "nothing", "torn"))


def outcome_of(disk: SimulatedDisk, path: str, newest: object, without_the_end: object) -> str:
    """Of a start with that disk; who only looks at the store sees the same."""
    seen, flaws = examine(disk, "here"), check(disk)
    damage: StoreDamaged | None = None
    try:
        resources, facts = recovered(disk)
    except StoreDamaged as error:
        damage = error
    if damage is not None:
        assert damage.file == path, damage
        assert not seen.is_readable, damage
        assert flaws, damage
        return "damaged"
    assert (seen.is_readable, seen.last_lsn, seen.messages) == (True, facts.last_lsn, facts.messages), seen.detail
    assert all(flaw.integrity is Integrity.TORN for flaw in flaws), flaws
    found = durable_picture(resources.sets)
    if found == newest:
        return "nothing"
    assert found == without_the_end
    assert any("tore" in note for note in facts.notes)
    return "torn"


def used_bytes(data: bytes) -> range:
    """All up to some of the zeros at the end."""
    return range(min(len(data), len(data.rstrip(b"\0")) + 70))


def test_a_missing_segment_is_reported_by_its_name() -> None:
    core = with_everything()
    core.keep()
    core.journal.roll()
    core.journal.roll()
    paths = [segment_path(each) for each in segment_numbers(core.disk)]
    for path in paths[:-1]:
        with pytest.raises(StoreDamaged, match="missing") as raised:
            recovered(copied(core.disk, without=(path,)))
        assert raised.value.file == path
        assert path in examine(copied(core.disk, without=(path,)), "here").detail


def test_the_end_that_a_clean_status_tells_of_must_be_there() -> None:
    core = with_everything()
    end = core.journal.end()
    last, local = core.sets.log_ends
    core.status.change(clean="an uuid", journal_end=end, last_lsn=last, local_lsn=local)
    core.status.write()
    _, facts = recovered(copied(core.disk))
    assert facts.status is not None
    assert (facts.was_clean, facts.status.journal_end, facts.status.journal_synced) == ("an uuid", end, end)

    last_segment = segment_path(segment_numbers(core.disk)[-1])
    with pytest.raises(StoreDamaged, match="STATUS") as raised:
        recovered(copied(core.disk, without=(last_segment,)))
    assert raised.value.file == last_segment

    core.disk.replace(STATUS_FILE, replace(facts.status, last_lsn=last + 1).encode())
    with pytest.raises(StoreDamaged, match="STATUS"):
        recovered(copied(core.disk))


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    core = with_everything()
    path = segment_path(core.journal.number)
    page = bytearray(core.disk.open(path).read(0, SEGMENT_BYTES))
    page[8] += 1
    page[12:16] = crc32(bytes(page[16:512]), crc32(bytes(page[:12]))).to_bytes(4, "little")
    disk = copied(core.disk)
    disk.put(path, bytes(page))
    assert examine(disk, "here").integrity is Integrity.NEWER
    with pytest.raises(NewerFormat, match="upgrade"):
        recovered(disk)


def test_what_follows_a_copy_counts_once_the_copy_is_there() -> None:
    core, primary = with_everything(), KeptCore()
    queue = primary.queue("q")
    primary.publish(queue, *(message(str(each), durable=True) for each in range(300)))
    core.keep()
    number = core.journal.roll(needs_base=True)
    dump = Dump(primary.sets)
    pieces = list(iter(lambda: dump.next(1000), None))
    core.write_dump(dump, number, pieces)
    resources, facts = recovered(copied(core.disk))
    assert durable_picture(resources.sets) == durable_picture(primary.sets)
    assert (facts.last_lsn, facts.journal_lsn) == (primary.log.last_lsn, primary.log.last_lsn)

    primary.log.take_batch()
    primary.publish(queue, message("after it", durable=True))
    batch = primary.log.take_batch()
    assert batch is not None
    core.journal.stage(BlockKind.EVENTS, batch.first_lsn, batch.last_lsn, batch.last_lsn - 1, 0, batch.data)
    core.journal.roll()
    resources, facts = recovered(copied(core.disk))
    assert durable_picture(resources.sets) == durable_picture(primary.sets)
    assert (facts.last_lsn, facts.snapshot_number, len(facts.segments)) == (batch.last_lsn, number, 2)


def test_an_empty_directory_is_empty() -> None:
    resources, facts = recovered(SimulatedDisk(Random(1)))
    assert facts.is_empty
    assert (facts.next_number, facts.previous_bytes, facts.last_lsn, facts.local_lsn) == (1, 0, 0, LOCAL_BASE)
    assert durable_picture(resources.sets) == durable_picture(ResourceSets())


def test_progress_is_told_while_much_is_read() -> None:
    core = KeptCore()
    queue = core.queue("q")
    for _ in range(3):
        core.publish(queue, *(message("x" * 100_000, durable=True) for _ in range(60)))
        core.keep()
    told: list[tuple[int, int]] = []
    recover(core.disk, Resources(TextReader()).sets, apply_all=True, progress=lambda *facts: told.append(facts))
    assert len(told) >= 3
    assert all(0 <= done <= total for done, total in told)
    assert told == sorted(told)


def run(commands: AnyCommands, count: int) -> None:
    for _ in range(count):
        commands.step()
        commands.core.keep()


def enqueued(queue_id: int, payload: bytes) -> Enqueued:
    return Enqueued((queue_id,), payload, True, 4, 0, "")
