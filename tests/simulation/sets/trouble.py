"""What happens to real brokers with many sets: faults of any broker at any time, what operators want, and deletions.

Publishers send durable messages alone, and brokers have stores: what was confirmed is on the disk of each that was in
sync, so that a broker may die whenever, if it comes back. Only one that others can spare stays away.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from simulation.brokers.operator import OperatorOnCall
from simulation.brokers.placed_sets import DefaultSet, PlacedSet
from simulation.brokers.plan import BrokersFault, BrokersPlan
from simulation.brokers.trouble import BrokersTrouble
from simulation.machines.coordinator import Leases
from simulation.machines.node import BrokerNode
from simulation.machines.streams import Streams
from simulation.sets.checks import ControllersWatch
from simulation.sets.plan import FAULTS_END_S, SetsKind
from simulation.virtual_time import Schedule

MORE: Final = 3
"""Sets that operators make and delete."""
SLOW_S: Final = 0.1, 0.4
NAMES: Final = 6
SHARDS: Final = 3
ASKED_WITHIN_S: Final = 0.6
SETS_MADE_S: Final = 5.0
MADE_AGAIN_SHARE: Final = 0.5
"""How often a queue is wanted again by whoever hears that it is deleted."""
DEATHS_SHARE: Final = 0.4
"""How often one of the two dies when a step of a deletion is done."""
DEATHS: Final = 4
UNHEARD_SHARE: Final = 0.7
UNHEARD_S: Final = 0.04, 1.3
"""How often, and how long, the others do not hear any more of a primary that is about to die: some report of it to the
controller is in that time."""
DOWN_S: Final = 1.5


class SetsTrouble(BrokersTrouble):
    """As there; in addition brokers die that others may wait for."""

    def __init__(
        self,
        schedule: Schedule,
        streams: Streams,
        nodes: Sequence[BrokerNode],
        default: DefaultSet,
        sets: Sequence[PlacedSet],
        leases: Leases,
        operator: OperatorOnCall,
        controllers: ControllersWatch,
        all_sets: Callable[[], list[PlacedSet]],
        requests: ClusterOperator,
    ) -> None:
        """`all_sets`: also those that operators and clients have made."""
        super().__init__(schedule, streams, nodes, default, sets, leases, operator)
        self._controllers = controllers
        self._map = controllers.map
        self._all_sets = all_sets
        self._requests = requests
        self._delay_s = streams.delay_s
        self._no_channel: dict[str, int] = {}
        """Brokers that can make no channel to the controller, and how many faults say so."""
        self._strikes |= {
            SetsKind.KILL: self._kill_any,
            SetsKind.POWER_CUT: self._cut_power,
            SetsKind.ALL_POWER_CUT: self._cut_power_of_several,
            SetsKind.AWAY: self._have_gone,
            SetsKind.PAUSE: self._pause_some,
            SetsKind.CUT: self._block,
            SetsKind.ONE_WAY: self._block_one_way,
            SetsKind.ISOLATED: self._isolate,
            SetsKind.RESET: self._reset,
            SetsKind.DELAY: self._be_slow,
            SetsKind.CONTROLLER: self._change_controller,
            SetsKind.EMPTY_DISK: self._empty_disk,
            SetsKind.REQUEST: self._request,
            SetsKind.MAKE_AGAIN: self._make_again,
            SetsKind.NO_CHANNEL: self._break_channel,
        }

    # --- who it may strike

    def _some(self, draw: random.Random) -> BrokerNode | None:
        """One that is up; more often the controller than it would be by chance."""
        up = [node for node in self._nodes if node.is_up]
        primary = self._default.primary
        if not up:
            return None
        return primary if primary is not None and draw.random() < 0.2 else draw.choice(up)

    def is_spared(self, node: BrokerNode) -> bool:
        """Whether somebody else leads, or could, each set of which it has something that was confirmed."""
        return all(self._is_spared(placed, node.name) for placed in self._all_sets())

    def _is_spared(self, placed: PlacedSet, name: str) -> bool:
        if placed is not self._default and placed.name not in self._map.sets:
            return True
        record = placed.register.record
        primary = placed.primary
        members = set(record.members) | (set() if primary is None else set(primary.member.status.members))
        return name not in members or self._can_spare(placed, name)

    # --- brokers

    def die(self, node: BrokerNode, for_s: float, *, has_power: bool = True) -> None:
        """If it is up; and it comes back."""
        if node.is_up:
            node.kill(is_silent=not has_power)
            self._later(for_s, node.start_machine)

    def _kill_any(self, fault: BrokersFault, draw: random.Random) -> None:
        node = self._some(draw)
        if node is not None:
            self.die(node, fault.for_s)

    def _cut_power(self, fault: BrokersFault, draw: random.Random) -> None:
        node = self._some(draw)
        if node is not None:
            self.die(node, fault.for_s, has_power=False)

    def _cut_power_of_several(self, fault: BrokersFault, draw: random.Random) -> None:
        for node in draw.sample(self._nodes, draw.choice((2, len(self._nodes)))):
            self.die(node, fault.for_s * draw.uniform(0.5, 1.5), has_power=False)

    def _have_gone(self, fault: BrokersFault, draw: random.Random) -> None:
        names = [node for node in self._nodes if node.is_up and self.is_spared(node)]
        if names and all(node.is_up for node in self._nodes):
            self.die(draw.choice(names), fault.for_s, has_power=draw.random() < 0.5)

    def _pause_some(self, fault: BrokersFault, draw: random.Random) -> None:
        node = self._some(draw)
        if node is not None and not node.is_paused:
            self._stop(node, fault.for_s, with_agent=False)

    def _empty_disk(self, fault: BrokersFault, draw: random.Random) -> None:
        nodes = [node for node in self._nodes if node.is_up and not self._leads(node) and self.is_spared(node)]
        if nodes and all(node.is_up and not node.is_paused for node in self._nodes):
            node = draw.choice(nodes)
            node.kill(is_silent=draw.random() < 0.5)
            self._later(fault.for_s, partial(self._start_empty, node))

    def _leads(self, node: BrokerNode) -> bool:
        return any(placed.register.record.primary == node.name for placed in self._all_sets())

    def _start_empty(self, node: BrokerNode) -> None:
        if not node.has_process and all(self._is_held_without(each, node.name) for each in self._all_sets()):
            node.note_line("HAS AN EMPTY DISK")
            node.empty_disks()
        node.start_machine()

    def _is_held_without(self, placed: PlacedSet, name: str) -> bool:
        """Whether who leads it by its record does, or it has nothing to do with that broker."""
        record, primary = placed.register.record, placed.primary
        if placed is not self._default and placed.name not in self._map.sets:
            return True
        is_led = primary is not None and primary.name == record.primary != name and not record.claimed
        return is_led or not (name in record.members or name == record.primary or not record.generation)

    # --- between brokers

    def _isolate(self, fault: BrokersFault, draw: random.Random) -> None:
        node = self._some(draw)
        if node is None:
            return
        for other in self._others(node):
            for ends in ((node, other), (other, node)):
                self._stop_bytes(*ends, fault.for_s)
        for placed in self._all_sets():
            if node.name not in placed.cut_off_s:
                placed.cut_off_s[node.name] = self._schedule.now_s
                self._later(fault.for_s, partial(placed.is_heard_of, node.name))

    def _reset(self, fault: BrokersFault, draw: random.Random) -> None:
        one, other = draw.sample(self._nodes, 2)
        one.note_line(f"IS CUT from {other.name}")
        self._streams.cut_between(one.name, other.name)
        self._controllers.was_cut(one, other)

    def _be_slow(self, fault: BrokersFault, draw: random.Random) -> None:
        self._streams.delay_s = draw.choice(SLOW_S)
        self._later(fault.for_s, lambda: setattr(self._streams, "delay_s", self._delay_s))

    def _break_channel(self, fault: BrokersFault, draw: random.Random) -> None:
        """Another controller begins meanwhile, as often as not: to that one it was never there."""
        node, primary = self._some(draw), self._default.primary
        if node is None or node is primary:
            return
        self.break_channel(node, fault.for_s)
        if draw.random() < 0.5:
            self._schedule.after(fault.for_s * draw.random() / 2, partial(self._change_controller, fault, draw))

    def break_channel(self, node: BrokerNode, for_s: float) -> None:
        """The one that it has, and it makes no other one for so long."""
        node.note_line(f"HAS NO CHANNEL to the controller for {for_s:.2f} s")
        self._no_channel[node.name] = self._no_channel.get(node.name, 0) + 1
        self._later(for_s, partial(self._can_have_channel, node.name))
        node.do(partial(_close_channel, node))

    def _can_have_channel(self, name: str) -> None:
        self._no_channel[name] -= 1

    def has_channel(self, name: str) -> bool:
        """Whether it can have one to the controller."""
        return self._no_channel.get(name, 0) == 0

    # --- operators

    def _change_controller(self, fault: BrokersFault, draw: random.Random) -> None:
        primary = self._default.primary
        if primary is not None:
            to = draw.choice(self._others(primary))
            primary.ask("switchover", {"to": to.name, "cause": "an operator wants it"}, _nobody_listens)

    def _make_again(self, fault: BrokersFault, draw: random.Random) -> None:
        name = f"more-{draw.randint(1, MORE)}"
        self._requests.ask(draw, "sets", {"action": "delete", "name": name})
        make = partial(self._requests.ask, draw, "sets", {"action": "create", "name": name})
        self._schedule.after(fault.for_s / 2, make)
        self._schedule.after(2.0 + fault.for_s / 2, make)  # unless it is there

    def _request(self, fault: BrokersFault, draw: random.Random) -> None:
        pick = draw.choice
        names = sorted(name for name in self._map.sets if "shard" not in name) or ["none"]
        brokers = [node.name for node in self._nodes]
        others = [name for name in names if name.startswith("more")] or ["none"]
        requests: list[tuple[str, dict[str, object]]] = [
            ("sets", {"action": "transfer", "name": pick(names), "to": pick(brokers)}),
            ("sets", {"action": "transfer", "name": pick(names)}),
            ("brokers", {"action": "drain", "name": pick(brokers)}),
            ("brokers", {"action": "undrain", "name": pick(brokers)}),
            ("brokers", {"action": "undrain", "name": pick(brokers)}),
            ("rebalance", {}),
            ("sets", {"action": "add-replica", "name": pick(names)}),
            ("sets", {"action": "remove-replica", "name": pick(names), "broker": pick(brokers)}),
            ("replicas", {"action": "trim"}),
            ("replicas", {"action": "policies", "policies": [["*", draw.randint(2, 4)]]}),
            ("brokers", {"action": "fail", "name": pick(brokers)}),
            ("brokers", {"action": "forget", "name": pick(brokers)}),
            ("replicas", {"action": "plan"}),
            ("sets", {"action": "create", "name": f"more-{draw.randint(1, MORE)}"}),
            ("sets", {"action": "delete", "name": pick(others)}),
        ]
        method, params = pick(requests)
        self._requests.ask(draw, method, params)


class ClusterOperator:
    """Asks some broker that is up."""

    def __init__(self, nodes: Sequence[BrokerNode]) -> None:
        self._nodes = nodes

    def ask(
        self,
        draw: random.Random,
        method: str,
        params: dict[str, object],
        answered: Callable[[str], None] = lambda problem: None,
    ) -> None:
        """`answered` hears what went wrong, empty: nothing did."""
        up = [node for node in self._nodes if node.is_up and not node.is_paused]
        if not up:
            return
        node = draw.choice(up)
        node.note_line(f"IS ASKED {method} {params}")

        def hear(problem: str) -> None:
            node.note_line(f"ANSWERS {method} {params}: {problem or 'done'}")
            answered(problem)

        node.ask(method, params, hear)


class QueueTraffic:
    """Clients that have queues made and deleted in sets of their own, and deaths between the steps of that."""

    def __init__(
        self, schedule: Schedule, streams: Streams, trouble: SetsTrouble, operator: ClusterOperator, plan: BrokersPlan
    ) -> None:
        self._schedule = schedule
        self._streams = streams
        self._trouble = trouble
        self._operator = operator
        self._draw = random.Random(f"{plan.seed}/queues of others")
        self._ends_s = schedule.now_s + FAULTS_END_S
        self._deaths_left = DEATHS if plan.faults else 1
        self.deaths = 0
        self._make_sets()
        self._later()

    def _make_sets(self) -> None:
        for number in range(1, SHARDS + 1):
            self._operator.ask(self._draw, "sets", {"action": "create", "name": f"shard-{number}"})
        if self._schedule.now_s < self._ends_s:
            self._schedule.after(SETS_MADE_S, self._make_sets)  # unless they are there

    def _later(self) -> None:
        if self._schedule.now_s < self._ends_s:
            self._schedule.after(ASKED_WITHIN_S * self._draw.random(), self._ask)

    def _ask(self) -> None:
        self._later()
        draw = self._draw
        name, of_set = f"q{draw.randint(1, NAMES)}", f"shard-{draw.randint(1, SHARDS)}"
        if draw.random() < 0.5:
            self._make(name, of_set)
            return
        conditions = {flag: True for flag in ("if_empty", "if_unused") if draw.random() < 0.3}
        again = f"shard-{draw.randint(1, SHARDS)}"

        def answered(problem: str) -> None:
            if not problem and draw.random() < MADE_AGAIN_SHARE and self._schedule.now_s < self._ends_s:
                self._make(name, again)

        self._operator.ask(draw, "queues", {"action": "delete", "name": name, **conditions}, answered)

    def _make(self, name: str, of_set: str) -> None:
        arguments = {"qpid.resource-set": of_set}
        self._operator.ask(self._draw, "queues", {"action": "create", "name": name, "arguments": arguments})

    def stepped(self, node: BrokerNode, step: str, controller: BrokerNode | None, others: list[BrokerNode]) -> None:
        """A step of a deletion was done at the primary of a set."""
        draw = self._draw
        if not self._deaths_left or self._schedule.now_s >= self._ends_s or draw.random() >= DEATHS_SHARE:
            return
        dies = draw.choice([node, node, controller or node])
        self._deaths_left -= 1
        self.deaths += 1
        node.note_line(f"{step}, and {dies.name} is about to die")
        has_power, down_s, after_s = draw.random() < 0.5, DOWN_S * draw.random(), 0.0
        if dies is node and draw.random() < UNHEARD_SHARE:  # but by the controller
            after_s = draw.uniform(*UNHEARD_S)
            for other in others:
                if other is not controller and other is not node:
                    self._streams.block(node.name, other.name)
                    undo = partial(self._streams.unblock, node.name, other.name)
                    self._schedule.after(after_s + down_s, undo)
        self._schedule.after(after_s, partial(self._trouble.die, dies, down_s, has_power=has_power))


def _close_channel(node: BrokerNode) -> None:
    sets = node.broker.sets if node.is_up else None
    if sets is not None and sets.client._channel is not None:
        channel = sets.client._channel
        channel.close("the simulation wants it")
        sets.client.closed(channel, "the simulation wants it")


def _nobody_listens(problem: str) -> None:
    """What comes of it, the rest of the run shows."""
