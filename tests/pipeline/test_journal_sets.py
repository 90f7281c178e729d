"""Stories about stores of several resource sets in one data directory, whose logs have the same LSNs and ids for
different things: each set is read by itself, and no job takes what is of one for what is of another."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from blocking_client import BlockingClient
from journal_query import Query
from journal_rows import Row, read_rows
from qpid_ha_broker.events import types as ev
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.jobs.activity import activities
from qpid_ha_pipeline.jobs.activity_report import report
from qpid_ha_pipeline.jobs.audit import HISTORY_COLUMNS, audit
from qpid_ha_pipeline.jobs.failovers import timelines
from qpid_ha_pipeline.jobs.overview import ALL, overview
from qpid_ha_pipeline.jobs.stores import verdicts
from qpid_ha_pipeline.jobs.timeline import Timeline
from qpid_ha_pipeline.main import main
from running_broker import RunningBroker
from written_journal import BEGAN_MS, CLUSTER, WrittenJournal, amqp, write_snapshot

BROKERS = ("alpha", "beta", "gamma")
OWN = "0b0c8a52-9f0e-4a7e-8a34-7d3cf9d3f5aa"
"""What each set but `default` has: a UUID of its own."""
ORDERS = QUICK = 4
"""Ids of queues, in `default` and in `fast`."""
DISCARDED = 9
"""In `fast`, an event that only beta has, which led until gamma was promoted by force."""
Fleet = dict[tuple[str, str], WrittenJournal]
"""By resource set and broker."""


def write_default(journal: WrittenJournal) -> None:
    """Led by alpha: LSNs 1 to 10. Four messages came into `orders`, of which the first has gone."""
    journal.start(1, "alpha")
    journal.write(ev.InSyncChanged(1, BROKERS))
    scrap = journal.declare("scrap")
    assert journal.declare("orders") == ORDERS
    ids = journal.enqueue(ORDERS, *[amqp(f"d{number}", id=f"d{number}") for number in range(4)])
    journal.now_ms += 1000
    journal.dequeue(ORDERS, ids[:1])
    journal.write(ev.QueueDeleted(scrap))
    journal.write_status(epoch=1, members=BROKERS)


def write_fast(journal: WrittenJournal) -> None:
    """Led by beta: LSNs 1 to 8, and 9 in beta's store alone; then 9 to 11 by gamma. `quick` gets three messages."""
    name = journal.identity.broker
    journal.start(1, "beta")
    journal.write(ev.InSyncChanged(1, BROKERS))
    journal.declare("idle")
    assert journal.declare("quick") == QUICK
    ids = journal.enqueue(QUICK, *[amqp(f"f{number}", id=f"f{number}") for number in range(3)])
    journal.now_ms += 5000
    journal.dequeue(QUICK, ids[1:2])
    if name == "beta":
        journal.enqueue(QUICK, amqp("gone", id="gone"))
        journal.write_status(epoch=1, members=("beta",))
        return
    journal.now_ms += 1000
    journal.write(ev.GenerationStarted(2, "gamma", journal.identity.cluster, journal.now_ms, True, "an operator"))
    journal.write(ev.InSyncChanged(2, ("alpha", "gamma")))
    journal.now_ms += 1000
    journal.write(ev.QueueUsed(QUICK, ""))
    journal.write_status(epoch=2, members=("alpha", "gamma"))


WRITERS = {"default": write_default, "fast": write_fast}


def write_fleet(directory: Path, identifier: str) -> Fleet:
    """Three brokers, each with replicas of two sets. `identifier`: of the log of `fast`."""
    clusters = {"default": CLUSTER, "fast": identifier}
    stores = {
        (name, broker): WrittenJournal(
            directory / broker, broker, cluster=clusters[name], generation=0, resource_set=name
        )
        for broker in BROKERS
        for name in WRITERS
    }  # fmt: skip
    for (name, _), store in stores.items():
        WRITERS[name](store)
    return stores


@pytest.fixture(params=[OWN, CLUSTER], ids=["UUIDs of their own", "one UUID"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Fleet:
    """As brokers write it, and where nothing but the set tells logs apart."""
    return write_fleet(tmp_path, request.param)


@pytest.fixture
def alike(tmp_path: Path) -> Fleet:
    """Where nothing but the set tells logs apart."""
    return write_fleet(tmp_path, CLUSTER)


def by_set(rows: list[Row], column: str, event: str = "enqueued") -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        if row["event"] == event:
            found.setdefault(row["set"], []).append(row[column])
    return found


# --- rows


@pytest.mark.usefixtures("fleet")
def test_all_sets_are_read_and_each_event_is_one_row_of_its_set(tmp_path: Path) -> None:
    rows = read_rows(tmp_path / "*")
    assert Counter(row["set"] for row in rows) == {"default": 10, "fast": 11}
    assert by_set(rows, "body_text") == {"default": ["d0", "d1", "d2", "d3"], "fast": ["f0", "f1", "f2"]}
    assert by_set(rows, "queue") == {"default": ["orders"] * 4, "fast": ["quick"] * 3}
    assert by_set(rows, "queue_id") == {"default": [ORDERS] * 4, "fast": [QUICK] * 3}
    assert by_set(rows, "queue", "queue_deleted") == {"default": ["scrap"]}
    assert by_set(rows, "generation", "generation_started") == {"default": [1], "fast": [1, 2]}


@pytest.mark.usefixtures("fleet")
def test_a_set_or_several_can_be_chosen(tmp_path: Path) -> None:
    def sets(**options: str) -> set[str]:
        return {row["set"] for row in read_rows(tmp_path / "*", "set", **options)}

    assert sets(set="fast") == {"fast"}
    assert sets(set="default") == {"default"}
    assert sets(set="default, fast") == sets(set='["fast", "default"]') == {"default", "fast"}
    with pytest.raises(PipelineError, match="no store of the resource set 'slow' is in "):
        sets(set="fast,slow")
    with pytest.raises(PipelineError, match=r"set: '../x' cannot be the name of a resource set"):
        sets(set="../x")


def test_not_every_broker_has_a_replica_of_each_set(fleet: Fleet, tmp_path: Path) -> None:
    for broker in ("alpha", "gamma"):
        shutil.rmtree(fleet["fast", broker].directory)
    rows = read_rows(tmp_path / "*", set="fast")
    assert by_set(rows, "body_text") == {"fast": ["f0", "f1", "f2", "gone"]}
    assert by_set(read_rows(fleet["fast", "beta"].directory), "queue") == {"fast": ["quick"] * 4}


def test_what_lies_beside_the_sets_is_none(fleet: Fleet) -> None:
    data_dir = fleet["fast", "alpha"].data_dir
    shutil.copytree(data_dir / "fast", data_dir / "fast.set-aside-20260131T120000Z")
    (data_dir / "notes").mkdir()
    assert by_set(read_rows(data_dir, replicas="all"), "body_text")["fast"] == ["f0", "f1", "f2"]
    aside = data_dir / "fast.set-aside-20260131T120000Z"
    assert by_set(read_rows(aside, set="fast"), "body_text") == {"fast": ["f0", "f1", "f2"]}


def test_sets_of_one_cluster_have_identifiers_of_their_own_and_stores_of_one_set_have_not(tmp_path: Path) -> None:
    write_fleet(tmp_path, OWN)
    assert {row["cluster"] for row in read_rows(tmp_path / "*", "cluster", set="fast")} == {OWN}
    WrittenJournal(tmp_path / "other", "other", cluster="another", resource_set="fast").declare("orders")
    with pytest.raises(PipelineError, match=f"/other/fast belongs to the cluster another, .*/alpha/fast to {OWN}"):
        read_rows(tmp_path / "*")
    assert read_rows(tmp_path / "*", "lsn", set="default")


@pytest.mark.usefixtures("fleet")
def test_a_branch_that_one_set_went_on_without_is_of_that_set(tmp_path: Path) -> None:
    rows = read_rows(tmp_path / "*", replicas="discarded")
    assert [(row["set"], row["broker"], row["lsn"], row["body_text"]) for row in rows] == [
        ("fast", "beta", DISCARDED, "gone")
    ]


@pytest.mark.usefixtures("fleet")
def test_the_state_is_that_of_each_set(tmp_path: Path) -> None:
    rows = read_rows(tmp_path / "*", view="state")
    assert by_set(rows, "body_text") == {"default": ["d1", "d2", "d3"], "fast": ["f0", "f2"]}
    assert by_set(rows, "queue", "queue_declared") == {"default": ["orders"], "fast": ["idle", "quick"]}


def test_a_damaged_block_is_made_good_by_a_replica_of_the_same_set(fleet: Fleet, tmp_path: Path) -> None:
    for broker in ("alpha", "gamma"):  # whichever leads
        path = fleet["fast", broker].segment(1)
        if broker == "gamma":
            data = bytearray(path.read_bytes())
            data[data.index(b"f2")] ^= 0xFF
            path.write_bytes(data)
    assert by_set(read_rows(tmp_path / "*"), "body_text")["fast"] == ["f0", "f1", "f2"]


MAP_EVENTS = (
    ev.BrokerRegistered("alpha", "u1", "10.0.0.1:5671", "amqp://alpha", "east", "0.1.0"),
    ev.BrokerChanged("alpha", True, False, 17),
    ev.SetPlaced("fast", BROKERS, ("gamma",), "beta", 2, 1),
    ev.SetRecorded("fast", OWN, 2, "beta", 3, BROKERS, False),
    ev.QueuePlaced("quick", "fast", {"durable": True}, False),
    ev.ReplicaPoliciesChanged(("shard-*",), (2,)),
    ev.SetGrouped("fast"),
    ev.SettingChanged("ha.min-in-sync", "2", "admin", 1_700_000_000_000),
    ev.SetDeleted("fast"),
    ev.BrokerRemoved("alpha"),
)


def test_the_cluster_map_is_read_with_all_its_fields(journal: WrittenJournal) -> None:
    journal.start(1)
    exchange = journal.write(ev.ExchangeDeclared("news", "topic", {}))[0]
    lsns = journal.write(*MAP_EVENTS)
    placed = lsns[4]
    deleting = ev.QueuePlaced("quick", "fast", {}, True)
    journal.write(ev.Bound(exchange, placed, "k", {}), deleting, ev.QueueRemoved(placed))
    rows = {row["lsn"]: row for row in read_rows(journal.data_dir)}
    told = [json.loads(rows[lsn]["details"]) for lsn in lsns]
    assert told == [json.loads(json.dumps(event._asdict())) for event in MAP_EVENTS]
    assert [rows[lsn]["event"] for lsn in lsns] == [
        "broker_registered", "broker_changed", "set_placed", "set_recorded", "queue_placed", "replica_policies_changed",
        "set_grouped", "setting_changed", "set_deleted", "broker_removed",
    ]  # fmt: skip
    bound, _, removed = (rows[lsns[-1] + number] for number in (1, 2, 3))
    assert [(row["queue"], row["queue_id"]) for row in (bound, removed)] == [("quick", placed)] * 2
    assert read_rows(journal.data_dir, "lsn", event="set_recorded") == [{"lsn": lsns[3]}]


# --- streams


@pytest.mark.usefixtures("fleet")
def test_a_stream_gives_each_event_of_each_set_once(tmp_path: Path) -> None:
    query = Query(tmp_path / "*")
    assert sorted(query.batch()) == sorted([*range(1, 11), *range(1, 12)])
    assert query.batch() == []
    assert {tuple(name.split("/")[1:]) for name in query.offset} == set(product(BROKERS, WRITERS))


def test_a_set_that_is_made_while_a_stream_runs_is_read_from_its_beginning(fleet: Fleet, tmp_path: Path) -> None:
    query = Query(tmp_path / "*")
    query.batch()
    new = WrittenJournal(fleet["default", "alpha"].data_dir, "alpha", cluster="new", resource_set="new")
    new.start(1)
    new.declare("orders")
    fleet["default", "alpha"].enqueue(ORDERS, b"later")
    assert sorted(query.batch()) == [1, 2, 11]
    query.restart()
    new.enqueue(2, b"x")
    assert query.batch() == [3]


def test_a_replica_that_moved_to_another_broker_is_no_loss(fleet: Fleet, tmp_path: Path) -> None:
    query = Query(tmp_path / "*")
    query.batch()
    shutil.rmtree(fleet["fast", "alpha"].directory)
    fleet["fast", "gamma"].enqueue(QUICK, b"x")
    assert query.batch() == [12]
    shutil.rmtree(fleet["fast", "beta"].directory)
    shutil.rmtree(fleet["fast", "gamma"].directory)
    with pytest.raises(PipelineError, match=r"/alpha/fast, .*read before, and not among the stores"):
        query.batch()


def test_a_replica_of_default_that_vanishes_is_a_loss(fleet: Fleet, tmp_path: Path) -> None:
    """Its broker may have kept a log for itself in it."""
    query = Query(tmp_path / "*")
    query.batch()
    shutil.rmtree(fleet["default", "alpha"].directory)
    with pytest.raises(PipelineError, match=r"/alpha/default: read before, and not among the stores"):
        query.batch()


def test_a_stream_begins_at_a_position_of_the_set_that_is_named(tmp_path: Path) -> None:
    write_fleet(tmp_path, OWN)
    given = {"beta/fast": {"generation": 1, "lsn": 8}, "beta": {"generation": 1, "lsn": 9}}
    query = Query(tmp_path / "beta", startingOffsets=json.dumps(given))
    assert query.batch() == [10, 9]


def test_snapshots_of_one_set_do_not_stand_for_another(fleet: Fleet, tmp_path: Path) -> None:
    folded = fleet["fast", "alpha"]
    folded.roll()
    write_snapshot(folded, 2, (3, "idle"), (QUICK, "quick"))
    folded.enqueue(QUICK, amqp("after"))
    for broker in ("beta", "gamma"):
        shutil.rmtree(fleet["fast", broker].directory)
    rows = read_rows(tmp_path / "*")
    assert by_set(rows, "body_text") == {"default": ["d0", "d1", "d2", "d3"], "fast": ["after"]}
    assert {(row["set"], row["complete_from"]) for row in rows} == {("default", 1), ("fast", 12)}


# --- jobs


def journal_of(spark: SparkSession, directory: Path, **options: str) -> DataFrame:
    return spark.read.format("qpid-journal").options(**options).load(str(directory / "*"))


def check_failovers(found: Mapping[str, Timeline]) -> None:
    """By resource set."""
    led = {name: [(each.number, each.primary, each.forced) for each in found[name].generations] for name in found}
    assert led == {"default": [(1, "alpha", False)], "fast": [(1, "beta", False), (2, "gamma", True)]}
    assert [change.members for change in found["fast"].memberships] == [BROKERS, ("alpha", "gamma")]
    assert [change.members for change in found["default"].memberships] == [BROKERS]
    assert found["default"].outages == ()
    (outage,) = found["fast"].outages
    assert outage.generation == 2
    assert outage.at_most_s == pytest.approx(1.0)
    lags = {name: {lag.broker: lag.events for lag in found[name].lags} for name in found}
    assert lags == {"default": {"beta": 9, "gamma": 9}, "fast": {"alpha": 7 + 2, "gamma": 7}}


@pytest.mark.usefixtures("alike")
def test_failovers_queues_and_reports_are_those_of_each_set(spark: SparkSession, tmp_path: Path) -> None:
    """A report has a line for each set, and their sum."""
    led, through = timelines(journal_of(spark, tmp_path, replicas="all")), activities(journal_of(spark, tmp_path))
    check_failovers({each.set: each for each in led})
    first, second = through
    assert (first.set, second.set) == ("default", "fast")
    totals = {each.set: [(row.queue, row.messages_in, row.messages_out, row.last_depth) for row in each.by_messages]
              for each in (first, second)}  # fmt: skip
    assert totals == {"default": [("orders", 4, 1, 3)], "fast": [("quick", 3, 1, 2)]}
    (took,) = (row.latencies_s[0] for row in second.by_messages)
    assert took == pytest.approx(5.0)
    page = report(through, led)
    assert f"<h2>Cluster {CLUSTER}</h2>" in page
    assert f"<h2>Set fast, {CLUSTER}</h2>" in page
    assert "<h2>All sets</h2>" in page

    *sets, whole = overview(led, through)
    assert {line.set: (line.messages_in, line.waiting, line.generations) for line in sets} == {
        "default": (4, 3, 1), "fast": (3, 2, 2)
    }  # fmt: skip
    assert (whole.set, whole.messages_in, whole.waiting, whole.generations) == (ALL, 7, 5, 3)
    assert whole.span_s == pytest.approx(sum(timeline.span_s for timeline in led))
    for line, timeline in zip(sets, led, strict=True):
        assert (line.availability_at_least, line.availability_at_most) == pytest.approx(timeline.availability)
    least = min(line.availability_at_least for line in sets)
    assert least <= whole.availability_at_least <= whole.availability_at_most <= 1.0

    done = CliRunner().invoke(main, ["failovers", str(tmp_path / "*"), "--format", "json"])
    assert done.exit_code == 0, done.output
    assert [line["set"] for line in json.loads(done.stdout)["sets"]] == ["default", "fast", ALL]


@pytest.mark.usefixtures("alike")
def test_an_audit_knows_which_messages_wait_in_which_set(spark: SparkSession, tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = [
        (op, f"{letter}{number}", "p1", queue, number, BEGAN_MS + number, None)
            for letter, queue, count in (("d", "orders", 4), ("f", "quick", 3)) for number in range(count)
            for op in ("sent", "accepted")]  # fmt: skip
    for name, queue in (("d0", "orders"), ("f1", "quick")):
        told.append(("received", name, "c1", queue, None, BEGAN_MS + 99, False))
    schema = "op STRING, id STRING, client STRING, queue STRING, number LONG, at_ms LONG, marked BOOLEAN"
    history = spark.createDataFrame(told, schema).select(*HISTORY_COLUMNS)
    found = audit(history, journal_of(spark, tmp_path), journal_of(spark, tmp_path, replicas="discarded"))
    assert (found.confirmed, found.delivered, found.waiting, found.lost) == (7, 2, 5, 0)
    assert found.is_flawless


@pytest.mark.usefixtures("alike")
def test_each_set_has_a_verdict_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    paths = [str(tmp_path / broker) for broker in BROKERS]
    found = verdicts(spark, paths)
    assert list(found) == ["default", "fast"]
    assert {reason.where for reason in found["default"].reasons} == set(paths)
    assert {reason.where for reason in found["fast"].reasons} == {f"{path}/fast" for path in paths}
    shown = CliRunner().invoke(main, ["stores", *paths, "--format", "json"])
    assert {name: each["verdict"] for name, each in json.loads(shown.stdout)["sets"].items()} == {
        name: type(each).__name__.lower() for name, each in found.items()
    }
    one = CliRunner().invoke(main, ["stores", *paths, "--format", "json", "--set", "default"])
    assert json.loads(one.stdout) == json.loads(shown.stdout)["sets"]["default"]
    refused = CliRunner().invoke(main, ["stores", *paths, "--set", "no such"])
    assert (refused.exit_code, "--set: 'no such' cannot be the name" in refused.stderr) == (3, True)


def test_consolidated_sets_lie_beside_each_other(spark: SparkSession, alike: Fleet, tmp_path: Path) -> None:
    for store in alike.values():
        store.roll()
        store.write_status()
    output = tmp_path.with_name("consolidated")
    done = CliRunner().invoke(main, ["consolidate", str(tmp_path / "*"), "--output", str(output), "--format", "json"])
    assert done.exit_code == 0, done.output
    made = [Path(each["snapshot"]).relative_to(output / "stores") for each in json.loads(done.stdout)["snapshots"]]
    assert {path.parts[:2] for path in made} == set(product(BROKERS, WRITERS))
    rows = spark.read.parquet(str(output / "events")).groupBy("set").count().collect()
    assert {row["set"]: row["count"] for row in rows} == {"default": 10, "fast": 11}


@pytest.mark.usefixtures("alike")
def test_messages_of_two_queues_with_one_id_are_sent_to_their_own_queues(
    spark: SparkSession, broker: RunningBroker, client: BlockingClient, tmp_path: Path
) -> None:
    done = CliRunner().invoke(main, ["replay", str(tmp_path / "*"), "--broker", broker.url, "--queue", "orders,quick"])
    assert done.exit_code == 0, done.output
    assert done.stdout == "7 messages sent\n"
    for queue, bodies in (("orders", ["d0", "d1", "d2", "d3"]), ("quick", ["f0", "f1", "f2"])):
        receiver = client.connection.create_receiver(queue)
        assert [receiver.receive(timeout=60).body for _ in bodies] == bodies
