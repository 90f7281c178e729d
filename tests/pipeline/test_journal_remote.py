"""Stories about stores that are not on this machine's own filesystem."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from journal_rows import read_rows
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.jobs.consolidate import snapshots
from qpid_ha_pipeline.jobs.stores import facts
from qpid_ha_pipeline.journal.remote import RemoteDisk, is_remote, joined
from qpid_ha_pipeline.journal_stream import JournalStreamReader
from qpid_ha_pipeline.main import main
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import schema_of
from written_journal import WrittenJournal, amqp, blocks_of, spoil

PLAIN = ("broker", "generation", "lsn", "event", "queue", "body_text", "offset")


@pytest.fixture
def filled(journal: WrittenJournal) -> WrittenJournal:
    """Two segments of twenty turns each, and an open one."""
    journal.start(1)
    queue = journal.declare("orders")
    for _ in range(2):
        for turn in range(20):
            ids = journal.enqueue(queue, *[amqp(f"turn {turn} " + "x" * 1000)] * 5)
            journal.dequeue(queue, ids[:2])
        journal.roll()
    journal.enqueue(queue, amqp("the last one"))
    journal.write_status()
    return journal


@pytest.fixture
def bucket() -> Iterator[str]:
    """A directory of a filesystem that only this process has."""
    system = fsspec.filesystem("memory")
    yield "memory://fleet"
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def upload(journal: WrittenJournal, url: str) -> None:
    """As a backup of the data directory."""
    system, root = fsspec.core.url_to_fs(url)
    for path in journal.data_dir.rglob("*"):
        if path.is_file():
            system.pipe_file(f"{root}/{path.relative_to(journal.data_dir)}", path.read_bytes())


# --- what it reads


def test_rows_are_the_same_wherever_the_store_lies(filled: WrittenJournal, bucket: str) -> None:
    upload(filled, f"{bucket}/alpha")
    here = read_rows(filled.data_dir, *PLAIN)
    assert len(here) == 2 * 20 * 7 + 3
    for path in (f"{bucket}/alpha", f"{bucket}/alpha/default", f"{bucket}/*"):
        assert read_rows(path, *PLAIN) == here
    assert read_rows(f"{bucket}/alpha", *PLAIN, partitionBytes="65536") == here
    assert read_rows(filled.data_dir.as_uri(), *PLAIN) == here


def test_rows_say_where_they_were_read(filled: WrittenJournal, bucket: str) -> None:
    upload(filled, f"{bucket}/alpha")
    assert read_rows(f"{bucket}/alpha", "file")[0]["file"] == f"{bucket}/alpha/default/journal/{1:020d}.log"


def test_a_stream_sees_what_was_uploaded_meanwhile(journal: WrittenJournal, bucket: str) -> None:
    journal.declare("orders")
    upload(journal, f"{bucket}/alpha")
    options = JournalOptions.parse({"path": f"{bucket}/alpha", "columns": "lsn"})
    reader = JournalStreamReader(options, schema_of(options.columns))
    seen: list[int] = []
    begin = reader.initialOffset()
    for _ in range(3):
        end = reader.latestOffset(begin, ReadAllAvailable())
        for part in reader.partitions(begin, end):
            seen += [lsn for batch in reader.read(part) for lsn in batch.column("lsn").to_pylist()]
        begin = end
        journal.enqueue(1, b"more", b"and more")
        journal.roll()
        upload(journal, f"{bucket}/alpha")
    assert seen == [1, 2, 3, 4, 5]


def test_damage_there_is_told_as_it_is_here(filled: WrittenJournal, bucket: str) -> None:
    begin, _ = blocks_of(filled, 1)[7]
    spoil(filled.segment(1), begin + 100)
    upload(filled, f"{bucket}/alpha")
    with pytest.raises(PipelineError, match=rf"^qpid-ha: memory://fleet/alpha/default/journal/.*, offset {begin}: "):
        read_rows(f"{bucket}/alpha", "lsn")
    damages = [row["damage"] for row in read_rows(f"{bucket}/alpha", mode="permissive") if row["damage"]]
    assert damages == [row["damage"] for row in read_rows(filled.data_dir, mode="permissive") if row["damage"]]


# --- what it refuses


def test_what_cannot_be_reached_is_told_with_the_reason(
    filled: WrittenJournal, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, text in (
        (f"{bucket}/absent", "memory://fleet/absent: there is no such directory there"),
        (f"{bucket}/absent*", "no directory matches"),
        ("nope://x", "nope://x: cannot be reached: Protocol not known: nope"),
    ):
        with pytest.raises(PipelineError, match=text.replace("*", r"\*")):
            read_rows(path, "lsn")
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(PipelineError, match=r"memory://x: reading it takes fsspec: pip install 'qpid-ha\[remote\]'"):
        read_rows("memory://x", "lsn")


def test_an_error_of_the_filesystem_itself_names_the_file(
    filled: WrittenJournal, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Denied(RuntimeError):
        """As object stores have them."""

    def denied(*_words: object, **_named: object) -> bytes:
        raise Denied("AccessDenied")

    upload(filled, f"{bucket}/alpha")
    monkeypatch.setattr(fsspec.filesystem("memory"), "cat_file", denied)
    with pytest.raises(PipelineError, match=r"memory://fleet/alpha/default: .*STATUS cannot be read: AccessDenied"):
        read_rows(f"{bucket}/alpha", "lsn")


def test_a_store_there_is_never_written_to(bucket: str) -> None:
    disk = RemoteDisk(bucket)
    for write in (
        lambda: disk.create("x"), lambda: disk.replace("x", b""), lambda: disk.remove("x"),
        lambda: disk.rename("x", "y"), lambda: disk.make_directory("x"), lambda: disk.open("x", writable=True),
    ):  # fmt: skip
        with pytest.raises(PermissionError, match="only read"):
            write()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/a", "s3://bucket/a/default"),
        ("simplecache::s3://bucket/a/", "simplecache::s3://bucket/a/default"),
        ("zip://inner::s3://bucket/a.zip", "zip://inner/default::s3://bucket/a.zip"),
        ("/plain/a::b", "/plain/a::b/default"),
    ],
)
def test_what_lies_below_a_url(url: str, expected: str) -> None:
    assert joined(url, "default") == expected
    assert is_remote(url) == (url != "/plain/a::b")


# --- on executors: what lies in memory they do not see


def test_executors_read_through_fsspec_too(spark: SparkSession, filled: WrittenJournal) -> None:
    source = spark.read.format("qpid-journal").option("columns", "lsn")
    url = f"simplecache::dir://{filled.data_dir.name}::file://{filled.data_dir.parent}"
    assert source.load(url).count() == 2 * 20 * 7 + 3


def test_jobs_take_urls_and_put_snapshots_there(spark: SparkSession, filled: WrittenJournal, tmp_path: Path) -> None:
    url = f"local://{filled.data_dir}"
    (plain,) = snapshots(spark, [str(filled.data_dir)], str(tmp_path / "plain"))
    result = CliRunner().invoke(
        main, ["consolidate", url, "--what", "snapshots", "--output", f"local://{tmp_path}/far", "--format", "json"]
    )
    assert result.exit_code == 0, result.output
    (far,) = json.loads(result.stdout)["snapshots"]
    assert far["snapshot"] == f"local://{tmp_path}/far/stores/alpha/default/snapshots/{3:020d}.snap"
    assert Path(far["snapshot"].removeprefix("local://")).read_bytes() == Path(plain.snapshot).read_bytes()
    (told,), (expected,) = (facts(spark, [path])["default"] for path in (url, str(filled.data_dir)))
    assert told == replace(expected, where=url)
