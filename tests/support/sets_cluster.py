"""What tests of many resource sets ask of a running cluster, and clients that begin at any broker."""

from __future__ import annotations

import time
from typing import Any

from limits import LIMIT_S
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import Facts, LocalBroker
from qpid_ha_demo.ledger import Ledger
from qpid_ha_demo.load import DemoConsumer, DemoPublisher
from running_cluster import RunningCluster

RATE = 200


def sets_of(broker: LocalBroker) -> dict[str, Facts]:
    """By name; empty while the controller does not answer."""
    try:
        rows = broker.ask("sets", timeout_s=20.0, action="list")["answer"]
    except ControlFailure:
        return {}
    return {row["name"]: row for row in rows}


def change(cluster: RunningCluster, by: int, method: str, action: str, **params: Any) -> Facts:
    """Have it done, asking that broker. Raises RequestRefused."""
    return cluster.broker(by).ask(method, action=action, **params)


def create_set(cluster: RunningCluster, name: str, **wanted: Any) -> None:
    """Asking the first broker."""
    change(cluster, 0, "sets", "create", name=name, **wanted)


def create_queue(cluster: RunningCluster, by: int, queue: str, set_name: str) -> None:
    """In that set, asking that broker, the controller."""
    change(cluster, by, "queues", "create", name=queue, arguments={"qpid.resource-set": set_name})


def wait_whole(cluster: RunningCluster, by: int, *names: str) -> dict[str, Facts]:
    """Until these sets want nothing, as that broker sees it."""
    broker = cluster.broker(by)

    def is_whole() -> bool:
        sets = sets_of(broker)
        return all(name in sets and sets[name]["state"] == "ok" for name in names)

    cluster.wait_until(is_whole, f"{', '.join(names)} ok", LIMIT_S)
    return sets_of(broker)


class SetTraffic:
    """A publisher and a consumer of one queue, who begin at any broker."""

    def __init__(self, cluster: RunningCluster, queue: str, rate: int = RATE) -> None:
        self.ledger = Ledger()
        self._publisher = DemoPublisher(cluster.urls, queue, self.ledger, rate=rate)
        self._consumer = DemoConsumer(cluster.urls, queue, self.ledger)

    def __enter__(self) -> SetTraffic:
        self._publisher.start()
        self._consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._publisher.stop()
        self._consumer.stop()

    def wait_confirmed(self, more: int) -> None:
        """Until so many more are confirmed."""
        wanted, deadline_s = len(self.ledger.confirmed_at_s) + more, time.monotonic() + LIMIT_S
        while len(self.ledger.confirmed_at_s) < wanted:
            assert time.monotonic() < deadline_s, (self._publisher.problems[-3:], self._consumer.problems[-3:])
            time.sleep(0.01)

    def settle(self) -> None:
        """Until all that was sent has arrived: nothing lost, no unmarked copy, all in order."""
        self._publisher.pause()
        deadline_s = time.monotonic() + LIMIT_S
        while not (self._publisher.is_settled and self.ledger.missing == 0):
            assert time.monotonic() < deadline_s, (self.ledger.audit(), self._publisher.problems[-3:])
            time.sleep(0.01)
        audit = self.ledger.audit()
        assert audit.is_flawless, audit
