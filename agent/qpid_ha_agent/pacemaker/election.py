"""Who shall be promoted: scores from states, and a last comparison before a promotion. Pure.

Pacemaker promotes the node with the highest score. Scores come from states alone: they change seldom, and each change
costs the cluster a new plan. How far each broker is counts at the last moment: before a promotion every node publishes
its position, and the candidate compares. The safety property does not rest on this: whatever is chosen here, a broker
that may lack something confirmed refuses to be promoted. What is decided here is that the furthest is asked first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.ha.states import State

NEVER = "-INFINITY"
SCORES: Mapping[str, int] = {
    "primary": 1000, "better": 800, "ready": 500, "lost its primary": 200, "came back": 100, "first": 10,
    "cannot write": 5,
}  # fmt: skip
"""What the reasons are worth. `better`: another candidate made way for this one, or an operator chose it."""

_POSITION = re.compile(r"([0-9]{1,20}):([0-9]{1,20}):([0-9]{1,20}):([a-z]+):(in-sync|behind)(:restored)?")
_HANDED_OVER = re.compile(r"([0-9]{1,20}):([0-9]{1,20})")


class NodePosition(NamedTuple):
    """How far a node's broker is, as it is published; compared by (generation, epoch, lsn) among those in sync."""

    generation: int
    epoch: int
    lsn: int
    state: str
    is_in_sync: bool
    is_restored: bool = False
    """It was restarted, and has what its store kept."""

    def __str__(self) -> str:
        words = f"{self.state}:{'in-sync' if self.is_in_sync else 'behind'}{':restored' if self.is_restored else ''}"
        return f"{self.generation}:{self.epoch}:{self.lsn}:{words}"

    @classmethod
    def read(cls, text: str) -> NodePosition | None:
        """What `str` wrote; None for anything else."""
        match = _POSITION.fullmatch(text)
        if match is None:
            return None
        return cls(int(match[1]), int(match[2]), int(match[3]), match[4], match[5] == "in-sync", bool(match[6]))


class HandedOver(NamedTuple):
    """Where the log of a demoted primary ended."""

    node: str
    generation: int
    lsn: int

    @classmethod
    def read(cls, node: str, text: str) -> HandedOver | None:
        """From `generation:lsn`; None for anything else."""
        match = _HANDED_OVER.fullmatch(text)
        return cls(node, int(match[1]), int(match[2])) if match else None


class Go(NamedTuple):
    """Promote; `why` is for the log."""

    why: str


class MakeWay(NamedTuple):
    """Do not: `node` is better, because."""

    node: str
    why: str


def reason_of(
    state: State | None, has_data: bool, is_in_sync: bool, is_first_start: bool, is_restored: bool = False
) -> str:
    """The row of `SCORES` that fits a broker; empty when it must not be promoted.

    A broker that is connecting, with everything that its last primary had confirmed, has most likely just lost it. One
    whose data were restored from its store may have been away for a while.
    """
    if state is State.PRIMARY:
        return "primary"
    if state is State.READY:
        return "ready"
    if state is State.CONNECTING and has_data and is_in_sync:
        return "came back" if is_restored else "lost its primary"
    if state is State.CONNECTING and not has_data and is_first_start:
        return "first"
    return ""


def score_of(reason: str) -> str:
    """As Pacemaker reads it."""
    return str(SCORES[reason]) if reason else NEVER


def compare(
    own_node: str,
    own: NodePosition,
    others: Mapping[str, NodePosition],
    handed_over: HandedOver | None,
    max_lag: int,
) -> Go | MakeWay:
    """Whether `own_node` shall go on with its promotion, given what the `others` that are active have published.

    After a planned demotion the new primary has to hold all that the old one held, not only what was confirmed. Whoever
    was restarted would be refused while one is there that was not, however far its store goes: nobody makes way for it
    where one of the same epoch was not restarted. Where all were, the order is that of the broker's own verdict.
    """
    if handed_over is not None and handed_over.node in others and own.generation == handed_over.generation:
        missing = handed_over.lsn - own.lsn
        if missing > 0:
            return MakeWay(
                handed_over.node,
                f"it handed over at {handed_over.lsn}, and {counted(missing, 'event is', 'events are')} missing here",
            )
    rivals = {node: position for node, position in others.items() if position.is_in_sync}
    if not rivals:
        return Go("nobody else is in sync")
    node, best = max(rivals.items(), key=lambda row: (*row[1][:2], not row[1].is_restored, row[1].lsn))
    if not own.is_in_sync:
        return MakeWay(node, f"it is in sync, and {own_node} is not")
    if own.is_restored and all(position.is_restored for position in rivals.values()):
        return _compare_stores(own_node, own, rivals)
    if best[:2] > own[:2]:
        position_text = f"generation {best.generation}, epoch {best.epoch}"
        return MakeWay(node, f"it knows {position_text}, and {own_node} only {own.generation}, {own.epoch}")
    level = {node: position for node, position in rivals.items() if position[:2] == own[:2]}
    awake = {node: position for node, position in level.items() if not position.is_restored}
    if own.is_restored and awake:
        return MakeWay(_furthest(awake), f"{own_node} was restarted, and it was not")
    return _compare_lsn(own_node, own, level if own.is_restored else awake, max_lag)


def _compare_stores(own_node: str, own: NodePosition, rivals: Mapping[str, NodePosition]) -> Go | MakeWay:
    """After all were restarted only the furthest may lead; the broker judges by the same order, and would refuse."""
    node = _furthest(rivals)
    best = rivals[node]
    if _furthest({own_node: own, node: best}) == own_node:  # also when they are level
        return Go(f"at {own.lsn}, the best of the others at {best.lsn}, and all were restarted")
    return MakeWay(node, f"all were restarted, it is at {best.lsn}, and {own_node} at {own.lsn}")


def _compare_lsn(own_node: str, own: NodePosition, others: Mapping[str, NodePosition], max_lag: int) -> Go | MakeWay:
    """Among equals. Of those that were restarted only the furthest may lead."""
    if not others:
        return Go(f"at {own.lsn}, and nobody else is as good")
    node = _furthest(others)
    lsn = others[node].lsn
    if lsn - own.lsn <= (0 if own.is_restored else max_lag):
        return Go(f"at {own.lsn}, the best of the others at {lsn}")
    why = "restarted as it was" if own.is_restored else f"more than max_lag={max_lag} behind"
    return MakeWay(node, f"it is at {lsn}, and {own_node} at {own.lsn}, {why}")


def _furthest(positions: Mapping[str, NodePosition]) -> str:
    """The node whose log goes furthest, by the one order of logs."""
    from qpid_ha_broker.ha.history import log_end  # a monitor, which imports this module, has no use for it

    return max(positions, key=lambda node: log_end(positions[node]))
