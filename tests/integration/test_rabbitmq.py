"""Remote nodes at RabbitMQ 3.10, which speaks AMQP 1.0 by a plug-in: another vendor's broker, as Debian has it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message
from proton.reactor import AtMostOnce
from proton.utils import LinkDetached

from blocking_client import BlockingClient, Management, SettleSecond, bodies
from qpid_ha_agent.control import ControlClient
from rabbitmq_server import PASSWORD, USER, RabbitServer
from running_broker import RunningBroker, without_bugs
from running_cluster import RunningCluster

Declare = Callable[[str], str]
_NUMBERS = itertools.count(1)
PATIENCE = "10m"
"""With silent clients: those here say nothing while `rabbitmqctl` works, 15 s a time beside others."""


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitServer]:
    with RabbitServer() as running:
        yield running


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rabbit") / "password"
    path.touch(mode=0o600)
    path.write_text(f"{PASSWORD}\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def here(rabbit: RabbitServer, password_file: Path) -> Iterator[RunningBroker]:
    """A broker that may declare nodes of RabbitMQ."""
    config = f"remote-brokers:\n  - {{url: '{rabbit.url}', user: {USER}, password-file: {password_file}}}\n"
    with without_bugs(RunningBroker({"name": "here", "idle-timeout": PATIENCE}, config=config)) as running:
        yield running


@pytest.fixture
def client(here: RunningBroker) -> Iterator[BlockingClient]:
    with BlockingClient(here.url) as connected:
        yield connected


@pytest.fixture
def declare(here: RunningBroker, rabbit: RabbitServer) -> Iterator[Declare]:
    """Makes a name here for a node there."""
    with BlockingClient(here.url) as connected:
        management = Management(connected)

        def declare_one(node: str) -> str:
            name = f"node-{next(_NUMBERS)}"
            management.create_queue(name, {"qpid.cluster.proxy": f"{rabbit.url}/{node}"})
            return name

        yield declare_one


@pytest.fixture
def queue(declare: Declare) -> str:
    """A name here for a queue of RabbitMQ that no other test uses."""
    return declare(f"/queue/q{next(_NUMBERS)}")


def test_messages_go_there_and_come_back(client: BlockingClient, queue: str) -> None:
    message = Message("a", durable=True, id="1", subject="s", properties={"x": 1})
    assert [outcome.state for outcome in client.send(queue, message, "b")] == [Delivery.ACCEPTED] * 2
    first, second = client.consume(queue)
    assert (first.body, first.id, first.subject, first.properties["x"], second.body) == ("a", "1", "s", 1, "b")
    assert client.consume(queue) == []


def test_what_is_sent_at_most_once_arrives(client: BlockingClient, queue: str) -> None:
    sender = client.sender(queue, options=AtMostOnce())
    sender.link.send(Message("a"))
    client.round_trip()
    receiver = client.receiver(queue, 1)
    assert bodies(client.fetch(receiver, 1)) == ["a"]


def test_credit_is_the_clients_own_and_a_drain_comes_back(client: BlockingClient, queue: str) -> None:
    client.send(queue, "a", "b", "c")
    first, second = client.receiver(queue, 1), client.receiver(queue, 0)
    assert bodies(client.fetch(first, 1, None)) == ["a"]
    assert bodies(client.drain(second)) == ["b", "c"]
    assert client.drain(second) == []


def test_outcomes_are_passed_on(client: BlockingClient, queue: str) -> None:
    client.send(queue, "a", "b")
    receiver = client.receiver(queue, 1)
    client.fetch(receiver, 1, Delivery.REJECTED)
    receiver.flow(1)
    assert bodies(client.fetch(receiver, 1, Delivery.RELEASED)) == ["b"]
    receiver.close()
    (again,) = client.consume(queue)
    assert again.body == "b"


def test_who_wants_to_settle_second_is_told_that_it_cannot_and_is_answered(client: BlockingClient, queue: str) -> None:
    client.send(queue, "a")
    receiver = client.receiver(queue, 1, SettleSecond())
    assert receiver.link.remote_rcv_settle_mode == receiver.link.RCV_FIRST
    client.fetch(receiver, 1, None)
    delivery = receiver.fetcher.unsettled[0]
    delivery.update(Delivery.ACCEPTED)
    client.wait(lambda: delivery.settled)
    receiver.close()
    assert client.consume(queue) == []


def test_a_consumer_that_vanishes_leaves_its_messages_there(
    client: BlockingClient, here: RunningBroker, queue: str
) -> None:
    client.send(queue, "a")
    with BlockingClient(here.url) as other:
        receiver = other.receiver(queue, 1)
        assert bodies(other.fetch(receiver, 1, None)) == ["a"]
        other.break_connection()
    receiver = client.receiver(queue, 1)
    assert bodies(client.fetch(receiver, 1)) == ["a"]


def test_an_exchange_there_has_subscribers_and_publishers_here(client: BlockingClient, declare: Declare) -> None:
    topic = declare("/topic/stock.%23")
    out = declare("/topic/stock.usd")
    receiver = client.receiver(topic, 2)
    client.send(out, "a")
    assert bodies(client.fetch(receiver, 1)) == ["a"]


def test_what_is_not_there_is_refused_and_its_declaration_goes(
    client: BlockingClient, declare: Declare, queue: str
) -> None:
    sender = client.sender(queue)
    management = Management(client)
    for attach in (client.sender, client.receiver):
        missing = declare("/exchange/nothing/key")
        with pytest.raises(LinkDetached) as refused:
            attach(missing)
        assert refused.value.condition == "amqp:not-found"
        assert "/exchange/nothing/key" in str(refused.value)
        assert "which says" in str(refused.value)
        assert management.queue(missing) is None
    assert client.offer(sender, "a").state == Delivery.ACCEPTED


def test_a_large_message_goes_both_ways(client: BlockingClient, queue: str) -> None:
    body = b"x" * 1_000_000
    assert client.send(queue, Message(body))[0].state == Delivery.ACCEPTED
    (message,) = client.consume(queue)
    assert bytes(message.body) == body


def test_a_wrong_password_is_said_at_once(rabbit: RabbitServer, tmp_path: Path) -> None:
    wrong = tmp_path / "password"
    wrong.touch(mode=0o600)
    wrong.write_text("wrong-secret\n", encoding="utf-8")
    node = f"{{url: '{rabbit.url}//queue/q', user: {USER}, password-file: {wrong}}}"
    with (
        RunningBroker({"name": "here"}, config=f"remote-nodes:\n  q: {node}\n") as broker,
        BlockingClient(broker.url) as connected,
    ):
        with pytest.raises(LinkDetached) as refused:
            connected.sender("q")
        assert refused.value.condition == "amqp:unauthorized-access"
        assert "user and password-file" in str(refused.value)
        assert "wrong-secret" not in broker.log() + str(refused.value)


# --- queues that are filled from there, and emptied into there


@pytest.fixture
def cluster(rabbit: RabbitServer, password_file: Path, tmp_path: Path) -> Iterator[RunningCluster]:
    login = {"url": rabbit.url, "user": USER, "password-file": str(password_file)}
    with RunningCluster(tmp_path, 2, settings={"remote-brokers": [login], "idle-timeout": PATIENCE}) as running:
        running.form()
        yield running


def test_bridges_in_both_directions_lose_nothing_when_the_primary_here_is_killed(
    cluster: RunningCluster, rabbit: RabbitServer, client: BlockingClient, declare: Declare
) -> None:
    source, target = (f"/queue/b{next(_NUMBERS)}" for _ in range(2))
    into, out_of = declare(source), declare(target)
    first, last = [f"a{number:03}" for number in range(100)], [f"b{number:03}" for number in range(20)]
    with BlockingClient(cluster.urls[0]) as ours:
        management = Management(ours)
        management.create_queue("filled", {"qpid.cluster.source": f"{rabbit.url}/{source}"})
        management.create_queue("heard", {"qpid.cluster.source": f"{rabbit.url}//topic/heard.%23"})
        management.create_queue("emptied", {"qpid.cluster.proxy": f"{rabbit.url}/{target}"})
        management.bind("amq.direct", "emptied", "out")
        client.send(into, *first)
        sender = ours.sender("amq.direct")
        for text in first:
            assert ours.offer(sender, Message(text, subject="out")).state == Delivery.ACCEPTED
        heard = declare("/topic/heard.a")
        cluster.wait_until(lambda: state_of(cluster, 0, "heard") == "filling", "a private queue there", 60.0)
        client.send(heard, "before")
        cluster.wait_until(lambda: management.messages("heard") == 1, "what was published there", 60.0)
    cluster.kill(0)
    cluster.promote(1)
    client.send(into, *last)
    with BlockingClient(cluster.urls[1]) as ours:
        management = Management(ours)
        sender = ours.sender("amq.direct")
        for text in last:
            assert ours.offer(sender, Message(text, subject="out")).state == Delivery.ACCEPTED
        cluster.wait_until(lambda: state_of(cluster, 1, "heard") == "filling", "another private queue", 60.0)
        client.send(heard, "after")
        cluster.wait_until(lambda: management.messages("emptied") == 0, "all is there", 60.0)
        assert list(dict.fromkeys(bodies(client.consume(out_of)))) == first + last
        found: list[str] = []
        receiver = ours.receiver("filled", 1000)
        while set(first + last) - set(found):
            found += bodies(ours.fetch(receiver, 1))
        assert sorted(set(found)) == first + last
        receiver.close()
        cluster.wait_until(lambda: management.messages("heard") == 2, "what came after", 60.0)
        assert bodies(ours.consume("heard")) == ["before", "after"]
    assert "Traceback" not in cluster.broker(1).log()


def state_of(cluster: RunningCluster, which: int, name: str) -> object:
    """Of a bridge."""
    return rows_at(cluster.broker(which).control_socket).get(name)


def rows_at(control_socket: Path) -> dict[str, Any]:
    """The state of each row of `qpid-ha remote-nodes`."""
    with ControlClient(control_socket) as control:
        rows: Any = control.call("remote-nodes")
    return {row["name"]: row["state"] for row in rows}


def test_an_exchange_that_is_not_there_is_told_and_tried_again(
    here: RunningBroker, rabbit: RabbitServer, client: BlockingClient
) -> None:
    management = Management(client)
    management.create_queue("of-nothing", {"qpid.cluster.source": f"{rabbit.url}//exchange/nothing/key"})

    until_s = time.monotonic() + 30
    while rows_at(here.control_socket).get("of-nothing") != "missing" and time.monotonic() < until_s:
        time.sleep(0.1)
    assert rows_at(here.control_socket)["of-nothing"] == "missing", here.log()
    management.delete_queue("of-nothing")


DEFINED = {
    "queues": [
        {
            "name": "LIVE",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum", "x-max-length": 100000, "x-delivery-limit": 5},
        }
    ],
    "exchanges": [
        {"name": "LIVE-x", "vhost": "/", "type": "topic", "durable": True, "auto_delete": False, "arguments": {}}
    ],
    "bindings": [
        {
            "source": "LIVE-x",
            "vhost": "/",
            "destination": "LIVE",
            "destination_type": "queue",
            "routing_key": "a.#",
            "arguments": {},
        }
    ],
}


def test_a_live_queue_moves_over_by_the_recipe_and_nothing_is_lost(
    cluster: RunningCluster, rabbit: RabbitServer, client: BlockingClient, declare: Declare, tmp_path: Path
) -> None:
    """docs/migrating.md: definitions, then consumers, then publishers, with the queue in use all the time."""
    name = f"live{next(_NUMBERS)}"
    there, exported = tmp_path / "there.json", tmp_path / "exported.json"
    there.write_text(json.dumps(DEFINED).replace("LIVE", name), encoding="utf-8")
    rabbit.control("import_definitions", str(there))
    rabbit.control("export_definitions", str(exported))

    socket = str(cluster.broker(0).control_socket)
    converted = qpid_ha(socket, "definitions", "convert", str(exported), "--from", "rabbitmq")
    (tmp_path / "ours.yaml").write_text(converted, encoding="utf-8")
    qpid_ha(socket, "definitions", "import", str(tmp_path / "ours.yaml"))
    old = declare(f"/amq/queue/{name}")
    with BlockingClient(cluster.urls[0]) as ours:
        client.send(old, *(f"a{number:03}" for number in range(50)))
        qpid_ha(socket, "queue", "set", name, f"qpid.cluster.source={rabbit.url}//amq/queue/{name}")
        receiver = ours.receiver(name, 1000)
        seen = bodies(ours.fetch(receiver, 20))
        client.send(old, *(f"b{number:03}" for number in range(50)))
        ours.send(name, *(f"c{number:03}" for number in range(50)))
        ours.send(f"{name}-x/a.b", "routed")
        while len(set(seen)) < 151:
            seen += bodies(ours.fetch(receiver, 1))
        cluster.wait_until(lambda: waiting_in(rabbit, name) == 0, "the old queue is empty", 60.0)
        qpid_ha(socket, "queue", "set", name, "--remove", "qpid.cluster.source")
        assert name not in rows_at(cluster.broker(0).control_socket)
    wanted = [f"{letter}{number:03}" for letter in "abc" for number in range(50)]
    assert sorted(set(seen)) == [*wanted, "routed"]
    for letter in "abc":
        of_one = [text for text in dict.fromkeys(seen) if text[0] == letter and text[1:].isdigit()]
        assert of_one == sorted(of_one)
    facts = json.loads(qpid_ha(socket, "queue", "show", name, "--format", "json"))
    assert facts["arguments"] == {"qpid.max_count": 100000, "qpid.delivery_limit": 5, "qpid.policy_type": "ring"}


def waiting_in(rabbit: RabbitServer, name: str) -> int:
    lines = rabbit.control("list_queues", "--quiet", "name", "messages").splitlines()
    return next(int(line.split()[1]) for line in lines if line.split()[:1] == [name])


def qpid_ha(socket: str, *words: str) -> str:
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "-b", socket, *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
