"""The cluster map at brokers that do not write it: known as soon as it is committed, and asked for where it is not."""

from __future__ import annotations

import pytest

from qpid_ha_broker.events import types as ev
from small_cluster import Node, SmallCluster, three

ORDERS = ev.SetPlaced("orders", ("a", "b"), (), "", 0, 0)


def write(node: Node, *events: ev.MapEvent) -> None:
    """As the controller would."""
    for event in events:
        node.resources.replicated.write(event)
    node.want_turn()


def test_backups_apply_what_changes_the_map_without_waiting_for_a_heartbeat() -> None:
    cluster = three()
    write(cluster["a"], ORDERS, ev.QueuePlaced("q", "orders", {}, False))
    cluster.run()  # no time goes by
    assert all("q" in node.resources.replicated.state.map.queues for node in cluster.nodes.values())


def test_what_concerns_no_map_is_committed_at_backups_with_the_next_batch_or_heartbeat_as_ever() -> None:
    cluster = three()
    write(cluster["a"], ORDERS)
    cluster.run()
    cluster["a"].declare("mine")
    cluster.run()
    assert "mine" in cluster["a"].resources.catalog.queues
    assert "mine" not in cluster["b"].resources.catalog.queues
    cluster.wait(1)
    assert "mine" in cluster["b"].resources.catalog.queues


@pytest.mark.parametrize("late", ["b", "c"])
def test_nobody_hears_of_a_map_that_one_in_sync_does_not_hold(late: str) -> None:
    cluster = three()
    cluster[late].paused = True
    write(cluster["a"], ORDERS)
    cluster.run()
    assert not any(_has_orders(cluster, name) for name in "bc")
    cluster[late].paused = False
    cluster.run()
    assert all(_has_orders(cluster, name) for name in "bc")


def test_who_takes_over_does_not_take_the_last_of_the_map_for_committed() -> None:
    """Nobody but who is gone knows whether it is: what is done because of it waits."""
    cluster = three()
    write(cluster["a"], ORDERS)
    cluster.settle()
    b, heard = cluster["b"], list[tuple[int, int]]()
    b.resources.replicated.state.map.listeners.append(
        lambda changes: heard.append((b.member.position.lsn, b.member.committed_lsn))
    )
    placed = cluster["a"].resources.replicated.write(ev.QueuePlaced("q", "orders", {}, False))
    cluster["a"].turn()
    while b.inbox:
        b.handle(b.inbox.popleft())
    cluster.kill("a")

    assert cluster.promote("b").done

    assert heard == [(placed, placed - 1)]


def _has_orders(cluster: SmallCluster, name: str) -> bool:
    return "orders" in cluster[name].resources.replicated.state.map.sets
