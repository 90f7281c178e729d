"""A process of a simulated machine: what it does is done in order, not while it is stopped, and not after its end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from simulated_disk import PowerCut
from simulation.machines.loop import ProcessLoop
from simulation.machines.streams import StreamEnd

if TYPE_CHECKING:
    from simulation.machines.node import BrokerNode

CALL_S: Final = 0.0002, 0.02
"""How long a call takes that blocks, such as one of the coordinator."""


class MachineProcess:
    """See `loop.LoopProcess`. What comes while it is stopped waits for it."""

    def __init__(self, node: BrokerNode, name: str, number: int, is_stopped: Callable[[], bool]) -> None:
        self.name = name
        self.clock = node.clock
        self.draw = random.Random(f"{node.site.schedule.now_s}/{name}#{number}")
        self.is_dead = False
        self._node = node
        self._is_stopped = is_stopped
        self._waiting: list[Callable[[], None]] = []
        self.loop = ProcessLoop(  # type: ignore[abstract] # it has what its programs use
            node.site.schedule,
            self,
            node.clock,
            self.call_s,
            lambda: self.draw.uniform(0.0, node.site.turn_within_s),
        )

    @property
    def is_stopped(self) -> bool:
        """It does nothing, and will go on."""
        return self._is_stopped()

    def call_s(self) -> float:
        """How long the next call takes that blocks."""
        return self.draw.uniform(*CALL_S)

    def post(self, command: Callable[[], None]) -> None:
        if self._is_stopped() and not self.is_dead:
            self._waiting.append(command)
        else:
            self.run(command)

    def run(self, command: Callable[[], None]) -> None:
        """Now, unless it is dead."""
        if not self.is_dead:
            try:
                with self._node.site.surroundings.process(self):
                    self.loop.run(command)
            except PowerCut:
                self.loop.failure = None
                self._node.loses_power()

    def go_on(self) -> None:
        """It was stopped."""
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            self.post(command)

    def connect(self, host: str, opened: Callable[[StreamEnd | None, str], None]) -> None:
        self._node.connect(self.post, host, opened)

    def let_go(self) -> None:
        """The run is over."""
        self.is_dead = False
        with self._node.site.surroundings.process(self):
            self.loop.let_go()
