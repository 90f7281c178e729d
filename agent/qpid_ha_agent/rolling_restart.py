"""What the next step of a rolling restart is, by what is known of the cluster. Pure.

The promise: no broker is restarted unless others hold all that is confirmed, in `default` and in each of its sets, and
no second one before the one before it holds all of it again.

The first row that applies:

| of the cluster                                                                    | step                    |
| --------------------------------------------------------------------------------- | ----------------------- |
| the broker that was restarted last does not serve or follow yet                   | wait                    |
| its agent says that it is back, and the broker is the one from before             | refuse                  |
| there is no broker of a name that was given                                       | refuse                  |
| none is left, and something is not whole yet after a restart                      | wait                    |
| none is left                                                                      | done                    |
| agents are paused                                                                 | refuse                  |
| another restart is under way                                                      | refuse                  |
| nobody is primary, or two are; after a restart nobody is                          | refuse; wait            |
| the next one does not answer                                                      | refuse                  |
| another one does not answer; after a restart                                      | refuse, by force go on; wait |
| another one is catching up, or looks for the primary                              | wait, by force go on    |
| how the sets are is not known                                                     | wait                    |
| a set has no primary, or lacks a replica                                          | wait, by force go on    |
| the next one alone holds what is confirmed                                        | refuse                  |
| the next one is primary, and nobody in sync is ready                              | refuse                  |
| without the next one too few are in sync to confirm anything (`ha.min-in-sync`)   | refuse, by force go on  |
| otherwise                                                                         | restart the next one    |

By force nothing that is confirmed is lost either: publishers may wait, and one more failure may do more harm.

The next one is, of those that are left: not the primary of `default`, which is the controller, as long as there is
another; then the one that leads the fewest sets; then by name. Of an upgrade, who runs the version already is not left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from qpid_ha_agent.planned_restart import SETTLED
from qpid_ha_broker.ha.states import State

SHOWN_SETS: Final = 3


class StepKind(StrEnum):
    """What to do."""

    RESTART = "restart"
    WAIT = "wait"
    REFUSE = "refuse"
    DONE = "done"


class RestartStep(NamedTuple):
    """`node`: whom to restart. `advice`: what mends it, for a person; a WAIT that lasts too long has one as well."""

    kind: StepKind
    node: str = ""
    why: str = ""
    advice: str = ""


class BrokerFacts(NamedTuple):
    """One broker, as it says of itself, or others of it."""

    name: str
    address: str = ""
    state: State | None = None
    """None: it does not answer."""
    version: str = ""
    uptime_s: float = 0.0
    why_away: str = ""
    """If somebody has had it restarted."""


class SetFacts(NamedTuple):
    """One resource set beside `default`."""

    name: str
    primary: str = ""
    in_sync: frozenset[str] = frozenset()
    min_in_sync: int = 0
    """0: as `ha.min-in-sync` says."""
    lacks: str = ""
    """Why it is not whole; empty: it is."""


class ClusterFacts(NamedTuple):
    """All that is judged."""

    brokers: tuple[BrokerFacts, ...]
    members: frozenset[str] = frozenset()
    """In sync in `default`, the primary among them."""
    min_in_sync: int = 1
    sets: tuple[SetFacts, ...] = ()
    sets_problem: str = ""
    """Why it is not known how they are."""
    paused: str = ""
    under_way: str = ""
    """A restart that somebody else asked for."""

    def broker(self, name: str) -> BrokerFacts | None:
        """By its name."""
        return next((broker for broker in self.brokers if broker.name == name), None)

    @property
    def primaries(self) -> list[str]:
        """Of `default`: one, if all is well."""
        return [broker.name for broker in self.brokers if broker.state is State.PRIMARY]


class Awaited(NamedTuple):
    """The broker whose restart was asked for last."""

    name: str
    asked_s: float
    """How long ago."""
    is_agent_back: bool = False
    """Its new agent has said so."""


@dataclass(frozen=True)
class Plan:
    """What is wanted, and what of it is done."""

    wanted: tuple[str, ...] = ()
    """Empty: every broker."""
    version: str = ""
    """Of an upgrade: who runs it is not restarted."""
    is_forced: bool = False
    done: frozenset[str] = frozenset()
    awaited: Awaited | None = None


def brokers_left(facts: ClusterFacts, plan: Plan) -> list[BrokerFacts]:
    """Whom to restart yet, in this order."""
    left = [
        broker
        for broker in facts.brokers
        if broker.name not in plan.done
        and (not plan.wanted or broker.name in plan.wanted)
        and not (plan.version and broker.version == plan.version)
    ]
    led = [entry.primary for entry in facts.sets]
    return sorted(left, key=lambda broker: (broker.state is State.PRIMARY, led.count(broker.name), broker.name))


def next_step(facts: ClusterFacts, plan: Plan) -> RestartStep:
    """As the table says."""
    return next(_steps(facts, plan))


def _steps(facts: ClusterFacts, plan: Plan) -> Iterator[RestartStep]:
    """The rows of the table that apply, one after the other."""
    if plan.awaited is not None:
        yield from _until_back(facts, plan.awaited)
    unknown = [name for name in plan.wanted if facts.broker(name) is None]
    if unknown:
        there = ", ".join(sorted(b.name if b.state else f"{b.name} (away)" for b in facts.brokers))
        yield RestartStep(StepKind.REFUSE, why=f"there is no broker {unknown[0]}", advice=f"the cluster has {there}")
    left = brokers_left(facts, plan)
    if not left:
        if plan.done and not plan.is_forced:
            yield from _unrest(facts, "")
        yield RestartStep(StepKind.DONE)
    if facts.paused:
        yield RestartStep(StepKind.REFUSE, why=facts.paused, advice="`qpid-ha resume`, once that work is done")
    if facts.under_way:
        yield RestartStep(
            StepKind.REFUSE, why=facts.under_way, advice="it is over when the agent there is back, and says so"
        )
    yield from _without_primary(facts, plan)
    node = left[0].name
    yield from _silent(facts, plan, node)
    if facts.sets_problem:
        yield RestartStep(StepKind.WAIT, why=f"how the resource sets are is not known: {facts.sets_problem}")
    if not plan.is_forced:
        yield from _unrest(facts, node)
    yield from _shortage(facts, plan, node)
    yield RestartStep(StepKind.RESTART, node)


def _until_back(facts: ClusterFacts, awaited: Awaited) -> Iterator[RestartStep]:
    broker = facts.broker(awaited.name)
    name, state = awaited.name, None if broker is None else broker.state
    advice = f"look at the journal of {name}, and start it there: systemctl start qpid-ha"
    if broker is None or state is None:
        yield RestartStep(StepKind.WAIT, why=f"{name} is away", advice=advice)
    elif broker.uptime_s >= awaited.asked_s and awaited.is_agent_back:
        yield RestartStep(
            StepKind.REFUSE, why=f"{name} was not restarted, and its agent is a new one", advice="ask again"
        )
    elif broker.uptime_s >= awaited.asked_s:
        yield RestartStep(StepKind.WAIT, why=f"{name} is {state}, and about to stop", advice=advice)
    elif state not in SETTLED:
        yield RestartStep(
            StepKind.WAIT, why=f"{name} is {state}", advice=f"see `qpid-ha diagnose`, and the journal of {name}"
        )
    elif not awaited.is_agent_back:
        yield RestartStep(StepKind.WAIT, why=f"{name} is {state}, and its agent is not back", advice=advice)


def _without_primary(facts: ClusterFacts, plan: Plan) -> Iterator[RestartStep]:
    primaries = facts.primaries
    if len(primaries) > 1:
        why = f"{' and '.join(primaries)} both say that they are primary"
        yield RestartStep(StepKind.REFUSE, why=why, advice="see `qpid-ha diagnose`")
    if not primaries:
        kind = StepKind.WAIT if plan.done else StepKind.REFUSE
        yield RestartStep(kind, why="nobody is primary", advice="see `qpid-ha diagnose`")


def _silent(facts: ClusterFacts, plan: Plan, node: str) -> Iterator[RestartStep]:
    for broker in facts.brokers:
        if broker.state is not None:
            continue
        why = f"{broker.name} does not answer" + (f" ({broker.why_away})" if broker.why_away else "")
        if broker.name == node:
            yield RestartStep(
                StepKind.REFUSE, why=why, advice=f"start it on its machine: systemctl start qpid-ha ({node})"
            )
        elif not plan.is_forced:
            advice = "start it, and wait until it is in sync; or --force, if one more failure may cost an interruption"
            yield RestartStep(StepKind.WAIT if plan.done else StepKind.REFUSE, why=why, advice=advice)


def _unrest(facts: ClusterFacts, node: str) -> Iterator[RestartStep]:
    """What waiting mends, mostly."""
    advice = "see `qpid-ha diagnose`; or --force, if one more failure may cost an interruption"
    for broker in facts.brokers:
        if broker.state not in SETTLED:
            state = "away" if broker.state is None else str(broker.state)
            yield RestartStep(StepKind.WAIT, node, f"{broker.name} is {state}", advice)
    lacking = [f"{entry.name}: {entry.lacks}" for entry in facts.sets if entry.lacks]
    if lacking:
        named = "; ".join(lacking[:SHOWN_SETS]) + ("; ..." if len(lacking) > SHOWN_SETS else "")
        yield RestartStep(
            StepKind.WAIT, node, f"{len(lacking)} of {len(facts.sets)} sets are not whole ({named})", advice
        )


def _shortage(facts: ClusterFacts, plan: Plan, node: str) -> Iterator[RestartStep]:
    """Whether the others can do without `node`."""
    names = {broker.name for broker in facts.brokers if broker.state in SETTLED}
    default = SetFacts("default", next(iter(facts.primaries), ""), facts.members)
    for entry in (default, *facts.sets):
        if node not in entry.in_sync:
            continue
        others = (entry.in_sync & names) - {node}
        if not others:
            why = f"{node} alone holds what is confirmed in {entry.name}"
            yield RestartStep(StepKind.REFUSE, node, why, "have another broker in sync first: `qpid-ha status --all`")
        needed = entry.min_in_sync or facts.min_in_sync
        if len(others) < needed and not plan.is_forced:
            why = f"without {node} only {len(others)} of ha.min-in-sync={needed} brokers are in sync in {entry.name}"
            yield RestartStep(
                StepKind.REFUSE, node, why, "have more brokers in sync; or --force: publishers wait meanwhile"
            )
    ready = [b.name for b in facts.brokers if b.state is State.READY and b.name in facts.members]
    if node in facts.primaries and not ready:
        why = f"{node} is primary, and nobody who is in sync is ready to take over"
        yield RestartStep(StepKind.REFUSE, node, why, "see `qpid-ha backups`")
