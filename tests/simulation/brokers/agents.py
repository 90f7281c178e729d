"""What goes wrong with the agents of real brokers, what operators want of `default`, and what both promise.

The promises are those of docs/operations.md: agents see to it that somebody leads while somebody could; who has lost
the lock knows it; none acts by itself in a pause; a primary that answers, and that the record names, stays it; one that
is preferred leads once it is ready.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

from qpid_ha_broker.coordination.pause import PAUSE_NOTE
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from simulation.brokers.disks import MAKES_WAY_WITHIN_S, fit_to_succeed
from simulation.brokers.operator import OperatorOnCall
from simulation.brokers.placed_sets import DefaultSet
from simulation.brokers.plan import BrokersFault, BrokersKind
from simulation.machines.agent import SimulatedAgent
from simulation.machines.coordinator import Leases
from simulation.machines.node import BrokerNode
from simulation.violations import Violation
from simulation.virtual_time import Schedule

CHECK_S: Final = 0.1
LEADER_WITHIN_S: Final = 15.0
"""A start that is put off, a lease that is not renewed for 3 s or given away after 3.5, and attempts that fail."""
CLAIM_S: Final = 1.5
"""An agent looks at its lock twice a second."""
HEEDED_WITHIN_S: Final = 1.5
"""How long an agent that works may not know of a pause."""
FAILS_BACK_WITHIN_S: Final = 8.0
"""After all of the delay: longer than the agent's pause after an attempt that came to nothing."""
UNANSWERED_LOOKS: Final = 15
"""So often an operator looks whether a pause was begun, longer than a broker is stopped: who has died never says."""
OUTDATED_S: Final = 6.0
"""How long two may lead, of whom the record names one, while both reach it."""
ACTS: Final = ("promote", "demote", "switchover")
CAUSE: Final = "the agent of "
LEFT: Final = "handed over to "


class AgentsWatch:
    """Sees what agents do and know. Each check raises Violation."""

    def __init__(
        self,
        schedule: Schedule,
        leases: Leases,
        nodes: Sequence[BrokerNode],
        default: DefaultSet,
        is_blocked: Callable[[str, str], bool],
        priorities: Sequence[int],
    ) -> None:
        """`is_blocked`: whether nothing goes from one broker to another one. `priorities`: of brokers; none: they have
        none."""
        self._schedule = schedule
        self._is_blocked = is_blocked
        self._priorities = priorities
        self._leases = leases
        self._nodes = nodes
        self._default = default
        self._since_s: dict[str, float] = {}
        """Of what must not last: since when it is so."""
        self._unaware_s: dict[str, float] = {}
        """By agent: when it could last not know of a pause, or there was none."""
        self._left_to = ""
        """To whom the primary that the record named has left the command."""
        self._step_downs: dict[str, str] = {}
        """By who is to lead: the cause with which it asked a primary to step down last."""

    def look(self) -> None:
        """Now and then."""
        self._schedule.after(CHECK_S, self.look)
        is_paused = self._is_paused()
        for node in self._nodes:
            agent = node.agent
            assert agent is not None
            if not (is_paused and agent.is_well and not self._leases.is_cut(agent.name)):
                self._unaware_s[agent.name] = self._schedule.now_s
            claim_s = CLAIM_S + self._leases.noticed_s
            self._limit(self._claims_what_is_not_its_own(agent), claim_s, f"{agent.name} takes the lock for its own")
            self._limit(
                self._is_outdated(node), OUTDATED_S, f"{node.name} leads {self._default.name} against the record"
            )
            self._limit(self._should_make_way(node), MAKES_WAY_WITHIN_S, f"{node.name} cannot write, and makes no way")
        self._look_at_preferences()
        is_stuck = self._default.primary is None and not is_paused and any(map(self._could_lead, self._nodes))
        self._limit(is_stuck, LEADER_WITHIN_S, "nobody leads, though somebody in sync is there")

    def _limit(self, is_so: bool, limit_s: float, text: str) -> None:
        """Raises Violation for what lasts."""
        if not is_so:
            self._since_s.pop(text, None)
        elif self._schedule.now_s - self._since_s.setdefault(text, self._schedule.now_s) > limit_s:
            raise Violation(f"{text} for {limit_s:g} s")

    def _is_paused(self) -> bool:
        return self._default.note(PAUSE_NOTE) != ""

    def _are_connected(self, *nodes: BrokerNode) -> bool:
        """Brokers and their agents reach the coordinator."""
        return not any(self._leases.is_cut(name) for node in nodes for name in node.processes)

    def _claims_what_is_not_its_own(self, agent: SimulatedAgent) -> bool:
        return agent.is_well and agent.claims_lock and self._leases.holder is not agent.process

    def _is_outdated(self, node: BrokerNode) -> bool:
        record = self._default.register.record
        if not node.is_primary or node.is_paused or not self._are_connected(node):
            return False
        return record.generation > node.member.status.generation and record.primary != node.name

    def _could_lead(self, node: BrokerNode) -> bool:
        """By the record and by its own log, and its agent works."""
        record, agent = self._default.register.record, node.agent
        if not node.is_up or node.is_paused or node.name in self._default.cut_off_s:
            return False
        if agent is None or not agent.is_well or not self._are_connected(*self._nodes):
            return False
        status = node.member.status
        is_in_sync = node.name in record.members and node.name in status.members
        return is_in_sync and status.generation == record.generation and node.member.answer().complete

    def _should_make_way(self, node: BrokerNode) -> bool:
        """It leads, cannot write, and nothing keeps it from handing over to a backup that can."""
        agent, leading = node.agent, node.member.primary if node.is_primary else None
        if leading is None or node.is_paused or agent is None or not (agent.is_well and self._are_connected(node)):
            return False
        if not node.member.status.store_problem or self._is_paused():
            return False
        fit = fit_to_succeed(leading)
        return any(self._may_take_over(node, other) for other in self._nodes if other.name in fit)

    def _look_at_preferences(self) -> None:
        for node in self._nodes if self._priorities else ():
            preferred, delay_s = self._should_fail_back(node)
            for other in self._nodes:
                is_so, text = other.name == preferred, f"{node.name} leads, and {other.name} is ready, and preferred"
                self._limit(is_so, FAILS_BACK_WITHIN_S + delay_s, text)

    def _should_fail_back(self, node: BrokerNode) -> tuple[str, float]:
        """To whom it should hand over, after how long, because nothing keeps it from that; empty: to nobody."""
        agent, leading = node.agent, node.member.primary if node.is_primary else None
        if leading is None or node.is_paused or agent is None or not agent.is_well or self._is_paused():
            return "", 0.0
        is_in_order = self._leases.holder is agent.process and agent.claims_lock and self._are_connected(*self._nodes)
        is_recorded = self._default.register.record.primary == node.name
        if not (is_in_order and is_recorded) or node.member.status.store_problem:
            return "", 0.0
        ready = {str(row["name"]) for row in node.member.backups() if row["in_sync"] and row["state"] == State.READY}
        fit = [other for other in self._nodes if other.name in ready and self._may_take_over(node, other)]
        best = min(fit, key=lambda other: (-self._priorities[other.index], other.name), default=node)
        if len(fit) < len(ready) or self._priorities[best.index] <= self._priorities[node.index]:
            return "", 0.0
        return best.name, agent.failback_delay_s(best.name)

    def _may_take_over(self, node: BrokerNode, other: BrokerNode) -> bool:
        is_reached = not (self._is_blocked(node.name, other.name) or self._is_blocked(other.name, node.name))
        return is_reached and other.is_up and not other.is_paused and not other.member.status.store_problem

    # --- what happens

    def asks(self, node: BrokerNode, method: str) -> None:
        """Its agent asks the broker something."""
        if method in ACTS:
            self._check_pause(node, method)
        if method == "demote":
            self._check_right(node, method)

    def signals(self, node: BrokerNode) -> None:
        """Its agent ends the broker."""
        self._check_pause(node, "end it")

    def kills(self, node: BrokerNode) -> None:
        """At once."""
        self.signals(node)
        self._check_right(node, "kill it")

    def starts_again(self, node: BrokerNode) -> None:
        """Its agent starts the broker, which has died; the first start of an agent is no answer to anything."""
        self._check_pause(node, "start it again")

    def _check_pause(self, node: BrokerNode, what: str) -> None:
        """As it is now: since the last look a pause may have ended."""
        agent = node.agent
        assert agent is not None
        if not self._is_paused():
            return
        unaware_s = self._unaware_s.get(agent.name, self._schedule.now_s)
        if self._schedule.now_s - unaware_s > HEEDED_WITHIN_S and not agent.is_stopping:
            raise Violation(f"the agent of {node.name} wants to {what} in a pause")

    def _check_right(self, node: BrokerNode, what: str) -> None:
        """A primary that answers, and that the record names, stays it."""
        if not node.is_primary or node.is_paused or node.agent is None or node.agent.is_stopping:
            return
        record = self._default.register.record
        if (record.primary, record.generation) == (node.name, node.member.status.generation):
            raise Violation(f"the agent of {node.name} wants to {what}, which is primary by the record, and answers")

    def changes(self, node: BrokerNode, change: fx.StateChanged) -> None:
        """A member of `default` is in another state: no agent promotes behind one that works, and hands over then."""
        record = self._default.register.record
        if change.before is State.PRIMARY and change.reason.startswith(LEFT):
            is_recorded = (record.primary, record.generation) == (node.name, node.led_generations[DEFAULT_SET])
            self._left_to = change.reason.removeprefix(LEFT).partition(":")[0] if is_recorded else ""
        elif change.after is State.PRIMARY:
            asked, is_left_to_it = self._step_downs.pop(node.name, ""), self._left_to == node.name
            self._left_to = ""
            if is_left_to_it and change.reason.startswith(CAUSE) and asked.startswith(CAUSE):
                raise Violation(f"{change.reason} promoted it, and a primary that worked had to hand over")

    def asks_to_step_down(self, node: BrokerNode, cause: str) -> None:
        """It was promoted for that cause."""
        self._step_downs[node.name] = cause


class AgentsTrouble:
    """Strikes agents, the lock and the coordinator, and has operators want something."""

    def __init__(
        self,
        leases: Leases,
        nodes: Sequence[BrokerNode],
        default: DefaultSet,
        may_go: Callable[[BrokerNode], bool],
        ended: Callable[[BrokerNode], None],
        later: Callable[[float, Callable[[], object]], None],
        operator: OperatorOnCall,
    ) -> None:
        """`ended`: a broker has, as its agent wanted; `later`: what is made good after so long, or at the end."""
        self._operator = operator
        self._leases = leases
        self._nodes = nodes
        self._default = default
        self._may_go = may_go
        self._ended = ended
        self._later = later
        self.strikes: dict[StrEnum, Callable[[BrokersFault, random.Random], None]] = {
            BrokersKind.AGENT_STOPS: self._stop_agent,
            BrokersKind.AGENT_DIES: self._kill_agent,
            BrokersKind.AGENT_ENDS: self._end_agent,
            BrokersKind.LOCK_TAKEN: self._take_lock,
            BrokersKind.COORDINATOR_CUT: self._cut_coordinator,
            BrokersKind.AGENT_CUT: self._cut_agent,
            BrokersKind.COORDINATOR_AWAY: self._take_coordinator_away,
            BrokersKind.COORDINATOR_EMPTIED: self._empty_coordinator,
            BrokersKind.SESSION_EXPIRED: self._expire_session,
            BrokersKind.OPERATOR: self._operate,
            BrokersKind.AGENTS_PAUSE: self._pause_agents,
        }

    def _pick(self, draw: random.Random) -> BrokerNode:
        """The primary in half of all cases."""
        primary = self._default.primary
        return primary if primary is not None and draw.random() < 0.5 else draw.choice(self._nodes)

    def _stop_agent(self, fault: BrokersFault, draw: random.Random) -> None:
        node = self._pick(draw)
        agent = node.agent
        if agent is not None and agent.is_well:
            node.note_line("ITS AGENT IS STOPPED")
            process = agent.process
            agent.pause()
            self._later(2 * fault.for_s, lambda: agent.resume() if agent.process is process else None)

    def _kill_agent(self, fault: BrokersFault, draw: random.Random) -> None:
        """Whoever watches it starts it again; its broker goes on."""
        node = self._pick(draw)
        if node.agent is not None and node.agent.process is not None:
            node.note_line("ITS AGENT DIES")
            node.agent.kill()
            self._later(fault.for_s, node.agent.start)

    def _end_agent(self, fault: BrokersFault, draw: random.Random) -> None:
        """An operator stops a machine's agent, and its broker with it, and starts it again."""
        node = self._pick(draw)
        if node.agent is not None and node.agent.is_well and self._may_go(node):
            node.note_line("ITS AGENT IS TO END")
            node.at_death.append(lambda has_power: self._ended(node))
            node.agent.terminate()
            self._later(fault.for_s, node.agent.begin_again)

    def _take_lock(self, fault: BrokersFault, draw: random.Random) -> None:
        self._leases.take_away()

    def _cut_coordinator(self, fault: BrokersFault, draw: random.Random) -> None:
        """A machine, with agent and broker, does not reach it."""
        node = self._pick(draw)
        self._cut(node, node.processes, fault.for_s, "DOES NOT REACH THE COORDINATOR")

    def _cut_agent(self, fault: BrokersFault, draw: random.Random) -> None:
        node = self._pick(draw)
        if node.agent is not None:
            self._cut(node, (node.agent.name,), fault.for_s, "ITS AGENT DOES NOT REACH THE COORDINATOR")

    def _cut(self, node: BrokerNode, processes: Sequence[str], for_s: float, text: str) -> None:
        if not any(map(self._leases.is_cut, node.processes)):
            node.note_line(text)
            self._leases.cut(*processes)
            self._later(2 * for_s, partial(self._leases.mend, *processes))

    def _take_coordinator_away(self, fault: BrokersFault, draw: random.Random) -> None:
        self._leases.is_away = True
        self._later(2 * fault.for_s, self._bring_coordinator_back)

    def _bring_coordinator_back(self) -> None:
        self._leases.is_away = False

    def _empty_coordinator(self, fault: BrokersFault, draw: random.Random) -> None:
        self._operator.lose_record()
        self._default.lose_notes()
        self._leases.lose_all()

    def _expire_session(self, fault: BrokersFault, draw: random.Random) -> None:
        node = self._pick(draw)
        if node.agent is not None and node.agent.process is not None:
            node.note_line("THE SESSION OF ITS AGENT IS ENDED")
            self._leases.expire_of(node.agent.process)

    def _operate(self, fault: BrokersFault, draw: random.Random) -> None:
        """Of any broker: `promote`, `demote`, or `switchover`, to the best or to one that is named."""
        node = self._pick(draw)
        method = draw.choice(ACTS)
        params: dict[str, object] = {"cause": "an operator wants it"}
        if method == "switchover" and draw.random() < 0.5:
            params["to"] = draw.choice(self._nodes).name
        node.note_line(f"AN OPERATOR WANTS {method} {params}")
        node.ask(method, params, lambda problem: node.note_line(f"ANSWERS {problem or 'done'}"))

    def _pause_agents(self, fault: BrokersFault, draw: random.Random) -> None:
        node = draw.choice(self._nodes)
        answers: list[str] = []
        node.ask("pause", {"action": "begin", "by": "an operator"}, answers.append)
        self._later(2 * fault.for_s, partial(self._go_on, draw, answers, UNANSWERED_LOOKS))

    def _go_on(self, draw: random.Random, answers: list[str], looks: int) -> None:
        """Whichever broker is up may be asked, and asked again; not before it is known what came of the pause, or that
        nobody will say: a broker that was stopped begins it when it goes on."""
        up = [node for node in self._nodes if node.is_up and not node.is_paused]
        again = partial(self._later, 0.3, partial(self._go_on, draw, answers, looks - 1))
        if not up or (looks > 0 and not answers):
            again()
        else:
            draw.choice(up).ask("pause", {"action": "end"}, lambda problem: again() if problem else None)
