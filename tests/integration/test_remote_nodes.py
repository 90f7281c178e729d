"""Nodes of brokers outside of the cluster, under names of ours: over plain AMQP 1.0, against brokers of our own."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Delivery, Message, symbol
from proton.reactor import Selector
from proton.utils import LinkDetached

from blocking_client import BlockingClient, Management, bodies
from certificate_authority import Authority
from failover_load import FailoverLoad
from running_broker import RunningBroker, without_bugs
from running_cluster import RunningCluster


def config(nodes: dict[str, str], brokers: str = "") -> str:
    """A configuration file with these remote nodes."""
    lines = ["remote-nodes:"] if nodes else []
    lines += [f"  {name}: {{url: '{url}'}}" for name, url in nodes.items()]
    lines += ["remote-brokers:", f"  - {{url: '{brokers}'}}"] if brokers else []
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def there() -> Iterator[RunningBroker]:
    """The broker outside."""
    with RunningBroker({"name": "there"}) as running:
        yield running
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture(scope="module")
def here(there: RunningBroker) -> Iterator[RunningBroker]:
    """The broker that clients know; whatever the tests did, it has met no bug."""
    nodes = {"orders": f"{there.url}/their-orders", "missing": "amqp://127.0.0.1:1/q"}
    with without_bugs(RunningBroker({"name": "here"}, config=config(nodes, there.url))) as running:
        yield running


@pytest.fixture
def client(here: RunningBroker) -> Iterator[BlockingClient]:
    with BlockingClient(here.url) as connected:
        yield connected


@pytest.fixture
def theirs(there: RunningBroker) -> Iterator[BlockingClient]:
    with BlockingClient(there.url) as connected:
        yield connected
        connected.consume("their-orders")


def test_messages_are_there_and_not_here(client: BlockingClient, theirs: BlockingClient) -> None:
    message = Message("a", durable=True, properties={"x": 1}, annotations={"y": 2})
    assert [outcome.state for outcome in client.send("orders", message, "b")] == [Delivery.ACCEPTED] * 2
    first, second = theirs.browse("their-orders")
    assert (first.body, first.durable, first.properties, second.body) == ("a", True, {"x": 1}, "b")
    assert bodies(client.browse("orders")) == ["a", "b"]
    assert bodies(client.consume("orders")) == ["a", "b"]
    assert theirs.browse("their-orders") == []
    assert Management(client).queue("orders") is None


def test_a_client_with_a_session_is_told_that_nothing_is_held_there(here: RunningBroker) -> None:
    with BlockingClient(here.url, properties={symbol("qpid.session"): str(uuid.uuid4())}) as client:
        for attach in (client.receiver, client.sender):
            with pytest.raises(LinkDetached, match=r"amqp:not-implemented.*outside of the cluster"):
                attach("orders")


def test_filters_are_passed_on(client: BlockingClient, theirs: BlockingClient) -> None:
    client.send("orders", *[Message(colour, properties={"colour": colour}) for colour in ("red", "blue", "red")])
    assert bodies(client.consume("orders", Selector("colour = 'blue'"))) == ["blue"]
    with pytest.raises(LinkDetached) as refused:
        client.receiver("orders", 1, Selector("colour ="))
    assert refused.value.condition == "amqp:invalid-field"
    assert "their-orders at" in str(refused.value)


def test_a_declared_node_is_listed_as_what_it_is_and_goes_with_its_links(
    client: BlockingClient, theirs: BlockingClient, here: RunningBroker, there: RunningBroker
) -> None:
    management = Management(client)
    url = f"{there.url}/their-orders"
    management.create_queue("declared", {"qpid.cluster.proxy": url})
    client.send("declared", "a")
    assert bodies(theirs.consume("their-orders")) == ["a"]
    found = management.queue("declared")
    assert found is not None
    assert found["arguments"] == {"qpid.cluster.proxy": url}
    receiver = client.receiver("declared", 1)
    management.delete_queue("declared")
    with pytest.raises(LinkDetached) as ended:
        receiver.receive(timeout=60)
    assert "declared was deleted" in str(ended.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"qpid.cluster.proxy": "amqp://u:secret@127.0.0.1/q"}, "no place for a user or a password"),
        ({"qpid.cluster.proxy": "amqp://192.0.2.1/q"}, "remote-brokers of the configuration does not have"),
        ({"qpid.cluster.proxy": "amqp://127.0.0.1"}, "the node is missing"),
        ({"qpid.cluster.proxy": "http://127.0.0.1/q"}, "neither amqp nor amqps"),
        ({"qpid.cluster.proxy": "amqp://127.0.0.1/q", "qpid.auto_delete": True}, "leave out qpid.exclusive"),
    ],
)
def test_what_cannot_be_declared_is_refused_with_the_reason(
    client: BlockingClient, here: RunningBroker, arguments: dict[str, object], text: str
) -> None:
    answer = Management(client).ask("CREATE", {"arguments": arguments}, type="queue", name="bad")
    assert answer.status == 400
    assert text in answer.description
    assert "secret" not in answer.description + here.log()


def test_names_are_not_given_twice(client: BlockingClient) -> None:
    answer = Management(client).ask("CREATE", {"arguments": {}}, type="queue", name="orders")
    assert (answer.status, "remote-nodes of the configuration has it" in answer.description) == (409, True)


def test_a_name_that_a_queue_has_by_now_is_refused(tmp_path: Path, there: RunningBroker) -> None:
    settings = {"name": "kept", "data-dir": str(tmp_path)}
    with RunningBroker(settings) as before, BlockingClient(before.url) as connected:
        Management(connected).create_queue("orders", {"qpid.durable": True})
    nodes = config({"orders": f"{there.url}/their-orders"})
    with RunningBroker(settings, config=nodes) as after, BlockingClient(after.url) as connected:
        with pytest.raises(LinkDetached) as refused:
            connected.sender("orders")
        assert refused.value.condition == "amqp:precondition-failed"
        assert "rename one of the two" in str(refused.value)


def test_an_anonymous_relay_does_not_reach_there(client: BlockingClient) -> None:
    sender = client.sender(None)
    outcome = client.offer(sender, Message("a", address="orders"))
    assert outcome.state == Delivery.REJECTED


def test_a_broker_that_cannot_be_reached_is_named(there: RunningBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    nodes = config({"gone": f"amqp://127.0.0.1:{port}/q"})
    with RunningBroker({"name": "here"}, config=nodes) as broker, BlockingClient(broker.url) as connected:
        connected.connection.timeout = 20
        with pytest.raises(LinkDetached) as refused:
            connected.sender("gone")
        assert refused.value.condition == "amqp:resource-locked"
        assert f"127.0.0.1:{port}: Connection refused" in str(refused.value)


def test_nothing_confirmed_is_lost_when_the_cluster_behind_fails_over(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.form()
        hosts = ",".join(url.removeprefix("amqp://") for url in cluster.urls)
        nodes = config({"orders": f"amqp://{hosts}/their-orders"})
        with (
            RunningBroker({"name": "dmz"}, config=nodes) as broker,
            FailoverLoad([broker.url], "orders", rate=300) as load,
        ):
            load.wait_confirmed(300)
            cluster.kill(0)
            cluster.promote(1)
            load.wait_confirmed(300)
            assert load.finish().lost == ()
            assert "Traceback" not in broker.log()


def test_amqps_with_an_authority_of_its_own_is_checked(tmp_path: Path) -> None:
    authority, stranger = (Authority(directory(tmp_path / name)) for name in ("ours", "strangers"))
    certificate, key = authority.issue("localhost")
    tls = {"listen": "amqps://localhost:0", "tls.certificate": certificate, "tls.key": key}
    with RunningBroker({"name": "there", **tls}) as there:
        port = there.url.rpartition(":")[2]
        nodes = "remote-nodes:\n" + "".join(
            f"  {name}: {{url: 'amqps://localhost:{port}/q', ca: {each.certificate}}}\n"
            for name, each in (("checked", authority), ("wrong", stranger))
        )
        with RunningBroker({"name": "here"}, config=nodes) as here, BlockingClient(here.url) as client:
            client.connection.timeout = 30
            assert client.send("checked", "secret")[0].state == Delivery.ACCEPTED
            assert bodies(client.consume("checked")) == ["secret"]
            with pytest.raises(LinkDetached) as refused:
                client.sender("wrong")
            assert "certificate" in str(refused.value)


def directory(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_backup_leads_to_its_primary_and_a_ring_over_two_brokers_of_a_cluster_is_seen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    outside = f"amqp://127.0.0.1:{port}"
    settings = {"remote-brokers": [{"url": outside}], "ha": {"clients": "proxy"}}
    with RunningCluster(tmp_path, 2, settings=settings) as cluster:
        cluster.form()
        nodes = {"ring": f"{cluster.urls[1]}/ring", "orders": f"{cluster.urls[1]}/orders"}
        with RunningBroker({"name": "out", "listen": outside}, config=config(nodes)) as broker:
            with BlockingClient(cluster.urls[0]) as first:
                management = Management(first)
                management.create_queue("ring", {"qpid.cluster.proxy": f"{outside}/ring"})
                management.create_queue("theirs", {"qpid.cluster.proxy": f"{outside}/kept-there"})
                for attach in (first.sender, first.receiver):
                    with pytest.raises(LinkDetached) as refused:
                        attach("ring")
                    assert refused.value.condition == "amqp:not-allowed"
                    assert "/ring -> out/ring -> " in str(refused.value)
            # a declared node by way of a backup, and a node of the cluster by way of a backup
            with BlockingClient(cluster.urls[1]) as second, BlockingClient(broker.url) as outer:
                assert second.send("theirs", "a")[0].state == Delivery.ACCEPTED
                assert bodies(outer.consume("kept-there")) == ["a"]
                assert outer.send("orders", "b")[0].state == Delivery.ACCEPTED
                assert bodies(second.consume("orders")) == ["b"]


def test_a_backup_that_sends_connections_away_leads_to_its_primary(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, 2, settings={"ha": {"clients": "redirect"}}) as cluster:
        cluster.form()
        nodes = config({"orders": f"{cluster.urls[1]}/orders"})
        with RunningBroker({"name": "out"}, config=nodes) as broker, BlockingClient(broker.url) as outer:
            outer.connection.timeout = 30
            assert outer.send("orders", "a")[0].state == Delivery.ACCEPTED
            assert bodies(outer.consume("orders")) == ["a"]
        with BlockingClient(cluster.urls[0]) as primary:
            assert Management(primary).messages("orders") == 0
