"""A cluster of real brokers in virtual time in which a test says what happens, one thing after the other."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.server.control.control import ControlError
from simulation.brokers.clients import PublishingClient
from simulation.brokers.ledger import Ledger
from simulation.brokers.watch import queued
from simulation.brokers.world import IN_MEMORY
from simulation.machines.node import BrokerNode, BrokerReplica
from simulation.sets.plan import SetsPlan
from simulation.sets.world import SetsWorld
from simulation.violations import Violation

STEP_S: Final = 0.05
BEGINS_WITHIN_S: Final = 20.0
INTRODUCED_S: Final = 1.5
"""By then all have reported to the controller, which knows nobody else."""
ANSWER_WITHIN_S: Final = 30.0
REST_WITHIN_S: Final = 60.0


class Refused(Exception):
    """What was asked for is not done."""


class SetsScenario(SetsWorld):
    """Brokers n0, n1 and so on, of which n0 leads `default`. Names are those of brokers."""

    def __init__(self, zones: Sequence[str], directory: Path, settings: Mapping[str, str | int]) -> None:
        self._own_settings = settings
        plan = SetsPlan(
            7, len(zones), publishers=0, consumers=0, shrinking=0, browsers=0, transacting=0, anonymous=0, sessions=0,
            bereft=0, subscribers=0, forking=0, delay_s=0.003, socket_bytes=1_000_000, publisher_credit=40,
            most_unsettled=30_000, min_in_sync=1, replicas=(), faults=(), zones=tuple(zones),
        )  # fmt: skip
        super().__init__(plan, False, directory)

    def _values(self, index: int, directory: Path) -> dict[str, Any]:
        return {**super()._values(index, directory), **self._own_settings}

    def begin(self) -> None:
        """All of them start."""
        for node in self.nodes:
            node.start_machine()
        self.schedule.after(0.1, self.default.look)
        self.schedule.after(STEP_S, self._check)
        self.run_until(lambda: not self.default.why_not_at_rest(), BEGINS_WITHIN_S)
        self.lead("n0")
        self.let_go_by(INTRODUCED_S)

    # --- time

    def let_go_by(self, seconds: float) -> None:
        """So much time."""
        self.schedule.run_until(self.schedule.now_s + seconds)

    def run_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Raises Violation if it does not become true."""
        end_s = self.schedule.now_s + limit_s
        while not condition():
            if self.schedule.now_s > end_s:
                raise Violation(f"after {limit_s} s it is still not so")
            self.let_go_by(STEP_S)

    def settle(self) -> None:
        """Wait until each set is as the map says, and the map as is wanted. Raises Violation."""
        self._until(self._why_brokers_are_not_at_rest, REST_WITHIN_S)

    # --- what happens

    def node(self, name: str) -> BrokerNode:
        return self.nodes[int(name[1:])]

    def kill(self, name: str) -> None:
        """Its process."""
        for placed in [*self.sets, *self._others.values()]:
            placed.gone.add(name)
        self.node(name).kill(is_silent=False)

    def start(self, name: str) -> None:
        """Another process of it."""
        for placed in [*self.sets, *self._others.values()]:
            placed.gone.discard(name)
        self.node(name).start_machine()

    def cut(self, one: str, other: str) -> None:
        """Nothing goes between them any more."""
        for ends in ((one, other), (other, one)):
            self.streams.block(*ends)

    def mend(self, one: str, other: str) -> None:
        """It does again."""
        for ends in ((one, other), (other, one)):
            self.streams.unblock(*ends)

    def lead(self, name: str) -> None:
        """`default`, from now on."""
        primary = self.default.primary
        if primary is not None and primary.name != name:
            self.asked("switchover", {"to": name}, primary.name)
        self.run_until(lambda: self.default.primary is self.node(name) and self.node(name).is_serving, BEGINS_WITHIN_S)

    def break_channel(self, name: str, for_s: float) -> None:
        """The one to the controller; that broker makes no other one for so long."""
        self.trouble.break_channel(self.node(name), for_s)

    def asked(self, method: str, params: dict[str, object], at: str = "n0") -> Any:
        """Of the control method of a broker, its result. Raises Refused."""
        answers = self.ask(method, params, at)
        self.run_until(lambda: bool(answers), ANSWER_WITHIN_S)
        if isinstance(answers[0], Refused):
            raise answers[0]
        return answers[0]

    def ask(self, method: str, params: dict[str, object], at: str = "n0") -> list[Any]:
        """The same; the list has the answer, once there is one."""
        node, answers = self.node(at), list[Any]()

        async def call() -> None:
            try:
                answer = node.broker.control.methods[method](params)
                answers.append(await answer if isinstance(answer, Awaitable) else answer)
            except (ControlError, ModelError) as error:
                answers.append(Refused(str(error)))

        def begin() -> None:
            assert node._running is not None
            node._running.loop.create_task(call())

        node.do(begin)
        return answers

    def publish(self, set_name: str) -> Ledger:
        """Somebody publishes to a queue of that set from now on; what is told of that."""
        self.asked("queues", _queue_of(set_name))
        return self._publish(set_name)

    def publish_later(self, set_name: str) -> Ledger:
        """The same, once the queue can be made."""

        def make() -> None:
            if f"queue_of_{set_name}" not in self.controllers.map.queues:
                self.ask_anybody("queues", _queue_of(set_name))
                self.schedule.after(0.3, make)

        make()
        return self._publish(set_name)

    def _publish(self, set_name: str) -> Ledger:
        queue, ledger = f"queue_of_{set_name}", self._set(set_name).ledger
        client = PublishingClient(self, "p0", random.Random(7), ledger, queue)
        client.is_durable = True
        self.clients.append(client)
        return ledger

    def ask_anybody(self, method: str, params: dict[str, object]) -> None:
        """Of whoever is up; what comes of it, nobody hears."""
        name = next((node.name for node in self.nodes if node.is_up), "")
        if name:
            self.ask(method, params, name)

    # --- what has come of it

    def replica(self, set_name: str, name: str) -> BrokerReplica:
        """Of a set beside `default`, the one at that broker."""
        replica = self._set(set_name).at(self.node(name).index)
        assert isinstance(replica, BrokerReplica)
        return replica

    def check_confirmed(self, set_name: str) -> None:
        """All that a publisher was told to be there is. Raises Violation."""
        placed = self._set(set_name)
        assert placed.primary is not None
        placed.ledger.check_rest(queued(placed.primary))

    def entry(self, set_name: str) -> SetEntry:
        """As it is committed."""
        return self.controllers.map.sets[set_name]

    def in_sync(self, set_name: str) -> set[str]:
        return set(self.entry(set_name).record.members)

    def replicas(self, set_name: str) -> set[str]:
        return set(self.entry(set_name).replicas)

    def leads(self, name: str, set_name: str) -> bool:
        """Whether that broker serves it."""
        replica = self._set(set_name).at(self.node(name).index)
        return replica is not None and replica.is_serving

    def queues_in(self, set_name: str) -> set[str]:
        """As its primary has them."""
        primary = self._set(set_name).primary
        assert primary is not None
        return set(primary.resources.catalog.queues)

    def led_by(self) -> dict[str, int]:
        """How many sets each broker leads by the map."""
        primaries = [entry.record.primary for entry in self.controllers.map.sets.values()]
        return {node.name: primaries.count(node.name) for node in self.nodes}


def _queue_of(set_name: str) -> dict[str, object]:
    arguments = {"qpid.resource-set": set_name}
    return {"action": "create", "name": f"queue_of_{set_name}", "arguments": arguments}


@contextmanager
def cluster(zones: Sequence[str], settings: Mapping[str, str | int], *, begins: bool = True) -> Iterator[SetsScenario]:
    """One that has begun, with those settings beside its own."""
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        world = SetsScenario(zones, directory, settings)
        with world.surroundings.installed():
            try:
                if begins:
                    world.begin()
                yield world
            finally:
                for node in world.nodes:
                    node.let_go()
    finally:
        shutil.rmtree(directory)
