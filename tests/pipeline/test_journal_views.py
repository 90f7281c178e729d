"""Stories about stores of which the beginning was folded away, and about several stores that hold the same log."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from journal_rows import Row, read_rows
from qpid_ha_broker.events import types as ev
from qpid_ha_pipeline.errors import PipelineError
from written_journal import WrittenJournal, amqp, blocks_of, spoil


def replicas(directory: Path, *names: str) -> list[WrittenJournal]:
    """Stores of a cluster that the first of them leads."""
    stores = [WrittenJournal(directory / name, name, generation=0) for name in names]
    for store in stores:
        store.write(ev.GenerationStarted(1, names[0], store.identity.cluster, store.now_ms, False, "first start"))
        store.write(ev.InSyncChanged(1, names))
        store.declare("orders")
    return stores


ORDERS = 3
"""The queue's id."""


def all_write(stores: Sequence[WrittenJournal], *bodies: str) -> list[int]:
    """The same messages; their ids."""
    ids: list[int] = []
    for store in stores:
        ids = store.enqueue(ORDERS, *[amqp(body) for body in bodies])
    return ids


def end(stores: Sequence[WrittenJournal], epoch: int = 1, members: Sequence[str] = ()) -> None:
    """Write STATUS as brokers do."""
    for store in stores:
        store.write_status(epoch=epoch, members=tuple(members) or tuple(each.identity.broker for each in stores))


def bodies(rows: Sequence[Row]) -> list[str | None]:
    return [row["body_text"] for row in rows]


# --- folded stores


@pytest.fixture
def folded(journal: WrittenJournal) -> WrittenJournal:
    """Ten messages of which three have gone before the beginning was folded away, and one after; then two more."""
    journal.start(1)
    orders, scrap = journal.declare("orders"), journal.declare("scrap")
    journal.enqueue(scrap, amqp("scrap"))
    ids = journal.enqueue(orders, *[amqp(str(number)) for number in range(10)])
    journal.dequeue(orders, ids[:3])
    journal.write(ev.QueueDeleted(scrap))
    journal.roll()
    journal.dequeue(orders, ids[3:4])
    journal.enqueue(orders, amqp("10"), amqp("11"))
    journal.write_status()
    journal.fold_away()
    return journal


def test_events_begin_with_what_was_there_when_the_beginning_was_folded_away(folded: WrittenJournal) -> None:
    rows = read_rows(folded.data_dir, event="enqueued,dequeued")
    kept = [row for row in rows if row["from_snapshot"]]
    assert bodies(kept) == [str(number) for number in range(3, 10)]
    assert {(row["written_at"], row["enqueued_at"]) for row in kept} == {(None, None)}
    since = [row for row in rows if not row["from_snapshot"]]
    assert [(row["event"], row["body_text"]) for row in since] == [
        ("dequeued", None), ("enqueued", "10"), ("enqueued", "11"),
    ]  # fmt: skip
    assert {row["complete_from"] for row in rows} == {since[0]["lsn"]}
    assert {row["generation"] for row in rows} == {1}


def test_events_of_a_whole_journal_are_complete_from_the_first(journal: WrittenJournal) -> None:
    journal.declare("orders")
    assert [row["complete_from"] for row in read_rows(journal.data_dir, "complete_from")] == [1]


def test_the_state_is_what_is_there_now(folded: WrittenJournal) -> None:
    rows = read_rows(folded.data_dir, view="state")
    messages = [row for row in rows if row["event"] == "enqueued"]
    assert bodies(messages) == [str(number) for number in range(4, 12)]
    assert [row["queue"] for row in rows if row["event"] == "queue_declared"] == ["orders"]
    assert [row["enqueued_at"] is None for row in messages] == [True] * 6 + [False] * 2
    assert bodies(read_rows(folded.data_dir, view="state", event="enqueued", queue="orders")) == bodies(messages)
    assert not read_rows(folded.data_dir, view="state", event="enqueued", queue="scrap")


def test_a_queue_that_was_emptied_has_what_came_since(journal: WrittenJournal) -> None:
    orders = journal.declare("orders")
    journal.enqueue(orders, amqp("before"))
    journal.write(ev.ReplicationChanged(orders, False))
    journal.write(ev.ReplicationChanged(orders, True))
    journal.enqueue(orders, amqp("since"))
    journal.write_status()
    assert bodies(read_rows(journal.data_dir, view="state", event="enqueued")) == ["since"]


def test_a_state_of_a_damaged_store_is_not_guessed(folded: WrittenJournal) -> None:
    begin, _ = blocks_of(folded, 2)[0]
    spoil(folded.segment(2), begin + 90)
    with pytest.raises(PipelineError, match=f"{folded.segment(2)}, offset {begin}: "):
        read_rows(folded.data_dir, view="state")
    rows = read_rows(folded.data_dir, view="state", mode="permissive")
    assert [(row["file"], row["offset"]) for row in rows] == [(str(folded.segment(2)), begin)]


# --- replicas


def forked(directory: Path) -> list[WrittenJournal]:
    """Alpha led alone at the end, and confirmed messages that beta, which was promoted by force, has never had."""
    alpha, beta = replicas(directory, "alpha", "beta")
    all_write([alpha, beta], "both")
    alpha.write(ev.InSyncChanged(2, ("alpha",)))
    all_write([alpha], "lost 1", "lost 2")
    beta.start(2, "beta", "forced")
    beta.write(ev.InSyncChanged(3, ("beta",)))
    all_write([beta], "after")
    end([alpha], 2, ["alpha"])
    end([beta], 3, ["beta"])
    return [alpha, beta]


def test_a_branch_that_was_discarded_counts_only_where_it_is_asked_for(tmp_path: Path) -> None:
    forked(tmp_path)
    assert bodies(read_rows(tmp_path / "*", event="enqueued")) == ["both", "after"]
    assert bodies(read_rows(tmp_path / "*", event="enqueued", view="state")) == ["both", "after"]
    lost = read_rows(tmp_path / "*", event="enqueued", replicas="discarded")
    assert bodies(lost) == ["lost 1", "lost 2"]
    assert {(row["broker"], row["discarded"]) for row in lost} == {("alpha", True)}
    everything = read_rows(tmp_path / "*", event="enqueued", replicas="all")
    assert sorted((row["body_text"], row["discarded"]) for row in everything) == [
        ("after", False), ("both", False), ("both", False), ("lost 1", True), ("lost 2", True),
    ]  # fmt: skip
    held = read_rows(tmp_path / "*", event="enqueued", view="state", replicas="discarded")
    assert bodies(held) == ["lost 1", "lost 2"]


@pytest.mark.parametrize("place", [0, 20, 70, 300])
def test_reading_goes_on_in_another_copy_where_one_is_damaged(tmp_path: Path, place: int) -> None:
    stores = replicas(tmp_path, "alpha", "beta")
    for turn in range(20):
        all_write(stores, *[f"{turn} {number}" for number in range(5)])
    end(stores)
    expected = bodies(read_rows(tmp_path / "alpha", event="enqueued"))
    for store, block in zip(stores, (7, 12), strict=True):
        begin, _ = blocks_of(store, 1)[block]
        spoil(store.segment(1), begin + place)
    rows = read_rows(tmp_path / "*", event="enqueued")
    assert sorted(bodies(rows), key=str) == sorted(expected, key=str)
    told = read_rows(tmp_path / "*", mode="permissive")
    assert sorted(bodies([row for row in told if row["event"] == "enqueued"]), key=str) == sorted(expected, key=str)
    assert {row["file"] for row in told if row["damage"]} >= {str(stores[0].segment(1))}


def test_what_no_copy_has_whole_is_an_error(tmp_path: Path) -> None:
    stores = replicas(tmp_path, "alpha", "beta")
    for turn in range(10):
        all_write(stores, str(turn))
    end(stores)
    for store in stores:
        begin, _ = blocks_of(store, 1)[7]
        spoil(store.segment(1), begin + 70)
    with pytest.raises(PipelineError, match=r"offset \d+: expected CRC-32"):
        read_rows(tmp_path / "*", event="enqueued")


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_segment_that_is_missing_in_one_copy_is_read_in_another(tmp_path: Path, missing: int) -> None:
    stores = replicas(tmp_path, "alpha", "beta")
    for turn in range(3):
        all_write(stores, str(turn))
        for store in stores:
            store.roll()
    end(stores)
    stores[0].segment(missing).unlink()
    assert bodies(read_rows(tmp_path / "*", event="enqueued")) == ["0", "1", "2"]
    with pytest.raises(PipelineError, match="missing"):
        read_rows(tmp_path / "alpha", event="enqueued")


def test_a_log_is_read_from_where_a_store_still_has_it(tmp_path: Path) -> None:
    """The leading store was folded; the other one was not, and tells of what had gone by then."""
    stores = replicas(tmp_path, "alpha", "beta")
    ids = all_write(stores, "gone", "here")
    for store in stores:
        store.dequeue(ORDERS, ids[:1])
        store.roll()
    all_write(stores, "since")
    all_write(stores[:1], "only alpha")
    end(stores)
    stores[0].fold_away()
    rows = sorted(read_rows(tmp_path / "*", event="enqueued"), key=lambda row: int(row["lsn"]))
    assert bodies(rows) == ["gone", "here", "since", "only alpha"]
    assert [row["broker"] for row in rows] == ["beta", "beta", "alpha", "alpha"]
    assert {row["complete_from"] for row in rows} == {1}
    assert not any(row["from_snapshot"] for row in rows)


def test_a_copy_of_a_store_adds_no_rows(tmp_path: Path) -> None:
    (store,) = replicas(tmp_path, "alpha")
    all_write([store], "once")
    end([store])
    shutil.copytree(store.data_dir, tmp_path / "copy")
    assert bodies(read_rows(tmp_path / "*", event="enqueued")) == ["once"]
