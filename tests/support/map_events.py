"""Random events of the cluster map, each of which fits the map as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from uuid import UUID

from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev

BROKERS = ("alpha", "beta", "gamma")
SETS = ("s", "t", "u")
PLACED = ("p1", "p2", "p3")


def map_event(random: Random, there: ClusterMap, taken: Collection[str] = ()) -> ev.MapEvent:
    """One that fits `there`. `taken`: names that queues and exchanges of `default` have."""
    return random.choice(_possible(random, there, taken))()


def _possible(random: Random, there: ClusterMap, taken: Collection[str]) -> list[Callable[[], ev.MapEvent]]:
    name, broker = random.choice(SETS), random.choice(BROKERS)
    brokers = tuple(random.sample(BROKERS, random.randint(1, 3)))
    number = random.randint(0, 5)
    possible: list[Callable[[], ev.MapEvent]] = [
        lambda: ev.BrokerRegistered(broker, str(UUID(int=number)), f"{broker}:5672", "", random.choice("xy"), "0.3"),
        lambda: ev.SetPlaced(name, brokers, brokers[1:], random.choice(["", broker]), number, number % 3),
        lambda: _policies_or_setting(number, broker),
    ]
    if broker in there.brokers:
        possible.append(lambda: ev.BrokerChanged(broker, number % 2 == 0, number > 3, number * 1000))
        possible.append(lambda: ev.BrokerRemoved(broker))
    if name in there.sets:
        possible.append(lambda: ev.SetRecorded(name, "c", number, broker, number, brokers, number % 2 == 0))
        possible.append(lambda: ev.SetGrouped(name))
        free = [each for each in PLACED if each not in there.queues and each not in taken]
        if not there.queues_of(name):
            possible.append(lambda: ev.SetDeleted(name))
        if free:
            possible.append(lambda: ev.QueuePlaced(random.choice(free), name, {"qpid.max_count": number}, False))
    if there.queues:
        placed = random.choice(list(there.queues.values()))
        possible.append(lambda: ev.QueuePlaced(placed.name, placed.set, {"colour": "red"}, random.random() < 0.5))
        possible.append(lambda: ev.QueueRemoved(placed.id))
    return possible


def _policies_or_setting(number: int, user: str) -> ev.MapEvent:
    if number < 3:
        return ev.ReplicaPoliciesChanged(("s*", "*")[:number], (number, 2)[:number])
    return ev.SettingChanged("kl"[number % 2], ("", '"10s"')[number // 5], user, number * 1000)
