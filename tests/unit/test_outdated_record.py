"""Stories about a coordinator that has lost its record, or has an older one, and about who may go on then.

That nobody who was left out is promoted, and how an operator goes on with what is left, is story 14 in tests/golden/ha.
"""

from __future__ import annotations

from collections import deque

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.states import State
from small_cluster import Node, SmallCluster, three

PATROL_S = 12.0
"""By then a primary has looked at the record."""
EMPTY = ClusterRecord()


def one_was_dropped_while_it_was_stopped() -> SmallCluster:
    """`c` sleeps; `a` and `b` have confirmed two messages without it, and it cannot know that."""
    cluster = three(has_coordinator=True, backup_timeout_s=4.0)
    cluster["a"].declare("orders")
    cluster["a"].publish("orders", "1")
    cluster.settle()
    cluster["c"].paused = True
    cluster.wait(5.0)
    lsn = cluster["a"].publish("orders", "2", "3")
    cluster.wait(1.0)
    assert cluster["a"].committed >= lsn
    return cluster


def wake_alone(cluster: SmallCluster, name: str) -> None:
    for other in set("abc") - {name}:
        cluster.kill(other)
    cluster[name].paused = False
    cluster.settle()


def test_nor_because_another_one_without_data_is_asked_first() -> None:
    cluster = one_was_dropped_while_it_was_stopped()
    cluster.record = EMPTY
    wake_alone(cluster, "c")
    cluster.start("a")
    cluster.cut("a", "c")

    refused = cluster.promote("a")

    assert not refused.done
    assert "this broker holds no data, and " in refused.text


def test_that_command_costs_the_others_nothing_when_all_are_there() -> None:
    """An operator's word for a lost record is no word about messages."""
    cluster = three(has_coordinator=True)
    before = cluster.record
    cluster.demote("a")
    assert cluster.promote("c").done
    cluster.settle()
    cluster.demote("c")
    cluster.record = before
    assert not cluster.promote("b").done

    done = cluster.promote("b", force=True)

    assert done.done
    assert any(text.endswith("in sync with a, b") for text in cluster["b"].notices), cluster["b"].notices
    assert cluster["b"].member.history()[-1]["forced"] is False
    cluster.settle()
    assert cluster.record is not None
    assert cluster.record.members == ("a", "b", "c")


def test_a_record_from_before_a_departure_is_known_to_be_old_by_who_has_heard_of_it() -> None:
    """Only `c` is missing in what `b` knows to be certain, and the record has `c`; `a` may have gone on without `b`."""
    cluster = three(has_coordinator=True, backup_timeout_s=4.0)
    before = cluster.record
    cluster.kill("c")
    cluster.settle()
    cluster["b"].paused = True
    cluster.wait(5.0)
    assert cluster.record is not None
    assert cluster.record.members == ("a",)
    cluster.record = before
    wake_alone(cluster, "b")

    assert "this broker's log knows epoch" in cluster.promote("b").text


def test_who_was_told_of_a_newer_generation_remembers_it_when_nobody_answers_any_more() -> None:
    """`b` led alone, which `c` has only heard of: what `b` confirmed must not be lost because it is slow once."""
    cluster = three(has_coordinator=True)
    before = cluster.record
    cluster.kill("a")
    cluster.cut("b", "c")
    assert cluster.promote("b").done
    cluster.settle()
    cluster.demote("b")
    cluster.heal()
    cluster.record = before
    assert not cluster.promote("c").done
    cluster.cut("b", "c")

    assert "b said before that its log knows generation 2" in cluster.promote("c").text

    assert cluster.promote("c", force=True).done
    assert cluster.record is not None
    assert cluster.record.generation == 3, "nobody else's generation has that number"


def test_who_was_told_that_more_is_committed_remembers_it_when_nobody_answers_any_more() -> None:
    """`b` knows what was confirmed without `c`; then the record goes back to when `c` was in sync."""
    before = three(has_coordinator=True, backup_timeout_s=4.0).record
    cluster = one_was_dropped_while_it_was_stopped()
    assert before is not None
    cluster.kill("a")
    cluster["c"].paused = False
    cluster.settle()
    cluster.record = before._replace(cluster=cluster["b"].member.status.cluster)
    assert "b knows a newer in-sync set without this broker" in cluster.promote("c").text
    cluster.cut("b", "c")

    assert "b was told that LSN " in cluster.promote("c").text

    assert cluster.promote("c", force=True).done


@pytest.mark.parametrize("tail_bytes", [1, 1 << 20])
def test_what_a_broker_was_told_to_be_committed_is_not_forgotten_in_a_comparison(
    tail_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SmallCluster("a", "b", tail_bytes=tail_bytes)
    cluster.run()
    assert cluster.promote("a").done
    cluster["a"].declare("orders")
    cluster.settle()
    told: list[tuple[int, int]] = []
    handled = cluster["b"].note_handled

    def note(what: fx.Input, effects: list[fx.Effect]) -> None:
        handled(what, effects)
        answer = cluster["b"].member.answer()
        told.append((answer.committed_generation, answer.committed_lsn))

    monkeypatch.setattr(cluster["b"], "note_handled", note)
    cluster["a"].publish("orders", "1", "2")
    cluster.settle()
    cluster.disconnect("a", "b")
    cluster["a"].publish("orders", "3")
    cluster.settle()
    cluster.kill("a")
    assert cluster.promote("b").done
    cluster["b"].publish("orders", "4")
    cluster.settle()

    assert told == sorted(told)
    assert 0 < told[0][1] < told[-1][1]


def test_a_message_that_no_store_keeps_is_nothing_that_a_candidate_must_have() -> None:
    """A primary that comes back from its store lacks it, and has all that was promised (seed 763159)."""
    cluster = SmallCluster("a", "b")
    cluster.run()
    assert cluster.promote("a").done
    cluster["a"].declare("orders")
    lsn = cluster["a"].publish("orders", "kept", durable=True)
    cluster.settle()
    assert cluster["b"].member.answer().committed_lsn == lsn
    last_lsn = cluster["a"].publish("orders", "not kept", "nor this")
    cluster.settle()
    assert cluster["b"].member.committed_lsn == last_lsn
    assert cluster["b"].member.answer().committed_lsn == lsn


def test_who_had_a_newer_record_confirmed_knows_that_this_one_is_old() -> None:
    cluster = three(has_coordinator=True)
    before = cluster.record
    cluster.kill("b")
    cluster.kill("c")
    cluster.settle()
    cluster.demote("a")
    cluster.record = before

    assert "this broker had generation 1, epoch " in cluster.promote("a").text


def test_a_departure_that_was_not_recorded_before_the_primary_died_stops_nobody() -> None:
    """The logs are newer than the record then, and the record is the newest one that there is."""
    cluster = three(has_coordinator=True)
    cluster.record_is_reachable = False
    cluster.kill("c")
    cluster.settle()
    assert cluster["b"].member.status.members == ("a", "b")
    cluster.kill("a")
    cluster.record_is_reachable = True
    cluster.settle()

    assert cluster.promote("b").done


def test_nor_does_the_return_of_one_whose_departure_was_never_recorded() -> None:
    cluster = three(has_coordinator=True)
    cluster.record_is_reachable = False
    cluster.disconnect("a", "c")
    cluster.settle()
    assert cluster["c"].state is State.READY
    lsn = cluster["a"].declare("orders").id
    cluster.wait(1.0)
    assert cluster["b"].member.committed_lsn >= lsn
    cluster.kill("a")
    cluster.record_is_reachable = True
    cluster.settle()

    assert cluster.promote("b").done


def test_a_candidate_that_died_between_its_record_and_its_first_event_stops_nobody() -> None:
    cluster = three(has_coordinator=True)
    cluster.kill("a")
    cluster.kill("b")
    cluster.record = ClusterRecord(cluster["c"].member.status.cluster, 2, "b", 4, ("b", "c"))
    cluster.settle()

    assert cluster.promote("c").done


# --- a broker that began anew, behind a primary that the record does not name


def one_that_led_forgot_it_behind_a_primary_that_slept(**settings: float) -> SmallCluster:
    """`a` sleeps, `b` is recorded and confirms a message alone. Then `b` is restarted without its memory, and follows
    `a`, which cannot read the record."""
    cluster = SmallCluster("a", "b", has_coordinator=True, **settings)
    cluster.run()
    assert cluster.promote("a").done
    cluster["a"].declare("orders")
    cluster.settle()
    cluster["a"].paused = True
    cluster.cut("a", "b")
    assert cluster.promote("b").done
    lsn = cluster["b"].publish("orders", "1")
    cluster.run()
    assert cluster["b"].committed >= lsn
    cluster.kill("b")
    cluster.record_is_reachable = False
    cluster.start("b")
    cluster.heal()
    cluster["a"].paused = False
    cluster.settle()
    assert cluster["b"].member.answer().members == ("a", "b"), cluster["b"].notices
    return cluster


def test_one_that_was_emptied_is_not_promoted_because_the_record_has_its_name() -> None:
    cluster = one_that_led_forgot_it_behind_a_primary_that_slept()
    cluster.record_is_reachable = True
    cluster.wait(PATROL_S)
    assert cluster["a"].state is State.CONNECTING

    refused = cluster.promote("b")

    assert not refused.done
    assert "says generation 2, led by b, and this broker began anew and has followed generation 1 only" in refused.text
    assert "the coordinator knows a newer in-sync set without this broker" in cluster.promote("a").text
    assert cluster.promote("b", force=True).done
    assert cluster["b"].member.answer().store is StoreOrigin.MEMORY, "who leads has what counts"


@pytest.mark.parametrize("origin", [StoreOrigin.MEMORY, StoreOrigin.DIRTY, StoreOrigin.CLEAN])
def test_what_a_backup_holds_counts_once_it_has_seen_its_primary_in_the_record(
    origin: StoreOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it began with nothing, or from a store, which may be a copy: that is not seen in what it holds."""
    cluster = SmallCluster("a", "b", has_coordinator=True)
    cluster.run()
    assert cluster.promote("a").done
    cluster.kill("b")
    cluster.settle()
    monkeypatch.setattr(Node, "open_store", lambda self, settings: Restored(origin))
    backup = cluster.start("b")
    shown: list[ClusterRecord | None] = []
    with monkeypatch.context() as patched:
        patched.setattr(backup, "read_record", lambda number: backup.feed(fx.RecordRead(number, shown[-1])))
        assert cluster.record is not None
        named_a = cluster.record
        for record in (None, EMPTY, named_a._replace(primary="c"), named_a._replace(generation=2, primary="b")):
            shown.append(record)
            cluster.wait(PATROL_S)
            assert backup.state is State.READY
            assert backup.member.answer().store is StoreOrigin.UNVERIFIED

    cluster.wait(PATROL_S)

    assert backup.member.answer().store is StoreOrigin.MEMORY


def test_without_a_coordinator_there_is_nothing_to_look_at() -> None:
    assert [three()[name].member.answer().store for name in "abc"] == [StoreOrigin.MEMORY] * 3


# --- the primary lives


def test_a_primary_that_all_follow_writes_a_lost_record_anew() -> None:
    cluster = three(has_coordinator=True)
    recorded = cluster.record
    cluster.record = EMPTY
    cluster.wait(PATROL_S)

    assert cluster.record == recorded
    cluster.kill("a")
    cluster.settle()
    assert cluster.promote("b").done


def test_a_primary_does_not_begin_a_record_anew_for_one_that_may_have_been_promoted_meanwhile() -> None:
    """`a` sleeps, `b` leads, and the record goes back to what `a` had. It must not confirm without asking `b`."""
    cluster = three(has_coordinator=True)
    cluster["a"].declare("orders")
    cluster.settle()
    before = cluster.record
    cluster["a"].paused = True
    cluster.cut("a", "b", "c")
    cluster.wait(4.0)
    assert cluster.promote("b").done
    cluster.wait(15.0)
    cluster.record = before
    cluster["a"].paused = False
    cluster.run()
    lsn = cluster["a"].publish("orders", "nobody else has it")
    cluster.wait(PATROL_S)

    assert cluster["a"].committed < lsn
    cluster.heal()
    cluster.settle()
    assert cluster["a"].state is State.READY
    assert cluster["a"].bodies("orders") == []


def test_a_primary_that_slept_asks_whom_it_drops_although_the_record_is_just_as_it_left_it() -> None:
    """`a` sleeps, `b` leads, and the record is put back exactly as `a` wrote it: a compare-and-set of `a` succeeds."""
    cluster = three(has_coordinator=True, backup_timeout_s=4.0)
    cluster["a"].declare("orders")
    cluster.settle()
    before = cluster.record
    cluster["a"].paused = True
    cluster.cut("a", "b", "c")
    cluster.wait(0.5)
    assert cluster.promote("b").done
    cluster.wait(3.0)
    cluster.record = before
    lsn = cluster["a"].publish("orders", "nobody else has it")
    cluster.heal()
    cluster["a"].paused = False
    while cluster["a"].state is State.PRIMARY:
        assert cluster["a"].committed < lsn
        cluster.wait(0.1)

    cluster.settle()
    assert cluster["a"].bodies("orders") == []


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_departure_counts_no_more_once_the_record_went_back_until_the_backup_is_back(is_empty: bool) -> None:
    cluster = three(has_coordinator=True)
    cluster["a"].declare("orders")
    cluster.settle()
    cluster.record = EMPTY if is_empty else ClusterRecord(cluster["a"].member.status.cluster, 1, "a", 1, ("a",))
    cluster.cut("a", "c")
    cluster.cut("b", "c")
    cluster.disconnect("a", "c")
    lsn = cluster["a"].publish("orders", "1")
    cluster.wait(PATROL_S)
    assert cluster["a"].state is State.PRIMARY
    assert cluster["a"].committed < lsn
    assert "the coordinator's record " in cluster["a"].member.status.problem

    cluster.heal()
    cluster.wait(PATROL_S)

    assert cluster["a"].committed >= lsn
    assert cluster["a"].member.status.problem == ""
    assert cluster.record is not None
    assert cluster.record.members == ("a", "b", "c")


def test_or_until_an_operator_says_that_nobody_else_leads() -> None:
    cluster = three(has_coordinator=True)
    cluster["a"].declare("orders")
    cluster.settle()
    cluster.record = EMPTY
    cluster.kill("c")
    lsn = cluster["a"].publish("orders", "1")
    cluster.wait(PATROL_S)
    assert cluster["a"].committed < lsn
    assert "qpid-ha promote --force" in cluster["a"].member.status.problem

    assert cluster.promote("a", force=True).done
    cluster.wait(2.0)

    assert cluster["a"].committed >= lsn
    assert cluster.record is not None
    assert cluster.record.members == ("a", "b")


def test_a_record_of_another_cluster_is_never_replaced() -> None:
    cluster = three(has_coordinator=True)
    foreign = ClusterRecord("another cluster", 1, "a", 9, ("a",))
    cluster.record = foreign
    cluster.kill("c")
    cluster.wait(PATROL_S)
    cluster.promote("a", force=True)
    cluster.wait(PATROL_S)

    assert cluster.record == foreign
    assert "the coordinator is of the cluster another cluster" in cluster["a"].member.status.problem


def test_nor_is_it_by_force_where_nobody_leads_but_once_an_operator_has_deleted_it() -> None:
    cluster = three(has_coordinator=True)
    foreign = ClusterRecord("a cluster that came to nothing", 1, "c", 1, ("c",))
    cluster.demote("a")
    cluster.record = foreign

    refused = cluster.promote("b", force=True)

    assert cluster.record == foreign
    assert "delete its record" in refused.text
    cluster.record = EMPTY
    assert cluster.promote("b", force=True).done
    assert cluster["b"].member.history()[-1]["forced"] is False, "and nothing was given up"


def without_a_primary_and_with_a_slow_coordinator() -> tuple[
    SmallCluster, ClusterRecord | None, deque[tuple[Node, fx.RecordWritten]]
]:
    """`a` led, and died; the record that it left, and the answers to writes that are on their way."""
    cluster = three(has_coordinator=True)
    cluster.kill("a")
    cluster.wait(1.0)
    cluster.record_answers = answers = deque[tuple[Node, fx.RecordWritten]]()
    return cluster, cluster.record, answers


def test_of_two_that_were_recorded_because_the_record_was_put_back_only_the_one_that_began_leads() -> None:
    """The coordinator takes the second claim although it had taken the first: it has lost it in between."""
    cluster, before, answers = without_a_primary_and_with_a_slow_coordinator()
    b, c = cluster["b"], cluster["c"]
    c.feed(fx.PromoteAsked(1))
    c.step()
    read = c.inbox.popleft()  # it has asked for the record, and the answer is on its way
    b.feed(fx.PromoteAsked(2))
    cluster.run()
    cluster.record = before
    c.feed(read)
    cluster.run()
    assert [answer.written for _, answer in answers] == [True, True]

    b.feed(answers.popleft()[1])
    cluster.run()
    cluster.let_record_answers_come()
    cluster.settle()

    assert [node.name for node in (b, c) if node.is_in(State.PRIMARY)] == ["b"]
    assert any("b has become primary meanwhile" in text for text in c.notices), c.notices
    cluster.wait(PATROL_S)
    assert cluster.record is not None
    assert (cluster.record.generation, cluster.record.primary) == (2, "b")
    assert c.is_in(State.READY)


def test_who_hears_late_that_it_was_recorded_looks_whether_it_still_is() -> None:
    """`b` sleeps between claim and answer; the record is lost meanwhile, and `c` begins the same generation."""
    cluster, before, answers = without_a_primary_and_with_a_slow_coordinator()
    b, c = cluster["b"], cluster["c"]
    b.feed(fx.PromoteAsked(1))
    cluster.run()
    (_, recorded) = answers.pop()
    assert recorded.written
    b.paused = True
    cluster.record, cluster.record_answers = before, None
    assert cluster.promote("c").done
    cluster.wait(2.0)

    b.inbox.appendleft(recorded)  # what comes from files is there before what comes from others
    b.paused = False
    cluster.settle()

    assert [node.name for node in (b, c) if node.is_in(State.PRIMARY)] == ["c"]
    assert any("took generation 2, and now names c" in text for text in b.notices), b.notices
    assert b.is_in(State.READY)
