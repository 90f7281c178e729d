"""Who is promoted: one that lacks something makes way for one that does not, says so, and Pacemaker plans again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.amqp_traffic import severed
from lab.cluster import CLONE, Cluster
from lab.generations import record, wait_agreed
from lab.load import Load

BROKER_DIED = "broker_monitor.* on n[123]: not running|broker_asyncmon.* on n[123]: (not running|error)"
MADE_WAY = "broker_promote_0 on n[123]: error: n[123] is the better choice"
PREFERENCE = 450
"""Enough for a broker that lost its primary to be chosen before a `ready` one, not enough to leave the primary."""
EQUALS, FAILBACK = 20, 510
"""The scores of docs/pacemaker.md, "A preferred node"."""


@contextmanager
def preferred(cluster: Cluster, node: str, score: int = PREFERENCE) -> Iterator[None]:
    """An administrator would like the primary on that node, if all else is equal."""
    rule = f'<rsc_location id="lab-preference" rsc="{CLONE}" role="Promoted" node="{node}" score="{score}"/>'
    change = ("--scope", "constraints", "--xml-text", rule)
    cluster.lab.output(node, "cibadmin", "--create", *change)
    try:
        yield
    finally:
        cluster.lab.output(node, "cibadmin", "--delete", *change)


def refusals(cluster: Cluster, node: str) -> str:
    """Why promotions there failed, as crm_mon shows it."""
    failed = cluster.view().failed_actions
    return " ".join(action.reason for action in failed if action.node == node and "promote" in action.operation)


@pytest.mark.explains(BROKER_DIED, MADE_WAY)
def test_a_preferred_node_that_was_dropped_from_the_in_sync_set_makes_way(cluster: Cluster, load: Load) -> None:
    primary = cluster.primary()
    dropped, other = cluster.backups()
    load.wait_confirmed(100)
    with preferred(cluster, dropped), severed(cluster, dropped):
        cluster.wait(lambda: dropped not in record(cluster, primary).members, f"{dropped} is dropped")
        load.wait_confirmed(100)

        killed_at_s = cluster.kill_broker(primary)

        load.recovered_after(killed_at_s)
        cluster.wait_promoted(other)
        said = refusals(cluster, dropped)
    assert f"{other} is the better choice: it knows generation" in said
    cluster.wait_well()
    assert wait_agreed(cluster).primary == other


def test_a_preferred_node_gets_the_primary_when_the_score_says_so(cluster: Cluster, load: Load) -> None:
    primary, wanted = cluster.primary(), cluster.backups()[0]
    load.wait_confirmed(100)
    with preferred(cluster, wanted, EQUALS):
        cluster.administer("crm_resource", "--wait", "--timeout", "30")
        assert cluster.primary() == primary
    with preferred(cluster, wanted, FAILBACK):
        moved_at_s = time.monotonic()
        cluster.wait_promoted(wanted)
        load.recovered_after(moved_at_s)
        cluster.wait_well()
    cluster.administer("crm_resource", "--wait", "--timeout", "30")
    assert cluster.primary() == wanted
