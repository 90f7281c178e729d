"""Stories about journals that are not as they were written, and about slips in what is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal_rows import read_rows
from qpid_ha_broker.store.blocks import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    decode_header,
    encode_header,
)
from qpid_ha_broker.store.journal import Journal
from qpid_ha_pipeline.errors import PipelineError, reason_of
from qpid_ha_pipeline.journal_source import JournalTableReader
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import schema_of
from written_journal import WrittenJournal, blocks_of, spoil


@pytest.fixture
def filled(journal: WrittenJournal) -> WrittenJournal:
    """Twenty turns of ten messages in the first segment, one in the second."""
    queue = journal.declare("orders")
    for _ in range(20):
        journal.enqueue(queue, *[b"0123456789" * 10] * 10)
    journal.roll()
    journal.enqueue(queue, b"the last one")
    return journal


@pytest.mark.parametrize("place", [0, 20, 70, 900])
def test_damage_in_the_middle_is_an_error_with_file_and_offset(filled: WrittenJournal, place: int) -> None:
    begin, _ = blocks_of(filled, 1)[7]
    spoil(filled.segment(1), begin + place)
    with pytest.raises(PipelineError) as caught:
        read_rows(filled.data_dir, "lsn")
    assert caught.value.reason.startswith(f"{filled.segment(1)}, offset {begin}: ")
    assert "mode=permissive" in caught.value.reason


BLOCK = range(62, 72)
"""LSNs of the eighth block of the first segment: ten records of the same size."""


@pytest.mark.parametrize(("place", "lost"), [(0, BLOCK), (20, BLOCK), (70, BLOCK[:1]), (900, BLOCK[5:6])])
@pytest.mark.parametrize("bytes_at_once", ["65536", "67108864"])
def test_permissive_reading_loses_a_record_or_a_block_whose_header_is_damaged(
    filled: WrittenJournal, place: int, lost: range, bytes_at_once: str
) -> None:
    begin, end = blocks_of(filled, 1)[7]
    spoil(filled.segment(1), begin + place)
    rows = read_rows(filled.data_dir, mode="permissive", partitionBytes=bytes_at_once)
    damages = [row for row in rows if row["damage"] is not None]
    assert {row["file"] for row in damages} == {str(filled.segment(1))}
    record_bytes = (end - begin - BLOCK_HEADER_BYTES) // len(BLOCK)
    of_record = begin + BLOCK_HEADER_BYTES + (lost[0] - BLOCK[0]) * record_bytes
    assert {row["offset"] for row in damages} == {begin if lost == BLOCK else of_record}
    lsns = [row["lsn"] for row in rows if row["damage"] is None]
    assert sorted({*lsns, *lost}) == list(range(1, filled.lsn + 1))
    assert len(lsns) == filled.lsn - len(lost)


def test_who_leaves_checksums_out_reads_what_is_there(filled: WrittenJournal) -> None:
    begin, _ = blocks_of(filled, 1)[7]
    spoil(filled.segment(1), begin + 200)  # in the first message's payload
    rows = read_rows(filled.data_dir, "lsn", checksums="false")
    assert [row["lsn"] for row in rows] == list(range(1, filled.lsn + 1))
    spoil(filled.segment(1), begin + 64)  # the first record's size
    with pytest.raises(PipelineError, match=f"offset {begin + 64}: "):
        read_rows(filled.data_dir, "lsn", checksums="false")


def test_a_segment_that_is_written_over_while_it_is_read_is_no_damage(filled: WrittenJournal) -> None:
    options = JournalOptions.parse({"path": str(filled.data_dir), "columns": "lsn"})
    reader = JournalTableReader(options, schema_of(options.columns))
    part = reader.partitions()[0]
    stranger = WrittenJournal(filled.data_dir / "next", number=9)
    spoil(filled.segment(1), 0, stranger.segment(9).read_bytes())
    with pytest.raises(PipelineError, match="has folded it into a snapshot"):
        list(reader.read(part))


def test_a_torn_end_is_no_damage(filled: WrittenJournal) -> None:
    queue = 1
    filled.enqueue(queue, b"cut short")
    begin, end = blocks_of(filled, 2)[-1]
    spoil(filled.segment(2), end - 3)
    assert max(row["lsn"] for row in read_rows(filled.data_dir, "lsn")) == filled.lsn - 1
    assert begin > FILE_HEADER_BYTES


def test_a_torn_end_that_something_later_vouches_for_is_damage(filled: WrittenJournal) -> None:
    filled.enqueue(1, b"was synced")
    filled.journal.mark()
    begin, end = blocks_of(filled, 2)[-2]
    spoil(filled.segment(2), end - 4)
    with pytest.raises(PipelineError, match=f"offset {begin}"):
        read_rows(filled.data_dir, "lsn")


def test_a_segment_that_ends_too_early_is_damage(filled: WrittenJournal) -> None:
    begin, _ = blocks_of(filled, 1)[10]
    with filled.segment(1).open("r+b") as file:
        file.truncate(begin)
    with pytest.raises(PipelineError, match=f"offset {begin}.*the next segment says"):
        read_rows(filled.data_dir, "lsn")


@pytest.mark.parametrize("place", [-1, 0, 30, 70])
def test_a_last_segment_that_was_cut_off_is_no_torn_end(filled: WrittenJournal, place: int) -> None:
    filled.enqueue(1, b"confirmed, and cut off")
    begin, _ = blocks_of(filled, 2)[-1]
    with filled.segment(2).open("r+b") as file:
        file.truncate(begin + place)
    with pytest.raises(PipelineError, match="the file was cut off"):
        read_rows(filled.data_dir, "lsn")
    rows = read_rows(filled.data_dir, mode="permissive")
    assert {row["file"] for row in rows if row["damage"]} == {str(filled.segment(2))}


@pytest.mark.parametrize("number", [1, 2])
def test_a_journal_without_its_beginning_or_its_end_is_not_read_as_if_it_were_whole(
    filled: WrittenJournal, number: int
) -> None:
    filled.write_status(journal_synced=filled.journal.durable_end)
    assert read_rows(filled.data_dir, "lsn")
    filled.segment(number).unlink()
    with pytest.raises(PipelineError, match="missing"):
        read_rows(filled.data_dir, "lsn")
    rows = read_rows(filled.data_dir, mode="permissive")
    assert [row["file"] for row in rows if row["damage"]] == [str(filled.segment(number))]


def test_a_journal_without_its_status_is_not_read_as_if_it_were_whole(filled: WrittenJournal) -> None:
    (filled.directory / "STATUS").unlink()
    with pytest.raises(PipelineError, match=r"STATUS, offset 0: missing"):
        read_rows(filled.data_dir, "lsn")


def test_a_segment_of_another_store_of_the_same_cluster_is_refused(filled: WrittenJournal) -> None:
    path = filled.segment(2)
    data = path.read_bytes()
    header = decode_header(data)._replace(store="another store")
    path.write_bytes(encode_header(header) + data[FILE_HEADER_BYTES:])
    filled.write_status(store="this store")
    with pytest.raises(PipelineError, match=r"belongs to the store another.*mixed two stores"):
        read_rows(filled.data_dir, "lsn")


def test_a_segment_that_was_closed_since_it_was_looked_at_is_no_damage(filled: WrittenJournal) -> None:
    """Its broker restarted: the torn end is gone, and the room that the segment did not need."""
    filled.enqueue(1, b"torn")
    begin, end = blocks_of(filled, 2)[-1]
    spoil(filled.segment(2), end - 3)
    options = JournalOptions.parse({"path": str(filled.data_dir), "columns": "lsn"})
    reader = JournalTableReader(options, schema_of(options.columns))
    parts = reader.partitions()
    Journal.begin(
        filled.disk, filled.identity, 3, generation=1, first_lsn=filled.lsn, first_local_lsn=filled.local_lsn + 1,
        previous_bytes=begin, clock=lambda: 0, segment_bytes=1 << 20,
    )  # fmt: skip
    with filled.segment(2).open("r+b") as file:
        file.truncate(begin)
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == filled.lsn - 1


def test_a_segment_of_a_newer_format_says_what_to_do(filled: WrittenJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpid_ha_broker.store.blocks.FORMAT_VERSION", FORMAT_VERSION + 1)
    filled.roll()
    monkeypatch.undo()
    for mode in ("strict", "permissive"):
        with pytest.raises(PipelineError, match="upgrade this one"):
            read_rows(filled.data_dir, "lsn", mode=mode)


def test_a_segment_of_another_cluster_is_refused(filled: WrittenJournal, tmp_path: Path) -> None:
    WrittenJournal(tmp_path / "stranger", cluster="another", number=3).declare("orders")
    stranger = tmp_path / "stranger" / "default" / "journal" / f"{3:020d}.log"
    stranger.rename(filled.segment(3))
    with pytest.raises(PipelineError, match=r"belongs to the cluster another.*mixed two stores"):
        read_rows(filled.data_dir, "lsn")


def test_stores_of_two_clusters_are_read_together_only_if_that_is_meant(tmp_path: Path) -> None:
    for cluster in ("one", "two"):
        WrittenJournal(tmp_path / cluster, cluster=cluster).declare("orders")
    with pytest.raises(PipelineError, match="severalClusters=true"):
        read_rows(tmp_path / "*", "cluster")
    rows = read_rows(tmp_path / "*", "cluster", severalClusters="true")
    assert [row["cluster"] for row in rows] == ["one", "two"]


def test_a_store_that_holds_nothing_yet_is_no_error_but_an_empty_directory_is(tmp_path: Path) -> None:
    WrittenJournal(tmp_path / "new")
    assert read_rows(tmp_path / "new", "lsn") == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="no broker has this as its data-dir"):
        read_rows(tmp_path / "empty", "lsn")
    with pytest.raises(PipelineError, match="no such directory"):
        read_rows(tmp_path / "absent", "lsn")
    with pytest.raises(PipelineError, match="no directory matches"):
        read_rows(tmp_path / "absent*", "lsn")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mod": "strict"}, "did you mean mode"),
        ({"mode": "lax"}, "mode: expected strict or permissive, found 'lax'"),
        ({"columns": "lsn, queu"}, "did you mean queue"),
        ({"partitionBytes": "12"}, "partitionBytes: expected a number from 65536 up"),
        ({"maxRowsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "give one"),
        ({"failOnDataLoss": "maybe"}, "expected true or false"),
        ({"event": "enqueue"}, "did you mean enqueued"),
        ({"fromLsn": "first"}, "fromLsn: expected a whole number"),
        ({"paths": "not json"}, "paths: expected a JSON list"),
    ],
)
def test_a_slip_in_an_option_is_told(journal: WrittenJournal, options: dict[str, str], text: str) -> None:
    from qpid_ha_pipeline.journal_source import JournalDataSource

    with pytest.raises(PipelineError, match=text):
        JournalDataSource({"path": str(journal.data_dir), **options}).schema()


def test_the_reason_is_found_in_what_spark_makes_of_an_error() -> None:
    error = RuntimeError("Job aborted\nTraceback ...\nPipelineError: qpid-ha: a/b.log, offset 7: bad\n\tat org.apache")
    assert reason_of(error) == "a/b.log, offset 7: bad"
    assert reason_of(PipelineError("plain")) == "plain"
    assert reason_of(ValueError("of somebody else")) is None
