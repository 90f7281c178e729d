"""The audit log: who did what, from where, and what came of it. Never a secret, and never in silence without a line."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import proton
import pytest

from access_support import controlled
from cluster_in_process import InProcessCluster, eventually
from event_loops import in_event_loop
from paired_engines import PairedBroker
from paired_links import status
from paired_proxy import paired_broker
from qpid_ha_broker.access.audit import AuditChannel, AuditedAct, AuditResult, Caller, audited
from qpid_ha_broker.access.operations import ALL, OPERATIONS
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.management_messages import UNAUTHORIZED, ManagementAnswer
from qpid_ha_broker.server.control.audit_log import AuditLog
from qpid_ha_broker.server.control.audited_requests import audited_request
from qpid_ha_broker.server.control.control import ControlError, ControlServer
from qpid_ha_broker.server.control.remote_control import RemoteControl
from qpid_ha_broker.server.http.http_roles import needed_role
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import BrokerSettings
from qpid_ha_config.tokens import TokenRole

OLGA = Caller(AuditChannel.HTTP, "olga", "192.0.2.1")
ACT = AuditedAct(OLGA, "queues purge", {"name": "q"}, AuditResult.DONE)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- the table


REQUESTS: list[tuple[str, dict[str, object], bool]] = [
    ("ping", {}, False),
    ("status", {}, False),
    ("query", {}, False),
    ("get", {}, False),
    ("settings", {}, False),
    ("settings", {"action": "history"}, False),
    ("settings", {"action": "set", "key": "log-level", "value": "debug"}, True),
    ("settings", {"action": "unset", "key": "max-connections"}, True),
    ("users", {}, False),
    ("users", {"action": "export"}, False),
    ("users", {"action": "set", "name": "none"}, True),
    ("users", {"action": "remove", "name": "none"}, True),
    ("tokens", {}, False),
    ("tokens", {"action": "export"}, False),
    ("tokens", {"action": "set", "name": "none"}, True),
    ("tokens", {"action": "remove", "name": "none"}, True),
    ("backups", {}, False),
    ("history", {}, False),
    ("map", {}, False),
    ("remote-nodes", {}, False),
    ("list-acl", {}, False),
    ("check-acl", {"user": "a", "action": "publish", "node": "q"}, False),
    ("user-limits", {"user": "a"}, False),
    ("pause", {}, False),
    ("pause", {"action": "show"}, False),
    ("pause", {"action": "begin", "for_s": 60, "reason": "work", "by": "olga"}, True),
    ("pause", {"action": "end", "by": "olga"}, True),
    ("queues", {}, False),
    ("queues", {"action": "read", "name": "q"}, False),
    ("queues", {"action": "check", "name": "q"}, False),
    ("queues", {"action": "create", "name": "q"}, True),
    ("queues", {"action": "update", "name": "q", "arguments": {}}, True),
    ("queues", {"action": "purge", "name": "q"}, True),
    ("queues", {"action": "peek", "name": "q"}, False),
    ("queues", {"action": "payload", "name": "q", "after": 0}, False),
    ("queues", {"action": "publish", "name": "q", "body": "x"}, True),
    ("queues", {"action": "move", "name": "q", "to": "none"}, True),
    ("queues", {"action": "copy", "name": "q", "to": "none"}, True),
    ("queues", {"action": "retry", "name": "q"}, True),
    ("queues", {"action": "redirect", "name": "q", "exchange": "amq.fanout", "key": "k"}, True),
    ("queues", {"action": "delete", "name": "none"}, True),
    ("exchanges", {}, False),
    ("exchanges", {"action": "read", "name": "amq.topic"}, False),
    ("exchanges", {"action": "create", "name": "x", "kind": "fanout"}, True),
    ("exchanges", {"action": "bind", "name": "x", "queue": "q"}, True),
    ("exchanges", {"action": "unbind", "name": "x", "queue": "q"}, True),
    ("exchanges", {"action": "delete", "name": "x"}, True),
    ("sessions", {}, False),
    ("sessions", {"action": "end", "name": "none"}, True),
    ("connections", {}, False),
    ("connections", {"action": "close", "id": 0}, True),
    ("sets", {}, False),
    ("sets", {"action": "show", "name": "none"}, False),
    ("sets", {"action": "create", "name": "default"}, True),
    ("sets", {"action": "delete", "name": "none"}, True),
    ("sets", {"action": "transfer", "name": "none"}, True),
    ("sets", {"action": "promote", "name": "none"}, True),
    ("sets", {"action": "add-replica", "name": "none"}, True),
    ("sets", {"action": "remove-replica", "name": "none"}, True),
    ("brokers", {}, False),
    ("brokers", {"action": "drain", "name": "none"}, True),
    ("brokers", {"action": "undrain", "name": "none"}, True),
    ("brokers", {"action": "leave", "name": "none"}, True),
    ("brokers", {"action": "fail", "name": "none"}, True),
    ("brokers", {"action": "forget", "name": "none"}, True),
    ("replicas", {}, False),
    ("replicas", {"action": "list-policies"}, False),
    ("replicas", {"action": "trim", "name": "none"}, True),
    ("replicas", {"action": "policies"}, True),
    ("rebalance", {"plan": True}, False),
    ("rebalance", {}, True),
    ("replicate", {}, False),
    ("replicate", {"queue": "q"}, True),
    ("set", {"key": "log-level", "value": "info"}, True),
    ("promote", {}, True),
    ("demote", {"no": 1}, True),
    ("switchover", {"to": "none"}, True),
    ("drop", {"backup": "none"}, True),
    ("shutdown", {"no": 1}, True),
    ("reload-tls", {}, True),
    ("reload-acl", {}, True),
]
"""Each request that changes something, or is refused, and each that does not."""


@in_event_loop
async def test_each_changing_request_has_one_line_with_its_result_and_a_look_none(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        broker = cluster.brokers["a"]
        broker.files.audit.path = path
        for method, params, changes in REQUESTS:
            before = len(lines(path)) if path.exists() else 0
            request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = json.loads((await broker.control.answer(json.dumps(request).encode(), OLGA)).reply or b"")
            written = lines(path)[before:] if path.exists() else []
            assert len(written) == changes, (method, params, answer, written)
            for line in written:
                act = " ".join(filter(None, (method, params.get("action"))))  # type: ignore[arg-type]
                assert (line["act"], line["user"], line["address"], line["channel"]) == (
                    act, "olga", "192.0.2.1", "http",
                )  # fmt: skip
                assert line["result"] == ("refused" if "error" in answer else "done"), (line, answer)
        await check_rows_are_whole(broker.control.methods)


async def check_rows_are_whole(methods: Mapping[str, Any]) -> None:
    """A request that the broker has and the table has not: give it a row in `access/operations.py`, and one in
    `REQUESTS`."""
    rows = OPERATIONS.by_method
    assert set(methods) == set(rows)
    tried = {(method, params.get("action", ALL)) for method, params, _ in REQUESTS}
    for method, call in methods.items():
        if ALL in rows[method]:
            continue
        with pytest.raises(ControlError) as refused:  # which names those that there are
            await call({"action": "~"})
        actions = set(re.findall(r"[a-z][a-z-]*", refused.value.message.partition(":")[2])) or set(rows[method])
        assert actions == set(rows[method]), (method, refused.value.message)
        assert {(method, action) for action in actions} - tried <= {(method, "list"), (method, "plan")}


@pytest.mark.parametrize(("method", "params", "changes"), REQUESTS)
def test_what_changes_something_is_nothing_for_viewers(method: str, params: dict[str, object], changes: bool) -> None:
    assert (audited_request(method, params) is not None) is changes
    if changes:
        assert not TokenRole.VIEWER.includes(needed_role(method, params))


def test_a_request_without_a_row_has_a_line_and_nothing_of_its_params_is_told() -> None:
    assert audited_request("no-such", {"password": "secret"}) == ("no-such", {})
    assert audited_request("queues", {"action": "no-such", "body": "secret"}) == ("queues no-such", {})


# --- what is never in it


def test_secrets_are_in_no_line() -> None:
    planted: list[tuple[str, dict[str, object]]] = [
        ("set", {"key": "ha.password", "value": "SECRET"}),
        ("set", {"key": "no-such", "value": "SECRET"}),
        ("queues", {"action": "create", "name": "q", "arguments": {"x-token": "SECRET"}, "body": "SECRET"}),
        ("queues", {"action": "create", "name": "q", "arguments": {"qpid.cluster.source": "amqp://u:SECRET@h/q"}}),
        ("replicate", {"queue": "q", "address": "amqp://u:SECRET@h:5672"}),
        ("promote", {"token": "SECRET"}),
        ("users", {"action": "set", "name": "olga", "verifiers": "SECRET", "password": "SECRET"}),
        ("tokens", {"action": "set", "name": "x", "role": "viewer", "digest": "SECRET"}),
    ]
    for method, params in planted:
        found = audited_request(method, params)
        assert found is not None
        assert "SECRET" not in json.dumps(found), found
    told_of = audited({"arguments": {"qpid.max_count": 5, "x-note": "n"}, "name": "q" * 500}, ("name", "arguments"))
    assert told_of["arguments"] == {"qpid.max_count": 5}
    assert len(str(told_of["name"])) < 250


# --- the file


def test_the_file_is_its_owners_and_a_line_has_who_what_and_what_came_of_it(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = AuditLog(path, "node1", lambda: 1.5)
    audit.record(ACT)
    audit.record(ACT._replace(result=AuditResult.REFUSED, reason="not-primary"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = lines(path)
    assert first == {
        "time": "1970-01-01T00:00:01.500Z", "broker": "node1", "channel": "http", "user": "olga",
        "address": "192.0.2.1", "act": "queues purge", "params": {"name": "q"}, "result": "done",
    }  # fmt: skip
    assert (second["result"], second["reason"]) == ("refused", "not-primary")


def test_a_file_that_was_moved_away_or_torn_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.write_text('{"half a li')
    path.chmod(0o600)
    audit = AuditLog(path, "node1")
    audit.record(ACT)
    assert [line[:7] for line in path.read_text().splitlines()] == ['{"half ', '{"time"']
    path.rename(tmp_path / "audit.1")
    audit.record(ACT)
    audit.reopen()
    audit.record(ACT)
    assert len(lines(path)) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_that_cannot_be_written_are_counted_and_owned_up_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit"
    audit = AuditLog(path, "node1")
    audit.record(ACT)
    before, size = resource.getrlimit(resource.RLIMIT_FSIZE), path.stat().st_size
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        audit.record(ACT)  # 20 bytes of it fit
        audit.record(ACT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert audit.facts() == {"audit": str(path), "audit_lost": 2}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    audit.record(ACT)
    _, torn, owned, last = path.read_text().splitlines()
    assert len(torn) == 20
    assert (json.loads(owned)["act"], json.loads(owned)["params"]) == ("audit-lines-lost", {"count": 2})
    assert json.loads(last)["act"] == "queues purge"


def test_a_file_that_others_may_change_or_that_is_none_is_no_start(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.touch()
    path.chmod(0o620)
    with pytest.raises(SettingsError, match="chmod go-w"):
        AuditLog(path, "node1")
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(path)
    for wrong in (fifo, link, tmp_path / "none" / "audit"):
        with pytest.raises(SettingsError, match=r"audit\.file: cannot write"):
            AuditLog(wrong, "node1")


# --- through AMQP


def test_management_has_a_line_for_what_changes_something_also_where_it_is_denied() -> None:
    broker = PairedBroker()
    acts: list[AuditedAct] = []
    broker.container.management.record = acts.append
    client = broker.connect()
    queue = {"type": "queue", "name": "q"}
    statuses = [
        status(client, "CREATE", {"arguments": {"qpid.max_count": 5, "x-note": "n"}}, **queue),
        status(client, "READ", {}, **queue),
        status(client, "QUERY", {}),
        status(client, "PURGE", {}, **queue),
        status(client, "DELETE", {}, type="queue", name="none"),
    ]
    broker.container.access.change(controlled("deny all all").rules, "")
    statuses.append(status(client, "DELETE", {}, **queue))
    assert statuses == [201, 200, 200, 200, 404, 401]
    assert [(act.act, act.params.get("name"), act.result.value, act.reason) for act in acts] == [
        ("queue CREATE", "q", "done", ""),
        ("queue PURGE", "q", "done", ""),
        ("queue DELETE", "none", "refused", "404"),
        ("queue DELETE", "q", "denied", "401"),
    ]
    assert acts[0].params["arguments"] == {"qpid.max_count": 5}
    assert acts[0].caller == Caller(AuditChannel.MANAGEMENT, "", client.peer.peer)


def test_management_by_way_of_a_proxy_has_the_client_and_not_the_proxy() -> None:
    broker = paired_broker("proxied")
    acts: list[AuditedAct] = []
    broker.container.management.record = acts.append
    client = broker.connect()
    client.peer.peer = "192.0.2.9:7"
    assert status(client, "CREATE", {}, type="queue", name="new") == 201
    assert [act.caller for act in acts] == [Caller(AuditChannel.MANAGEMENT, "", "192.0.2.9:7", via=("proxy",))]


def test_a_purge_that_nobody_waits_for_any_more_has_a_line() -> None:
    broker = PairedBroker()
    acts: list[AuditedAct] = []
    broker.container.management.record = acts.append
    ticks = iter(range(1_000_000))
    client = broker.connect()
    broker.container.default.configuration.declare_queue("q", {})
    publisher = client.sender("q")
    for _ in range(10):
        client.send(publisher, proton.Message("x"))
    broker.settle_down()
    broker.container.clock = lambda: next(ticks)  # each look at the clock is a second: a slice ends at once
    requests = client.sender("$management")
    properties = {"operation": "PURGE", "type": "queue", "name": "q"}
    client.send(requests, proton.Message(properties=properties, reply_to="$management"))
    client.exchange()
    client.vanish()
    assert [act.act for act in acts] == ["queue PURGE"]
    assert acts[0].result in (AuditResult.UNKNOWN, AuditResult.DONE)


@in_event_loop
async def test_an_administrator_through_amqp_is_named_and_one_who_may_not_too(tmp_path: Path) -> None:
    recorded: list[tuple[str, str, str, str]] = []

    def record(caller: Caller, method: str, params: Mapping[str, object], result: AuditResult, reason: str) -> None:
        recorded.append((caller.channel.value, caller.user, method, result.value))

    access = controlled("allow olga administer")
    control = ControlServer(tmp_path / "none", {"set": lambda params: "done"}, record=record)
    settings = BrokerSettings.from_values({})
    remote = RemoteControl(lambda: settings, access, lambda: None, lambda: control)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "set", "params": {}})
    answers: asyncio.Queue[ManagementAnswer] = asyncio.Queue()
    for user in ("olga", "bob"):
        remote(PeerIdentity("192.0.2.1:5", user, True), body, answers.put_nowait, lambda: False)
        answer = await answers.get()
        assert (answer.status == UNAUTHORIZED) is (user == "bob")
    assert recorded == [("amqp", "olga", "set", "done"), ("amqp", "bob", "set", "denied")]


@in_event_loop
async def test_the_controller_names_who_has_asked_the_broker_that_asks_it(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"audit-{name}" for name in "ab"}
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        for name, path in paths.items():
            audit = cluster.brokers[name].files.audit
            audit.path = path
            cluster.brokers[name].container.management.record = audit.record
        await cluster.form("a")
        sets = cluster.brokers["b"].sets
        await eventually(lambda: sets is not None and sets.client._is_open)
        await cluster.ask("b", "sets", action="create", name="orders")
    asked, passed_on = lines(paths["b"])[-1], lines(paths["a"])[-1]
    assert (asked["act"], asked["channel"], asked["uid"]) == ("sets create", "control-socket", os.getuid())
    assert (passed_on["act"], passed_on["channel"], passed_on["via"]) == ("set-create", "cluster", ["b"])
    assert passed_on["user"] == asked["user"]
    assert passed_on["params"]["name"] == "orders"
