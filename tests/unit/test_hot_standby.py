"""Known weak spots of hot standby, and wrong input of every kind.

What can be told line by line is a story in tests/golden/ha, and whom a candidate has to ask is in `test_verdict`.
"""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from model_support import NOW_MS
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.states import TRANSITIONS, Cause, Phase, State, StateMachine, UnknownTransition
from small_cluster import Node, SmallCluster, three


def primaries(cluster: SmallCluster) -> list[str]:
    return [name for name, node in cluster.nodes.items() if node.running and node.is_in(State.PRIMARY)]


def test_every_pair_of_state_and_cause_is_either_in_the_table_or_an_error_with_the_states_so_far() -> None:
    for state, cause in itertools.product(State, Cause):
        machine = StateMachine(state)
        if (state, cause) in TRANSITIONS:
            assert machine.move(cause) == (state, TRANSITIONS[state, cause])
        else:
            with pytest.raises(UnknownTransition, match=state.value):
                machine.move(cause)


# --- weak spots of the original


@pytest.mark.parametrize("has_coordinator", [False, True])
def test_a_paused_primary_confirms_nothing_when_it_goes_on_and_steps_down(has_coordinator: bool) -> None:
    cluster = three(has_coordinator=has_coordinator)
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    a.paused = True
    lsn = a.publish("q", "sent to the sleeper")
    cluster.wait(4)
    assert cluster.promote("b").done
    cluster["b"].publish("q", "sent to the new one")
    cluster.settle()
    a.paused = False
    cluster.settle()
    assert a.confirmed < lsn
    assert primaries(cluster) == ["b"]
    assert a.is_in(State.READY)
    assert all(node.bodies("q") == ["sent to the new one"] for node in cluster.nodes.values())


@pytest.mark.parametrize("stopped_s", [0, 0.7, 2])
def test_a_primary_that_was_stopped_hands_over_only_to_who_still_waits_for_it(stopped_s: float) -> None:
    """A candidate waits a second for the answer; then nobody would lead after a primary that does as it was told."""
    cluster = three()
    a, b = cluster["a"], cluster["b"]
    cluster.settle()
    a.paused = True
    status = b.member.status
    question = fr.Question(
        1, fr.Topic.STEP_DOWN, "b", b.member.settings.instance, status.cluster, status.generation, 0, "b:5672"
    )
    cluster.ask(b, fx.Ask(question, ("a:5672",), b.member.settings.ask_limit_s))
    cluster.wait(stopped_s)
    a.paused = False
    cluster.run()
    assert a.is_in(State.PRIMARY) is (stopped_s > b.member.settings.ask_limit_s)
    cluster.settle()
    assert cluster.promote("b").done
    assert primaries(cluster) == ["b"]


def test_who_promised_to_follow_nobody_older_keeps_that_when_the_new_primary_is_cut_off_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = three(min_in_sync=2)
    a, b, c = (cluster[name] for name in "abc")
    a.declare("q")
    cluster.settle()
    a.paused = True
    cluster.cut("a", "b")
    cluster.wait(4)
    carry_out = cluster.carry_out

    def cut_off(node: Node, effect: fx.Effect) -> None:
        if node is b and isinstance(effect, fx.Send) and isinstance(effect.frame, fr.Welcome):
            cluster.cut("b", "c")
        carry_out(node, effect)

    monkeypatch.setattr(cluster, "carry_out", cut_off)
    assert cluster.promote("b").done
    a.paused = False
    lsn = a.publish("q", "sent to the old primary")
    cluster.wait(10)
    assert c.member.status.generation == 1  # it heard that b leads, and has nothing of it
    assert a.confirmed < lsn
    assert primaries(cluster) == ["b"]


def test_a_primary_whose_machine_is_off_holds_up_the_next_one_for_less_when_a_coordinator_has_the_record() -> None:
    waited_s = {}
    for has_coordinator in (False, True):
        cluster = three(has_coordinator=has_coordinator)
        cluster.cut("a", "b", "c")  # no answer, not even a refused connection
        cluster.wait(4)
        began_s = cluster.now_s
        assert cluster.promote("b").done
        waited_s[has_coordinator] = cluster.now_s - began_s
    assert waited_s[True] < 0.5 < 1.0 <= waited_s[False]


@pytest.mark.parametrize("has_coordinator", [True, False])
def test_a_backup_whose_machine_is_known_to_be_off_is_dropped_and_publishers_do_not_wait(has_coordinator: bool) -> None:
    cluster = three(backup_timeout_s=10.0, has_coordinator=has_coordinator)
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    cluster.cut("c", "a", "b")  # no answer, and no broken connection either
    lsn = a.publish("q", "1")
    cluster.wait(2)
    assert a.committed < lsn

    dropped = cluster.drop("a", "c")

    assert (dropped.done, dropped.text) == (True, "c is dropped; in sync: a, b")
    cluster.wait(3)
    assert a.committed >= lsn
    assert set(a.member.status.members) == {"a", "b"}
    assert cluster.drop("a", "c").text == "c is not waited for; in sync: a, b"


def test_dropping_a_backup_confirms_nothing_before_that_is_recorded() -> None:
    cluster = three(backup_timeout_s=10.0, has_coordinator=True)
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    cluster.cut("c", "a", "b")
    cluster.record_is_reachable = False
    lsn = a.publish("q", "1")

    cluster.drop("a", "c")

    cluster.wait(3)
    assert a.committed < lsn
    cluster.record_is_reachable = True
    cluster.wait(3)
    assert a.committed >= lsn


def test_a_backup_that_is_dropped_by_mistake_comes_back() -> None:
    cluster = three(backup_timeout_s=20.0)
    assert cluster.drop("a", "b").done
    assert any("backup b leaves the in-sync set" in notice for notice in cluster["a"].notices)
    cluster.settle()
    assert cluster["b"].is_in(State.READY)
    assert set(cluster["a"].member.status.members) == {"a", "b", "c"}
    refused = cluster.drop("b", "c")
    assert (refused.done, refused.text) == (False, "this broker is ready: ask the primary, a")


def test_a_backup_that_never_came_back_is_dropped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = three(backup_timeout_s=20.0, has_coordinator=True)
    b = cluster["b"]
    carry_out = cluster.carry_out

    def cut_off(node: Node, effect: fx.Effect) -> None:
        if node is b and isinstance(effect, fx.Send) and isinstance(effect.frame, fr.Welcome):
            cluster.cut("c", "a", "b")
        carry_out(node, effect)

    monkeypatch.setattr(cluster, "carry_out", cut_off)
    cluster.kill("a")
    assert cluster.promote("b").done
    cluster.wait(4)
    assert (b.member.status.phase, b.member.status.members) == (Phase.RECOVERING, ("b", "c"))

    assert cluster.drop("b", "c").done

    cluster.wait(1)
    assert (b.member.status.phase, b.member.status.members) == (Phase.ACTIVE, ("b",))


def test_a_backup_that_loses_the_primary_in_its_catch_up_recovers_with_the_next_one() -> None:
    cluster = three(tail_bytes=1, chunk_messages=1, chunks_ahead=1)
    a = cluster["a"]
    a.declare("q")
    a.publish("q", *"123456789")
    cluster.settle()
    cluster.kill("c")
    cluster.start("c")
    while not cluster["c"].is_in(State.CATCHUP) or len(cluster["c"].bodies("q")) < 3:
        for name in "acb":
            cluster[name].step()
    cluster.kill("a")
    assert cluster.promote("b").done
    assert "connecting" in cluster["c"].states[-1] or cluster["c"].is_in(State.CONNECTING)
    cluster.settle()
    assert cluster["c"].is_in(State.READY)
    assert cluster["c"].bodies("q") == list("123456789")


def test_promoting_a_backup_makes_the_live_primary_step_down_first_and_loses_nothing() -> None:
    cluster = three()
    cluster["a"].declare("q")
    cluster["a"].publish("q", "1", "2")
    assert cluster.promote("b").done
    assert primaries(cluster) == ["b"]
    cluster.settle()
    assert cluster["a"].is_in(State.READY)
    assert all(node.bodies("q") == ["1", "2"] for node in cluster.nodes.values())
    assert cluster["b"].member.status.members == ("a", "b", "c")


def test_a_candidate_that_is_refused_frees_at_once_those_who_promised_to_follow_it() -> None:
    cluster = SmallCluster("a", "b", "c", "d")
    cluster.run()
    assert cluster.promote("a").done
    cluster.settle()
    cluster.kill("a")
    candidates = [cluster["b"], cluster["c"]]
    for node in candidates:
        node.feed(fx.PromoteAsked(1))
    while not all(1 in node.answers for node in candidates):
        cluster.wait(0.1)
    assert [node.answers[1].done for node in candidates] == [False, False]
    assert cluster["d"].member.answer().promised_to == ""


def test_who_is_being_recorded_as_the_primary_follows_the_old_one_no_more() -> None:
    """It was about to follow when it was asked to lead; it would lead in the middle of a catch-up."""
    cluster = three(has_coordinator=True, tail_bytes=1)
    a, b = cluster["a"], cluster["b"]
    a.declare("q")
    a.publish("q", "1", "2")
    cluster.settle()
    cluster.cut("b", "a")
    a.publish("q", "3")
    cluster.run()
    cluster.disconnect("a", "b")
    a.paused = True
    cluster.heal()
    cluster.wait(0.2)
    lsn_before, cluster.record_answers = b.resources.replicated.log.last_lsn, deque()
    b.feed(fx.PromoteAsked(1))
    cluster.wait(0.4)
    assert cluster.record is not None
    assert cluster.record.primary == "b"
    a.paused = False
    cluster.run()
    assert (b.state, b.resources.replicated.log.last_lsn) == (State.CONNECTING, lsn_before)
    cluster.let_record_answers_come()
    cluster.settle()
    assert primaries(cluster) == ["b"]
    assert all(node.bodies("q") == b.bodies("q") for node in cluster.nodes.values())


def test_below_the_least_number_in_sync_publishes_are_refused_and_what_waits_is_not_confirmed() -> None:
    cluster = three(min_in_sync=2)
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    cluster.cut("a", "b", "c")
    lsn = a.publish("q", "waits")
    cluster.wait(20)
    assert a.committed < lsn
    assert a.resources.replication.refusal is not None
    cluster.heal()
    cluster.settle()
    assert a.committed >= lsn
    assert a.resources.replication.refusal is None


def test_a_primary_remembers_the_generation_for_which_it_stepped_down_when_nobody_who_knows_it_answers() -> None:
    """`b` led it with `c`, lost its memory, and was filled by `a`, which was stopped: only `c` knows of it."""
    cluster = three(min_in_sync=2)
    a = cluster["a"]
    cluster.cut("a", "b", "c")
    a.paused = True
    cluster.wait(4)
    assert cluster.promote("b").done
    cluster.kill("b")
    cluster.heal()
    cluster.cut("a", "c")
    a.not_let_in.add("c")  # so that `a` learns of the generation by its own question, as primary
    a.paused = False
    b = cluster.start("b")
    cluster.settle()
    assert (a.state, b.state, b.member.status.generation) == (State.PRIMARY, State.READY, 1)
    cluster.heal()
    cluster.settle()
    assert a.reasons[-1] == "c is at generation 2"
    cluster.cut("a", "c")
    cluster.settle()

    answer = cluster.promote("a")

    assert not answer.done
    assert "c said before that its log knows generation 2" in answer.text


def test_a_backup_forgets_what_others_said_before_once_an_operator_had_a_generation_begin_without_them() -> None:
    cluster = SmallCluster("a", "b", "c", "d", min_in_sync=2)
    cluster.run()
    assert cluster.promote("a").done
    cluster.settle()
    cluster.cut("b", "a", "c", "d")
    cluster.wait(4)
    for _ in range(3):
        assert cluster.promote("b", force=True).done
        assert cluster.demote("b").done
    assert cluster.demote("a").done
    cluster.heal()
    cluster.cut("b", "a", "d")
    assert "b knows a newer in-sync set" in cluster.promote("c").text
    cluster.cut("b", "c")
    assert "b said before that its log knows generation 4" in cluster.promote("c").text

    assert cluster.promote("a", force=True).done
    cluster.settle()
    assert cluster["c"].member.status.generation == 2
    assert cluster.demote("a").done
    assert cluster.promote("c").done


def test_what_a_broker_of_another_cluster_says_is_nothing_to_wait_for() -> None:
    cluster = SmallCluster("a", "b", "c", "d", min_in_sync=2)
    cluster.run()
    cluster.cut("d", "a", "b", "c")
    for _ in range(3):
        assert cluster.promote("d", force=True).done
        assert cluster.demote("d").done
    assert cluster.promote("a", force=True).done
    cluster.settle()
    assert cluster.demote("a").done
    cluster.heal()
    assert "d belongs to the cluster" in cluster.promote("b").text
    cluster.cut("d", "a", "b", "c")

    assert cluster.promote("b").done


# --- promote and demote in every state


def test_promoting_a_primary_again_changes_nothing() -> None:
    cluster = three()
    answer = cluster.promote("a")
    assert (answer.done, answer.text) == (True, "already primary of generation 1")


def test_a_url_that_reaches_only_this_broker_is_refused() -> None:
    cluster = SmallCluster("a", "b")
    a = cluster["a"]
    a.handle(fx.PromoteAsked(1))
    number = max(asked for _, asked, _ in cluster._asked.values())
    a.handle(fx.PeersAnswered(number, (a.member.answer(),), ()))
    assert "only this broker" in a.answers[1].text


def test_a_switchover_comes_to_nothing_when_the_primary_that_wanted_it_cannot_be_asked_any_more() -> None:
    cluster = three()
    cluster["a"].feed(fx.SwitchoverAsked(1, "b"))
    cluster["a"].step()  # b has been told
    cluster.cut("a", "b", "c")
    cluster.wait(3)
    assert primaries(cluster) == ["a"]
    assert any("wanted to hand over" in text for text in cluster["b"].notices)
    cluster.heal()
    cluster.settle()
    assert cluster["b"].is_in(State.READY)


@pytest.mark.parametrize(("waited_s", "leads"), [(0.2, "b"), (1.0, "a")])
def test_a_switchover_is_void_after_its_time_whenever_the_coordinator_answers_the_one_that_was_to_take_over(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, leads: str
) -> None:
    """It was wanted because the primary could not read the record; when the coordinator wakes up, it can."""
    cluster = three(has_coordinator=True)
    asked: list[int] = []
    with monkeypatch.context() as frozen:
        frozen.setattr(cluster["b"], "read_record", asked.append)
        cluster["a"].feed(fx.SwitchoverAsked(1, "b", within_s=0.5))
        cluster.run()
        cluster.wait(waited_s)
    for number in asked:
        cluster["b"].read_record(number)
    cluster.settle()
    assert primaries(cluster) == [leads]
    if leads == "a":
        assert "did not take over in time" in cluster["a"].answers[1].text
        cluster.wait(6)
        assert cluster.promote("b").done  # somebody else wants it


def test_who_has_handed_over_knows_that_its_successor_waits_for_it_until_it_follows() -> None:
    """Stopped before that, it would be one in sync that is slow to its successor."""
    cluster = three(has_coordinator=True)
    cluster.record_answers = deque()
    cluster["a"].feed(fx.SwitchoverAsked(1, "b"))
    cluster.run()
    while_nobody_leads = cluster["a"].member.role
    assert while_nobody_leads.awaits_successor

    cluster.let_record_answers_come()
    cluster.run()
    following = cluster["a"].member.role
    assert not following.awaits_successor
    assert cluster["a"].member.status.primary == "b"


def test_who_was_demoted_waits_for_nobody() -> None:
    """Whoever demotes it may have it stopped before another one is promoted."""
    cluster = three()
    cluster.demote("a")
    assert not cluster["a"].member.role.awaits_successor


# --- a failover: only because there is no primary


@pytest.mark.parametrize("has_coordinator", [False, True])
def test_a_failover_does_not_depose_a_primary_that_answers(has_coordinator: bool) -> None:
    """The agent that asks for it lost sight of the primary; its view may be older than the switchover that ended."""
    cluster = three(has_coordinator=has_coordinator)
    refused = cluster.promote("c", failover=True)
    assert (refused.done, "a is primary, and answers" in refused.text) == (False, True)
    assert primaries(cluster) == ["a"]


@pytest.mark.parametrize("has_coordinator", [False, True])
def test_a_failover_replaces_a_primary_that_is_dead(has_coordinator: bool) -> None:
    cluster = three(has_coordinator=has_coordinator)
    cluster.kill("a")
    assert cluster.promote("c", failover=True).done


def test_a_primary_that_answers_and_confirms_is_left_alone_though_whoever_has_its_record_does_not_hear_it() -> None:
    cluster = three(has_coordinator=True)

    refused = cluster.promote("c", failover=True, predecessor="a")

    assert (refused.done, "this broker leads, and confirms what comes" in refused.text) == (False, True)
    assert primaries(cluster) == ["a"]


def test_a_primary_that_cannot_have_its_in_sync_set_recorded_hands_over_to_one_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has lost a backup, and confirms nothing as long as it cannot reach whoever has the record."""
    cluster = three(has_coordinator=True)
    before = cluster["a"].member.position.generation
    monkeypatch.setattr(cluster["a"], "write_record", lambda number, expected, wanted: None)
    cluster.kill("b")
    cluster.run()

    assert cluster.promote("c", failover=True, predecessor="a").done
    cluster.settle()

    assert primaries(cluster) == ["c"]
    assert "handed over to c" in " ".join(cluster["a"].reasons)
    assert cluster["c"].member.position.generation == before + 1
    assert "a" in cluster["c"].member.status.members, "who hands over stays in sync"


def test_a_silent_primary_of_an_older_generation_than_the_record_steps_down_though_it_confirms() -> None:
    """It slept while another one was recorded, which has died since; what it confirms its next backup takes back."""
    cluster = three(has_coordinator=True)
    record = cluster.record
    assert record is not None
    cluster.record = record._replace(generation=record.generation + 1, primary="b", claimed=True)

    assert cluster.promote("c", failover=True, predecessor="b").done
    assert primaries(cluster) == ["c"]


def test_a_failover_from_a_primary_that_may_live_goes_on_without_it_if_it_does_not_answer() -> None:
    cluster = three(has_coordinator=True)
    cluster["a"].paused = True

    assert cluster.promote("c", failover=True, predecessor="a").done


def test_who_cannot_ask_a_primary_that_may_live_leaves_it_to_one_that_follows_it() -> None:
    cluster = three(has_coordinator=True)
    cluster.cut("a", "c")
    cluster.wait(4)
    assert (cluster["c"].state, cluster["b"].state) == (State.CONNECTING, State.READY)

    refused = cluster.promote("c", failover=True, predecessor="a")
    assert (refused.done, "b still follows a" in refused.text) == (False, True)
    assert primaries(cluster) == ["a"]

    assert not cluster.promote("b", failover=True, predecessor="a").done, "it confirms with b"
    assert cluster.promote("c", failover=True).done, "it is not minded any more"


def test_a_failover_from_a_primary_that_may_live_leaves_its_successor_alone() -> None:
    """The order was on its way for long: somebody else leads by now, and whoever gave it hears that one."""
    cluster = three(has_coordinator=True)
    assert cluster.promote("b").done
    cluster.settle()

    refused = cluster.promote("c", failover=True, predecessor="a")

    assert (refused.done, "b is primary, and answers" in refused.text) == (False, True)
    assert primaries(cluster) == ["b"]


def test_a_failover_in_the_midst_of_a_switchover_leaves_it_to_the_one_that_takes_over() -> None:
    """The old primary has handed over, and the new one waits for the coordinator: nobody is primary at that moment."""
    cluster = three(has_coordinator=True)
    cluster.record_answers = deque()
    cluster["a"].feed(fx.SwitchoverAsked(1, "b"))
    cluster.run()
    assert primaries(cluster) == []
    refused = cluster.promote("c", failover=True)
    assert (refused.done, "b takes over" in refused.text) == (False, True)
    cluster.let_record_answers_come()
    assert primaries(cluster) == ["b"]


def test_a_failover_deposes_a_primary_that_slept_while_the_record_went_on() -> None:
    """It answers, but is of an older generation than its successor, which is dead by now."""
    cluster = three(has_coordinator=True)
    cluster["a"].paused = True
    cluster.cut("a", "b", "c")
    cluster.wait(3)
    assert cluster.promote("b").done
    cluster.settle()
    cluster.kill("b")
    cluster.wait(1)
    cluster.heal()
    cluster["a"].paused = False
    assert "nothing to take over" not in cluster.promote("c", failover=True).text  # it was asked to step down
    assert cluster["a"].is_in(State.CONNECTING)
    assert cluster.promote("c", failover=True).done
    cluster.settle()
    assert primaries(cluster) == ["c"]


# --- wrong input


def hello(**changed: object) -> fr.Hello:
    """A backup's first word, as a stranger may say it."""
    return fr.Hello(fr.PROTOCOL_VERSION, "x", "x-1", "", (), 0, 0, True, False, 0, True)._replace(**changed)  # type: ignore[arg-type]


def said_to(node: Node, link: int, frame: fr.Frame) -> list[fx.Effect]:
    return node.member.handle(fx.FrameReceived(link, frame), node.cluster.now_s)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"cluster": "another"}, fr.RefusalCode.OTHER_CLUSTER),
        ({"version": 99}, fr.RefusalCode.VERSION),
        ({"set": "shard-1"}, fr.RefusalCode.NO_SET),
        ({"name": "b", "instance": "not-b's"}, fr.RefusalCode.SAME_NAME),
        ({"name": "a", "instance": "not-a's"}, fr.RefusalCode.SAME_NAME),
        ({"last_lsn": 5}, fr.RefusalCode.BAD_HISTORY),
        ({"last_lsn": 5, "applied_lsn": 9, "history": (fr.GenerationEntry(1, "a", 1),)}, fr.RefusalCode.BAD_HISTORY),
        ({"last_lsn": 9, "history": (fr.GenerationEntry(1, "a", 5), fr.GenerationEntry(1, "b", 7))}, "bad-history"),
        ({"last_lsn": 9, "history": (fr.GenerationEntry(1, "a", 9), fr.GenerationEntry(2, "b", 7))}, "bad-history"),
    ],
)
def test_a_hello_that_makes_no_sense_is_refused_with_a_reason(wrong: dict[str, object], code: str) -> None:
    a = three()["a"]
    before = a.member.position, a.member.status.members
    effects = said_to(a, 999, hello(**wrong))
    (refused,) = [effect.frame for effect in effects if isinstance(effect, fx.Send)]
    assert isinstance(refused, fr.Refused)
    assert refused.code == code
    assert any(isinstance(effect, fx.Close) and effect.link == 999 for effect in effects)
    assert (a.member.position, a.member.status.members) == before


def test_a_backup_of_the_same_generation_that_began_at_another_time_has_nothing_in_common_with_it() -> None:
    """The primary's store was put back to before it, and it began that generation again."""
    for started, common in (((NOW_MS,), 3), ((0,), 3), ((), 3), ((NOW_MS - 4000,), 0)):
        a = three()["a"]
        a.declare("q")
        a.cluster.settle()
        greeting = hello(history=(fr.GenerationEntry(1, "a", 1),), last_lsn=3, applied_lsn=3, started=started)
        (frame,) = [effect.frame for effect in said_to(a, 999, greeting) if isinstance(effect, fx.Send)][:1]
        assert isinstance(frame, fr.Welcome)
        assert frame.common_lsn == common


def test_a_question_about_a_set_that_is_not_here_is_answered_with_no_and_changes_nothing() -> None:
    a = three()["a"]
    question = fr.Question(7, fr.Topic.CLAIM, "x", "x-1", "", 9, 99, "x:5672", "shard-1")
    (effect,) = [effect for effect in said_to(a, 999, question) if isinstance(effect, fx.Send)]
    assert isinstance(effect.frame, fr.Answer)
    assert (effect.frame.granted, effect.frame.text) == (False, "there is no resource set shard-1 here")
    assert (effect.frame.promised, a.is_in(State.PRIMARY)) == (1, True)


def test_a_newer_generation_of_another_set_makes_no_primary_step_down() -> None:
    a = three()["a"]
    history = (fr.GenerationEntry(1, "a", 1), fr.GenerationEntry(5, "x", 3))
    said_to(a, 999, hello(history=history, last_lsn=3, set="shard-1"))
    assert a.is_in(State.PRIMARY)


def test_a_hello_from_a_newer_generation_makes_the_primary_step_down() -> None:
    cluster = three()
    a = cluster["a"]
    history = (fr.GenerationEntry(1, "a", 1), fr.GenerationEntry(5, "x", 3))
    said_to(a, 999, hello(cluster=a.member.status.cluster, history=history, last_lsn=9, applied_lsn=9))
    assert not a.is_in(State.PRIMARY)


def backup_frames(node: Node, change: str) -> fr.Frame:
    """The next frame of the stream, spoiled."""
    lsn, generation = node.member.position.lsn, node.member.status.generation
    data = b"".join([])
    match change:
        case "older generation":
            return fr.Batch(generation - 1, lsn + 1, lsn + 1, 0, data)
        case "newer generation":
            return fr.Batch(generation + 1, lsn + 1, lsn + 1, 0, data)
        case "gap":
            return fr.Batch(generation, lsn + 2, lsn + 2, 0, data)
        case "truncated":
            return fr.Batch(generation, lsn + 1, lsn + 1, 0, bytes.fromhex("1c00000078"))
        case "empty":
            return fr.Batch(generation, lsn + 1, lsn + 1, 0, data)
    return fr.Chunk(generation, 1, 1, 2, False, (), (), b"")


@pytest.mark.parametrize("change", ["older generation", "newer generation", "gap", "truncated", "empty", "chunk"])
def test_a_stream_that_does_not_fit_is_given_up_and_the_backup_comes_back(change: str) -> None:
    cluster = three()
    cluster["a"].declare("q")
    cluster["a"].publish("q", "1")
    cluster.settle()
    b = cluster["b"]
    before = b.member.position
    link = cluster.link("b", "a")
    b.feed(fx.FrameReceived(link, backup_frames(b, change)))
    cluster.run()
    assert b.member.position == before or b.member.position.lsn > before.lsn
    assert any("the channel is given up" in text or "does not fit" in text for text in b.notices)
    cluster.settle()
    assert b.is_in(State.READY)
    assert b.bodies("q") == ["1"]


@pytest.mark.parametrize(("generation", "ahead"), [(0, 1000), (1, 0)])
def test_an_acknowledgement_that_cannot_be_ends_the_channel_and_confirms_nothing(generation: int, ahead: int) -> None:
    cluster = three()
    a = cluster["a"]
    committed = a.committed
    link = cluster.link("a", "b")
    a.feed(fx.FrameReceived(link, fr.Ack(1 + generation, a.member.position.lsn + ahead, 0)))
    cluster.run()
    assert any("sent an acknowledgement" in text for text in a.notices)
    assert a.committed >= committed
    cluster.settle()
    assert cluster["b"].is_in(State.READY)


def test_a_damaged_frame_ends_the_channel_and_nothing_else() -> None:
    cluster = three()
    b = cluster["b"]
    b.feed(fx.FrameDamaged(cluster.link("b", "a"), "checksum"))
    cluster.settle()
    assert b.is_in(State.READY)
    assert any("damaged" in text for text in b.notices)


def test_a_frame_that_nobody_asked_for_changes_nothing() -> None:
    cluster = three()
    for frame in (fr.Ack(1, 1, 0), fr.HoldingsDone(), fr.TakeOver(1), fr.Heartbeat(9, 9, 9)):
        for node in cluster.nodes.values():
            before = node.member.position, node.state
            said_to(node, 4242, frame)
            assert (node.member.position, node.state) == before


def test_a_backup_that_cannot_log_in_says_so_until_it_can() -> None:
    cluster = three()
    b, problem = cluster["b"], "cannot log in to the broker at a:5672: amqp:unauthorized-access: Authentication failed"
    for name in "ac":
        cluster[name].not_let_in.add("b")
    cluster.disconnect("a", "b")
    cluster.wait(10)
    assert (b.member.status.login_problem, b.member.status.problem) == (problem, problem)
    assert [notice.startswith(problem) for notice in b.notices].count(True) == 1
    cluster["a"].not_let_in.clear()
    cluster.settle()
    assert b.is_in(State.READY)
    assert b.member.status.login_problem == ""


def test_a_backup_for_which_there_is_no_place_says_so_until_there_is() -> None:
    cluster = three()
    b, problem = cluster["b"], "there is no place for this one at the broker at a:5672: amqp:resource-limit-exceeded"
    for name in "ac":
        cluster[name].has_no_place_for.add("b")
    cluster.disconnect("a", "b")
    cluster.wait(10)
    assert b.member.status.problem.startswith(problem)
    assert [notice.startswith(problem) for notice in b.notices].count(True) == 1
    assert not any("password" in notice for notice in b.notices)
    cluster["a"].has_no_place_for.clear()
    cluster.settle()
    assert b.is_in(State.READY)
    assert b.member.status.problem == ""


def test_a_login_that_was_refused_is_not_told_of_any_more_when_nobody_listens_there() -> None:
    cluster = three()
    cluster["a"].not_let_in.add("b")
    cluster.disconnect("a", "b")
    cluster.wait(10)
    cluster.kill("a")
    cluster.wait(10)
    assert cluster["b"].member.status.login_problem == ""


def test_a_primary_that_is_demoted_says_by_whom() -> None:
    cluster = three()
    cluster["a"].feed(fx.DemoteAsked(1, "demoted by ann on node1"))
    cluster.settle()
    assert "demoted by ann on node1" in cluster["a"].reasons
    assert "demoted by ann on node1: clients are sent away" in cluster["a"].notices


@pytest.mark.parametrize(
    ("to", "said"), [("a", "a is the primary already"), ("bb", "there is no backup bb: no such broker")]
)
def test_a_switchover_that_cannot_be_says_why(to: str, said: str) -> None:
    cluster = three()
    answer = cluster.switch_over("a", to)
    assert (answer.done, said in answer.text, "ready: b, c" in answer.text) == (False, True, True)


def test_a_primary_that_hands_over_says_to_whom_and_who_wanted_it() -> None:
    cluster = three()
    cluster["a"].feed(fx.SwitchoverAsked(1, "b", "a switchover by ann on node1"))
    cluster.settle()
    assert "handed over to b: a switchover by ann on node1" in cluster["a"].reasons
    assert cluster.promote("c").done
    assert "handed over to c" in cluster["b"].reasons
