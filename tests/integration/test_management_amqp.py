"""`$management` through a real client: CREATE, READ, UPDATE, QUERY, DELETE, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proton import Delivery, Message

from blocking_client import BlockingClient, Management, bodies
from proxied_broker import Served

Connect = Callable[..., BlockingClient]


def test_the_life_of_a_queue(client: BlockingClient, management: Management, address: str) -> None:
    created = management.ask("CREATE", {"arguments": {"qpid.max_count": 2}}, type="queue", name=address)
    assert (created.status, created.body["name"], created.body["messages"]) == (201, address, 0)
    client.send(address, *"ab")
    read = management.ask("READ", type="queue", name=address).body
    assert (read["messages"], read["enqueued"], read["arguments"]) == (2, 2, {"qpid.max_count": 2})
    updated = management.ask("UPDATE", {"arguments": {"qpid.max_count": 3}}, type="queue", name=address)
    assert (updated.status, updated.body["arguments"]) == (200, {"qpid.max_count": 3})
    assert [outcome.state for outcome in client.send(address, *"cd")] == [Delivery.ACCEPTED, Delivery.REJECTED]
    assert management.ask("PURGE", type="queue", name=address).body == {"purged": 3}
    assert management.ask("DELETE", type="queue", name=address).status == 204
    assert management.ask("READ", type="queue", name=address).status == 404


def test_the_life_of_an_exchange_and_a_binding(client: BlockingClient, management: Management, address: str) -> None:
    queue = f"{address}-queue"
    management.create_exchange(address, "direct")
    management.create_queue(queue)
    management.bind(address, queue, "key")
    name = f"{address}/{queue}/key"
    assert management.ask("READ", type="exchange", name=address).body["bindings"] == 1
    assert management.ask("READ", type="binding", name=name).body["queue"] == queue
    client.send(f"{address}/key", "a")
    assert management.ask("DELETE", type="binding", name=name).status == 204
    client.send(f"{address}/key", "b")
    assert bodies(client.consume(queue)) == ["a"]
    assert management.ask("DELETE", type="exchange", name=address).status == 204


def test_a_query_comes_in_pages(management: Management, address: str) -> None:
    for n in range(25):
        management.create_queue(f"{address}-{n:02}")
    names: list[str] = []
    while True:
        page = management.ask(
            "QUERY", {"attributeNames": ["name", "messages"]}, entityType="queue", offset=len(names), count=10
        )
        assert page.body["attributeNames"] == ["name", "messages"]
        names += [row[0] for row in page.body["results"]]
        if len(names) >= page.properties["total"]:
            break
    assert [name for name in names if name.startswith(address)] == [f"{address}-{n:02}" for n in range(25)]


def test_the_node_describes_itself(management: Management) -> None:
    types = management.ask("GET-TYPES", type="org.amqp.management", name="self").body
    assert {"org.qpid_ha.queue", "org.qpid_ha.exchange", "org.qpid_ha.binding"} <= set(types)


@pytest.mark.parametrize(
    ("status", "operation", "properties"),
    [
        (404, "READ", {"type": "queue", "name": "nowhere"}),
        (404, "DELETE", {"type": "queue", "name": "nowhere"}),
        (400, "READ", {"type": "queu", "name": "nowhere"}),
        (400, "READ", {"type": "queue"}),
        (400, "CREATE", {"type": "queue", "name": "$own"}),
        (501, "DANCE", {"type": "queue", "name": "nowhere"}),
        (412, "DELETE", {"type": "exchange", "name": "amq.topic"}),
    ],
)
def test_a_refusal_has_a_status_and_says_what_to_do(
    management: Management, status: int, operation: str, properties: dict[str, object]
) -> None:
    answer = management.ask(operation, **properties)
    assert answer.status == status
    assert answer.description


def test_the_same_name_with_other_arguments_is_a_conflict(management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.max_count": 1})
    management.create_queue(address, {"qpid.max_count": 1})
    assert management.ask("CREATE", {"arguments": {"qpid.max_count": 2}}, type="queue", name=address).status == 409


def test_a_queue_in_use_is_not_deleted_for_who_asks_for_care(
    client: BlockingClient, management: Management, address: str
) -> None:
    client.send(address, "a")
    assert management.ask("DELETE", type="queue", name=address, if_empty=True).status == 412
    receiver = client.receiver(address, 0)
    assert management.ask("DELETE", type="queue", name=address, if_unused=True).status == 412
    receiver.close()
    assert management.ask("DELETE", type="queue", name=address, if_unused=True).status == 204


def test_replies_can_come_over_a_link_on_the_node_itself(client: BlockingClient) -> None:
    receiver = client.receiver("$management", 1)
    requests = client.sender("$management")
    request = Message(
        properties={"operation": "READ", "type": "queue", "name": "nowhere"}, reply_to="$management", id="request-1"
    )
    assert client.offer(requests, request).state == Delivery.ACCEPTED
    (answer,) = client.fetch(receiver, 1)
    assert (answer.properties["statusCode"], answer.correlation_id) == (404, "request-1")


def test_a_command_that_wants_no_answer_is_carried_out_all_the_same(
    client: BlockingClient, broker: Served, management: Management, address: str
) -> None:
    command = Message(properties={"operation": "CREATE", "type": "queue", "name": address})
    assert client.send("$management", command)[0].state == Delivery.ACCEPTED
    assert management.messages(address) == 0
    assert "could not be delivered" not in broker.log()
