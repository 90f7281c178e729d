"""A primary that is killed while it moves messages from one queue to another: none is lost, and none is there twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import proton

from blocking_client import BlockingClient, bodies
from long_work import send
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

COUNT = 4000


def messages_in(broker: LocalBroker, name: str) -> int:
    found = broker.ask("queues", action="read", name=name)["messages"]
    return int(str(found))


def move(broker: LocalBroker) -> bool:
    """Whether it came to its end."""
    try:
        broker.ask("queues", action="move", name="from", to="to")
    except ControlFailure:
        return False
    return True


def test_a_kill_in_the_middle_of_a_move_loses_nothing_and_leaves_nothing_twice(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster, ThreadPoolExecutor(1) as threads:
        cluster.form(0)
        first, second = cluster.broker(0), cluster.broker(1)
        for name in ("from", "to"):
            first.ask("queues", action="create", name=name, arguments={})
        port = int(cluster.urls[0].rpartition(":")[2])
        send(port, "from", (bytes(proton.Message(number).encode()) for number in range(COUNT)), 1000)
        cluster.wait_until(lambda: messages_in(first, "from") == COUNT, "all is published")
        moving = threads.submit(move, first)
        cluster.wait_until(lambda: messages_in(first, "to") > 0, "some have moved")
        cluster.kill(first)
        moving.result()
        cluster.promote(second)
        with BlockingClient(cluster.urls[1]) as client:
            there, left = bodies(client.browse("to")), bodies(client.browse("from"))
            assert there + left == list(range(COUNT))
            assert move(second)
            assert bodies(client.browse("to")) == list(range(COUNT))
