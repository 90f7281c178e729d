"""A message that came to an exchange, for queues of several sets that this broker leads or hands on to others."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from handed_on import ToRed, a_receiver, deliver
from model_support import NOW_MS, Core, TextReader, bodies, message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.forwarding import ForwardReceiver
from qpid_ha_broker.model.commands.publishing import ExchangePublisher
from qpid_ha_broker.model.errors import ModelError, OtherSet, QueueFull
from qpid_ha_broker.model.logs.log import Commitment, CommitToken, Log
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message


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

    def has_unwritten(self, set_name: str) -> bool:
        return False

    def forward(self, set_name: str, queues: tuple[str, ...], message: Message) -> Commitment:
        self.handed_on.append(HandedOn(set_name, queues, message))
        return self.handed_on[-1]


class Cluster:
    """`default` with the queue `q`, and `red` with `r1` and `r2`, led here; `blue` with `b`, elsewhere; `x` for all."""

    def __init__(self) -> None:
        self.default, self.red = Core(), Core(Resources(TextReader(), "red"))
        self.others = OtherBrokers()
        self.led = {"default": self.default.resources, "red": self.red.resources}
        self.publisher = ExchangePublisher(self.default.resources, self.led.get, self.others)
        for name, queues in {"red": ("r1", "r2"), "blue": ("b",)}.items():
            self.default.resources.replicated.write(ev.SetPlaced(name, ("alpha",), (), "", 0, 0))
            for queue in queues:
                self.default.resources.replicated.write(ev.QueuePlaced(queue, name, {}, False))
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
    cluster.default.resources.replicated.write(ev.QueuePlaced("r1", "red", {}, True))
    cluster.publish()
    assert cluster.held(cluster.default, "q") == ["m"]


def test_a_queue_of_which_a_tombstone_is_left_gets_nothing(cluster: Cluster) -> None:
    cluster.bind("q", "r1")
    cluster.red.configuration.delete_queue("r1", tombstone_of=cluster.default.catalog.map.queues["r1"].id)
    cluster.publish()
    assert cluster.held(cluster.default, "q") == ["m"]
    assert not cluster.red.resources.catalog.queues["r1"].messages.count


def test_where_all_queues_are_of_default_it_is_as_ever(cluster: Cluster) -> None:
    cluster.bind("q")
    token = cluster.publish()
    assert (token.log, token.lsn, token.also) == (cluster.default.log, cluster.default.log.last_lsn, None)


# --- a set that comes to be led here while something is on its way to who led it before


class TakesOver:
    """A cluster in which another broker leads `red`, until this one does."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.publisher.forwarder = forwarder = ToRed()
        self.sender = forwarder.sender
        self.red = cluster.led.pop("red")
        cluster.bind("r1")
        self.tokens: list[CommitToken] = []

    def publish(self, *texts: str, numbered: bool) -> None:
        for text in texts:
            named = (b"app", int(text)) if numbered else (b"", 0)
            self.tokens.append(self.cluster.publish(text, *named))

    def lead(self) -> None:
        self.cluster.led["red"] = self.red

    def hand_over(self) -> ForwardReceiver:
        """What is kept comes to this broker itself."""
        receiver = a_receiver(self.red)
        self.sender.connected()
        deliver(self.sender, receiver)
        self.sender.written(receiver.written)
        return receiver

    @property
    def there(self) -> list[str]:
        return self.cluster.held(self.cluster.red, "r1")


@pytest.mark.parametrize("numbered", [True, False])
def test_nothing_overtakes_what_is_kept_for_the_primary_before_this_one(cluster: Cluster, numbered: bool) -> None:
    """Numbered, what was overtaken would be taken for duplicates: it would be confirmed, and lost."""
    world = TakesOver(cluster)
    world.publish("1", "2", numbered=numbered)
    world.lead()
    world.publish("3", numbered=numbered)
    assert world.there == []

    here = world.hand_over()
    cluster.red.commit()
    deliver(world.sender, here)

    assert world.there == ["1", "2", "3"]
    assert all(token.is_committed for token in world.tokens)


def test_once_all_that_was_kept_is_written_here_the_rest_is_written_at_once(cluster: Cluster) -> None:
    """Written, not committed: a steady publisher would never see the day on which nothing is on its way."""
    world = TakesOver(cluster)
    world.publish("1", "2", numbered=True)
    world.lead()
    here = world.hand_over()
    assert not world.sender.is_idle
    world.publish("3", numbered=True)
    assert world.there == ["1", "2", "3"]
    assert world.tokens[2].waits_for(cluster.red.log)

    cluster.red.commit()
    deliver(world.sender, here)
    assert all(token.is_committed for token in world.tokens)
    assert world.sender.is_idle


def test_what_is_written_here_and_lost_with_the_set_is_in_front_of_what_comes_then(cluster: Cluster) -> None:
    world = TakesOver(cluster)
    world.publish("1", numbered=True)
    world.lead()
    world.hand_over()
    del cluster.led["red"]
    world.sender.disconnected()
    world.publish("2", numbered=True)
    assert [each.frame.sequence for each in world.sender._kept] == [1, 2]
    world.lead()
    world.publish("3", numbered=True)
    world.hand_over()
    assert world.there == ["1", "2", "3"]
