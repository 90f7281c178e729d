"""Availability, outages and time in states: bounds that agree with each other, with what happened, and with clients."""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise
from pathlib import Path

import proton
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from blocking_client import BlockingClient
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.states import State
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.jobs.client_gaps import client_gaps
from qpid_ha_pipeline.jobs.failovers import _confirming, timelines
from qpid_ha_pipeline.jobs.history import SCHEMA
from qpid_ha_pipeline.jobs.state_changes import (
    CATCHUP,
    CONNECTING,
    PRIMARY,
    READY,
    StateChange,
    narrowed,
    read_state_changes,
)
from qpid_ha_pipeline.jobs.timeline import (
    Availability,
    BoundSource,
    Generation,
    InSyncSetChange,
    Sign,
    Timeline,
)
from qpid_ha_pipeline.main import main
from running_cluster import RunningCluster
from written_journal import BEGAN_MS, CLUSTER, WrittenJournal, amqp

BEGAN_S = BEGAN_MS / 1000
HOUR_MS = 3_600_000
CLOCK_S = 0.002
"""Journals have milliseconds."""


# --- the arithmetic

moments_s = st.floats(0, 1e6, allow_nan=False)
signs = st.builds(Sign, moments_s, st.sampled_from(BoundSource))


@st.composite
def any_timeline(draw: st.DrawFn) -> Timeline:
    """Of up to five generations; times in no order at all, as of clocks that disagree."""
    generations = tuple(
        Generation(
            number, draw(st.sampled_from("abc")), "cause", False, number, 1, draw(moments_s),
            (draw(moments_s), draw(moments_s)), draw(signs), draw(st.none() | signs), draw(st.none() | moments_s), None,
        )
        for number in range(1, draw(st.integers(1, 6)))
    )  # fmt: skip
    members = st.lists(st.sampled_from("abcd"), unique=True).map(tuple)
    times = sorted(draw(st.lists(moments_s, max_size=4)))
    sets = tuple(InSyncSetChange(at_s, epoch, draw(members), epoch, 1) for epoch, at_s in enumerate(times))
    return Timeline("cluster", "default", generations, sets, (), draw(moments_s))


def check_sums(timeline: Timeline) -> None:
    """Pieces without gaps, and one answer to each question, whichever table gives it."""
    pieces = timeline.periods
    assert all(before.end_s == after.begin_s for before, after in pairwise(pieces))
    assert all(piece.begin_s < piece.end_s for piece in pieces)
    least, most = timeline.availability
    assert 0 <= least <= most <= 1
    if not timeline.span_s:
        return
    span_s = timeline.span_s
    outages = timeline.outages
    assert all(0 <= outage.at_least_s <= outage.at_most_s for outage in outages)
    assert all(outage.at_most_s == pytest.approx(outage.end_s - outage.begin_s, abs=1e-6) for outage in outages)
    assert least == pytest.approx(1 - sum(outage.at_most_s for outage in outages) / span_s, abs=1e-6)
    assert most == pytest.approx(1 - sum(outage.at_least_s for outage in outages) / span_s, abs=1e-6)
    states = timeline.states
    assert all(sum(times[1:]) == pytest.approx(span_s, abs=1e-6) for times in states)
    assert sum(times.primary_s for times in states) == pytest.approx(least * span_s, abs=1e-6)
    assert sum(times.uncertain_s for times in states) == pytest.approx((most - least) * span_s, abs=1e-6)
    phases = [phase for phase in timeline.phases if phase is not None]
    assert len(phases) == len(timeline.generations) - 1
    for phase in phases:
        assert 0 <= phase.nobody_at_least_s <= phase.nobody_at_most_s
        assert 0 <= phase.waiting_at_least_s <= phase.waiting_at_most_s


@given(any_timeline())
def test_all_sums_agree(timeline: Timeline) -> None:
    check_sums(timeline)


@given(any_timeline(), st.lists(st.builds(
    StateChange, st.sampled_from("abc"), moments_s, st.sampled_from(["", "primary", "ready", "catchup"]),
    st.sampled_from(["primary", "ready", "connecting", "stopping"]),
)))  # fmt: skip
def test_whatever_brokers_say_the_bounds_stay_bounds(timeline: Timeline, changes: list[StateChange]) -> None:
    ascending = sorted(timeline.generations, key=lambda generation: generation.started_s)
    changes = sorted(changes, key=lambda change: change.at_s)
    check_sums(with_changes(timeline._replace(generations=tuple(ascending)), changes))


def with_changes(timeline: Timeline, changes: list[StateChange]) -> Timeline:
    """What is known of it when brokers have told of these."""
    return timeline._replace(generations=narrowed(timeline.generations, timeline.memberships, changes))


# --- journals with hours without traffic


def write_cluster(directory: Path, quiet_ms: int) -> list[str]:
    """Alpha led, served nobody for `quiet_ms`, and died; half a second later beta led, and had work at once."""
    alpha, beta = (WrittenJournal(directory / name, name, generation=0) for name in ("alpha", "beta"))
    for journal in (alpha, beta):
        journal.now_ms = BEGAN_MS
        journal.start(1, "alpha")
        journal.write(ev.InSyncChanged(1, ("alpha", "beta")))
        queue = journal.declare("orders")
        journal.now_ms = BEGAN_MS + 1000
        journal.enqueue(queue, amqp("1"))
    for journal, later_ms in ((beta, 0), (alpha, 2000)):
        began_ms = BEGAN_MS + 1000 + quiet_ms + 500
        journal.now_ms = began_ms + later_ms
        journal.write(ev.GenerationStarted(2, "beta", CLUSTER, began_ms, False, "alpha is gone"))
        journal.write(ev.InSyncChanged(2, ("beta",)))
        for at_ms in (100, 5000):
            journal.now_ms = began_ms + at_ms + later_ms
            journal.enqueue(queue, amqp("2"))
    return [str(alpha.data_dir), str(beta.data_dir)]


def read(spark: SparkSession, stores: list[str]) -> Timeline:
    journal = spark.read.format("qpid-journal").options(paths=json.dumps(stores), replicas="all").load()
    (timeline,) = timelines(journal)
    return timeline


def event_line(broker: str, at_ms: int, before: str, after: str) -> str:
    """As `qpid-ha events --format json` prints it."""
    return json.dumps({
        "event": "state", "at_ms": at_ms, "name": broker, "set": "default", "state": after, "generation": 1,
        "before": before, "after": after, "reason": "link lost",
    }) + "\n"  # fmt: skip


@pytest.fixture(scope="module")
def quiet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Of a cluster that nobody used for four hours before its primary died."""
    return read(spark, write_cluster(tmp_path_factory.mktemp("quiet"), 4 * HOUR_MS))


def test_quiet_hours_before_a_failover_are_no_outage_for_certain(quiet: Timeline) -> None:
    timeline = quiet
    (outage,) = timeline.outages
    assert outage.at_least_s == 0
    assert outage.at_most_s == pytest.approx(4 * 3600 + 0.5)
    assert (outage.last_led, outage.gone) == (BoundSource.JOURNAL, BoundSource.NEXT_GENERATION)
    least, most = timeline.availability
    assert most == 1
    assert least == pytest.approx(6 / timeline.span_s)
    alpha, beta = timeline.states
    assert (alpha.primary_s, alpha.uncertain_s) == pytest.approx((1, 4 * 3600 + 0.5))
    assert (beta.primary_s, beta.uncertain_s, beta.ready_s) == pytest.approx((5, 0, 4 * 3600 + 1.5))
    phases = timeline.phases[1]
    assert phases is not None
    assert phases.work_s == pytest.approx(0.1)
    assert phases.nobody_at_most_s == outage.at_most_s


@pytest.mark.parametrize("kind", ["event stream of a backup", "log of a backup", "event stream of the old primary"])
def test_what_brokers_said_narrows_it_to_the_real_outage(quiet: Timeline, tmp_path: Path, kind: str) -> None:
    """It died half a second before the next generation began."""
    died_ms = BEGAN_MS + 1000 + 4 * HOUR_MS
    file = tmp_path / "told"
    if kind == "log of a backup":
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(died_ms // 1000))
        file.write_text(
            f"{at}.000Z info main beta listens on amqp://127.0.0.1:5672, control socket /run/beta.sock\n"
            f"{at}.200Z info membership Status change: ready -> connecting (the link was closed)\n"
        )
    elif kind == "event stream of a backup":
        status = json.dumps({"name": "beta", "state": "ready", "generation": 1}) + "\n"
        file.write_text(status + event_line("beta", died_ms + 200, "ready", "connecting") + '{"torn')
    else:
        file.write_text(event_line("alpha", died_ms, "primary", "stopping"))
    timeline = with_changes(quiet, read_state_changes([str(file)]))
    (outage,) = timeline.outages
    if kind == "event stream of the old primary":
        assert (outage.at_least_s, outage.at_most_s) == pytest.approx((0.5, 0.5))
        assert outage.gone is BoundSource.OWN_STREAM
    else:
        assert (outage.at_least_s, outage.at_most_s) == pytest.approx((0.3, 3.3))
        assert (outage.last_led, outage.gone) == (BoundSource.LINK, BoundSource.LINK)
    least, most = timeline.availability
    assert least <= 1 - 0.5 / timeline.span_s <= most + 1e-12
    assert least > 0.999


def test_a_backup_that_lost_its_own_cable_says_nothing_of_the_primary(quiet: Timeline) -> None:
    lost = StateChange("beta", BEGAN_S + 600, "ready", "connecting")
    back = StateChange("beta", BEGAN_S + 660, "catchup", "ready")
    timeline = with_changes(quiet, [lost, back])
    assert [outage.gone for outage in timeline.outages] == [BoundSource.NEXT_GENERATION]
    assert timeline.availability[1] == 1


def test_a_primary_that_waits_for_a_dead_backup_serves_nobody_yet(spark: SparkSession, tmp_path: Path) -> None:
    """Beta took over with alpha still in the set, and alpha's place in it was given up ten seconds later."""
    stores = {}
    for name in ("alpha", "beta"):
        journal = stores[name] = WrittenJournal(tmp_path / name, name, generation=0)
        journal.start(1, "alpha")
        journal.write(ev.InSyncChanged(1, ("alpha", "beta")))
        queue = journal.declare("orders")
        journal.now_ms += 10_000
        journal.enqueue(queue, amqp("1"))
    for name, late_ms in (("beta", 0), ("alpha", 60_000)):
        journal, began_ms = stores[name], BEGAN_MS + 10_000
        journal.now_ms = began_ms + late_ms
        journal.write(
            ev.GenerationStarted(2, "beta", CLUSTER, began_ms, False, "alpha is gone"),
            ev.InSyncChanged(2, ("alpha", "beta")),
        )
        journal.now_ms = max(journal.now_ms, began_ms + 100)
        journal.enqueue(queue, amqp("2"))  # a client that gets no answer
        journal.now_ms = max(journal.now_ms, began_ms + 10_000)
        journal.write(ev.InSyncChanged(3, ("beta",)))
        journal.now_ms = max(journal.now_ms, began_ms + 30_000)
        journal.enqueue(queue, amqp("3"))
    timeline = read(spark, [str(journal.data_dir) for journal in stores.values()])
    (outage,) = timeline.outages
    assert (outage.at_least_s, outage.at_most_s) == pytest.approx((10, 10))
    assert timeline.states[1].waiting_s == pytest.approx(10)
    assert timeline.availability == pytest.approx((0.75, 0.75))
    alone = read(spark, [str(stores["beta"].data_dir)])
    (outage,) = alone.outages
    assert (outage.at_least_s, outage.at_most_s) == pytest.approx((0, 10))


def test_without_all_journals_a_dropped_backup_says_until_when_it_was_waited_for() -> None:
    """Of gamma there is no journal, so nobody knows when it held the generation's beginning."""
    written_s = {"beta": 10.0}
    first = InSyncSetChange(10.0, 2, ("alpha", "beta", "gamma"), 5, 2)
    dropped = InSyncSetChange(20.0, 3, ("beta", "gamma"), 9, 2)
    joined = InSyncSetChange(20.0, 3, ("alpha", "beta", "delta", "gamma"), 9, 2)
    assert _confirming(10.0, written_s, [first, dropped], 10.1) == (10, 20)
    assert _confirming(10.0, written_s, [first, joined], 10.1) == (10, 10.1)
    assert _confirming(10.0, {**written_s, "alpha": 12.0, "gamma": 13.0}, [first, dropped], 10.1) == (13, 13)


def test_what_a_deposed_primary_wrote_is_no_service(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody took it over: alpha was cut off, and went on with clients that it could not confirm anything to."""
    stores = write_cluster(tmp_path, 1000)
    timeline = read(spark, stores)
    lonely = WrittenJournal(tmp_path / "cut" / "alpha", "alpha", generation=0)
    lonely.start(1, "alpha")
    lonely.write(ev.InSyncChanged(1, ("alpha", "beta")))
    queue = lonely.declare("orders")
    lonely.now_ms = BEGAN_MS + 1000
    lonely.enqueue(queue, amqp("1"))
    lonely.now_ms = BEGAN_MS + 2200
    lonely.enqueue(queue, *[amqp("never confirmed")] * 5)
    cut = read(spark, [str(lonely.data_dir), stores[1]])
    assert cut.generations[0].led == timeline.generations[0].led
    assert cut.availability == pytest.approx(timeline.availability)


def test_a_generation_that_began_before_a_fold_goes_on_behind_it(spark: SparkSession, tmp_path: Path) -> None:
    """The snapshot says when it began; of the one before, nothing is left to tell of."""
    journal = WrittenJournal(tmp_path / "alpha", generation=0)
    journal.start(1, "beta")
    journal.write(ev.InSyncChanged(1, ("alpha", "beta")))
    journal.now_ms += 1000
    journal.start(2, "alpha")
    journal.write(ev.InSyncChanged(2, ("alpha", "beta")))
    queue = journal.declare("orders")
    journal.roll()
    journal.now_ms += 50_000
    journal.write(ev.InSyncChanged(3, ("alpha",)))
    journal.now_ms += 50_000
    journal.enqueue(queue, amqp("1"))
    journal.write_status()
    journal.fold_away()
    timeline = read(spark, [str(journal.data_dir)])
    assert [(generation.number, generation.primary) for generation in timeline.generations] == [(2, "alpha")]
    assert list(timeline.availability) == [1, 1]
    assert timeline.span_s == pytest.approx(100)
    assert [list(times[1:]) for times in timeline.states] == [[100, 0, 0, 0, 0], [0, 0, 50, 0, 50]]


# --- state changes


def test_a_file_that_tells_of_no_states_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "told"
    for text, problem in {
        "free text\n": "neither what",
        '{"event": "state", "at_ms": 17}\n': "line 1: expected an event",
        "{torn\n": "line 1: expected an event",
        "2026-01-31T03:00:00.123Z info membership Status change: ready -> connecting (x)\n": "which broker",
    }.items():
        file.write_text(text)
        with pytest.raises(PipelineError, match=problem):
            read_state_changes([str(file)])
    with pytest.raises(PipelineError, match="No such file"):
        read_state_changes([str(tmp_path / "absent")])


def test_of_a_list_of_all_events_those_of_states_count(tmp_path: Path) -> None:
    of_all = {"number": 1, "broker": "beta", "at_ms": 1500, "set": "orders"}
    events = (
        {"subject": "queue.created", "name": "q", "temporary": False},
        {"subject": "set.state", "before": "ready", "state": "primary", "reason": "promoted"},
        {"subject": "connection.opened", "user": "ada"},
    )
    file = tmp_path / "told"
    file.write_text("".join(json.dumps({**of_all, **event}) + "\n" for event in events))
    assert read_state_changes([str(file)]) == [StateChange("beta", 1.5, "ready", "primary", "orders")]


def test_states_have_the_names_that_brokers_give_them() -> None:
    assert {PRIMARY, READY, CATCHUP, CONNECTING} <= {state.value for state in State}


# --- what clients saw


def test_the_longest_time_without_a_confirmation_is_that_of_a_plain_loop(spark: SparkSession) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    rows: list[tuple[object, ...]] = []
    messages: list[tuple[float, float]] = []
    for number in range(400):
        sent_ms = float(draw.choice([number * 10, draw.randrange(4000), 9000 + number]))
        confirmed_ms = sent_ms + draw.choice([0, 3, draw.randrange(500)])
        messages.append((sent_ms, confirmed_ms))
        for op, at_ms in (("sent", sent_ms), ("sent", sent_ms + 1), ("accepted", confirmed_ms), ("received", 1.0)):
            rows.append((op, f"m{number}", f"p{number % 3}", "orders", number, at_ms, None))
    rows.append(("sent", "given up", "p", "orders", 1, 5.0, None))
    rows.append(("accepted", "without a time of sending", "p", "orders", 1, 8500.0, None))
    expected = []
    ends = sorted({confirmed for _, confirmed in messages})
    for previous, confirmed in zip([None, *ends], ends, strict=False):
        oldest = min(sent for sent, end in messages if end >= confirmed)
        expected.append(confirmed - (oldest if previous is None else max(oldest, previous)))
    draw.shuffle(rows)
    gaps = client_gaps(spark.createDataFrame(rows, SCHEMA))
    assert [gap.seconds * 1000 for gap in gaps] == pytest.approx(sorted(expected, reverse=True)[:10]), seed
    assert client_gaps(spark.createDataFrame(rows[:0], SCHEMA)) == []


def test_a_real_failover_lies_within_the_bounds_and_clients_agree(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"link-heartbeat-interval": 0.1, "ha": {"backup-timeout": 0.5}}
    lines: list[dict[str, object]] = []

    def note(op: str, number: int) -> None:
        lines.append({"op": op, "id": f"m{number}", "client": "p", "queue": "orders", "number": number,
                      "at_ms": time.time() * 1000})  # fmt: skip

    def publish(client: BlockingClient, *numbers: int) -> None:
        sender = client.sender("orders")
        for number in numbers:
            note("sent", number)
            client.offer(sender, proton.Message(f"{number}", id=f"m{number}", durable=True))
            note("accepted", number)

    with RunningCluster(tmp_path, settings=settings, stores=tmp_path / "stores") as cluster:
        cluster.form()
        with BlockingClient(cluster.urls[0]) as client:
            publish(client, *range(20))
        alive_s = time.time()
        note("sent", 20)
        cluster.kill(0)
        killed_s = time.time()
        cluster.wait_until(lambda: "ready" not in cluster.states(), "both backups have seen it")
        cluster.promote(1)
        with BlockingClient(cluster.urls[1]) as client:
            publish(client, *range(20, 40))
        served_s = float(str(lines[41]["at_ms"])) / 1000
    logs = [argument for broker in cluster.brokers for argument in ("--events", str(broker.log_path))]
    history = tmp_path / "history.json"
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["failovers", f"{tmp_path / 'stores'}/*", "--format", "json", "--history", str(history)]
    for events in ([], [*logs, "--link-timeout", "0.3"]):
        result = CliRunner().invoke(main, [*arguments, *events])
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        (cluster_told,), (gap, *_) = told["clusters"], told["client_gaps"]
        outages = [outage for outage in cluster_told["outages"] if outage["end_s"] > killed_s]
        begin_s, end_s = outages[0]["begin_s"], outages[-1]["end_s"]
        at_least_s = sum(outage["at_least_s"] for outage in outages)
        assert begin_s <= killed_s + CLOCK_S
        assert end_s <= served_s + CLOCK_S
        assert at_least_s <= served_s - alive_s + CLOCK_S
        assert gap["begin_s"] <= killed_s <= gap["end_s"]
        assert gap["seconds"] >= at_least_s - CLOCK_S
        assert bool(at_least_s) or not events
    least, most = cluster_told["availability"]
    assert least <= most < 1
    assert [piece["service"] for piece in cluster_told["periods"]].count(Availability.NOBODY) == 1
