"""Any broker takes a command: one that cannot carry it out passes it on, and the audit log of both has it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from admin_tool import qpid_ha
from cluster_in_process import InProcessCluster, eventually
from event_loops import in_event_loop
from qpid_ha_agent.control import RequestRefused


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@in_event_loop
async def test_a_backup_has_queues_and_exchanges_made_changed_and_deleted_and_both_audit_it(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        for name in ("a", "b"):
            cluster.brokers[name].files.audit.path = tmp_path / f"audit-{name}"
        await cluster.ask("b", "queues", action="create", name="orders", arguments={"qpid.max_count": 5})
        await cluster.ask("b", "exchanges", action="create", name="x", kind="topic")
        await cluster.ask("b", "exchanges", action="bind", name="x", queue="orders", key="k")
        await cluster.ask("b", "queues", action="update", name="orders", arguments={"qpid.max_count": 6})
        assert (await cluster.ask("b", "queues", action="purge", name="orders"))["purged"] == 0
        assert (await cluster.ask("a", "queues", action="read", name="orders"))["arguments"]["qpid.max_count"] == 6
        await cluster.ask("b", "exchanges", action="delete", name="x")
        await cluster.ask("b", "queues", action="delete", name="orders")
        assert not await cluster.ask("a", "queues")
        acts = ["queues create", "exchanges create", "exchanges bind", "queues update", "queues purge"]
        acts += ["exchanges delete", "queues delete"]
        assert [(line["act"], line["channel"]) for line in lines(tmp_path / "audit-b")] == [
            (act, "control-socket") for act in acts
        ]
        assert [(line["act"], line["channel"], line["via"]) for line in lines(tmp_path / "audit-a")] == [
            (act, "cluster", ["b"]) for act in acts
        ]


@in_event_loop
async def test_what_is_for_the_primary_of_a_queues_set_is_passed_on_to_that(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.form("a")
        sets = cluster.brokers["a"].sets
        assert sets is not None
        client = sets.client
        await eventually(lambda: not client.problem)
        await cluster.ask("a", "sets", action="create", name="s", replicas=["b", "c"], preferred="b")
        created: dict[str, object] = {"action": "create", "name": "orders", "arguments": {"qpid.resource-set": "s"}}
        await eventually_done(cluster, "a", created)
        for name in cluster.brokers:
            there = cluster.brokers[name].container.default.resources.replicated.state.map
            await eventually(lambda there=there: "orders" in there.queues and there.sets["s"].record.primary)  # type: ignore[misc]
            assert (await cluster.ask(name, "queues", action="purge", name="orders"))["purged"] == 0
        await cluster.ask("c", "queues", action="delete", name="orders")


async def eventually_done(cluster: InProcessCluster, broker: str, params: dict[str, object]) -> None:
    """The set has no primary at once."""
    async with asyncio.timeout(30):
        while True:
            try:
                await cluster.ask(broker, "queues", **params)
            except RequestRefused:
                await asyncio.sleep(0.05)
            else:
                return


@in_event_loop
async def test_with_the_local_broker_down_the_command_goes_to_another_one_of_the_configuration(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        config = tmp_path / "qpid-ha.yaml"
        urls = ",".join(cluster.url(name) for name in cluster.ports).replace(",amqp://", ",")
        config.write_text(
            f"name: b\ncontrol-socket: {tmp_path / 'b.sock'}\nlisten: {cluster.url('b')}\n"
            f"ha: {{cluster: true, brokers-url: '{urls}'}}\n"
        )

        async def run(*words: str) -> Any:
            return await asyncio.to_thread(qpid_ha, *words, QPID_HA_CONFIG=str(config))

        assert (await run("queue", "create", "orders")).exit_code == 0
        await cluster.stop("b")
        listed = await run("queue", "list")
        assert (listed.exit_code, "orders" in listed.stdout) == (0, True)
        assert cluster.url("a") in listed.stderr
        assert (await run("history")).exit_code == 0
        assert (await run("backups")).exit_code == 0
        assert (await run("ping")).exit_code == 3, "which is about the broker here"
        await cluster.stop("a")
        assert (await run("queue", "list")).exit_code == 3


@pytest.mark.parametrize("words", [("status",), ("promote",), ("shutdown",)])
def test_what_is_about_one_broker_goes_to_no_other(words: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "qpid-ha.yaml"
    config.write_text(f"name: b\ncontrol-socket: {tmp_path / 'b.sock'}\n")
    assert qpid_ha(*words, QPID_HA_CONFIG=str(config)).exit_code == 3


@in_event_loop
async def test_what_was_passed_on_once_goes_no_further(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        command = {"method": "queues", "params": {"action": "create", "name": "q"}, "id": "1", "from": "c"}
        told = await cluster.member("b").default.links.command_asked(json.dumps({"command": command}))
        assert told is not None
        error = json.loads(str(told["command"]))["error"]
        assert (error["data"]["reason"], error["data"]["primary"]) == ("not-primary", "a")
        assert not await cluster.ask("a", "queues")
