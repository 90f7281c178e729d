"""Brokers of this release and of older ones in one cluster, and brokers that speak TLS: how their frames travel."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from certificate_authority import Authority
from cluster_in_process import InProcessCluster, eventually
from event_loops import in_event_loop
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


@in_event_loop
async def test_over_tls_frames_go_as_messages(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    async with InProcessCluster(tmp_path) as cluster:
        cluster.ports.update(InProcessCluster(tmp_path, "a", "b").ports)
        url = ",".join(f"localhost:{port}" for port in cluster.ports.values())
        secure = {
            "tls__certificate": str(certificate),
            "tls__key": str(key),
            "tls__ca": str(authority.certificate),
            "ha__brokers_url": f"amqps://{url}",
        }
        for name, port in cluster.ports.items():
            await cluster.start(name, listen=f"amqps://127.0.0.1:{port}", **secure)
        await cluster.form("a")
        cluster.brokers["a"].container.default.configuration.declare_queue("q", {})
        publish(cluster.brokers["a"], 0)
        await eventually(lambda: held(cluster.brokers["b"]) == MESSAGES)
        await eventually(lambda: carriers(cluster.brokers["a"]) == {"messages"})
        taken = [connection.engine for connection in cluster.brokers["a"].connections.open]
        opened = [channel._client.engine for channel in cluster.member("b")._dialler._channels if channel._client]
        assert taken
        assert opened
        assert not any(engine.input.may_stream for engine in taken + opened)  # neither end relies on the other one


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
