"""`python idle_clusters.py URL FIRST COUNT`: the clients that so many idle clusters have at their coordinator.

Of each cluster: three agents that talk with the coordinator as `qpid-ha-agent run` does, one with the lock and two that
wait for it, and a primary's broker that reads the record. There are no brokers. Says `ready` when each cluster has its
holder, ends when its input does, and then says how many have one.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from qpid_ha_agent.coordinator_talk import CoordinatorTalk
from qpid_ha_agent.decision import LockView
from qpid_ha_agent.lock import PrimaryLock
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings

AGENTS = 3
POLL_INTERVAL_S = 0.5
BROKER_LOOKS_S = 10.0
"""A primary's broker, at a record that nobody changes."""
STARTS_PER_S = 2


class IdleCluster:
    """One of them."""

    def __init__(self, url: str, number: int) -> None:
        self._name = f"cluster{number}"
        self._settings = CoordinatorSettings(url=CoordinatorUrl.parse(f"{url}/{self._name}"))
        self._locks: list[PrimaryLock] = []

    @property
    def has_holder(self) -> bool:
        """Whether one of the agents has the lock."""
        return any(lock.view is LockView.HELD for lock in self._locks)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._serve())
            for number in range(1, AGENTS + 1):
                tasks.create_task(self._attend(f"broker{number}"))

    async def _attend(self, name: str) -> None:
        coordinator = open_coordinator(self._settings)
        lock = PrimaryLock(lambda: coordinator.lease(name), lambda: None)
        self._locks.append(lock)
        talk = CoordinatorTalk(
            coordinator, str(self._settings.url), lock, POLL_INTERVAL_S, name, 0, False, lambda error: None
        )
        lock.wait_for()
        await talk.talk_forever()

    async def _serve(self) -> None:
        """Broker 1, which is primary."""
        coordinator = open_coordinator(self._settings)
        record = ClusterRecord(self._name, 1, "broker1", 1, tuple(f"broker{n}" for n in range(1, AGENTS + 1)))
        is_recorded = False
        while True:
            try:
                if is_recorded:
                    await asyncio.to_thread(coordinator.read)
                else:
                    await asyncio.to_thread(coordinator.compare_and_set, ClusterRecord(), record)
                    is_recorded = True
            except CoordinatorError as error:
                print(error, file=sys.stderr, flush=True)
            await asyncio.sleep(BROKER_LOOKS_S)


async def attend(url: str, first: int, count: int) -> None:
    """All of them, until the input ends."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    clusters = [IdleCluster(url, number) for number in range(first, first + count)]
    tasks = []
    for cluster in clusters:
        tasks.append(asyncio.create_task(cluster.run()))
        await asyncio.sleep(1 / STARTS_PER_S)
    while not all(cluster.has_holder for cluster in clusters):
        failed = next((task for task in tasks if task.done()), None)
        if failed is not None:
            await failed
        await asyncio.sleep(0.1)
    print("ready", flush=True)
    await over.wait()
    print(sum(cluster.has_holder for cluster in clusters), flush=True)


if __name__ == "__main__":
    asyncio.run(attend(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
