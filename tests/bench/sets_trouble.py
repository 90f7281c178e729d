"""What is done to a cluster of many resource sets at random, by a seed: kills, pauses, moves, and all of it at once.

In memory a broker that is killed comes back empty, so it is let live when a set would have no other replica in sync:
that loss would be the operator's, not the cluster's.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final

from bench.steps import DrawnSteps, Kind, Skipped, Step
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster

STOPPED_S: Final = (0.5, 7.0)
"""How long a process is stopped: shorter, and longer, than `ha.failure-timeout` (2 s)."""
DRAINED_S: Final = (1.0, 10.0)
UNSURE_S: Final = 5.0
"""So long after it was disturbed nobody counts on what a broker holds."""
REPLICAS: Final = (2, 3, 4)
_ASK_S: Final = 15.0
_HOLDS: Final = ("primary", "ready")
"""Replicas that have what they had in memory."""


class Trouble(DrawnSteps):
    """Makes trouble, and a list of it."""

    refusals = (ControlFailure, ClusterFailed)

    def __init__(self, cluster: LocalCluster, sets: Sequence[str], stores: Path | None, seed: int) -> None:
        self._cluster = cluster
        self._sets = sets
        self._stores = stores
        self._disturbed_s: dict[str, float] = {}
        """When a broker was, or will be, disturbed for the last time."""
        self._stopped: dict[str, list[int]] = {}
        """Processes to continue, by the broker's name."""
        self._asking: list[Thread] = []
        super().__init__(seed, len(cluster.brokers), len(sets))

    # --- steps

    def end(self) -> None:
        """All brokers run and may have replicas, and sets want three."""
        self.rest_until_nothing_is_due()
        for thread in self._asking:
            thread.join()
        self._cluster.wait_until(lambda: self._controller() is not None, "default has a primary", 60.0)
        for broker in self._cluster.brokers:
            self.undrain(broker)
        self._insist("replicas", action="policies", policies=[["*", 3]])

    def undrain(self, broker: LocalBroker) -> None:
        """It may have replicas again. Raises ClusterFailed when nobody has that for a minute."""
        self._insist("brokers", action="undrain", name=broker.name)

    def _insist(self, method: str, **params: Any) -> None:
        last = ""

        def is_done() -> bool:
            nonlocal last
            try:
                self.ask(method, **params)
            except (ControlFailure, ClusterFailed) as error:
                last = str(error)
                return False
            return True

        try:
            self._cluster.wait_until(is_done, f"{method} {params}", 60.0)
        except ClusterFailed as error:
            raise ClusterFailed(f"{error}; {last}") from None

    @property
    def last_disturbed_s(self) -> float:
        """When the last broker was killed or went on, by the monotonic clock; if none was, when this began."""
        return max([self._began_s, *self._disturbed_s.values()])

    def kill_these(self, kind: str, victims: Sequence[LocalBroker]) -> bool:
        """At once; their agents start them again. False: not done, because something would be lost with them."""
        try:
            self._kill_all(kind, victims)
        except Skipped as why:
            self._note(f"{kind}: skipped", str(why), "")
            return False
        return True

    def kinds(self) -> Mapping[str, Kind]:
        """What may be done, by its name."""
        kinds: dict[str, Kind] = {
            "kill": (self.kill, 3),
            "kill the controller": (self.kill_controller, 2),
            "kill two": (self.kill_two, 2),
            "kill the controller and another": (self.kill_controller_and_one, 2),
            "stop": (self.stop_broker, 2),
            "stop with agent": (self.stop_with_agent, 3),
            "restart": (self.restart, 1),
            "transfer": (self.request, 4),
            "kill in transfer": (self.kill_in_transfer, 3),
            "drain": (self.drain, 2),
            "kill in drain": (self.kill_in_drain, 1),
            "policy": (self.request, 2),
            "trim": (self.request, 1),
            "add replica": (self.request, 1),
            "remove replica": (self.request, 1),
            "rebalance": (self.request, 2),
        }
        if self._stores is not None:
            kinds |= {"wipe": (self.wipe, 2), "kill all": (self.kill_everything, 1)}
        return kinds

    # --- what steps do

    def kill(self, step: Step) -> None:
        """A broker; its agent starts it again."""
        self._kill_all(step.kind, [self._pick(step)])

    def kill_controller(self, step: Step) -> None:
        """The primary of `default`."""
        self._kill_all(step.kind, [self._the_controller()])

    def kill_two(self, step: Step) -> None:
        """At once."""
        self._kill_all(step.kind, [self._pick(step), self._pick(step, 1)])

    def kill_controller_and_one(self, step: Step) -> None:
        """At once."""
        controller = self._the_controller()
        other = next(each for each in map(self._broker, step.brokers) if each is not controller)
        self._kill_all(step.kind, [controller, other])

    def kill_everything(self, step: Step) -> None:
        """All brokers at once: with stores nothing is lost."""
        self._kill_all(step.kind, self._cluster.brokers)

    def stop_broker(self, step: Step) -> None:
        """SIGSTOP, and SIGCONT later; its agent sees that it hangs."""
        broker = self._pick(step)
        self._stop(step, broker, [broker.pid])

    def stop_with_agent(self, step: Step) -> None:
        """The same with its agent, as if the machine had hung."""
        broker = self._pick(step)
        self._stop(step, broker, broker.processes())

    def restart(self, step: Step) -> None:
        """Broker and agent are told to end, and started again; killed, if they hang."""
        broker = self._pick(step)
        self._check([broker])
        self._disturb(broker, 2.0)
        broker.terminate()
        broker.wait()
        broker.start()
        self._note(step.kind, broker.name, "")

    def wipe(self, step: Step) -> None:
        """A machine that comes back with an empty disk."""
        broker = self._pick(step)
        self._check([broker], keeps_stores=False)
        broker.kill_all()
        if self._stores is not None:
            shutil.rmtree(self._stores / broker.name)
        self._disturb(broker)
        broker.start()
        self._note(step.kind, broker.name, "")

    def request(self, step: Step) -> None:
        """What an operator asks for, of a set, a broker that may have a replica of it, or of all sets."""
        name, broker = self._sets[step.set], self._broker(step.brokers[0]).name
        wanted = REPLICAS[int(step.share * len(REPLICAS))]
        requests: Mapping[str, tuple[str, str, dict[str, Any]]] = {
            "transfer": (f"{name} to {broker}", "sets", {"action": "transfer", "name": name, "to": broker}),
            "policy": (f"{wanted} replicas", "replicas", {"action": "policies", "policies": [["*", wanted]]}),
            "trim": ("", "replicas", {"action": "trim"}),
            "add replica": (name, "sets", {"action": "add-replica", "name": name}),
            "remove replica": (
                f"{name} from {broker}", "sets", {"action": "remove-replica", "name": name, "broker": broker},
            ),
            "rebalance": ("", "rebalance", {}),
        }  # fmt: skip
        target, method, params = requests[step.kind]
        self._ask_soon(step.kind, target, method, **params)

    def kill_in_transfer(self, step: Step) -> None:
        """Whoever takes part in it, or decides it."""
        row = next((row for row in self.rows() if row["name"] == self._sets[step.set]), None)
        targets = [] if row is None else [name for name in row["in_sync"] if name != row["primary"]]
        if row is None or not row["primary"] or not targets:
            raise Skipped(f"{self._sets[step.set]} cannot be moved now")
        controller = self._controller()
        concerned = [row["primary"], targets[0], controller.name if controller else row["primary"]]
        victim = next(each for each in self._cluster.brokers if each.name == concerned[int(step.share * 3)])
        if victim.name in self._stopped:
            raise Skipped(f"{victim.name} is stopped")
        self._check([victim])
        name = str(row["name"])
        self._ask_soon(step.kind, f"{name} to {targets[0]}", "sets", action="transfer", name=name, to=targets[0])
        self.rest(0.1 * self._random.random())
        self._kill_all(f"{step.kind}, the kill", [victim])

    def drain(self, step: Step) -> None:
        """A broker, for a while."""
        broker = self._pick(step)
        self._ask_soon(step.kind, broker.name, "brokers", action="drain", name=broker.name)
        self._later(within(DRAINED_S, step.share), lambda: self._undrain(broker))

    def kill_in_drain(self, step: Step) -> None:
        """The one that is drained, while sets leave it."""
        broker = self._pick(step)
        self._check([broker])
        self.drain(step)
        self.rest(0.5 * self._random.random())
        self._kill_all(f"{step.kind}, the kill", [broker])

    def _undrain(self, broker: LocalBroker) -> None:
        self._ask_soon("undrain", broker.name, "brokers", action="undrain", name=broker.name)

    # --- how they do it

    def _broker(self, number: int) -> LocalBroker:
        return self._cluster.brokers[number]

    def _pick(self, step: Step, number: int = 0) -> LocalBroker:
        """Of those that run."""
        running = [each for each in map(self._broker, step.brokers) if each.name not in self._stopped]
        if len(running) <= number:
            raise Skipped("all are stopped")
        return running[number]

    def _kill_all(self, kind: str, victims: Sequence[LocalBroker]) -> None:
        self._check(victims)
        pids = []
        for broker in victims:
            with suppress(ClusterFailed):  # it was killed a moment ago
                pids.append(broker.pid)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for broker in victims:
            self._disturb(broker)
        self._note(kind, ", ".join(broker.name for broker in victims), "")

    def _check(self, victims: Sequence[LocalBroker], *, keeps_stores: bool = True) -> None:
        """Raises Skipped when a set would have nobody left that is in sync."""
        if keeps_stores and self._stores is not None:
            return
        now_s = time.monotonic()
        unsure = {broker.name for broker in victims} | self._stopped.keys()
        unsure |= {name for name, at_s in self._disturbed_s.items() if now_s - at_s < UNSURE_S}
        rows = self.rows()
        if not rows:
            raise Skipped("nobody tells where the sets are")
        for row in rows:
            holders = [name for name in row["in_sync"] if row["replicas"].get(name) in _HOLDS and name not in unsure]
            if not holders:
                raise Skipped(f"{row['name']} would have no replica in sync")
        if not any(broker.status()["state"] in _HOLDS for broker in self._cluster.brokers if broker.name not in unsure):
            raise Skipped("default would have no replica in sync")

    def _stop(self, step: Step, broker: LocalBroker, pids: list[int]) -> None:
        self._check([broker])  # its agent kills a primary that is silent for long
        for_s = within(STOPPED_S, step.share)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self._stopped[broker.name] = pids
        self._disturb(broker, for_s)
        self._note(step.kind, f"{broker.name} for {for_s:.1f} s", "")
        self._later(for_s, lambda: self._continue(broker))

    def _continue(self, broker: LocalBroker) -> None:
        for pid in self._stopped.pop(broker.name):
            with suppress(ProcessLookupError):  # its agent has killed it
                os.kill(pid, signal.SIGCONT)
        self._note("continue", broker.name, "")

    def _disturb(self, broker: LocalBroker, for_s: float = 0.0) -> None:
        self._disturbed_s[broker.name] = time.monotonic() + for_s

    # --- what is asked of the cluster

    def _controller(self) -> LocalBroker | None:
        """Of those that run, the one that leads `default`."""
        running = [broker for broker in self._cluster.brokers if broker.name not in self._stopped]
        found = [(facts.get("generation", 0), broker) for broker in running for facts in (broker.status(),)
                 if facts.get("state") == "primary"]  # fmt: skip
        return max(found, key=lambda item: item[0])[1] if found else None

    def _the_controller(self) -> LocalBroker:
        controller = self._controller()
        if controller is None:
            raise ClusterFailed("default has no primary")
        return controller

    def ask(self, method: str, **params: Any) -> Any:
        """The controller. Raises ControlFailure, and ClusterFailed while there is none."""
        return self._the_controller().ask(method, timeout_s=_ASK_S, **params)

    def rows(self) -> list[dict[str, Any]]:
        """Of the sets, as the controller tells; empty while there is none."""
        try:
            rows = self.ask("sets", action="list").get("answer")
        except (ControlFailure, ClusterFailed):
            return []
        return rows if isinstance(rows, list) else []

    def _ask_soon(self, kind: str, target: str, method: str, **params: Any) -> None:
        """On a thread: some are answered when they are done, and trouble does not wait for that."""

        self._soon(kind, target, lambda: self.ask(method, **params))

    def _soon(self, kind: str, target: str, action: Callable[[], object]) -> None:
        """On a thread, and what came of it is written down. It may raise ControlFailure and ClusterFailed."""

        def act() -> None:
            text = ""
            try:
                action()
            except (ControlFailure, ClusterFailed) as error:
                text = str(error).partition("\n")[0]
            self._note(kind, target, text)

        thread = Thread(target=act, daemon=True)
        thread.start()
        self._asking = [*[each for each in self._asking if each.is_alive()], thread]


def within(bounds: tuple[float, float], share: float) -> float:
    """So much of the way from the lower to the upper one."""
    low, high = bounds
    return low + (high - low) * share
