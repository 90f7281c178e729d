"""Brokers of this release and of older ones in one cluster, and brokers that speak TLS: how their frames travel."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from certificate_authority import Authority
from cluster_in_process import InProcessCluster, eventually
from event_loops import in_event_loop
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.server.broker import Broker

MESSAGES = 50
KIB = 1024
OLDER = {"ha__frame_stream": False}
"""It neither desires the stream nor offers it: what an older release does."""


def carriers(broker: Broker) -> set[str]:
    """How frames come and go on the channels that others have opened to this broker."""
    found = set()
    for connection in broker.connections.open:
        channel, stream = connection.peer_channel, connection.engine.input.stream
        if channel is None or not channel.is_open:
            continue
        if stream is None:
            found.add("messages")
        elif stream.is_writing and stream.is_reading:
            found.add("stream")
        else:
            found.add("one way")
    return found


def publish(broker: Broker, first: int) -> None:
    container = broker.container
    for number in range(first, first + MESSAGES):
        queue = container.default.resources.catalog.queues["q"]
        container.default.resources.publish(queue, Message(b"%d" % number + bytes(KIB), True), 0)
    broker.schedule_turn()


def held(broker: Broker) -> int:
    queues = broker.container.default.resources.catalog.queues
    return queues["q"].messages.count if "q" in queues else 0


@pytest.mark.parametrize(
    ("a", "b", "way"),
    [
        pytest.param({}, {}, "stream", id="both of this release"),
        pytest.param(OLDER, {}, "messages", id="an older primary"),
        pytest.param({}, OLDER, "messages", id="an older backup"),
        pytest.param(OLDER, OLDER, "messages", id="both older"),
    ],
)
def test_a_backup_follows_catches_up_and_takes_over_by_either_way(
    tmp_path: Path, a: dict[str, object], b: dict[str, object], way: str
) -> None:
    @in_event_loop
    async def story() -> None:
        async with InProcessCluster(tmp_path) as cluster:
            cluster.ports.update(InProcessCluster(tmp_path, "a", "b").ports)
            await cluster.start("a", **a)
            await cluster.start("b", **b)
            await cluster.form("a")
            cluster.brokers["a"].container.default.configuration.declare_queue("q", {})
            publish(cluster.brokers["a"], 0)
            await eventually(lambda: held(cluster.brokers["b"]) == MESSAGES)
            await eventually(lambda: carriers(cluster.brokers["a"]) == {way})

            await cluster.stop("b")
            publish(cluster.brokers["a"], MESSAGES)
            await cluster.start("b", **b)
            await cluster.reach("b", State.READY)
            assert held(cluster.brokers["b"]) == 2 * MESSAGES
            await eventually(lambda: carriers(cluster.brokers["a"]) == {way})

            await cluster.stop("a")
            await cluster.ask("b", "promote")
            await cluster.start("a", **a)
            await cluster.reach("a", State.READY)
            publish(cluster.brokers["b"], 2 * MESSAGES)
            await eventually(lambda: held(cluster.brokers["a"]) == 3 * MESSAGES)
            await eventually(lambda: carriers(cluster.brokers["b"]) == {way})

    story()


@in_event_loop
async def test_an_upgraded_broker_uses_the_stream_with_those_that_are_upgraded_and_messages_with_the_others(
    tmp_path: Path,
) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c", **OLDER) as cluster:
        await cluster.form("a")
        cluster.brokers["a"].container.default.configuration.declare_queue("q", {})
        expected = [{"messages"}, {"stream", "messages"}, {"stream"}]
        for number, name in enumerate(("b", "a", "c")):
            leads = name == "a"
            await cluster.stop(name)
            if leads:
                await cluster.ask("b", "promote")
            await cluster.start(name, ha__frame_stream=True)
            await cluster.reach(name, State.READY)
            primary = cluster.brokers["b" if number else "a"]
            publish(primary, number * MESSAGES)
            for broker in cluster.brokers.values():
                await eventually(lambda broker=broker, count=number + 1: held(broker) == count * MESSAGES)  # type: ignore[misc]
            await eventually(lambda primary=primary, ways=expected[number]: carriers(primary) == ways)  # type: ignore[misc]


def encrypted_settings(directory: Path, **more: object) -> dict[str, object]:
    """Of brokers that have a certificate for `localhost` and 127.0.0.1."""
    authority = Authority(directory)
    certificate, key = authority.issue("broker")
    files = {"certificate": certificate, "key": key, "ca": authority.certificate}
    return {**{f"tls__{name}": str(file) for name, file in files.items()}, **more}


async def start_encrypted(directory: Path, cluster: InProcessCluster, host: str, settings: dict[str, object]) -> None:
    """Two brokers that call each other by that host."""
    cluster.ports.update(InProcessCluster(directory, "a", "b").ports)
    url = "amqps://" + ",".join(f"{host}:{port}" for port in cluster.ports.values())
    listening = "127.0.0.1" if host == "localhost" else host
    for name, port in cluster.ports.items():
        await cluster.start(name, listen=f"amqps://{listening}:{port}", ha__brokers_url=url, **settings)


@pytest.mark.parametrize(
    ("host", "more", "way"),
    [
        pytest.param("localhost", {}, "stream", id="by name"),
        pytest.param("127.0.0.1", {}, "stream", id="by address"),
        pytest.param("localhost", OLDER, "messages", id="older"),
        pytest.param(
            "localhost",
            {
                "tls__require_client_certificate": True,
                "sasl__allow_anonymous": False,
                "ha__mechanism": "EXTERNAL",
                "ha__username": "CN=broker",
            },
            "stream",
            id="who log in by their certificates",
        ),
    ],
)
@in_event_loop
async def test_frames_go_so_over_tls_too(tmp_path: Path, host: str, more: dict[str, object], way: str) -> None:
    async with InProcessCluster(tmp_path) as cluster:
        await start_encrypted(tmp_path, cluster, host, encrypted_settings(tmp_path, **more))
        await cluster.form("a")
        cluster.brokers["a"].container.default.configuration.declare_queue("q", {})
        publish(cluster.brokers["a"], 0)
        await eventually(lambda: held(cluster.brokers["b"]) == MESSAGES)
        await eventually(lambda: carriers(cluster.brokers["a"]) == {way})


@in_event_loop
async def test_a_broker_whose_certificate_is_for_another_host_is_told_nothing_and_is_there_all_the_same(
    tmp_path: Path,
) -> None:
    """Not even who we are: it could have the certificate of another machine of ours. But it may lead."""
    async with InProcessCluster(tmp_path) as cluster:
        await start_encrypted(tmp_path, cluster, "127.0.0.2", encrypted_settings(tmp_path))
        problem = r"somebody is there and could not be asked.*its certificate is not for 127\.0\.0\.2 but for CN=broker"
        with pytest.raises(RequestRefused, match=problem):
            await cluster.ask("a", "promote")
        assert not [connection for broker in cluster.brokers.values() for connection in broker.connections.open]


@in_event_loop
async def test_a_broker_that_takes_a_connection_and_says_nothing_of_tls_is_there(tmp_path: Path) -> None:
    """A process that hangs leads, perhaps: its kernel goes on to take connections."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        async with InProcessCluster(tmp_path) as cluster:
            cluster.ports.update(InProcessCluster(tmp_path, "a").ports)
            cluster.ports["b"] = hanging.getsockname()[1]
            url = "amqps://" + ",".join(f"localhost:{port}" for port in cluster.ports.values())
            settings = encrypted_settings(tmp_path, ha__brokers_url=url)
            await cluster.start("a", listen=f"amqps://127.0.0.1:{cluster.ports['a']}", **settings)
            with pytest.raises(RequestRefused, match=r"somebody is there.*it took the connection, and gave no answer"):
                await cluster.ask("a", "promote")


def test_noise_in_the_stream_costs_a_new_channel_and_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_event_loop
    async def story() -> None:
        async with InProcessCluster(tmp_path, "a", "b") as cluster:
            await cluster.form("a")
            a, b = cluster.brokers["a"], cluster.brokers["b"]
            a.container.default.configuration.declare_queue("q", {})
            publish(a, 0)
            await eventually(lambda: held(b) == MESSAGES)
            for connection in list(a.connections.open):
                if connection.engine.input.stream is not None:
                    connection.receive(b"\x00\x00\x00\x01\x00")
            a.schedule_turn()
            await cluster.see("b", lambda: cluster.member("b").member.status.state is not State.READY)
            publish(a, MESSAGES)
            await cluster.reach("b", State.READY)
            await eventually(lambda: held(b) == 2 * MESSAGES)
            await eventually(lambda: carriers(a) == {"stream"})

    with caplog.at_level(logging.WARNING):
        story()
    assert "kind 0x00 of a frame" in caplog.text
