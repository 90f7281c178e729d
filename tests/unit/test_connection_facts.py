"""What an operator sees of connections and their links, who waits for what, and the closing of a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import proton
import pytest

from paired_engines import START_MS, PairedBroker, PairedClient
from paired_links import subscribe
from paired_proxy import PairedProxy
from qpid_ha_broker.access.audit import AuditedAct, AuditResult
from qpid_ha_broker.amqp.connections import connection_facts
from qpid_ha_broker.amqp.connections.connection_facts import ConnectionPlace, connection_page, connection_rows
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.link_state import WaitsFor
from qpid_ha_broker.ha.frames import Answer, Question, Topic
from qpid_ha_broker.server.clients.connection_methods import DEFAULT_REASON, ConnectionMethods
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError
from qpid_ha_broker.server.sets.cluster_connections import UNANSWERED, ClusterConnections
from qpid_ha_broker.server.sets.membership import Membership

SMALL = ContainerSettings("test", "0", max_unsettled_per_connection=2)


@pytest.fixture
def broker() -> PairedBroker:
    return PairedBroker()


def rows_of(broker: PairedBroker) -> list[dict[str, Any]]:
    rows: list[Any] = [{**row, "links": list(row["links"])} for row in connection_rows(broker.connections)]  # type: ignore[call-overload]
    json.dumps(rows)
    return rows


def links_of(broker: PairedBroker) -> list[dict[str, Any]]:
    return [link for row in rows_of(broker) for link in row["links"]]


def test_each_connection_is_shown_with_its_links(broker: PairedBroker) -> None:
    broker.container.now_ms = START_MS + 5
    client = broker.connect()
    client.publish("q", "x")
    subscribe(client, "q", "reader").flow(10)
    broker.settle_down()
    assert rows_of(broker) == [
        {
            "id": 1,
            "kind": "client",
            "user": None,
            "address": "127.0.0.1:1",
            "container": "client-0",
            "since_ms": START_MS + 5,
            "sessions": 1,
            "session": None,
            "unsettled": 1,
            "links": [
                {
                    "name": "to-1", "direction": "from client", "node": "q", "credit": 999, "unsettled": 0,
                    "waits_for": "", "relayed_for": "", "relayed_to": "",
                },
                {
                    "name": "reader", "direction": "to client", "node": "q", "credit": 9, "unsettled": 1,
                    "waits_for": "no message", "relayed_for": "", "relayed_to": "",
                },
            ],
        }
    ]  # fmt: skip


def test_numbers_are_not_used_again_and_who_has_gone_is_not_shown(broker: PairedBroker) -> None:
    first, second = broker.connect(), PairedClient(broker, {"qpid.ha-admin": True})
    broker.settle_down()
    assert [(row["id"], row["kind"]) for row in rows_of(broker)] == [(1, "client"), (2, "administrator")]
    rows = connection_rows(broker.connections)
    assert next(rows)["id"] == 1
    second.connection.close()
    broker.settle_down()
    assert list(rows) == []
    broker.connect()
    first.connection.close()
    broker.settle_down()
    assert [row["id"] for row in rows_of(broker)] == [3]


def asks_for_nothing(broker: PairedBroker, client: PairedClient) -> None:
    subscribe(client, "q")


def has_nothing_to_read(broker: PairedBroker, client: PairedClient) -> None:
    subscribe(client, "q").flow(10)


def finds_nothing_that_matches(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", "x")
    kind = "apache.org:selector-filter:string"
    subscribe(client, "q", filters={"selector": (kind, "colour = 'red'")}).flow(10)


def answers_nothing(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", *"abc")
    subscribe(client, "q").flow(10)


def browses_what_no_backup_has(broker: PairedBroker, client: PairedClient) -> None:
    link: Any = client.session.receiver("link")
    link.source.address = "q"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.open()
    link.flow(10)
    publishes_what_no_backup_has(broker, client)


def publishes_what_no_backup_has(broker: PairedBroker, client: PairedClient) -> None:
    client.sender("q")
    broker.container.default.resources.replicated.log.add_witness("backup")
    client.publish("q", "x")


def comes_to_a_primary_that_waits_for_others(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", "x")
    broker.container.default.resources.is_gated = True
    subscribe(client, "q").flow(10)


def does_not_read(broker: PairedBroker, client: PairedClient) -> None:
    subscribe(client, "q").flow(10)
    broker.settle_down()
    client.peer.window.pause()


@pytest.mark.parametrize(
    ("happens", "waits_for"),
    [
        (asks_for_nothing, WaitsFor.CREDIT),
        (has_nothing_to_read, WaitsFor.MESSAGES),
        (finds_nothing_that_matches, WaitsFor.MATCHING_MESSAGES),
        (answers_nothing, WaitsFor.ANSWERS),
        (browses_what_no_backup_has, WaitsFor.COMMIT),
        (publishes_what_no_backup_has, WaitsFor.COMMIT),
        (comes_to_a_primary_that_waits_for_others, WaitsFor.OTHER_CLIENTS),
        (does_not_read, WaitsFor.SOCKET),
    ],
)
def test_it_is_told_what_a_link_waits_for(
    happens: Callable[[PairedBroker, PairedClient], None], waits_for: WaitsFor
) -> None:
    broker = PairedBroker(SMALL)
    client = broker.connect()
    client.sender("q")
    happens(broker, client)
    broker.settle_down()
    assert waits_for.value in {link["waits_for"] for link in links_of(broker)}


def test_a_publisher_without_credit_waits_for_memory() -> None:
    broker = PairedBroker(ContainerSettings("test", "0", memory_limit_bytes=1, publisher_credit=2))
    client = broker.connect()
    client.publish("q", "a", "b")
    (link,) = links_of(broker)
    assert (link["credit"], link["waits_for"]) == (0, WaitsFor.MEMORY.value)


def test_a_relayed_link_is_shown_at_both_brokers() -> None:
    proxied = PairedProxy()
    client = proxied.client(container="app")
    client.publish("q", "x")
    proxied.settle_down()
    receiver: Any = client.receiver("q", 10)
    near, reader = links_of(proxied.proxy)
    assert (near["node"], near["relayed_to"], near["waits_for"]) == ("q", "primary", "")
    assert (reader["relayed_to"], reader["unsettled"]) == ("primary", 1)
    assert reader["waits_for"] == WaitsFor.FAR_BROKER.value
    (row,) = rows_of(proxied.primary)
    assert row["kind"] == "proxy"
    assert {link["relayed_for"] for link in row["links"]} == {"anonymous (app) at 127.0.0.1:1 by way of proxy"}
    assert [link["waits_for"] for link in row["links"]] == ["", "no message"]
    proxied.cut()
    assert {link["waits_for"] for link in links_of(proxied.proxy)} == {WaitsFor.PRIMARY.value}
    assert receiver.remote_condition is None


# --- closing


def closed(broker: PairedBroker, **params: object) -> Any:
    answer = ConnectionMethods(broker.connections, lambda: None, lambda: None).connections(
        {"action": "close", **params}
    )
    broker.settle_down()
    return answer


def test_a_closed_connection_is_told_why_and_what_its_client_held_goes_back(broker: PairedBroker) -> None:
    client, other = broker.connect(), broker.connect()
    client.publish("q", "x")
    subscribe(client, "q").flow(10)
    broker.settle_down()
    assert closed(broker, id=1, reason="you hold the queue up") == {
        "id": 1, "address": "127.0.0.1:1", "user": None, "closed": True, "reason": "you hold the queue up",
    }  # fmt: skip
    condition = client.connection.remote_condition
    assert condition is not None
    assert (condition.name, condition.description) == ("amqp:connection:forced", "you hold the queue up")
    assert broker.queue("q").messages.acquired == 0
    assert other.connection.remote_condition is None
    assert [row["id"] for row in rows_of(broker)] == [2]


def test_a_connection_that_is_not_there_or_is_another_brokers_is_not_closed() -> None:
    proxied = PairedProxy()
    proxied.client()
    assert [row["kind"] for row in rows_of(proxied.primary)] == ["proxy"]
    for number, reason, text in ((7, "not-found", "no connection 7"), (1, "in-use", "would connect again at once")):
        with pytest.raises(ControlError, match=text) as refused:
            closed(proxied.primary, id=number)
        assert (refused.value.code, refused.value.data) == (REFUSED, {"reason": reason})


@pytest.mark.parametrize(
    "params",
    [
        {"action": "open"}, {"action": []}, {"action": "close"}, {"action": "close", "id": "1"},
        {"action": "close", "id": 1, "reason": ""}, {"action": "close", "id": 1, "reason": "x" * 201},
        {"action": "close", "id": 1, "reason": "\x1b[2J"}, {"action": "close", "id": 1, "reason": 5},
        {"action": "list", "id": 1}, {"action": "close", "id": 1, "name": "x"},
    ],
)  # fmt: skip
def test_senseless_requests_are_refused(broker: PairedBroker, params: dict[str, object]) -> None:
    broker.connect()
    with pytest.raises(ControlError) as refused:
        ConnectionMethods(broker.connections, lambda: None, lambda: None).connections(params)
    assert refused.value.code == INVALID_PARAMS
    assert len(rows_of(broker)) == 1


def test_without_a_reason_the_client_is_told_that_it_was_an_operator(broker: PairedBroker) -> None:
    client = broker.connect()
    closed(broker, id=1)
    condition = client.connection.remote_condition
    assert condition is not None
    assert condition.description == DEFAULT_REASON


# --- asked by another broker


@pytest.mark.parametrize("page_bytes", [1, 700, 1500, 1_000_000])
def test_pages_make_up_the_list_and_each_has_a_bound(
    broker: PairedBroker, monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    for links in (3, 0, 12, 1):
        client = broker.connect()
        for number in range(links):
            subscribe(client, "q", f"reader-{number}")
    broker.settle_down()
    monkeypatch.setattr(connection_facts, "PAGE_BYTES", page_bytes)
    places, found = [ConnectionPlace()], dict[int, list[Any]]()
    while True:
        rows: Any
        rows, following = connection_page(broker.connections, places[-1])
        assert len(json.dumps(rows)) <= page_bytes + 800  # a row and a link: what was begun is ended
        for row in rows:
            found.setdefault(row["id"], []).extend(row["links"])
        if following is None:
            break
        assert following > places[-1]
        places.append(following)
    assert found == {row["id"]: row["links"] for row in rows_of(broker)}
    assert (len(places) > 10) == (page_bytes == 1)


def asked(broker: PairedBroker, request: object, kept: list[AuditedAct] | None = None) -> tuple[bool, Any]:
    record = None if kept is None else kept.append
    text = request if isinstance(request, str) else json.dumps(request)
    question = Question(1, Topic.CONNECTIONS, "node2", "i2", "", 0, 0, "", request=text)
    had, answer = ConnectionMethods(broker.connections, lambda: None, lambda: record).asked(question, "i1")
    broker.settle_down()
    return had, json.loads(answer) if had else answer


def test_another_broker_gets_pages_and_has_one_closed_in_the_process_that_it_means(broker: PairedBroker) -> None:
    client = broker.connect()
    had, page = asked(broker, {"from": [0, 0]})
    assert (had, [row["id"] for row in page["rows"]], page["next"]) == (True, [1], None)
    close, kept = (
        {"close": {"id": 1, "reason": "maintenance"}, "caller": {"user": "olga", "address": "h:1"}},
        list[AuditedAct](),
    )
    had, problem = asked(broker, {**close, "instance": "i0"}, kept)
    assert (had, "started anew" in problem, kept, len(rows_of(broker))) == (False, True, [], 1)
    had, answer = asked(broker, {**close, "instance": "i1"}, kept)
    assert (had, answer["closed"], rows_of(broker)) == (True, True, [])
    condition = client.connection.remote_condition
    assert condition is not None
    assert condition.description == "maintenance"
    had, problem = asked(broker, {**close, "instance": "i1"}, kept)
    assert (had, "there is no connection 1" in problem) == (False, True)
    assert [(act.result, act.reason) for act in kept] == [(AuditResult.DONE, ""), (AuditResult.REFUSED, "not-found")]
    assert kept[0].caller.facts() == {"channel": "cluster", "user": "olga", "address": "h:1", "via": ["node2"]}
    assert (kept[0].act, kept[0].params) == ("connections close", {"id": 1, "reason": "maintenance"})


class Others:
    """Asks one broker, `node2`; `last`: the number of the answer that is the last one to come."""

    def __init__(self, broker: PairedBroker, last: int) -> None:
        self._methods = ConnectionMethods(broker.connections, lambda: None, lambda: None)
        self._last = last
        self.asked = 0

    def question(self, topic: Topic, request: str = "") -> Question:
        return Question(1, topic, "node1", "i1", "", 0, 0, "", request=request)

    async def ask(self, question: Question, addresses: list[str], _limit_s: float) -> dict[str, Answer | None]:
        self.asked += 1
        had, text = self._methods.asked(question, "i2")
        answer = Answer(1, "node2", "i2", "", "ready", 1, 1, (), (), 0, True, 0, "", had, text, 1)
        return {addresses[0]: answer if self.asked <= self._last else None}

    async def ask_others(self, topic: Topic, request: str = "") -> dict[str, Answer | None]:
        return await self.ask(self.question(topic, request), ["b:5672"], 1.0)


@pytest.mark.parametrize("last", [1000, 2])
def test_what_another_broker_tells_on_several_pages_is_one_list_or_said_not_to_be_whole(
    broker: PairedBroker, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    for links in (3, 5):
        client = broker.connect()
        for number in range(links):
            subscribe(client, "q", f"reader-{number}")
    broker.settle_down()
    whole = [{"broker": "node2", **row} for row in rows_of(broker)]
    monkeypatch.setattr(connection_facts, "PAGE_BYTES", 100)
    others = Others(broker, last)
    settings = SimpleNamespace(name="node1", instance="i1", ask_limit_s=1.0)
    membership = SimpleNamespace(
        questions=others,
        default=SimpleNamespace(links=SimpleNamespace()),
        is_standalone=False,
        member=SimpleNamespace(settings=settings),
    )
    own = ConnectionMethods(PairedBroker().connections, lambda: None, lambda: None)
    cluster = ClusterConnections(own, cast("Membership", membership))
    answer: Any = asyncio.run(cast("Any", cluster.connections({"all": True})))
    rows = list(answer["connections"])
    if last == 2:
        assert answer["silent"] == [{"address": "b:5672", "problem": UNANSWERED}]
        assert len(json.dumps(rows)) < len(json.dumps(whole))
    else:
        assert (rows, answer["silent"]) == (whole, [])
        assert others.asked > 4


@pytest.mark.parametrize(
    "request_",
    [
        "", "[", "5", "{}", {"from": [1]}, {"from": ["0", 0]}, {"from": [True, 0]}, {"close": 1},
        {"close": {}, "instance": "i1"}, {"close": {"id": 1, "reason": ""}, "instance": "i1"}, {"close": {"id": 1}},
        {"close": {"id": "1"}, "instance": "i1", "caller": [1]},
    ],
)  # fmt: skip
def test_what_another_broker_asks_without_sense_is_not_had(broker: PairedBroker, request_: object) -> None:
    broker.connect()
    had, problem = asked(broker, request_, [])
    assert not had
    assert problem
    assert len(rows_of(broker)) == 1
