"""Brokers of an older release are sent no event that they could not read, and those of this one tell each other."""

from __future__ import annotations

import pytest

from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import EVERYTHING, HandedOut
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Batch, Hello, Objects
from small_cluster import Node, SmallCluster


class MixedCluster(SmallCluster):
    """Brokers of which `older` say nothing of marks. `sent`: what they were sent about them."""

    def __init__(self, *names: str, older: str) -> None:
        self.older = older
        self.sent: list[HandedOut] = []
        super().__init__(*names)

    def carry_out(self, node: Node, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Send):
            frame = effect.frame
            if isinstance(frame, Hello) and node.name in self.older:
                effect = effect._replace(frame=frame._replace(reads_marks=False))
            elif isinstance(frame, Batch | Objects):
                other, _ = self._links.get((node.name, effect.link), ("", 0))
                if other and other in self.older:
                    self.sent += [event for _, event, _ in decode(frame.data).records if isinstance(event, HandedOut)]
        super().carry_out(node, effect)


def begin(cluster: SmallCluster) -> None:
    """All are there, and `a` leads."""
    for name in "abc":
        cluster.start(name)
    assert cluster.promote("a").done
    cluster.settle()


def is_told(node: Node) -> bool:
    return node.resources.replicated.state.marks.is_told


def test_marks_are_told_once_all_read_them() -> None:
    cluster = SmallCluster("a", "b", "c")
    begin(cluster)
    assert all(is_told(cluster[name]) for name in "abc")


@pytest.mark.parametrize("older", ["b", "bc"])
def test_who_does_not_read_marks_is_sent_none(older: str) -> None:
    cluster = MixedCluster("a", "b", "c", older=older)
    begin(cluster)
    a = cluster["a"]
    a.declare("q")
    a.publish("q", "1", "2")
    cluster.settle()
    assert cluster.sent == []
    assert not is_told(a)
    assert cluster["b"].bodies("q") == ["1", "2"]
    assert cluster["b"].resources.replicated.log.last_lsn == a.resources.replicated.log.last_lsn


def test_when_an_older_broker_comes_the_log_says_that_it_has_no_marks_any_more() -> None:
    cluster = MixedCluster("a", "b", "c", older="")
    begin(cluster)
    a = cluster["a"]
    a.declare("q")
    a.publish("q", "1", "2")
    cluster.settle()
    cluster.older = "b"
    cluster.disconnect("a", "b")
    cluster.settle()
    assert cluster.sent == []
    assert not any(is_told(cluster[name]) for name in "abc")
    assert a.resources.catalog.queues["q"].mark.upto == EVERYTHING
    a.publish("q", "3")
    cluster.settle()
    assert cluster["b"].bodies("q") == ["1", "2", "3"]
    cluster.older = ""
    cluster.disconnect("a", "b")
    cluster.settle()
    assert all(is_told(cluster[name]) for name in "abc"), "it was replaced by one that reads them"
