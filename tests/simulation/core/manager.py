"""A cluster resource manager, as good or as bad as they come: it promotes after failures, late, wrongly, or twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from qpid_ha_broker.ha.effects import PromoteAsked
from simulation.core.node import Node
from simulation.operator import Operator
from simulation.trace import Trace
from simulation.virtual_time import Schedule

LOOK_AGAIN_S = 0.4
WRONG = 0.15
BOTH = 0.1
REFUSALS_BEFORE_FORCE = 3
TAKEN_OVER_WITHIN_S = 2.5
"""No attempt to become primary lasts longer than four of the members' ask limits."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """A promotion that was asked for."""

    force: bool


class Manager:
    """Looks after the primary. `is_fenced`: it shoots an unhealthy primary before it promotes another one.

    In the end (`is_careful`) nothing disturbs it, and it tries all nodes in order. When all have refused again and
    again it asks an operator.
    """

    def __init__(
        self,
        schedule: Schedule,
        draw: random.Random,
        trace: Trace,
        nodes: Sequence[Node],
        is_fenced: bool,
        is_reachable: Callable[[Node], bool],
        operator: Operator[Node],
        restart: Callable[[Node], None],
        has_store: bool = False,
    ) -> None:
        self._schedule = schedule
        self._draw = draw
        self._trace = trace
        self._nodes = nodes
        self._is_fenced = is_fenced
        self._is_reachable = is_reachable
        self._operator = operator
        self._restart = restart
        self._has_store = has_store
        self.is_careful = False
        self.last_in_sync: dict[str, int] = {}
        """The in-sync set of the newest primary, as memories: who holds what was confirmed last."""
        self._missing_since_s: float | None = None
        self._patience_s = 0.0
        self._taken_over_by_s = 0.0
        self._waiting: set[Attempt] = set()
        """Promotions that were not answered yet."""
        self._refused: dict[tuple[str, int], int] = {}
        self.refusals: list[str] = []
        self._processes: list[int] = []
        """Which were there when one was asked last: that all refuse means something only while nobody dies."""
        schedule.after(0.2, self._look)

    def _look(self) -> None:
        self._schedule.after(LOOK_AGAIN_S * (0.5 + self._draw.random()), self._look)
        now_s = self._schedule.now_s
        primary = next((node for node in self._nodes if node.is_primary and self._is_healthy(node)), None)
        if primary is not None:
            if self.is_careful:
                self._operator.look_at_rivals([node for node in self._nodes if node.is_primary and not node.is_paused])
                self._operator.look_at_primary(primary, len(list(filter(self._is_healthy, self._nodes))))
            self._missing_since_s = None
            self._refused.clear()
            self._operator.forget_refusals()
        elif self._missing_since_s is None:
            self._missing_since_s = now_s
            self._patience_s = 0.3 if self.is_careful else self._draw.choice((0.0, 0.5, 2.0))
        elif now_s - self._missing_since_s >= self._patience_s and now_s >= self._taken_over_by_s and not self._waiting:
            self._fail_over()

    def handed_over(self, reason: str) -> None:
        """A primary has left the command to another one, which is about to lead: whoever ends the old primary before
        it promotes (decision 0004) waits for that one."""
        if self._is_fenced:
            self._taken_over_by_s = self._schedule.now_s + TAKEN_OVER_WITHIN_S

    def _is_healthy(self, node: Node) -> bool:
        return node.is_up and not node.is_paused and self._is_reachable(node)

    def _fail_over(self) -> None:
        if self._is_fenced:
            for node in self._nodes:
                if node.is_primary:
                    self._restart(node)
        processes = [node.process for node in self._nodes]
        if processes != self._processes:
            self._processes = processes
            self._operator.forget_refusals()
        candidates = self._candidates()
        if not candidates:
            return
        if self._must_force(candidates):
            self._ask_operator(candidates)
            return
        self._promote(candidates[0])
        if self._draw.random() < BOTH and len(candidates) > 1 and not (self.is_careful or self._is_fenced):
            self._promote(candidates[1])

    def _ask_operator(self, candidates: list[Node]) -> None:
        """All have refused; those of the last in-sync set perhaps for want of witnesses only.

        One that the primary let in last, and that has not heard of it, lacks what was confirmed just before, and says
        so: it is not in the in-sync set of its own log.
        """
        in_sync = [node for node in candidates if self.is_in_sync(node) and node.name in node.member.status.members]
        chosen = self._operator.choose(candidates, in_sync, self.refusals)
        if chosen is None:
            self._refused.clear()
        else:
            self._promote(chosen, force=True)

    def _candidates(self) -> list[Node]:
        """Who may be asked, the best first."""
        able = [node for node in self._nodes if self._is_healthy(node)]
        waits = bool(self.last_in_sync) if self._has_store else any(self.is_in_sync(node) for node in self._nodes)
        if self._is_fenced and waits:
            able = self._in_sync_first(able)  # one that sleeps will wake up
        self._draw.shuffle(able)
        if self.is_careful or self._draw.random() >= WRONG or self._is_fenced:
            able.sort(
                key=lambda node: (self._refusals(node), -node.member.status.generation, -node.member.position.lsn)
            )
        return able

    def _in_sync_first(self, able: list[Node]) -> list[Node]:
        """Those of the last set; all, once the whole of it is there and has refused: its last change may be on nobody's
        disk. One that is down holds it perhaps, and will be back (decision 0004)."""
        in_sync = [node for node in able if self.is_in_sync(node)]
        are_all_here = len(in_sync) == len(self.last_in_sync)
        have_refused = are_all_here and all(self._refusals(node) >= REFUSALS_BEFORE_FORCE for node in in_sync)
        return able if self._has_store and have_refused else in_sync

    def is_in_sync(self, node: Node) -> bool:
        """Whether this process, or store, was in sync with the newest primary."""
        return node.is_up and self.last_in_sync.get(node.name) == node.memory

    def _refusals(self, node: Node) -> int:
        return self._refused.get((node.name, node.process), 0)

    def _promote(self, node: Node, force: bool = False) -> None:
        process, attempt = node.process, Attempt(force)
        self._waiting.add(attempt)
        if self._trace.wanted:
            self._trace.add("manager", f"promotes {node.name}{' by force' if force else ''}")
        node.ask_for(lambda request: PromoteAsked(request, force), partial(self._answered, attempt, node, process))
        # A process that dies, or is stopped, does not answer.
        self._schedule.after(6.0, partial(self._answered, attempt, node, process, False, "no answer"))

    def _must_force(self, candidates: list[Node]) -> bool:
        return self.is_careful and all(self._refusals(node) >= REFUSALS_BEFORE_FORCE for node in candidates)

    def _answered(self, attempt: Attempt, node: Node, process: int, done: bool, text: str) -> None:
        if attempt.force and attempt in self._waiting:
            self._operator.settled(node)
        self._waiting.discard(attempt)
        if not done and text != "no answer":
            self._refused[node.name, process] = self._refusals(node) + 1
            self.refusals = [*self.refusals[-9:], f"{node.name}: {text}"]
