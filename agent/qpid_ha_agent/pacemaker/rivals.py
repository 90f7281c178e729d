"""What the candidates of a promotion have told each other (positions.py): the chosen one compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qpid_ha_agent.pacemaker.attributes import ClusterAttributes
from qpid_ha_agent.pacemaker.election import Go, HandedOver, MakeWay, NodePosition, compare
from qpid_ha_agent.pacemaker.scores import is_chosen, position_of
from qpid_ha_agent.sight import Sight

POSITION = "position"
NOTIFIED = "OCF_RESKEY_CRM_meta_notify_"
ACTIVE = ("active", "promoted", "master", "unpromoted", "slave", "demote")
"""Nodes on which an instance runs, in Pacemaker's words, new and old."""


class Rivals:
    """This node's broker among those of the other nodes. All methods raise ClusterUnreachable.

    `cluster` is asked for when there is somebody to talk to: outside of Pacemaker the agent works, too.
    """

    def __init__(self, cluster: Callable[[], ClusterAttributes], environment: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._environment = environment

    def judge(self, sight: Sight, max_lag: int) -> Go | MakeWay:
        """Whether this node shall go on with its promotion."""
        if is_chosen(sight):
            return Go("this broker's store was chosen")
        active = self._active_nodes()
        if not active:
            return Go("without a comparison: nobody was told to publish how far it is (notify=true)")
        cluster = self._cluster()
        node, said = cluster.node, cluster.published(POSITION)
        others: dict[str, NodePosition] = {}
        ends: list[HandedOver] = []
        for rival in active & said.keys() - {node}:
            position, _space, end = said[rival].partition(" ")
            if (at := NodePosition.read(position)) is not None:
                others[rival] = at
            if (handed_over := HandedOver.read(rival, end)) is not None:
                ends.append(handed_over)
        last_end = max(ends, key=lambda end: end[1:], default=None)
        return compare(node, position_of(sight), others, last_end, max_lag)

    def running_nodes(self) -> set[str]:
        """On which there is a broker now; empty where nobody is told (notify=true)."""
        return (self._nodes(*ACTIVE) - self._nodes("stop")) | self._nodes("start")

    def stopped_nodes(self) -> set[str]:
        """On which there is no broker any more, after a notification of a stop, and none is about to be."""
        return self._nodes("stop") - self._nodes("start")

    def is_chosen_node(self, node: str) -> bool:
        """Whether the promotion that follows this notification is there."""
        return node in self._nodes("promote")

    def absent_nodes(self) -> set[str]:
        """Of the cluster's nodes those on which there is no broker, and none is about to be, before a promotion."""
        return (self._nodes("all") | self._nodes("stop")) - self.running_nodes()

    def is_leaving(self, node: str, operation: str) -> bool:
        """Whether before this operation there is time to clear that node's broker: it will be stopped, and not started
        again at once, and others stay. One that is demoted first is cleared before that, while there is a primary."""
        is_demoted_first = node in self._nodes("demote") and operation == "stop"
        return node in self.stopped_nodes() and not is_demoted_first and bool(self.running_nodes() - {node})

    def _active_nodes(self) -> set[str]:
        return self._nodes(*ACTIVE)

    def _nodes(self, *roles: str) -> set[str]:
        names = (f"{NOTIFIED}{role}_uname" for role in roles)
        return {node for name in names for node in self._environment.get(name, "").split()}
