"""Stories about streams of journals: each committed event once, whatever the broker does meanwhile."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from journal_query import Query
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.files import Disk, LocalDisk
from qpid_ha_broker.store.reading import BlockReader, open_blocks
from qpid_ha_pipeline.errors import PipelineError, reason_of
from written_journal import CLUSTER, WrittenJournal, write_snapshot


def messages(journal: WrittenJournal, count: int, *, committed: bool = True) -> list[int]:
    """So many, in one turn."""
    return journal.write(*(ev.Enqueued((1,), b"x" * 100, True, 4, 0, "") for _ in range(count)), committed=committed)


def test_what_is_written_meanwhile_comes_with_the_next_batch(journal: WrittenJournal) -> None:
    journal.declare("orders")
    query = Query(journal.data_dir)
    assert query.batch() == [1]
    assert query.batch() == []
    messages(journal, 3)
    journal.roll()
    messages(journal, 2)
    assert query.batch() == [2, 3, 4, 5, 6]
    assert query.batch() == []


@pytest.mark.parametrize("idle_batches", [1, 2])
def test_a_broker_that_was_idle_between_two_batches_writes_over_its_mark(
    journal: WrittenJournal, idle_batches: int
) -> None:
    """A stream must not go on behind the mark: what is written next begins where the mark did."""
    journal.declare("orders")
    query = Query(journal.data_dir)
    assert query.batch() == [1]
    messages(journal, 1)
    journal.journal.mark()
    assert [query.batch() for _batch in range(idle_batches)] == [[2], []][:idle_batches]
    messages(journal, 2)
    assert query.batch() == [3, 4]


def test_offsets_are_positions(journal: WrittenJournal) -> None:
    journal.start(1)
    journal.declare("orders")
    query = Query(journal.data_dir)
    query.batch()
    (place,) = query.offset.values()
    assert (place["generation"], place["lsn"]) == (1, 2)
    assert list(query.offset) == [f"{CLUSTER}/alpha/default"]


def test_a_store_without_events_yet_is_waited_for(tmp_path: Path) -> None:
    journal = WrittenJournal(tmp_path)
    query = Query(tmp_path)
    assert query.batch() == []
    journal.declare("orders")
    assert query.batch() == [1]


def test_a_store_that_was_moved_is_read_on_where_it_was(tmp_path: Path) -> None:
    journal = WrittenJournal(tmp_path / "old" / "alpha")
    messages(journal, 2)
    query = Query(tmp_path / "*" / "alpha")
    assert query.batch() == [1, 2]
    messages(journal, 1)
    (tmp_path / "old").rename(tmp_path / "new")
    query.restart()
    assert query.batch() == [3]


def test_a_checkpoint_of_an_older_release_names_stores_by_their_paths(journal: WrittenJournal) -> None:
    messages(journal, 2)
    query = Query(journal.data_dir)
    query.batch()
    query.offset = {str(journal.directory): place for place in query.offset.values()}
    messages(journal, 1)
    assert query.batch() == [3]
    assert query.batch() == []


def test_a_store_that_vanishes_is_a_loss_and_goes_on_where_it_was_when_it_returns(tmp_path: Path) -> None:
    alpha, beta = (WrittenJournal(tmp_path / name, name) for name in ("alpha", "beta"))
    messages(alpha, 2)
    query = Query(tmp_path / "*a", failOnDataLoss="false")
    assert query.batch() == [1, 2]
    alpha.data_dir.rename(tmp_path / "away")
    with pytest.raises(PipelineError, match=f"{CLUSTER}/alpha/default: read before, and not among the stores"):
        Query(tmp_path / "*a", query.offset).batch()
    messages(beta, 1)
    assert query.batch() == [1]
    (tmp_path / "away").rename(alpha.data_dir)
    messages(alpha, 1)
    assert query.batch() == [3]


def test_two_copies_of_one_store_are_refused(tmp_path: Path) -> None:
    journal = WrittenJournal(tmp_path / "alpha")
    messages(journal, 1)
    shutil.copytree(journal.data_dir, tmp_path / "copy")
    with pytest.raises(PipelineError, match=f"are copies of one store, {CLUSTER}/alpha/default: name one"):
        Query(tmp_path / "*")


def test_what_is_not_committed_waits_and_what_is_taken_back_never_comes(journal: WrittenJournal) -> None:
    journal.declare("orders")
    messages(journal, 2, committed=False)
    query, everything = Query(journal.data_dir), Query(journal.data_dir, isolation="all")
    assert query.batch() == [1]
    assert everything.batch() == [1, 2, 3]
    journal.take_back(2)
    assert query.batch() == []
    messages(journal, 1)
    assert query.batch() == [2, 3]


def test_a_batch_is_as_large_as_it_may_be(journal: WrittenJournal) -> None:
    for _ in range(20):
        messages(journal, 5)
    query = Query(journal.data_dir, maxRowsPerTrigger="25")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(25)
    assert len(query.batch(query.reader.getDefaultReadLimit())) == 25
    assert len(query.batch(ReadMaxRows(1))) == 5  # a block, which is the least there is
    assert len(query.batch(ReadMaxBytes(2500))) == 15
    assert len(query.batch()) == 55


def test_what_was_looked_at_once_is_not_looked_at_again_in_each_batch(
    journal: WrittenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        messages(journal, 5)
        journal.roll()
    messages(journal, 5)
    looked: list[int] = []

    def noted(disk: Disk, path: str, header: FileHeader, **options: Any) -> AbstractContextManager[BlockReader]:
        looked.append(header.number)
        return open_blocks(disk, path, header, **options)

    monkeypatch.setattr("qpid_ha_pipeline.journal.survey.open_blocks", noted)
    query = Query(journal.data_dir)
    query.batch(ReadMaxRows(5))
    looked.clear()
    assert query.batch(ReadMaxRows(5)) == [6, 7, 8, 9, 10]
    assert len(looked) < 12


def test_a_limit_is_shared_among_stores_as_they_need_it(tmp_path: Path) -> None:
    for broker, turns in (("alpha", 30), ("beta", 10)):
        journal = WrittenJournal(tmp_path / broker, broker)
        for _ in range(turns):
            messages(journal, 1)
    query = Query(tmp_path / "*")
    lengths = []
    while found := query.batch(ReadMaxRows(12)):
        lengths.append(len(found))
    assert sum(lengths) == 40
    assert lengths[:2] == [12, 12]


def test_the_same_batch_can_be_read_again_later(journal: WrittenJournal) -> None:
    messages(journal, 5)
    query = Query(journal.data_dir)
    start = query.offset
    first = query.batch()
    end = query.offset
    messages(journal, 5)
    journal.roll()
    query.restart()
    assert list(query.read(start, end)) == first


def test_available_now_ends_with_what_was_there_when_it_began(journal: WrittenJournal) -> None:
    messages(journal, 5)
    query = Query(journal.data_dir)
    query.reader.prepareForTriggerAvailableNow()
    journal.roll()
    messages(journal, 5)
    assert query.batch() == [1, 2, 3, 4, 5]
    assert query.batch() == []


def test_available_now_begins_where_history_does_though_that_copy_does_not_know_that_it_was_committed(
    tmp_path: Path,
) -> None:
    """Another one does. The other one has folded the events before."""
    alpha, beta = WrittenJournal(tmp_path / "alpha"), WrittenJournal(tmp_path / "beta", "beta")
    for journal in (alpha, beta):
        journal.start(1, "alpha")
        messages(journal, 1)
        messages(journal, 1, committed=False)
    beta.roll()
    write_snapshot(beta, 2, (2, "orders"))
    beta.write_status()
    last = messages(beta, 2)[-1]
    query = Query(tmp_path / "*")
    query.reader.prepareForTriggerAvailableNow()
    assert [*query.batch(), *query.batch(), *query.batch()] == list(range(1, last + 1))


def test_progress_says_how_far_the_journals_go(journal: WrittenJournal) -> None:
    messages(journal, 5)
    query = Query(journal.data_dir)
    journal.roll()
    found = query.reader.reportLatestOffset()
    assert found is not None
    assert [place["lsn"] for place in found.values()] == [5]


@pytest.mark.parametrize("lsn", [0, 1, 3, 4, 6, 9])
def test_a_stream_can_begin_at_a_position(journal: WrittenJournal, lsn: int) -> None:
    journal.start(1)
    messages(journal, 4)
    journal.roll()
    messages(journal, 4)
    start = json.dumps({"alpha": {"generation": 1, "lsn": lsn}})
    query = Query(journal.data_dir, startingOffsets=start)
    assert query.batch() == list(range(lsn + 1, 10))
    messages(journal, 1)
    assert query.batch() == [10]


def test_a_stream_can_begin_with_what_is_yet_to_come(journal: WrittenJournal) -> None:
    messages(journal, 4)
    query = Query(journal.data_dir, startingOffsets="latest")
    assert query.batch() == []
    messages(journal, 1)
    assert query.batch() == [5]


@pytest.mark.parametrize("given", ["soon", "[1]", '{"alpha": 1}', '{"alpha": {"lsn": -1}}', '{"gamma": {"lsn": 1}}'])
def test_a_start_that_makes_no_sense_is_refused(journal: WrittenJournal, given: str) -> None:
    messages(journal, 1)
    with pytest.raises(PipelineError, match="startingOffsets"):
        Query(journal.data_dir, startingOffsets=given)


def test_events_that_are_gone_are_an_error_unless_that_is_allowed(journal: WrittenJournal) -> None:
    messages(journal, 4)
    query, tolerant = Query(journal.data_dir), Query(journal.data_dir, failOnDataLoss="false")
    query.batch()
    tolerant.batch()
    messages(journal, 2)
    journal.roll()
    write_snapshot(journal, 2, (1, "orders"))
    messages(journal, 1)
    with pytest.raises(PipelineError, match=r"after LSN 4 were in segment 1.*kept begins after LSN 6.*failOnDataLoss"):
        query.batch()
    assert tolerant.batch() == [7]


def test_a_store_that_was_emptied_is_a_loss_too(journal: WrittenJournal) -> None:
    messages(journal, 4)
    query = Query(journal.data_dir)
    query.batch()
    journal.journal.close()
    journal.segment(1).unlink()
    with pytest.raises(PipelineError, match="the journal is empty"):
        query.batch()
    messages(WrittenJournal(journal.data_dir, now_ms=journal.now_ms + 1), 1)
    with pytest.raises(PipelineError, match="the store was made anew"):
        query.batch()


def test_a_half_written_block_is_not_taken_for_a_whole_one(journal: WrittenJournal) -> None:
    messages(journal, 1)
    before = journal.journal.position
    messages(journal, 3)
    whole = journal.segment(1).read_bytes()
    file = LocalDisk(journal.directory).open("journal/" + journal.segment(1).name, writable=True)
    file.write(before + 100, bytes(50))  # as if the disk had got only part of it yet
    query = Query(journal.data_dir, isolation="all")
    assert query.batch() == [1]
    file.write(before, whole[before : before + 500])
    file.close()
    assert query.batch() == [2, 3, 4]


def test_a_stream_in_spark_goes_on_where_its_checkpoint_says(
    spark: SparkSession, journal: WrittenJournal, tmp_path: Path
) -> None:
    def run() -> None:
        source = spark.readStream.format("qpid-journal").option("columns", "lsn,event").option("maxRowsPerTrigger", "4")
        table = source.load(str(journal.data_dir)).where("event = 'enqueued'")
        sink = table.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = sink.trigger(availableNow=True).start(str(tmp_path / "out"))
        assert query.awaitTermination(120)

    journal.declare("orders")
    messages(journal, 3)
    messages(journal, 3)
    run()
    journal.roll()
    messages(journal, 3)
    run()
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("lsn").collect()
    assert [row.lsn for row in rows] == list(range(2, 11))


def test_a_stream_in_spark_ends_with_the_reason_when_events_are_gone(
    spark: SparkSession, journal: WrittenJournal, tmp_path: Path
) -> None:
    def start() -> StreamingQuery:
        table = spark.readStream.format("qpid-journal").option("columns", "lsn").load(str(journal.data_dir))
        sink = table.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return sink.trigger(availableNow=True).start()

    messages(journal, 3)
    start().awaitTermination(120)
    messages(journal, 1)
    journal.roll()
    write_snapshot(journal, 2)
    with pytest.raises(StreamingQueryException) as caught:
        start().awaitTermination(120)
    reason = reason_of(caught.value)
    assert reason is not None
    assert "to go on with what is left, set failOnDataLoss=false" in reason
