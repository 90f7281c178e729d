"""The journals of a group: read like any other, and told of as what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from group_bus import GroupBus
from groups_in_process import BROKERS, UUID, Groups, story_of_three
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.server.sets.group_set_member import GroupSetMember
from qpid_ha_pipeline.jobs.failover_report import page
from qpid_ha_pipeline.jobs.failovers import timelines
from qpid_ha_pipeline.jobs.timeline import Availability, Timeline
from qpid_ha_pipeline.main import main
from written_journal import amqp


async def _tell(groups: Groups) -> None:
    """`c` leaves, and comes back; two messages at each of three times."""
    groups.host(*BROKERS)
    await groups.serve(*BROKERS)
    await groups.declare("a", "q")
    await _publish(groups, "a", "1", "2")
    hosts = groups.cluster.brokers["c"].sets
    assert hosts is not None
    hosts.hosts.unhost("orders", "the test wants it")
    await groups.serve("a", "b")
    await _publish(groups, "b", "3", "4")
    groups.host("c")
    await groups.serve(*BROKERS)
    await _publish(groups, "c", "5", "6")


async def _publish(groups: Groups, broker: str, *names: str) -> None:
    resources = groups.hosted(broker).resources
    for name in names:
        sent = Message(amqp(name, id=name), True, 4, 0)
        await groups.commit(broker, resources.publish(resources.catalog.queues["q"], sent, 0))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of the three brokers of the group."""
    directory, bus = tmp_path_factory.mktemp("group"), GroupBus()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupSetMember, "make_transport", staticmethod(bus.port))
        story_of_three(directory, _tell, *BROKERS)
    return [str(directory / name) for name in BROKERS]


def read(spark: SparkSession, stores: list[str]) -> Timeline:
    journal = spark.read.format("qpid-journal").options(paths=json.dumps(stores), replicas="all", set="orders").load()
    (timeline,) = timelines(journal)
    return timeline


def test_changes_of_a_group_are_told_with_times_and_names_and_as_no_failover(
    spark: SparkSession, stores: list[str]
) -> None:
    timeline = read(spark, stores)
    assert (timeline.set, timeline.cluster, timeline.is_group) == ("orders", UUID, True)
    place = next(place for place, change in enumerate(timeline.group_changes) if change.left)  # then all are stopped
    left, came = timeline.group_changes[place : place + 2]
    assert (left.members, left.left, left.came) == (("a", "b"), ("c",), ())
    assert (came.members, came.left, came.came) == (("a", "b", "c"), (), ("c",))
    assert {left.recorded_by, came.recorded_by} <= {"a", "b"}
    assert 1_700_000_000 < left.at_s < came.at_s
    assert [change.epoch for change in timeline.group_changes] == sorted(
        {change.epoch for change in timeline.group_changes}
    )
    assert (timeline.outages, timeline.phases, timeline.states, timeline.lags) == ((), (), (), ())
    assert Availability.NOBODY not in {piece.service for piece in timeline.periods}
    report = page([timeline])
    assert "Changes of the group" in report
    assert "primary led" not in report


def test_the_command_prints_the_changes_of_a_group(spark: SparkSession, stores: list[str]) -> None:
    result = CliRunner().invoke(main, ["failovers", *stores, "--set", "orders"])
    assert result.exit_code == 0, result.output
    head = next(line for line in result.output.splitlines() if "recorded_by" in line)
    assert head.split() == ["at_s", "generation", "epoch", "members", "left", "came", "recorded_by", "lsn"]
    assert "nobody_at_least_s" not in result.output


def test_an_audit_finds_each_confirmed_message_of_a_group_once(
    spark: SparkSession, stores: list[str], tmp_path: Path
) -> None:
    history = tmp_path / "history.json"
    rows = [
        {"op": op, "id": name, "client": "publisher", "queue": "q", "number": int(name), "at_ms": float(name)}
        for name in "123456"
        for op in ("sent", "accepted")
    ]
    history.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    result = CliRunner().invoke(
        main, ["audit", *stores, "--set", "orders", "--history", str(history), "--format", "json"]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert (told["confirmed"], told["waiting"], told["lost"]) == (6, 6, 0)
