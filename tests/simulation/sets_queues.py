"""Queues of the sets of a simulated cluster: the driver that ships, at real members, and who has them made and deleted.

Each broker has `server.sets.placed_queues.PlacedQueues`, between its map and the logs of the sets that it leads.
Clients make queues and delete them; now and then who carries a deletion out, or the controller, dies between two steps.

Checked with each step (`queue_ledger`): a queue that is committed has an entry, and is the first one that this entry
has had; an entry goes only when somebody has asked for that. At rest sets have the queues of their entries, and no
tombstones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster_map import Changes
from qpid_ha_broker.server.sets.member_facts import PrimarySetFacts
from qpid_ha_broker.server.sets.placed_queues import PlacedQueues
from simulation.node import Node
from simulation.queue_ledger import queues_of
from simulation.sets_plan import FAULTS_END_S, SetsPlan
from simulation.sets_trouble import Trouble
from simulation.sets_world import BrokerModel, World

NAMES = 8
SETS = 3
ASKED_WITHIN_S = 0.8
ANSWER_WITHIN_S = 6.0
TURNS = 3
"""In one step: what is written by the first is seen by the next one, and told before anything can be committed."""
MADE_AGAIN_SHARE = 0.5
"""How often a queue is wanted again by whoever hears that it is deleted."""
DEATHS_SHARE = 0.4
"""How often one of the two dies when a step of a deletion is done."""
UNHEARD_SHARE, UNHEARD_S = 0.7, 0.04
"""How often, and how long, the others do not hear any more of a primary that is about to die."""
DOWN_S = 1.0


class _Hosted:
    """A replica as `PlacedQueues` sees it: see `hosted_member.HostedMember`, and `HostedSet`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def hosted(self) -> _Hosted:
        return self

    @property
    def is_serving(self) -> bool:
        return self._node.is_serving

    @property
    def facts(self) -> PrimarySetFacts:
        return PrimarySetFacts(self._node.member, self._node.resources.replicated.log)

    @property
    def configuration(self) -> object:
        return self._node.configuration

    @property
    def resources(self) -> object:
        catalog = SimpleNamespace(queues=queues_of(self._node))
        return SimpleNamespace(catalog=catalog, replicated=self._node.resources.replicated)

    def touch(self) -> None:
        self._node.written()


class BrokerQueues(Mapping[str, Any]):
    """Of one process, from its start: its sets by name, of the member of `default` the LSNs."""

    def __init__(self, world: World, broker: BrokerModel, nodes: Mapping[str, Node]) -> None:
        """`nodes`: of all sets, its replicas that run."""
        self._world = world
        self._broker = broker
        self._nodes = nodes
        self.map = broker.map
        self._entries = dict(self.map.queues_by_id)
        self._led: dict[str, tuple[bool, int]] = {}
        self.placed = PlacedQueues(broker.name, self.map, cast("Any", self), cast("Any", self), self._reportable)
        self.map.listeners.append(self._map_changed)

    def __getitem__(self, name: str) -> _Hosted:
        return _Hosted(self._nodes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def committed_lsn(self) -> int:
        """Of `default`: its leader knows more than that, others nothing else."""
        return len(self._world.log) if self._world.leader == self._broker.name else self._broker.known

    @property
    def position(self) -> object:
        leads = self._world.leader == self._broker.name
        return SimpleNamespace(lsn=self._world.last_lsn if leads else self._broker.known)

    def _reportable(self) -> None:
        self._broker.next_report_s = 0.0

    def _map_changed(self, changes: Changes) -> None:
        there = self.map.queues_by_id
        self._entries |= {entry: there[entry] for entry in changes.queues if entry in there}
        self.placed.map_changed(changes, [self._entries[entry] for entry in changes.queues])

    def work(self) -> None:
        """As at the end of some turns."""
        for name, node in self._nodes.items():
            led = node.is_serving, node.member.status.generation
            if self._led.get(name) != led:
                self._led[name] = led
                self.placed.look_at(name)
        for _ in range(TURNS):
            self.placed.work()


class QueueTraffic:
    """Clients that have queues made and deleted, and deaths between the steps of that."""

    def __init__(self, world: World, trouble: Trouble, plan: SetsPlan) -> None:
        self._world = world
        self._trouble = trouble
        self._draw = random.Random(f"{plan.seed}/queues")
        self.deaths_left = len(plan.faults) // 5
        self.deaths = 0
        world.members.on_step = self._stepped
        self._later()

    def _later(self) -> None:
        if self._world.now_s < FAULTS_END_S:
            self._world.after(ASKED_WITHIN_S * self._draw.random(), self._ask)

    def _ask(self) -> None:
        self._later()
        if not self._world.leader:
            return
        name, set_name = f"q{self._draw.randint(1, NAMES)}", f"shard-{self._draw.randint(1, SETS)}"
        if self._draw.random() < 0.5:
            self._world.ask(ms.SettleQueue(name, {}, set_name, missing=True))
        else:
            conditions = [self._draw.random() < 0.3 for _ in range(2)]
            number = self._world.ask(ms.DeleteQueue(name, *conditions))
            again = f"shard-{self._draw.randint(1, SETS)}"
            self._await(number, ms.SettleQueue(name, {}, again, missing=True), self._world.now_s + ANSWER_WITHIN_S)

    def _await(self, number: int, again: ms.SettleQueue, until_s: float) -> None:
        answer = self._world.answers.get(number)
        if answer is None and self._world.now_s < until_s:
            self._world.after(0.01, partial(self._await, number, again, until_s))
        elif answer is not None and answer.done and self._world.leader and self._draw.random() < MADE_AGAIN_SHARE:
            self._world.ask(again)

    def _stepped(self, node: Node, step: str) -> None:
        """A step of a deletion was done at the primary of a set."""
        if not self.deaths_left or self._world.now_s >= FAULTS_END_S or self._draw.random() >= DEATHS_SHARE:
            return
        name = self._draw.choice([node.name, node.name, self._world.leader or node.name])
        self.deaths_left -= 1
        self.deaths += 1
        self._world.note("fault", f"{step}, and {name} dies")
        world, has_power, down_s = self._world, self._draw.random() < 0.5, DOWN_S * self._draw.random()
        if name == node.name and self._draw.random() < UNHEARD_SHARE:  # but by the controller
            for other in world.others(name):
                if other != world.leader:
                    world.block(name, other)
                    world.after(UNHEARD_S + down_s, partial(world.unblock, name, other))
            world.after(UNHEARD_S, partial(self._trouble.die, name, down_s, has_power=has_power))
        else:
            world.after(0.0, partial(self._trouble.die, name, down_s, has_power=has_power))
