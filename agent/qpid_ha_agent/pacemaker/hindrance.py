"""Why this node's broker is out of the question, for people: `crm_mon -A` shows it beside the score that says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from qpid_ha_agent.ocf.memory import MemoryFile
from qpid_ha_agent.pacemaker.attributes import ClusterAttributes
from qpid_ha_agent.pacemaker.election import NEVER
from qpid_ha_agent.pacemaker.scores import has_data
from qpid_ha_agent.sight import Sight

if TYPE_CHECKING:
    from qpid_ha_broker.ha.cluster_record import ClusterRecord

LOADING = "this broker is loading its store: `qpid-ha status` there tells how far it is"
"""Not how far: each word costs the cluster a new plan."""
TOLD_AFTER_S = 5.0
"""A broker that has just been started knows no primary for a moment; each word costs the cluster a new plan."""


def hindrance(sight: Sight, record: ClusterRecord | None) -> str:
    """A sentence, with what to do. `record` is None when it cannot be read."""
    generation = sight.number("generation")
    how = "lacks some of what was confirmed" if has_data(sight) else "came back empty"
    if record is not None and record.generation < generation:
        says = f"knows generation {record.generation} only" if record.generation else "is empty"
        return (
            f"the coordinator's record {says}, and this broker knows generation {generation}: it was lost or"
            " put back from a copy; run qpid-ha-agent force-promote on the node that is furthest"
        )
    if record is None:
        return f"this broker {how}, and the record of who confirmed it cannot be read"
    members = ", ".join(record.members)
    return (
        f"this broker {how}; generation {record.generation} was confirmed by {members}: start those, or, "
        "if their data is lost for good, run qpid-ha-agent force-promote"
    )


class Hindrance:
    """Told when no primary is known for a while and this broker cannot be it, or when others do not let it in; taken
    back when that is over."""

    def __init__(
        self, cluster: ClusterAttributes, memory: MemoryFile, record: Callable[[], ClusterRecord | None]
    ) -> None:
        self._cluster = cluster
        self._memory = memory
        self._record = record

    def refresh(self, sight: Sight) -> None:
        """Whenever the score has been told, or need not be. Raises ClusterUnreachable, OSError."""
        remembered, now_s = self._memory.read(), time.monotonic()
        if remembered.refusal and sight.text("primary"):
            with self._memory.changed() as memory:
                memory.refusal, memory.refused_at_s = "", 0.0
            self._tell("", since_s=0.0)
        elif remembered.refusal:
            self._tell(remembered.refusal, since_s=now_s)
        elif problem := sight.text("login_problem"):
            self._tell_in_time(lambda: problem, remembered.hindered_since_s, now_s)
        elif remembered.score != NEVER or sight.text("primary"):
            if remembered.hindrance or remembered.hindered_since_s:
                self._tell("", since_s=0.0)
        else:
            self._tell_in_time(lambda: self._why_not(sight), remembered.hindered_since_s, now_s)

    def drop(self) -> None:
        """There is no broker. Raises ClusterUnreachable, OSError."""
        self._tell("", since_s=0.0)

    def _why_not(self, sight: Sight) -> str:
        return LOADING if sight.is_loading else hindrance(sight, self._record())

    def _tell_in_time(self, text: Callable[[], str], since_s: float, now_s: float) -> None:
        """Not at once, but when it has been so for a while."""
        if not since_s:
            self._tell("", since_s=now_s)
        elif now_s - since_s >= TOLD_AFTER_S:
            self._tell(text(), since_s=since_s)

    def _tell(self, text: str, since_s: float) -> None:
        if text != self._memory.read().hindrance:
            self._cluster.explain(text)
        with self._memory.changed() as memory:
            memory.hindrance, memory.hindered_since_s = text, since_s
