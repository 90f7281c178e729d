"""Telling Pacemaker how good a choice this node's broker would be."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from qpid_ha_agent.ocf.memory import Memory, MemoryFile
from qpid_ha_agent.pacemaker.attributes import ClusterAttributes
from qpid_ha_agent.pacemaker.election import NEVER, SCORES, NodePosition, reason_of, score_of
from qpid_ha_agent.sight import Sight
from qpid_ha_broker.ha.states import UNWRITABLE_S, State

if TYPE_CHECKING:
    from qpid_ha_broker.ha.cluster_record import ClusterRecord

FALL_AFTER_S = 5.0
"""So long a broker has to be worth less before that is told. Each word costs the cluster a new plan, and in a failover
everybody is worth less for a moment: the plan that is carried out then must not be thrown away for it. One that takes
longer is waited for: else each backup in turn would throw it away."""
FALL_AT_LAST_S = 60.0
"""A plan that takes longer is not waited for."""
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
    """Whether the broker came back from its store, and was refused just now: one more attempt would be the same."""
    return sight.state is State.CONNECTING and bool(sight.text("restored")) and memory.is_held_back


def needs_company(sight: Sight) -> bool:
    """Whether the broker may lead only once others were asked: its store was not closed in order, or it has nothing."""
    return sight.state is State.CONNECTING and (sight.text("restored") == "dirty" or not has_data(sight))


def position_of(sight: Sight) -> NodePosition:
    """What is published before a promotion."""
    generation, epoch, lsn = (sight.number(name) for name in ("generation", "epoch", "lsn"))
    in_sync = is_in_sync(sight) and sight.text("state") != "catchup"
    is_restored = sight.text("restored") == "dirty"
    return NodePosition(generation, epoch, lsn, sight.text("state"), in_sync, is_restored)


def cannot_write(sight: Sight) -> bool:
    """Whether its store has taken nothing for a while, as on a full disk."""
    unwritable_s = sight.status.get("unwritable_s")
    is_long = isinstance(unwritable_s, int | float) and unwritable_s >= UNWRITABLE_S
    return bool(sight.text("store_problem")) and is_long


def should_make_way(sight: Sight) -> bool:
    """Whether a primary that cannot write has somebody in sync, who can: a backup that cannot says so, and leaves."""
    return sight.is_primary and cannot_write(sight) and len(sight.names("members")) > 1


def is_outvoted(sight: Sight, record: ClusterRecord | None) -> bool:
    """Whether a broker with data would refuse to be promoted because of the cluster's record. None: there is none.

    Others have gone on without it; or the record does not know the generation of its log, because it was lost, or put
    back from a copy. Pacemaker restarts who refuses, which costs it what it has in memory only.
    """
    if record is None:
        return False
    if record.generation < sight.number("generation"):
        return True
    own_set = sight.number("generation"), sight.number("epoch")
    return sight.text("name") not in record.members and (record.generation, record.epoch) >= own_set


def has_only_claimed(sight: Sight, record: ClusterRecord | None) -> bool:
    """Whether a broker without data is the first primary, and died before its first event: it may try again, and nobody
    else may. None: there is no record."""
    return record is not None and record.claimed and record.members == (record.primary,) == (sight.text("name"),)


class Scores:
    """`is_first_start` is asked only for a broker without data: whether nobody ever confirmed anything. `record` only
    for one that knows no primary."""

    def __init__(
        self,
        cluster: ClusterAttributes,
        memory: MemoryFile,
        is_first_start: Callable[[], bool],
        record: Callable[[], ClusterRecord | None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._memory = memory
        self._is_first_start = is_first_start
        self._record = record

    def score(self, sight: Sight) -> str:
        """What the broker is worth now."""
        if sight.is_loading:  # nobody knows, whatever it was chosen or forced for
            return NEVER
        memory = self._memory.read()
        if not sight.is_primary and (is_chosen(sight) or memory.is_forced):
            return str(SCORES["better"])
        if should_make_way(sight):
            return str(SCORES["cannot write"])
        if is_held_back(sight, memory):
            return NEVER
        data, has_no_primary = has_data(sight), sight.state is State.CONNECTING and not sight.text("primary")
        if data and has_no_primary and is_outvoted(sight, self._record()):
            return NEVER
        if has_no_primary and sight.text("store_problem"):  # who leads notes that on its disk: it would refuse
            return NEVER
        is_new = not data and not sight.text("primary")
        first = is_new and (self._is_first_start() or has_only_claimed(sight, self._record()))
        return score_of(reason_of(sight.state, data, is_in_sync(sight), first, bool(sight.text("restored"))))

    def refresh(self, sight: Sight, always: bool = False) -> None:
        """Tell it if it is higher, or has been lower for a while, or was told long ago, or `always`.

        Raises ClusterUnreachable, OSError.
        """
        score = self.score(sight)
        memory = self._memory.read()
        is_fresh = time.monotonic() - memory.score_told_at_s < TOLD_AGAIN_AFTER_S
        if always or self._is_news(memory, score, sight) or (memory.score == score and not is_fresh):
            self._tell(score)

    def raise_to(self, sight: Sight) -> None:
        """Tell it if it is higher; if it is lower, count from now on. Raises ClusterUnreachable, OSError."""
        memory = self._memory.read()
        if self._has_just_lost_its_primary(sight, memory):
            with self._memory.changed() as changed:
                changed.fell_at_s = time.monotonic()
        elif not memory.is_refused and self._is_news(memory, score := self.score(sight), sight):
            self._tell(score)

    def _has_just_lost_its_primary(self, sight: Sight, memory: Memory) -> bool:
        """Then it is worth less than was told, and the record could make that still less only: a failover has better to
        do than to read it."""
        if sight.state is not State.CONNECTING or not has_data(sight) or is_chosen(sight) or memory.is_forced:
            return False
        return not memory.fell_at_s and _value(memory.score) > SCORES["lost its primary"]

    def _is_news(self, remembered: Memory, score: str, sight: Sight) -> bool:
        """Whether to tell it now, rather than wait whether it rises again: of a primary whose publishers wait for its
        disk, nobody has to wait once more. Raises ClusterUnreachable, OSError."""
        after_s = 0.0 if should_make_way(sight) else FALL_AFTER_S
        value, value_told, now_s = _value(score), _value(remembered.score), time.monotonic()
        is_lower = value < value_told
        if is_lower and remembered.fell_at_s:
            fell_for_s = now_s - remembered.fell_at_s
            return fell_for_s >= FALL_AT_LAST_S or (fell_for_s >= after_s and self._cluster.is_cluster_idle())
        if is_lower or remembered.fell_at_s:
            with self._memory.changed() as memory:
                memory.fell_at_s = now_s if is_lower else 0.0
        return value > value_told or (not remembered.score and not is_lower)

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
            memory.is_refused, memory.fell_at_s = is_refused, 0.0
            memory.score, memory.score_told_at_s = score, time.monotonic()


def _value(score: str) -> int:
    if score in ("", NEVER):
        return -1
    return int(score)
