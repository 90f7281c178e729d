"""`qpid-ha-agent run` beside each broker: the product's own decisions, on a simulated lock, process and clock.

What decides (`decide`, `Tenure`, `LeaseWatch`, `BrokerView`) is the product's. What is here takes the place of its
loop: it asks the broker, looks at the lock and at the record, and does what was decided. An agent can hang: it keeps
the lock then, as a stopped process does, and if it waits for the lock it still gets it. Where the lock rests on a
session (`SessionLock`), it loses it to the next one when that is over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from qpid_ha_agent.broker_view import BrokerView
from qpid_ha_agent.decision import Action, Disowned, Known, Limits, LockView, Unwritable, decide
from qpid_ha_agent.failback import Failback
from qpid_ha_agent.runner import (
    HAND_OVER_PAUSE_S,
    OUTDATED_S,
    OVERSLEPT_S,
    PAUSE_S,
    READ_WITHIN_S,
    RETRY_S,
    STEPS_AT_ONCE,
)
from qpid_ha_agent.tenure import LeaseWatch, Tenure
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import DemoteAsked, PromoteAsked, SwitchoverAsked
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.states import State
from qpid_ha_config.settings import ActivationSettings
from simulation.leases import AgentLock, PrimaryLock, SessionLock
from simulation.node import Node, Violation
from simulation.operator import Operator
from simulation.proxies_disks import MAKES_WAY_WITHIN_S, fit_to_succeed
from simulation.register import Register
from simulation.trace import Trace
from simulation.virtual_time import Schedule

LOOK_S = 0.1
POLL_S = 0.5
HURRIED_POLL_S = 0.05
ANSWER_S = 0.001, 0.02
LEADER_WITHIN_S = 12.0
"""A link that is given up after 3 s, a lease that expires after 3 or 4 s, and attempts that fail."""
OPERATOR_AFTER_S = 8.0
CAUSE = "the agent of "
FAILBACK_DELAY_S = 1.0
HEEDED_WITHIN_S = 1.0
"""How long an agent that works may not know of a pause."""


class Agent:
    """One agent. What it knows of its broker is what that answered last."""

    def __init__(
        self,
        schedule: Schedule,
        draw: random.Random,
        trace: Trace,
        node: Node,
        lock: AgentLock,
        register: Register,
        priorities: Mapping[str, int],
    ) -> None:
        self.node = node
        self.failbacks = 0
        self.is_hanging = False
        self.is_cut = False
        """It cannot reach the coordinator."""
        self.refusals: list[str] = []
        self._schedule = schedule
        self._draw = draw
        self._trace = trace
        self._lock = lock
        self._register = register
        self._priorities = priorities
        self._limits = Limits()
        self._unaware_s = 0.0
        """When it last could not know of a pause, or there was none."""
        self._looked_s = 0.0
        self._begin()
        schedule.after(LOOK_S * draw.random(), self._look)
        schedule.after(POLL_S * draw.random(), self._poll)
        schedule.after(POLL_S * draw.random(), self._coordinate)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def has_power(self) -> bool:
        return self.node.has_power

    def _begin(self) -> None:
        """A new agent, as after a start of its machine."""
        self._process = 0
        self._view = BrokerView(self._schedule.now_s)
        self._tenure = Tenure()
        self._lease_watch = LeaseWatch(2 * POLL_S)
        self._record: ClusterRecord | None = None
        self._record_lost_at_s: float | None = None
        self._is_shut_out = self._is_asked = self._is_informed = False
        self._paused = ""
        policy = "preferred" if self._priorities else "stay"
        settings = ActivationSettings(failback=policy, failback_delay_s=FAILBACK_DELAY_S)
        self._failback = Failback(self.node.name, settings)
        self._refusal: str | None = None
        self._deaths = 0
        self._died_at_s = self._pause_until_s = self._hand_over_again_at_s = 0.0

    # --- looking

    def _look(self) -> None:
        self._schedule.after(LOOK_S, self._look)
        now_s = self._schedule.now_s
        is_aware = not (self.is_hanging or self.is_cut or self._register.is_down) and self.node.has_power
        if not is_aware or not self._register.wants_pause:
            self._unaware_s = now_s
        if self.is_hanging:
            return
        if now_s - self._looked_s > OVERSLEPT_S:
            self._view.forgive(now_s)
            self._tenure.forgive(now_s)
        if now_s - self._looked_s > OUTDATED_S:
            self._is_informed = False
        self._looked_s = now_s
        if not self.node.has_power:  # nor has the agent
            self._lock.lose_power(self)
            self._begin()
            return
        self._watch_process(now_s)
        for _ in range(STEPS_AT_ONCE):
            decision = decide(self._known(now_s), self._limits)
            if decision.action in (Action.WAIT, Action.EXIT):
                return
            if self._trace.wanted:
                self._trace.add(f"agent {self.node.index}", f"{decision.action}: {decision.why}")
            self._act(decision.action, now_s)

    def _watch_process(self, now_s: float) -> None:
        process = self.node.process if self.node.is_up else 0
        if self._process and process != self._process:
            self._died_at_s = now_s
            self._deaths += 1
        if process != self._process:
            self._process, self._view, self._is_asked = process, BrokerView(now_s), False

    def _known(self, now_s: float) -> Known:
        view, record, tenure = self._view, self._record, self._tenure
        is_primary = bool(self._process) and view.state is State.PRIMARY
        is_disowned = is_primary and view.is_disowned(self.node.name, record)
        lock = self._lock.view_of(self)
        if tenure.note(lock, is_primary, is_disowned, now_s):
            self._refusal, self._is_shut_out = None, False
        if self._deaths and view.state is not None and now_s - self._died_at_s > 3 * self._limits.last_restart_s:
            self._deaths = 0
        return Known(
            alive=bool(self._process),
            deaths=self._deaths,
            dead_for_s=now_s - self._died_at_s,
            state=view.state,
            has_data=view.has_data,
            unwritable=Unwritable(view.unwritable_s(now_s), view.store_problem, view.is_alone),
            silent_s=view.silent_s(now_s),
            lock=lock,
            held_for_s=tenure.held_for_s(now_s),
            demoted_for_s=tenure.demoted_for_s(now_s),
            lease_silent_s=self._lease_watch.silent_s,
            disowned=Disowned(tenure.disowned_s(now_s), record.primary if record is not None else ""),
            recordless_s=0.0 if self._record_lost_at_s is None else now_s - self._record_lost_at_s,
            is_informed=self._is_informed,
            paused=self._paused,
            failback_to=self._failback.target(now_s) if now_s >= self._hand_over_again_at_s else "",
            hand_over_tried=now_s < self._hand_over_again_at_s,
            is_asked=self._is_asked,
            refusal=self._refusal,
            pause_s=max(0.0, self._pause_until_s - now_s, view.pause_s(now_s), tenure.gives_way_s(view.state, now_s)),
        )

    def _poll(self) -> None:
        is_hurried = self._view.state is None or self._tenure.is_undecided
        self._schedule.after(HURRIED_POLL_S if is_hurried else POLL_S, self._poll)
        if self.is_hanging or not self._process:
            return
        view, node, asked_at_s = self._view, self.node, self._schedule.now_s
        view.ask(asked_at_s)

        def answer() -> None:
            if view is self._view and node.is_up and node.process == self._process and not node.is_paused:
                before, member = view.state, node.member
                status = {
                    "state": member.status.state.value,
                    "lsn": member.position.lsn,
                    "generation": member.status.generation,
                    "store_problem": member.status.store_problem,
                    "unwritable_s": member.unwritable_s(asked_at_s),
                    "members": list(member.status.members),
                }
                view.answer({**status, "primary": member.status.primary}, asked_at_s)
                rows = [row for row in member.backups() if row["in_sync"] and row["state"] == State.READY]
                self._failback.note_backups([str(row["name"]) for row in rows], self._schedule.now_s)
                if view.state is State.READY and before is not State.READY:
                    self._pause_until_s = 0.0

        self._schedule.after(self._draw.uniform(*ANSWER_S) + node.slow_s, answer)

    def _coordinate(self) -> None:
        self._schedule.after(POLL_S, self._coordinate)
        now_s = self._schedule.now_s
        if self.is_hanging:
            return
        is_away = self._register.is_down or self.is_cut
        self._lock.check(self, is_away)
        if is_away:
            self._lease_watch.forget()
            self._record_lost_at_s = now_s if self._record_lost_at_s is None else self._record_lost_at_s
            return
        self._record, self._record_lost_at_s = self._register.record, None
        self._is_informed, self._paused = True, "paused" if self._register.wants_pause else ""
        self._failback.note_primary(self._record.primary, self._priorities, now_s)
        is_behind = self._lock.view_of(self) is LockView.WAITING or self._is_shut_out
        if self._lock.renewal and is_behind:
            self._lease_watch.note(self._lock.renewal, now_s)
        else:
            self._lease_watch.forget()

    # --- acting

    def _act(self, action: Action, now_s: float) -> None:
        self._check_pause(action, now_s)
        match action:
            case Action.START_BROKER:
                self.node.start()
            case Action.KILL_BROKER:
                self._check_right(action)
                self.node.kill(is_silent=False, cause="killed by its agent")
                self._watch_process(now_s)
            case Action.TRY_LOCK:
                self._is_shut_out = not self._lock.try_now(self)
                if self._is_shut_out:
                    self._pause()
            case Action.ACQUIRE_LOCK:
                if not self._lock.wait_for(self):
                    self._pause()
            case Action.RELEASE_LOCK:
                if self._lock.view_of(self) is LockView.HELD and self._view.state is State.READY:
                    self._tenure.give_way(now_s)
                elif self._lock.view_of(self) is LockView.HELD:
                    self._pause()
                self._lock.release(self)
            case Action.PROMOTE:
                cause = f"{CAUSE}{self.node.name}"
                self._ask(action, lambda number: PromoteAsked(number, cause=cause, failover=True))
            case Action.DEMOTE:
                self._check_right(action)
                self._ask(action, DemoteAsked)
            case Action.HAND_OVER:
                self._ask(action, lambda number: SwitchoverAsked(number, "", within_s=READ_WITHIN_S))
            case Action.MAKE_WAY:
                self._ask(action, lambda number: SwitchoverAsked(number, ""))
            case Action.FAIL_BACK:
                self._fail_back(self._failback.target(now_s))
            case _:
                raise ValueError(f"{action} is for an agent that stops")

    def _fail_back(self, to: str) -> None:
        self.failbacks += 1
        self._ask(Action.FAIL_BACK, lambda number: SwitchoverAsked(number, to), to)

    def _check_pause(self, action: Action, now_s: float) -> None:
        """Whoever has heard of it does nothing by itself. A new agent starts its broker."""
        is_harmless = action in (Action.RELEASE_LOCK, Action.ACQUIRE_LOCK)
        is_begin = action is Action.START_BROKER and not self._deaths
        if now_s - self._unaware_s > HEEDED_WITHIN_S and not is_harmless and not is_begin:
            raise Violation(f"the agent of {self.node.name} wanted to {action} in a pause")

    def _check_right(self, action: Action) -> None:
        """A primary that answers, and that the record names, stays it."""
        node, record = self.node, self._register.record
        is_recorded = (record.primary, record.generation) == (node.name, node.member.status.generation)
        if node.is_primary and not node.is_paused and is_recorded and self._view.silent_s(self._schedule.now_s) < 1.0:
            raise Violation(f"the agent of {node.name} wanted to {action}, which is primary by the record")

    def _pause(self) -> None:
        self._pause_until_s = self._schedule.now_s + self._draw.uniform(*PAUSE_S)

    def _ask(
        self, action: Action, make: Callable[[int], PromoteAsked | DemoteAsked | SwitchoverAsked], to: str = ""
    ) -> None:
        self._is_asked = True
        process, view = self._process, self._view

        def answered(done: bool, text: str) -> None:
            if self._process != process or view is not self._view:
                return
            now_s = self._schedule.now_s
            self._is_asked = False
            if done:
                view.assume(State.PRIMARY if action is Action.PROMOTE else State.CONNECTING, now_s)
                return
            self.refusals = [*self.refusals[-3:], f"{self.node.name}: {text}"]
            if action is Action.FAIL_BACK:
                self._failback.refused(to)
            if action is not Action.PROMOTE:
                self._hand_over_again_at_s = now_s + (RETRY_S if action is Action.FAIL_BACK else HAND_OVER_PAUSE_S)
            elif self._lock.view_of(self) is LockView.HELD:
                self._refusal = text
            else:
                self._pause()

        self.node.ask_for(make, answered)


class Agents:
    """All agents of a cluster, with the operator who is called when they can do nothing.

    While somebody could lead, somebody does soon, whichever agent hangs; no agent takes a primary's place that works.
    """

    def __init__(
        self,
        schedule: Schedule,
        draw: random.Random,
        trace: Trace,
        nodes: Sequence[Node],
        register: Register,
        operator: Operator[Node],
        is_reachable: Callable[[Node], bool],
        sessions: SessionLock | None = None,
        priorities: Sequence[int] = (),
    ) -> None:
        self._schedule = schedule
        self._nodes = nodes
        self._register = register
        self._operator = operator
        self._is_reachable = is_reachable
        self.sessions = sessions
        lock = PrimaryLock() if sessions is None else sessions
        wishes = {node.name: priority for node, priority in zip(nodes, priorities, strict=False)}
        self._agents = [Agent(schedule, draw, trace, node, lock, register, wishes) for node in nodes]
        if sessions is not None:
            sessions.join(self._agents)
        self.is_careful = False
        self.last_in_sync: dict[str, int] = {}
        self._handed_over_to = ""
        self._could_lead_since_s: float | None = None
        self._should_make_way_since_s: float | None = None
        self._missing_since_s: float | None = None
        schedule.after(0.2, self._look)

    @property
    def refusals(self) -> list[str]:
        return [refusal for agent in self._agents for refusal in agent.refusals]

    @property
    def failbacks(self) -> int:
        return sum(agent.failbacks for agent in self._agents)

    def agent_of(self, node: Node) -> Agent:
        return self._agents[node.index]

    def handed_over(self, reason: str) -> None:
        """A primary has left the command to another one."""
        self._handed_over_to = reason.removeprefix("handed over to ").partition(":")[0]

    def became_primary(self, node: Node, cause: str) -> None:
        """Raises Violation for an agent that had a primary hand over to its own broker.

        What an operator's promotion asked of a primary that slept is done when it wakes, and may help an agent's.
        """
        is_from_working = self._handed_over_to == node.name
        if cause.startswith(CAUSE) and is_from_working and node.step_down_cause.startswith(CAUSE):
            raise Violation(f"{cause} promoted it, and a primary that worked had to hand over")

    def _look(self) -> None:
        self._schedule.after(0.4, self._look)
        now_s = self._schedule.now_s
        primary = next((node for node in self._nodes if node.is_primary and not node.is_paused), None)
        if self.is_careful:
            self._operator.look_at_rival(self._rival())
        if primary is not None and self.is_careful:
            self._operator.look_at_primary(primary, sum(node.is_up and not node.is_paused for node in self._nodes))
        if primary is not None or not self._could_somebody_lead():
            self._could_lead_since_s = None
        elif self._could_lead_since_s is None:
            self._could_lead_since_s = now_s
        elif now_s - self._could_lead_since_s > LEADER_WITHIN_S:
            raise Violation(f"nobody leads for {LEADER_WITHIN_S} s, though somebody in sync is there: {self.refusals}")
        if primary is None or not self._should_make_way(primary):
            self._should_make_way_since_s = None
        elif self._should_make_way_since_s is None:
            self._should_make_way_since_s = now_s
        elif now_s - self._should_make_way_since_s > MAKES_WAY_WITHIN_S:
            raise Violation(f"{primary.name} leads, cannot write, and makes no way for one in sync: {self.refusals}")
        if primary is not None or not self.is_careful:
            self._missing_since_s = None
            self._operator.forget_refusals()
        elif self._missing_since_s is None:
            self._missing_since_s = now_s
        elif now_s - self._missing_since_s > OPERATOR_AFTER_S:
            self._missing_since_s = now_s - OPERATOR_AFTER_S / 2
            self._ask_operator()

    def _should_make_way(self, primary: Node) -> bool:
        """Whether it cannot write, and nothing keeps it from handing over to a backup that can."""
        agent, register, leading = self.agent_of(primary), self._register, primary.member.primary
        if agent.is_hanging or agent.is_cut or register.is_down or register.wants_pause or register.is_outdated:
            return False
        if leading is None or not primary.member.status.store_problem:
            return False
        fit = fit_to_succeed(leading)
        return any(self._may_take_over(node) for node in self._nodes if node.name in fit)

    def _may_take_over(self, node: Node) -> bool:
        is_well = node.is_up and not node.is_paused and not node.slow_s
        return is_well and self._is_reachable(node) and not node.member.status.store_problem

    def _rival(self) -> Node | None:
        """The other one of two primaries, of which the record names one."""
        primaries = [node for node in self._nodes if node.is_primary and not node.is_paused]
        record = self._register.record
        others = [
            node
            for node in primaries
            if (node.name, node.member.status.generation) != (record.primary, record.generation)
        ]
        return others[0] if len(primaries) == 2 and len(others) == 1 else None

    def _could_somebody_lead(self) -> bool:
        """One that the record and its own log name, that was never restarted since, and that works, with an agent that
        does. By a record that is not the newest nobody may."""
        record = self._register.record
        is_barred = self._register.is_down or self._register.is_outdated or self._register.wants_pause
        return not is_barred and any(
            node.is_up
            and not node.is_paused
            and not node.slow_s
            and not self._agents[node.index].is_hanging
            and not self._agents[node.index].is_cut
            and self._is_reachable(node)
            and node.name in record.members
            and node.name in node.member.status.members
            and node.member.status.generation == record.generation
            and node.member.answer().complete
            and node.member.status.store is StoreOrigin.MEMORY
            and not self._is_contradicted(node)
            for node in self._nodes
        )

    def _is_contradicted(self, node: Node) -> bool:
        """Another one's log knows a newer in-sync set, without this one, and all who were in that have lost their data.

        That set may have been recorded, and the record put back since: the candidate believes the newest of all
        answers, and an operator decides.
        """
        own = node.member.status
        newer = [
            other.member.status.members
            for other in self._nodes
            if other.is_up and (other.member.status.generation, other.member.status.epoch) > (own.generation, own.epoch)
        ]
        empty = {other.name for other in self._nodes if other.is_up and not other.member.status.generation}
        return any(empty.issuperset(members) for members in newer)

    def _ask_operator(self) -> None:
        able = [node for node in self._nodes if node.is_up and not node.is_paused]
        chosen = self._operator.choose(able, [], self.refusals) if able else None
        if chosen is not None:
            chosen.ask_for(
                lambda number: PromoteAsked(number, force=True), lambda done, text: self._operator.settled(chosen)
            )
