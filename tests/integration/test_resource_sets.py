"""A cluster of many resource sets: real brokers, an operator's commands, and clients that follow redirects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Delivery, Message

from blocking_client import BlockingClient
from qpid_ha_demo.cluster import Facts
from running_cluster import RunningCluster
from sets_cluster import SetTraffic, change, create_queue, create_set, sets_of, wait_whole

SETS = ("orders", "audit", "mail")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path, settings={"ha": {"failure-timeout": "1s"}}) as cluster:
        cluster.form()
        yield cluster


def test_three_sets_work_on_three_brokers_and_one_that_dies_is_replaced_in_each(cluster: RunningCluster) -> None:
    names = [broker.name for broker in cluster.brokers]
    for name, preferred in zip(SETS, names, strict=True):
        create_set(cluster, name, preferred=preferred)
    sets = wait_whole(cluster, 1, *SETS)
    assert [sets[name]["primary"] for name in SETS] == names
    for name in SETS:
        create_queue(cluster, 0, f"q-{name}", name)

    with (
        SetTraffic(cluster, "q-orders") as orders,
        SetTraffic(cluster, "q-audit") as audit,
        SetTraffic(cluster, "q-mail") as mail,
    ):
        everybody = (orders, audit, mail)
        for traffic in everybody:
            traffic.wait_confirmed(50)
        cluster.kill(2)
        for traffic in everybody:
            traffic.wait_confirmed(200)
        sets = sets_of(cluster.broker(0))
        assert sets["mail"]["primary"] in names[:2]
        assert [sets[name]["primary"] for name in ("orders", "audit")] == names[:2]
        cluster.restart(2)
        wait_whole(cluster, 0, *SETS)
        for traffic in everybody:
            traffic.wait_confirmed(50)
            traffic.settle()


def test_a_broker_that_hangs_holds_its_sets_up_for_the_failure_timeout_and_not_for_that_of_backups(
    cluster: RunningCluster,
) -> None:
    names = [broker.name for broker in cluster.brokers]
    create_set(cluster, "orders", preferred=names[1])
    wait_whole(cluster, 0, "orders")
    create_queue(cluster, 0, "q", "orders")
    with SetTraffic(cluster, "q") as traffic:
        traffic.wait_confirmed(50)
        with cluster.paused(1):  # it is in the in-sync set of default, where the records of sets are committed
            cluster.wait_until(
                lambda: sets_of(cluster.broker(0))["orders"]["primary"] in (names[0], names[2]), "another leads", 8.0
            )
            traffic.wait_confirmed(50)
        wait_whole(cluster, 0, "orders")
        traffic.wait_confirmed(50)
        traffic.settle()


def test_what_comes_to_an_exchange_reaches_the_queues_of_all_sets_also_when_a_primary_dies(
    cluster: RunningCluster,
) -> None:
    names = [broker.name for broker in cluster.brokers]
    for name, preferred in zip(SETS, names, strict=True):
        create_set(cluster, name, preferred=preferred)
    wait_whole(cluster, 0, *SETS)
    for name in SETS:
        create_queue(cluster, 0, f"q-{name}", name)
        change(cluster, 0, "exchanges", "bind", name="amq.fanout", queue=f"q-{name}")

    publisher = BlockingClient(cluster.urls[0])
    sender = publisher.sender("amq.fanout")
    for number in range(20):
        assert publisher.offer(sender, Message(str(number))).state == Delivery.ACCEPTED
    cluster.kill(2)
    for number in range(20, 40):
        assert publisher.offer(sender, Message(str(number))).state == Delivery.ACCEPTED

    sets = sets_of(cluster.broker(0))
    for name in SETS:
        client = BlockingClient(cluster.urls[names.index(str(sets[name]["primary"]))])
        receiver = client.receiver(f"q-{name}", 40)
        assert [receiver.receive(timeout=60).body for _ in range(40)] == [str(number) for number in range(40)]
        client.connection.close()
    publisher.connection.close()


def wait_led(cluster: RunningCluster, by: int, name: str) -> Facts:
    """Until somebody leads the set, as that broker sees it."""
    cluster.wait_until(lambda: bool(sets_of(cluster.broker(by)).get(name, {}).get("primary")), f"{name} is led")
    return sets_of(cluster.broker(by))[name]


def test_a_broker_that_is_stopped_in_order_has_others_lead_its_sets_first(cluster: RunningCluster) -> None:
    names = [broker.name for broker in cluster.brokers]
    for name in SETS:
        create_set(cluster, name, preferred=names[2])
    wait_whole(cluster, 0, *SETS)
    create_queue(cluster, 0, "q", "orders")
    with SetTraffic(cluster, "q") as traffic:
        traffic.wait_confirmed(50)

        stopped = cluster.broker(2)
        stopped.terminate()
        stopped.wait()

        sets = sets_of(cluster.broker(0))
        assert {sets[name]["primary"] for name in SETS} <= set(names[:2])
        assert {sets[name]["generation"] for name in SETS} == {2}
        traffic.wait_confirmed(50)
        cluster.restart(2)
        wait_whole(cluster, 0, *SETS)
        traffic.settle()


def test_an_agent_that_is_stopped_hands_default_over_and_its_broker_the_other_sets(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True) as cluster:
        cluster.wait_whole()
        controller = cluster.the_primary()
        change(cluster, cluster.brokers.index(controller), "sets", "create", name="orders", preferred=controller.name)
        wait_whole(cluster, cluster.brokers.index(controller), "orders")

        controller.terminate()
        controller.wait()

        cluster.wait_until(lambda: cluster.primary() not in (None, controller), "another one leads default")
        orders = wait_led(cluster, cluster.brokers.index(cluster.the_primary()), "orders")
        assert (orders["primary"] != controller.name, orders["generation"]) == (True, 2)
        assert "led here gets other primaries first" in controller.log()
        assert "not all sets are led by others" not in controller.log()
