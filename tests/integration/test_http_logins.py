"""Users who log in over HTTP by their passwords: whom the cluster or a file knows, with the rights of the rules."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import proton
import pytest
import requests

from cluster_in_process import InProcessCluster
from event_loops import in_event_loop
from http_port import PATIENCE_S, http_url
from qpid_ha_broker.access.scram import UserLogin
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.http.http_admin import open_admin_port
from qpid_ha_broker.server.http.password_guesses import FREE_OF_USER
from qpid_ha_broker.server.runtime.password_logins import password_problem
from qpid_ha_config.addresses import parse_admin
from qpid_ha_config.settings import BrokerSettings
from running_broker import RunningBroker

PASSWORD = "not committed anywhere else"
VERIFIERS = UserLogin.of("olga", PASSWORD, bytes(16), 4096).text
RULES = ["allow olga administer", "allow olga create", "allow fiona administer", "allow peter all"]
SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin")


class Page:
    """A browser at the HTTP port, which has logged in or not."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = ""

    async def post(self, path: str, body: object = None, **headers: str) -> requests.Response:
        """One answer."""
        given = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self.token}"} if self.token else {}),
        }
        data = json.dumps(body)
        return await asyncio.to_thread(
            requests.post, self.url + path, data=data, headers={**given, **headers}, timeout=PATIENCE_S
        )

    async def log_in(self, user: str, password: str = PASSWORD) -> requests.Response:
        """Have the token, if there is one."""
        answer = await self.post("/login", {"user": user, "password": password})
        self.token = answer.json().get("token", "")
        return answer

    async def ask(self, method: str, **params: object) -> dict[str, Any]:
        """The reply of JSON-RPC, or the refusal."""
        answer = await self.post("/rpc", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        told: dict[str, Any] = answer.json()
        return told


@asynccontextmanager
async def pages_of(broker: Broker) -> AsyncIterator[Page]:
    port = await open_admin_port(broker)
    try:
        yield Page(port.addresses[0])
    finally:
        await port.close()


def with_rules(directory: Path) -> dict[str, Any]:
    (directory / "acl").write_text("\n".join(RULES) + "\n", encoding="utf-8")
    return {"admin__listen": "http://127.0.0.1:0", "acl__file": str(directory / "acl")}


@in_event_loop
async def test_a_user_of_the_cluster_does_what_the_rules_let_him_and_is_in_the_audit_log(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    async with InProcessCluster(tmp_path, "a", "b", **with_rules(tmp_path), audit__file=str(audit)) as cluster:
        await cluster.form("a")
        for name in ("olga", "peter"):
            await cluster.ask("a", "users", action="set", name=name, verifiers=VERIFIERS)
        async with pages_of(cluster.brokers["a"]) as page:
            assert (await page.ask("status"))["error"].startswith("give a token")
            assert (await page.log_in("olga", "wrong")).status_code == 401
            assert (await page.log_in("olga")).status_code == 200
            assert (await page.ask("status"))["result"]["name"] == "a"
            assert (await page.ask("queues", action="create", name="q"))["result"]["created"] is True
            refused = await page.ask("queues", action="peek", name="q")
            assert (refused["error"]["code"], "browse" in refused["error"]["message"]) == (-32001, True)
            (line,) = [
                line for line in map(json.loads, audit.read_text().splitlines()) if line["act"] == "queues create"
            ]
            assert (line["channel"], line["user"], line["address"]) == ("http-user", "olga", "127.0.0.1")
            other = Page(page.url)
            answer = await other.log_in("peter")
            assert (answer.status_code, "administer" in answer.json()["error"]) == (403, True)


@in_event_loop
async def test_who_logs_out_loses_his_right_or_gets_another_password_is_out_at_once(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", **with_rules(tmp_path)) as cluster:
        await cluster.form("a")
        await cluster.ask("a", "users", action="set", name="olga", verifiers=VERIFIERS)
        async with pages_of(cluster.brokers["a"]) as page:
            await page.log_in("olga")
            token = page.token
            assert (await page.post("/logout")).status_code == 204
            assert await page.ask("status") == {"error": "log in again"}
            await page.log_in("olga")
            assert page.token != token
            other = UserLogin.of("olga", "another", bytes(16), 4096).text
            await cluster.ask("a", "users", action="set", name="olga", verifiers=other, replaces=True)
            assert await page.ask("status") == {"error": "log in again"}
            await page.log_in("olga", "another")
            assert "result" in await page.ask("status")
            (tmp_path / "acl").write_text("allow olga all\n", encoding="utf-8")
            await cluster.ask("a", "reload-acl")
            assert "olga" in (await page.ask("status"))["error"]


@pytest.mark.skipif(not proton.SASL.extended(), reason="this Proton was built without Cyrus SASL")
@in_event_loop
async def test_a_user_of_a_file_logs_in_at_a_broker_that_is_in_no_cluster(tmp_path: Path) -> None:
    users = tmp_path / "users.sasldb"
    if SASLPASSWD is None:
        pytest.fail("saslpasswd2 is missing: install sasl2-bin")
    command = [SASLPASSWD, "-p", "-c", "-f", str(users), "fiona"]
    await asyncio.to_thread(subprocess.run, command, input=PASSWORD.encode(), check=True, timeout=30)
    users.chmod(0o600)
    (tmp_path / "acl").write_text("\n".join(RULES) + "\n", encoding="utf-8")
    settings = {"admin.listen": "http://127.0.0.1:0", "sasl.users-db": str(users), "acl.file": str(tmp_path / "acl")}
    with RunningBroker(settings) as broker:  # Cyrus reads its configuration once in a process
        page = Page(http_url(broker))
        assert (await page.log_in("fiona", "wrong")).status_code == 401
        assert (await page.log_in("fiona")).status_code == 200
        assert "result" in await page.ask("queues", action="list")
        assert PASSWORD not in broker.log()


@in_event_loop
async def test_guessed_passwords_are_slowed_down_and_are_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with InProcessCluster(tmp_path, "a", "b", **with_rules(tmp_path)) as cluster:
        await cluster.form("a")
        await cluster.ask("a", "users", action="set", name="olga", verifiers=VERIFIERS)
        async with pages_of(cluster.brokers["a"]) as page:
            guesses = [await page.log_in("olga", f"guess {number}") for number in range(FREE_OF_USER + 1)]
            assert [answer.status_code for answer in guesses] == [401] * FREE_OF_USER + [429]
            right = await page.log_in("olga")
            assert (right.status_code, int(right.headers["Retry-After"]) >= 1) == (429, True)
            bodies: list[object] = [
                "x", [], {"user": "olga"}, {"user": "olga", "password": 7}, {"user": 1, "password": PASSWORD},
            ]  # fmt: skip
            for body in bodies:
                assert (await page.post("/login", body)).status_code == 400
            assert (await page.post("/login", {}, **{"Content-Type": "text/plain"})).status_code == 415
            foreign = await page.post("/login", {"user": "olga", "password": PASSWORD}, Origin="https://evil.example")
            assert foreign.status_code == 403
    assert PASSWORD not in caplog.text
    assert "guess" not in caplog.text


@pytest.mark.parametrize(
    ("address", "settings", "said"),
    [
        ("http://192.0.2.1:8672", {}, "use https"),
        ("http://127.0.0.1:8672", {}, ""),
        ("https://192.0.2.1:8672", {}, ""),
        ("http://192.0.2.1:8672", {"sasl.allow-insecure-plain": True}, ""),
        ("http://127.0.0.1:8672", {"sasl.mechanisms": "SCRAM-SHA-256"}, "sasl.mechanisms leaves PLAIN out"),
        ("http://127.0.0.1:8672", {"sasl.users-db": None}, "there are no users"),
    ],
)
def test_a_password_is_taken_where_a_listener_would_take_one(
    tmp_path: Path, address: str, settings: dict[str, object], said: str
) -> None:
    users = tmp_path / "users.sasldb"
    users.touch(mode=0o600)
    given = {"name": "node1", "sasl.users-db": str(users), **settings}
    broker = BrokerSettings.from_values({key: value for key, value in given.items() if value is not None})
    problem = password_problem(broker, parse_admin(address))
    assert (problem == "", said in problem) == (said == "", True)
