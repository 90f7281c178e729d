"""What `./dev soak --sets` does to a cluster beside `sets_trouble`: all of it at once, splits, the coordinator, disks.

With stores nothing may be lost whatever is killed, so no step asks first what would be left.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from bench.sets_trouble import Trouble, within
from bench.steps import Kind, Skipped, Step
from cluster_on_machines import ClusterOnMachines
from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster
from qpid_ha_demo.zookeeper_ensemble import ZookeeperEnsemble

ALL_STOPPED_S: Final = (4.0, 12.0)
"""Longer than clients wait for a sign of life (1 s and 2 s), shorter than a session lives (60 s)."""
SPLIT_S: Final = (0.5, 10.0)
COORDINATOR_AWAY_S: Final = (1.0, 15.0)
"""Shorter, and longer, than the agents' sessions there."""
FULL_S: Final = (2.0, 12.0)
DISK_BYTES: Final = 96 << 20
BALLAST: Final = "ballast"
_KEPT_FREE: Final = 16 << 10
"""Of a disk that is full: what a broker has begun it can often write to its end, and the next one not."""


@contextmanager
def small_disks(directory: Path, names: Sequence[str]) -> Iterator[Path | None]:
    """File systems of `DISK_BYTES`, one of each name; where they cannot be made, None."""
    with ExitStack() as stack:
        for name in names:
            place = directory / name
            place.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "none", str(place)]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                yield None
                return
            stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
        yield directory


class CrossingTrouble(Trouble):
    """Needs stores. What it lacks (machines of their own, an ensemble, small disks) it does nothing to."""

    pauses_s = (1.0, 8.0)
    """Faults overlap, and yet all is well for a moment now and then: only what works can break."""

    def __init__(
        self,
        cluster: LocalCluster,
        sets: Sequence[str],
        stores: Path,
        seed: int,
        *,
        ensemble: ZookeeperEnsemble | None,
        disks: Path | None,
        moves: tuple[str, str, str],
    ) -> None:
        """`moves`: a queue, the one to which its messages are moved now and then, and the set of both."""
        self._ensemble, self._disks, self._moves = ensemble, disks, moves
        self._machines = cluster if isinstance(cluster, ClusterOnMachines) else None
        self._is_split = self._is_coordinator_away = False
        super().__init__(cluster, sets, stores, seed)

    def kinds(self) -> Mapping[str, Kind]:
        """See `Trouble.kinds`."""
        kinds: dict[str, Kind] = {
            "kill": (self.kill, 3),
            "kill the controller": (self.kill_controller, 2),
            "kill two": (self.kill_two, 2),
            "kill the controller and another": (self.kill_controller_and_one, 1),
            "kill the controller, then another": (self.kill_controller_first, 3),
            "kill all": (self.kill_everything, 1),
            "stop": (self.stop_broker, 2),
            "stop with agent": (self.stop_with_agent, 3),
            "stop the controller": (self.stop_controller, 2),
            "stop all": (self.stop_all, 3),
            "restart": (self.restart, 1),
            "switchover": (self.switchover, 2),
            "transfer": (self.request, 3),
            "kill in transfer": (self.kill_in_transfer, 2),
            "drain": (self.drain, 2),
            "kill in drain": (self.kill_in_drain, 1),
            "add replica": (self.request, 1),
            "rebalance": (self.request, 1),
            "move a queue": (self.move_queue, 3),
            "kill in a move of a queue": (self.kill_in_move, 2),
        }
        if self._machines is not None:
            kinds |= {"split": (self.split, 4), "split, the coordinator beyond it": (self.split, 3)}
        if self._ensemble is not None:
            kinds |= {"coordinator away": (self.take_coordinator, 2)}
            kinds |= {"coordinator away, and a kill": (self.take_coordinator, 2)}
        if self._disks is not None:
            kinds |= {"disk full": (self.fill_disk, 3)}
        return kinds

    # --- what steps do

    def kill_controller_first(self, step: Step) -> None:
        """A moment before another one, whose sets a new controller has to give away."""
        controller = self._the_controller()
        other = next(broker for broker in map(self._broker, step.brokers) if broker is not controller)
        self._kill_all(step.kind, [controller])
        self._later(0.5 * step.share, partial(self._kill_all, f"{step.kind}, the other", [other]))

    def stop_controller(self, step: Step) -> None:
        """SIGSTOP, with its agent."""
        controller = self._the_controller()
        self._stop(step, controller, controller.processes())

    def stop_all(self, step: Step) -> None:
        """SIGSTOP to all brokers, in half of the cases with their agents: clients hear nothing of anybody."""
        for_s, has_agents = within(ALL_STOPPED_S, step.share), step.brokers[0] % 2 == 0
        victims = [broker for broker in self._cluster.brokers if broker.name not in self._stopped]
        if not victims:
            raise Skipped("all are stopped")
        for broker in victims:
            pids: list[int] = []
            with suppress(ClusterFailed):  # it was killed a moment ago
                pids = broker.processes() if has_agents else [broker.pid]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            self._stopped[broker.name] = pids
            self._disturb(broker, for_s)
            self._later(for_s, partial(self._continue, broker))
        self._note(step.kind, f"{len(victims)}{' with agents' if has_agents else ''} for {for_s:.1f} s", "")

    def split(self, step: Step) -> None:
        """One or two brokers and the others hear nothing of each other; clients reach all of them."""
        if self._machines is None or self._is_split:
            raise Skipped("it is split already")
        for_s, count = within(SPLIT_S, step.share), 1 + step.set % 2
        near, far = ([self._broker(number) for number in part] for part in (step.brokers[:count], step.brokers[count:]))
        cuts = ExitStack()
        for broker in near:
            cuts.enter_context(self._machines.cut(broker, far, ensemble="coordinator" in step.kind))
        self._is_split = True
        self._disturb_all(for_s)
        self._note(step.kind, f"{', '.join(broker.name for broker in near)} for {for_s:.1f} s", "")
        self._later(for_s, partial(self._heal, cuts))

    def _heal(self, cuts: ExitStack) -> None:
        cuts.close()
        self._is_split = False
        self._note("healed", "", "")

    def take_coordinator(self, step: Step) -> None:
        """Its servers are stopped: connections stay, and nobody answers. Perhaps somebody dies meanwhile."""
        if self._ensemble is None or self._is_coordinator_away:
            raise Skipped("it is away already")
        for_s, victim = within(COORDINATOR_AWAY_S, step.share), self._pick(step)
        for server in self._ensemble.servers:
            server.stop()
        self._is_coordinator_away = True
        self._disturb_all(for_s)
        self._note(step.kind, f"for {for_s:.1f} s", "")
        self._later(for_s, self._bring_coordinator)
        if "kill" in step.kind:
            self._later(0.5 * for_s, partial(self._kill_all, f"{step.kind}, the kill", [victim]))

    def _bring_coordinator(self) -> None:
        for server in self._ensemble.servers if self._ensemble is not None else ():
            server.resume()
        self._is_coordinator_away = False
        self._note("the coordinator is back", "", "")

    def fill_disk(self, step: Step) -> None:
        """Of one broker, with something that is not its own."""
        broker = self._pick(step)
        ballast = self._ballast(broker)
        if ballast.exists():
            raise Skipped(f"the disk of {broker.name} is full already")
        room = os.statvfs(ballast.parent)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_frsize - _KEPT_FREE))
        for_s = within(FULL_S, step.share)
        self._disturb(broker, for_s)
        self._note(step.kind, f"{broker.name} for {for_s:.1f} s", "")
        self._later(for_s, partial(self._make_room, broker))

    def _make_room(self, broker: LocalBroker) -> None:
        self._ballast(broker).unlink()
        self._note("room again", broker.name, "")

    def _ballast(self, broker: LocalBroker) -> Path:
        if self._disks is None:
            raise Skipped("there are no small disks")
        return self._disks / broker.name / BALLAST

    def switchover(self, step: Step) -> None:
        """A planned one, of the controller."""
        controller = self._the_controller()
        others = [broker for broker in map(self._broker, step.brokers) if broker is not controller]
        self._ask_soon(step.kind, f"{controller.name} to {others[0].name}", "switchover", to=others[0].name)

    def move_queue(self, step: Step) -> None:
        """All that is in one queue, to another one."""
        source, target, _ = self._moves
        self._soon(step.kind, f"{source} to {target}", self.move_rest)

    def kill_in_move(self, step: Step) -> None:
        """The broker that moves them."""
        source, target, name = self._moves
        row = next((row for row in self.rows() if row["name"] == name), None)
        victims = [broker for broker in self._cluster.brokers if row is not None and broker.name == row["primary"]]
        if not victims or victims[0].name in self._stopped:
            raise Skipped(f"{name} has no primary that runs")
        self._soon(step.kind, f"{source} to {target}", self.move_rest)
        self.rest(0.05 * step.share)
        self._kill_all(f"{step.kind}, the kill", victims)

    def move_rest(self) -> None:
        """Move what is in the queue now, at the broker that leads its set. Raises ControlFailure, ClusterFailed."""
        source, target, name = self._moves
        primary = next((row["primary"] for row in self.rows() if row["name"] == name), "")
        for broker in self._cluster.brokers:
            if broker.name == primary:
                broker.ask("queues", timeout_s=15.0, action="move", name=source, to=target)
                return
        raise ClusterFailed(f"{name} has no primary")

    def _disturb_all(self, for_s: float) -> None:
        for broker in self._cluster.brokers:
            self._disturb(broker, for_s)

    def _stop(self, step: Step, broker: LocalBroker, pids: list[int]) -> None:
        """Who is stopped already stays so for as long as it was to be."""
        if broker.name in self._stopped:
            raise Skipped(f"{broker.name} is stopped")
        super()._stop(step, broker, pids)
