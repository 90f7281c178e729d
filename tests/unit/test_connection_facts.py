"""What an operator sees of connections and their links, who waits for what, and the closing of a connection."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import proton
import pytest

from paired_engines import START_MS, PairedBroker, PairedClient
from paired_links import subscribe
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.connections.connection_facts import connection_rows
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.link_state import WaitsFor
from qpid_ha_broker.server.clients.connection_methods import DEFAULT_REASON, ConnectionMethods
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError

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


def send(broker: PairedBroker, client: PairedClient, address: str, *texts: str) -> None:
    link = client.sender(address)
    for text in texts:
        client.send(link, proton.Message(text))
    broker.settle_down()


def test_each_connection_is_shown_with_its_links(broker: PairedBroker) -> None:
    broker.container.now_ms = START_MS + 5
    client = broker.connect()
    send(broker, client, "q", "x")
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
    send(broker, client, "q", "x")
    kind = "apache.org:selector-filter:string"
    subscribe(client, "q", filters={"selector": (kind, "colour = 'red'")}).flow(10)


def answers_nothing(broker: PairedBroker, client: PairedClient) -> None:
    send(broker, client, "q", *"abc")
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
    broker.container.default.resources.default.log.add_witness("backup")
    send(broker, client, "q", "x")


def comes_to_a_primary_that_waits_for_others(broker: PairedBroker, client: PairedClient) -> None:
    send(broker, client, "q", "x")
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
    send(broker, client, "q", "a", "b")
    (link,) = links_of(broker)
    assert (link["credit"], link["waits_for"]) == (0, WaitsFor.MEMORY.value)


def test_a_relayed_link_is_shown_at_both_brokers() -> None:
    proxied = PairedProxy()
    client = proxied.client(container="app")
    send(proxied.proxy, client, "q", "x")
    proxied.settle_down()
    receiver: Any = client.receiver("q", 10)
    proxied.settle_down()
    near, reader = links_of(proxied.proxy)
    assert (near["node"], near["relayed_to"], near["waits_for"]) == ("q", "primary", "")
    assert (reader["relayed_to"], reader["unsettled"]) == ("primary", 1)
    assert reader["waits_for"] == WaitsFor.FAR_BROKER.value
    (row,) = rows_of(proxied.primary)
    assert row["kind"] == "proxy"
    assert {link["relayed_for"] for link in row["links"]} == {"anonymous (app) at proxy"}
    assert [link["waits_for"] for link in row["links"]] == ["", "no message"]
    proxied.cut()
    assert {link["waits_for"] for link in links_of(proxied.proxy)} == {WaitsFor.PRIMARY.value}
    assert receiver.remote_condition is None


# --- closing


def closed(broker: PairedBroker, **params: object) -> Any:
    answer = ConnectionMethods(broker.connections, lambda: None).connections({"action": "close", **params})
    broker.settle_down()
    return answer


def test_a_closed_connection_is_told_why_and_what_its_client_held_goes_back(broker: PairedBroker) -> None:
    client, other = broker.connect(), broker.connect()
    send(broker, client, "q", "x")
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
        ConnectionMethods(broker.connections, lambda: None).connections(params)
    assert refused.value.code == INVALID_PARAMS
    assert len(rows_of(broker)) == 1


def test_without_a_reason_the_client_is_told_that_it_was_an_operator(broker: PairedBroker) -> None:
    client = broker.connect()
    closed(broker, id=1)
    condition = client.connection.remote_condition
    assert condition is not None
    assert condition.description == DEFAULT_REASON
