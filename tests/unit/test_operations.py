"""The table of management operations: from one row an operation is there at each door, for whom the row says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import requests

from access_support import controlled
from cluster_in_process import InProcessBroker, InProcessCluster, eventually
from event_loops import in_event_loop
from http_port import write_tokens
from paired_engines import PairedBroker, PairedClient
from paired_links import ask, status
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.access.audit import AuditChannel, AuditedAct, Caller
from qpid_ha_broker.access.operations import (
    ALL,
    OPERATIONS,
    ROWS,
    AnswerTime,
    ControlForm,
    ControllerForm,
    Effect,
    ManagementForm,
    NodePermission,
    Operation,
    OperationTable,
    ParameterKind,
)
from qpid_ha_broker.access.rules import Permission
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.management_messages import OK, UNAUTHORIZED, ManagementAnswer
from qpid_ha_broker.amqp.nodes.queue_messages import managed_objects
from qpid_ha_broker.cluster.messages import REQUESTS
from qpid_ha_broker.model.commands.administration import Done, Facts, Outcome
from qpid_ha_broker.server.control.administration import control_methods
from qpid_ha_broker.server.control.control import INVALID_PARAMS, NOT_ALLOWED, ControlError
from qpid_ha_broker.server.http.http_admin import open_admin_port
from qpid_ha_config.tokens import TokenRole

NAME, TEXT = ParameterKind.NAME, ParameterKind.TEXT
OLGA = Caller(AuditChannel.HTTP, "olga", "192.0.2.1")

ANNOTATE = Operation(
    ControlForm("queues", "annotate", TokenRole.OPERATOR, ("name",), (NodePermission(Permission.BROWSE, "name"),)),
    ManagementForm("queue", "ANNOTATE", Permission.BIND, ("name", "identity"), ("note",), "Annotated"),
    {"name": NAME, "note": TEXT},
    Effect.WRITES,
    AnswerTime.COMMITTED,
    lambda on: lambda name, note=None: on.leading(name).update_queue(name, {"x-note": note}),
)
"""Made up: an operator may, who administers through AMQP needs `browse` besides, an application `bind`."""
DEPTH = Operation(
    ControlForm("depths", ALL, TokenRole.VIEWER),
    ManagementForm("queue", "DEPTH", Permission.MANAGE, None),
    {"name": NAME},
    Effect.READS,
    AnswerTime.AT_ONCE,
    lambda on: lambda name: {"depth": on.administration.queue(name)["messages"]},
)
"""Made up: a method without actions that only looks, and that a backup answers."""


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table, with rows of which no other file knows."""
    table = OperationTable((*ROWS, ANNOTATE, DEPTH))
    for part in ("by_method", "by_type", "acts"):
        monkeypatch.setattr(OPERATIONS, part, getattr(table, part))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- from a row to each door


@in_event_loop
async def test_the_control_socket_has_it_and_the_audit_log_what_its_row_names(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    async with InProcessBroker(tmp_path, {"audit.file": str(audit)}) as node1:
        await node1.ask("queues", action="create", name="orders")
        answer = await node1.ask("queues", action="annotate", name="orders", note="secret")
        assert answer["arguments"] == {"x-note": "secret"}
        assert await node1.ask("depths", name="orders") == {"depth": 0}
        for wrong, problem in (
            ({"note": "n"}, "name is missing"),
            ({"name": "orders", "colour": 1}, "known: action, name, note"),
        ):
            with pytest.raises(RequestRefused, match=problem):
                await node1.ask("queues", action="annotate", **wrong)
        with pytest.raises(RequestRefused, match="unknown parameter"):
            await node1.ask("depths", action="list", name="orders")
    created, annotated, *refused = lines(audit)
    assert [created["act"], annotated["act"]] == ["queues create", "queues annotate"]
    assert annotated["params"] == {"name": "orders"}
    assert [line["params"] for line in refused] == [{}, {"name": "orders"}]


@in_event_loop
async def test_http_lets_tokens_have_it_whose_role_is_that_of_its_row(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens")
    settings = {"admin.listen": "http://127.0.0.1:0", "admin.tokens": str(tmp_path / "tokens")}
    async with InProcessBroker(tmp_path, settings) as node1:
        await node1.ask("queues", action="create", name="orders")
        port = await open_admin_port(node1.broker)
        try:
            for method, role, code in (
                ("queues", TokenRole.VIEWER, NOT_ALLOWED),
                ("queues", TokenRole.OPERATOR, None),
                ("depths", TokenRole.VIEWER, None),
            ):
                params = {"name": "orders", **({"action": "annotate"} if method == "queues" else {})}
                reply = await asyncio.to_thread(
                    requests.post,
                    f"{port.addresses[0]}/rpc",
                    json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
                    headers={"Authorization": f"Bearer {tokens[role]}"},
                    timeout=10,
                )
                assert reply.json().get("error", {}).get("code") == code, (method, role)
        finally:
            await port.close()


@in_event_loop
async def test_who_administers_through_amqp_needs_the_permission_of_its_row_on_the_queue(tmp_path: Path) -> None:
    async with InProcessBroker(tmp_path) as node1:
        container = node1.broker.container
        await node1.ask("queues", action="create", name="orders")
        body = json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "queues", "params": {"action": "annotate", "name": "orders"}}
        )
        for rules, code in (
            (["allow olga administer"], UNAUTHORIZED),
            (["allow olga administer", "allow olga browse others"], UNAUTHORIZED),
            (["allow olga browse orders"], UNAUTHORIZED),
            (["allow olga administer", "allow olga browse orders"], OK),
        ):
            container.access.change(controlled(*rules).rules, "")
            answers: asyncio.Queue[ManagementAnswer] = asyncio.Queue()
            assert container.management.control is not None
            container.management.control(
                PeerIdentity("10.0.0.1:5", "olga", True), body, answers.put_nowait, lambda: False
            )
            answer = await answers.get()
            assert answer.status == code, rules
            assert code != OK or "error" not in json.loads(str(answer.body))


def test_management_has_it_for_who_has_the_permission_of_its_row() -> None:
    broker = PairedBroker()
    acts: list[AuditedAct] = []
    broker.container.management.record = acts.append
    client = broker.connect()
    assert status(client, "CREATE", {}, type="queue", name="q") == 201
    for allowed, code in (("manage", 401), ("bind", 200)):
        broker.container.access.change(controlled(f"allow all {allowed}", "deny all all").rules, "")
        assert status(client, "ANNOTATE", {}, type="queue", name="q", note="secret") == code
        assert status(client, "DEPTH", {}, type="queue", name="q") == (200 if allowed == "manage" else 401)
    assert [(act.act, act.params, act.result.value) for act in acts[1:]] == [
        ("queue ANNOTATE", {"name": "q"}, "denied"),
        ("queue ANNOTATE", {"name": "q"}, "done"),
    ]
    assert operations_of(client)["ANNOTATE"] == ["note"]
    assert "ANNOTATE" not in OPERATIONS.by_type["exchange"]


def operations_of(client: PairedClient) -> Any:
    return ask(client, "GET-OPERATIONS", {}).body["org.qpid_ha.queue"]


@in_event_loop
async def test_a_backup_passes_on_what_writes_and_answers_what_only_looks(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        await cluster.ask("a", "queues", action="create", name="orders")
        assert (await cluster.ask("b", "queues", action="annotate", name="orders", note="m"))["set"] == "default"
        with pytest.raises(RequestRefused, match="changes nothing: ask a") as refused:
            await cluster.ask("b", "queues", action="no-such", name="orders")
        assert isinstance(refused.value.data, dict)
        assert refused.value.data["reason"] == "not-primary"
        replica = cluster.brokers["b"].container.management.administration
        await eventually(lambda: replica.has_queue("orders"))
        assert await cluster.ask("b", "depths", name="orders") == {"depth": 0}
        assert (await cluster.ask("b", "queues", action="read", name="orders"))["messages"] == 0
        assert (await cluster.ask("a", "queues", action="annotate", name="orders", note="n"))["set"] == "default"


@in_event_loop
async def test_what_writes_is_answered_when_it_is_committed_and_what_reads_at_once(tmp_path: Path) -> None:
    waited_for: list[Outcome[Any]] = []

    async def wait_done(outcome: Outcome[Any]) -> object:
        waited_for.append(outcome)
        done = outcome.done()
        assert done is not None
        return done.result

    broker = PairedBroker()
    settings: Any = None
    broker.container.default.configuration.declare_queue("orders", {})
    administration = broker.container.management.administration
    methods = control_methods("node1", administration, settings, wait_done)
    await answered(methods["depths"]({"name": "orders"}))
    assert waited_for == []
    await answered(methods["queues"]({"action": "annotate", "name": "orders", "note": "n"}))
    assert [type(outcome) for outcome in waited_for] == [Done]


async def answered(answer: Any) -> object:
    return await answer


# --- rows that are wrong


Fields = dict[str, Any]


def changed(row: Operation, control: Fields | None = None, management: Fields | None = None, **more: Any) -> Operation:
    """The row, other than it was in one thing."""
    assert row.control is not None
    assert row.management is not None
    forms: Fields = {
        "control": row.control._replace(**control or {}),
        "management": row.management._replace(**management or {}),
    }
    return row._replace(**{**forms, **more})


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (changed(ANNOTATE, {"audited": None}), "which parameters are audited"),
        (changed(ANNOTATE, {"audited": ("name", "nmae")}), "no parameters nmae, which are audited"),
        (changed(ANNOTATE, {"nodes": (NodePermission(Permission.BROWSE, "note"),)}), "a queue that no parameter names"),
        (
            changed(ANNOTATE, {"nodes": (NodePermission(Permission.PUBLISH, "name", "key"),)}),
            "a topic that no parameter names",
        ),
        (changed(ANNOTATE, {"action": "purge"}), "queues purge: it has two rows"),
        (changed(ANNOTATE, {"method": "get"}), "get: it has actions, and a row without one"),
        (changed(ANNOTATE, {"method": "new"}), "new: its first action changes something"),
        (changed(ANNOTATE, {}, {"operation": "PURGE"}), "queue PURGE has two rows"),
        (changed(ANNOTATE, {}, {"type": "exchange", "operation": "PURGE", "audited": ()}), "audited otherwise"),
        (changed(ANNOTATE, {}, {"properties": ("nota",)}), "no parameters nota, which are properties"),
        (changed(ANNOTATE, {}, {"type": "topic"}), "no type topic"),
        (changed(ANNOTATE, parameters={"name": NAME, "note": TEXT, "action": TEXT}), "its action is no parameter"),
        (changed(ANNOTATE, controller=ControllerForm("set-note", {"set": "name"})), "no parameters set, which the"),
        (changed(ANNOTATE, effect=Effect.READS), "nothing of it is ever committed"),
        (changed(ANNOTATE, call=None), "nothing says what is done"),
        (changed(ANNOTATE, answered=AnswerTime.OUTCOME), "waits for nobody else"),
        (changed(ANNOTATE, answered=AnswerTime.AT_ONCE, counts="notes"), "is not answered with a number"),
        (changed(ANNOTATE, parameters={"note": TEXT}, answered=AnswerTime.ALL_SHOWN), "says of which"),
        (ANNOTATE._replace(control=None, management=None), "no way to ask"),
        (changed(DEPTH, {"audited": ("name",)}), "it reads, and has audited parameters"),
        (changed(DEPTH, {}, {"audited": ("name",)}), "it reads, and is an administrative act"),
    ],
)
def test_a_row_in_which_something_is_missing_is_an_error_when_the_table_is_made(row: Operation, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        OperationTable((*ROWS, row))


@pytest.mark.parametrize(
    "row", [ANNOTATE._replace(answered=AnswerTime.AT_ONCE), DEPTH._replace(answered=AnswerTime.COMMITTED)]
)
def test_a_row_that_is_wrong_about_its_commit_is_a_bug_and_no_answer(row: Operation) -> None:
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("orders", {})
    administration = broker.container.management.administration
    call: Any = row.call
    with pytest.raises(TypeError, match="says its row"):
        row.carry_out(administration, call(managed_objects(administration)), {"name": "orders"})


# --- the rows that there are


WRONG: dict[ParameterKind, object] = {
    ParameterKind.NAME: 5,
    ParameterKind.TEXT: 5,
    ParameterKind.FLAG: "x",
    ParameterKind.NUMBER: "x",
    ParameterKind.LIST: 5,
    ParameterKind.ARGUMENTS: 5,
    ParameterKind.SETTING: 5,
}
"""A value of no such kind."""


@in_event_loop
async def test_the_broker_takes_the_parameters_of_each_row_and_no_others(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        control = cluster.brokers["a"].control

        async def problem(row: Operation, params: Facts) -> str:
            assert row.control is not None
            action = {} if row.control.action == ALL else {"action": row.control.action}
            request = {"jsonrpc": "2.0", "id": 1, "method": row.control.method, "params": {**action, **params}}
            reply = json.loads((await control.answer(json.dumps(request).encode(), OLGA)).reply or b"")
            return str(reply.get("error", {}).get("message", ""))

        for row in ROWS:
            if row.control is None:
                continue
            assert (await problem(row, {"zzzzzzzz": 1})).startswith("unknown parameter"), row.text
            for name, kind in row.parameters.items():
                text = await problem(row, {name: WRONG[kind]})
                assert not text.startswith("unknown parameter"), (row.text, name, text)
                assert "because of a bug" not in text, (row.text, name, text)


@pytest.mark.parametrize("row", [row for row in ROWS if row.controller is not None], ids=lambda row: row.text)
def test_the_controller_has_each_request_with_the_parameters_that_it_gets(row: Operation) -> None:
    assert row.controller is not None
    passed_on = row.controller.params(dict.fromkeys(row.parameters, 1), row.parameters)
    assert "cause" not in passed_on
    assert {*passed_on} <= {*REQUESTS[row.controller.method]._fields}


@pytest.mark.parametrize("row", [row for row in ROWS if row.call is not None], ids=lambda row: row.text)
def test_a_value_of_another_kind_is_refused(row: Operation) -> None:
    broker = PairedBroker()
    for name in ("orders", "others"):
        broker.container.default.configuration.declare_queue(name, {})
    given: dict[str, object] = {"name": "orders", "to": "others", "queue": "orders", "kind": "fanout", "id": 1}
    given |= {"after": "" if "limit" in row.parameters else 0, "up_to": 1, "timestamp": 0}
    if row.control is not None and row.control.method == "exchanges" and row.control.action != "create":
        given["name"] = "amq.topic"
    right = {name: value for name, value in given.items() if name in row.parameters}

    async def wait_done(outcome: Outcome[Any]) -> object:
        return outcome

    unused: Any = None
    administration = broker.container.management.administration
    for name, kind in row.parameters.items():
        wrong = {**right, name: WRONG[kind]}
        if row.control is not None:
            methods: Any = control_methods("node1", administration, unused, wait_done)
            with pytest.raises(ControlError) as refused:
                asyncio.run(methods[row.control.method]({"action": row.control.action, **wrong}))
            assert refused.value.code == INVALID_PARAMS, name
        elif name != "name":
            client = broker.connect()
            assert row.management is not None
            assert status(client, row.management.operation, {}, type=row.management.type, **wrong) == 400, name
