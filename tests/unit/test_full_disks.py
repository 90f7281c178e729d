"""Stories of brokers that cannot write: who is waited for, who takes over, and who comes back when there is room."""

from __future__ import annotations

import pytest

from filling_cluster import NO_ROOM, FillingCluster, three_with_disks
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Frame, Hello
from qpid_ha_broker.ha.link_ends import end_of
from qpid_ha_broker.ha.states import State
from small_cluster import Node

MOMENT_S = 0.3
"""A few ticks: far less than `ha.backup-timeout`."""
ASK_LIMIT_S = 1.0
"""So long an answer is waited for."""
A_SECOND_S = 2.0
"""Longer than the longest pause between two attempts to follow a primary."""
WITH_OR_WITHOUT_COORDINATOR = pytest.mark.parametrize("has_coordinator", [True, False])


def confirms(cluster: FillingCluster, primary: str, body: str) -> bool:
    """Whether a durable message is confirmed within a moment."""
    lsn = cluster[primary].publish("q", body, durable=True)
    cluster.wait(MOMENT_S)
    return cluster[primary].confirmed >= lsn


# --- a backup


@WITH_OR_WITHOUT_COORDINATOR
def test_publishers_do_not_wait_for_a_backup_that_says_that_it_cannot_write(has_coordinator: bool) -> None:
    cluster = three_with_disks(has_coordinator=has_coordinator)
    cluster.fill("b")
    assert confirms(cluster, "a", "b has no room")
    assert cluster.in_sync("a") == ("a", "c")
    assert any(NO_ROOM in text for text in cluster["a"].notices), "its log says why"
    assert any(NO_ROOM in text for text in cluster["b"].notices)


def test_it_is_not_taken_back_before_it_can_write_again() -> None:
    cluster = three_with_disks()
    cluster.fill("b")
    assert confirms(cluster, "a", "one")
    cluster.wait(20.0)
    assert cluster.in_sync("a") == ("a", "c")
    assert confirms(cluster, "a", "two"), "nor does anybody wait for it"
    cluster.make_room("b")
    cluster.wait(A_SECOND_S)
    assert cluster.in_sync("a") == ("a", "b", "c")
    assert cluster["b"].is_in(State.READY)
    assert cluster["b"].bodies("q") == ["one", "two"]


def test_its_status_says_so_and_says_so_no_more_when_there_is_room() -> None:
    cluster = three_with_disks()
    cluster.fill("b")
    assert confirms(cluster, "a", "one")
    assert cluster["b"].member.status.store_problem == NO_ROOM
    cluster.make_room("b")
    assert cluster["b"].member.status.store_problem == ""


def test_a_backup_that_cannot_write_leaves_once_and_follows_meanwhile() -> None:
    """It knows its primary, relays clients to it, and is soon level when there is room."""
    cluster = three_with_disks()
    cluster.fill("b")
    assert confirms(cluster, "a", "one")
    cluster.wait(20.0)
    assert sum("disconnected" in text for text in cluster["a"].notices) == 1, cluster["a"].notices
    assert cluster["b"].member.status.primary == "a"
    (told,) = [backup for backup in cluster["a"].member.backups() if backup["name"] == "b"]
    assert (told["state"], told["in_sync"], told["why"]) == (
        "catchup",
        False,
        f"its store cannot be written: {NO_ROOM}",
    )


def test_it_leaves_again_when_there_was_room_for_a_while_only() -> None:
    cluster = three_with_disks()
    for body in ("one", "two"):
        cluster.fill("b")
        assert confirms(cluster, "a", body)
        assert cluster.in_sync("a") == ("a", "c")
        cluster.make_room("b")
        cluster.wait(A_SECOND_S)
        assert cluster.in_sync("a") == ("a", "b", "c")


def test_a_backup_that_cannot_write_and_comes_anew_holds_for_the_primary_what_its_disk_holds() -> None:
    """Not what it has in memory, though nothing was written since at the primary that it would lack."""
    cluster = three_with_disks()
    cluster.fill("b")
    assert confirms(cluster, "a", "one")
    cluster.disconnect("a", "b")
    cluster.wait(A_SECOND_S)
    assert cluster.in_sync("a") == ("a", "c")


def test_so_does_one_whose_disk_is_only_slow() -> None:
    cluster = three_with_disks()
    slow = cluster["b"]
    cluster.hold("b")
    cluster["a"].publish("q", "one", durable=True)
    cluster.run()
    cluster.disconnect("a", "b")
    cluster.wait(A_SECOND_S)
    assert slow.member.status.primary == "a"
    assert cluster.in_sync("a") == ("a", "c"), "it holds the message in memory, and comes back with it"
    cluster.make_room("b")
    cluster.wait(A_SECOND_S)
    assert cluster.in_sync("a") == ("a", "b", "c")


def test_when_nobody_has_room_the_primary_waits_alone_and_goes_on_when_it_has_some() -> None:
    cluster = three_with_disks()
    cluster.fill("a", "b", "c")
    assert not confirms(cluster, "a", "one")
    cluster.wait(30.0)
    assert cluster["a"].is_in(State.PRIMARY), "another one would be no better"
    assert cluster["a"].member.status.store_problem == NO_ROOM
    refused = cluster.switch_over("a")
    assert not refused.done
    cluster.make_room("a")
    assert confirms(cluster, "a", "two")
    for name in "bc":
        cluster.make_room(name)
    cluster.wait(A_SECOND_S)
    assert cluster.in_sync("a") == ("a", "b", "c")


def test_a_broker_that_cannot_write_leads_nothing_and_lives() -> None:
    """It would have to note on its disk that it does, and could confirm nothing."""
    cluster = three_with_disks(has_coordinator=True)
    cluster.fill("a", "b", "c")
    assert not confirms(cluster, "a", "one")
    cluster.kill("a")
    cluster.wait(A_SECOND_S)
    for name, force in (("b", False), ("c", True)):
        refused = cluster.promote(name, force=force)
        assert not refused.done
        assert NO_ROOM in refused.text
        assert cluster[name].running


def test_it_votes_for_nobody_because_it_could_not_keep_that_and_lives() -> None:
    cluster = three_with_disks()
    cluster.fill("c")
    assert confirms(cluster, "a", "one")
    cluster.kill("a")
    assert cluster.promote("b").done
    assert cluster["c"].running
    cluster.wait(A_SECOND_S)
    assert cluster["c"].member.status.primary == "b"


def test_a_primary_of_an_older_release_is_greeted_without_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends a channel that begins with a field that is new to it, and does not wait for who has left."""
    send = FillingCluster.send

    def send_to_older(self: FillingCluster, node: Node, link: int, frame: Frame) -> None:
        if isinstance(frame, Hello) and (frame.store_problem or frame.reads_marks):
            said = "HELLO: store_problem: not a field of it"
            self.break_link((node.name, link), said)
            node.feed(fx.LinkLost(link, said, end_of(said)))
        else:
            send(self, node, link, frame)

    monkeypatch.setattr(FillingCluster, "send", send_to_older)
    cluster = three_with_disks()
    cluster.fill("b")
    assert confirms(cluster, "a", "one")
    cluster.wait(10.0)
    assert cluster["b"].member.status.primary == "a"
    assert len(cluster["b"].states) < 10, "it comes and goes no more"
    assert cluster.in_sync("a") == ("a", "c")
    cluster.make_room("b")
    cluster.wait(A_SECOND_S)
    assert cluster.in_sync("a") == ("a", "b", "c")


# --- the primary


@WITH_OR_WITHOUT_COORDINATOR
def test_whoever_takes_over_from_a_primary_that_cannot_write_does_not_wait_for_it(has_coordinator: bool) -> None:
    cluster = three_with_disks(has_coordinator=has_coordinator)
    cluster.fill("a")
    assert not confirms(cluster, "a", "one")
    assert cluster["a"].member.status.store_problem == NO_ROOM
    assert cluster.in_sync("a") == ("a", "b", "c"), "those who can write stay"
    assert cluster.switch_over("a", "b").done
    # Without a coordinator all are asked for their votes, and one that cannot keep its vote gives no answer.
    cluster.wait(MOMENT_S if has_coordinator else ASK_LIMIT_S + MOMENT_S)
    assert cluster["b"].is_in(State.PRIMARY)
    assert cluster["a"].running
    assert confirms(cluster, "b", "two")
    assert cluster["b"].bodies("q") == ["one", "two"], "what it could not write is not lost with that"
    assert cluster.in_sync("b") == ("b", "c")
    cluster.make_room("a")
    cluster.wait(A_SECOND_S)
    assert cluster.in_sync("b") == ("a", "b", "c")
    assert cluster["a"].bodies("q") == ["one", "two"]


def test_a_broker_that_could_not_write_does_not_take_over_from_one_that_can() -> None:
    cluster = three_with_disks(has_coordinator=True)
    cluster.fill("b")
    assert confirms(cluster, "a", "one")
    refused = cluster.switch_over("a", "b")
    assert not refused.done
    assert cluster.switch_over("a").done
    cluster.wait(MOMENT_S)
    assert cluster["c"].is_in(State.PRIMARY)
    cluster.kill("c")
    assert not cluster.promote("b", failover=True).done, "it lacks what was confirmed without it"
    assert cluster.promote("a", failover=True).done


def test_a_primary_that_has_room_again_stays_and_everybody_with_it() -> None:
    cluster = three_with_disks()
    cluster.fill("a")
    assert not confirms(cluster, "a", "one")
    cluster.make_room("a")
    assert confirms(cluster, "a", "two")
    assert cluster["a"].member.status.store_problem == ""
    assert cluster["a"].member.status.generation == 1
