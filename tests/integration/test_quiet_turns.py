"""What one confirmed message costs in turns: how many there are, and who is asked at their end."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import proton
from proton.utils import BlockingConnection

from cluster_in_process import InProcessCluster, eventually
from event_loops import in_event_loop
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.runtime.due_parties import TurnPlace

MESSAGES = 40


def count(broker: Broker) -> Counter[str]:
    """From now on: moves of the container (`turn`), and parties that are asked, by their places."""
    counted: Counter[str] = Counter()
    due, container = broker.turns.due, broker.container
    parties = {place: due._parties[1 << place] for place in TurnPlace if 1 << place in due._parties}
    for place, party in parties.items():
        due.join(place, _counting(counted, place.name, party))
    container.turn = _counting(counted, "turn", container.turn)  # type: ignore[method-assign, assignment]
    return counted


def _counting(counted: Counter[str], name: str, call: Callable[[], object]) -> Callable[[], object]:
    def counting() -> object:
        counted[name] += 1
        return call()

    return counting


def publish(url: str, begin: Callable[[], object]) -> None:
    """One message after the other, each confirmed before the next is sent."""
    connection = BlockingConnection(url, timeout=10)
    sender = connection.create_sender("orders")
    sender.send(proton.Message(body="the first one"))
    begin()
    for number in range(MESSAGES):
        sender.send(proton.Message(body=str(number)))
    connection.close()


async def counted(cluster: InProcessCluster) -> Counter[str]:
    """Of the primary, while one message after the other is confirmed."""
    counts: list[Counter[str]] = []
    broker = cluster.brokers["a"]
    loop = asyncio.get_running_loop()

    def begin() -> None:
        asyncio.run_coroutine_threadsafe(begin_in_loop(), loop).result()

    async def begin_in_loop() -> None:
        counts.append(count(broker))

    await asyncio.to_thread(publish, cluster.url("a"), begin)
    return Counter(counts[0])


@in_event_loop
async def test_one_message_takes_one_turn_and_whoever_has_nothing_is_not_asked(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        await eventually(lambda: not cluster.brokers["a"].turns.due.are_due)
        counts = await counted(cluster)
    # Each was sent in a turn, and told without one; a tick, and the end of the client, have turns of their own.
    assert MESSAGES <= counts["turn"] < MESSAGES * 1.5
    idle = {place for place in TurnPlace if place is not TurnPlace.CONNECTIONS}
    assert {place: counts[place.name] for place in idle if counts[place.name] >= MESSAGES // 2} == {}


@in_event_loop
async def test_what_waits_for_a_commit_is_told_without_a_turn(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        broker = cluster.brokers["a"]
        waits = asyncio.create_task(broker.waiters.wait_committed(broker.container.default.resources.written))
        await waits
        counts = count(broker)
        log = broker.container.default.resources.replicated.log
        before = log.committed_lsn
        broker.container.default.configuration.declare_queue("new", {})
        waits = asyncio.create_task(broker.waiters.wait_committed(broker.container.default.resources.written))
        await waits
        assert log.committed_lsn > before
        assert counts["WAITERS"] >= 2  # in the turn in which it was written, and when the backup had it
        assert counts["turn"] < counts["CONNECTIONS"]
