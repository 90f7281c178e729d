"""`$management` through a real client: CREATE, READ, UPDATE, QUERY, DELETE, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

from proton import Delivery, Message

from blocking_client import BlockingClient, Management, bodies

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


def test_replies_can_come_over_a_link_on_the_node_itself(client: BlockingClient) -> None:
    receiver = client.receiver("$management", 1)
    requests = client.sender("$management")
    request = Message(
        properties={"operation": "READ", "type": "queue", "name": "nowhere"}, reply_to="$management", id="request-1"
    )
    assert client.offer(requests, request).state == Delivery.ACCEPTED
    (answer,) = client.fetch(receiver, 1)
    assert (answer.properties["statusCode"], answer.correlation_id) == (404, "request-1")
