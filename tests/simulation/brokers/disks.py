"""What goes wrong with the disks under brokers, and what is promised where one cannot be written."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from qpid_ha_broker.ha.primary import Primary
from simulation.brokers.operator import OperatorOnCall
from simulation.brokers.placed_sets import DefaultSet
from simulation.brokers.plan import BrokersFault, BrokersKind
from simulation.machines.node import BrokerNode

MAKES_WAY_WITHIN_S: Final = 8.0
"""Of a primary that cannot write; longer than the agent's pause after an attempt that came to nothing."""
PUT_BACK_S: Final = 6.0
"""So old is what is put back."""
SLOW_DISKS_S: Final = 0.1, 0.6
"""How much longer a sync takes, at most: so much is on its way to a disk then."""


def fit_to_succeed(primary: Primary) -> set[str]:
    """Names of backups in sync that hold all there is: it may leave any of them the command."""
    return {link.name for link in primary.links.values() if link.name in primary.in_sync and link.is_level}


class DisksTrouble:
    """Strikes disks."""

    def __init__(
        self,
        nodes: Sequence[BrokerNode],
        default: DefaultSet,
        may_go: Callable[[BrokerNode], bool],
        later: Callable[[float, Callable[[], object]], None],
        operator: OperatorOnCall,
    ) -> None:
        """`later`: what is made good after so long, or at the end."""
        self._operator = operator
        self._copies: tuple[tuple[int, int], list[dict[Path, dict[str, bytes]]]] = (0, 0), []
        self._nodes = nodes
        self._default = default
        self._may_go = may_go
        self._later = later
        self.strikes: dict[StrEnum, Callable[[BrokersFault, random.Random], None]] = {
            BrokersKind.DISK_SLOW: self._slow,
            BrokersKind.DISK_FULL: self._fill,
            BrokersKind.DISK_CUT_SHORT: self._damage,
            BrokersKind.DISK_LOST: self._damage,
            BrokersKind.DISKS_PUT_BACK: self._put_back,
        }

    def _pick(self, draw: random.Random) -> BrokerNode:
        """The primary in half of all cases."""
        primary = self._default.primary
        return primary if primary is not None and draw.random() < 0.5 else draw.choice(self._nodes)

    def _slow(self, fault: BrokersFault, draw: random.Random) -> None:
        disks, slow_s = self._pick(draw).disks, draw.choice(SLOW_DISKS_S)
        disks.slow_s += slow_s

        def undo() -> None:
            disks.slow_s = max(disks.slow_s - slow_s, 0.0)

        self._later(fault.for_s, undo)

    def _fill(self, fault: BrokersFault, draw: random.Random) -> None:
        """There is no more room. Whoever starts there meanwhile ends at once, and so nobody else may go."""
        node = self._pick(draw)
        if self._may_go(node):
            node.note_line("ITS DISK IS FULL")
            node.disks.fill()
            self._later(4 * fault.for_s, partial(self._make_room, node))

    def _damage(self, fault: BrokersFault, draw: random.Random) -> None:
        """Of who is off, if somebody is."""
        off = [
            node for node in self._nodes if not node.has_process and node.agent is not None and not node.agent.process
        ]
        node = off[0] if off else self._pick(draw)
        if off or self._may_go(node):
            self._operator.are_stores_damaged = True
            node.kill(is_silent=True)
            node.note_line(f"DAMAGE: {fault.kind}")
            if fault.kind is BrokersKind.DISK_LOST:
                node.disks.put_back({})
            else:
                node.disks.cut_short(draw)
            self._later(fault.for_s, node.start_machine)

    def copy(self) -> None:
        """Of all stores, to be put back later; with what their brokers know."""
        up = [node.member.status for node in self._nodes if node.is_up]
        known = max([(status.generation, status.epoch) for status in up], default=(0, 0))
        self._copies = known, [node.disks.copy() for node in self._nodes]

    def _put_back(self, fault: BrokersFault, draw: random.Random) -> None:
        """If the record tells that something is missing: no broker could know else."""
        record, (known, copies) = self._default.register.record, self._copies
        if (record.generation, 0) <= known or not all(self._may_go(node) for node in self._nodes):
            return
        self._operator.are_stores_damaged = True
        for node, copied in zip(self._nodes, copies, strict=True):
            node.kill(is_silent=True)
            node.note_line("ITS STORE IS PUT BACK")
            node.disks.put_back(copied)
            self._later(fault.for_s * (0.5 + draw.random()), node.start_machine)

    def _make_room(self, node: BrokerNode) -> None:
        node.note_line("ITS DISK HAS ROOM")
        node.disks.make_room()
