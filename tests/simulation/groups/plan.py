"""What will happen in a run of brokers with a group, drawn from its seed: faults are values, as in `brokers.plan`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qpid_ha_broker.events.types import Scalar
from simulation.brokers.plan import BrokersFault, BrokersKind, BrokersPlan, PowerCut

GROUP_ENDS_S: Final = 8.0


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


class GroupKind(StrEnum):
    """What can go wrong with a group in addition."""

    MEMBER_CRASHES = "member crashes"
    MEMBERS_CRASH = "members crash"
    """Several at once, perhaps all."""
    MEMBER_PAUSED = "member paused"
    """The process is stopped. What carries the group's order lives on."""
    ORDER_SPLIT = "order split"
    """Members fall into parts, each of which is a view of its own."""
    ORDER_SLOW = "order slow"
    """A member takes long for what is delivered to it."""
    ORDER_LATE = "order late"
    """What is sent comes to a member later than to others."""
    ORDER_CONGESTED = "order congested"
    """What a member sends waits."""
    ORDER_LOST = "order lost"
    """The daemon of a member's machine ends, and its broker does not."""


@dataclass(frozen=True)
class GroupPlan(BrokersPlan):
    """A run, whole: two runs of the same plan are the same. The brokers of the group are the first of `replicas`."""

    kinds: tuple[GroupQueueKind, ...] = (GroupQueueKind.PLAIN,)
    """Of each queue of the group."""
    exclusive: tuple[bool, ...] = (False,)
    """Of each queue: one connection at a time has it."""
    consumed_after_s: float = 0.0
    """Until then nobody consumes."""
    first_dies_early: bool = False
    """Whoever claims the group first loses its power in the middle of that."""
    chunk_messages: int = 1000
    """Of a queue that is shown to who joins, in one piece."""
    backup_timeout_s: float = 2.0

    @property
    def faults_end_s(self) -> float:
        """After the clients have begun."""
        return GROUP_ENDS_S


_WEIGHTS: Final[dict[StrEnum, int]] = {
    BrokersKind.CLIENT_CUT: 4,
    BrokersKind.CLIENT_SLEEPS: 2,
    BrokersKind.BLOCK: 2,
    GroupKind.MEMBER_CRASHES: 8,
    GroupKind.MEMBERS_CRASH: 3,
    GroupKind.MEMBER_PAUSED: 4,
    GroupKind.ORDER_SPLIT: 7,
    GroupKind.ORDER_SLOW: 3,
    GroupKind.ORDER_CONGESTED: 3,
    GroupKind.ORDER_LOST: 3,
    BrokersKind.DISK_SLOW: 2,
}


def draw_group_plan(seed: int) -> GroupPlan:
    """2 to 5 brokers, most often 3, nearly always all of the group."""
    draw = random.Random(f"{seed}/groups plan")
    brokers = draw.choice((2, 3, 3, 3, 3, 4, 5))
    members = 3 if brokers > 3 and draw.random() < 0.5 else brokers
    kinds = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=draw.choice((0, 4, 8, 12)))
    faults = [draw_group_fault(draw, kind) for kind in kinds]
    sessions = draw.choice((0, 0, 1, 2))
    queues = draw.randint(1, 2)
    of_queues = (6, 1, 0 if sessions else 1)
    consumed_after_s = draw.choice((0.0, 0.0, 3.0))
    of_disks = random.Random(f"{seed}/group disks")
    faults += [draw_group_fault(of_disks, BrokersKind.DISK_LOST) for _ in range(of_disks.choice((0, 0, 0, 0, 1)))]
    of_operator = random.Random(f"{seed}/group operator")
    deletions = 0 if sessions else of_operator.choice((0, 0, 1, 2))
    faults += [draw_group_fault(of_operator, BrokersKind.DELETE_QUEUE) for _ in range(deletions)]
    return GroupPlan(
        seed,
        brokers,
        publishers=draw.choice((1, 2, 4)),
        consumers=draw.choice((2, 4, 5)),
        shrinking=0,
        browsers=0,
        transacting=0,
        anonymous=0,
        sessions=sessions,
        bereft=0,
        subscribers=0,
        forking=0,
        delay_s=draw.choice((0.0005, 0.003)),
        socket_bytes=1_000_000,
        publisher_credit=draw.choice((5, 40)),
        most_unsettled=draw.choice((30, 30_000)),
        min_in_sync=1,
        replicas=(tuple(sorted(draw.sample(range(brokers), members))),),
        faults=in_order(faults),
        power_cuts=tuple([_draw_power_cut(draw, brokers) for _ in range(draw.choice((0, 0, 0, 1, 2)))]),
        kinds=tuple(draw.choices(list(GroupQueueKind), of_queues, k=queues)),
        exclusive=tuple([not sessions and draw.random() < 0.25 for _ in range(queues)]),
        consumed_after_s=consumed_after_s,
        first_dies_early=draw.random() < 0.15,
        chunk_messages=draw.choice((1, 3, 10, 1000)),
        backup_timeout_s=draw.choice((1.0, 2.0)),
    )


def in_order(faults: list[BrokersFault]) -> tuple[BrokersFault, ...]:
    """By their time."""
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def draw_group_fault(draw: random.Random, kind: StrEnum) -> BrokersFault:
    """Some time of a run, for 25 ms to 3.75 s."""
    for_s = draw.choice((0.05, 0.2, 0.5, 1.0, 2.5)) * draw.uniform(0.5, 1.5)
    return BrokersFault(kind, round(draw.uniform(0.8, GROUP_ENDS_S), 3), round(for_s, 3), draw.randrange(1 << 30))


def _draw_power_cut(draw: random.Random, brokers: int) -> PowerCut:
    at_s = round(draw.uniform(1.5, GROUP_ENDS_S - 1.0), 3)
    return PowerCut(
        at_s, tuple([round(at_s + draw.choice((0.1, 0.5, 2.0)) + draw.random(), 3) for _ in range(brokers)])
    )
