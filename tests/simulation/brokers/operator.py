"""The operator of simulated clusters of real brokers, who overrides what brokers refuse: the one of `operator`.

Where stores were damaged, he gives up what was confirmed until then; else nothing is lost by what he does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qpid_ha_broker.ha.effects import PromoteAsked
from simulation.brokers.ledger import Ledger
from simulation.brokers.placed_sets import DefaultSet
from simulation.machines.coordinator import Leases
from simulation.machines.node import BrokerNode
from simulation.operator import Operator
from simulation.violations import Violation
from simulation.virtual_time import Schedule

LOOK_S: Final = 0.4
CALLED_AFTER_S: Final = 8.0
"""Nobody has led for so long, and all that there is is here."""


class OperatorOnCall:
    """Looks at `default`."""

    def __init__(
        self,
        schedule: Schedule,
        leases: Leases,
        nodes: Sequence[BrokerNode],
        default: DefaultSet,
        ledgers: Sequence[Ledger],
    ) -> None:
        self._ledgers = ledgers
        self._schedule = schedule
        self._leases = leases
        self._nodes = nodes
        self._default = default
        self._missing_since_s: float | None = None
        self.is_record_damaged = False
        """It was lost once: brokers may honestly refuse."""
        self.are_stores_damaged = False
        """As above; and something may be lost."""
        self.forced = 0
        self._operator = Operator[BrokerNode](
            nodes,
            True,
            lambda: True,
            lambda: self.is_record_damaged or self.are_stores_damaged,
            self._note_force,
            lambda node: None,
            _set_aside,
            _set_aside,
            lambda: default.register.record,
            self.lose_record,
        )

    def lose_record(self) -> None:
        """Somebody deletes it."""
        self.is_record_damaged = True
        self._default.lose_record()

    def _note_force(self, node: BrokerNode) -> None:
        self.forced += 1
        node.note_line("AN OPERATOR PROMOTES IT BY FORCE")
        for ledger in self._ledgers if self.are_stores_damaged else ():
            ledger.give_up()

    def look(self) -> None:
        """Now and then."""
        self._schedule.after(LOOK_S, self.look)
        well, now_s, primary = [node for node in self._nodes if self._is_well(node)], self._schedule.now_s, None
        if len(well) == len(self._nodes):
            primary = self._default.primary
        if primary is not None:
            self._operator.look_at_primary(primary, len(well))
        if primary is not None or len(well) < len(self._nodes):
            self._missing_since_s = None
            self._operator.forget_refusals()
        elif self._missing_since_s is None:
            self._missing_since_s = now_s
        elif now_s - self._missing_since_s > CALLED_AFTER_S:
            self._missing_since_s = now_s - CALLED_AFTER_S / 2
            self._override(well)

    def _is_well(self, node: BrokerNode) -> bool:
        is_here = node.is_up and not node.is_paused and node.agent is not None and node.agent.is_well
        return is_here and not any(map(self._leases.is_cut, node.processes))

    def _override(self, candidates: list[BrokerNode]) -> None:
        chosen = self._operator.choose(candidates, [], [])
        if chosen is not None:
            chosen.ask_for(
                lambda number: PromoteAsked(number, force=True), lambda done, text: self._operator.settled(chosen)
            )


def _set_aside(node: BrokerNode) -> None:
    raise Violation(f"{node.name} would have to begin anew")
