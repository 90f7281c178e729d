"""SIGTERM to `qpid-ha-agent run`, again and again: how many end with their brokers, and how fast.

A lost cancellation shows in a few of hundreds only, so the moment is another one each time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Final

import psutil

from bench.failover import others_than
from bench.figures import Measurement
from bench.replication import fresh_cluster
from bench.scenario import Scenario
from qpid_ha_demo.cluster import LocalBroker

GIVE_UP_S: Final = 10.0
MOMENTS_S: Final = 1.0
"""Of an agent that is at rest: it looks at its broker twice a second."""
WHOLE_TIMEOUT_S: Final = 60.0


def measure_agent_stops(scenario: Scenario) -> Iterator[Measurement]:
    """Of a primary, which hands over first, and of a backup in turn."""
    moments, left = Random(1), 0
    with fresh_cluster(agents=True) as cluster:
        for number in range(scenario.agent_stops):
            cluster.wait_whole(WHOLE_TIMEOUT_S)
            primary = cluster.the_primary()
            broker = moments.choice(others_than(cluster, primary)) if number % 2 else primary
            role = "primary" if broker is primary else "backup"
            time.sleep(moments.uniform(0.0, MOMENTS_S))
            elapsed_s = _stop(broker)
            left += elapsed_s is None
            label = f"SIGTERM to the agent of a {role}: until agent and broker have ended"
            yield Measurement(f"agent_stop_{role}", label, elapsed_s or GIVE_UP_S, "s")
            cluster.restart(broker)
    label = f"SIGTERM to an agent, {scenario.agent_stops} times: not ended after {GIVE_UP_S:g} s"
    yield Measurement("agent_stop_left", label, left, "")


def _stop(broker: LocalBroker) -> float | None:
    """How long that took; None: not in time, and they were killed."""
    processes = [psutil.Process(pid) for pid in broker.processes()]
    began_s = time.monotonic()
    broker.terminate()
    broker.wait(GIVE_UP_S)
    elapsed_s = time.monotonic() - began_s
    alive = [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    for process in alive:
        process.kill()
    return None if alive or elapsed_s >= GIVE_UP_S else elapsed_s
