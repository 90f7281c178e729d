"""What happens to a cluster of many sets: the faults of its plan, and who drives `default` when its primary fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from qpid_ha_broker.cluster import messages as ms
from simulation.sets_plan import SetsFault, SetsKind
from simulation.sets_world import World

FAILOVER_S = 0.1, 1.0
"""Of `default`, after the death of its primary."""
PATIENCE_S = 3.0, 10.0
"""With a primary of `default` that says nothing."""


class Trouble:
    """The promise: what a fault does depends on its own draws, and on the state of the cluster when it strikes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_over = False
        self._promotion_draw = random.Random(world.random.random())
        self._kinds: dict[SetsKind, Callable[[random.Random, float], None]] = {
            SetsKind.KILL: self._kill,
            SetsKind.POWER_CUT: self._cut_power,
            SetsKind.ALL_POWER_CUT: self._cut_all_power,
            SetsKind.PAUSE: self._pause,
            SetsKind.CUT: self._cut,
            SetsKind.ONE_WAY: self._block_one_way,
            SetsKind.ISOLATED: self._isolate,
            SetsKind.RESET: self._reset,
            SetsKind.LOSS: self._lose_some,
            SetsKind.REPEATS: self._repeat_orders,
            SetsKind.DELAY: self._be_slow,
            SetsKind.CONTROLLER: self._change_controller,
            SetsKind.EMPTY_DISK: self._empty_disk,
            SetsKind.REQUEST: self._request,
            SetsKind.MAKE_AGAIN: self._make_again,
            SetsKind.NO_CHANNEL: self._break_channel,
        }

    def strike(self, fault: SetsFault) -> None:
        """It happens now, and is over after a while."""
        self._world.note("fault", f"{fault.kind} for {fault.for_s:.2f} s")
        self._kinds[fault.kind](random.Random(fault.draw), fault.for_s)

    def end(self) -> None:
        """Everything is mended, and somebody leads `default`."""
        self._is_over = True
        self._world.heal()
        self.find_controller()

    # --- `default`

    def find_controller(self) -> None:
        """Who drives `default` promotes another one, after a while."""
        self._world.after(self._promotion_draw.uniform(*FAILOVER_S), self._promote)

    def _promote(self) -> None:
        world = self._world
        names = [name for name, broker in world.brokers.items() if broker.is_up and not broker.is_paused]
        if not world.leader and names:
            world.lead(self._promotion_draw.choice(names))

    def _miss_controller(self, name: str, starts: int) -> None:
        """It has said nothing for long."""
        broker = self._world.brokers[name]
        if self._world.leader == name and broker.starts == starts and broker.is_paused:
            self._world.unlead()
            self._promote()

    # --- faults

    def _up(self) -> list[str]:
        return [name for name, broker in self._world.brokers.items() if broker.is_up]

    def _some_broker(self, draw: random.Random) -> str:
        """One that is up; more often the controller than it would be by chance."""
        names = self._up()
        if not names:
            return ""
        return self._world.leader if self._world.leader and draw.random() < 0.2 else draw.choice(names)

    def _later(self, for_s: float, undo: Callable[[], None]) -> None:
        def go() -> None:
            if not self._is_over:
                undo()

        self._world.after(for_s, go)

    def start(self, name: str) -> None:
        """If it is down."""
        if not self._world.brokers[name].is_up:
            self._world.start(name)
            self.find_controller()

    def die(self, name: str, for_s: float, *, has_power: bool = True) -> None:
        """If it is up; and it comes back."""
        if not self._world.brokers[name].is_up:
            return
        self._world.kill(name, has_power=has_power)
        self._later(for_s, partial(self.start, name))
        self.find_controller()

    def _kill(self, draw: random.Random, for_s: float) -> None:
        name = self._some_broker(draw)
        if name:
            self.die(name, for_s)

    def _cut_power(self, draw: random.Random, for_s: float) -> None:
        name = self._some_broker(draw)
        if name:
            self.die(name, for_s, has_power=False)

    def _cut_all_power(self, draw: random.Random, for_s: float) -> None:
        names = self._up()
        count = draw.choice((2, len(names)))
        for name in draw.sample(names, min(count, len(names))):
            self.die(name, for_s * draw.uniform(0.5, 1.5), has_power=False)

    def _pause(self, draw: random.Random, for_s: float) -> None:
        name = self._some_broker(draw)
        world = self._world
        if name and not world.brokers[name].is_paused:
            world.pause(name)
            starts = world.brokers[name].starts
            self._later(for_s, partial(world.resume, name))
            if world.leader == name:
                world.after(draw.uniform(*PATIENCE_S), partial(self._miss_controller, name, starts))

    def _pair(self, draw: random.Random) -> tuple[str, str]:
        one, other = draw.sample(sorted(self._world.brokers), 2)
        return one, other

    def _block(self, sender: str, receiver: str, for_s: float) -> None:
        self._world.block(sender, receiver)
        self._later(for_s, partial(self._world.unblock, sender, receiver))

    def _cut(self, draw: random.Random, for_s: float) -> None:
        one, other = self._pair(draw)
        self._block(one, other, for_s)
        self._block(other, one, for_s)

    def _block_one_way(self, draw: random.Random, for_s: float) -> None:
        self._block(*self._pair(draw), for_s)

    def _isolate(self, draw: random.Random, for_s: float) -> None:
        name = self._some_broker(draw)
        for other in self._world.others(name) if name else ():
            self._block(name, other, for_s)
            self._block(other, name, for_s)

    def _reset(self, draw: random.Random, for_s: float) -> None:
        self._world.reset(*self._pair(draw))

    def _break_channel(self, draw: random.Random, for_s: float) -> None:
        """Another controller begins meanwhile, as often as not: to that one it was never there."""
        name, world = self._some_broker(draw), self._world
        if name:
            world.break_channel(name, for_s)
            if draw.random() < 0.5:
                self._later(for_s * draw.random() / 2, partial(self._change_controller, draw, for_s))

    def _lose_some(self, draw: random.Random, for_s: float) -> None:
        world = self._world
        world.loss = draw.choice((0.05, 0.3))
        self._later(for_s, lambda: setattr(world, "loss", 0.0))

    def _repeat_orders(self, draw: random.Random, for_s: float) -> None:
        world = self._world
        world.repeats = 0.5
        self._later(for_s, lambda: setattr(world, "repeats", 0.0))

    def _be_slow(self, draw: random.Random, for_s: float) -> None:
        world = self._world
        world.delay_s = draw.choice((0.1, 0.4))
        self._later(for_s, lambda: setattr(world, "delay_s", 0.01))

    def _change_controller(self, draw: random.Random, for_s: float) -> None:
        names = [name for name in self._up() if not self._world.brokers[name].is_paused]
        if names:
            self._world.lead(draw.choice(names))

    def _empty_disk(self, draw: random.Random, for_s: float) -> None:
        """One whose data others have, by a record of which they are: what is confirmed is not lost with it."""
        world = self._world
        names = sorted(world.brokers)
        draw.shuffle(names)
        for name in names:
            entries = [entry for entry in world.committed_map.sets.values() if name in entry.record.members]
            if any(not self._is_held_without(name, entry.name) for entry in entries):
                continue
            if world.brokers[name].is_up:
                world.kill(name)
                self.find_controller()
            self._later(for_s, partial(self._start_empty, name))
            return

    def _is_held_without(self, name: str, set_name: str) -> bool:
        """Whether its primary is another one, and leads."""
        record = self._world.committed_map.sets[set_name].record
        leaders = self._world.members.leaders(set_name)
        return not record.claimed and record.primary != name and leaders == [record.primary]

    def _start_empty(self, name: str) -> None:
        broker = self._world.brokers[name]
        if not broker.is_up:
            entries = self._world.committed_map.sets.values()
            is_held = all(self._is_held_without(name, each.name) for each in entries if name in each.record.members)
            self._world.start(name, uuid=f"uuid-{name}-{broker.starts}" if is_held else "")
            self.find_controller()

    def _make_again(self, draw: random.Random, for_s: float) -> None:
        world = self._world
        names = sorted(name for name in world.committed_map.sets if "shard" not in name)
        if names and world.leader:
            name = draw.choice(names)
            world.ask(ms.DeleteSet(name))
            self._later(for_s / 2, partial(self._make, name, draw.randint(0, 3)))

    def _make(self, name: str, replicas: int) -> None:
        if self._world.leader:
            self._world.ask(ms.CreateSet(name, min_replicas=replicas))

    def _request(self, draw: random.Random, for_s: float) -> None:
        world, pick = self._world, draw.choice
        names = sorted(world.committed_map.sets) or ["none"]
        brokers = sorted(world.brokers)
        requests: list[ms.ClusterRequest] = [
            ms.TransferPrimary(pick(names), pick(brokers)),
            ms.TransferPrimary(pick(names)),
            ms.DrainBroker(pick(brokers)),
            ms.UndrainBroker(pick(brokers)),
            ms.UndrainBroker(pick(brokers)),
            ms.Rebalance(),
            ms.AddReplica(pick(names)),
            ms.RemoveReplica(pick(names), pick(brokers)),
            ms.TrimReplicas(),
            ms.SetPolicies((("*", draw.randint(1, 4)),)),
            ms.FailBroker(pick(brokers)),
            ms.SettleQueue(f"q{draw.randint(1, 20)}", {}, f"shard-{draw.randint(1, 3)}", missing=True),
            ms.DeleteQueue(f"q{draw.randint(1, 20)}"),
            ms.PlanReplicas(),
            ms.ShowCluster(),
            ms.ForgetBroker(pick(brokers)),
            ms.CreateSet(f"more-{draw.randint(1, 9)}"),
            ms.DeleteSet(pick([name for name in names if "shard" not in name] or ["none"])),
        ]
        request = pick(requests)
        if world.leader:
            world.note("operator", str(request))
            world.ask(request)
