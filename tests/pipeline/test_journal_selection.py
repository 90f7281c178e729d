"""Stories about what of a journal is read: what filters leave out, what was taken back, and what is not committed."""

from __future__ import annotations

import pytest

from journal_rows import read_rows
from qpid_ha_broker.events import types as ev
from qpid_ha_pipeline.journal.part import PartGroup
from qpid_ha_pipeline.journal_source import JournalTableReader
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import full_schema
from written_journal import WrittenJournal, write_snapshot

PLAIN = ("broker", "generation", "lsn", "event", "queue", "queue_id", "message_id")


@pytest.fixture
def busy(journal: WrittenJournal) -> WrittenJournal:
    """Two generations, three segments, three queues, the broker's own log."""
    journal.start(1)
    queues = [journal.declare(name) for name in ("orders", "orders.eu", "billing")]
    ids = [journal.enqueue(queue, b"1", b"22") for queue in queues]
    journal.enqueue((queues[0], queues[2]), b"333")
    journal.roll()
    journal.start(2)
    journal.dequeue(queues[0], ids[0])
    (own,) = journal.write_local(ev.QueueDeclared("own", {}))
    journal.write_local(ev.Enqueued((own,), b"", True, 4, 0, ""))
    journal.roll()
    journal.write(ev.Released(queues[2], tuple(ids[2]), True), ev.QueueDeleted(queues[1]))
    return journal


def test_the_options_that_select_rows_are_filters(busy: WrittenJournal) -> None:
    rows = read_rows(busy.data_dir, *PLAIN)
    for options, wanted in (
        ({"queue": "orders, billing"}, [row for row in rows if row["queue"] in ("orders", "billing")]),
        ({"queue": '["orders"]', "event": "dequeued"}, [row for row in rows if row["event"] == "dequeued"]),
        ({"generation": "2", "fromLsn": "3", "toLsn": "14"}, [
            row for row in rows if row["generation"] == 2 and 3 <= row["lsn"] <= 14
        ]),
    ):  # fmt: skip
        assert wanted
        assert read_rows(busy.data_dir, *PLAIN, **options) == wanted


def test_segments_in_which_nothing_can_pass_are_not_read(busy: WrittenJournal) -> None:
    def parts(**given: str) -> int:
        reader = JournalTableReader(JournalOptions.parse({"path": str(busy.data_dir), **given}), full_schema())
        return sum(len(group.parts) for group in reader.partitions() if isinstance(group, PartGroup))

    assert parts() == 3
    assert parts(fromLsn="3", toLsn="3") == 2  # the second one has events of the broker's own log
    assert parts(toLsn="0") == parts(fromLsn="100") == 1


def test_the_name_of_a_queue_is_found_wherever_it_was_declared(journal: WrittenJournal) -> None:
    first, second = journal.declare("orders"), journal.declare("billing")
    journal.roll()
    third = journal.declare("shipping")
    journal.roll()
    journal.enqueue((third, first, second), b"1")
    rows = read_rows(journal.data_dir, "queue", event="enqueued")
    assert [row["queue"] for row in rows] == ["shipping", "orders", "billing"]


def test_the_name_of_a_queue_whose_declaration_was_folded_away_is_in_the_snapshot(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    journal.roll()
    write_snapshot(journal, 2, (queue, "orders"))
    journal.enqueue(queue, b"1")
    journal.enqueue(4711, b"2")
    rows = read_rows(journal.data_dir, "queue", "from_snapshot", event="enqueued")
    assert [row["queue"] for row in rows] == ["orders", None]


def test_what_was_taken_back_never_happened(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    journal.enqueue(queue, b"2", b"3", b"4")
    journal.roll()
    journal.enqueue(queue, b"5", b"6")
    journal.take_back(3)
    (other,) = journal.write(ev.QueueDeclared("instead of message 4", {}))
    journal.roll()
    journal.enqueue(other, b"another 5")
    rows = read_rows(journal.data_dir, "lsn", "event", "size", "queue")
    assert [tuple(row.values()) for row in rows] == [
        (1, "queue_declared", None, "orders"),
        (2, "enqueued", 1, "orders"),
        (3, "enqueued", 1, "orders"),
        (4, "queue_declared", None, "instead of message 4"),
        (5, "enqueued", 9, "instead of message 4"),
    ]


def test_what_may_still_be_taken_back_is_told_apart_and_can_be_left_out(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    journal.enqueue(queue, b"2")
    journal.write(*(ev.Enqueued((queue,), b"", True, 4, 0, "") for _ in range(3)), committed=False)
    rows = read_rows(journal.data_dir, "lsn", "committed")
    assert [row["committed"] for row in rows] == [True, True, False, False, False]
    assert read_rows(journal.data_dir, "lsn", "committed", isolation="committed") == rows[:2]


def test_a_journal_that_needs_a_base_counts_only_with_it(journal: WrittenJournal) -> None:
    journal.declare("before")
    journal.journal.roll(needs_base=True)
    journal.declare("after")
    assert [row["lsn"] for row in read_rows(journal.data_dir, "lsn")] == [1]
    write_snapshot(journal, 2, last_lsn=1)
    assert [row["lsn"] for row in read_rows(journal.data_dir, "lsn")] == [2]
