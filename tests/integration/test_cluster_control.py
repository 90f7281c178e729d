"""Stories of real brokers in one process: who becomes primary, what operators are told, where clients are sent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from proton import ConnectionException, Message

from blocking_client import BlockingClient, Management
from cluster_in_process import InProcessCluster, eventually, free_ports
from event_loops import in_event_loop
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.peers import reachability


def send(url: str, address: str, *bodies: str) -> None:
    with BlockingClient(url) as client:
        client.send(address, *[Message(body, durable=True) for body in bodies])


def connection_error(url: str) -> Any:
    try:
        with BlockingClient(url, desired_capabilities=["sole-connection-for-container"]):
            return None
    except ConnectionException as error:
        return error


def messages(cluster: InProcessCluster, name: str, queue: str) -> int:
    found = cluster.brokers[name].container.default.resources.catalog.queues.get(queue)
    return -1 if found is None else found.messages.count


@in_event_loop
async def test_a_first_start_one_is_promoted_and_the_others_follow(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        assert (await cluster.ask("b", "status"))["state"] == "connecting"
        await cluster.form("a")
        status = await cluster.ask("a", "status")
        assert (status["state"], status["generation"], status["members"]) == ("primary", 1, ["a", "b", "c"])
        rows = await cluster.ask("b", "status", all=True)
        assert [(row["name"], row["state"], row["in_sync"]) for row in rows] == [
            ("a", "primary", True),
            ("b", "ready", True),
            ("c", "ready", True),
        ]
        assert [row["name"] for row in await cluster.ask("a", "backups")] == ["b", "c"]
        (entry,) = await cluster.ask("c", "history")
        assert (entry["generation"], entry["primary"], entry["forced"]) == (1, "a", False)


@in_event_loop
async def test_what_was_confirmed_is_on_every_backup_and_survives_a_change_of_primary(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.form("a")
        await asyncio.to_thread(send, cluster.url("a"), "q", *map(str, range(20)))
        await eventually(lambda: messages(cluster, "b", "q") == messages(cluster, "c", "q") == 20)
        promoted = await cluster.ask("b", "promote")
        assert (promoted["state"], promoted["generation"]) == ("primary", 2)
        await cluster.reach("a", State.READY)
        await cluster.reach("c", State.READY)
        await asyncio.to_thread(send, cluster.url("b"), "q", "one more")
        await eventually(lambda: messages(cluster, "a", "q") == 21)


def manage(url: str) -> tuple[Any, Any, Any]:
    """What Proton's request/response client gets: a queue, the refusal to make one, and a page of all."""
    with BlockingClient(url, properties={"qpid.ha-admin": True}) as client:
        management = Management(client)
        page = management.ask("QUERY", {"attributeNames": ["name"]}, entityType="queue")
        return management.queue("q"), management.ask("CREATE", type="queue", name="new"), page.body["results"]


@in_event_loop
async def test_a_backup_answers_management_as_the_manual_asks_it(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        await asyncio.to_thread(send, cluster.url("a"), "q", "1", "2")
        await eventually(lambda: messages(cluster, "b", "q") == 2)
        queue, refused, rows = await asyncio.to_thread(manage, cluster.url("b"))
        assert (queue["messages"], refused.status, rows) == (2, 409, [["q"]])
        assert "a" in refused.description


@in_event_loop
async def test_a_broker_that_is_gone_is_shown_as_unreachable_and_its_place_is_taken(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.form("a")
        await asyncio.to_thread(send, cluster.url("a"), "q", "kept")
        await cluster.stop("a")
        promoted = await cluster.ask("c", "promote", cause="a was stopped")
        assert promoted["state"] == "primary"
        rows = await cluster.ask("c", "status", all=True)
        assert rows[-1].items() >= {"name": None, "address": cluster.url("a"), "state": "unreachable"}.items()
        assert rows[-1]["refused"] is False
        assert messages(cluster, "c", "q") == 1
        history = await cluster.ask("c", "history")
        assert history[-1]["cause"] == "a was stopped"
        await cluster.reach("b", State.READY)
        figures = await cluster.ask("c", "query", all=True)
        assert {row["name"]: row["state"] for row in figures if row["name"]} == {"b": "ready", "c": "primary"}
        assert all(row["messages"] == 1 for row in figures if row["name"])


@in_event_loop
async def test_the_primary_hands_over_to_the_backup_that_was_named(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.form("a")
        await asyncio.to_thread(send, cluster.url("a"), "q", "kept")
        answer = await cluster.ask("a", "switchover", to="c")
        assert "c" in answer["text"]
        await cluster.reach("c", State.PRIMARY)
        await cluster.reach("a", State.READY)
        assert messages(cluster, "c", "q") == 1
        with pytest.raises(RequestRefused, match="ask the primary"):
            await cluster.ask("a", "switchover")
        with pytest.raises(RequestRefused, match="there is no backup nobody"):
            await cluster.ask("c", "switchover", to="nobody")


@in_event_loop
async def test_demote_sends_clients_away_and_nobody_is_primary_until_one_is_promoted(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        client = await asyncio.to_thread(BlockingClient, cluster.url("a"))
        demoted = await cluster.ask("a", "demote")
        assert demoted["state"] == "connecting"
        with pytest.raises(ConnectionException, match="aborted"):
            await asyncio.to_thread(client.send, "q", "too late")
        with pytest.raises(RequestRefused, match="only a primary"):
            await cluster.ask("a", "demote")
        assert (await cluster.ask("a", "promote"))["state"] == "primary"
        await cluster.reach("b", State.READY)


@in_event_loop
async def test_clients_that_read_refusals_learn_who_is_primary_or_that_nobody_is(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        error = await asyncio.to_thread(connection_error, cluster.url("b"))
        assert "amqp:connection:forced" in str(error)
        assert "b is connecting" in str(error)
        await cluster.form("a")
        error = await asyncio.to_thread(connection_error, cluster.url("b"))
        assert "amqp:connection:forced" in str(error)
        assert f"127.0.0.1:{cluster.ports['a']}" in str(error)
        servers = cluster.brokers["b"].container.greeting.failover_servers
        assert [server["port"] for server in servers] == [cluster.ports["a"], cluster.ports["b"]]
        await cluster.ask("b", "promote")
        await cluster.reach("a", State.READY)
        for name in ("a", "b"):
            servers = cluster.brokers[name].container.greeting.failover_servers
            assert [server["port"] for server in servers] == [cluster.ports["b"], cluster.ports["a"]]
        assert await asyncio.to_thread(connection_error, cluster.url("b")) is None


@in_event_loop
async def test_a_backup_passes_on_to_the_primary_what_it_cannot_do_itself(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        with pytest.raises(RequestRefused, match="promote a broker"):
            await cluster.ask("b", "queues", action="create", name="q")
        await cluster.form("a")
        assert (await cluster.ask("b", "queues", action="create", name="q"))["created"] is True
        assert (await cluster.ask("b", "queues", action="create", name="q"))["created"] is False
        await cluster.ask("b", "exchanges", action="create", name="x", kind="topic")
        with pytest.raises(RequestRefused, match="none") as refused:
            await cluster.ask("b", "queues", action="purge", name="none")
        assert refused.value.data["reason"] == "not-found"  # type: ignore[index]
        assert [row["name"] for row in await cluster.ask("b", "backups")] == ["b"]
        await eventually(lambda: messages(cluster, "b", "q") == 0)
        assert "q" in [queue["name"] for queue in await cluster.ask("b", "queues")]
        await eventually(lambda: "x" in cluster.brokers["b"].container.default.resources.catalog.exchanges)
        assert "x" in [exchange["name"] for exchange in await cluster.ask("b", "exchanges", action="list")]


@in_event_loop
async def test_changes_are_told_to_whoever_listens_until_he_goes(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "b.sock")
        writer.write(b'{"jsonrpc": "2.0", "id": 7, "method": "events", "params": {}}\n')
        first = json.loads(await reader.readline())
        assert (first["id"], first["result"]["state"]) == (7, "connecting")
        await cluster.form("a")
        states = []
        while "ready" not in states:
            told_line = json.loads(await reader.readline())
            assert told_line["method"] == "event"
            if told_line["params"]["event"] == "state":
                states.append(told_line["params"]["state"])
        assert states == ["catchup", "ready"]
        writer.close()
        events = cluster.member("b").events
        await eventually(lambda: not events.listeners)


@in_event_loop
async def test_settings_reach_the_core_and_rules_say_what_they_did(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        await cluster.ask("a", "set", key="ha.backup-timeout", value="7s")
        assert cluster.member("a").member.settings.backup_timeout_s == 7.0
        await cluster.ask("a", "queues", action="create", name="tmp.1")
        await eventually(lambda: messages(cluster, "b", "tmp.1") == 0)
        answer = await cluster.ask("a", "set", key="replication-rules", value="tmp.*=none")
        assert any("tmp.1" in note for note in answer["notes"])
        await eventually(lambda: messages(cluster, "b", "tmp.1") == -1)


@in_event_loop
async def test_a_broker_with_the_data_of_another_cluster_ends_and_says_why(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster, InProcessCluster(tmp_path, "x", "y") as strange:
        await cluster.form("a")
        await strange.form("x")
        await strange.ask("x", "demote")
        brokers = ",".join(cluster.url(name) for name in ("a", "b"))
        await strange.ask("x", "set", key="ha.brokers-url", value=f"{brokers},{strange.url('x')}")
        await strange.brokers["x"].ended.wait()
        assert "belongs to the cluster" in strange.brokers["x"].failure
        assert (await cluster.ask("a", "status"))["members"] == ["a", "b"]


@in_event_loop
async def test_bad_parameters_are_named(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        bad: dict[str, dict[str, object]] = {
            "promote": {"forced": True},
            "status": {"all": "yes"},
            "switchover": {"to": 5},
            "demote": {"now": True},
            "events": {"since": 1},
        }
        for method, params in bad.items():
            with pytest.raises(RequestRefused) as refused:
                await cluster.ask("a", method, **params)
            assert refused.value.code == -32602


@in_event_loop
async def test_while_nobody_leads_the_record_says_who_is_in_sync_and_not_a_brokers_own_last_word(
    tmp_path: Path,
) -> None:
    place = tmp_path / "record"
    place.mkdir()
    async with InProcessCluster(tmp_path, "a", "b", ha__coordinator=f"file:{place}") as cluster:
        await cluster.form("a")
        assert (await cluster.ask("b", "query"))["in_sync"] == "a, b"
        await cluster.stop("a")
        await cluster.reach("b", State.CONNECTING)
        own, silent = await cluster.ask("b", "status", all=True)
        assert (own["name"], own["in_sync"], own["in_sync_known"]) == ("b", True, "yes")
        assert (silent["name"], silent["last_name"], silent["in_sync"], silent["in_sync_known"]) == (
            None, "a", False, "unknown",
        )  # fmt: skip
        recorded = open_coordinator(cluster.brokers["b"].current().coordinator)
        before = recorded.read()
        recorded.compare_and_set(before, before._replace(epoch=before.epoch + 1, members=("a",)))
        own, _ = await cluster.ask("b", "status", all=True)
        assert (own["in_sync"], own["in_sync_known"], own["members"]) == (False, "no", ["a", "b"])
        assert f"the record says (generation 1, epoch {before.epoch + 1})" in own["in_sync_by"]
        assert (await cluster.ask("b", "status"))["members_current"] is False
        assert (await cluster.ask("b", "query"))["in_sync"] == "unknown; when it knew last: a, b"
        assert "in_sync_brokers" not in cluster.member("b").default.facts.figures(0.0)


@in_event_loop
async def test_a_broker_that_reaches_nobody_and_is_not_in_its_own_list_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reachability, "SAY_AFTER_S", 0.0)
    port, other = free_ports(2)
    async with InProcessCluster(tmp_path, "a", ha__brokers_url=f"amqp://127.0.0.1:{port},127.0.0.1:{other}"):
        await eventually(lambda: "at none of the addresses" in caplog.text)
    assert f"no broker answers at amqp://127.0.0.1:{port} (" in caplog.text
