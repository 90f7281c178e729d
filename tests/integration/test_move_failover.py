"""A primary that is killed while it takes messages from one queue to others: none is lost, and none is there twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import proton
import pytest

from blocking_client import BlockingClient, bodies
from long_work import send
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

COUNT = 4000


def messages_in(broker: LocalBroker, name: str) -> int:
    found = broker.ask("queues", action="read", name=name)["messages"]
    return int(str(found))


def carried_out(broker: LocalBroker, **asked: Any) -> bool:
    """Whether it came to its end."""
    try:
        broker.ask("queues", name="from", **asked)
    except ControlFailure:
        return False
    return True


@pytest.mark.parametrize(
    ("asked", "targets"),
    [({"action": "move", "to": "to"}, ["to"]), ({"action": "redirect", "exchange": "x"}, ["to", "too"])],
    ids=["move", "redirect"],
)
def test_a_kill_in_the_middle_of_it_loses_nothing_and_leaves_nothing_twice(
    tmp_path: Path, asked: dict[str, Any], targets: list[str]
) -> None:
    with RunningCluster(tmp_path) as cluster, ThreadPoolExecutor(1) as threads:
        cluster.form(0)
        first, second = cluster.broker(0), cluster.broker(1)
        first.ask("exchanges", action="create", name="x", kind="fanout")
        for name in ("from", "to", "too"):
            first.ask("queues", action="create", name=name, arguments={})
        for name in ("to", "too"):
            first.ask("exchanges", action="bind", name="x", queue=name)
        port = int(cluster.urls[0].rpartition(":")[2])
        send(port, "from", (bytes(proton.Message(number).encode()) for number in range(COUNT)), 1000)
        cluster.wait_until(lambda: messages_in(first, "from") == COUNT, "all is published")
        moving = threads.submit(carried_out, first, **asked)
        cluster.wait_until(lambda: messages_in(first, "to") > 0, "some have moved")
        cluster.kill(first)
        moving.result()
        cluster.promote(second)
        with BlockingClient(cluster.urls[1]) as client:
            left = bodies(client.browse("from"))
            for name in targets:
                assert bodies(client.browse(name)) + left == list(range(COUNT))
            assert carried_out(second, **asked)
            for name in targets:
                assert bodies(client.browse(name)) == list(range(COUNT))
