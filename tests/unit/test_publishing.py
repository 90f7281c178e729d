"""A message that came to an exchange, for queues of several sets that this broker leads or hands on to others."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from model_support import NOW_MS, Core, TextReader, bodies, message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.errors import ModelError, OtherSet, QueueFull
from qpid_ha_broker.model.log import Commitment, CommitToken, Log
from qpid_ha_broker.model.publishing import ExchangePublisher
from qpid_ha_broker.model.resources import Resources
from qpid_ha_broker.model.transaction import Message


class HandedOn(NamedTuple):
    """To another broker, which never says anything."""

    set: str
    queues: tuple[str, ...]
    message: Message

    @property
    def is_committed(self) -> bool:
        return False

    @property
    def failure(self) -> ModelError | None:
        return None

    def waits_for(self, log: Log) -> bool:
        return False


class OtherBrokers:
    is_full = False

    def __init__(self) -> None:
        self.handed_on: list[HandedOn] = []

    def forward(self, set_name: str, queues: tuple[str, ...], message: Message) -> Commitment:
        self.handed_on.append(HandedOn(set_name, queues, message))
        return self.handed_on[-1]


class Cluster:
    """`default` with the queue `q`, and `red` with `r1` and `r2`, led here; `blue` with `b`, elsewhere; `x` for all."""

    def __init__(self) -> None:
        self.default, self.red = Core(), Core(Resources(TextReader(), "red"))
        self.others = OtherBrokers()
        led = {"default": self.default.resources, "red": self.red.resources}
        self.publisher = ExchangePublisher(self.default.resources, led.get, self.others)
        for name, queues in {"red": ("r1", "r2"), "blue": ("b",)}.items():
            self.default.resources.default.write(ev.SetPlaced(name, ("alpha",), (), "", 0, 0))
            for queue in queues:
                self.default.resources.default.write(ev.QueuePlaced(queue, name, {}, False))
        self.red.queue("r1")
        self.red.queue("r2", max_count=2)
        self.exchange = self.default.exchange("x", "direct")
        self.default.queue("q")

    def bind(self, *queues: str) -> None:
        for queue in queues:
            self.default.configuration.bind("x", queue, "red", {})

    def publish(self, text: str = "m", producer: bytes = b"", sequence: int = 0) -> CommitToken:
        whole = message(text)._replace(producer=producer, sequence=sequence)
        return self.publisher.publish(self.exchange, whole, "red", NOW_MS)

    def held(self, core: Core, queue: str) -> list[str]:
        return bodies(core.catalog.queues[queue].messages)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_each_set_gets_the_message_once_for_all_of_its_queues(cluster: Cluster) -> None:
    cluster.bind("q", "r1", "b", "r2")
    token = cluster.publish()
    assert [cluster.held(*each) for each in ((cluster.default, "q"), (cluster.red, "r1"), (cluster.red, "r2"))] == [
        ["m"]
    ] * 3
    assert [(each.set, each.queues) for each in cluster.others.handed_on] == [("blue", ("b",))]
    assert isinstance(cluster.red.read()[-1], ev.Enqueued)
    assert not token.is_committed
    cluster.red.check()
    cluster.default.check()


def test_it_is_committed_when_each_set_has_committed_it(cluster: Cluster) -> None:
    cluster.bind("q", "r1")
    token = cluster.publish()
    cluster.default.commit()
    assert not token.is_committed
    assert token.waits_for(cluster.red.log)
    cluster.red.commit()
    assert (token.is_committed, token.waits_for(cluster.red.log)) == (True, False)


def test_a_set_that_has_no_room_keeps_all_others_from_getting_it(cluster: Cluster) -> None:
    cluster.default.queue("ring", max_count=1, policy_type="ring")
    cluster.bind("q", "ring", "r2", "b")
    cluster.publish("1")
    cluster.publish("2")
    before = cluster.default.log.last_lsn, cluster.red.log.last_lsn
    with pytest.raises(QueueFull):
        cluster.publish("3")
    assert (cluster.default.log.last_lsn, cluster.red.log.last_lsn) == before
    assert len(cluster.others.handed_on) == 2
    cluster.default.check()
    cluster.default.publish(cluster.default.queue("ring", max_count=1, policy_type="ring"), "4")
    assert cluster.held(cluster.default, "ring") == ["4"]


def test_a_number_is_looked_for_in_each_set(cluster: Cluster) -> None:
    """One set has the message, the broker died before the other one had it: sent again, that one gets it."""
    cluster.bind("q", "r1")
    red = cluster.red.resources
    red.publish(cluster.red.catalog.queues["r1"], message("m")._replace(producer=b"p", sequence=5), NOW_MS)
    assert not cluster.publish("m", b"p", 5).is_committed
    cluster.publish("m", b"p", 5)
    assert (cluster.held(cluster.default, "q"), cluster.held(cluster.red, "r1")) == (["m"], ["m"])


def test_what_cannot_be_handed_on_is_refused_by_all(cluster: Cluster) -> None:
    cluster.publisher.forwarder = None
    cluster.bind("q", "b")
    with pytest.raises(OtherSet, match="queue b of resource set blue, which another broker leads"):
        cluster.publish()
    assert cluster.held(cluster.default, "q") == []


def test_a_queue_that_is_deleted_gets_nothing_and_one_that_is_not_there_yet_is_waited_for(cluster: Cluster) -> None:
    cluster.bind("q", "r1")
    cluster.red.configuration.delete_queue("r1")
    with pytest.raises(OtherSet, match="r1 is not there yet"):
        cluster.publish()
    cluster.default.resources.default.write(ev.QueuePlaced("r1", "red", {}, True))
    cluster.publish()
    assert cluster.held(cluster.default, "q") == ["m"]


def test_where_all_queues_are_of_default_it_is_as_ever(cluster: Cluster) -> None:
    cluster.bind("q")
    token = cluster.publish()
    assert (token.log, token.lsn, token.also) == (cluster.default.log, cluster.default.log.last_lsn, None)
