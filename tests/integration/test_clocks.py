"""Brokers whose machines' clocks are a day apart, in one process: what has an hour to live lives an hour."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from proton import Message

from blocking_client import BlockingClient
from cluster_in_process import InProcessBroker, InProcessCluster, eventually, free_ports
from event_loops import in_event_loop
from hosted_sets import HostedSets
from model_support import message
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.runtime.steady_clock import SteadyClock

DAY_S = 86_400.0
CLOCK = "qpid_ha_broker.server.broker.SteadyClock"
HOUR_S = 3600.0
MESSAGES = 50


async def cluster_of_two(cluster: InProcessCluster, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`a` leads; the machine of `b` is a day ahead."""
    cluster.ports = dict(zip("ab", free_ports(2), strict=True))
    for name, ahead_s in (("a", 0.0), ("b", DAY_S)):
        with monkeypatch.context() as patched:
            patched.setattr(CLOCK, partial(SteadyClock, partial(_wall_s, ahead_s)))
            await cluster.start(name, data_dir=str(directory / name))
    await cluster.form("a")


def _wall_s(ahead_s: float) -> float:
    return time.time() + ahead_s


def send(url: str) -> None:
    with BlockingClient(url) as client:
        client.send("q", *[Message(f"m{number}", durable=True, ttl=HOUR_S) for number in range(MESSAGES)])


def count(broker: Broker, set_name: str = "default") -> int:
    """After time has gone on."""
    broker.set_time()
    broker.container.tick()
    broker.turn()
    return broker.container.sets[set_name].resources.catalog.queues["q"].messages.count


def test_a_planned_switchover_to_a_broker_whose_clock_is_a_day_ahead_and_back_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_event_loop
    async def run() -> None:
        async with InProcessCluster(tmp_path) as cluster:
            await cluster_of_two(cluster, tmp_path, monkeypatch)
            await asyncio.to_thread(send, cluster.url("a"))
            for before, after, ahead_s in (("a", "b", -DAY_S), ("b", "a", 0.0)):
                await cluster.ask(before, "switchover", to=after)
                await cluster.reach(before, State.READY)
                assert count(cluster.brokers[after]) == MESSAGES
                facts = await cluster.ask(after, "query")
                assert facts["message_clock_ahead_s"] == pytest.approx(ahead_s, abs=2)

    run()


def test_nor_do_other_resource_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @in_event_loop
    async def run() -> None:
        async with InProcessCluster(tmp_path) as cluster:
            await cluster_of_two(cluster, tmp_path, monkeypatch)
            sets = HostedSets(cluster)
            await sets.place("orders", "a", "b")
            hosted = sets.hosted("a", "orders")
            queue = hosted.configuration.declare_queue("q", {})
            expires_at_ms = hosted.now_ms + int(HOUR_S * 1000)
            whole = message("m", durable=True)._replace(expires_at_ms=expires_at_ms)
            hosted.resources.publish(queue, whole, hosted.now_ms)
            hosted.touch()
            cluster.brokers["a"].schedule_turn()
            await eventually(lambda: sets.is_same("orders", "a", "b"))
            await sets.switch_over("a", "orders", "b")
            await sets.reach("b", "orders", State.PRIMARY)
            assert count(cluster.brokers["b"], "orders") == 1

    run()


def test_a_broker_alone_goes_on_from_its_store_when_somebody_has_set_the_clock_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_event_loop
    async def run() -> None:
        settings = {"data-dir": str(tmp_path / "data")}
        async with InProcessBroker(tmp_path, settings) as node:
            await asyncio.to_thread(send, node.url)
        monkeypatch.setattr(CLOCK, partial(SteadyClock, partial(_wall_s, DAY_S)))
        async with InProcessBroker(tmp_path, settings) as node:
            assert count(node.broker) == MESSAGES
            assert (await node.ask("query"))["message_clock_ahead_s"] == pytest.approx(-DAY_S, abs=2)

    run()
