"""Clusters with stores, story by story: what comes back after the power, a process, or room on a disk went."""

from __future__ import annotations

import errno
from dataclasses import replace

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Question, Topic
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.transactions.transaction import Message
from simulation.core.cluster import Cluster
from simulation.core.node import Node
from simulation.core.power_cuts import SCENARIO

QUIET = replace(SCENARIO, nodes=3, min_in_sync=2, faults=(), faults_end_s=1_000.0, transient=0.0)


def working_cluster() -> Cluster:
    """Three brokers, one of them primary, and clients that go about their work."""
    cluster = Cluster(QUIET, False)
    for node in cluster.nodes:
        node.start()
    cluster.schedule.run_until(5.0)
    assert sorted(node.member.status.state for node in cluster.nodes) == [State.PRIMARY, State.READY, State.READY]
    return cluster


def wait(cluster: Cluster, for_s: float) -> None:
    cluster.schedule.run_until(cluster.schedule.now_s + for_s)


def primary_of(cluster: Cluster) -> Node:
    return next(node for node in cluster.nodes if node.is_primary)


def backup_of(cluster: Cluster) -> Node:
    return next(node for node in cluster.nodes if node.is_up and node.member.status.state is State.READY)


def confirmed(cluster: Cluster) -> int:
    return len(cluster.ledger.confirmations)


def test_a_full_disk_stops_confirmations_until_there_is_room() -> None:
    cluster = working_cluster()
    machine = primary_of(cluster).machine
    assert machine is not None
    machine.disk.capacity = 0
    wait(cluster, 3.0)  # what was on its way, and what fits into the segment that is open
    stuck = confirmed(cluster)
    wait(cluster, 3.0)
    assert confirmed(cluster) == stuck

    machine.disk.capacity = None
    wait(cluster, 10.0)

    assert confirmed(cluster) > stuck
    cluster.ledger.check_end(primary_of(cluster))


def test_a_sync_that_fails_ends_the_process_and_the_next_one_catches_up() -> None:
    cluster = working_cluster()
    backup = backup_of(cluster)
    process = backup.process
    assert backup.machine is not None
    backup.machine.disk.fail(1, errno.EIO, ("sync",))

    wait(cluster, 10.0)

    assert backup.process > process
    assert backup.member.status.state in (State.READY, State.PRIMARY)
    cluster.ledger.check_end(primary_of(cluster))


def test_what_is_in_no_store_is_lost_only_with_all_who_held_it() -> None:
    cluster = working_cluster()
    primary = primary_of(cluster)
    queue = primary.configuration.declare_queue("passing", {})
    primary.resources.publish(queue, Message(b"?", durable=False), 0)
    primary.resources.publish(queue, Message(b"?", durable=True), 0)
    primary.written()
    wait(cluster, 1.0)
    cluster.faults.crash(primary, 0.3, has_power=False)
    wait(cluster, 10.0)
    assert primary_of(cluster).resources.catalog.queues["passing"].messages.count == 2

    for node in cluster.nodes:
        cluster.faults.crash(node, 0.3, has_power=False)
    wait(cluster, 10.0)

    assert primary_of(cluster).resources.catalog.queues["passing"].messages.count == 1


def test_a_generation_is_promised_to_one_candidate_though_the_power_goes_before_the_other_one_asks() -> None:
    """What was promised is on disk before it is said."""
    cluster = Cluster(replace(QUIET, has_coordinator=False), False)
    node = cluster.nodes[0]
    node.start()
    is_promised = []
    for candidate in ("n1", "n2"):
        question = Question(1, Topic.CLAIM, candidate, candidate, "", 7, 0, f"{candidate}:5672")
        node.feed(fx.FrameReceived(node.next_link(), question))
        is_promised.append((node.member.answer().promised, node.member.answer().promised_to) == (7, candidate))
        cluster.faults.crash(node, 0.1, has_power=False)
        wait(cluster, 0.5)
    assert is_promised == [True, False]
