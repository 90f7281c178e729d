"""A real cluster on loopback, and what a test does to it: kill, pause, restart, promote."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from limits import LIMIT_S
from qpid_ha_demo.cluster import ClusterFailed, Facts, LocalBroker, LocalCluster
from stopped_processes import stop_processes

__all__ = ["ClusterFailed", "RunningCluster"]

NOT_STARTED = frozenset({"down", "loading"})
"""States in which a broker knows nothing yet of what its store holds."""


class RunningCluster(LocalCluster):
    """`with RunningCluster(tmp_path) as cluster:` starts the brokers and waits until each has loaded its store.

    With `agents` they elect among themselves; without, promote one. Brokers are named by their index, from 0.
    Control sockets have short paths, because tmp_path is often longer than a socket's address may be.
    """

    poll_interval_s = 0.02

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        *,
        agents: bool = False,
        settings: Mapping[str, object] | None = None,
        own_settings: Sequence[Mapping[str, object]] = (),
        stores: Path | None = None,
    ) -> None:
        self._sockets = tempfile.TemporaryDirectory(prefix="qpid-ha-test-")
        super().__init__(
            directory,
            count,
            agents=agents,
            settings=settings,
            own_settings=own_settings,
            sockets=Path(self._sockets.name),
            stores=stores,
        )

    def start(self) -> None:
        """Start every broker, and wait until each has loaded its store."""
        super().start()
        self.wait_started()

    def stop(self) -> None:
        """Wake who sleeps, end every process, and leave nothing."""
        for broker in self.brokers:
            with suppress(ClusterFailed, ProcessLookupError):  # it may have been killed
                self.resume(broker)
        super().stop()
        self._sockets.cleanup()

    def wait_started(self) -> None:
        """Until every broker answers and has loaded its store."""
        self.wait_until(lambda: not NOT_STARTED & set(self.states()), "every broker has loaded its store")

    # --- what it is

    def broker(self, which: int | LocalBroker) -> LocalBroker:
        """By its index."""
        return which if isinstance(which, LocalBroker) else self.brokers[which]

    def status(self, which: int | LocalBroker) -> Facts:
        """What it says of itself; `state` is "down" when nobody answers."""
        return self.broker(which).status()

    def state(self, which: int | LocalBroker) -> str:
        """One word."""
        return str(self.status(which).get("state"))

    def wait_state(self, which: int | LocalBroker, state: str, timeout_s: float = LIMIT_S) -> float:
        """Until the broker is in that state; when that was. Raises ClusterFailed."""
        broker = self.broker(which)
        return self.wait_until(lambda: self.state(broker) == state, f"{broker.name} {state}", timeout_s)

    def the_primary(self) -> LocalBroker:
        """The one there is. Raises ClusterFailed when there is none."""
        primary = self.primary()
        if primary is None:
            raise ClusterFailed(f"nobody is primary: {', '.join(self.states())}")
        return primary

    # --- what is done to it

    def promote(self, which: int | LocalBroker, *, force: bool = False) -> Facts:
        """As an operator would. Raises Refused."""
        return self.broker(which).ask("promote", force=force)

    def demote(self, which: int | LocalBroker) -> Facts:
        """As an operator would. Raises Refused."""
        return self.broker(which).ask("demote")

    def form(self, primary: int = 0) -> None:
        """A first start: promote one, and wait until the others are ready."""
        self.promote(primary)
        self.wait_whole()

    def kill(self, which: int | LocalBroker) -> float:
        """SIGKILL to the broker; when that was."""
        return self.broker(which).kill()

    def crash(self, *which: int | LocalBroker) -> float:
        """SIGKILL to every process of these brokers at once, agents included: the power is gone. When that was.

        Without `which` of every broker.
        """
        brokers = [self.broker(one) for one in which] or self.brokers
        pids = [pid for broker in brokers for pid in broker.processes()]
        at_s = time.monotonic()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for broker in brokers:
            broker.wait()
        return at_s

    def pause(self, which: int | LocalBroker) -> float:
        """SIGSTOP; when that was."""
        stop_processes([self.broker(which).pid])
        return time.monotonic()

    def resume(self, which: int | LocalBroker) -> None:
        """SIGCONT."""
        os.kill(self.broker(which).pid, signal.SIGCONT)

    @contextmanager
    def paused(self, which: int | LocalBroker) -> Iterator[None]:
        """SIGSTOP, and SIGCONT in the end."""
        broker = self.broker(which)
        self.pause(broker)
        try:
            yield
        finally:
            self.resume(broker)

    def restart(self, which: int | LocalBroker) -> None:
        """Start it again after `kill` or a stop (without agents), and wait until it has loaded its store."""
        broker = self.broker(which)
        broker.start()
        self.wait_until(lambda: self.state(broker) not in NOT_STARTED, f"{broker.name} has loaded its store")
