"""All nodes are off, and on again: with stores, with one that stays away, and without any store."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.blackout import explanations, power_off, power_on
from lab.cluster import Cluster
from lab.generations import history, record, wait_agreed
from lab.load import Load
from lab.on_node import CONFIG, Node
from lab.stage import RESOURCES, Stage

NOT_ALL_ARE_HERE = (
    "broker_promote_0 on n[123]: error: this store was not closed in order, and n[123] of the last in-sync"
)
MADE_WAY = "broker_promote_0 on n[123]: error: n[123] is the better choice"
"""It holds more that was never confirmed, or was not restarted."""
DATA = "/var/lib/qpid-ha"
COPY = "/var/tmp/other"


@contextmanager
def staying_off(cluster: Cluster, node: str) -> Iterator[list[str]]:
    """It has no power, and fencing does not switch it on; the others."""
    cluster.set_property("stonith-action", "off")
    others = [member for member in cluster.lab.plan.members if member != node]
    power_off(cluster, cluster.lab.plan.members)
    power_on(cluster, others, others)
    yield others
    cluster.delete_property("stonith-action")


def refused_for_want_of(cluster: Cluster, missing: str, others: list[str]) -> None:
    """Nobody is promoted, and everybody can see why."""
    sentence = f"this store was not closed in order, and {missing} of the last in-sync set cannot be asked"

    def is_explained() -> bool:
        told = explanations(cluster)
        return set(told) == set(others) and all(text.startswith(sentence) for text in told.values())

    cluster.wait(is_explained, "crm_mon says of both why nobody is promoted", timeout_s=90)
    assert not cluster.view().promoted()
    assert not cluster.holders()


@pytest.mark.explains(MADE_WAY)
def test_after_a_loss_of_all_power_the_cluster_comes_back_by_itself_with_all_that_was_confirmed(
    cluster: Cluster, load: Load
) -> None:
    before = wait_agreed(cluster)
    nodes = cluster.lab.plan.members
    with Load(cluster.lab, rate=100, consume=False) as kept:
        kept.wait_confirmed(200)
        load.wait_confirmed(100)

        power_off(cluster, nodes)
        on_s = time.monotonic()
        power_on(cluster, nodes)
        phases = {"quorum": time.monotonic() - on_s}
        cluster.wait(lambda: "down" not in cluster.states().values(), "all brokers are back")
        phases["brokers"] = time.monotonic() - on_s
        cluster.wait_promoted()
        phases["promoted"] = time.monotonic() - on_s
        phases["first confirmation"] = load.recovered_after(on_s)
        print("seconds from power on to", ", ".join(f"{what} {at_s:.1f}" for what, at_s in phases.items()))

        cluster.wait_well()
        after = wait_agreed(cluster)
        assert after.generation > before.generation
        assert after.cluster == before.cluster
        told = history(cluster, after.primary)
        assert not any(each["forced"] for each in told), "nobody had to do anything"
        assert {each["generation"] for each in told} >= {before.generation, after.generation}
        cluster.wait(lambda: not explanations(cluster), "there is nothing to explain any more")
        kept.wait_confirmed(100)
        account = kept.finish()
    assert account.complaints() == [], str(account)
    assert account.facts["received"] >= 300
    load.wait_confirmed(100)


@pytest.mark.explains(MADE_WAY, NOT_ALL_ARE_HERE)
def test_when_one_does_not_come_back_the_stores_are_compared_and_the_verdicts_command_gets_it_going(
    cluster: Cluster, load: Load
) -> None:
    before = wait_agreed(cluster)
    load.wait_confirmed(100)
    missing = cluster.backups()[0]
    with staying_off(cluster, missing) as others:
        refused_for_want_of(cluster, missing, others)
        cluster.stop_brokers()
        chosen = follow_the_verdict(cluster, missing, others)
        at_s = time.monotonic()
        cluster.start_brokers()

        assert cluster.wait_promoted() == chosen
        load.recovered_after(at_s)
        load.wait_confirmed(100)
        after = wait_agreed(cluster, *others)
        assert after.generation > before.generation
        assert not any(each["forced"] for each in history(cluster, chosen)), "the broker itself has no objection"

        power_on(cluster, [missing])
        cluster.wait_well()
        wait_agreed(cluster)
        load.wait_confirmed(100)


def follow_the_verdict(cluster: Cluster, missing: str, others: list[str]) -> str:
    """`qpid-ha store best` over both stores, and what it says is to be done; whose store was marked."""
    for here, there in (others, reversed(others)):
        bring_store(cluster, there, here)
        said = cluster.lab.run(here, "qpid-ha", "--format", "json", "store", "best", DATA, COPY, check=False)
        verdict = json.loads(said.stdout)
        assert (said.returncode, verdict["verdict"], verdict["missing"]) == (1, "admin", [missing]), said.stdout
        command = verdict["options"][-1]["commands"][0]
        if f"--winner {here} " in command:
            print(f"{verdict['question']} {command}")
            marked = cluster.lab.shell(here, command)
            assert "marked as the one to begin with" in marked
            return here
    raise AssertionError(f"the verdict names neither: {said.stdout}")


def bring_store(cluster: Cluster, source: str, target: str) -> None:
    """A copy of the source's data directory, as if it had come by ssh."""
    packed = cluster.lab.shell(source, f"tar -C {DATA} -Scz . | base64")
    unpack = f"rm -rf {COPY}; mkdir -p {COPY}; base64 -d | tar -C {COPY} -xz"
    cluster.lab.run(target, "bash", "-euc", unpack, stdin=packed)


def test_without_stores_nobody_is_promoted_after_a_loss_of_all_power_until_an_operator_says_so(
    stage: Stage, empty_cluster: Cluster
) -> None:
    """Memory is gone. The account of the first load is the declared loss: all that was confirmed, and nothing since."""
    cluster, nodes = empty_cluster, stage.lab.plan.members
    for node in nodes:
        cluster.lab.shell(node, f"printf 'store:\\n  enabled: false\\n' >>{CONFIG}")
    stage.load(*RESOURCES)
    stage.distrust()
    cluster.wait_well()
    before = wait_agreed(cluster)
    with Load(cluster.lab, rate=100, consume=False) as load:
        load.wait_confirmed(100)
        confirmed = load.settle()

        power_off(cluster, nodes)
        power_on(cluster, nodes)

        cluster.wait(lambda: set(cluster.states().values()) == {"connecting"}, "all brokers are back")
        cluster.wait(lambda: are_empty(cluster), "crm_mon says why nobody is promoted")
        assert not cluster.view().promoted()
        assert record(cluster, nodes[0]) == before
        said = cluster.lab.run(nodes[0], "qpid-ha", "promote", check=False).stderr
        assert f"generation {before.generation} was confirmed by {', '.join(sorted(nodes))}" in said
        assert load.confirmed() == confirmed

        chosen = next(node for node in nodes if node != before.primary)
        cluster.lab.output(chosen, "qpid-ha-agent", "force-promote", "--resource", "broker")

        assert cluster.wait_promoted() == chosen
        cluster.wait_well()
        after = wait_agreed(cluster)
        assert after.generation > before.generation
        assert after.cluster != before.cluster, (
            "who is forced with nothing begins anew: nobody with messages follows it"
        )
        assert [each["forced"] for each in history(cluster, chosen)] == [True], "and nothing older is remembered"
        cluster.wait(lambda: not explanations(cluster), "there is nothing to explain any more")
        load.resume()
        load.wait_confirmed(100)
        account = load.finish(given_up=confirmed)
    assert account.facts["confirmed"] - account.facts["received"] == confirmed, str(account)
    assert account.facts["lost"][0] == 0, str(account)
    assert account.facts["received"] >= 100


def are_empty(cluster: Cluster) -> bool:
    """All say that they came back empty."""
    told = explanations(cluster)
    return set(told) == set(cluster.lab.plan.members) and all(" came back empty" in text for text in told.values())


@pytest.mark.explains("broker_(monitor|asyncmon).* on n[123]: (not running|error)", MADE_WAY)
def test_a_whole_cluster_is_shut_down_and_comes_back(cluster: Cluster, load: Load) -> None:
    """Under Pacemaker, maintenance first: it would start the brokers again at once."""
    before = wait_agreed(cluster)
    load.wait_confirmed(100)
    cluster.set_property("maintenance-mode", "true")

    said = cluster.lab.output(before.primary, "qpid-ha", "shutdown", "--cluster", timeout_s=40)

    assert re.search(r"n1, n2, n3 hold the same up to LSN \d+, and end", said)
    cluster.wait(lambda: set(cluster.states().values()) == {"down"}, "all brokers have ended")
    listed = [store_facts(cluster, node) for node in cluster.lab.plan.members]
    assert len({facts["clean"] for facts in listed}) == 1, listed
    assert listed[0]["clean"], listed
    watchers = [Node(cluster, node).watcher_pid for node in cluster.lab.plan.members]
    # What they told it after the refresh would make it restart brokers that it has just started.
    cluster.wait(lambda: not any(pid() for pid in watchers), "the watches have told Pacemaker, and ended")
    cluster.wait(cluster.is_idle, "Pacemaker has thought about it")
    at_s = time.monotonic()
    cluster.refresh()
    cluster.delete_property("maintenance-mode")
    load.recovered_after(at_s)
    cluster.wait_well()
    assert wait_agreed(cluster).generation == before.generation + 1
    load.wait_confirmed(100)


def store_facts(cluster: Cluster, node: str) -> dict[str, object]:
    """What `qpid-ha store list` says of a store on its own machine."""
    (facts,) = json.loads(cluster.lab.output(node, "qpid-ha", "--format", "json", "store", "list", DATA))
    return dict(facts)
