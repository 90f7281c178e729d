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

from qpid_ha_broker.ha.states import State

NEVER = "-INFINITY"
SCORES: Mapping[str, int] = {"primary": 1000, "better": 800, "ready": 500, "lost its primary": 200, "first": 10}
"""What the reasons are worth. `better`: another candidate made way for this one."""

_POSITION = re.compile(r"([0-9]{1,20}):([0-9]{1,20}):([0-9]{1,20}):([a-z]+):(in-sync|behind)")
_HANDED_OVER = re.compile(r"([0-9]{1,20}):([0-9]{1,20})")


class Position(NamedTuple):
    """How far a node's broker is, as it is published; compared by (generation, epoch, lsn) among those in sync."""

    generation: int
    epoch: int
    lsn: int
    state: str
    is_in_sync: bool

    def __str__(self) -> str:
        return f"{self.generation}:{self.epoch}:{self.lsn}:{self.state}:{'in-sync' if self.is_in_sync else 'behind'}"

    @classmethod
    def read(cls, text: str) -> Position | None:
        """What `str` wrote; None for anything else."""
        found = _POSITION.fullmatch(text)
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4], found[5] == "in-sync") if found else None


class HandedOver(NamedTuple):
    """Where the log of a demoted primary ended."""

    node: str
    generation: int
    lsn: int

    @classmethod
    def read(cls, node: str, text: str) -> HandedOver | None:
        """From `generation:lsn`; None for anything else."""
        found = _HANDED_OVER.fullmatch(text)
        return cls(node, int(found[1]), int(found[2])) if found else None


class Go(NamedTuple):
    """Promote; `why` is for the log."""

    why: str


class MakeWay(NamedTuple):
    """Do not: `node` is better, because."""

    node: str
    why: str


def reason_of(state: State | None, has_data: bool, is_in_sync: bool, is_first_start: bool) -> str:
    """The row of `SCORES` that fits a broker; empty when it must not be promoted.

    A broker that is connecting, with everything that its last primary had confirmed, has most likely just lost it.
    """
    if state is State.PRIMARY:
        return "primary"
    if state is State.READY:
        return "ready"
    if state is State.CONNECTING and has_data and is_in_sync:
        return "lost its primary"
    if state is State.CONNECTING and not has_data and is_first_start:
        return "first"
    return ""


def score_of(reason: str) -> str:
    """As Pacemaker reads it."""
    return str(SCORES[reason]) if reason else NEVER


def compare(
    own_node: str,
    own: Position,
    others: Mapping[str, Position],
    handed_over: HandedOver | None,
    max_lag: int,
) -> Go | MakeWay:
    """Whether `own_node` shall go on with its promotion, given what the `others` that are active have published.

    After a planned demotion the new primary has to hold all that the old one held, not only what was confirmed.
    """
    if handed_over is not None and handed_over.node in others and own.generation == handed_over.generation:
        missing = handed_over.lsn - own.lsn
        if missing > 0:
            return MakeWay(
                handed_over.node, f"it handed over at {handed_over.lsn}, and {missing} events are missing here"
            )
    rivals = {node: position for node, position in others.items() if position.is_in_sync}
    if not rivals:
        return Go("nobody else is in sync")
    node, best = max(rivals.items(), key=lambda row: row[1][:3])
    if not own.is_in_sync:
        return MakeWay(node, f"it is in sync, and {own_node} is not")
    if best[:2] > own[:2]:
        found = f"generation {best.generation}, epoch {best.epoch}"
        return MakeWay(node, f"it knows {found}, and {own_node} only {own.generation}, {own.epoch}")
    if best[:2] == own[:2] and best.lsn - own.lsn > max_lag:
        return MakeWay(node, f"it is at {best.lsn}, and {own_node} at {own.lsn}, more than max_lag={max_lag} behind")
    return Go(f"at {own.lsn}, the best of the others at {best.lsn}")
