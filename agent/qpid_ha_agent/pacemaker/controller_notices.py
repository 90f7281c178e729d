"""What Pacemaker knows of nodes, and the controller of a cluster of many resource sets has to hear of it.

A node was fenced, will run no broker in a moment, or runs one again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from qpid_ha_agent.control import ControlClient, RequestRefused
from qpid_ha_agent.ocf.memory import MemoryFile
from qpid_ha_agent.pacemaker.attributes import ClusterAttributes
from qpid_ha_agent.sight import Sight

ANSWER_S = 5.0
CONTROLLER_S = 2.0
"""So long a broker that has just been promoted may take to begin as the controller."""
LEAVING_S = 8.0
"""For primaries to be led by others. Less than a notification may take."""
STEP_S = 0.1


def has_many_sets(sight: Sight) -> bool:
    """Whether there is a controller that has to hear anything."""
    return sight.number("sets") > 0


class ControllerNotices:
    """Tells it through this node's broker. All methods raise ControlFailure, ClusterUnreachable, OSError."""

    def __init__(
        self, control_socket: Callable[[], Path], cluster: Callable[[], ClusterAttributes], memory: MemoryFile
    ) -> None:
        self._control_socket = control_socket
        self._cluster = cluster
        self._memory = memory

    def tell_gone(self, nodes: Collection[str], reason: str) -> None:
        """Their brokers are dead for certain: nobody has to wait until they count as failed."""
        with self._client() as client:
            rows = _ask(client, CONTROLLER_S, action="list")
            for row in rows if isinstance(rows, list) else []:
                if row.get("up") and row.get("name") in nodes:
                    _ask(client, action="fail", name=row["name"], reason=reason)

    def leave(self, sight: Sight) -> None:
        """This node's broker will be stopped. What it leads is led by others first; in standby it is drained.

        One that an operator has drained stays drained when the node is back, so that is not noted.
        """
        name, cluster = sight.text("name"), self._cluster()
        with self._client() as client:
            if not sight.status.get("draining") and cluster.is_in_standby():
                self._note_is_gone(False)
                _ask(client, action="drain", name=name, force=True, cause=f"{cluster.node} goes to standby")
                cluster.note_drained()
            deadline_s = time.monotonic() + LEAVING_S
            while time.monotonic() < deadline_s:
                answer = _ask(client, action="leave", name=name)
                if not isinstance(answer, Mapping) or not answer.get("left"):
                    return
                time.sleep(STEP_S)

    def come_back(self, sight: Sight) -> None:
        """The broker runs again: if it was drained because of the standby, it is not any more.

        The note of that goes with that drain, however it ended: an operator's next one is the operator's.
        """
        if not sight.status.get("draining"):
            self._forget_note(sight)
            return
        cluster = self._cluster()
        if not cluster.is_noted_drained() or cluster.is_in_standby():
            return
        with self._client() as client:
            _ask(client, action="undrain", name=sight.text("name"), cause=f"{cluster.node} is back from standby")
        cluster.forget_drained()

    def _forget_note(self, sight: Sight) -> None:
        """The broker is not drained; a node that is about to be is in standby already. Asked once after each start or
        drain, because the question costs two processes."""
        if not has_many_sets(sight) or self._memory.read().is_drain_note_gone:
            return
        cluster = self._cluster()
        if cluster.is_in_standby():
            return
        if cluster.is_noted_drained():
            cluster.forget_drained()
        self._note_is_gone(True)

    def _note_is_gone(self, is_gone: bool) -> None:
        with self._memory.changed() as memory:
            memory.is_drain_note_gone = is_gone

    def _client(self) -> ControlClient:
        return ControlClient(self._control_socket(), ANSWER_S)


def _ask(client: ControlClient, controller_s: float = 0.0, **params: object) -> object:
    """`brokers`, once there is a controller: one may be about to begin. Raises ControlFailure."""
    deadline_s = time.monotonic() + controller_s
    while True:
        try:
            return client.call("brokers", **params)
        except RequestRefused as refusal:
            reason = refusal.data.get("reason") if isinstance(refusal.data, Mapping) else None
            if reason != "no-controller" or time.monotonic() >= deadline_s:
                raise
        time.sleep(STEP_S)
