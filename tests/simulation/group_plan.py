"""What will happen in a run of a group, drawn from its seed before it begins: as in `sets_plan`, faults are values."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from qpid_ha_broker.events.types import Scalar

FAULTS_END_S: Final = 7.0
CHECK_ALL_EVERY: Final = 10
"""In every so-manieth seed invariants are checked after each input."""


class GroupFaultKind(StrEnum):
    """What can go wrong."""

    KILL = "kill"
    """A process dies; another one starts after `for_s`, with what its disk has."""
    POWER_CUT = "power-cut"
    """The same, without what was not synced, and the others notice later."""
    ALL_POWER_CUT = "all-power-cut"
    """Of several members at once, perhaps all."""
    PAUSE = "pause"
    """A process is stopped, and goes on after `for_s`. Its transport lives on."""
    PARTITION = "partition"
    """The nodes fall into parts, each of which is a view of its own."""
    SLOW = "slow"
    """A member takes long for what is delivered to it."""
    CONGESTED = "congested"
    """The transport of a member takes nothing for a while."""
    DAEMON = "daemon"
    """The transport of a member ends, and its process does not."""
    DISK_SLOW = "disk-slow"
    DISK_ERROR = "disk-error"
    """A store takes nothing any more; the process ends, and comes back with what is on the disk."""
    EMPTY_DISK = "empty-disk"
    """A member comes back with nothing, where others hold all that it did."""
    RECORD_AWAY = "record-away"
    """Nobody, or only some, reach who keeps the record."""
    RECORD_LATE = "record-late"
    """Writes of the record take effect after whoever wanted them was told that they failed."""
    OPERATOR = "operator"
    """Somebody makes or deletes a queue, at one member or at two at once."""


class GroupQueueKind(StrEnum):
    """What newer messages do to those that are there."""

    PLAIN = "plain"
    RING = "ring"
    LAST_VALUE = "last-value"

    @property
    def arguments(self) -> dict[str, Scalar]:
        """With which it is declared."""
        if self is GroupQueueKind.RING:
            return {"qpid.policy_type": "ring", "qpid.max_count": 4}
        return {"qpid.last_value_queue_key": "key"} if self is GroupQueueKind.LAST_VALUE else {}


_WEIGHTS: Final[dict[GroupFaultKind, int]] = {
    GroupFaultKind.KILL: 8,
    GroupFaultKind.POWER_CUT: 4,
    GroupFaultKind.ALL_POWER_CUT: 2,
    GroupFaultKind.PAUSE: 4,
    GroupFaultKind.PARTITION: 7,
    GroupFaultKind.SLOW: 3,
    GroupFaultKind.CONGESTED: 3,
    GroupFaultKind.DISK_SLOW: 2,
    GroupFaultKind.DISK_ERROR: 2,
    GroupFaultKind.EMPTY_DISK: 2,
    GroupFaultKind.RECORD_AWAY: 4,
    GroupFaultKind.RECORD_LATE: 3,
    GroupFaultKind.OPERATOR: 5,
}


class GroupFault(NamedTuple):
    kind: GroupFaultKind
    at_s: float
    for_s: float
    draw: int
    """Seed of what else has to be drawn, when it strikes."""


@dataclass(frozen=True)
class GroupPlan:
    """A run, whole: two runs of the same plan are the same."""

    seed: int
    members: int
    late: int
    """Of them, those that start in the middle of it all."""
    queues: int
    kinds: tuple[GroupQueueKind, ...]
    """Of each queue."""
    publishers: int
    consumers: int
    sessions: int
    exclusive: tuple[bool, ...]
    """Of each queue, where there are no sessions: the consumers of one member at a time have it."""
    prefilled: int
    """Messages that are published before anybody consumes."""
    first_dies_early: bool
    """Whoever claims the group first loses its power in the middle of that, perhaps for good."""
    chunk_messages: int
    window_bytes: int
    faults: tuple[GroupFault, ...]

    def describe(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in vars(self).items() if name != "faults")
        return "\n  ".join([f"plan: {settings}", *map(_shown, self.faults)])


def _shown(fault: GroupFault) -> str:
    return f"{fault.at_s:7.3f}s {fault.kind} for={fault.for_s:.2f}s draw={fault.draw}"


def draw_group_plan(seed: int) -> GroupPlan:
    """2 to 5 members, most often 3."""
    draw = random.Random(f"{seed}/group plan")
    members = draw.choice((2, 3, 3, 3, 3, 4, 5))
    count = draw.choice((0, 4, 8, 12, 16))
    kinds = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=count)
    faults = [_draw_fault(draw, kind) for kind in kinds]
    of_daemons = random.Random(f"{seed}/group daemons")
    faults += [_draw_fault(of_daemons, GroupFaultKind.DAEMON) for _ in range(of_daemons.choice((0, 0, 1, 2)))]
    sessions = random.Random(f"{seed}/sessions").choice((0, 0, 1, 2))
    of_exclusive = random.Random(f"{seed}/exclusive")
    return GroupPlan(
        seed=seed,
        members=members,
        late=draw.choice((0, 0, 1, 2)) if members > 2 else 0,
        queues=(queues := draw.randint(1, 3)),
        kinds=tuple(random.Random(f"{seed}/kinds").choices(list(GroupQueueKind), (6, 1, 1), k=queues)),
        publishers=draw.randint(1, 4),
        consumers=draw.randint(1, 5),
        sessions=sessions,
        exclusive=tuple(not sessions and of_exclusive.random() < 0.3 for _ in range(queues)),
        prefilled=draw.choice((0, 0, 20, 60)),
        first_dies_early=draw.random() < 0.15,
        chunk_messages=draw.choice((1, 3, 10, 1000)),
        window_bytes=draw.choice((400, 4000, 1024 * 1024)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def _draw_fault(draw: random.Random, kind: GroupFaultKind) -> GroupFault:
    for_s = draw.choice((0.05, 0.2, 0.5, 1.0, 2.5)) * draw.uniform(0.5, 1.5)
    return GroupFault(kind, round(draw.uniform(0.8, FAULTS_END_S), 3), round(for_s, 3), draw.randrange(1 << 30))
