"""How far this node's broker is, kept where the candidate of a promotion compares: published before it is asked for.

Before each promotion Pacemaker notifies all nodes, on busy ones one after the other, and each has to have published its
position by the end of that; to publish takes two processes. A broker that loses its primary gets no further until
there is another one, so the watch publishes it at once, while Pacemaker still plans. The notification looks at the
broker again, and has nothing to do when what was published is what it sees.

What this may cost: a node that left and came back within `HOLDS_S`, or whose Pacemaker was restarted, may have been
forgotten by the others, and is not published anew. Then it is not compared with, and another one is promoted, which
holds everything that was confirmed; that does not rest on positions (election.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from qpid_ha_agent.ocf.memory import Memory, MemoryFile
from qpid_ha_agent.pacemaker.attributes import ClusterAttributes
from qpid_ha_agent.pacemaker.rivals import POSITION
from qpid_ha_agent.pacemaker.scores import position_of
from qpid_ha_agent.sight import Sight
from qpid_ha_broker.ha.states import State

HOLDS_S = 5.0
"""What was published longer ago is published again: Pacemaker forgets it with a node that leaves. Longer than from the
loss of a primary to the notification."""


class Positions:
    """The promise: after `tell` or `take_back` the others read what is so, if they read what was said last.

    The watch and a notification may have something to tell at the same moment, above all when a node has died: they do
    it one after the other. Whoever tells waits until it can read its own words back, which the other's had replaced.

    All methods raise ClusterUnreachable, OSError. `cluster` is asked for when there is something to tell.
    """

    def __init__(self, cluster: Callable[[], ClusterAttributes], memory: MemoryFile) -> None:
        self._cluster = cluster
        self._memory = memory

    def tell(self, sight: Sight) -> None:
        """How far the broker is, and where it ended when it was primary (`generation:lsn`, or empty)."""
        self._publish(f"{position_of(sight)} {self._memory.read().handed_over}")

    def expect(self, sight: Sight, was_primary: bool) -> None:
        """What will be asked for after the loss of a primary; nothing while there is one.

        A primary that Pacemaker demotes ends here, too; the action notes that a moment later.
        """
        if sight.state is not State.CONNECTING or sight.text("primary"):
            return
        memory = self._memory.read()
        is_demoted = was_primary and memory.may_lead
        end = f"{sight.number('generation')}:{sight.number('lsn')}" if is_demoted else memory.handed_over
        self._publish(f"{position_of(sight)} {end}")

    def take_back(self) -> None:
        """There is no broker here to compare with."""
        self._say("", lambda: self._cluster().take_back(POSITION))

    def _publish(self, position: str) -> None:
        self._say(position, lambda: self._cluster().publish(POSITION, position))

    def _say(self, position: str, say: Callable[[], None]) -> None:
        """Unless it was said last, and still holds."""
        with self._memory.one_at_a_time("position"):
            memory = self._memory.read()
            if memory.position == position and _holds(memory):
                return
            say()
            with self._memory.changed() as memory:
                memory.position, memory.position_told_at_s = position, time.monotonic()


def _holds(memory: Memory) -> bool:
    return bool(memory.position_told_at_s) and time.monotonic() - memory.position_told_at_s < HOLDS_S
