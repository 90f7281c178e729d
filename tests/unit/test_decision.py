"""The agent's table: first its story, row by row, then what must hold in every situation there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from qpid_ha_agent.decision import Action, Disowned, Known, Limits, LockView, OperatorOrders, Unwritable, decide
from qpid_ha_broker.ha.states import State

LIMITS = Limits()
STARTED = Known()
READY = Known(state=State.READY, has_data=True)
ORPHANED = Known(state=State.CONNECTING, has_data=True)
NEW = Known(state=State.CONNECTING)
CATCHUP = Known(state=State.CATCHUP, has_data=True)
PRIMARY = Known(state=State.PRIMARY, has_data=True, lock=LockView.HELD)
LOADING = Known(state=State.LOADING)
DEAD = Known(alive=False, deaths=1)
PAUSE = "paused by root on node1"
RESTART = OperatorOrders(restart="a restart by root on node1")
REQUESTS = (Action.PROMOTE, Action.DEMOTE, Action.HAND_OVER, Action.FAIL_BACK, Action.MAKE_WAY)


def held(known: Known, **more: object) -> Known:
    return replace(known, lock=LockView.HELD, **more)  # type: ignore[arg-type]


def waiting(known: Known, **more: object) -> Known:
    return replace(known, lock=LockView.WAITING, **more)  # type: ignore[arg-type]


STORY = {
    "the first start is at once": (Known(alive=False), Action.START_BROKER),
    "it is left alone while it starts": (STARTED, Action.WAIT),
    "a start that never ends is ended": (replace(STARTED, silent_s=120.0), Action.KILL_BROKER),
    "one that loads its store is left alone, however long": (replace(LOADING, silent_s=14.0), Action.WAIT),
    "and stands in nobody's way": (held(LOADING), Action.RELEASE_LOCK),
    "nor in the queue": (waiting(LOADING), Action.RELEASE_LOCK),
    "and may be stopped": (replace(LOADING, stopping=True), Action.STOP_BROKER),
    "a new broker tries the lock": (NEW, Action.TRY_LOCK),
    "but not all the time": (replace(NEW, pause_s=0.1), Action.WAIT),
    "with the lock it is promoted": (held(NEW), Action.PROMOTE),
    "once": (held(NEW, is_asked=True), Action.WAIT),
    "refused, it lets others try": (held(NEW, refusal="not all peers answer"), Action.RELEASE_LOCK),
    "a new broker queues for nothing": (waiting(NEW), Action.RELEASE_LOCK),
    "the primary serves": (PRIMARY, Action.WAIT),
    "a backup in catch-up wants no lock": (CATCHUP, Action.WAIT),
    "nor keeps it": (held(CATCHUP), Action.RELEASE_LOCK),
    "nor waits for it": (waiting(CATCHUP), Action.RELEASE_LOCK),
    "a ready one gets into the queue": (READY, Action.ACQUIRE_LOCK),
    "and waits": (waiting(READY), Action.WAIT),
    "having the lock, it looks whether the primary is gone": (held(READY), Action.WAIT),
    "and if so, it is promoted": (held(ORPHANED), Action.PROMOTE),
    "and if not, the primary's agent has it": (held(READY, held_for_s=0.3), Action.RELEASE_LOCK),
    "without a primary it waits for the lock all the same": (ORPHANED, Action.ACQUIRE_LOCK),
    "a refused one makes a pause": (replace(ORPHANED, pause_s=0.1), Action.WAIT),
    "a dead broker's lock is free before anything else": (held(DEAD), Action.RELEASE_LOCK),
    "and so is a place in the queue": (waiting(DEAD), Action.RELEASE_LOCK),
    "then it is started again": (replace(DEAD, dead_for_s=0.5), Action.START_BROKER),
    "not before the others took over": (replace(DEAD, dead_for_s=0.4), Action.WAIT),
    "and less and less eagerly": (replace(DEAD, deaths=4, dead_for_s=3.9), Action.WAIT),
    "but never later than that": (replace(DEAD, deaths=99, dead_for_s=10.0), Action.START_BROKER),
    "after a shutdown of the cluster it stays down": (
        replace(DEAD, ordered=OperatorOrders(shut_down=True), dead_for_s=60.0),
        Action.EXIT,
    ),
    "but the lock is let go first": (held(DEAD, ordered=OperatorOrders(shut_down=True)), Action.RELEASE_LOCK),
    "a silent primary is given a second": (replace(PRIMARY, silent_s=1.1), Action.WAIT),
    "and is killed": (replace(PRIMARY, silent_s=1.2), Action.KILL_BROKER),
    "one that works is given more": (replace(PRIMARY, silent_s=4.9, is_working=True), Action.WAIT),
    "and not for ever": (replace(PRIMARY, silent_s=5.0, is_working=True), Action.KILL_BROKER),
    "so is one that we found and that says nothing": (replace(STARTED, adopted=True, silent_s=1.2), Action.KILL_BROKER),
    "a silent backup does no harm": (replace(READY, silent_s=14.9), Action.ACQUIRE_LOCK),
    "but no good either": (replace(READY, silent_s=15.0), Action.KILL_BROKER),
    "a promotion may take a while": (held(ORPHANED, silent_s=4.9, is_asked=True), Action.WAIT),
    "but not for ever": (held(ORPHANED, silent_s=5.0, is_asked=True), Action.KILL_BROKER),
    "a primary that loses the lock forgets it": (replace(PRIMARY, lock=LockView.LOST), Action.RELEASE_LOCK),
    "as any other one": (replace(READY, lock=LockView.LOST), Action.RELEASE_LOCK),
    "a primary made by hand gets the lock": (replace(PRIMARY, lock=LockView.NONE), Action.ACQUIRE_LOCK),
    "but does not ask for it all the time": (replace(PRIMARY, lock=LockView.NONE, pause_s=0.1), Action.WAIT),
    "however long that takes": (waiting(PRIMARY, lease_silent_s=600.0), Action.WAIT),
    "whom the record has replaced finds out": (replace(PRIMARY, disowned=Disowned(0.9)), Action.WAIT),
    "or is told, whatever lock it has": (replace(PRIMARY, disowned=Disowned(1.0)), Action.DEMOTE),
    "and must obey": (waiting(PRIMARY, disowned=Disowned(10.0)), Action.KILL_BROKER),
    "a primary without the record goes on": (replace(PRIMARY, recordless_s=4.9), Action.WAIT),
    "then somebody with it shall lead": (replace(PRIMARY, recordless_s=5.0), Action.HAND_OVER),
    "if there is one": (replace(PRIMARY, recordless_s=5.0, hand_over_tried=True), Action.WAIT),
    "a lock that is not renewed is waited for": (waiting(ORPHANED, lease_silent_s=2.9), Action.WAIT),
    "but no longer than that": (waiting(ORPHANED, lease_silent_s=3.0), Action.PROMOTE),
    "with a pause after a refusal": (waiting(ORPHANED, lease_silent_s=3.0, pause_s=0.1), Action.WAIT),
    "nor by somebody new": (replace(NEW, lease_silent_s=3.0), Action.PROMOTE),
    "while the primary serves, its agent may hang": (waiting(READY, lease_silent_s=600.0), Action.WAIT),
    "a promotion without the lock must end, too": (
        waiting(ORPHANED, lease_silent_s=9.0, silent_s=5.0, is_asked=True),
        Action.KILL_BROKER,
    ),
    "after a demotion the others find the new primary first": (held(ORPHANED, demoted_for_s=0.9), Action.WAIT),
    "then its agent has the lock": (held(READY, demoted_for_s=0.1), Action.RELEASE_LOCK),
    "or whoever wants it": (held(ORPHANED, demoted_for_s=1.0), Action.RELEASE_LOCK),
    "a stopping agent hands over": (replace(PRIMARY, stopping=True), Action.HAND_OVER),
    "waits for the outcome": (replace(PRIMARY, stopping=True, is_asked=True), Action.WAIT),
    "waits for the others": (held(ORPHANED, demoted_for_s=0.1, stopping=True, hand_over_tried=True), Action.WAIT),
    "lets the lock go": (held(READY, demoted_for_s=0.1, stopping=True, hand_over_tried=True), Action.RELEASE_LOCK),
    "and stops its broker": (replace(READY, stopping=True, hand_over_tried=True), Action.STOP_BROKER),
    "also when nobody would take over": (replace(PRIMARY, stopping=True, hand_over_tried=True), Action.STOP_BROKER),
    "which may be silent then": (replace(PRIMARY, stopping=True, stop_asked_s=5.0, silent_s=5.0), Action.WAIT),
    "but must end": (replace(PRIMARY, stopping=True, stop_asked_s=20.0), Action.KILL_BROKER),
    "and the lock goes last": (held(DEAD, stopping=True), Action.RELEASE_LOCK),
    "that is all": (replace(DEAD, stopping=True), Action.EXIT),
    "a preferred backup gets the place": (replace(PRIMARY, failback_to="b"), Action.FAIL_BACK),
    "it is asked once": (replace(PRIMARY, failback_to="b", is_asked=True), Action.WAIT),
    "not in the moment after an attempt": (replace(PRIMARY, failback_to="b", hand_over_tried=True), Action.WAIT),
    "not without the coordinator": (replace(PRIMARY, failback_to="b", recordless_s=0.1), Action.WAIT),
    "not before the lock is where it belongs": (waiting(PRIMARY, failback_to="b"), Action.WAIT),
    "nor from one whom the record has replaced": (
        replace(PRIMARY, failback_to="b", disowned=Disowned(1.0)),
        Action.DEMOTE,
    ),
    "a store that takes nothing may have a moment": (replace(PRIMARY, unwritable=Unwritable(1.9)), Action.WAIT),
    "a primary that cannot write makes way for one that can": (
        replace(PRIMARY, unwritable=Unwritable(2.0)),
        Action.MAKE_WAY,
    ),
    "if one is in sync": (replace(PRIMARY, unwritable=Unwritable(9.0, is_alone=True)), Action.WAIT),
    "and would": (replace(PRIMARY, unwritable=Unwritable(2.0), hand_over_tried=True), Action.WAIT),
    "whatever lock it has": (waiting(PRIMARY, unwritable=Unwritable(2.0)), Action.MAKE_WAY),
    "asked once": (replace(PRIMARY, unwritable=Unwritable(2.0), is_asked=True), Action.WAIT),
    "not while the coordinator is away": (replace(PRIMARY, unwritable=Unwritable(2.0), recordless_s=0.1), Action.WAIT),
    "nor while nobody is to be moved": (replace(PRIMARY, unwritable=Unwritable(2.0), paused=PAUSE), Action.WAIT),
    "nor if the record names another one": (
        replace(PRIMARY, unwritable=Unwritable(2.0), disowned=Disowned(1.0)),
        Action.DEMOTE,
    ),
    "it comes before a preference": (replace(PRIMARY, unwritable=Unwritable(2.0), failback_to="b"), Action.MAKE_WAY),
    "who cannot write gets out of the queue": (waiting(ORPHANED, unwritable=Unwritable(0.1)), Action.RELEASE_LOCK),
    "wants no lock": (replace(ORPHANED, unwritable=Unwritable(0.1)), Action.WAIT),
    "and is not promoted with it": (held(ORPHANED, unwritable=Unwritable(0.1)), Action.RELEASE_LOCK),
    "nor beside one whose agent hangs": (
        replace(ORPHANED, unwritable=Unwritable(0.1), lease_silent_s=3.0),
        Action.WAIT,
    ),
    "nor as a new cluster, if it has no room": (replace(NEW, unwritable=Unwritable(0.1)), Action.WAIT),
    "with the lock it waits for the new primary first": (
        held(ORPHANED, unwritable=Unwritable(9.0), demoted_for_s=0.1),
        Action.WAIT,
    ),
    "an operator wants it to begin anew: the primary hands over first": (
        replace(PRIMARY, ordered=RESTART),
        Action.HAND_OVER,
    ),
    "which it is asked for once": (replace(PRIMARY, ordered=RESTART, is_asked=True), Action.WAIT),
    "and the others shall see their new primary before it goes": (
        held(ORPHANED, ordered=RESTART, demoted_for_s=0.5),
        Action.WAIT,
    ),
    "who is in sync there, and waited for until it is": (
        held(CATCHUP, ordered=RESTART, demoted_for_s=1.9),
        Action.WAIT,
    ),
    "for two seconds at most": (held(CATCHUP, ordered=RESTART, demoted_for_s=2.0), Action.STOP_AGENT),
    "nor does who stops for good leave its publishers waiting": (
        held(CATCHUP, stopping=True, hand_over_tried=True, demoted_for_s=0.1),
        Action.WAIT,
    ),
    "longer than that": (
        held(CATCHUP, stopping=True, hand_over_tried=True, demoted_for_s=2.0),
        Action.RELEASE_LOCK,
    ),
    "then it stops": (replace(READY, ordered=RESTART), Action.STOP_AGENT),
    "as does whoever observes": (Known(state=State.OBSERVER, ordered=RESTART), Action.STOP_AGENT),
    "in a pause, too, if that came later": (replace(READY, ordered=RESTART, paused=PAUSE), Action.STOP_AGENT),
    "or died meanwhile": (replace(DEAD, ordered=RESTART), Action.STOP_AGENT),
    "whose lock goes first": (held(DEAD, ordered=RESTART), Action.RELEASE_LOCK),
    "from there on it is a stop like any other": (
        replace(READY, ordered=RESTART, stopping=True),
        Action.STOP_BROKER,
    ),
    "a silent primary is killed, whoever wants it to begin anew": (
        replace(PRIMARY, ordered=RESTART, silent_s=1.2),
        Action.KILL_BROKER,
    ),
    "in a pause the primary serves": (replace(PRIMARY, paused=PAUSE), Action.WAIT),
    "and stays, preferred or not": (replace(PRIMARY, paused=PAUSE, failback_to="b"), Action.WAIT),
    "silent or not": (replace(PRIMARY, paused=PAUSE, silent_s=600.0), Action.WAIT),
    "recorded or not": (replace(PRIMARY, paused=PAUSE, disowned=Disowned(10.0)), Action.WAIT),
    "while somebody works on the coordinator": (
        replace(PRIMARY, paused=PAUSE, recordless_s=600.0),
        Action.WAIT,
    ),
    "the lock follows one that an operator made": (
        replace(PRIMARY, paused=PAUSE, lock=LockView.NONE),
        Action.ACQUIRE_LOCK,
    ),
    "in a pause nobody queues": (replace(READY, paused=PAUSE), Action.WAIT),
    "nor stays in the queue": (waiting(READY, paused=PAUSE), Action.RELEASE_LOCK),
    "nobody is promoted": (held(ORPHANED, paused=PAUSE), Action.RELEASE_LOCK),
    "nor as a new cluster": (replace(NEW, paused=PAUSE), Action.WAIT),
    "nor beside an agent that hangs": (replace(ORPHANED, paused=PAUSE, lease_silent_s=9.0), Action.WAIT),
    "no silent backup is killed": (replace(READY, paused=PAUSE, silent_s=600.0), Action.WAIT),
    "no start that never ends": (replace(STARTED, paused=PAUSE, silent_s=600.0), Action.WAIT),
    "no dead broker is started": (replace(DEAD, paused=PAUSE, dead_for_s=60.0), Action.WAIT),
    "but its lock is free": (held(DEAD, paused=PAUSE), Action.RELEASE_LOCK),
    "who starts an agent starts its broker": (Known(alive=False, paused=PAUSE), Action.START_BROKER),
    "who stops one has it hand over": (replace(PRIMARY, paused=PAUSE, stopping=True), Action.HAND_OVER),
    "and stops its broker, silent or not": (
        replace(READY, paused=PAUSE, stopping=True, silent_s=60.0),
        Action.STOP_BROKER,
    ),
    "which must end, too": (
        replace(READY, paused=PAUSE, stopping=True, stop_asked_s=20.0),
        Action.KILL_BROKER,
    ),
    "an agent that has not asked for a pause promotes nobody": (replace(ORPHANED, is_informed=False), Action.WAIT),
    "not even at a first start": (replace(NEW, is_informed=False), Action.WAIT),
    "nor with the lock that it had before it slept": (held(ORPHANED, is_informed=False), Action.WAIT),
    "a broker without a cluster is kept running": (Known(state=State.STANDALONE), Action.WAIT),
    "a broker that somebody stops is left to it": (Known(state=State.STOPPING), Action.WAIT),
    "and lets others have the lock": (held(Known(state=State.STOPPING)), Action.RELEASE_LOCK),
}


@pytest.mark.parametrize("title", STORY)
def test_the_story(title: str) -> None:
    known, action = STORY[title]
    decision = decide(known)
    assert decision.action is action, decision.why
    assert decision.why


WITHOUT_COORDINATOR = {
    "for a short time it serves": (replace(PRIMARY, recordless_s=4.9), Action.WAIT),
    "then it is demoted": (replace(PRIMARY, recordless_s=5.0), Action.DEMOTE),
    "whatever became of its lock": (replace(PRIMARY, lock=LockView.LOST, recordless_s=9.0, pause_s=4.0), Action.DEMOTE),
    "once": (replace(PRIMARY, recordless_s=5.0, is_asked=True), Action.WAIT),
    "and waits to be promoted": (replace(ORPHANED, recordless_s=9.0), Action.ACQUIRE_LOCK),
    "but not while somebody works on the coordinator": (replace(PRIMARY, paused=PAUSE, recordless_s=9.0), Action.WAIT),
}


@pytest.mark.parametrize("title", WITHOUT_COORDINATOR)
def test_the_story_where_nobody_shall_serve_without_the_coordinator(title: str) -> None:
    known, action = WITHOUT_COORDINATOR[title]
    decision = decide(known, Limits(serves_recordless=False))
    assert decision.action is action, decision.why


def changed(known: Known, **fields: Any) -> Known:
    """As `dataclasses.replace`, which looks at each field and takes two thirds of the time that all situations take."""
    return Known(**{**vars(known), **fields})


def every_situation() -> Iterator[Known]:
    """The whole product, with durations on both sides of each limit."""
    for values in itertools.product(
        (None, *State), LockView, (False, True), (False, True), (False, True), (0.0, 1.2, 5.0, 15.0, 120.0)
    ):
        state, lock, has_data, asked, adopted, silent_s = values
        base = Known(state=state, lock=lock, has_data=has_data, is_asked=asked, adopted=adopted, silent_s=silent_s)
        for refusal, demoted, pause in itertools.product((None, "no"), (None, 0.0, 1.0), (0.0, 0.1)):
            known = changed(base, refusal=refusal, demoted_for_s=demoted, pause_s=pause)
            yield known
            yield changed(known, is_working=True)
            yield changed(known, held_for_s=9.0, disowned=Disowned(1.0))
            yield changed(known, disowned=Disowned(10.0))
            yield changed(known, lease_silent_s=3.0)
            yield changed(known, recordless_s=5.0)
            yield changed(known, failback_to="b")
            yield changed(known, unwritable=Unwritable(2.0))
            yield changed(known, unwritable=Unwritable(2.0), lease_silent_s=3.0, failback_to="b", hand_over_tried=True)
            yield changed(known, is_informed=False, lease_silent_s=3.0)
            yield changed(
                known, paused=PAUSE, failback_to="b", lease_silent_s=3.0, disowned=Disowned(10.0), recordless_s=5.0
            )
            yield changed(known, paused=PAUSE, alive=False, deaths=1, dead_for_s=10.0)
            yield changed(known, paused=PAUSE, stopping=True)
            for is_alive, paused, stopping in itertools.product((False, True), ("", PAUSE), (False, True)):
                yield changed(known, ordered=RESTART, alive=is_alive, paused=paused, stopping=stopping)
            yield changed(known, alive=False)
            yield changed(known, alive=False, deaths=1, dead_for_s=10.0)
            for tried, stop_asked_s in itertools.product((False, True), (None, 0.0, 20.0)):
                yield changed(known, stopping=True, hand_over_tried=tried, stop_asked_s=stop_asked_s)
            yield changed(known, stopping=True, alive=False)


def broken_promises(known: Known) -> Iterator[str]:
    """What must never be, whatever the tables say."""
    action = decide(known).action
    if not known.alive and known.lock is not LockView.NONE and action is not Action.RELEASE_LOCK:
        yield "the lock of a dead broker is let go before anything else"
    if action is Action.START_BROKER and (known.alive or known.stopping):
        yield "one broker, and none when stopping"
    by_itself = (*REQUESTS, Action.START_BROKER, Action.STOP_BROKER, Action.KILL_BROKER)
    if known.paused and not known.stopping and not known.ordered.restart and action in by_itself:
        yield "in a pause an agent leaves its broker alone"
    if action is Action.STOP_AGENT and known.alive and known.state is State.PRIMARY:
        yield "no primary is stopped for a restart"
    if action in (Action.STOP_BROKER, Action.STOP_AGENT) and not (known.stopping or known.ordered.restart):
        yield "who is stopped was meant to be"
    if action in REQUESTS and (known.is_asked or not known.alive):
        yield "one request at a time, and to a living broker"
    has_right = known.lock is LockView.HELD and not known.refusal
    has_waited = known.lock is not LockView.HELD and known.lease_silent_s >= LIMITS.lease_s and not known.pause_s
    if action is Action.PROMOTE and (known.stopping or not (has_right or has_waited)):
        yield "who has the lock promotes, once per lock; without, only beside one who hangs with it"
    is_ours = not known.disowned.for_s and not known.recordless_s and not known.silent_s and not known.stopping
    if known.alive and known.state is State.PRIMARY and is_ours and action in (Action.DEMOTE, Action.KILL_BROKER):
        yield "a primary that the record names stays it, whoever has the lock"
    if action is Action.PROMOTE and known.state is not State.CONNECTING:
        yield "no promotion while there is a primary, nor of half a copy"
    if action in (Action.TRY_LOCK, Action.ACQUIRE_LOCK) and known.lock is not LockView.NONE:
        yield "who has or awaits the lock does not ask for it again"
    if action in REQUESTS and action is not Action.PROMOTE and known.state is not State.PRIMARY:
        yield "only a primary can be demoted"
    if action in (Action.FAIL_BACK, Action.MAKE_WAY) and (known.hand_over_tried or known.recordless_s):
        yield "no second attempt at once, nor one that nobody can record"
    wants_to_lead = action in (Action.TRY_LOCK, Action.ACQUIRE_LOCK, Action.PROMOTE)
    if wants_to_lead and known.unwritable.for_s and known.state is not State.PRIMARY:
        yield "who cannot write is no candidate"
    keeps = known.lock is not LockView.LOST or known.stopping
    if action is Action.RELEASE_LOCK and known.alive and known.state is State.PRIMARY and keeps:
        yield "a living primary keeps its lock"
    if action is Action.RELEASE_LOCK and known.lock is LockView.NONE:
        yield "there must be something to let go"
    if action is Action.EXIT and (known.alive or not known.stopping or known.lock is not LockView.NONE):
        yield "nothing is left behind"
    is_silent = known.silent_s >= LIMITS.silence_s(known.is_working)
    silent_primary = known.alive and known.state is State.PRIMARY and is_silent
    if silent_primary and known.stop_asked_s is None and not known.paused and action is not Action.KILL_BROKER:
        yield "a silent primary is fenced"


def test_the_promises_hold_in_every_situation() -> None:
    situations = 0
    for known in every_situation():
        situations += 1
        assert list(broken_promises(known)) == [], known
    assert situations > 50_000


def test_the_pauses_between_starts_grow_to_a_limit() -> None:
    assert [LIMITS.restart_after_s(deaths) for deaths in range(8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
