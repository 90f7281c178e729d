"""A cluster resource manager, as good or as bad as they come: it promotes after failures, late, wrongly, or twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from qpid_ha_broker.ha.effects import PromoteAsked
from simulation.node import Node
from simulation.trace import Trace
from simulation.virtual_time import Schedule

LOOK_AGAIN_S = 0.4
WRONG = 0.15
BOTH = 0.1
REFUSALS_BEFORE_FORCE = 3


class Manager:
    """Looks after the primary. `is_fenced`: it shoots an unhealthy primary before it promotes another one.

    In the end (`is_careful`) nothing disturbs it, and it tries all nodes in order. When all have refused again and
    again it overrides; when nobody is left of those who held what was confirmed last, it tells `forced`.
    """

    def __init__(
        self,
        schedule: Schedule,
        draw: random.Random,
        trace: Trace,
        nodes: Sequence[Node],
        is_fenced: bool,
        is_reachable: Callable[[Node], bool],
        forced: Callable[[], None],
        restart: Callable[[Node], None],
    ) -> None:
        self._schedule = schedule
        self._draw = draw
        self._trace = trace
        self._nodes = nodes
        self._is_fenced = is_fenced
        self._is_reachable = is_reachable
        self._forced = forced
        self._restart = restart
        self.is_careful = False
        self.last_in_sync: dict[str, int] = {}
        """The in-sync set of the newest primary, as processes: who holds what was confirmed last."""
        self._missing_since_s: float | None = None
        self._patience_s = 0.0
        self._waiting: set[object] = set()
        """Promotions that were not answered yet."""
        self._refused: dict[tuple[str, int], int] = {}
        self.refusals: list[str] = []
        schedule.after(0.2, self._look)

    def _look(self) -> None:
        self._schedule.after(LOOK_AGAIN_S * (0.5 + self._draw.random()), self._look)
        now_s = self._schedule.now_s
        if any(node.is_primary and self._is_healthy(node) for node in self._nodes):
            self._missing_since_s = None
            self._refused.clear()
        elif self._missing_since_s is None:
            self._missing_since_s = now_s
            self._patience_s = 0.3 if self.is_careful else self._draw.choice((0.0, 0.5, 2.0))
        elif now_s - self._missing_since_s >= self._patience_s and not self._waiting:
            self._fail_over()

    def _is_healthy(self, node: Node) -> bool:
        return node.is_up and not node.is_paused and self._is_reachable(node)

    def _fail_over(self) -> None:
        if self._is_fenced:
            for node in self._nodes:
                if node.is_primary:
                    self._restart(node)
        candidates = self._candidates()
        if not candidates:
            return
        if self._must_force(candidates):
            self._override(candidates)
            return
        self._promote(candidates[0])
        if self._draw.random() < BOTH and len(candidates) > 1 and not (self.is_careful or self._is_fenced):
            self._promote(candidates[1])

    def _override(self, candidates: list[Node]) -> None:
        """Whoever was in sync last, when the refusal is for want of witnesses; else what is left, and that is told."""
        in_sync = [node for node in candidates if self.is_in_sync(node)]
        if not in_sync:
            self._forced()
        self._promote(max(in_sync or candidates, key=lambda node: node.member.position), force=True)

    def _candidates(self) -> list[Node]:
        """Who may be asked, the best first."""
        able = [node for node in self._nodes if self._is_healthy(node)]
        if self._is_fenced and any(self.is_in_sync(node) for node in self._nodes):
            able = [node for node in able if self.is_in_sync(node)]  # one that sleeps will wake up
        self._draw.shuffle(able)
        if self.is_careful or self._draw.random() >= WRONG or self._is_fenced:
            able.sort(key=lambda node: (self._refusals(node), -node.member.generation, -node.member.position.lsn))
        return able

    def is_in_sync(self, node: Node) -> bool:
        """Whether this process was in sync with the newest primary."""
        return node.is_up and self.last_in_sync.get(node.name) == node.process

    def _refusals(self, node: Node) -> int:
        return self._refused.get((node.name, node.process), 0)

    def _promote(self, node: Node, force: bool = False) -> None:
        process, attempt = node.process, object()
        self._waiting.add(attempt)
        if self._trace.wanted:
            self._trace.add("manager", f"promotes {node.name}{' by force' if force else ''}")
        node.ask_for(lambda request: PromoteAsked(request, force), partial(self._answered, attempt, node, process))
        # A process that dies, or is stopped, does not answer.
        self._schedule.after(6.0, partial(self._answered, attempt, node, process, False, "no answer"))

    def _must_force(self, candidates: list[Node]) -> bool:
        return self.is_careful and all(self._refusals(node) >= REFUSALS_BEFORE_FORCE for node in candidates)

    def _answered(self, attempt: object, node: Node, process: int, done: bool, text: str) -> None:
        self._waiting.discard(attempt)
        if not done and text != "no answer":
            self._refused[node.name, process] = self._refusals(node) + 1
            self.refusals = [*self.refusals[-9:], f"{node.name}: {text}"]
