"""Telling Pacemaker how good a choice this node's broker would be."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from qpid_ha_agent.ocf.memory import Memory, MemoryFile
from qpid_ha_agent.pacemaker.attributes import ClusterAttributes
from qpid_ha_agent.pacemaker.election import NEVER, SCORES, Position, reason_of, score_of
from qpid_ha_agent.sight import Sight
from qpid_ha_broker.ha.states import State

TOLD_AGAIN_AFTER_S = 60.0
"""Pacemaker forgets scores when a node leaves; to tell the same again costs a process, but no new plan."""


def has_data(sight: Sight) -> bool:
    """Whether the broker's log holds anything."""
    return sight.number("lsn") > 0


def is_in_sync(sight: Sight) -> bool:
    """Whether, by its own log, it held everything that was confirmed when it last heard."""
    return sight.text("name") in sight.names("members")


def is_chosen(sight: Sight) -> bool:
    """Whether all stores were compared, and the cluster shall begin again with this broker's."""
    return sight.status.get("chosen") is True


def is_held_back(sight: Sight, memory: Memory) -> bool:
    """Whether it came back from its store, and was refused just now: one more attempt would be the same."""
    return sight.state is State.CONNECTING and bool(sight.text("restored")) and memory.is_held_back


def needs_company(sight: Sight) -> bool:
    """Whether it can lead only after others were asked: its store was not closed in order, or it has nothing."""
    return sight.state is State.CONNECTING and (sight.text("restored") == "dirty" or not has_data(sight))


def position_of(sight: Sight) -> Position:
    """What is published before a promotion."""
    generation, epoch, lsn = (sight.number(name) for name in ("generation", "epoch", "lsn"))
    in_sync = is_in_sync(sight) and sight.text("state") != "catchup"
    is_restored = sight.text("restored") == "dirty"
    return Position(generation, epoch, lsn, sight.text("state"), in_sync, is_restored)


class Scores:
    """`is_first_start` is asked only for a broker without data: whether nobody ever confirmed anything."""

    def __init__(self, cluster: ClusterAttributes, memory: MemoryFile, is_first_start: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._memory = memory
        self._is_first_start = is_first_start

    def score(self, sight: Sight) -> str:
        """What the broker is worth now."""
        told = self._memory.read()
        if not sight.is_primary and (is_chosen(sight) or told.is_forced):
            return str(SCORES["better"])
        if is_held_back(sight, told):
            return NEVER
        data = has_data(sight)
        first = not data and not sight.text("primary") and self._is_first_start()
        return score_of(reason_of(sight.state, data, is_in_sync(sight), first, bool(sight.text("restored"))))

    def refresh(self, sight: Sight, always: bool = False) -> None:
        """Tell it if it is another one, or was told long ago, or `always`. Raises ClusterUnreachable, OSError."""
        score = self.score(sight)
        told = self._memory.read()
        is_fresh = time.monotonic() - told.score_told_at_s < TOLD_AGAIN_AFTER_S
        if always or told.score != score or not is_fresh:
            self._tell(score)

    def raise_to(self, sight: Sight) -> None:
        """Tell it if it is higher: falls can wait for the next monitor, and may be over by then."""
        told = self._memory.read()
        if not told.is_refused and _value(score := self.score(sight)) > _value(told.score):
            self._tell(score)

    def make_way(self, node: str) -> None:
        """Let `node` be chosen next time. Raises ClusterUnreachable, OSError."""
        self._cluster.set_score(str(SCORES["better"]), node)
        self._tell(str(SCORES["first"]))

    def rule_out(self) -> None:
        """Until the next monitor. Raises ClusterUnreachable, OSError."""
        self._tell(NEVER, is_refused=True)

    def refuse(self, why: str, among: Collection[str]) -> None:
        """The broker will not, with what `among` could tell it. Raises ClusterUnreachable, OSError."""
        self.rule_out()
        with self._memory.changed() as memory:
            memory.refusal, memory.refused_at_s, memory.refused_among = why, time.monotonic(), sorted(among)

    def try_again(self, sight: Sight) -> None:
        """What it was refused for may be over. Raises ClusterUnreachable, OSError."""
        with self._memory.changed() as memory:
            memory.refused_at_s = 0.0
        self.refresh(sight, always=True)

    def drop(self) -> None:
        """There is nothing to promote here. Raises ClusterUnreachable, OSError."""
        self._cluster.drop_score()
        with self._memory.changed() as memory:
            memory.score, memory.is_refused = "", False

    def _tell(self, score: str, is_refused: bool = False) -> None:
        self._cluster.set_score(score)
        with self._memory.changed() as memory:
            memory.is_refused = is_refused
            memory.score, memory.score_told_at_s = score, time.monotonic()


def _value(score: str) -> int:
    if score in ("", NEVER):
        return -1
    return int(score)
