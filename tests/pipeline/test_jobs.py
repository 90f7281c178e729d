"""Stories about the jobs: what operators read out of what their brokers left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import proton
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

from qpid_ha_broker.amqp.selectors.message_reader import AmqpMessageReader
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.store.best import best
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.fold import fold
from qpid_ha_broker.store.inspection import examine
from qpid_ha_broker.store.recovery import recover
from qpid_ha_pipeline.amqp.numbering import renumbered
from qpid_ha_pipeline.jobs.audit import HISTORY_COLUMNS, Audit, audit
from qpid_ha_pipeline.jobs.consolidate import snapshots
from qpid_ha_pipeline.jobs.failover_report import NO_GENERATION, page
from qpid_ha_pipeline.jobs.failovers import timelines
from qpid_ha_pipeline.jobs.stores import verdicts
from qpid_ha_pipeline.main import main
from running_broker import RunningBroker
from written_journal import BEGAN_MS, CLUSTER, WrittenJournal, amqp, blocks_of, spoil


def journal_of(spark: SparkSession, *stores: WrittenJournal, **options: str) -> DataFrame:
    """Their rows."""
    paths = json.dumps([str(store.data_dir) for store in stores])
    return spark.read.format("qpid-journal").option("paths", paths).options(**options).load()


def run(*arguments: str) -> Result:
    """The command, in the session that the tests have."""
    return CliRunner().invoke(main, [*arguments])


# --- stores


def test_the_verdict_over_a_fleet_is_that_of_the_admin_tool(spark: SparkSession, tmp_path: Path) -> None:
    for name, messages in (("alpha", 5), ("beta", 3)):
        journal = WrittenJournal(tmp_path / name, name)
        journal.start(1, "alpha")
        journal.write(ev.InSyncChanged(1, ("alpha", "beta")))
        journal.enqueue(journal.declare("orders"), *[b"x"] * messages)
        journal.write_status(epoch=1, members=("alpha", "beta"))
    directories = [tmp_path / "alpha", tmp_path / "beta"]
    expected = best([examine(LocalDisk(each / "default"), str(each)) for each in directories])
    assert verdicts(spark, [str(each) for each in directories]) == {"default": expected}
    shown = run("stores", *map(str, directories), "--format", "json", "--output", str(tmp_path / "verdict.json"))
    assert (tmp_path / "verdict.json").read_text() == shown.stdout
    assert json.loads(shown.stdout)["verdict"] == "winner"
    assert json.loads(shown.stdout)["store"]["broker"] == "alpha"


# --- consolidate


@pytest.fixture
def old(tmp_path: Path) -> WrittenJournal:
    """Two closed segments with messages of which some are gone, and an open one."""
    journal = WrittenJournal(tmp_path / "alpha")
    journal.start(1)
    orders = journal.declare("orders")
    for turn in range(2):
        ids = journal.enqueue(orders, *[amqp(f"{turn} {number}") for number in range(50)])
        journal.dequeue(orders, ids[::3])
        journal.roll()
    journal.enqueue(orders, amqp("the last one"))
    journal.write_status()
    return journal


def test_a_consolidated_store_is_what_the_broker_itself_would_have_made(
    spark: SparkSession, old: WrittenJournal, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(old.directory, own)
    fold(LocalDisk(own), 3, old.identity)
    before = sorted(path.name for path in old.directory.rglob("*"))
    result = run("consolidate", str(old.data_dir), "--output", str(tmp_path / "out"), "--format", "json")
    assert result.exit_code == 0, result.output
    name = f"snapshots/{3:020d}.snap"
    made = tmp_path / "out" / "stores" / "alpha" / "default" / name
    assert made.read_bytes() == (own / name).read_bytes()
    assert sorted(path.name for path in old.directory.rglob("*")) == before
    shutil.copytree(made.parent, old.directory / "snapshots", dirs_exist_ok=True)
    for number in (1, 2):
        old.segment(number).unlink()
    recovered = recover(LocalDisk(old.directory), Resources(AmqpMessageReader()).sets, apply_all=True)
    assert recovered.messages == 67
    rows = spark.read.parquet(str(tmp_path / "out" / "events"))
    assert rows.count() == json.loads(result.stdout)["rows"] == 1 + 1 + 100 + 34 + 1
    assert {row.set for row in rows.select("set").distinct().collect()} == {"default"}
    assert (tmp_path / "out" / "events" / f"cluster={CLUSTER}" / "set=default" / "day=2026-09-21").is_dir()


def test_two_brokers_of_one_name_do_not_write_over_each_other(
    spark: SparkSession, old: WrittenJournal, tmp_path: Path
) -> None:
    shutil.copytree(old.data_dir, tmp_path / "copy")
    found = snapshots(spark, [str(old.data_dir), str(tmp_path / "copy")], str(tmp_path / "out"))
    assert len({each.snapshot for each in found}) == 2
    first, second = (Path(each.snapshot).read_bytes() for each in found)
    assert first == second


def test_a_damaged_store_is_told_in_one_line(spark: SparkSession, old: WrittenJournal, tmp_path: Path) -> None:
    begin, _ = blocks_of(old, 1)[3]
    spoil(old.segment(1), begin + 100)
    for job in ("rows", "snapshots"):
        result = run("consolidate", str(old.data_dir), "--output", str(tmp_path / "out"), "--what", job)
        assert result.exit_code == 3
        assert f"offset {begin}" in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert run("failovers", str(tmp_path / "absent")).stderr.count("\n") == 1


def consolidated(*arguments: str) -> dict[str, Any]:
    """What the command says of a run that succeeds."""
    result = run("consolidate", *arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def rows_in(spark: SparkSession, out: Path) -> list[tuple[int, str]]:
    """Of all runs: LSN and body."""
    table = spark.read.parquet(str(out / "events")).orderBy("lsn")
    return [(row.lsn, row.body_text) for row in table.select("lsn", "body_text").collect()]


def test_a_second_run_adds_what_is_new_and_keeps_what_the_broker_has_deleted(
    spark: SparkSession, old: WrittenJournal, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = consolidated(str(old.data_dir), "--output", str(out))
    before = rows_in(spark, out)
    assert (len(before), first["rows"]) == (137, 137)
    assert consolidated(str(old.data_dir), "--output", str(out))["rows"] == 0
    shutil.copytree(out / "stores" / "alpha" / "default" / "snapshots", old.directory / "snapshots", dirs_exist_ok=True)
    for number in (1, 2):
        old.segment(number).unlink()  # the broker has folded them
    old.roll()
    old.enqueue(2, amqp("of today"))
    assert consolidated(str(old.data_dir), "--output", str(out))["rows"] == 1
    assert rows_in(spark, out) == [*before, (old.lsn, "of today")]
    (snapshot,) = (out / "stores" / "alpha" / "default" / "snapshots").iterdir()
    assert snapshot.name == f"{4:020d}.snap"


def test_a_run_that_fails_takes_nothing_away_and_the_next_one_goes_on(
    spark: SparkSession, old: WrittenJournal, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    consolidated(str(old.data_dir), "--output", str(out))
    snapshots_before = {path: path.read_bytes() for path in out.rglob("*.snap")}
    rows_before = rows_in(spark, out)
    old.roll()
    old.enqueue(2, amqp("later"))
    segment, (begin, _) = old.segment(3), blocks_of(old, 3)[0]
    good = segment.read_bytes()
    spoil(segment, begin + 100)
    failed = run("consolidate", str(old.data_dir), "--output", str(out))
    assert failed.exit_code == 3
    assert {path: path.read_bytes() for path in out.rglob("*.snap")} == snapshots_before
    assert rows_in(spark, out) == rows_before
    segment.write_bytes(good)
    consolidated(str(old.data_dir), "--output", str(out))
    assert rows_in(spark, out) == [*rows_before, (old.lsn, "later")]


def test_a_run_that_was_killed_is_finished_by_the_next(
    spark: SparkSession, old: WrittenJournal, tmp_path: Path
) -> None:
    """Its files are there, and the log of the table does not know them: so nobody reads them, then or later."""
    out = tmp_path / "out"
    consolidated(str(old.data_dir), "--output", str(out))
    rows_before = rows_in(spark, out)
    old.enqueue(2, amqp("later"))
    consolidated(str(old.data_dir), "--output", str(out))
    for log in ("_spark_metadata", "_checkpoint/commits"):
        (out / "events" / log / "1").unlink()
        (out / "events" / log / ".1.crc").unlink()
    assert rows_in(spark, out) == rows_before
    consolidated(str(old.data_dir), "--output", str(out))
    assert rows_in(spark, out) == [*rows_before, (old.lsn, "later")]


@pytest.mark.parametrize("place", ["store", "in the store", "around the store", "by a link"])
def test_an_output_in_or_around_a_store_is_refused_and_the_store_stays(
    spark: SparkSession, old: WrittenJournal, tmp_path: Path, place: str
) -> None:
    """The job's own place for the snapshots of a broker `alpha` is OUTPUT/stores/alpha."""
    store = tmp_path / "stores" / "alpha"
    shutil.move(old.data_dir, store)
    (tmp_path / "link").symlink_to(tmp_path)
    output = {
        "store": store, "in the store": store / "default" / "out", "around the store": tmp_path,
        "by a link": tmp_path / "link",
    }[place]  # fmt: skip
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    result = run("consolidate", str(store), "--output", str(output))
    assert result.exit_code == 3
    assert "must not be in it, nor around it" in result.stderr
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_store_in_a_store_is_refused(spark: SparkSession, old: WrittenJournal, tmp_path: Path) -> None:
    inner = old.data_dir / "backup" / "beta"
    shutil.copytree(old.directory, inner / "default")
    result = run("consolidate", str(old.data_dir), str(inner), "--output", str(tmp_path / "out"))
    assert result.exit_code == 3
    assert f"{inner} lies in {old.data_dir}" in result.stderr


def test_a_store_that_is_left_out_is_an_exit_code(spark: SparkSession, old: WrittenJournal, tmp_path: Path) -> None:
    young = WrittenJournal(tmp_path / "beta", "beta")
    young.start(1, "alpha")  # an event that both have
    result = run("consolidate", str(old.data_dir), str(young.data_dir), "--output", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "there is no closed segment yet" in result.stdout
    assert len(rows_in(spark, tmp_path / "out")) == 137


def test_a_snapshot_of_another_store_is_not_replaced(spark: SparkSession, old: WrittenJournal, tmp_path: Path) -> None:
    consolidated(str(old.data_dir), "--output", str(tmp_path / "out"), "--what", "snapshots")
    (made,) = (tmp_path / "out").rglob("*.snap")
    before = made.read_bytes()
    other = WrittenJournal(tmp_path / "other", "alpha", cluster="0f8fad5b-d9cb-469f-a165-70867728950e")
    other.start(1)
    for number in range(4):
        other.declare(f"orders{number}")
        other.roll()
    other.declare("last")
    result = run("consolidate", str(other.data_dir), "--output", str(tmp_path / "out"), "--what", "snapshots")
    assert result.exit_code == 1, result.stderr
    assert "is of another store" in result.stdout.replace("\n", " ")
    assert made.read_bytes() == before


def test_what_is_good_of_a_damaged_journal_is_a_table_of_its_own(
    spark: SparkSession, old: WrittenJournal, tmp_path: Path
) -> None:
    begin, _ = blocks_of(old, 1)[3]
    spoil(old.segment(1), begin + 100)
    arguments = ("consolidate", str(old.data_dir), "--output", str(tmp_path / "out"), "--what", "rows")
    result = run(*arguments, "--mode", "permissive")
    assert result.exit_code == 0, result.output
    table = spark.read.parquet(str(tmp_path / "out" / "events"))
    assert table.where("damage is not null").count() == 1
    assert table.count() > 80
    for mode in ("permissive", "strict"):
        again = run(*arguments, "--mode", mode)
        assert again.exit_code == 3, again.output
        assert "qpid-ha-pipeline: " in again.stderr
    assert spark.read.parquet(str(tmp_path / "out" / "events")).count() == table.count()


# --- failovers


@pytest.fixture
def cluster(tmp_path: Path) -> list[WrittenJournal]:
    """Alpha led, was silent for 0.4 s, and then beta led; beta wrote 20 ms later than alpha what alpha had sent.

    Alpha came back in the end, and wrote then what beta had done meanwhile.
    """
    alpha, beta = (WrittenJournal(tmp_path / name, name, generation=0) for name in ("alpha", "beta"))
    for journal, lag_ms in ((alpha, 0), (beta, 20)):
        journal.now_ms = BEGAN_MS
        journal.start(1, "alpha", "first start")
        journal.now_ms += lag_ms
        journal.write(ev.InSyncChanged(1, ("alpha", "beta")))
        queue = journal.declare("orders")
        journal.now_ms = BEGAN_MS + 1000 + lag_ms
        journal.enqueue(queue, b"1", b"2")
    for journal, times_ms in ((beta, (1400, 1450, 3000)), (alpha, (9000, 9000, 9000))):
        journal.now_ms = BEGAN_MS + times_ms[0]
        journal.write(ev.GenerationStarted(2, "beta", CLUSTER, BEGAN_MS + 1400, False, "alpha is silent"))
        journal.write(ev.InSyncChanged(2, ("beta",)))
        for at_ms in times_ms[1:]:
            journal.now_ms = BEGAN_MS + at_ms
            journal.enqueue(queue, b"3")
    return [alpha, beta]


def test_failovers_are_told_by_phase(spark: SparkSession, cluster: list[WrittenJournal]) -> None:
    (found,) = timelines(journal_of(spark, *cluster, replicas="all"))
    assert [(each.number, each.primary, each.cause) for each in found.generations] == [
        (1, "alpha", "first start"),
        (2, "beta", "alpha is silent"),
    ]
    phases = found.phases[1]
    assert phases is not None
    assert phases == pytest.approx((0, 0.4, 0, 0, 0.05, 0.05))
    assert found.availability == pytest.approx((1 - 0.4 / 3, 1))
    alpha, beta = found.states
    assert alpha[1:] == pytest.approx((1.0, 0, 0, 0.4, 1.6))
    assert beta[1:] == pytest.approx((1.6, 0, 1.4, 0, 0))
    assert sum(alpha[1:]) == sum(beta[1:]) == pytest.approx(found.span_s)
    assert [(each.epoch, each.members) for each in found.memberships] == [(1, ("alpha", "beta")), (2, ("beta",))]
    late, lag = found.lags
    assert late == ("alpha", 0, (), 3)
    assert (lag.broker, lag.events, lag.late_events) == ("beta", 4, 0)
    assert lag.percentiles_s == pytest.approx([0.02] * 4)


def test_the_report_needs_nothing_else(spark: SparkSession, cluster: list[WrittenJournal], tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    result = run("failovers", *(str(store.data_dir) for store in cluster), "--output", str(output))
    assert result.exit_code == 0, result.output
    assert str(output) in result.stdout
    text = output.read_text()
    assert "alpha is silent" in text
    assert text.count("<figure") == 2
    assert "86.6667% to 100.0000%" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "no generation" in page([])


def test_journals_whose_generations_all_began_before_what_is_left_are_told_as_such(
    spark: SparkSession, cluster: list[WrittenJournal]
) -> None:
    found = timelines(journal_of(spark, *cluster, replicas="all").where("event <> 'generation_started'"))
    assert [each.generations for each in found] == [()]
    assert NO_GENERATION in page(found)


# --- audit


class History:
    """What a publisher and a consumer wrote down."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def note(self, op: str, number: int, *, marked: bool = False) -> None:
        """One line."""
        self.rows.append(
            {
                "op": op, "id": f"m{number}", "client": "consumer" if op == "received" else "publisher",
                "queue": "orders", "number": None if op == "received" else number, "at_ms": len(self.rows),
                "marked": marked,
            }
        )  # fmt: skip

    def good(self, *numbers: int) -> None:
        """Sent, accepted, received."""
        for number in numbers:
            self.note("sent", number)
            self.note("accepted", number)
            self.note("received", number)

    def write(self, path: Path) -> str:
        """As JSON lines."""
        path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        return str(path)


@pytest.fixture
def told(journal: WrittenJournal) -> WrittenJournal:
    """A journal with the messages m0 to m9, all but m8 consumed."""
    journal.start(1)
    queue = journal.declare("orders")
    ids = journal.enqueue(queue, *[amqp("body", id=f"m{number}") for number in range(10)])
    journal.dequeue(queue, [each for number, each in enumerate(ids) if number != 8])
    return journal


def judged(spark: SparkSession, history: History, journal: WrittenJournal) -> Audit:
    schema = "op STRING, id STRING, client STRING, queue STRING, number LONG, at_ms LONG, marked BOOLEAN"
    rows = [tuple(row[name] for name in HISTORY_COLUMNS) for row in history.rows]
    return audit(spark.createDataFrame(rows, schema), journal_of(spark, journal))


def test_each_kind_of_broken_promise_is_found_and_proved(spark: SparkSession, told: WrittenJournal) -> None:
    history = History()
    history.good(0, 1)
    history.note("received", 1, marked=True)  # a copy, and the broker said so
    history.good(2)
    history.note("received", 2)  # a copy of which nobody warned
    history.note("sent", 3)
    history.note("received", 3)  # nobody was told that it is safe, and it came
    history.note("sent", 4)
    history.note("accepted", 4)  # and it never came
    history.note("sent", 5)
    history.good(6)
    history.note("received", 5)  # after a later one
    history.note("sent", 8)
    history.note("accepted", 8)  # still in its queue
    history.note("received", 77)  # which nobody sent
    history.note("sent", 9)
    history.note("rejected", 9)
    found = judged(spark, history, told)
    assert found.counts() == {
        "attempts": 9, "confirmed": 6, "rejected": 1, "delivered": 7, "waiting": 1, "recovered": 2, "redelivered": 1,
        "lost": 1, "discarded": 0, "duplicated": 1, "unexpected": 1, "disordered": 1,
    }  # fmt: skip
    assert not found.is_flawless
    evidence = {row.id: row for row in found.evidence.collect()}
    assert {name: row.verdict for name, row in evidence.items()} == {
        "m4": "lost", "m2": "duplicated", "m77": "unexpected", "m5": "disordered",
    }  # fmt: skip
    lost = evidence["m4"]
    assert (lost.broker, lost.queue, lost.message_id, lost.dequeued_lsn, lost.reason) == (
        "alpha",
        "orders",
        7,
        13,
        "consumed",
    )
    assert evidence["m77"].file is None


def test_nobody_looks_for_evidence_where_no_promise_is_broken(
    spark: SparkSession, told: WrittenJournal, capsys: pytest.CaptureFixture[str]
) -> None:
    history = History()
    history.good(0, 1, 2)
    found = judged(spark, history, told)
    assert found.is_flawless
    found.evidence.explain()
    assert "LocalTableScan <empty>" in (plan := capsys.readouterr().out)
    assert "BatchScan" not in plan
    assert found.evidence.count() == 0


def test_what_a_forced_promotion_lost_is_lost_and_found_in_the_branch(spark: SparkSession, tmp_path: Path) -> None:
    history, alpha, beta = History(), WrittenJournal(tmp_path / "alpha"), WrittenJournal(tmp_path / "beta", "beta")
    for store in (alpha, beta):
        store.start(1, "alpha")
        store.write(ev.InSyncChanged(1, ("alpha", "beta")))
        store.enqueue(store.declare("orders"), amqp("body", id="m1"))
    alpha.write(ev.InSyncChanged(2, ("alpha",)))
    alpha.enqueue(3, amqp("body", id="m2"), amqp("body", id="m3"))
    alpha.write_status(epoch=2, members=("alpha",))
    beta.start(2, "beta", "forced")
    beta.write(ev.InSyncChanged(3, ("beta",)))
    beta.write_status(epoch=3, members=("beta",))
    for number in (1, 2, 3):
        history.note("sent", number)
        history.note("accepted", number)
    path = tmp_path / "history.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in history.rows))
    result = run("audit", str(tmp_path / "*a"), "--history", str(path), "--format", "json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["waiting"], found["lost"], found["discarded"]) == (1, 2, 2)
    assert [(row["id"], row["broker"], row["discarded"]) for row in found["evidence"]] == [
        ("m2", "alpha", True), ("m3", "alpha", True),
    ]  # fmt: skip


def test_a_flawless_history_ends_with_0_and_any_other_with_1(
    spark: SparkSession, told: WrittenJournal, tmp_path: Path
) -> None:
    history = History()
    history.good(*range(8))
    good = run("audit", str(told.data_dir), "--history", history.write(tmp_path / "good.json"))
    assert (good.exit_code, good.stdout.splitlines()[-1]) == (0, "flawless"), good.output
    history.note("accepted", 9)
    bad = run("audit", str(told.data_dir), "--history", history.write(tmp_path / "bad.json"), "--format", "json")
    assert bad.exit_code == 1
    assert [row["id"] for row in json.loads(bad.stdout)["evidence"]] == ["m9"]


# --- replay


def test_what_is_sent_again_has_no_number_any_more() -> None:
    """The broker that had it would drop it as a duplicate."""
    message = proton.Message("x", id="m1")
    numbers: Any = {proton.symbol("x-opt-qpid-producer"): "orders", proton.symbol("x-opt-qpid-sequence"): 7}
    message.annotations = {**numbers, proton.symbol("x-opt-other"): "kept"}
    again = proton.Message()
    again.decode(renumbered(bytes(message.encode())))
    assert (again.id, again.body, again.annotations) == ("m1", "x", {"x-opt-other": "kept"})


def test_messages_of_a_journal_can_be_sent_again(
    spark: SparkSession, told: WrittenJournal, broker: RunningBroker, tmp_path: Path
) -> None:
    given = ("--broker", broker.url, "--queue", "orders", "--from-lsn", "5", "--address", "again")
    result = run("replay", str(told.data_dir), *given, "--output", str(tmp_path / "sent.json"))
    assert result.exit_code == 0, result.output
    assert result.stdout == "8 messages sent\n"
    assert json.loads((tmp_path / "sent.json").read_text()) == {"sent": 8}
    from proton.utils import BlockingConnection

    connection = BlockingConnection(broker.url, timeout=30)
    receiver = connection.create_receiver("again")
    received: list[proton.Message] = []
    for _ in range(8):
        received.append(receiver.receive(timeout=60))
        receiver.accept()
    connection.close()
    assert [message.id for message in received] == [f"m{number}" for number in range(2, 10)]
