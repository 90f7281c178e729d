"""Where a replica of a resource set goes: a pure function, which anybody may replace, and what became of it.

Safety property: no two replicas of a set are on one machine, whatever the function says. `apart` takes the other
workers of a machine that has one out of what it is asked about, and `one_a_machine` counts two that are there for one.

It ranks the brokers that could have one, best first, and says why. `spread`, `ring` and `static` are the entry points
of the group `qpid_ha.placement` that come with the release; docs/cluster.md. Of one that raises, or whose answer makes
no sense, that is said, and `spread` serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from qpid_ha_broker.events.counted import counted


class PlacementBroker(NamedTuple):
    """A broker, as far as it matters for where replicas go. Of `default` nothing is counted."""

    name: str
    zone: str = ""
    """What fails together; empty: not known."""
    up: bool = True
    draining: bool = False
    stopping: bool = False
    """It is about to stop, and back in a moment perhaps: it gets nothing new where another one is left for it."""
    away_s: float = 0.0
    """For how long it has been away; 0 when it is up."""
    room_bytes: int = 0
    """What it could still store."""
    replicas: int = 0
    primaries: int = 0
    rate: int = 0
    """Messages per second of the sets that it leads."""
    lag: int = 0
    """LSNs that its replicas are behind their primaries, together."""
    catching_up: int = 0
    """Replicas of it that are not in sync."""
    machine: str = ""
    """Whose worker it is; empty: it is alone on its machine."""

    @property
    def host(self) -> str:
        """Its machine, by a name that no other machine has."""
        return self.machine or self.name

    @property
    def is_open(self) -> bool:
        """Whether it could have another replica."""
        return self.up and not self.draining


class PlacementSet(NamedTuple):
    """The resource set that wants one more replica."""

    name: str
    replicas: tuple[str, ...]
    """That stay."""
    primary: str
    """Who should lead it, or else does; empty: nobody yet."""
    bytes: int = 0
    """What a replica has to hold."""


class Ranked(NamedTuple):
    """A broker for a replica, and why it has its rank."""

    broker: str
    why: str


Placement = Callable[[PlacementSet, Mapping[str, PlacementBroker]], Sequence[Ranked]]
"""Ranks, best first, those of the brokers that are open and have no replica; others may be left out."""


def apart(placed: Iterable[str], brokers: Mapping[str, PlacementBroker]) -> dict[str, PlacementBroker]:
    """Those that have one of these replicas, and those on machines where nobody has."""
    having = set(placed)
    taken = {brokers[name].host for name in having if name in brokers}
    return {name: each for name, each in brokers.items() if name in having or each.host not in taken}


def one_a_machine(names: Iterable[str], brokers: Mapping[str, PlacementBroker]) -> list[str]:
    """Of these brokers the first of each machine, in their order. Who is not known is on a machine of its own."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(brokers[name].host if name in brokers else name, name)
    return list(first.values())


def spread(placed: PlacementSet, brokers: Mapping[str, PlacementBroker]) -> Sequence[Ranked]:
    """Another zone first, then the fewest replicas, then the most room; who has too little of it comes last."""
    zones = Counter(brokers[name].zone for name in placed.replicas if name in brokers)

    def key(broker: PlacementBroker) -> tuple[object, ...]:
        is_tight = broker.room_bytes < placed.bytes
        crowd = zones[broker.zone]
        return crowd, is_tight, broker.replicas, -broker.room_bytes, broker.rate, broker.lag, broker.name

    def why(broker: PlacementBroker) -> str:
        crowd = zones[broker.zone]
        place = f"zone {broker.zone} has {crowd or 'none'} of it" if broker.zone else "it is in no zone"
        replicas = counted(broker.replicas, "replica is", "replicas are")
        return f"{place}, {replicas} there, {broker.room_bytes >> 20} MiB are free"

    return [Ranked(broker.name, why(broker)) for broker in sorted(_open(placed, brokers), key=key)]


def ring(placed: PlacementSet, brokers: Mapping[str, PlacementBroker]) -> Sequence[Ranked]:
    """Those after its primary, by name, and on from the first after the last one."""
    after = sorted(_open(placed, brokers), key=lambda broker: (broker.name < placed.primary, broker.name))
    return [
        Ranked(broker.name, f"comes after {placed.primary or 'nobody'}: place {place}")
        for place, broker in _count(after)
    ]


def static(placed: PlacementSet, brokers: Mapping[str, PlacementBroker]) -> Sequence[Ranked]:
    """By name, whatever they have to do: all sets are on the same brokers."""
    ordered = sorted(_open(placed, brokers), key=lambda broker: broker.name)
    return [Ranked(broker.name, f"place {place} by name") for place, broker in _count(ordered)]


def _count(brokers: Sequence[PlacementBroker]) -> Sequence[tuple[int, PlacementBroker]]:
    return list(enumerate(brokers, start=1))


def _open(placed: PlacementSet, brokers: Mapping[str, PlacementBroker]) -> list[PlacementBroker]:
    return [broker for broker in brokers.values() if broker.is_open and broker.name not in placed.replicas]


class Ranking(NamedTuple):
    """What a placement has answered. `problem`: why `spread` had to; empty: it did not."""

    ranked: tuple[Ranked, ...]
    problem: str = ""


def rank(placement: Placement, placed: PlacementSet, brokers: Mapping[str, PlacementBroker]) -> Ranking:
    """Ask it, and `spread` if that comes to nothing, about those brokers that `apart` leaves."""
    brokers = apart(placed.replicas, brokers)
    try:
        ranked = tuple(placement(placed, dict(brokers)))
        problem = _why_nonsense(ranked, placed, brokers)
    except Exception as error:  # noqa: BLE001 # a plug-in may raise anything, and replicas are kept up all the same
        problem = f"it raised {type(error).__name__}: {error}"
    if not problem:
        return Ranking(ranked)
    name = getattr(placement, "__name__", type(placement).__name__)
    return Ranking(tuple(spread(placed, brokers)), f"placement {name}: {problem}; `spread` serves")


def _why_nonsense(ranked: Sequence[object], placed: PlacementSet, brokers: Mapping[str, PlacementBroker]) -> str:
    may_have = {broker.name for broker in _open(placed, brokers)}
    names = [each.broker for each in ranked if isinstance(each, Ranked)]
    if len(names) != len(ranked):
        return "its answer is no sequence of Ranked"
    wrong = [name for name in names if name not in may_have]
    if wrong:
        return f"it ranks {wrong[0]!r:.80}, which cannot have a replica of {placed.name}"
    if len(set(names)) != len(names):
        return "it ranks a broker twice"
    if may_have and not names:
        return f"it ranks nobody, and {len(may_have)} brokers could have a replica of {placed.name}"
    return ""
