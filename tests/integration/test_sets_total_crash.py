"""All machines lose their power at once: every set comes back by itself, with all that was confirmed as durable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from proton import Message

from blocking_client import BlockingClient
from running_cluster import RunningCluster
from sets_cluster import sets_of

BROKERS, SETS, MESSAGES = 5, 15, 4
PATIENCE_S = 60.0


def rows(cluster: RunningCluster) -> dict[str, dict[str, object]]:
    """The sets by name, as the controller tells; empty while there is none."""
    controller = cluster.primary()
    return {} if controller is None else sets_of(controller)


def client_of(cluster: RunningCluster, set_name: str) -> BlockingClient:
    """At the set's primary, once that has the set's queue."""
    names = [broker.name for broker in cluster.brokers]
    index = names.index(str(rows(cluster)[set_name]["primary"]))

    def has_queue() -> bool:
        return any(row["name"] == f"q-{set_name}" for row in cluster.broker(index).ask("queues")["answer"])

    cluster.wait_until(has_queue, f"{names[index]} has the queue of {set_name}")
    return BlockingClient(cluster.urls[index])


def best_of(stores: list[Path]) -> dict[str, dict[str, Any]]:
    """What is said of each set."""
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "store", "best", "--format", "json", *map(str, stores)]
    environment = {**os.environ, "QPID_HA_CONFIG": "/none.yaml"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)["sets"]
    return found


def test_every_set_comes_back_by_itself(tmp_path: Path) -> None:
    names = [f"set-{number}" for number in range(SETS)]

    with RunningCluster(tmp_path, BROKERS, agents=True, stores=tmp_path / "stores") as cluster:

        def wait_whole() -> None:
            def is_whole() -> bool:
                sets = rows(cluster)
                return len(sets) == SETS and all(each["state"] == "ok" for each in sets.values())

            cluster.wait_until(is_whole, "all sets ok", PATIENCE_S)

        cluster.wait_whole(PATIENCE_S)
        controller = cluster.the_primary()
        for number, name in enumerate(names):
            preferred = cluster.broker(number % BROKERS).name
            controller.ask("sets", action="create", name=name, preferred=preferred)
        wait_whole()
        for name in names:
            arguments = {"qpid.resource-set": name}
            controller.ask("queues", action="create", name=f"q-{name}", arguments=arguments)
            client = client_of(cluster, name)
            sender = client.sender(f"q-{name}")
            for number in range(MESSAGES):
                client.offer(sender, Message(f"{name} {number}", durable=True))
            client.connection.close()

        cluster.crash()
        stores = sorted(path.parent for path in (tmp_path / "stores").glob("*/LOCK"))
        told = best_of(stores)
        assert len(stores) == BROKERS
        assert len(told) == 1 + SETS
        assert {each["verdict"] for each in told.values()} <= {"winner", "equal"}
        assert all(told[name]["record"]["members"] and told[name]["recorded"] for name in names)
        for broker in cluster.brokers:
            broker.start()

        wait_whole()
        for name in names:
            client = client_of(cluster, name)
            receiver = client.receiver(f"q-{name}", MESSAGES)
            bodies = [receiver.receive(timeout=60).body for _ in range(MESSAGES)]
            assert bodies == [f"{name} {number}" for number in range(MESSAGES)]
            client.connection.close()
