"""Users with passwords, and tokens, of a cluster: added at any broker, known to all, kept, and gone when removed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import proton
import pytest
from proton.utils import BlockingConnection

from admin_tool import qpid_ha
from cluster_in_process import InProcessBroker, InProcessCluster, eventually
from event_loops import in_event_loop
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.access.scram import UserLogin
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.exchanges.broker_events import EventSubject
from qpid_ha_config.tokens import TokenRole, find_entry, make_token

needs_cyrus = pytest.mark.skipif(not proton.SASL.extended(), reason="a client needs Cyrus SASL in Proton for SCRAM")


def verifiers(name: str, password: str) -> str:
    return UserLogin.of(name, password, bytes(16), 4096).text


async def know(cluster: InProcessCluster, *users: str) -> None:
    await eventually(
        lambda: all(set(broker.files.engines.kept.users.by_name) == set(users) for broker in cluster.brokers.values())
    )


async def log_in(cluster: InProcessCluster, name: str, user: str, password: str) -> BlockingConnection:
    return await asyncio.to_thread(
        BlockingConnection, cluster.url(name), timeout=30, user=user, password=password, allowed_mechs="SCRAM-SHA-256"
    )


async def is_refused(cluster: InProcessCluster, name: str, user: str, password: str) -> bool:
    try:
        await log_in(cluster, name, user, password)
    except proton.ProtonException as refused:
        return "amqp:unauthorized-access" in str(refused)
    return False


def users_of(cluster: InProcessCluster, name: str) -> list[str]:
    return [connection.identity.user for connection in cluster.brokers[name].connections.open]


@needs_cyrus
@in_event_loop
async def test_a_user_added_at_one_broker_logs_in_at_another_after_a_failover_and_a_restart_until_he_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    directories = {name: str(tmp_path / f"data-{name}") for name in ("a", "b")}
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        for name in ("a", "b"):
            await cluster.stop(name)
            await cluster.start(name, data_dir=directories[name])
        await cluster.form_with_controller("a")
        assert await is_refused(cluster, "a", "olga", "geheim")
        told = await cluster.ask("b", "users", action="set", name="olga", verifiers=verifiers("olga", "geheim"))
        assert told == {"name": "olga", "was_there": False}
        await know(cluster, "olga")
        await log_in(cluster, "a", "olga", "geheim")
        assert users_of(cluster, "a").count("olga") == 1
        assert await is_refused(cluster, "a", "olga", "wrong")

        await cluster.stop("a")
        await cluster.ask("b", "promote")
        await log_in(cluster, "b", "olga", "geheim")
        await cluster.ask("b", "shutdown", cluster=True)
        await cluster.brokers["b"].ended.wait()
        await cluster.stop("b")
        for name in ("a", "b"):
            await cluster.start(name, data_dir=directories[name])
        await cluster.ask("b", "promote")
        await cluster.reach("a", State.READY)
        await cluster.knows_controller("a")
        await log_in(cluster, "b", "olga", "geheim")

        await cluster.ask("a", "users", action="set", name="olga", verifiers=verifiers("olga", "other"), replaces=True)
        await eventually(lambda: "olga" not in users_of(cluster, "b"))
        assert "olga has another password" in caplog.text
        assert await is_refused(cluster, "b", "olga", "geheim")
        await log_in(cluster, "b", "olga", "other")
        await cluster.ask("a", "users", action="remove", name="olga")
        await eventually(lambda: "olga" not in users_of(cluster, "b"))
        assert await is_refused(cluster, "b", "olga", "other")
    assert "user olga of the cluster: changed" in caplog.text
    assert "SCRAM-SHA-512$" not in caplog.text


@in_event_loop
async def test_what_is_kept_of_a_password_is_in_no_list_no_history_and_no_event(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form_with_controller("a")
        secret = verifiers("olga", "geheim")
        await cluster.ask("b", "users", action="set", name="olga", verifiers=secret)
        token, entry = make_token("grafana", TokenRole.VIEWER)
        await cluster.ask("b", "tokens", action="set", name="grafana", role="viewer", digest=entry.digest)
        await know(cluster, "olga")
        await eventually(
            lambda: all(broker.files.engines.kept.tokens == {"grafana": entry} for broker in cluster.brokers.values())
        )
        shown: list[Any] = [await cluster.ask(name, "settings") for name in ("a", "b")]
        shown += [await cluster.ask("a", "settings", action="history"), await cluster.ask("a", "query", all=True)]
        shown += [await cluster.ask("a", "users"), await cluster.ask("b", "tokens")]
        shown += [await cluster.ask("a", "get"), await cluster.ask("a", "history", sets=True)]
        events = cluster.brokers["b"].container.notices.events.last([EventSubject.SETTING_CHANGED], 10)
        shown += [event.facts for event in events]
        assert {event.facts["key"] for event in events} == {"user/olga", "token/grafana"}
        for part in (*secret.split(" "), entry.digest, token):
            assert part not in str(shown)
        assert [row["user"] for row in await cluster.ask("a", "users")] == ["olga"]
        assert await cluster.ask("a", "users", action="export") == [{"name": "olga", "verifiers": secret}]


@in_event_loop
async def test_who_is_there_is_not_added_and_who_is_not_is_neither_changed_nor_removed(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form_with_controller("a")
        wanted = {"action": "set", "name": "olga", "verifiers": verifiers("olga", "geheim")}
        with pytest.raises(RequestRefused, match="has no user olga"):
            await cluster.ask("b", "users", replaces=True, **wanted)
        await cluster.ask("b", "users", is_new=True, **wanted)
        with pytest.raises(RequestRefused, match="has a user olga already"):
            await cluster.ask("a", "users", is_new=True, **wanted)
        with pytest.raises(RequestRefused, match="has no token olga"):
            await cluster.ask("a", "tokens", action="remove", name="olga")
        for wrong in ("geheim", "SCRAM-SHA-256$1:x$y:z"):
            with pytest.raises(RequestRefused, match="verifier") as refused:
                await cluster.ask("a", "users", action="set", name="eve", verifiers=wrong)
            assert wrong not in str(refused.value)


@in_event_loop
async def test_who_the_brokers_are_to_each_other_is_no_user_of_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("x")
    (tmp_path / "password").chmod(0o600)
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form_with_controller("a")
        await cluster.stop("b")
        await cluster.start("b", ha__username="olga", ha__password_file=str(tmp_path / "password"))
        wanted = {"action": "set", "name": "olga", "verifiers": verifiers("olga", "geheim")}
        with pytest.raises(RequestRefused, match=r"ha\.username"):
            await cluster.ask("b", "users", **wanted)


@needs_cyrus
@in_event_loop
async def test_the_commands_hash_what_is_typed_and_a_definitions_file_has_users_only_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    async def run(name: str, *words: object, given: str = "") -> str:
        broker = ("-b", tmp_path / f"{name}.sock")
        result = await asyncio.to_thread(qpid_ha, *words, *broker, answer=given)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form_with_controller("a")
        assert "user olga added, at all brokers" in await run("b", "user", "add", "olga", given="geheim\n")
        await know(cluster, "olga")
        await log_in(cluster, "a", "olga", "geheim")
        refused = await asyncio.to_thread(qpid_ha, "user", "add", "olga", "-b", tmp_path / "a.sock", answer="other\n")
        assert (refused.exit_code, "has a user olga already" in refused.stderr) == (1, True)
        assert "has this password" in await run("a", "user", "password", "olga", given="other\n")
        assert "olga" in await run("b", "user", "list")
        token = (await run("b", "token", "add", "grafana", "--role", "viewer")).strip()
        kept = cluster.brokers["a"].files.engines.kept
        await eventually(lambda: find_entry(kept.tokens.values(), token))
        assert "grafana" in await run("a", "token", "list")

        with_users, without = tmp_path / "with.yaml", tmp_path / "without.yaml"
        await run("a", "definitions", "export", with_users, "--with-users")
        await run("a", "definitions", "export", without)
        assert with_users.stat().st_mode & 0o777 == 0o600
        assert "SCRAM" in with_users.read_text()
        assert not any(word in without.read_text() for word in ("olga", "grafana", "SCRAM"))
        await run("a", "user", "remove", "olga")
        await run("b", "token", "remove", "grafana")
        assert "0 done" in await run("a", "definitions", "import", with_users)
        await know(cluster)
        assert "user olga created" in await run("a", "definitions", "import", with_users, "--with-users")
        await know(cluster, "olga")
        await log_in(cluster, "a", "olga", "other")
        await eventually(lambda: find_entry(kept.tokens.values(), token))


@in_event_loop
async def test_in_no_cluster_the_commands_are_about_the_file(tmp_path: Path) -> None:
    async with InProcessBroker(tmp_path):
        words = ("token", "add", "ops", "--role", "viewer", "-b", tmp_path / "broker.sock")
        result = await asyncio.to_thread(qpid_ha, *words)
        assert (result.exit_code, "admin.tokens" in result.stderr) == (2, True)
