"""What a cluster of real brokers with many resource sets is to go through, whose replicas the controller keeps up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from simulation.brokers.plan import BrokersFault, BrokersPlan

FAULTS_END_S: Final = 14.0
LONG_S: Final = 30.0
"""Longer than any run has faults."""


class SetsKind(StrEnum):
    """What can go wrong, or be asked for at the wrong moment."""

    KILL = "kill"
    """A broker dies, and starts again after `for_s`."""
    POWER_CUT = "power-cut"
    """The same, without what was not synced, and nobody hears of it."""
    ALL_POWER_CUT = "all-power-cut"
    """Of several brokers at once, perhaps all."""
    AWAY = "away"
    """A broker that others can spare is gone until faults end: its replicas are to be made up for."""
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
    DELAY = "delay"
    CONTROLLER = "controller"
    """Another broker is to lead `default`, although nothing has failed."""
    EMPTY_DISK = "empty-disk"
    """A broker that others can spare dies, and comes back with nothing."""
    REQUEST = "request"
    """An operator wants something."""
    MAKE_AGAIN = "make-again"
    """A set is deleted and made again under its name."""
    NO_CHANNEL = "no-channel"
    """A broker loses its channel to the controller, and cannot make another one for `for_s`; others it reaches."""


_WEIGHTS: Final[dict[SetsKind, int]] = {
    SetsKind.KILL: 6,
    SetsKind.POWER_CUT: 3,
    SetsKind.ALL_POWER_CUT: 1,
    SetsKind.AWAY: 2,
    SetsKind.PAUSE: 3,
    SetsKind.CUT: 3,
    SetsKind.ONE_WAY: 2,
    SetsKind.ISOLATED: 2,
    SetsKind.RESET: 2,
    SetsKind.DELAY: 1,
    SetsKind.CONTROLLER: 3,
    SetsKind.EMPTY_DISK: 2,
    SetsKind.REQUEST: 14,
    SetsKind.MAKE_AGAIN: 2,
    SetsKind.NO_CHANNEL: 3,
}
NO_CHANNEL_MOST_S: Final = 8.0
"""Less than the time for which answers stand for reports."""


@dataclass(frozen=True)
class SetsPlan(BrokersPlan):
    """A run, whole: two runs of the same plan are the same."""

    zones: tuple[str, ...] = ()
    """Of each broker."""
    wanted: tuple[int, ...] = ()
    """Of each set, how many replicas it wants; 0: as many as the policy says."""
    deletions: bool = False
    """Clients have queues made and deleted, and brokers die between the steps of that."""
    last_dies: bool = False
    """In the end, when all is at rest, a broker dies for good; its replicas are to be made up for by others."""

    @property
    def has_faults(self) -> bool:
        return bool(self.faults) or self.deletions or self.last_dies

    @property
    def faults_end_s(self) -> float:
        return FAULTS_END_S


def draw_sets_plan(seed: int) -> SetsPlan:
    """3 to 6 brokers, 1 to 10 sets of which each wants some replicas, somewhere, and few clients."""
    draw = random.Random(f"{seed}/many sets plan")
    brokers, zones = draw.choice((3, 4, 4, 5, 5, 6)), draw.randint(1, 3)
    count = draw.choice((0, 4, 8, 14, 20))
    kinds = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=count)
    return SetsPlan(
        seed,
        brokers,
        publishers=draw.choice((1, 2, 4)),
        consumers=draw.choice((1, 3, 5)),
        shrinking=0,
        browsers=0,
        transacting=0,
        anonymous=0,
        sessions=0,
        bereft=0,
        subscribers=0,
        forking=0,
        delay_s=draw.choice((0.0005, 0.003, 0.015)),
        socket_bytes=1_000_000,
        publisher_credit=40,
        most_unsettled=30_000,
        min_in_sync=1,
        replicas=(),
        faults=tuple(sorted([_draw_fault(draw, kind) for kind in kinds], key=lambda fault: fault.at_s)),
        zones=tuple([f"zone-{number % zones}" for number in range(brokers)]),
        wanted=tuple([draw.choice((0, 2, 2, 3)) for _ in range(draw.choice((1, 2, 3, 4, 6, 10)))]),
        deletions=draw.random() < 0.6,
        last_dies=draw.random() < 0.6,
    )


def _draw_fault(draw: random.Random, kind: SetsKind) -> BrokersFault:
    for_s = draw.choice((0.2, 1.0, 3.0, 6.0)) * draw.uniform(0.5, 1.5)
    if kind is SetsKind.NO_CHANNEL:
        for_s = min(max(for_s, 3.0), NO_CHANNEL_MOST_S)
    elif kind is SetsKind.AWAY:
        for_s = LONG_S
    return BrokersFault(kind, round(draw.uniform(1.0, FAULTS_END_S), 3), round(for_s, 3), draw.randrange(1 << 30))
