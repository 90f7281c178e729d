"""Who is not let in asks again, more and more seldom, and neither side fills its log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Welcome
from qpid_ha_broker.ha.states import State
from small_cluster import Node, SmallCluster, three

NAMES = ("a", "b", "c", "d", "e")


def dialled(cluster: SmallCluster, name: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many channels it opens."""
    count = 0
    carry_out = cluster.carry_out

    def watch(node: Node, effect: fx.Effect) -> None:
        nonlocal count
        count += node.name == name and isinstance(effect, fx.Connect)
        carry_out(node, effect)

    monkeypatch.setattr(cluster, "carry_out", watch)
    cluster.wait(seconds)
    return count


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_pause_of_a_broker_that_finds_no_primary_doubles_however_many_addresses_it_tries(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SmallCluster(*NAMES[:size])
    cluster.run()
    for name in NAMES[1:size]:
        cluster.kill(name)
    cluster.wait(10)
    assert dialled(cluster, "a", 10, monkeypatch) <= 20 * (size - 1), "pauses of 0.5 s at least, with their jitter"


def refused(cluster: SmallCluster) -> Node:
    """`c` is called `b` by its configuration, as the backup of the primary `a` is."""
    cluster.kill("c")
    node = cluster.start("c")
    node.member.settings = replace(node.member.settings, name="b")
    return node


def test_a_refusal_is_logged_once_by_both_sides_and_asked_for_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = three()
    twin = refused(cluster)
    cluster.wait(5)
    assert twin.is_in(State.CONNECTING)
    said = {name: len(cluster[name].notices) for name in "ac"}
    assert any("another broker is called b" in text for text in twin.notices)
    assert dialled(cluster, "c", 10, monkeypatch) <= 40
    for name in "ac":
        assert cluster[name].notices[said[name] :] == []


def test_a_refusal_that_is_over_and_comes_again_is_logged_again() -> None:
    cluster = three()
    twin = refused(cluster)
    cluster.wait(5)
    cluster.kill("b")
    cluster.wait(10)
    assert twin.is_in(State.READY)


def test_who_is_welcomed_and_dropped_again_and_again_makes_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason is: without a pause both would do nothing else."""
    cluster = three()
    carry_out = cluster.carry_out

    def drop(node: Node, effect: fx.Effect) -> None:
        carry_out(node, effect)
        if isinstance(effect, fx.Send) and isinstance(effect.frame, Welcome) and node.name == "a":
            cluster["a"].feed(fx.FrameDamaged(effect.link, "it is damaged on its way"))

    monkeypatch.setattr(cluster, "carry_out", drop)
    cluster.disconnect("a", "c")
    cluster.wait(10)
    assert dialled(cluster, "c", 10, monkeypatch) <= 40
    monkeypatch.setattr(cluster, "carry_out", carry_out)
    cluster.settle()
    assert cluster["c"].is_in(State.READY)
