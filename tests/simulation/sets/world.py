"""Real brokers with many resource sets, of which the controller chooses who has replicas and who leads.

As `brokers.world`, with few clients. In addition brokers die at any time, are gone for long and for good, and operators
have sets made, moved and deleted. What controllers decide is looked at (`checks`), and whether each set comes
to have what the map says, and the map what is wanted.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.server.controller.controller_client import ControllerClient
from simulation.brokers.clients import PublishingClient
from simulation.brokers.placed_sets import ControlledSet, PlacedSet, RecordInMap
from simulation.brokers.world import (
    QUEUES,
    QUEUES_OF_OTHERS,
    REST_WITHIN_S,
    AnyClient,
    BrokersOutcome,
    BrokersWorld,
    run_world,
)
from simulation.machines.node import BrokerNode, BrokerReplica, SimulatedBroker
from simulation.sets.checks import ControllersWatch
from simulation.sets.map_checks import MapChecks
from simulation.sets.plan import SetsPlan
from simulation.sets.queue_ledger import QueueLedger
from simulation.sets.trouble import ClusterOperator, QueueTraffic, SetsTrouble
from simulation.violations import Violation

RECOVERY_S: Final = 3.0
CHECK_S: Final = 2.0
"""Settings `ha.failure-recovery-interval` and `ha.replica-check-interval`."""
ROOM_BYTES: Final = 1 << 30
"""What each broker says to have: that of the machine under the tests is another one each time."""
MIN_REPLICAS: Final = 2
MOVES, MOVES_OF_A_FAULT = 4, 3
"""So many primaries a set may have, and so many more for each fault: what fails and what comes back."""


class ReplicatedSet(ControlledSet):
    """One whose replicas the controller chooses, and their number keeps up."""

    wanted = 0
    """How many; 0: as policies say."""

    @property
    def _params_to_create(self) -> dict[str, Any]:
        wanted = {"min_replicas": self.wanted} if self.wanted else {}
        return {"action": "create", "name": self.name, **wanted}

    @property
    def _replicas(self) -> list[Any]:
        entry = self._entry
        return [node for node in self.nodes if entry is not None and node.name in entry.replicas]

    @property
    def _entry(self) -> SetEntry | None:
        primary = self._default.primary
        return None if primary is None else primary.resources.catalog.map.sets.get(self.name)

    @property
    def has_queues(self) -> bool:
        """All of them were there once."""
        return len(self._declared) == len(self.all_queues)

    def why_not_at_rest(self) -> str:
        return "" if self.has_queues else f"{self.name} has not got its queues"


class CommittedRecord(RecordInMap):
    """As it is committed, whoever leads `default`."""

    def __init__(self, world: SetsWorld, set_name: str) -> None:
        self._world = world
        self._name = set_name

    @property
    def record(self) -> ClusterRecord:
        entry = self._world.controllers.map.sets.get(self._name)
        return ClusterRecord() if entry is None else ClusterRecord(*entry.record[1:])


class SetsWorld(BrokersWorld):
    """Everything that a plan brings to life."""

    def __init__(self, plan: SetsPlan, with_trace: bool, directory: Path) -> None:
        self.zones = plan.zones
        super().__init__(plan, with_trace, directory)
        self.checks = MapChecks(MIN_REPLICAS)
        self.controllers = ControllersWatch(
            self.schedule, self.streams, self.trace, self.nodes, self.checks, self._led_at
        )
        self.queues = QueueLedger(self.controllers.map)
        self._has_deletions, self._last_dies = plan.deletions, plan.last_dies
        self._traffic: QueueTraffic | None = None
        self._requests = ClusterOperator(self.nodes)
        self._others: dict[str, PlacedSet] = {}
        """Sets without clients of ours, by name."""
        for number, wanted in enumerate(plan.wanted, 1):
            placed = self._replicated(f"set-{number}")
            placed.wanted = wanted
            placed.queues = {f"{queue}_{number}": QUEUES[queue] for queue in QUEUES_OF_OTHERS}
            self.sets.append(placed)
        self.trouble: SetsTrouble = SetsTrouble(
            self.schedule,
            self.streams,
            self.nodes,
            self.default,
            self.sets,
            self.leases,
            self.operator,
            self.controllers,
            lambda: [*self.sets, *self._others.values()],
            self._requests,
        )

    def _values(self, index: int, directory: Path) -> dict[str, Any]:
        zone = self.zones[index]
        return {
            **super()._values(index, directory),
            **({"ha.zone": zone} if zone else {}),
            "ha.min-in-sync": 1,
            "ha.min-replicas": MIN_REPLICAS,
            "ha.failure-recovery-interval": f"{RECOVERY_S:g}s",
            "ha.replica-check-interval": f"{CHECK_S:g}s",
        }

    def _replicated(self, name: str) -> ReplicatedSet:
        nodes = [BrokerReplica(node, name) for node in self.nodes]
        placed = ReplicatedSet(name, self.schedule, self.trace, self.default, nodes)
        placed.register = CommittedRecord(self, name)
        return placed

    def _set(self, name: str) -> PlacedSet:
        found = next((placed for placed in self.sets if placed.name == name), None)
        if found is None and name not in self._others:
            self._others[name] = self._replicated(name)
        return found or self._others[name]

    def _make_clients(self) -> list[AnyClient]:
        clients = super()._make_clients()
        for client in clients:
            if isinstance(client, PublishingClient):
                client.is_durable = True
        if self._has_deletions:
            self._traffic = QueueTraffic(self.schedule, self.streams, self.trouble, self._requests, self.plan)
        return clients

    def _led_at(self, node: BrokerNode) -> list[str]:
        """Sets other than `default`."""
        placed = [*self.sets[1:], *self._others.values()]
        return [each.name for each in placed if (replica := each.at(node.index)) is not None and replica.is_primary]

    # --- see `brokers_node.BrokersWatcher`

    def joined(self, node: BrokerNode, broker: SimulatedBroker) -> None:
        sets = broker.sets
        assert sets is not None
        self.controllers.watch(node, sets.service, broker.membership.default)
        self._cut_client(node, sets.client)
        sets._reports._room_bytes = lambda: ROOM_BYTES
        compare, report = sets.queues._compare, sets.queues.report

        def seen_compare(set_name: str) -> None:
            compare(set_name)
            self._look_at_queues(node, set_name)

        def seen_report(full: bool) -> Any:
            for set_name in self._led_at(node):
                self._look_at_queues(node, set_name)
            return report(full)

        setattr(sets.queues, "_compare", seen_compare)  # noqa: B010 - a method, which mypy lets nobody replace
        setattr(sets._reports, "_queues", seen_report)  # noqa: B010 - the same

    def _cut_client(self, node: BrokerNode, client: ControllerClient) -> None:
        """It makes no channel while there can be none."""
        make = client._open

        def open_if_it_can() -> None:
            if self.trouble.has_channel(node.name):
                make()

        setattr(client, "_open", open_if_it_can)  # noqa: B010 - a method, which mypy lets nobody replace

    def _look_at_queues(self, node: BrokerNode, set_name: str) -> None:
        """Where the set is led as recorded, by one broker."""
        entry, placed = self.controllers.map.sets.get(set_name), self._set(set_name)
        leaders = [each for each in placed.nodes if each.is_primary]
        if entry is None or [each.name for each in leaders] != [node.name] or entry.record.primary != node.name:
            return
        if leaders[0].member.status.generation == entry.record.generation:
            for step in self.queues.look(leaders[0], entry):
                if self._traffic is not None:
                    self._traffic.stepped(node, step, self.default.primary, self.nodes)

    # --- what must be so

    def _check(self) -> None:
        super()._check()
        self.controllers.look()

    def come_to_rest(self) -> None:
        if not self._last_dies:
            return
        nodes = [node for node in self.nodes if self.trouble.is_spared(node)]
        primary = self.default.primary
        if not nodes or len(self.nodes) < 3:
            return
        draw = self._draw("who dies last")
        node = primary if primary in nodes and draw.random() < 0.5 else draw.choice(nodes)
        assert node is not None
        node.note_line("DIES FOR GOOD")
        for placed in [*self.sets, *self._others.values()]:
            placed.gone.add(node.name)
        node.kill(is_silent=draw.random() < 0.3)
        self.brokers = tuple([name for name in self.brokers if name != node.name])
        self._until(self._why_brokers_are_not_at_rest, REST_WITHIN_S)

    def _why_brokers_are_not_at_rest(self) -> str:
        waiting = super()._why_brokers_are_not_at_rest()
        if waiting:
            return waiting
        there = self.controllers.map
        for name in self._others.keys() | {placed.name for placed in self.sets[1:]}:
            if name not in there.sets and any(each.is_up for each in self._set(name).nodes):
                return f"{name} is hosted, and the map has no such set"
        return next(filter(None, map(self._why_not_as_wanted, there.sets.values())), "")

    def _why_not_as_wanted(self, entry: SetEntry) -> str:
        """What a set of the map lacks; empty: nothing."""
        placed, there = self._set(entry.name), self.controllers.map
        up = [node.name for node in self.nodes if node.is_up]
        leaders = [node for node in placed.nodes if node.is_primary]
        if [node.name for node in leaders] != [entry.record.primary]:
            # Where nobody is there that was in sync nobody may lead.
            is_away = entry.record.generation and not set(entry.record.members) & set(up)
            names = [node.name for node in leaders]
            return "" if is_away and not names else f"{entry.name} is led by {names}, recorded is {entry.record}"
        unhosted = [name for name in entry.replicas if name in up and not placed.nodes[int(name[1:])].is_up]
        hosted = [node.name for node in placed.nodes if node.is_up and node.name not in entry.replicas]
        if unhosted or hosted:
            return f"{entry.name} is not hosted at {unhosted}, and is at {hosted}: {entry}"
        problem = self.checks.why_not_placed(there, entry, up)
        return problem or self.queues.why_not_at_rest(leaders[0], entry)

    def run(self) -> None:
        super().run()
        faults = len(self.plan.faults) + (0 if self._traffic is None else self._traffic.deaths) + self._last_dies
        for key, moves in Counter(key[:2] for key in self.checks.primaries).items():
            if moves > MOVES + MOVES_OF_A_FAULT * faults:
                raise Violation(f"{key} has had {moves} primaries, and there were {faults} faults")


def run_sets(plan: SetsPlan, with_trace: bool = False) -> BrokersOutcome:
    """The whole run of `plan`. A problem is the outcome, not an exception."""
    return run_world(partial(SetsWorld, plan, with_trace))
