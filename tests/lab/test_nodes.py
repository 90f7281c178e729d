"""Nodes lose their power: the primary's, a backup's, two of them, all of them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lab.cluster import Cluster
from lab.generations import history, record, wait_agreed
from lab.load import Load

RESOURCE = "broker"
BOOT_LIMIT_S = 120.0


def power_off(cluster: Cluster, nodes: Sequence[str]) -> None:
    """All in one moment."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(cluster.lab.power_off, nodes))


def power_on(cluster: Cluster, nodes: Sequence[str]) -> None:
    """Their cluster forms again."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(cluster.lab.power_on, nodes))
    cluster.wait_formed(timeout_s=BOOT_LIMIT_S)


def explained(cluster: Cluster) -> set[str]:
    """The nodes of which crm_mon says why their brokers cannot be promoted."""
    return set(re.findall(r"\* Node: (\S+):\n(?: {4}.*\n)*? +\* broker-not-promoted\s+: this broker", cluster.text()))


def test_the_primarys_node_loses_its_power_and_comes_back_as_a_backup(cluster: Cluster, load: Load) -> None:
    before = wait_agreed(cluster)
    others = cluster.backups()
    load.wait_confirmed(100)

    off_s = time.monotonic()
    cluster.lab.power_off(before.primary)

    load.recovered_after(off_s)
    successor = cluster.wait_promoted(*others)
    load.wait_confirmed(100)
    cluster.wait_well(BOOT_LIMIT_S)  # fencing has switched it on again
    after = wait_agreed(cluster)
    assert after.primary == successor, "it does not go back by itself"
    assert after.generation > before.generation
    assert after.cluster == before.cluster
    told = history(cluster, successor)
    assert [each["forced"] for each in told if each["generation"] > before.generation] == [False]
    load.wait_confirmed(100)


def test_a_backups_node_loses_its_power_and_publishing_goes_on(cluster: Cluster, load: Load) -> None:
    before = wait_agreed(cluster)
    lost, other = cluster.backups()
    load.wait_confirmed(100)

    cluster.lab.power_off(lost)

    cluster.wait(
        lambda: set(record(cluster, before.primary).members) == {before.primary, other}, "the record lets it go"
    )
    load.wait_confirmed(200)
    cluster.wait_well(BOOT_LIMIT_S)
    after = wait_agreed(cluster)
    assert (after.generation, after.primary) == (before.generation, before.primary), "no failover"
    assert after.epoch >= before.epoch + 2, "it left, and came back"


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


def test_after_a_loss_of_all_power_nobody_is_promoted_until_an_operator_says_so(cluster: Cluster) -> None:
    """Memory is gone. The account of the first load is the declared loss: all that was confirmed, and nothing since."""
    before = wait_agreed(cluster)
    nodes = cluster.lab.plan.members
    with Load(cluster.lab, rate=100, consume=False) as load:
        load.wait_confirmed(100)
        confirmed = load.settle()

        power_off(cluster, nodes)
        power_on(cluster, nodes)

        cluster.wait(lambda: set(cluster.states().values()) == {"connecting"}, "all brokers are back")
        cluster.wait(lambda: explained(cluster) == set(nodes), "crm_mon says why nobody is promoted")
        assert not cluster.view().promoted()
        assert record(cluster, nodes[0]) == before
        said = cluster.lab.run(nodes[0], "qpid-ha", "promote", check=False).stderr
        assert f"generation {before.generation} was confirmed by {', '.join(sorted(nodes))}" in said
        assert load.confirmed() == confirmed

        chosen = next(node for node in nodes if node != before.primary)
        cluster.lab.output(chosen, "qpid-ha-agent", "force-promote", "--resource", RESOURCE)

        assert cluster.wait_promoted() == chosen
        cluster.wait_well()
        after = wait_agreed(cluster)
        assert after.generation > before.generation
        assert after.cluster == before.cluster
        assert [each["forced"] for each in history(cluster, chosen)] == [True], "and nothing older is remembered"
        cluster.wait(lambda: not explained(cluster), "there is nothing to explain any more")
        load.resume()
        load.wait_confirmed(100)
        account = load.finish(given_up=confirmed)
    assert account.facts["confirmed"] - account.facts["received"] == confirmed, str(account)
    assert account.facts["lost"][0] == 0, str(account)
    assert account.facts["received"] >= 100
    with Load(cluster.lab) as fresh:
        fresh.wait_confirmed(100)
        assert fresh.finish().complaints() == []
