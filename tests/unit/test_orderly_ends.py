"""Nobody waits for a broker that has said that it ends; for one whose channel is lost a primary waits as before."""

from __future__ import annotations

import pytest

from paired_peers import Cluster
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.link_ends import STOPPING, LinkEnd
from qpid_ha_broker.ha.states import Phase, State
from qpid_ha_broker.server.peers.peer_links import link_end
from small_cluster import Node, SmallCluster


class KeepsBack(SmallCluster):
    """Three brokers of which `a` leads."""

    def __init__(self) -> None:
        self._kept_back: tuple[str, type] | None = None
        super().__init__("a", "b", "c", backup_timeout_s=5.0)
        self.run()
        assert self.promote("a").done
        self["a"].declare("q")
        self.settle()

    def keep_back(self, sender: str, kind: type) -> None:
        """From now on frames of that kind which `sender` sends are lost on their way."""
        self._kept_back = sender, kind

    def send(self, node: Node, link: int, frame: fr.Frame) -> None:
        if self._kept_back is None or (node.name, type(frame)) != self._kept_back:
            super().send(node, link, frame)

    def stop(self, name: str) -> None:
        """As a process that gets SIGTERM: what the core still wants is done, then it is gone."""
        node = self[name]
        node.feed(fx.Stopping())
        while node.state is not State.STOPPING:
            node.step()
        node.running = False
        self.run()

    def phase(self, name: str) -> Phase | None:
        return self[name].member.status.phase


def handed_over_to_b() -> KeepsBack:
    """`b` leads, and waits for `a`, which led before it and follows, but is not level yet."""
    cluster = KeepsBack()
    cluster.keep_back("a", fr.Ack)
    assert cluster.switch_over("a", "b").done
    cluster.run()
    assert cluster.phase("b") is Phase.RECOVERING
    assert cluster["a"].member.status.primary == "b"
    return cluster


def test_a_primary_does_not_wait_for_the_one_before_it_that_stops_right_after_the_handover() -> None:
    cluster = handed_over_to_b()
    lsn = cluster["b"].publish("q", "m")
    cluster.stop("a")
    assert cluster.phase("b") is Phase.ACTIVE
    assert cluster["b"].confirmed >= lsn, "without a wait"
    assert cluster["b"].member.status.members == ("b", "c")


def test_but_for_one_whose_channel_is_lost_as_it_may_be_back_at_once() -> None:
    cluster = handed_over_to_b()
    cluster.disconnect("a", "b")
    cluster.run()
    assert cluster.phase("b") is Phase.RECOVERING
    assert cluster["b"].member.status.members == ("a", "b", "c")


def test_a_backup_that_stops_is_asked_to_take_over_no_more() -> None:
    """Whoever asked for the switchover hears so at once, and not when its time is over."""
    cluster = KeepsBack()
    cluster.keep_back("a", fr.TakeOver)
    a = cluster["a"]
    a.feed(fx.SwitchoverAsked(1, "b"))
    cluster.run()
    assert 1 not in a.answers
    cluster.stop("b")
    assert a.answers[1] == fx.Answered(1, False, "b stops, and does not take over")


def asked_twice(first_to: str, second_to: str) -> tuple[KeepsBack, Node]:
    """`a` has been asked for two switchovers before the first one is done."""
    cluster = KeepsBack()
    a = cluster["a"]
    a.feed(fx.SwitchoverAsked(1, first_to))
    a.feed(fx.SwitchoverAsked(2, second_to))
    cluster.run()
    return cluster, a


@pytest.mark.parametrize(("first_to", "second_to"), [("b", ""), ("b", "b"), ("", "")])
def test_whoever_asks_for_a_switchover_that_is_under_way_hears_of_its_outcome_as_who_asked_first_does(
    first_to: str, second_to: str
) -> None:
    cluster, a = asked_twice(first_to, second_to)
    assert a.answers[1].done
    assert a.answers[2] == a.answers[1]._replace(request=2)
    assert [name for name in "abc" if cluster[name].state is State.PRIMARY] == [a.member.status.primary]


def test_one_to_another_backup_is_refused_at_once_and_the_first_one_goes_on() -> None:
    cluster, a = asked_twice("b", "c")
    assert a.answers[2] == fx.Answered(2, False, "b is asked to take over already: wait for that")
    assert a.answers[1].done
    assert cluster["b"].state is State.PRIMARY


def test_both_hear_that_the_backup_does_not_take_over_in_time() -> None:
    cluster = KeepsBack()
    cluster.keep_back("a", fr.TakeOver)
    a = cluster["a"]
    for number in (1, 2):
        a.feed(fx.SwitchoverAsked(number, "b"))
    cluster.stop("b")
    assert [a.answers[number] for number in (1, 2)] == [
        fx.Answered(number, False, "b stops, and does not take over") for number in (1, 2)
    ]


def test_whoever_wanted_one_backup_to_lead_hears_that_another_one_was_faster() -> None:
    cluster = KeepsBack()
    cluster.keep_back("a", fr.TakeOver)
    a = cluster["a"]
    a.feed(fx.SwitchoverAsked(1, "b"))
    a.feed(fx.SwitchoverAsked(2, "b"))
    cluster.run()
    assert cluster.promote("c").done
    assert [a.answers[number] for number in (1, 2)] == [
        fx.Answered(number, False, "c takes over, and not b") for number in (1, 2)
    ]


@pytest.mark.parametrize("second", [fx.SwitchoverAsked(2, ""), fx.DemoteAsked(2), fx.ShutdownAsked(2, "0f" * 16)])
def test_nothing_else_begins_while_clients_are_sent_away_for_a_demotion(second: fx.Input) -> None:
    cluster = KeepsBack()
    a = cluster["a"]
    a.feed(fx.DemoteAsked(1))
    a.feed(second)
    cluster.run()
    assert a.answers[2] == fx.Answered(2, False, "this broker is being demoted already: wait for that")
    assert a.answers[1].done


@pytest.mark.parametrize("second", [fx.SwitchoverAsked(2, ""), fx.DemoteAsked(2), fx.ShutdownAsked(2, "0f" * 16)])
def test_nor_while_the_cluster_is_shut_down(second: fx.Input) -> None:
    """One that was begun then would end with a shutdown that comes to nothing: a broker that hands over for ever."""
    cluster = KeepsBack()
    a = cluster["a"]
    a.feed(fx.ShutdownAsked(1, "0f" * 16))
    a.feed(second)
    cluster.run()
    assert a.answers[2] == fx.Answered(2, False, "the cluster is being shut down already: wait for that")


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("amqp:connection:forced: stopping", LinkEnd.STOPPING),
        ("stopping", LinkEnd.STOPPING),  # on a sub-channel
        ("amqp:connection:forced: stopping to follow", LinkEnd.LOST),
        ("amqp:connection:forced: connected anew", LinkEnd.LOST),
        ("amqp:connection:forced: HELLO: reads_marks: what is that?", LinkEnd.UNREADABLE),
        ("FOLLOW: reads_clock: what is that?", LinkEnd.UNREADABLE),
        ("broker b has no replica of the resource set set1", LinkEnd.LOST),
        ("the connection was lost", LinkEnd.LOST),
        ("amqp:unauthorized-access: Authentication failed", LinkEnd.NOT_LET_IN),
        ("amqp:resource-limit-exceeded: 90 connections of brokers", LinkEnd.NO_PLACE),
    ],
)
def test_how_a_channel_came_to_its_end_is_told_by_what_every_release_says(reason: str, end: LinkEnd) -> None:
    assert link_end(reason) is end


def test_either_end_of_a_channel_hears_that_the_other_one_stops() -> None:
    broker = Cluster()
    backup = broker.backup()
    backup.client.close(STOPPING)
    backup.settle_down()
    assert list(map(link_end, broker.peers.reasons)) == [LinkEnd.STOPPING]

    other = broker.backup()
    broker.peers.channels[-1].close(STOPPING)
    other.settle_down()
    assert list(map(link_end, other.reasons)) == [LinkEnd.STOPPING]
