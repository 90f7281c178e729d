"""Nodes lose their power: a backup's, two of them. test_blackouts.py has the loss of all.

The primary's is in test_partitions.py: who is cut off is fenced, which takes its power, and comes back as a backup.
When Pacemaker plans after that is here.
"""

from __future__ import annotations

import re
import time

from lab.blackout import BOOT_LIMIT_S, power_off, power_on
from lab.cluster import Cluster
from lab.generations import history, record, wait_agreed
from lab.load import Load
from lab.on_node import Node


def test_a_backups_node_loses_its_power_and_publishing_goes_on(cluster: Cluster, load: Load) -> None:
    before = wait_agreed(cluster)
    lost, other = cluster.backups()
    load.wait_confirmed(100)

    cluster.lab.power_off(lost)

    cluster.wait(
        lambda: set(record(cluster, before.primary).members) == {before.primary, other}, "the record lets it go"
    )
    load.wait_confirmed(200)
    log = Node(cluster, before.primary).broker_log()
    assert f"backup {lost} leaves the in-sync set: " in log, "by its time-out, or when Pacemaker has fenced its node"
    cluster.wait_well(BOOT_LIMIT_S)
    after = wait_agreed(cluster)
    assert (after.generation, after.primary) == (before.generation, before.primary), "no failover"
    assert after.epoch >= before.epoch + 2, "it left, and came back"


def test_without_quorum_nobody_is_served_and_nothing_is_lost(cluster: Cluster, load: Load) -> None:
    """Two of three nodes are off: the one with the messages may not go on, because it cannot know that it is alone."""
    before = wait_agreed(cluster)
    lost = cluster.backups()
    load.wait_confirmed(100)

    power_off(cluster, lost)

    cluster.wait(lambda: cluster.state(before.primary) == "connecting", "the primary is demoted, and lives")
    cluster.wait(lambda: not cluster.holders(), "nobody has the virtual address")
    assert "partition WITHOUT quorum" in cluster.text()
    assert not cluster.view(before.primary).promoted()
    confirmed = load.confirmed()
    assert cluster.broker(before.primary)["last_lsn"] > 0
    assert record(cluster, before.primary) == before, "who has no quorum changes nothing"

    power_on(cluster, lost)

    cluster.wait_well(BOOT_LIMIT_S)
    after = wait_agreed(cluster)
    assert after.primary == before.primary, "the only one that has the messages"
    assert after.generation > before.generation
    assert not history(cluster, after.primary)[-1]["forced"]
    load.wait_confirmed(100)
    assert load.confirmed() > confirmed


def test_the_primary_goes_on_alone_and_the_record_says_so_everywhere(cluster: Cluster, load: Load) -> None:
    """The other two nodes stay, and give the quorum; only their brokers are gone."""
    before = wait_agreed(cluster)
    backups = cluster.backups()
    load.wait_confirmed(100)

    for node in backups:
        cluster.standby(node)

    cluster.wait(lambda: all(cluster.state(node) == "down" for node in backups), "both backups are stopped")
    load.wait_confirmed(200)
    alone = wait_agreed(cluster, before.primary)  # of each node's own copy of the CIB
    assert alone.generation == before.generation
    for node in backups:
        cluster.unstandby(node)
    cluster.wait_well()
    after = wait_agreed(cluster)
    assert (after.generation, after.primary) == (before.generation, before.primary)
    load.wait_confirmed(100)


DC_LOST = r"Our DC node \({0}\) left the cluster|Our peer on the DC \({0}\) is dead"
"""What Pacemaker's controller says first: the node's membership ends in the same moment as that of its process."""


def test_a_dc_that_was_just_elected_plans_without_a_second_of_sleep_where_that_is_set(
    cluster: Cluster, load: Load
) -> None:
    """The primary's node was the DC. The new one sleeps when its own changes of the CIB are under way; it waits for
    their end instead, and Pacemaker's log says so."""
    cluster.set_property("transition-delay", "50ms")
    dc = cluster.view().dc
    if cluster.primary() != dc:
        cluster.move(dc)
        cluster.wait_promoted(dc)
        cluster.unmove()
        cluster.wait_well()
    load.wait_confirmed(100)

    lost_at_s = time.monotonic()
    cluster.lab.power_off(dc)

    load.recovered_after(lost_at_s)
    log = cluster.lab.log(cluster.view().dc, "/var/log/pacemaker/pacemaker.log")
    *_, loss = re.finditer(DC_LOST.format(dc), log)
    planned = log[loss.end() : log.index("Calculated transition", loss.end())]
    assert "New Transition Timer just popped | input=I_PE_CALC time=50ms" in planned
    cluster.wait_well(BOOT_LIMIT_S)
