"""What will happen in a run, drawn from its seed before it begins: the cluster, its settings, and a list of faults.

The faults are values in a list, so that a failing run can be tried again with fewer of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

PRIMARY: Final = -1
"""As the node of a fault: whoever is primary when it strikes."""
FAULTS_END_S: Final = 15.0
FRAME_CODEC_EVERY: Final = 5
"""In every so-manieth seed frames go through their encoding."""

FIRST_DELAYED: Final = 120
"""From this seed on, in every fifth, some messages are due later. Those before were chosen for what happens there."""

_PRODUCERS: Final = (20, 20, 10_000)
"""That are kept: with few, those of the administrator are forgotten in the course of a run."""

OBSERVERS_FROM: Final = 0.28

CHECK_ALL_EVERY: Final = 25
"""In every so-manieth seed invariants are checked after each input."""


class Kind(StrEnum):
    """What can go wrong, or be asked for at the wrong moment."""

    LOSS = "loss"
    """The channels between `node` and `other` break; who notices says `detail`: 0 both, 1 or 2 one, 3 nobody."""
    PARTITION = "partition"
    """Nothing goes between `node` and all others."""
    ONE_WAY = "one-way"
    """Nothing goes from `node` to `other`."""
    PAUSE = "pause"
    CRASH = "crash"
    """The process dies; another starts after `for_s`, with nothing or its store. `detail` 1: its power fails."""
    CUT = "cut"
    """All channels of `node` break; it lives on."""
    SLOW = "slow"
    """`node` takes `detail` milliseconds for whatever comes."""
    PROMOTE = "promote"
    """Somebody promotes `node`, and if `detail` is 1 `other` at the same time."""
    DEMOTE = "demote"
    SWITCHOVER = "switchover"
    """`node` is to hand over to `other`."""
    WALL_CLOCK = "wall-clock"
    """The time of day of `node` jumps by `detail` seconds."""
    DAMAGE = "damage"
    """The next frame from `node` to `other` is damaged."""
    COORDINATOR = "coordinator"
    """The coordinator cannot be reached."""
    # With stores:
    BLACKOUT = "blackout"
    """All nodes lose their power at once; each comes back after its own while."""
    DISK_FULL = "disk-full"
    """There is no more room on the disk of `node`."""
    DISK_SLOW = "disk-slow"
    """Each write of `node` takes up to `detail` milliseconds longer."""
    DISK_ERROR = "disk-error"
    """The `detail`-th write or sync of `node` from now on fails."""
    POWER_CUT = "power-cut"
    """`node` loses its power at its `detail`-th write from now on."""
    SHUTDOWN = "shutdown"
    """The whole cluster is shut down in order, and started again."""
    DISK_LOST = "disk-lost"
    """`node` loses its power, and comes back with an empty disk."""
    DISK_TRUNCATED = "disk-truncated"
    """`node` loses its power, and a file of its store is shorter afterwards."""
    DISK_FLIPPED = "disk-flipped"
    """`node` loses its power, and a bit of a file of its store is another one afterwards."""
    DISK_PUT_BACK = "disk-put-back"
    """`node` loses its power, and comes back with its store as it was `detail` milliseconds ago."""
    ALL_DISKS_PUT_BACK = "all-disks-put-back"
    """So do all nodes."""
    # With a coordinator:
    RECORD_LOST = "record-lost"
    """The coordinator's record is gone."""
    RECORD_PUT_BACK = "record-put-back"
    """The coordinator's record is what it was `detail` milliseconds ago."""
    RECORD_LATE = "record-late"
    """Writes of the record take effect after whoever wanted them was told that they failed."""


class Fault(NamedTuple):
    kind: Kind
    at_s: float
    for_s: float
    node: int
    other: int
    detail: int


@dataclass(frozen=True)
class Plan:
    """A run, whole: two runs of the same plan are the same."""

    seed: int
    nodes: int
    min_in_sync: int
    has_coordinator: bool
    knows_own_address: bool
    backup_timeout_s: float
    heartbeat_interval_s: float
    tail_bytes: int
    chunk_messages: int
    chunks_ahead: int
    delay_s: float
    """Typical, of a frame."""
    channel_frames: int
    """In flight on a channel before it is no longer writable."""
    use_codec: bool
    check_every: int
    is_fenced: bool
    """The resource manager promotes one of the last in-sync set, and only once the old primary is dead."""
    faults: tuple[Fault, ...]
    has_store: bool = False
    segment_bytes: int = 0
    transient: float = 0.0
    """How many of the messages are not durable."""
    faults_end_s: float = FAULTS_END_S
    producers: tuple[int, ...] = ()
    """How many producers each node keeps in mind; none: publishers do not number their messages."""
    most_in_sync: int = 0
    """Once there is a second set, which begins at `second_set_s`, so many are in sync, the others observe; 0: all."""
    zones: tuple[str, ...] = ()
    """Of each node, with a second set."""
    second_set_s: float = 0.0
    has_short_lives: bool = False
    """Some messages have a time to live, and the clocks of nodes are a day apart."""

    @property
    def delayed_every(self) -> int:
        """So many messages of a publisher apart, one is due later; 0: none is."""
        return 7 if self.seed >= FIRST_DELAYED and self.seed % 5 == 3 else 0

    def describe(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in vars(self).items() if name != "faults")
        return "\n  ".join([f"plan: {settings}", *[shown_fault(each) for each in self.faults]])


def shown_fault(fault: Fault) -> str:
    node = "primary" if fault.node == PRIMARY else f"n{fault.node}"
    return f"{fault.at_s:7.3f}s {fault.kind} {node} other=n{fault.other} for={fault.for_s:.2f}s detail={fault.detail}"


def draw_plan(seed: int) -> Plan:
    """The plan of `seed`. About half of all clusters have stores, and half of all number their messages.

    In a third of all, disks or the coordinator's record are damaged.
    """
    plan = _draw_observers(seed, _draw_damage(seed, _draw_with_store(seed)))
    draw = random.Random(f"{seed}/producers")
    if draw.random() < 0.5:
        return plan
    return replace(plan, producers=tuple(draw.choice(_PRODUCERS) for _ in range(plan.nodes)))


def _draw_with_store(seed: int) -> Plan:
    plan = _draw_without_store(seed)
    draw = random.Random(f"{seed}/store")
    if draw.random() < 0.5:
        return plan
    faults = [each._replace(detail=draw.choice((0, 1))) if each.kind is Kind.CRASH else each for each in plan.faults]
    kinds = draw.choices(list(_STORE_WEIGHTS), list(_STORE_WEIGHTS.values()), k=draw.choice((0, 1, 2, 4, 6)))
    faults += [_draw_store_fault(draw, plan.nodes, kind) for kind in kinds]
    return replace(
        plan,
        has_store=True,
        segment_bytes=draw.choice((2_048, 8_192, 65_536)),
        transient=draw.choice((0.0, 0.15, 0.5)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def _draw_without_store(seed: int) -> Plan:
    draw = random.Random(f"{seed}/plan")
    nodes = draw.choice((2, 3, 3, 3, 3, 4, 5))
    has_coordinator = draw.random() < 0.5
    majority = nodes // 2 + 1
    min_in_sync = draw.choice((1, 1, 2, majority)) if has_coordinator else draw.choice((1, majority))
    heartbeat_interval_s = draw.choice((0.5, 1.0))
    return Plan(
        seed=seed,
        nodes=nodes,
        min_in_sync=min_in_sync,
        has_coordinator=has_coordinator,
        knows_own_address=draw.random() < 0.7,
        backup_timeout_s=draw.choice((1.5, 2.5, 4.0)),
        heartbeat_interval_s=heartbeat_interval_s,
        tail_bytes=draw.choice((1, 500, 5_000, 1_000_000)),
        chunk_messages=draw.choice((1, 3, 20)),
        chunks_ahead=draw.choice((1, 2, 4)),
        delay_s=draw.choice((0.0005, 0.002, 0.01, 0.05)),
        channel_frames=draw.choice((4, 16, 1000)),
        use_codec=seed % FRAME_CODEC_EVERY == 0,
        check_every=1 if seed % CHECK_ALL_EVERY == 0 else 20,
        is_fenced=not has_coordinator and min_in_sync == 1,
        faults=tuple(sorted(_draw_faults(draw, nodes, has_coordinator), key=lambda fault: fault.at_s)),
    )


def _draw_observers(seed: int, plan: Plan) -> Plan:
    """In a sixth of all that have somebody to spare; in the middle, as above."""
    draw = random.Random(f"{seed}/observers")
    least = max(2, plan.min_in_sync)
    if plan.nodes <= least or not OBSERVERS_FROM < draw.random() < OBSERVERS_FROM + 0.17:
        return plan
    return replace(
        plan,
        most_in_sync=draw.randrange(least, plan.nodes),
        zones=tuple(draw.choice(("", "x", "x", "y", "z")) for _ in range(plan.nodes)),
        second_set_s=draw.choice((0.5, 3.0, 8.0)),
    )


_DISK_DAMAGE: Final = (
    Kind.DISK_LOST, Kind.DISK_TRUNCATED, Kind.DISK_FLIPPED, Kind.DISK_PUT_BACK, Kind.ALL_DISKS_PUT_BACK,
)  # fmt: skip
_RECORD_DAMAGE: Final = (Kind.RECORD_LOST, Kind.RECORD_PUT_BACK, Kind.RECORD_LATE)
DAMAGE: Final = frozenset((*_DISK_DAMAGE, *_RECORD_DAMAGE))
"""Of what disks and the coordinator keep."""


def _draw_damage(seed: int, plan: Plan) -> Plan:
    draw = random.Random(f"{seed}/damage")
    kinds = [*(_DISK_DAMAGE if plan.has_store else ()), *(_RECORD_DAMAGE if plan.has_coordinator else ())]
    if not kinds or draw.random() > 1 / 2:  # neither is there in a fourth of all plans
        return plan
    faults = [_draw_fault(draw, plan.nodes, kind) for kind in draw.choices(kinds, k=draw.choice((1, 1, 2)))]
    faults = [fault._replace(detail=draw.choice((300, 1_000, 3_000, 6_000))) for fault in faults]
    return replace(plan, faults=tuple(sorted([*plan.faults, *faults], key=lambda fault: fault.at_s)))


_WEIGHTS: Final[dict[Kind, int]] = {
    Kind.LOSS: 4,
    Kind.PARTITION: 3,
    Kind.ONE_WAY: 3,
    Kind.PAUSE: 4,
    Kind.CRASH: 4,
    Kind.CUT: 2,
    Kind.SLOW: 2,
    Kind.PROMOTE: 3,
    Kind.DEMOTE: 1,
    Kind.SWITCHOVER: 2,
    Kind.WALL_CLOCK: 1,
    Kind.DAMAGE: 1,
    Kind.COORDINATOR: 2,
}


def _draw_faults(draw: random.Random, nodes: int, has_coordinator: bool) -> list[Fault]:
    kinds = [kind for kind in _WEIGHTS if has_coordinator or kind is not Kind.COORDINATOR]
    count = draw.choice((0, 2, 4, 6, 9, 12))
    return [_draw_fault(draw, nodes, draw.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]) for _ in range(count)]


def _draw_fault(draw: random.Random, nodes: int, kind: Kind) -> Fault:
    node = PRIMARY if draw.random() < 0.4 else draw.randrange(nodes)
    other = (max(node, 0) + draw.randrange(1, nodes)) % nodes
    for_s = draw.choice((0.2, 1.0, 3.0, 6.0)) * draw.uniform(0.5, 1.5)
    detail = 0
    if kind is Kind.LOSS:
        detail = draw.choice((0, 0, 1, 2, 3))
    elif kind is Kind.PROMOTE:
        detail = draw.choice((0, 1))
    elif kind is Kind.SLOW:
        detail = draw.choice((20, 200, 800))
    elif kind is Kind.WALL_CLOCK:
        detail = draw.choice((-86_400, -5, 5, 86_400))
    return Fault(kind, round(draw.uniform(0.5, FAULTS_END_S - 1), 3), round(for_s, 3), node, other, detail)


_STORE_WEIGHTS: Final[dict[Kind, int]] = {
    Kind.BLACKOUT: 3,
    Kind.DISK_FULL: 2,
    Kind.DISK_SLOW: 2,
    Kind.DISK_ERROR: 2,
    Kind.POWER_CUT: 4,
    Kind.SHUTDOWN: 2,
    Kind.CRASH: 3,
}


def _draw_store_fault(draw: random.Random, nodes: int, kind: Kind) -> Fault:
    fault = _draw_fault(draw, nodes, kind)
    if kind is Kind.CRASH:
        return fault._replace(detail=draw.choice((0, 1)))
    if kind is Kind.DISK_SLOW:
        return fault._replace(detail=draw.choice((50, 500, 2_000)))
    if kind in (Kind.DISK_ERROR, Kind.POWER_CUT):
        return fault._replace(detail=draw.choice((1, 2, 5, 20)) * draw.randrange(1, 5))
    return fault
