"""Stories about what of a journal is read: what filters leave out, what was taken back, and what is not committed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from journal_rows import Row, read_rows
from qpid_ha_broker.events import types as ev
from qpid_ha_pipeline.journal.part import PartGroup
from qpid_ha_pipeline.journal_source import PushingJournalReader
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


FILTERS: list[Filter] = [
    EqualTo(("queue",), "orders"),
    EqualTo(("queue",), "no such queue"),
    In(("queue",), ("billing", "own", None)),
    StringStartsWith(("queue",), "orders"),
    StringEndsWith(("queue",), ".eu"),
    StringContains(("queue",), "ill"),
    GreaterThan(("queue",), "orders"),
    IsNull(("queue",)),
    IsNotNull(("queue",)),
    Not(EqualTo(("queue",), "orders")),
    Not(In(("queue",), ("billing",))),
    EqualNullSafe(("queue",), None),
    Not(EqualNullSafe(("queue",), "orders")),
    EqualTo(("event",), "enqueued"),
    In(("event",), ("dequeued", "queue_deleted")),
    Not(EqualTo(("event",), "enqueued")),
    EqualTo(("generation",), 2),
    LessThan(("generation",), 2),
    EqualTo(("lsn",), 5),
    GreaterThan(("lsn",), 9),
    GreaterThanOrEqual(("lsn",), 9),
    LessThan(("lsn",), 0),
    LessThanOrEqual(("lsn",), 3),
    In(("lsn",), (3, 4, None)),
    EqualTo(("message_id",), 5),
    IsNull(("message_id",)),
    Not(EqualTo(("message_id",), 5)),
    EqualNullSafe(("message_id",), None),
    EqualTo(("queue_id",), 2),
    EqualTo(("broker",), "alpha"),
    EqualTo(("broker",), "beta"),
]


def passes(given: Filter, row: Row) -> bool | None:
    """SQL, one row at a time: None is unknown."""
    if isinstance(given, Not):
        found = passes(given.child, row)
        return None if found is None else not found
    value = row[given.attribute[0]]  # type: ignore[attr-defined]
    match given:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case EqualNullSafe(_, wanted):
            return bool(value == wanted)
        case _ if value is None:
            return None
        case In(_, wanted):
            return True if value in wanted else None if None in wanted else False
        case EqualTo(_, wanted):
            return bool(value == wanted)
        case GreaterThan(_, wanted):
            return bool(value > wanted)
        case GreaterThanOrEqual(_, wanted):
            return bool(value >= wanted)
        case LessThan(_, wanted):
            return bool(value < wanted)
        case LessThanOrEqual(_, wanted):
            return bool(value <= wanted)
        case StringStartsWith(_, wanted):
            return bool(value.startswith(wanted))
        case StringEndsWith(_, wanted):
            return bool(value.endswith(wanted))
        case StringContains(_, wanted):
            return wanted in value
    raise TypeError(given)


def test_a_filter_that_is_carried_out_here_leaves_what_sql_would(busy: WrittenJournal) -> None:
    rows = read_rows(busy.data_dir, *PLAIN)
    assert len(rows) == 20
    for given in FILTERS:
        assert read_rows(busy.data_dir, *PLAIN, filters=[given]) == [row for row in rows if passes(given, row)], given
    for one, two in itertools.combinations(FILTERS[::3], 2):
        expected = [row for row in rows if passes(one, row) and passes(two, row)]
        assert read_rows(busy.data_dir, *PLAIN, filters=[one, two]) == expected, (one, two)


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
        assert read_rows(busy.data_dir, *PLAIN, filters=None, **options) == wanted


def test_what_cannot_be_carried_out_here_is_left_to_spark(busy: WrittenJournal) -> None:
    reader = PushingJournalReader(JournalOptions.parse({"path": str(busy.data_dir)}), full_schema())
    left = [
        EqualTo(("size",), 3),
        EqualTo(("application_properties", "a"), "b"),
        Not(IsNull(("subject",))),
        Not(In(("queue",), ("billing", None))),
    ]
    assert reader.pushFilters([left[0], EqualTo(("queue",), "orders"), *left[1:]]) == left


def test_segments_in_which_nothing_can_pass_are_not_read(busy: WrittenJournal) -> None:
    def parts(*filters: Filter) -> int:
        reader = PushingJournalReader(JournalOptions.parse({"path": str(busy.data_dir)}), full_schema())
        reader.pushFilters(list(filters))
        return sum(len(group.parts) for group in reader.partitions() if isinstance(group, PartGroup))

    assert parts() == 3
    assert parts(EqualTo(("lsn",), 3)) == 2  # the second one has events of the broker's own log
    assert parts(EqualTo(("broker",), "beta")) == 0


def test_the_name_of_a_queue_is_found_wherever_it_was_declared(journal: WrittenJournal) -> None:
    first, second = journal.declare("orders"), journal.declare("billing")
    journal.roll()
    third = journal.declare("shipping")
    journal.roll()
    journal.enqueue((third, first, second), b"1")
    rows = read_rows(journal.data_dir, "queue", filters=[EqualTo(("event",), "enqueued")])
    assert [row["queue"] for row in rows] == ["shipping", "orders", "billing"]


def test_the_name_of_a_queue_whose_declaration_was_folded_away_is_in_the_snapshot(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    journal.roll()
    write_snapshot(journal, 2, (queue, "orders"))
    journal.enqueue(queue, b"1")
    journal.enqueue(4711, b"2")
    assert [row["queue"] for row in read_rows(journal.data_dir, "queue")] == ["orders", None]


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
    write_snapshot(journal, 2)
    assert [row["lsn"] for row in read_rows(journal.data_dir, "lsn")] == [2]


def test_several_brokers_are_read_together_and_patterns_name_them(tmp_path: Path) -> None:
    for broker in ("alpha", "beta"):
        WrittenJournal(tmp_path / broker, broker).declare("orders")
    rows = read_rows(tmp_path / "*", "broker", "queue")
    assert [row["broker"] for row in rows] == ["alpha", "beta"]
    one = read_rows(tmp_path / "alpha" / "default", "broker")
    assert one == [{"broker": "alpha"}]
