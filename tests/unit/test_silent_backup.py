"""A backup that falls silent costs publishers its time-out once, and not again with each of its returns."""

from __future__ import annotations

from model_support import NOW_MS, TextReader
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.backup_admission import LONGEST_OF_ONLY_ONE_S, LONGEST_PROBATION_S, BackupAdmission
from qpid_ha_broker.ha.backup_link import OWES_MOST_S, BackupLink
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.frames import PROTOCOL_VERSION, Batch, Hello
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_config.settings import HaSettings
from small_cluster import SmallCluster, three

TIMEOUT_S = 2.0


def test_by_default_publishers_wait_two_seconds_for_a_silent_backup_or_two_heartbeats_if_that_is_more() -> None:
    assert HaSettings().waits_for_backup_s == 2.0
    assert HaSettings(link_heartbeat_interval_s=3.0).waits_for_backup_s == 6.0


def publishing() -> SmallCluster:
    cluster = three(backup_timeout_s=TIMEOUT_S)
    cluster["a"].declare("q")
    cluster.settle()
    return cluster


def is_confirmed_within(cluster: SmallCluster, seconds: float) -> bool:
    lsn = cluster["a"].publish("q", "x")
    cluster.wait(seconds)
    return cluster["a"].committed >= lsn


def fall_silent(cluster: SmallCluster) -> None:
    """`c` stops, and is waited for until its time is over."""
    cluster["c"].paused = True
    assert not is_confirmed_within(cluster, 1.0)
    cluster.wait(TIMEOUT_S)
    assert "c" not in cluster["a"].member.status.members
    cluster["c"].paused = False
    cluster.wait(0.5)


def test_who_was_silent_is_waited_for_again_once_it_has_been_level_for_a_while() -> None:
    cluster = publishing()
    fall_silent(cluster)
    assert cluster["c"].is_in(State.CATCHUP)
    assert cluster["c"].bodies("q") == cluster["a"].bodies("q"), "it is sent all the same"
    cluster["c"].paused = True
    assert is_confirmed_within(cluster, 0.2), "it has come back, and stops again: nobody waits for it"
    cluster["c"].paused = False

    cluster.wait(10 * TIMEOUT_S)

    assert cluster["c"].is_in(State.READY)


def test_nobody_is_let_in_who_has_stopped_again_when_its_time_comes() -> None:
    """Nothing is published meanwhile, so it owes nothing."""
    cluster = publishing()
    fall_silent(cluster)
    cluster.wait(TIMEOUT_S - 1.0)
    cluster["c"].paused = True
    cluster.wait(1.5)
    assert "c" not in cluster["a"].member.status.members
    assert is_confirmed_within(cluster, 0.2)


def test_the_while_is_longer_each_time() -> None:
    cluster = publishing()
    came_after_s = []
    for _ in range(3):
        fall_silent(cluster)
        waited_s = 0.0
        while not cluster["c"].is_in(State.READY):
            cluster.wait(0.5)
            waited_s += 0.5
            assert waited_s < LONGEST_PROBATION_S
        came_after_s.append(waited_s)
    assert came_after_s[0] < came_after_s[1] < came_after_s[2]


def test_the_only_backup_is_waited_for_again_sooner_because_nobody_else_could_lead() -> None:
    cluster = publishing()
    cluster.kill("b")
    cluster.settle()
    for _ in range(5):
        fall_silent(cluster)
        cluster.wait(LONGEST_OF_ONLY_ONE_S + 2.0)
        assert cluster["c"].is_in(State.READY)


def test_who_is_lost_with_its_channel_or_stopped_in_order_is_back_at_once() -> None:
    cluster = publishing()
    cluster.disconnect("a", "c")
    cluster.wait(1.5)
    assert cluster["c"].is_in(State.READY)


def test_where_too_few_are_in_sync_nobody_waits_with_letting_one_in() -> None:
    cluster = three(backup_timeout_s=TIMEOUT_S, min_in_sync=3)
    cluster["a"].declare("q")
    cluster.settle()
    cluster["c"].paused = True
    cluster.wait(2 * TIMEOUT_S)
    cluster["c"].paused = False
    cluster.wait(1.5)
    assert cluster["c"].is_in(State.READY)


def test_the_time_has_a_limit_and_is_forgotten_by_and_by() -> None:
    ctx = MemberContext(MemberSettings("a", "a-1", ("a:1", "b:1")), Resources(TextReader()).replicated, lambda: 0.5,
                        lambda: NOW_MS)  # fmt: skip
    admission = BackupAdmission(ctx)
    assert admission.probation_s("b") == 0
    for _ in range(20):
        admission.was_silent("b")
    assert admission.probation_s("b") == LONGEST_PROBATION_S
    ctx.clock_s += 3600
    admission.was_silent("b")
    assert admission.probation_s("b") < LONGEST_PROBATION_S


def test_what_is_on_its_way_to_a_backup_that_does_not_read_while_it_catches_up_is_bounded_by_bytes() -> None:
    cluster = three(tail_bytes=1, chunk_messages=10, backup_timeout_s=60.0)
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    cluster.kill("c")
    a.publish("q", *map(str, range(1000)))
    cluster.settle()
    c = cluster.start("c")
    assert a.member.primary is not None
    while not any(backup.browsers is not None for backup in a.member.primary.links.values()):
        for node in cluster.nodes.values():
            node.step()
    c.paused = True
    a.feed(fx.LinkWritable(cluster.link("a", "c"), False))
    for _ in range(400):
        a.publish("q", "x" * 2000)
        cluster.run()
    batches = [what.frame for what in c.inbox if isinstance(what, fx.FrameReceived) and isinstance(what.frame, Batch)]
    assert 250_000 < sum(len(batch.data) for batch in batches) < 270_000
    assert any("bytes wait for it" in text for text in a.notices)
    c.paused = False
    cluster.settle()
    assert c.is_in(State.READY)
    assert c.bodies("q") == a.bodies("q")


def test_who_was_silent_is_let_in_at_once_while_it_is_not_recorded_that_it_left() -> None:
    """Nothing is committed without it before that, and the coordinator is away."""
    cluster = three(backup_timeout_s=TIMEOUT_S, has_coordinator=True)
    cluster["a"].declare("q")
    cluster.settle()
    cluster.record_is_reachable = False
    fall_silent(cluster)
    assert is_confirmed_within(cluster, 0.5)
    cluster.wait(1.0)
    assert cluster["c"].is_in(State.READY)


def level_backup(probation_s: float) -> BackupLink:
    """It has been silent before, and lacks nothing since 0 s."""
    hello = Hello(PROTOCOL_VERSION, "b", "b-1", "uuid", (), 0, 0, True, False, 0, True)
    backup = BackupLink(1, hello, 0.0)
    backup.probation_s = probation_s
    backup.note_level(0.0)
    return backup


def test_that_somebody_asks_whether_a_backup_is_proven_changes_nothing() -> None:
    asked, other = level_backup(2.0), level_backup(2.0)
    for backup in (asked, other):
        backup.note_sent(Batch(1, 1, 1, 0, b"x"), 0.5)
    assert not asked.is_proven(0.5 + 2 * OWES_MOST_S), "its while is not over"
    for backup in (asked, other):
        backup.acknowledge(1)
    assert asked.is_proven(2.0)
    assert other.is_proven(2.0)


def test_the_while_begins_again_where_it_is_seen_that_it_does_not_answer() -> None:
    backup = level_backup(2.0)
    backup.note_sent(Batch(1, 1, 1, 0, b"x"), 0.5)
    seen_s = 0.5 + 2 * OWES_MOST_S
    backup.note_level(seen_s)
    backup.acknowledge(1)
    assert not backup.is_proven(seen_s + 1.9)
    assert backup.is_proven(seen_s + 2.0)
