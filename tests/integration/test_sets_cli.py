"""What an operator of many resource sets types and sees: policies, moves as they are made, and what is in trouble."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from click.testing import Result

import admin_tool
from running_cluster import RunningCluster
from sets_cluster import change, create_queue, create_set, sets_of, wait_whole


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The first broker leads `default`; each is in a zone of its own."""
    settings, zones = {"ha": {"failure-timeout": "1s"}}, [{"ha.zone": zone} for zone in ("north", "south", "west")]
    with RunningCluster(tmp_path_factory.mktemp("sets"), settings=settings, own_settings=zones) as cluster:
        cluster.form()
        yield cluster


def qpid_ha(cluster: RunningCluster, by: int, *words: str) -> Result:
    """Asking that broker."""
    return admin_tool.qpid_ha(*words, QPID_HA_SOCKET=str(cluster.broker(by).control_socket))


def test_how_many_replicas_sets_want_is_changed_by_a_command_and_by_a_setting(cluster: RunningCluster) -> None:
    for name in ("audit-1", "orders"):
        create_set(cluster, name)
    assert qpid_ha(cluster, 1, "replicas", "policies", "audit-*=2").exit_code == 0
    assert qpid_ha(cluster, 0, "set", "replica-policies", "audit-*=3,ord*=1").exit_code == 0

    told = json.loads(qpid_ha(cluster, 2, "replicas", "policies", "--format", "json").stdout)
    assert [(each["pattern"], each["replicas"]) for each in told] == [
        ("audit-*", 2), ("audit-*", 3), ("ord*", 1), ("*", 3)
    ]  # fmt: skip
    sets = wait_whole(cluster, 0, "audit-1", "orders")
    assert {name: sets[name]["wanted"] for name in sets} == {"audit-1": 2, "orders": 1}
    assert len(sets["orders"]["extras"]) == 2

    assert qpid_ha(cluster, 1, "replicas", "policies", "--none").exit_code == 0
    assert sets_of(cluster.broker(0))["audit-1"]["wanted"] == 3
    assert qpid_ha(cluster, 1, "replicas", "policies", "audit-*").exit_code == 2
    for name in ("audit-1", "orders"):
        change(cluster, 0, "sets", "delete", name=name)
    assert qpid_ha(cluster, 0, "set", "replica-policies", "").exit_code == 0


def test_replicas_and_brokers_are_named_on_the_command_line(cluster: RunningCluster) -> None:
    names = [broker.name for broker in cluster.brokers]
    create_set(cluster, "orders", replicas=names[:2], min_replicas=2)
    wait_whole(cluster, 0, "orders")

    assert qpid_ha(cluster, 1, "set", "add-replica", "orders", names[2]).stdout.startswith(f"{names[2]} gets a replica")
    wait_whole(cluster, 0, "orders")
    assert qpid_ha(cluster, 1, "set", "remove-replica", "orders", names[2]).exit_code == 0
    drained = qpid_ha(cluster, 0, "drain", names[1], "--wait", "20s")
    assert (drained.exit_code, drained.stdout.splitlines()[-1]) == (0, f"{names[1]} is drained: it may be stopped")
    assert qpid_ha(cluster, 0, "undrain", names[1]).stdout == f"{names[1]} may have replicas again\n"
    controller = qpid_ha(cluster, 1, "drain", names[0], "--wait", "1s")
    assert controller.exit_code == 1
    assert "it leads `default`: have another broker lead that (`qpid-ha switchover`)" in controller.stderr
    assert qpid_ha(cluster, 1, "undrain", names[0]).exit_code == 0
    brokers = json.loads(qpid_ha(cluster, 1, "brokers", "--format", "json").stdout)
    assert {row["name"]: row["zone"] for row in brokers} == dict(zip(names, ("north", "south", "west"), strict=True))
    refused = qpid_ha(cluster, 0, "set", "create", "orders", "--replica", names[0])
    assert (refused.exit_code, refused.stderr) == (1, "Error: there is a resource set orders already\n")
    change(cluster, 0, "sets", "delete", name="orders")


def test_a_rebalancing_shows_each_move(cluster: RunningCluster) -> None:
    names = [broker.name for broker in cluster.brokers]
    for number in range(3):
        create_set(cluster, f"s{number}", preferred=names[2])
    wait_whole(cluster, 0, *(f"s{number}" for number in range(3)))
    cluster.broker(2).terminate()
    cluster.broker(2).wait()
    cluster.restart(2)
    assert qpid_ha(cluster, 1, "set", "list", "--wait", "20s").exit_code == 0
    assert all(each["replicas"][names[2]] == "ready" for each in sets_of(cluster.broker(0)).values())

    shown = qpid_ha(cluster, 1, "rebalance")

    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert [line.partition(" -> ")[2] for line in lines[:-1]] == [f"{names[2]} (it is preferred)"] * 3
    assert lines[-1] == "3 primaries were moved"
    assert qpid_ha(cluster, 1, "rebalance").stdout == "no primary has to be moved\n"
    told = qpid_ha(cluster, 1, "history", "s1").stdout
    assert [why for why in ("the set is new", "is about to stop", "rebalancing: it is preferred") if why in told] == [
        "the set is new", "is about to stop", "rebalancing: it is preferred"
    ]  # fmt: skip
    for number in range(3):
        change(cluster, 0, "sets", "delete", name=f"s{number}")


def failure_of(cluster: RunningCluster) -> tuple[object, ...]:
    """The last failure, as the controller's status has it: of which broker, its sets, how long it was felt."""
    told = json.loads(qpid_ha(cluster, 0, "status", "--format", "json").stdout)
    return tuple(told[f"last_failure_{each}"] for each in ("broker", "sets", "s"))


def squeezed(text: str) -> str:
    """With two spaces between the columns."""
    return re.sub(r" {2,}", "  ", text)


def test_the_status_of_a_broker_says_how_many_sets_have_no_primary(cluster: RunningCluster) -> None:
    assert qpid_ha(cluster, 0, "status").stderr == ""
    create_set(cluster, "alone", replicas=[cluster.broker(2).name], min_replicas=1)
    wait_whole(cluster, 0, "alone")
    create_queue(cluster, 0, "q", "alone")

    cluster.kill(2)
    cluster.wait_until(lambda: not sets_of(cluster.broker(0))["alone"]["primary"], "nobody leads it")

    shown = qpid_ha(cluster, 1, "set", "list", "--wait", "0.5s")
    assert (shown.exit_code, shown.stderr) == (1, "Error: 1 of 1 sets are not ok after 0.5 s: alone (no primary)\n")
    assert qpid_ha(cluster, 1, "status", "--expect", "observer", "--expect", "ready").exit_code == 0
    assert qpid_ha(cluster, 1, "status", "--expect", "observer", "--expect", "primary").exit_code == 1
    shown = qpid_ha(cluster, 1, "status")
    assert shown.stdout == "ready\n"
    assert shown.stderr == "1 of 1 resource sets have no primary (alone): see `qpid-ha status --all`\n"
    told = qpid_ha(cluster, 1, "status", "--all")
    assert f"start {cluster.broker(2).name}" in told.stderr
    assert failure_of(cluster) == (cluster.broker(2).name, 1, None), "it is felt still"
    lost = qpid_ha(cluster, 1, "set", "delete", "alone", "--lost")
    assert (lost.exit_code, lost.stdout) == (0, "set alone is deleted\n")
    broker, sets, duration_s = failure_of(cluster)
    assert (broker, sets, isinstance(duration_s, float)) == (cluster.broker(2).name, 1, True)
    figures = json.loads(qpid_ha(cluster, 1, "map", "--format", "json").stdout)["figures"]
    assert figures["last_failure_s"] == duration_s
    assert f"controller_failures  {figures['controller_failures']}" in squeezed(qpid_ha(cluster, 0, "query").stdout)
    assert "controller_failures" not in qpid_ha(cluster, 1, "query").stdout
    assert change(cluster, 0, "queues", "create", name="q")["created"], "its name is free"
