"""What will happen in a run of a cluster with many resource sets, drawn from its seed before it begins.

As in `plan`, faults are values in a list. Each draws what it needs from a generator of its own, so that leaving one out
changes nothing about the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from qpid_ha_broker.cluster_map import BrokerPlace

FAULTS_END_S: Final = 30.0


class SetsKind(StrEnum):
    """What can go wrong, or be asked for at the wrong moment."""

    KILL = "kill"
    """A process dies; another one starts after `for_s`, with what its disk has."""
    POWER_CUT = "power-cut"
    """The same, without what was not synced, and nobody hears of it."""
    ALL_POWER_CUT = "all-power-cut"
    """Of several brokers at once, perhaps all."""
    PAUSE = "pause"
    """A process is stopped, and goes on after `for_s`."""
    CUT = "cut"
    """Nothing goes between two brokers."""
    ONE_WAY = "one-way"
    """Nothing goes from one broker to another one."""
    ISOLATED = "isolated"
    """Nothing goes between one broker and all others."""
    RESET = "reset"
    """The connections between two brokers break, and can be opened again."""
    LOSS = "loss"
    """Some of what goes to and from the controller is lost."""
    REPEATS = "repeats"
    """Orders come twice, the second time late."""
    DELAY = "delay"
    CONTROLLER = "controller"
    """Another broker becomes primary of `default`, although nothing has failed."""
    EMPTY_DISK = "empty-disk"
    """A broker that is down, or is killed for it, comes back with nothing, where others hold all that it did."""
    REQUEST = "request"
    """An operator or a client wants something."""
    MAKE_AGAIN = "make-again"
    """A set is deleted and made again under its name."""
    NO_CHANNEL = "no-channel"
    """A broker loses its channel to the controller, and cannot make another one for `for_s`; others it reaches."""


_WEIGHTS: Final[dict[SetsKind, int]] = {
    SetsKind.KILL: 6,
    SetsKind.POWER_CUT: 3,
    SetsKind.ALL_POWER_CUT: 1,
    SetsKind.PAUSE: 4,
    SetsKind.CUT: 3,
    SetsKind.ONE_WAY: 3,
    SetsKind.ISOLATED: 2,
    SetsKind.RESET: 2,
    SetsKind.LOSS: 3,
    SetsKind.REPEATS: 2,
    SetsKind.DELAY: 2,
    SetsKind.CONTROLLER: 4,
    SetsKind.EMPTY_DISK: 2,
    SetsKind.REQUEST: 14,
    SetsKind.MAKE_AGAIN: 1,
}


FEW_SETS_SHARE: Final = 0.7
"""In how many clusters there are not more than eight sets."""
NO_CHANNEL_SHARE: Final = 0.4
"""In how many clusters such faults are drawn, after all others."""
NO_CHANNEL_MOST_S: Final = 8.0
"""Less than the time for which answers stand for reports."""


class SetsFault(NamedTuple):
    kind: SetsKind
    at_s: float
    for_s: float
    draw: int
    """Seed of what else has to be drawn, when it strikes."""


@dataclass(frozen=True)
class SetsPlan:
    """A run, whole: two runs of the same plan are the same."""

    seed: int
    zones: tuple[str, ...]
    """Of each broker, as it says it: of one seed in four, two brokers are workers of each machine."""
    sets: tuple[int, ...]
    """Of each set, how many replicas it wants; 0: as many as the policy says."""
    faults: tuple[SetsFault, ...]

    def describe(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in vars(self).items() if name != "faults")
        return "\n  ".join([f"plan: {settings}", *[_shown(each) for each in self.faults]])


def _shown(fault: SetsFault) -> str:
    return f"{fault.at_s:7.3f}s {fault.kind} for={fault.for_s:.2f}s draw={fault.draw}"


def draw_sets_plan(seed: int) -> SetsPlan:
    """3 to 7 brokers, and 1 to 20 sets, which take their time: seldom more than eight."""
    draw = random.Random(f"{seed}/sets plan")
    brokers, zones = draw.randint(3, 7), draw.randint(1, 4)
    sets = draw.choice((1, 1, 2, 2, 3, 5, 8)) if draw.random() < FEW_SETS_SHARE else draw.randint(1, 20)
    count = draw.choice((0, 10, 20, 30, 40))
    kinds = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=count)
    faults = [_draw_fault(draw, kind) for kind in kinds]
    wanted = tuple(draw.choice((0, 0, 1, 2, 3)) for _ in range(sets))
    if draw.random() < NO_CHANNEL_SHARE:
        some = [_draw_fault(draw, SetsKind.NO_CHANNEL) for _ in range(len(faults) // 5)]
        faults += [fault._replace(for_s=min(fault.for_s, NO_CHANNEL_MOST_S)) for fault in some]
    return SetsPlan(
        seed,
        tuple(_place(number, zones, seed % 4 == 3) for number in range(brokers)),
        wanted,
        tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def _place(number: int, zones: int, is_worker: bool) -> str:
    machine = number // 2
    return BrokerPlace(f"zone-{machine % zones}", f"m{machine}").text if is_worker else f"zone-{number % zones}"


def _draw_fault(draw: random.Random, kind: SetsKind) -> SetsFault:
    for_s = draw.choice((0.2, 1.0, 3.0, 6.0, 12.0)) * draw.uniform(0.5, 1.5)
    return SetsFault(kind, round(draw.uniform(1.0, FAULTS_END_S), 3), round(for_s, 3), draw.randrange(1 << 30))
