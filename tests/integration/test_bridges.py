"""Queues that are filled from nodes of another cluster, and emptied into them, while brokers of both are killed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message
from proton.utils import LinkDetached

from admin_tool import qpid_ha
from blocking_client import BlockingClient, Management, bodies
from qpid_ha_agent.control import ControlClient
from qpid_ha_demo.cluster import LocalBroker
from running_broker import RunningBroker
from running_cluster import RunningCluster
from sets_cluster import create_set, sets_of, wait_whole

COUNT = 300


class Client(BlockingClient):
    """A client that manages, too."""

    def __enter__(self) -> Client:
        return self

    @cached_property
    def management(self) -> Management:
        return Management(self)


def hosts(cluster: RunningCluster) -> str:
    return "amqp://" + ",".join(url.removeprefix("amqp://") for url in cluster.urls)


def rows(broker: RunningBroker | LocalBroker) -> dict[str, Any]:
    """What `qpid-ha remote-nodes` shows, by name."""
    with ControlClient(broker.control_socket) as control:
        found: Any = control.call("remote-nodes")
    return {row["name"]: row for row in found}


def wait_for(condition: Callable[[], object]) -> None:
    """Until it holds."""
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s, "it does not come to that"
        time.sleep(0.05)


def consume_all(client: Client, address: str, wanted: set[str]) -> list[Any]:
    """Messages until all that are wanted have come, copies among them."""
    found: list[Any] = []
    receiver = client.receiver(address, 1000)
    while wanted - {message.body for message in found}:
        found += client.fetch(receiver, 1)
    receiver.close()
    return found


def numbered(prefix: str, count: int = COUNT) -> list[str]:
    return [f"{prefix}{number:04}" for number in range(count)]


def test_nothing_is_lost_in_either_direction_while_primaries_of_both_clusters_are_killed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        (tmp_path / "there").mkdir()
        (tmp_path / "here").mkdir()
        there = stack.enter_context(RunningCluster(tmp_path / "there", 2))
        there.form()
        settings = {"remote-brokers": [{"url": hosts(there)}]}
        here = stack.enter_context(RunningCluster(tmp_path / "here", 2, settings=settings))
        here.form()
        with Client(there.urls[0]) as theirs, Client(here.urls[0]) as ours:
            management = theirs.management
            management.create_queue("source", {"qpid.durable": True})
            management.create_queue("target", {"qpid.durable": True})
            own = ours.management
            own.create_queue("filled", {"qpid.cluster.source": f"{hosts(there)}/source"})
            own.create_queue("subscribed", {"qpid.cluster.source": f"{hosts(there)}/amq.topic/stock.%23"})
            own.create_queue("emptied", {"qpid.cluster.proxy": f"{hosts(there)}/target"})
            own.bind("amq.direct", "emptied", "out")
            before, topics, out = numbered("a"), numbered("t", 50), numbered("o")
            here.wait_until(lambda: management.messages("source") == 0, "the bridge begins", 30.0)
            sent = ours.sender("amq.direct")
            theirs.send("source", *[Message(text, durable=True) for text in before])
            for text in out:
                assert ours.offer(sent, Message(text, subject="out", durable=True)).state == Delivery.ACCEPTED
            here.kill(0)
        with Client(there.urls[0]) as theirs:  # the subscription waits there for whoever leads next
            theirs.send("amq.topic/stock.usd", *[Message(text, durable=True) for text in topics])
        here.promote(1)
        there.kill(0)
        there.promote(1)
        with Client(there.urls[1]) as theirs, Client(here.urls[1]) as ours:
            after = numbered("b", 50)
            theirs.send("source", *[Message(text, durable=True) for text in after])
            for address, client, wanted in (
                ("filled", ours, before + after),
                ("subscribed", ours, topics),
                ("target", theirs, out),
            ):
                found = consume_all(client, address, set(wanted))
                first = list(dict.fromkeys(bodies(found)))
                assert first == wanted, address  # in their order, apart from copies
                copies = [message for position, message in enumerate(found) if message.body in bodies(found[:position])]
                assert all(not copy.first_acquirer for copy in copies), address
            ours.management.delete_queue("subscribed")
            wait_for(lambda: not [name for name in queues(theirs) if name.startswith("subscription:")])
        assert "Traceback" not in here.broker(1).log() + there.broker(1).log()


def queues(client: Client) -> list[str]:
    answer = client.management.ask("QUERY", {}, entityType="queue")
    return [row[0] for row in answer.body["results"]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two brokers that may have bridges to each other, `left` and `right`, with stores."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [each.getsockname()[1] for each in sockets]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                RunningBroker(
                    {
                        "name": name,
                        "listen": f"amqp://127.0.0.1:{own}",
                        "data-dir": str(tmp_path_factory.mktemp(name)),
                        "ha.proxy-idle": 0.3,
                    },
                    config=f"remote-brokers:\n  - {{url: 'amqp://127.0.0.1:{other}'}}\n",
                )
            )
            for name, own, other in (("left", ports[0], ports[1]), ("right", ports[1], ports[0]))
        ]


def test_a_source_that_leads_back_to_its_own_queue_is_refused(pair: list[RunningBroker]) -> None:
    left, right = pair
    with Client(left.url) as lefts, Client(right.url) as rights:
        rights.management.create_queue("back", {"qpid.cluster.proxy": f"{left.url}/own"})
        lefts.management.create_queue("own", {"qpid.cluster.source": f"{right.url}/back"})
        lefts.send("own", "a")
        wait_for(lambda: "the link comes back to the queue where it began" in str(rows(left)["own"]["problem"]))
        assert bodies(lefts.consume("own")) == ["a"]
        lefts.management.delete_queue("own")
        rights.management.delete_queue("back")


def test_a_bridge_goes_on_after_a_restart_and_its_subscription_has_waited(
    pair: list[RunningBroker], tmp_path: Path
) -> None:
    _, there = pair
    settings = {"name": "here", "data-dir": str(tmp_path)}
    config = f"remote-brokers:\n  - {{url: '{there.url}'}}\n"
    with RunningBroker(settings, config=config) as here, Client(here.url) as ours:
        arguments = {"qpid.cluster.source": f"{there.url}/amq.topic/t", "qpid.durable": True}
        ours.management.create_queue("kept", arguments)
        wait_for(lambda: rows(here)["kept"]["state"] == "filling")
        assert here.process is not None
        here.process.kill()
        here.process.wait()
    with Client(there.url) as theirs:
        theirs.send("amq.topic/t", Message("while you were away", durable=True))
    with RunningBroker(settings, config=config) as here, Client(here.url) as ours:
        receiver = ours.receiver("kept", 1)
        assert bodies(ours.fetch(receiver, 1)) == ["while you were away"]
        receiver.close()
        answer = ours.management.ask("UPDATE", {"arguments": {"qpid.cluster.source": None}}, type="queue", name="kept")
        assert answer.status == 200, answer
        wait_for(lambda: "kept" not in rows(here))
    with Client(there.url) as theirs:
        wait_for(lambda: not [name for name in queues(theirs) if name.startswith("subscription:")])


def test_what_a_queue_may_be_filled_from_is_for_operators_to_say(pair: list[RunningBroker]) -> None:
    with Client(pair[0].url) as client:
        body = {"arguments": {"qpid.cluster.source": "amqp://192.0.2.1/q"}}
        answer = client.management.ask("CREATE", body, type="queue", name="bad")
        assert (answer.status, "remote-brokers of the configuration" in answer.description) == (400, True)


def test_a_declared_node_whose_exchange_leads_to_it_is_not_deleted_when_the_other_one_has_none(
    pair: list[RunningBroker],
) -> None:
    left, right = pair
    with Client(left.url) as client:
        management = client.management
        management.create_queue("lost", {"qpid.cluster.proxy": f"{right.url}/%24nothing"})
        management.bind("amq.direct", "lost", "lost")
        sender = client.sender("amq.direct")
        assert client.offer(sender, Message("a", subject="lost")).state == Delivery.ACCEPTED
        wait_for(lambda: rows(left)["lost"]["state"] == "missing")
        assert rows(left)["lost"]["held"] == 1
        with pytest.raises(LinkDetached):
            client.sender("lost")
        assert management.messages("lost") == 1
        management.delete_queue("lost")


def test_a_connection_that_nobody_needs_is_closed_after_proxy_idle(pair: list[RunningBroker]) -> None:
    left, right = pair
    with Client(left.url) as client, ControlClient(left.control_socket) as control:
        client.management.create_queue("brief", {"qpid.cluster.proxy": f"{right.url}/brief"})
        client.send("brief", "a")

        def connections() -> int:
            found: Any = control.call("query")
            return int(found["remote_connections"])

        wait_for(lambda: connections() == 0)
        client.send("brief", "b")
        assert connections() == 1
        client.management.delete_queue("brief")


def test_nodes_that_nobody_uses_are_looked_for_and_none_is_made_by_that(tmp_path: Path) -> None:
    with RunningBroker({"name": "there"}) as there:
        nodes = f"remote-nodes:\n  left-alone: {{url: '{there.url}/never-made'}}\n"
        config = f"{nodes}remote-brokers:\n  - {{url: '{there.url}'}}\n"
        settings = {"name": "here", "remote-check-interval": 0.3}
        with RunningBroker(settings, config=config) as here, Client(here.url) as ours, Client(there.url) as theirs:
            theirs.management.create_queue("kept", {})
            theirs.management.create_queue("gone", {})
            for name in ("kept", "gone"):
                ours.management.create_queue(f"our-{name}", {"qpid.cluster.proxy": f"{there.url}/{name}"})
            wait_for(lambda: rows(here)["our-gone"]["state"] in ("connected", "there"))
            theirs.management.delete_queue("gone")
            wait_for(lambda: "our-gone" not in rows(here))
            wait_for(lambda: rows(here)["left-alone"]["state"] == "missing")
            assert rows(here)["our-kept"]["state"] in ("connected", "there", "unused")
            assert ours.management.queue("our-gone") is None
            assert not {"gone", "never-made"} & set(queues(theirs))
            listed = qpid_ha("queue", "list", "-b", str(here.control_socket))
            assert f"to {there.url}/kept" in listed.stdout


def test_a_queue_of_another_set_is_filled_by_whoever_leads_that_set(tmp_path: Path) -> None:
    with RunningBroker({"name": "there"}) as there, Client(there.url) as theirs:
        settings = {"ha": {"clients": "proxy"}, "remote-brokers": [{"url": there.url}]}
        with RunningCluster(tmp_path, 3, settings=settings) as cluster:
            cluster.form()
            create_set(cluster, "other", preferred="broker2")
            wait_whole(cluster, 0, "other")
            cluster.wait_until(lambda: sets_of(cluster.broker(0))["other"]["primary"] == "broker2", "it leads", 60.0)
            theirs.management.create_queue("source", {})
            with Client(cluster.urls[0]) as ours:
                arguments: dict[str, object] = {
                    "qpid.resource-set": "other",
                    "qpid.cluster.source": f"{there.url}/source",
                }
                ours.management.create_queue("filled", arguments)
                bad = {"arguments": {**arguments, "qpid.cluster.source": "amqp://192.0.2.1/source"}}
                assert ours.management.ask("CREATE", bad, type="queue", name="bad").status == 400
                theirs.send("source", *numbered("a", 20))
                cluster.wait_until(lambda: theirs.management.messages("source") == 0, "the first ones", 60.0)
                assert rows(cluster.broker(0))["filled"]["state"] == "elsewhere"
                cluster.kill(1)
                theirs.send("source", *numbered("b", 20))
                found = consume_all(ours, "filled", {*numbered("a", 20), *numbered("b", 20)})
                assert list(dict.fromkeys(bodies(found))) == numbered("a", 20) + numbered("b", 20)
