"""The clients and the promises of `proxies_world`, with brokers that are real ones.

Real is all of `server`: listeners but for their sockets, channels between brokers, the drivers of members, stores with
their journals, the controller, and proxies. Brokers have stores, so a power cut leaves what was synced. Simplified is
who promotes: no agent, but somebody who tries who is ready.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.states import State
from qpid_ha_config.settings import BrokerSettings
from simulation.brokers_machine import Surroundings
from simulation.brokers_node import PORT, BrokerNode, NodeListener, Site, host_of, name_at
from simulation.brokers_sets import BrokerReplica, ControlledSet, RecordInMap
from simulation.node import Node, Violation, World, problem_of
from simulation.proxies_clients import PublishingClient
from simulation.proxies_node import ProxyNode, Terms
from simulation.proxies_plan import ProxiesPlan, draw_proxies_plan
from simulation.proxies_replica import SetReplica
from simulation.proxies_sets import PlacedSet
from simulation.proxies_world import QUEUES, QUEUES_OF_OTHERS, AnyClient, ProxiesOutcome, ProxiesWorld, outcome_of
from simulation.register import Register

SIZES: Final = (*(0,) * 60, *(1000,) * 3, 10_000, 70_000)
"""Of messages: a few are longer than a frame. All brokers keep them in memory, in a journal and in a snapshot."""
BUSY_SIZES: Final = (2_000,)
"""Of those that are on their way to consumers who take credit back."""
SLOW_DISKS_S: Final = 0.1, 0.6
"""How much longer a sync takes, at most, where the power is cut: so much is on its way to a disk then."""
POWER_CUTS: Final = (*(0,) * 9, 1, 2)
"""How many there are in a run."""
LAST_POWER_CUT_S: Final = 10.0
IN_MEMORY: Final = Path("/dev/shm")


class PowerCut(NamedTuple):
    """Of all machines at once, which come again one after the other. Seconds after the clients have begun."""

    at_s: float
    back_s: tuple[float, ...]
    """By the number of the machine."""


@dataclass(frozen=True)
class BrokersPlan(ProxiesPlan):
    """A run with real brokers, whole."""

    power_cuts: tuple[PowerCut, ...] = ()
    """Some: publishers send durable messages alone."""

    @property
    def has_faults(self) -> bool:
        """As `ProxiesPlan.has_faults`."""
        return bool(self.faults or self.power_cuts)


def draw_brokers_plan(seed: int) -> BrokersPlan:
    """That of a cluster of proxies, whose brokers lose their power together now and then."""
    plan, draw = draw_proxies_plan(seed), random.Random(f"{seed}/power cuts")
    cuts = [_draw_power_cut(draw, plan.brokers) for _ in range(draw.choice(POWER_CUTS))]
    return BrokersPlan(**vars(plan), power_cuts=tuple(cuts))


def _draw_power_cut(draw: random.Random, brokers: int) -> PowerCut:
    at_s = round(draw.uniform(1.5, LAST_POWER_CUT_S), 3)
    back_s = [round(at_s + draw.choice((0.1, 0.5, 2.0)) + draw.random(), 3) for _ in range(brokers)]
    return PowerCut(at_s, tuple(back_s))


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
    busy_sizes = BUSY_SIZES

    def __init__(self, plan: BrokersPlan, with_trace: bool, directory: Path) -> None:
        self._directory = directory
        self._power_cuts = plan.power_cuts
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

    def _make_clients(self) -> list[AnyClient]:
        """The power is cut while they are there."""
        clients = super()._make_clients()
        for client in clients if self._power_cuts else ():
            if isinstance(client, PublishingClient):
                client.is_durable = True
        if self._power_cuts:
            draw = self._draw("disks")
            self._slow_disks([draw.choice(SLOW_DISKS_S) for _ in self.machines])
            # One that stays slow keeps its broker from the in-sync set for as long as clients are busy.
            self.schedule.after(self.plan.faults_end_s, partial(self._slow_disks, [0.0] * len(self.machines)))
        for cut in self._power_cuts:
            self.schedule.after(cut.at_s, partial(self._cut_power, cut))
        return clients

    def _slow_disks(self, slow_s: Sequence[float]) -> None:
        for machine, machine_s in zip(self.machines, slow_s, strict=True):
            machine.disks.slow_s = machine_s

    def _cut_power(self, cut: PowerCut) -> None:
        """No broker could take over: each has what it has synced. Not where one is away already, and comes again."""
        if all(machine.is_up and not machine.is_paused for machine in self.machines):
            for machine, back_s in zip(self.machines, cut.back_s, strict=True):
                machine.kill(is_silent=True)
                self.schedule.after(back_s - cut.at_s, machine.start)

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


def run_brokers(plan: BrokersPlan, with_trace: bool = False) -> ProxiesOutcome:
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
