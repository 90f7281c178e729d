"""Who is promoted: one that lacks something makes way for one that does not, says so, and Pacemaker plans again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.amqp_traffic import severed, silenced, slowed
from lab.cluster import BROKER, CLONE, Cluster
from lab.generations import record, wait_agreed
from lab.load import Load

BROKER_DIED = "broker_monitor.* on n[123]: not running|broker_asyncmon.* on n[123]: (not running|error)"
MADE_WAY = "broker_promote_0 on n[123]: error: n[123] is the better choice"
PREFERENCE = 450
"""Enough for a broker that lost its primary to be chosen before a `ready` one, not enough to leave the primary."""
MISTAKE = "540"
"""With the preference, more than any broker but the primary has."""
EQUALS, FAILBACK = 20, 510
"""The scores of docs/pacemaker.md, "A preferred node"."""
BEHIND = 20
BACKLOG, BACKLOG_BYTES, KBYTES_PER_S = 4000, 2000, 300


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


@contextmanager
def parameter(cluster: Cluster, name: str, value: str) -> Iterator[None]:
    """Of the resource; afterwards it has its default.

    Waits until Pacemaker has nothing left to do. It ends the monitors, calls `reload-agent`, and begins them anew.
    Until then the last action in its history of the primary's node is one that it notes as a start (2.1.5): another
    change in between would have it promote the primary once more, and one that dies just then be asked when it is dead.
    """
    node = cluster.lab.members_on()[0]
    change = ("crm_resource", "--resource", BROKER)
    cluster.lab.output(node, *change, "--set-parameter", name, "--parameter-value", value)
    cluster.lab.output(node, "crm_resource", "--wait", "--timeout", "30", timeout_s=40)
    try:
        yield
    finally:
        cluster.lab.output(node, *change, "--delete-parameter", name)


def score(cluster: Cluster, node: str) -> str:
    """The promotion score, as Pacemaker has it."""
    told = cluster.lab.output(node, "attrd_updater", "--name", f"master-{BROKER}", "--query", "--node", node)
    found = re.search(r'value="([^"]*)"', told)
    return found[1] if found else ""


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


@pytest.mark.explains(BROKER_DIED, MADE_WAY)
def test_a_preferred_node_that_lags_makes_way_when_no_lag_is_allowed(cluster: Cluster, load: Load) -> None:
    primary = cluster.primary()
    lagging, other = cluster.backups()
    load.wait_confirmed(100)
    with preferred(cluster, lagging), parameter(cluster, "max_lag", "0"):
        cluster.wait_well()
        with silenced(cluster, lagging):
            cluster.wait(lambda: load.unanswered() > BEHIND, "the lagging one lacks something, and is still in sync")

            killed_at_s = cluster.kill_broker(primary)

            load.recovered_after(killed_at_s)
            cluster.wait_promoted(other)
            said = refusals(cluster, lagging)
        assert re.search(rf"{other} is the better choice: .* more than max_lag=0 behind", said), cluster.text()
        cluster.wait_well()


@pytest.mark.explains(BROKER_DIED, MADE_WAY)
def test_nobody_makes_way_for_a_dead_primary_that_was_restarted_with_more_than_was_confirmed(
    cluster: Cluster, load: Load
) -> None:
    """What a monitor finds dead is restarted before anybody is promoted; its broker would refuse."""
    primary, backups = cluster.primary(), cluster.backups()
    load.wait_confirmed(100)
    with parameter(cluster, "max_lag", "0"), parameter(cluster, "watch", "false"):
        cluster.wait_well()
        with silenced(cluster, backups[0]), silenced(cluster, backups[1]):
            cluster.wait(lambda: load.unanswered() > BEHIND, "the primary has what both backups lack")

            killed_at_s = cluster.kill_broker(primary)

            cluster.wait_promoted(*backups)
            said = [refusals(cluster, node) for node in (primary, *backups)]
        assert not [text for text in said if "handed over" in text or f"{primary} is the better choice" in text]
        assert said[0] == "", "it was not asked at all"
        load.recovered_after(killed_at_s)
        cluster.wait_well()


@pytest.mark.explains(BROKER_DIED, MADE_WAY)
def test_a_node_that_is_catching_up_refuses_when_the_primary_dies_and_the_next_one_is_chosen(
    cluster: Cluster, load: Load
) -> None:
    returning, others = cluster.primary(), cluster.backups()
    away_at_s = time.monotonic()
    cluster.standby(returning)
    with Load(cluster.lab, rate=4000, size=BACKLOG_BYTES, consume=False) as backlog:
        load.recovered_after(away_at_s)
        primary = cluster.wait_promoted(*others)
        backlog.wait_confirmed(BACKLOG)
        backlog.pause()
        with slowed(cluster, returning, KBYTES_PER_S):
            cluster.unstandby(returning)
            cluster.wait(lambda: cluster.state(returning) == "catchup", f"{returning} is back, and catches up")
            cluster.wait(lambda: score(cluster, returning) == "-INFINITY", "it cannot be chosen")
            (next_one,) = (node for node in others if node != primary)
            with preferred(cluster, returning):
                cluster.wait(lambda: _is_overrated(cluster, returning), "an administrator thinks better of it")

                killed_at_s = cluster.kill_broker(primary)

                load.recovered_after(killed_at_s)
                cluster.wait_promoted(next_one)
                said = refusals(cluster, returning)
        assert f"{next_one} is the better choice" in said
        cluster.wait_well()
        account = backlog.finish()
    assert account.complaints() == []
    assert account.facts["received"] >= BACKLOG


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


def _is_overrated(cluster: Cluster, node: str) -> bool:
    """While it catches up. When its slow link breaks, it begins again, and its watch puts the score right."""
    if score(cluster, node) != MISTAKE:
        mistake = ("--promotion", BROKER, "--lifetime", "reboot", "--node", node, "--update", MISTAKE)
        cluster.lab.output(node, "crm_attribute", *mistake)
    return cluster.state(node) == "catchup" and score(cluster, node) == MISTAKE
