"""The clients and the promises of `proxies_world`, with brokers that are real ones.

Real is all of `server`: listeners but for their sockets, channels between brokers, the drivers of members, stores with
their journals, the controller, and proxies. Brokers have stores, so a power cut leaves what was synced. Simplified is
who promotes: no agent, but somebody who tries who is ready.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final, cast

from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.effects import ClusterRecord
from qpid_ha_broker.ha.states import State
from qpid_ha_config.settings import BrokerSettings
from simulation.brokers_machine import Surroundings
from simulation.brokers_node import PORT, BrokerNode, NodeListener, Site, host_of, name_at
from simulation.brokers_sets import BrokerReplica, ControlledSet, RecordInMap
from simulation.node import Node, Violation, World, problem_of
from simulation.proxies_node import ProxyNode, Terms
from simulation.proxies_plan import ProxiesPlan
from simulation.proxies_replica import SetReplica
from simulation.proxies_sets import PlacedSet
from simulation.proxies_world import QUEUES, QUEUES_OF_OTHERS, ProxiesOutcome, ProxiesWorld, outcome_of
from simulation.register import Register

SIZES: Final = (*(0,) * 60, *(1000,) * 3, 10_000, 70_000)
"""Of messages: a few are longer than a frame. All brokers keep them in memory, in a journal and in a snapshot."""
IN_MEMORY: Final = Path("/dev/shm")


class RecordOfCoordinator:
    """What the coordinator has recorded of `default`."""

    def __init__(self, directory: Path) -> None:
        self._coordinator = FileCoordinator(directory)

    @property
    def record(self) -> ClusterRecord:
        return self._coordinator.read()


class BrokersWorld(ProxiesWorld):
    """Everything that a plan brings to life. `directory`: an empty one, which is used up."""

    sizes = SIZES
    busy_sizes = (6_000,)

    def __init__(self, plan: ProxiesPlan, with_trace: bool, directory: Path) -> None:
        self._directory = directory
        super().__init__(plan, with_trace)
        self.default.register = cast(Register, RecordOfCoordinator(self._coordinator_directory))
        self.streams.listeners = {node.name: NodeListener(node) for node in self.machines}

    @property
    def machines(self) -> list[BrokerNode]:
        """The nodes."""
        return cast(list[BrokerNode], self.nodes)

    def _make_nodes(self, around: World, terms: Terms) -> list[ProxyNode]:
        self._coordinator_directory = self._directory / "coordinator"
        self._coordinator_directory.mkdir()
        self.surroundings = Surroundings(self.trace, self._directory, self._refuses)
        site = Site(self.plan.seed, self.schedule, self.trace, self.surroundings, self, self._directory)
        nodes = [
            BrokerNode(site, index, self._clock(index), self._broker_settings, terms)
            for index in range(self.plan.brokers)
        ]
        return cast(list[ProxyNode], nodes)

    def _other_set(self, number: int, replicas: tuple[int, ...]) -> PlacedSet:
        name = f"set-{number}"
        placed = ControlledSet(name, self.schedule, self.trace, self.default)
        placed.queues = {f"{queue}_{number}": QUEUES[queue] for queue in QUEUES_OF_OTHERS}
        placed.network = self.default.network
        placed.register = cast(Register, RecordInMap(self.default, name))
        placed.nodes += [cast(SetReplica, BrokerReplica(self.machines[index], name)) for index in replicas]
        return placed

    def _refuses(self, host: str) -> bool:
        return not self.streams.listeners[name_at(host)].is_up

    def _broker_settings(self, index: int, directory: Path) -> BrokerSettings:
        addresses = [f"amqp://{host_of(number)}:{PORT}" for number in range(self.plan.brokers)]
        own: dict[str, Any] = {
            "name": f"n{index}",
            "listen": addresses[index],
            "data-dir": str(directory),
            "control-socket": str(directory / "control.sock"),
            "acl.rules": ["allow all all"],
            "auto-create": False,
            "idle-timeout": "3s",
            "publisher-credit": self.plan.publisher_credit,
            "max-unsettled-per-connection": self.plan.most_unsettled,
            "deduplication.producers": 1000,
            "store.segment-size": "256KiB",
            "store.consolidate-at": "512KiB",
            "store.memory": "64MiB",
            "memory-limit": "256MiB",
            "ha.cluster": True,
            "ha.brokers-url": ",".join(addresses),
            "ha.clients": "proxy",
            "ha.default-replicas": self.plan.brokers,
            "ha.coordinator": f"file:{self._coordinator_directory}",
            "ha.min-in-sync": min(self.plan.min_in_sync, self.plan.brokers - 1),
            "link-heartbeat-interval": "450ms",
        }
        return BrokerSettings.from_values(own)

    # --- see `brokers_node.BrokersWatcher`

    def member_changed(self, node: BrokerNode, set_name: str, change: fx.StateChanged, led_generation: int) -> None:
        if change.before is State.PRIMARY:
            self.ends_to_lead(set_name, led_generation)
        placed = self._set(set_name)
        replica = placed.at(node.index)
        if change.after is State.PRIMARY and replica is not None:
            placed.leads(cast(Node, replica))

    def ends_to_lead(self, set_name: str, led_generation: int) -> None:
        self._set(set_name).watch.ends_to_lead(led_generation)

    def _set(self, name: str) -> PlacedSet:
        return next(placed for placed in self.sets if placed.name == name)

    def broke(self, node: BrokerNode, reason: str) -> None:
        raise Violation(f"{node.name} ends: {reason}")


def run_brokers(plan: ProxiesPlan, with_trace: bool = False) -> ProxiesOutcome:
    """The whole run of `plan`. A problem is the outcome, not an exception."""
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        world = BrokersWorld(plan, with_trace, directory)
        with world.surroundings.installed():
            problem = problem_of(world.run, world.trace)
            outcome = outcome_of(world, problem)
            for node in world.machines:
                node.let_go()
        return outcome
    finally:
        shutil.rmtree(directory)


