"""What a cluster with proxies is to go through: drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

TURN_WITHIN_S: Final = 0.0006
FAULTS_END_S: Final = 12.0
MOVES: Final = 16
DELETIONS: Final = 8
TRANSACTING: Final = 6
"""Of a run that is about what is under way when a set moves."""
FIRST_WITH_AGENTS: Final = 200
"""Of clusters of proxies. Seeds that tests name are below: what they show does not hang on who promotes."""
FIRST_WITH_PREFERENCES: Final = 2_000
"""Of clusters of one set with agents: some have a preferred broker, and a coordinator that is away or empty, or that
agents alone do not reach. Seeds that tests name are below, and tell the stories that they told."""
BUSY_TURN_S: Final = 0.02
FORWARDING_ENDS_S: Final = 6.0
"""Where brokers hand messages on: many short runs meet more than a few long ones."""
_PAUSES_OF_ALL_S: Final = (1.55, 1.9), (1.55, 1.9), (2.5, 5.0)
"""Clients with sessions give up after 1 s, and a moment for their look at the clock; others, and brokers, after 2."""
_CUT_OFF_S: Final = 1.3, 1.7
"""Longer than clients that are cut off wait for an answer to their open, and less than brokers have patience for."""
POWER_CUTS: Final = (*(0,) * 9, 1, 2)
"""How many there are in a run."""
LAST_POWER_CUT_S: Final = 10.0


class BrokersKind(StrEnum):
    """What goes wrong, or is wanted."""

    CLIENT_CUT = "client cut"
    CLIENT_SLEEPS = "client sleeps"
    PROXY_CUT = "proxy cut"
    BLOCK = "block"
    ONE_WAY = "one way"
    CRASH_PRIMARY = "crash primary"
    CRASH_PROXY = "crash proxy"
    MOVE = "move"
    PAUSE = "pause"
    PAUSE_PRIMARY = "pause primary"
    PAUSE_ALL = "pause all"
    """For longer than clients wait for a sign of life."""
    SPLIT = "split"
    """The primary is cut off from all other brokers, and sometimes another one, too; others replace it meanwhile."""
    CUT_OFF = "cut off"
    """A broker cannot reach the one that keeps sessions, for longer than clients wait that have to resume theirs."""
    DELETE_QUEUE = "delete queue"
    END_SESSION = "end session"
    """An operator ends a session of a client."""
    DISK_SLOW = "disk slow"
    DISK_FULL = "disk full"
    DISK_CUT_SHORT = "disk cut short"
    """A machine loses its power, if none has yet, and a file of a journal is shorter when it comes again."""
    DISK_LOST = "disk lost"
    """As above; its stores are empty."""
    DISKS_PUT_BACK = "disks put back"
    """All machines lose their power, and come again with their stores as they were before somebody else led."""
    # With agents:
    AGENT_STOPS = "agent stops"
    """It does nothing, but keeps what it has."""
    AGENT_DIES = "agent dies"
    AGENT_ENDS = "agent ends"
    """It is told to, with its broker."""
    LOCK_TAKEN = "lock taken"
    COORDINATOR_CUT = "coordinator cut"
    """A machine does not reach it."""
    AGENT_CUT = "agent cut"
    """An agent does not reach it; its broker does."""
    COORDINATOR_AWAY = "coordinator away"
    """Nobody reaches it."""
    COORDINATOR_EMPTIED = "coordinator emptied"
    """It begins anew, without record, notes and locks, while brokers and agents go on."""
    SESSION_EXPIRED = "session expired"
    """It ends the session of an agent that lives and is connected, whether that has the lock or waits for it."""
    OPERATOR = "operator"
    AGENTS_PAUSE = "agents pause"
    RECORD_LOST = "record lost"
    """Somebody has deleted the coordinator's record."""
    PRIMARY_ALONE = "primary alone"
    """All other brokers are stopped until nobody is in sync with the primary any more, which is killed then, and comes
    again with its store. The record is lost in between, or is not."""


_WEIGHTS: Final = {
    BrokersKind.CLIENT_CUT: 4,
    BrokersKind.CLIENT_SLEEPS: 4,
    BrokersKind.PROXY_CUT: 4,
    BrokersKind.BLOCK: 2,
    BrokersKind.ONE_WAY: 2,
    BrokersKind.CRASH_PRIMARY: 6,
    BrokersKind.CRASH_PROXY: 3,
    BrokersKind.MOVE: 7,
    BrokersKind.PAUSE: 3,
    BrokersKind.PAUSE_PRIMARY: 2,
    BrokersKind.DELETE_QUEUE: 2,
}


_AGENTS_WEIGHTS: Final = {
    BrokersKind.AGENT_STOPS: 4,
    BrokersKind.AGENT_DIES: 3,
    BrokersKind.AGENT_ENDS: 3,
    BrokersKind.LOCK_TAKEN: 2,
    BrokersKind.COORDINATOR_CUT: 4,
    BrokersKind.OPERATOR: 6,
    BrokersKind.AGENTS_PAUSE: 2,
}

_COORDINATOR_WEIGHTS: Final = {
    BrokersKind.AGENT_CUT: 3,
    BrokersKind.COORDINATOR_AWAY: 2,
    BrokersKind.COORDINATOR_EMPTIED: 1,
    BrokersKind.SESSION_EXPIRED: 2,
}
_PRIORITIES: Final = 0, 0, 5, 10

_ONE_SET_WEIGHTS: Final = {
    BrokersKind.CLIENT_CUT: 1,
    BrokersKind.PROXY_CUT: 3,
    BrokersKind.BLOCK: 3,
    BrokersKind.ONE_WAY: 3,
    BrokersKind.CRASH_PRIMARY: 5,
    BrokersKind.CRASH_PROXY: 3,
    BrokersKind.PAUSE: 3,
    BrokersKind.PAUSE_PRIMARY: 4,
    BrokersKind.MOVE: 4,
}
_FORWARDING_WEIGHTS: Final = {
    BrokersKind.PROXY_CUT: 2,
    BrokersKind.BLOCK: 2,
    BrokersKind.ONE_WAY: 1,
    BrokersKind.CRASH_PRIMARY: 4,
    BrokersKind.CRASH_PROXY: 1,
    BrokersKind.MOVE: 4,
    BrokersKind.PAUSE: 1,
    BrokersKind.PAUSE_PRIMARY: 6,
}


_DISKS_WEIGHTS: Final = {BrokersKind.DISK_SLOW: 2, BrokersKind.DISK_FULL: 1}
_DAMAGE: Final = BrokersKind.DISK_CUT_SHORT, BrokersKind.DISKS_PUT_BACK, BrokersKind.DISK_LOST
OF_AGENTS_ALONE: Final = frozenset(
    (*_DISKS_WEIGHTS, *_DAMAGE, *_COORDINATOR_WEIGHTS, BrokersKind.RECORD_LOST, BrokersKind.PRIMARY_ALONE),
)
"""Clusters of proxies have none of these."""
_STORES_ALONE: Final = frozenset((BrokersKind.PRIMARY_ALONE, *_DAMAGE))
"""After these there is what disks have, and no more."""
_RECORD_FAULTS: Final = (
    (),
    (),
    (),
    (BrokersKind.RECORD_LOST,),
    (BrokersKind.RECORD_LOST, BrokersKind.RECORD_LOST),
    (BrokersKind.PRIMARY_ALONE,),
    (BrokersKind.PRIMARY_ALONE, BrokersKind.RECORD_LOST),
)
"""In a run."""


class BrokersFault(NamedTuple):
    kind: StrEnum
    """A `BrokersKind`, or one of a kind of cluster that has faults of its own."""
    at_s: float
    for_s: float
    draw: int
    """Seed of what else has to be drawn, when it strikes."""


class PowerCut(NamedTuple):
    """Of all machines at once, which come again one after the other. Seconds after the clients have begun."""

    at_s: float
    back_s: tuple[float, ...]
    """By the number of the machine."""


@dataclass(frozen=True)
class BrokersPlan:
    """A run, whole: two runs of the same plan are the same."""

    seed: int
    brokers: int
    publishers: int
    consumers: int
    shrinking: int
    """Consumers that give more credit than they want, and take some of it back, as Proton's blocking client does."""
    browsers: int
    transacting: int
    """Clients that work in transactions."""
    anonymous: int
    """Publishers by anonymous relays, each to all queues."""
    sessions: int
    """Clients with sessions."""
    bereft: int
    """Clients with sessions on the queue that is deleted now and then."""
    subscribers: int
    """Of an exchange, each with a durable subscription of its own."""
    forking: int
    """Publishers to an exchange that leads to queues of all sets."""
    delay_s: float
    """Of the network, on average."""
    socket_bytes: int
    """What the system keeps for somebody who reads slowly."""
    publisher_credit: int
    most_unsettled: int
    """Messages that a client may have and not have answered."""
    min_in_sync: int
    replicas: tuple[tuple[int, ...], ...]
    """Of each resource set beside `default`, which has one at every broker: the numbers of its brokers."""
    faults: tuple[BrokersFault, ...]
    hurried: bool = False
    """Clients that work in transactions discharge them before they have heard what became of their messages."""
    turn_within_s: float = TURN_WITHIN_S
    """So long after something has come a broker has its turn, at most: what comes before is worked on in it, too."""
    power_cuts: tuple[PowerCut, ...] = ()
    """Some: see `needs_stores`."""
    has_agents: bool = False
    """`qpid-ha-agent run` promotes, and starts brokers; else a driver of the tests does."""
    relays: bool = True
    """Brokers are proxies; else clients find whoever leads."""
    numbering: int = 0
    """Publishers that number their messages, and send again what they were not told of."""
    tail_bytes: int = 0
    """Of the log, kept for backups that come back; 0: so much that all come back by it."""
    chunk_messages: int = 0
    """Messages that a backup is sent at once which does not; 0: as many as brokers do."""
    session_timeout_s: float = 0.0
    """The agents' lock rests on sessions that the coordinator ends after such a silence; 0: on the kernel."""
    segment_bytes: int = 262_144
    """Of journals. What is full cannot begin another one."""
    priorities: tuple[int, ...] = ()
    """`ha.priority` of each broker, with failback to the preferred one; none: who is primary stays it."""
    until_s: float = 0.0
    """Until then something goes wrong, after the clients have begun; 0: as long as in others of its kind."""

    @property
    def has_faults(self) -> bool:
        """Whether anything goes wrong."""
        return bool(self.faults or self.power_cuts)

    @property
    def needs_stores(self) -> bool:
        """What is not on a disk may be lost, though it was confirmed: publishers send durable messages alone."""
        return bool(self.power_cuts) or any(each.kind in _STORES_ALONE for each in self.faults)

    @property
    def faults_end_s(self) -> float:
        """After the clients have begun."""
        return self.until_s or (FORWARDING_ENDS_S if self.forking else FAULTS_END_S)

    def describe(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in vars(self).items() if name != "faults")
        return "\n  ".join([f"plan: {settings}", *[_shown(each) for each in self.faults]])


def _shown(fault: BrokersFault) -> str:
    return f"{fault.at_s:7.3f}s {fault.kind} for={fault.for_s:.2f}s draw={fault.draw}"


def draw_forwarding_plan(seed: int) -> BrokersPlan:
    """2 or 3 brokers, 2 or 3 sets, and little else but an exchange that leads to queues of all of them."""
    draw = random.Random(f"{seed}/forwarding plan")
    brokers = draw.choice((2, 3, 3))
    sizes = [draw.choice((2, brokers)) for _ in range(draw.choice((1, 1, 2)))]
    replicas = tuple([tuple(sorted(draw.sample(range(brokers), size))) for size in sizes])
    kinds = draw.choices(list(_FORWARDING_WEIGHTS), list(_FORWARDING_WEIGHTS.values()), k=draw.choice((3, 5, 8)))
    faults = [_draw_fault(draw, kind, FORWARDING_ENDS_S) for kind in kinds]
    return BrokersPlan(
        seed,
        brokers,
        publishers=draw.choice((0, 1)),
        consumers=draw.choice((0, 1)),
        shrinking=0,
        browsers=0,
        transacting=draw.choice((0, 0, 0, 1)),
        anonymous=draw.choice((0, 0, 0, 1)),
        sessions=0,
        bereft=0,
        subscribers=0,
        forking=draw.choice((1, 2, 3)),
        delay_s=draw.choice((0.0005, 0.003, 0.015)),
        socket_bytes=draw.choice((2_000, 60_000, 1_000_000)),
        publisher_credit=draw.choice((5, 40, 1000)),
        most_unsettled=draw.choice((3, 30, 30_000)),
        min_in_sync=1,
        replicas=replicas,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def draw_split_plan(seed: int) -> BrokersPlan:
    """3 brokers, one set, few clients, two splits and a broker that is stopped between them: what comes late."""
    draw = random.Random(f"{seed}/split plan")
    pause = _draw_fault(draw, BrokersKind.PAUSE)._replace(at_s=6.2, for_s=2.5)
    faults = _draw_split(draw, 2.0), pause, _draw_split(draw, 8.9)
    return BrokersPlan(
        seed,
        brokers=3,
        publishers=4,
        consumers=5,
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
        publisher_credit=draw.choice((5, 40)),
        most_unsettled=draw.choice((30, 30_000)),
        min_in_sync=1,
        replicas=(),
        faults=faults,
    )


def draw_pauses_plan(seed: int) -> BrokersPlan:
    """As above, with clients of sessions, where all brokers are stopped for longer than those wait."""
    draw = random.Random(f"{seed}/x")
    pauses = ((2.0, 1.55), (5.5, 1.65), (9.0, 1.75))
    faults = [_draw_pause_of_all(draw)._replace(at_s=at_s, for_s=for_s) for at_s, for_s in pauses]
    return replace(draw_split_plan(seed), publishers=2, consumers=0, sessions=4, faults=tuple(faults))


def draw_deletions_plan(seed: int) -> BrokersPlan:
    """As above, with clients of sessions whose queue is deleted again and again, and a set that moves."""
    draw = random.Random(f"{seed}/deletions plan")
    kinds = [BrokersKind.DELETE_QUEUE] * DELETIONS + [BrokersKind.MOVE, BrokersKind.CLIENT_CUT]
    faults = [_draw_fault(draw, kind) for kind in kinds]
    at = sorted(faults, key=lambda fault: fault.at_s)
    return replace(draw_split_plan(seed), publishers=1, consumers=2, bereft=3, anonymous=1, faults=tuple(at))


def draw_moves_plan(seed: int) -> BrokersPlan:
    """3 busy brokers, 2 sets that move all the time, in order, and clients that work in transactions."""
    draw = random.Random(f"{seed}/moves plan")
    moves = [_draw_fault(draw, BrokersKind.MOVE) for _ in range(MOVES)]
    return BrokersPlan(
        seed,
        brokers=3,
        publishers=2,
        consumers=1,
        shrinking=0,
        browsers=0,
        transacting=TRANSACTING,
        anonymous=0,
        sessions=0,
        bereft=0,
        subscribers=0,
        forking=0,
        delay_s=0.0005,
        socket_bytes=1_000_000,
        publisher_credit=40,
        most_unsettled=30_000,
        min_in_sync=1,
        replicas=((0, 1, 2),),
        faults=tuple(sorted(moves, key=lambda fault: fault.at_s)),
        hurried=True,
        turn_within_s=BUSY_TURN_S,
    )


def draw_proxies_plan(seed: int) -> BrokersPlan:
    """2 to 4 brokers, 1 to 4 sets, and 3 to 21 clients; brokers lose their power together now and then."""
    draw = random.Random(f"{seed}/proxies plan")
    sessions = random.Random(f"{seed}/proxies sessions").choice((0, 0, 0, 1, 2))
    brokers = draw.randint(2, 4)
    replicas = _draw_replicas(random.Random(f"{seed}/proxies sets"), brokers)
    count = draw.choice((0, 4, 8, 14))
    kinds = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=count)
    faults = [_draw_fault(draw, kind) for kind in kinds]
    if sessions:
        ends = random.Random(f"{seed}/proxies ends of sessions")
        faults += [_draw_fault(ends, BrokersKind.END_SESSION) for _ in range(ends.choice((0, 1, 3)))]
        pauses = random.Random(f"{seed}/proxies pauses of all")
        faults += [_draw_pause_of_all(pauses) for _ in range(pauses.choice((1, 2, 3)))]
    splits = random.Random(f"{seed}/proxies parted")
    faults += [_draw_split(splits, splits.uniform(1.5, 9.0)) for _ in range(splits.choice((0, 0, 0, 1)))]
    bereft = random.Random(f"{seed}/proxies bereft").choice((*[0] * 14, 1, 2))
    shrinking = 0 if bereft else random.Random(f"{seed}/proxies credit that shrinks").choice((0, 0, 0, 0, 1, 2))
    if bereft:
        deletions = random.Random(f"{seed}/proxies deletions")
        faults += [_draw_fault(deletions, BrokersKind.DELETE_QUEUE) for _ in range(deletions.choice((1, 3, 5)))]
    plan = BrokersPlan(
        seed,
        brokers,
        draw.randint(2, 5) + len(replicas),
        draw.randint(1, 5) + len(replicas),
        shrinking,
        draw.randint(0, 1),
        random.Random(f"{seed}/proxies transactions").choice((0, 0, 1, 2)),
        random.Random(f"{seed}/proxies anonymous").choice((0, 0, 1)),
        sessions,
        bereft,
        random.Random(f"{seed}/proxies subscribers").choice((*[0] * 14, 1, 2)),
        0,
        draw.choice((0.0005, 0.003, 0.015)),
        draw.choice((2_000, 60_000, 1_000_000)),
        draw.choice((5, 40, 1000)),
        draw.choice((3, 30, 30_000)),
        min(draw.choice((1, 1, 2)), brokers - 1),
        replicas,
        tuple(sorted(faults, key=lambda fault: fault.at_s)),
        power_cuts=_draw_power_cuts(seed, brokers),
    )
    return _with_agents(_with_cuts(plan) if plan.sessions else plan)


def _with_agents(plan: BrokersPlan) -> BrokersPlan:
    """In half of all clusters but the first; in the others somebody promotes who knows nothing of a lock."""
    draw = random.Random(f"{plan.seed}/agents beside proxies")
    if plan.seed < FIRST_WITH_AGENTS or draw.random() < 0.5:
        return plan
    kinds = draw.choices(list(_AGENTS_WEIGHTS), list(_AGENTS_WEIGHTS.values()), k=draw.choice((0, 2, 4)))
    faults = [*plan.faults, *[_draw_fault(draw, kind) for kind in kinds]]
    return replace(plan, has_agents=True, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def draw_agents_plan(seed: int) -> BrokersPlan:
    """2 to 5 brokers with agents, one set, few clients, which connect to whoever leads; and much that goes wrong."""
    draw = random.Random(f"{seed}/agents plan")
    brokers = draw.choice((2, 3, 3, 3, 4, 5))
    weights = _ONE_SET_WEIGHTS | _AGENTS_WEIGHTS
    kinds = draw.choices(list(weights), list(weights.values()), k=draw.choice((2, 4, 8, 14)))
    faults = [_draw_fault(draw, kind) for kind in kinds]
    plan = BrokersPlan(
        seed,
        brokers,
        publishers=draw.choice((2, 3)),
        consumers=draw.choice((1, 2, 3)),
        shrinking=0,
        browsers=draw.choice((0, 0, 1)),
        transacting=draw.choice((0, 0, 0, 1)),
        anonymous=0,
        sessions=0,
        bereft=0,
        subscribers=0,
        forking=0,
        delay_s=draw.choice((0.0005, 0.003, 0.015)),
        socket_bytes=draw.choice((2_000, 60_000, 1_000_000)),
        publisher_credit=draw.choice((5, 40)),
        most_unsettled=draw.choice((30, 30_000)),
        min_in_sync=min(draw.choice((1, 1, 2)), brokers - 1),
        replicas=(),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        power_cuts=_draw_power_cuts(seed, brokers),
        has_agents=True,
        relays=False,
        numbering=random.Random(f"{seed}/numbering").choice((0, 1, 1, 2)),
        tail_bytes=random.Random(f"{seed}/tails").choice((0, 65_536)),
        chunk_messages=random.Random(f"{seed}/chunks").choice((0, 1, 5)),
        segment_bytes=random.Random(f"{seed}/segments").choice((65_536, 262_144)),
        session_timeout_s=random.Random(f"{seed}/sessions of agents").choice((0.0, 0.0, 1.0, 2.0, 4.0)),
    )
    return _with_preferred_brokers(_with_what_disks_and_coordinators_do(plan))


def _with_what_disks_and_coordinators_do(plan: BrokersPlan) -> BrokersPlan:
    """And clients that sleep. Of what was given up, clients that work in transactions know too little."""
    seed, faults = plan.seed, list(plan.faults)
    disks, sleeps = random.Random(f"{seed}/slow and full disks"), random.Random(f"{seed}/sleeping clients")
    kinds = disks.choices(list(_DISKS_WEIGHTS), list(_DISKS_WEIGHTS.values()), k=disks.choice((0, 0, 1, 2)))
    faults += [_draw_fault(disks, kind) for kind in kinds]
    damage, record = random.Random(f"{seed}/damaged stores"), random.Random(f"{seed}/lost records")
    if not plan.transacting:
        faults += [_draw_fault(damage, damage.choice(_DAMAGE)) for _ in range(damage.choice((0, 0, 0, 1)))]
    faults += [_draw_fault(record, kind) for kind in record.choice(_RECORD_FAULTS)]
    faults += [_draw_fault(sleeps, BrokersKind.CLIENT_SLEEPS) for _ in range(sleeps.choice((0, 0, 1, 3)))]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def _with_preferred_brokers(plan: BrokersPlan) -> BrokersPlan:
    """And pauses, in half of all clusters but the first; in half, whichever, the coordinator fails in more ways."""
    if plan.seed < FIRST_WITH_PREFERENCES:
        return plan
    preferences, coordinator = random.Random(f"{plan.seed}/preferences"), random.Random(f"{plan.seed}/coordinator")
    priorities = [preferences.choice(_PRIORITIES) for _ in range(plan.brokers)] if preferences.random() < 0.5 else []
    kinds = list(_COORDINATOR_WEIGHTS)
    drawn = coordinator.choices(kinds, list(_COORDINATOR_WEIGHTS.values()), k=coordinator.choice((0, 0, 1, 3)))
    faults = [*plan.faults, *[_draw_fault(coordinator, kind) for kind in drawn]]
    pauses = preferences.choice((0, 1, 2)) if priorities else 0
    faults += [_draw_fault(preferences, BrokersKind.AGENTS_PAUSE) for _ in range(pauses)]
    at = sorted(faults, key=lambda fault: fault.at_s)
    return replace(plan, priorities=tuple(priorities), faults=tuple(at))


def _draw_power_cuts(seed: int, brokers: int) -> tuple[PowerCut, ...]:
    draw = random.Random(f"{seed}/power cuts")
    return tuple([_draw_power_cut(draw, brokers) for _ in range(draw.choice(POWER_CUTS))])


def _draw_power_cut(draw: random.Random, brokers: int) -> PowerCut:
    at_s = round(draw.uniform(1.5, LAST_POWER_CUT_S), 3)
    back_s = [round(at_s + draw.choice((0.1, 0.5, 2.0)) + draw.random(), 3) for _ in range(brokers)]
    return PowerCut(at_s, tuple(back_s))


def _with_cuts(plan: BrokersPlan) -> BrokersPlan:
    draw = random.Random(f"{plan.seed}/proxies that are cut off")
    faults = [*plan.faults, *[_draw_cut_off(draw) for _ in range(draw.choice((0, 2, 4)))]]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def _draw_replicas(draw: random.Random, brokers: int) -> tuple[tuple[int, ...], ...]:
    """Of no set beside `default` in half of the runs."""
    count = draw.choice((0, 0, 0, 1, 2, 3))
    sizes = [draw.randint(2, brokers) for _ in range(count)]
    return tuple([tuple(sorted(draw.sample(range(brokers), size))) for size in sizes])


def _draw_fault(draw: random.Random, kind: BrokersKind, end_s: float = FAULTS_END_S) -> BrokersFault:
    for_s = draw.choice((0.1, 0.5, 1.0, 3.0)) * draw.uniform(0.5, 1.5)
    return BrokersFault(kind, round(draw.uniform(end_s / 8, end_s), 3), round(for_s, 3), draw.randrange(1 << 30))


def _draw_split(draw: random.Random, at_s: float) -> BrokersFault:
    fault = _draw_fault(draw, BrokersKind.SPLIT)
    return fault._replace(at_s=round(at_s, 3), for_s=round(draw.uniform(2.5, 4.0), 3))


def _draw_pause_of_all(draw: random.Random) -> BrokersFault:
    fault = _draw_fault(draw, BrokersKind.PAUSE_ALL)
    return fault._replace(for_s=round(draw.uniform(*draw.choice(_PAUSES_OF_ALL_S)), 3))


def _draw_cut_off(draw: random.Random) -> BrokersFault:
    return _draw_fault(draw, BrokersKind.CUT_OFF)._replace(for_s=round(draw.uniform(*_CUT_OFF_S), 3))
