"""What tests of many resource sets ask of a running cluster, and clients that begin at any broker."""

from __future__ import annotations

from typing import Any

from failover_load import FailoverLoad
from limits import LIMIT_S
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import Facts, LocalBroker
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


class SetTraffic(FailoverLoad):
    """A publisher and a consumer of one queue, who begin at any broker."""

    def __init__(self, cluster: RunningCluster, queue: str, rate: int = RATE) -> None:
        super().__init__(cluster.urls, queue, rate=rate)

    def settle(self) -> None:
        """Until all that was sent has arrived: nothing lost, no unmarked copy, all in order."""
        audit = self.finish()
        assert self.unconfirmed == 0, (audit, self.publisher.problems[-3:])
        assert audit.is_flawless, audit
