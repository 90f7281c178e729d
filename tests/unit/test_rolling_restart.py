"""Whose turn it is in a rolling restart: each row of the table, the order, and what must hold in every situation."""

from __future__ import annotations

import itertools

import pytest

from qpid_ha_agent.rolling_restart import (
    Awaited,
    BrokerFacts,
    ClusterFacts,
    Plan,
    RestartStep,
    SetFacts,
    StepKind,
    brokers_left,
    next_step,
)
from qpid_ha_broker.ha.states import State

NEW, OLD = "2.0", "1.0"
ALL = frozenset({"n1", "n2", "n3"})


def broker(name: str, state: State | None = State.READY, version: str = OLD, uptime_s: float = 900.0) -> BrokerFacts:
    return BrokerFacts(name, f"amqp://{name}", state, version, uptime_s)


def cluster(*states: State | None, **facts: object) -> ClusterFacts:
    """n1 is the primary, and n2 and n3 are ready, unless `states` has something else for them, in this order."""
    given = states or (State.PRIMARY, State.READY, State.READY)
    brokers = tuple(broker(f"n{number}", state) for number, state in enumerate(given, 1))
    members = frozenset(each.name for each in brokers if each.state in (State.PRIMARY, State.READY))
    return ClusterFacts(brokers, members)._replace(**facts)  # type: ignore[arg-type]


WELL = cluster()
PRIMARY, READY, CATCHUP = State.PRIMARY, State.READY, State.CATCHUP
AFTER_N2 = Plan(done=frozenset({"n2"}), awaited=Awaited("n2", 5.0, is_agent_back=True))


def with_n2(state: State | None, uptime_s: float = 3.0, **facts: object) -> ClusterFacts:
    n1, _, n3 = WELL.brokers
    return WELL._replace(brokers=(n1, broker("n2", state, uptime_s=uptime_s), n3))._replace(**facts)  # type: ignore[arg-type]


def with_sets(*sets: SetFacts) -> ClusterFacts:
    return WELL._replace(sets=sets)


ORDERS = SetFacts("orders", "n2", ALL)
ALL_OF_THEM = Plan()
FORCED = Plan(is_forced=True)

STORY: dict[str, tuple[ClusterFacts, Plan, StepKind, str]] = {
    "a backup is the first": (WELL, Plan(), StepKind.RESTART, "n2"),
    "who is away after its restart is waited for": (with_n2(None), AFTER_N2, StepKind.WAIT, "n2 is away"),
    "also if nobody knows of it": (
        WELL._replace(brokers=(WELL.brokers[0], WELL.brokers[2])),
        AFTER_N2,
        StepKind.WAIT,
        "n2 is away",
    ),
    "and who has yet to stop": (
        with_n2(READY, 900.0),
        Plan(done=frozenset({"n2"}), awaited=Awaited("n2", 5.0)),
        StepKind.WAIT,
        "n2 is ready, and about to stop",
    ),
    "and who catches up": (with_n2(CATCHUP), AFTER_N2, StepKind.WAIT, "n2 is catchup"),
    "and whose agent has not said that it is back": (
        with_n2(READY),
        Plan(done=frozenset({"n2"}), awaited=Awaited("n2", 5.0)),
        StepKind.WAIT,
        "its agent is not back",
    ),
    "an agent that is back with the same broker has not restarted it": (
        with_n2(READY, 900.0),
        AFTER_N2,
        StepKind.REFUSE,
        "n2 was not restarted",
    ),
    "then it is the next one's turn": (with_n2(READY), AFTER_N2, StepKind.RESTART, "n3"),
    "who observes is back as well": (with_n2(State.OBSERVER), AFTER_N2, StepKind.RESTART, "n3"),
    "a name that nobody has": (WELL, Plan(("n9",)), StepKind.REFUSE, "there is no broker n9"),
    "the last one was restarted, and a set lacks it yet": (
        with_sets(ORDERS._replace(lacks="n2 is catchup")),
        Plan(("n2",), done=frozenset({"n2"})),
        StepKind.WAIT,
        "orders: n2 is catchup",
    ),
    "the last one was restarted, and all is well": (WELL, Plan(("n2",), done=frozenset({"n2"})), StepKind.DONE, ""),
    "an upgrade of nobody": (cluster(None, READY), Plan(("n2",), OLD), StepKind.DONE, ""),
    "paused": (WELL._replace(paused="paused by root"), FORCED, StepKind.REFUSE, "paused by root"),
    "somebody else is at it": (WELL._replace(under_way="a restart of n1"), FORCED, StepKind.REFUSE, "a restart of n1"),
    "nobody is primary": (cluster(READY, READY, READY), FORCED, StepKind.REFUSE, "nobody is primary"),
    "nobody is primary for a moment": (
        with_n2(READY)._replace(brokers=(broker("n1"), broker("n2", uptime_s=3.0), broker("n3"))),
        AFTER_N2,
        StepKind.WAIT,
        "nobody is primary",
    ),
    "two are": (cluster(PRIMARY, PRIMARY, READY), FORCED, StepKind.REFUSE, "n1 and n2 both say"),
    "whose turn it is does not answer": (cluster(PRIMARY, None, READY), FORCED, StepKind.REFUSE, "n2 does not answer"),
    "another one does not answer": (cluster(PRIMARY, READY, None), Plan(), StepKind.REFUSE, "n3 does not answer"),
    "another one does not answer, by force": (cluster(PRIMARY, READY, None), FORCED, StepKind.RESTART, "n2"),
    "another one is away since": (
        ClusterFacts((broker("n1", PRIMARY), broker("n2", uptime_s=3.0), broker("n3", None)), frozenset({"n1", "n2"})),
        Plan(("n2", "n1"), done=frozenset({"n2"}), awaited=AFTER_N2.awaited),
        StepKind.WAIT,
        "n3 does not answer",
    ),
    "another one catches up": (cluster(PRIMARY, READY, CATCHUP), Plan(), StepKind.WAIT, "n3 is catchup"),
    "another one catches up, by force": (cluster(PRIMARY, READY, CATCHUP), FORCED, StepKind.RESTART, "n2"),
    "the sets are not known": (WELL._replace(sets_problem="no answer"), FORCED, StepKind.WAIT, "no answer"),
    "a set is not whole": (
        with_sets(ORDERS._replace(lacks="no primary")),
        Plan(),
        StepKind.WAIT,
        "1 of 1 sets are not whole (orders: no primary)",
    ),
    "it alone holds what is confirmed": (
        cluster(PRIMARY, READY, READY, members=frozenset({"n1"})),
        Plan(("n1",), is_forced=True),
        StepKind.REFUSE,
        "n1 alone holds what is confirmed in default",
    ),
    "it alone holds a set": (
        with_sets(ORDERS._replace(in_sync=frozenset({"n2"}))),
        Plan(("n2",), is_forced=True),
        StepKind.REFUSE,
        "n2 alone holds what is confirmed in orders",
    ),
    "the others of a set are away": (
        cluster(PRIMARY, READY, None, sets=(ORDERS._replace(in_sync=frozenset({"n2", "n3"})),)),
        Plan(("n2",), is_forced=True),
        StepKind.REFUSE,
        "n2 alone holds what is confirmed in orders",
    ),
    "nobody could take over": (
        cluster(PRIMARY, State.OBSERVER, CATCHUP, members=ALL),
        Plan(("n1",), is_forced=True),
        StepKind.REFUSE,
        "n1 is primary, and nobody",
    ),
    "too few would be left": (WELL._replace(min_in_sync=3), Plan(), StepKind.REFUSE, "only 2 of ha.min-in-sync=3"),
    "too few would be left, by force": (WELL._replace(min_in_sync=3), FORCED, StepKind.RESTART, "n2"),
    "too few would be left of a set": (
        with_sets(ORDERS._replace(min_in_sync=3)),
        Plan(("n3",)),
        StepKind.REFUSE,
        "in orders",
    ),
    "who observes is needed by nobody": (
        cluster(PRIMARY, READY, State.OBSERVER, min_in_sync=2),
        Plan(("n3",)),
        StepKind.RESTART,
        "n3",
    ),
}


@pytest.mark.parametrize("title", STORY)
def test_each_row_of_the_table(title: str) -> None:
    facts, plan, kind, text = STORY[title]
    step = next_step(facts, plan)
    assert step.kind is kind, step
    assert text in (step.node if kind is StepKind.RESTART else step.why)
    assert step.advice or kind is not StepKind.REFUSE


def order(facts: ClusterFacts, plan: Plan = ALL_OF_THEM) -> list[str]:
    return [each.name for each in brokers_left(facts, plan)]


def test_the_primary_is_the_last_and_who_leads_sets_comes_after_who_leads_none() -> None:
    assert order(WELL) == ["n2", "n3", "n1"]
    assert order(with_sets(ORDERS)) == ["n3", "n2", "n1"]
    assert order(WELL, Plan(("n1", "n3"))) == ["n3", "n1"]


def test_an_upgrade_leaves_those_alone_that_run_the_version_and_a_restart_those_that_it_has_restarted() -> None:
    n1, n2, n3 = WELL.brokers
    assert order(WELL._replace(brokers=(n1, n2._replace(version=NEW), n3)), Plan(version=NEW)) == ["n3", "n1"]
    assert order(WELL, Plan(done=frozenset({"n3"}))) == ["n2", "n1"]


def broken_promises(facts: ClusterFacts, step: RestartStep) -> list[str]:
    if step.kind is not StepKind.RESTART:
        return []
    broken = []
    node = facts.broker(step.node)
    if node is None or node.state is None:
        broken.append("who is restarted is there")
    there = {each.name for each in facts.brokers if each.state in (PRIMARY, READY, State.OBSERVER)}
    if any(step.node in held and not (held & there) - {step.node} for held in [facts.members, *_held(facts)]):
        broken.append("others hold what is confirmed")
    if facts.paused or facts.under_way or len(facts.primaries) != 1:
        broken.append("agents may act, one restart at a time, and there is a primary")
    return broken


def _held(facts: ClusterFacts) -> list[frozenset[str]]:
    return [entry.in_sync for entry in facts.sets]


def test_the_promises_hold_in_every_situation_by_force_as_well() -> None:
    states = (None, *State)
    members = [frozenset(names) for count in (1, 2, 3) for names in itertools.combinations(("n1", "n2", "n3"), count)]
    restarts = 0
    for given, of_default, of_set in itertools.product(
        itertools.product(states, repeat=3), members, [*members, frozenset[str]()]
    ):
        facts = cluster(*given)._replace(members=of_default, sets=(SetFacts("orders", "n2", of_set),))
        for plan in (Plan(), FORCED, Plan(("n1",), is_forced=True)):
            step = next_step(facts, plan)
            restarts += step.kind is StepKind.RESTART
            assert broken_promises(facts, step) == [], (facts, plan)
            is_whole = all(each.state in (PRIMARY, READY, State.OBSERVER) for each in facts.brokers)
            assert plan.is_forced or step.kind is not StepKind.RESTART or is_whole
    assert restarts > 100
