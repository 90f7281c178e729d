"""What resource sets cost three brokers that host them: three primaries against one, and a thousand sets.

The brokers are in one process, in memory, and messages are published where their clients' links would, so that what is
measured is what sets cost: the log, the members, and the connections that they share.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.figures import Measurement
from bench.scenario import Scenario
from bench.usage import Work, resident_bytes
from cluster_in_process import InProcessCluster
from hosted_sets import HostedSets
from model_support import message
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.queues.queue import Queue

BROKERS: Final = ("a", "b", "c")
BODY: Final = "x" * 100
TURN_MESSAGES: Final = 10
"""Of one set, before another one has its turn."""
WINDOW: Final = 10_000
"""Messages that are not confirmed, of all sets together."""
AT_ONCE: Final = 50
"""Sets that are promoted for the first time together: each of their brokers has to be asked within a second."""
ROUNDS: Final = 3
REST_S: Final = 3.0
IDLE_S: Final = 10.0


class Place(NamedTuple):
    """Where a set is published to."""

    broker: str
    hosted: HostedSet
    queue: Queue


def measured(story: Callable[[HostedSets], Awaitable[list[Measurement]]]) -> list[Measurement]:
    """What `story` measured in a cluster of three."""

    async def run() -> list[Measurement]:
        with tempfile.TemporaryDirectory() as directory:
            async with InProcessCluster(Path(directory), *BROKERS, link_heartbeat_interval="1s") as cluster:
                await cluster.form("a")
                return await story(HostedSets(cluster))

    with quiet():
        return asyncio.run(run())


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log lines of thousands of changes of roles, and garbage collected as seldom as `qpidd` has it."""
    logging.disable(logging.WARNING)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


async def placed(sets: HostedSets, names: list[str], primaries: str) -> list[Place]:
    """These sets on all brokers, in sync, each with a queue; their primaries on `primaries` in turn."""
    leaders = [primaries[at % len(primaries)] for at in range(len(names))]
    for first in range(0, len(names), AT_ONCE):
        some = list(zip(names, leaders, strict=True))[first : first + AT_ONCE]
        for name, leader in some:
            sets.host(name, (leader, *[broker for broker in BROKERS if broker != leader]))
            await sets.loaded(name, *BROKERS)
        await asyncio.gather(*[sets.promote(leader, name) for name, leader in some])
    for name, leader in zip(names, leaders, strict=True):
        for broker in BROKERS:
            if broker != leader:
                await sets.reach(broker, name, State.READY)
    places = []
    for name, leader in zip(names, leaders, strict=True):
        hosted = sets.hosted(leader, name)
        places.append(Place(leader, hosted, hosted.configuration.declare_queue(f"q-{name}", {})))
        hosted.touch()
    for serving in sets.cluster.brokers.values():
        serving.schedule_turn()
    await committed([place.hosted.resources.replicated.log for place in places], 0)
    return places


async def committed(logs: list[Log], most: int) -> None:
    """Wait until no more than `most` events are not."""
    while sum(log.last_lsn - log.committed_lsn for log in logs) > most:  # noqa: ASYNC110 - looking costs next to nothing
        await asyncio.sleep(0.001)


async def published(sets: HostedSets, places: list[Place], messages: int) -> tuple[float, float]:
    """Messages a second, and microseconds of processor time for each, with these sets in turn."""
    brokers = sets.cluster.brokers
    logs = [place.hosted.resources.replicated.log for place in places]
    one = message(BODY)
    gc.collect()
    with Work() as work:
        for number in range(messages // TURN_MESSAGES):
            place = places[number % len(places)]
            for _ in range(TURN_MESSAGES):
                place.hosted.resources.publish(place.queue, one, 0)
            place.hosted.touch()
            brokers[place.broker].schedule_turn()
            await asyncio.sleep(0)
            if number % 100 == 0:
                await committed(logs, WINDOW)
        await committed(logs, 0)
    return messages / work.elapsed_s, work.processor_s / messages * 1e6


def measure_three(scenario: Scenario) -> Iterator[Measurement]:
    """One set on three brokers, and three with a primary on each, again and again, because a machine has its moods."""

    async def story(sets: HostedSets) -> list[Measurement]:
        three = await placed(sets, ["one", "two", "three"], "abc")
        results: dict[int, list[tuple[float, float]]] = {1: [], 3: []}
        for _ in range(ROUNDS):
            for count in results:
                results[count].append(await published(sets, three[:count], scenario.messages // 2))
        costs = {count: median(cost for _, cost in found) for count, found in results.items()}
        note = f"{costs[3]:.1f} us with three, {costs[1]:.1f} with one, of all three brokers, without clients"
        ratio = costs[3] / costs[1]
        return [Measurement("sets_three_cost", "three sets: processor for a message, of one's", ratio, "x", note)]

    yield from measured(story)


def measure_many(scenario: Scenario) -> Iterator[Measurement]:
    """Many sets: what a replica takes in memory, what they take of a processor at rest, and published to in turn."""
    count = scenario.hosted_sets

    async def story(sets: HostedSets) -> list[Measurement]:
        gc.collect()
        before = resident_bytes(os.getpid())
        with Work() as placing:
            places = await placed(sets, [f"set{number}" for number in range(count)], "abc")
        await asyncio.sleep(REST_S)
        gc.collect()
        held = (resident_bytes(os.getpid()) - before) / (count * len(BROKERS))
        with Work() as idling:
            await asyncio.sleep(IDLE_S)
        share = 100 * idling.processor_s / idling.elapsed_s / len(BROKERS)
        rates: dict[int, list[float]] = {1: [], count: []}
        for _ in range(ROUNDS):
            for used in rates:
                rates[used].append((await published(sets, places[:used], scenario.messages // 4))[0])
        one, many = median(rates[1]), median(rates[count])
        of = f"{count:,} sets on three brokers"
        return [
            Measurement("sets_placed", f"{of}: until all are in sync", placing.elapsed_s, "s", "all in one process"),
            Measurement("sets_memory", f"{of}: memory of a replica", held / 1000, "kB", "with one queue"),
            Measurement("sets_idle", f"{of}: processor of a broker at rest", share, "%", "of a core"),
            Measurement("sets_in_turn", f"{of}: published to in turn, of one's rate", 100 * many / one, "%",
                        f"{many:,.0f}/s; one set {one:,.0f}/s"),
        ]  # fmt: skip

    yield from measured(story)


def measure_map(scenario: Scenario) -> Iterator[Measurement]:
    """A broker that is new gets the map, and knows of every set and queue.

    The sets are those of brokers that are not there: what is measured is the map, not what it says is hosted.
    """
    sets, queues = scenario.hosted_sets, scenario.mapped_queues

    async def story(hosts: HostedSets) -> list[Measurement]:
        cluster = hosts.cluster
        await cluster.stop("c")
        default = cluster.brokers["a"].container.default
        names = [f"set{number}" for number in range(sets)]
        default.resources.replicated.submit(
            [
                *(ev.BrokerRegistered(name, name, f"amqp://127.0.0.1:{port}", "", "", "1")
                  for port, name in enumerate(("x", "y", "z"), 1)),
                *(ev.SetPlaced(name, ("x", "y", "z"), (), "x", 3, 1) for name in names),
                *(ev.QueuePlaced(f"queue{number}", names[number % sets], {}, False) for number in range(queues)),
            ]
        )  # fmt: skip
        cluster.brokers["a"].schedule_turn()
        log = default.resources.replicated.log
        await committed([log], 0)
        with Work() as work:
            await cluster.start("c")
            there = cluster.brokers["c"].container.default.resources.replicated.state.map
            while len(there.sets) < sets or len(there.queues) < queues:  # noqa: ASYNC110 - looking costs next to nothing
                await asyncio.sleep(0.001)
        note = f"from its start; {work.processor_s:.2f} s of a processor for all three brokers"
        label = f"map of {sets:,} sets and {queues:,} queues to a new broker"
        return [Measurement("sets_map", label, work.elapsed_s, "s", note)]

    yield from measured(story)
