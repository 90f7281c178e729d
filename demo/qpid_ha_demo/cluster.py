"""A cluster for the length of a `with`: real processes on loopback, in a directory that goes away with them.

Each broker runs under its own `qpid-ha-agent run`, as on a machine of its own; the directory that they share holds the
record and the lock of the file coordinator.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import psutil
import yaml

from qpid_ha_agent.control import ControlClient, ControlFailure, TimedOut
from qpid_ha_demo.running import LAST_WORDS, RunsWhileUsed, reserve_port

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
_ASK_TIMEOUT_S = 30.0
_GLANCE_S = 1.0
_GLANCES = 20
"""A broker that lives gets so many times as long to tell its state, one that was stopped does not."""

Facts = dict[str, Any]


class ClusterFailed(Exception):
    """It did not come to what was waited for; the text has what the brokers said."""


class Process(Protocol):
    """What is needed of one that was started: see `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None: ...


class LocalBroker:
    """One broker: its files, its process, and the agent's above it."""

    def __init__(self, directory: Path, settings: Mapping[str, object], *, has_agent: bool) -> None:
        self.name = str(settings["name"])
        self.config = directory / f"{self.name}.yaml"
        self.control_socket = Path(str(settings["control-socket"]))
        self.log_path = directory / f"{self.name}.log"
        self._has_agent = has_agent
        self._process: Process | None = None
        self.config.write_text(yaml.safe_dump(dict(settings), sort_keys=False), encoding="utf-8")

    @property
    def command(self) -> list[str]:
        """What starts it, from this environment."""
        module = "qpid_ha_agent.cli.agent" if self._has_agent else "qpid_ha_broker.server.main"
        verb = ["run"] if self._has_agent else []
        return [sys.executable, "-m", module, *verb, "--config", str(self.config)]

    def start(self) -> None:
        """Start the process; its log goes on where the last one ended. In a session of its own: Ctrl-C is for us."""
        with self.log_path.open("ab") as output:
            self._process = self.start_process(output)

    def start_process(self, output: BinaryIO) -> Process:
        """With its outputs there."""
        return subprocess.Popen(self.command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def log(self) -> str:
        """All that it has said."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    # --- its processes

    @property
    def is_running(self) -> bool:
        """Whether what `start` started is still there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The broker's process, not the agent's. Raises ClusterFailed when there is none."""
        if self._process is None:
            raise ClusterFailed(f"{self.name} was not started")
        if not self._has_agent:
            return self._process.pid
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children():
                if child.status() != psutil.STATUS_ZOMBIE:
                    return child.pid
        raise ClusterFailed(f"{self.name} has no broker process: {self.log()[-LAST_WORDS:]}")

    def kill(self) -> float:
        """SIGKILL to the broker, not to its agent; when that was."""
        pid = self.pid
        at_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        if not self._has_agent and self._process is not None:
            self._process.wait()
        return at_s

    def kill_all(self) -> float:
        """SIGKILL to the agent and to the broker; when that was."""
        at_s = time.monotonic()
        if self._process is not None:
            self._kill_all(self._process.pid)
            self._process.wait()
        return at_s

    def processes(self) -> list[int]:
        """All that runs of it, the agent before its broker."""
        if self._process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            return [self._process.pid, *(child.pid for child in psutil.Process(self._process.pid).children())]
        return []

    def terminate(self) -> None:
        """Ask it to go; `wait` waits for it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """The exit code. Who does not go in time is killed, the broker with its agent."""
        if self._process is None:
            return 0
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._kill_all(self._process.pid)
            return self._process.wait()

    def _kill_all(self, pid: int) -> None:
        with suppress(psutil.NoSuchProcess):
            leader = psutil.Process(pid)
            for process in [leader, *leader.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    # --- what it says

    def ask(self, method: str, *, timeout_s: float = _ASK_TIMEOUT_S, **params: object) -> Facts:
        """What it answers on its control socket. Raises ControlFailure."""
        with ControlClient(self.control_socket, timeout_s=timeout_s) as control:
            answer = control.call(method, **params)
        return answer if isinstance(answer, dict) else {"answer": answer}

    def status(self) -> Facts:
        """Its status; with `state` "down" when nobody answers."""
        for _ in range(_GLANCES):
            try:
                return self.ask("status", timeout_s=_GLANCE_S)
            except TimedOut:
                if self._is_stopped:
                    break
            except ControlFailure:
                break
        return {"state": "down"}

    @property
    def _is_stopped(self) -> bool:
        """By SIGSTOP, or gone."""
        with suppress(ClusterFailed, psutil.NoSuchProcess):
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return True


class LocalCluster(RunsWhileUsed):
    """`with LocalCluster(directory) as cluster:` has `count` brokers on free ports of 127.0.0.1 and ends them all."""

    poll_interval_s = 0.002
    """How long `wait_until` pauses between two looks; each look asks every broker."""
    broker_kind: type[LocalBroker] = LocalBroker

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        *,
        agents: bool = True,
        settings: Mapping[str, object] | None = None,
        own_settings: Sequence[Mapping[str, object]] = (),
        sockets: Path | None = None,
        stores: Path | None = None,
    ) -> None:
        """`settings` are keys of the configuration file, `own_settings` such as each broker has for itself.

        Control sockets lie in `sockets`, else in `directory`.

        With `stores` each broker has a data directory of its own there, named as it is; without, it keeps nothing.
        """
        self._stack = ExitStack()
        self._directory, self._has_agents = directory, agents
        self._sockets_in, self._stores_in = sockets or directory, stores
        self.urls = [f"amqp://127.0.0.1:{reserve_port(self._stack)}" for _ in range(count)]
        record: dict[str, object] = {}
        if agents:
            (directory / "coordinator").mkdir()
            record["coordinator"] = f"file:{directory / 'coordinator'}"
        self._given = dict(settings or {})
        self._ha = {"cluster": True, **record, **_section(self._given.pop("ha", {}))}
        self.brokers = [
            self._make_broker(url, own_settings[number] if own_settings else {}) for number, url in enumerate(self.urls)
        ]

    def _make_broker(self, url: str, own_settings: Mapping[str, object]) -> LocalBroker:
        """One of `urls`."""
        name = f"broker{self.urls.index(url) + 1}"
        own: dict[str, object] = {
            "name": name,
            "listen": [url],
            "control-socket": str(self._sockets_in / f"{name}.sock"),
        }
        if self._stores_in is not None:
            own["data-dir"] = str(self._stores_in / name)
        ha = {"brokers-url": list(self.urls), **self._ha}
        settings = {**own, **own_settings, **self._given, "ha": ha}
        return self.broker_kind(self._directory, settings, has_agent=self._has_agents)

    def add_broker(self) -> LocalBroker:
        """Start one more, which knows all others; they hear of it when it comes."""
        self.urls.append(f"amqp://127.0.0.1:{reserve_port(self._stack)}")
        broker = self._make_broker(self.urls[-1], {})
        broker.start()
        self.brokers.append(broker)
        return broker

    def start(self) -> None:
        """Start every broker."""
        for broker in self.brokers:
            broker.start()

    def stop(self) -> None:
        """End every process. Backups first, so that nobody is promoted on the way."""
        primary = self.primary()
        others = [broker for broker in self.brokers if broker is not primary]
        for group in (others, [primary] if primary else []):
            for broker in group:
                broker.terminate()
            for broker in group:
                broker.wait()
        self._stack.close()

    def logs(self) -> Iterable[tuple[str, str]]:
        """Of each broker."""
        return [(broker.name, broker.log()) for broker in self.brokers]

    # --- who is what

    def primary(self) -> LocalBroker | None:
        """The broker that says it is primary; the newest of two, None without any."""
        found = [(broker.status(), broker) for broker in self.brokers]
        primaries = [(facts.get("generation", 0), broker) for facts, broker in found if facts.get("state") == "primary"]
        return max(primaries, key=lambda item: item[0])[1] if primaries else None

    def states(self) -> list[str]:
        """Of each broker; "down" when nobody answers."""
        return [str(broker.status().get("state")) for broker in self.brokers]

    def is_whole(self) -> bool:
        """One primary, and all others ready, or observing in a cluster of many sets."""
        states = self.states()
        return states.count("primary") == 1 and set(states) <= {"primary", "ready", "observer"}

    def wait_until(self, is_reached: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> float:
        """Look until it is so; when that was. Raises ClusterFailed."""
        deadline = time.monotonic() + timeout_s
        while not is_reached():
            if time.monotonic() > deadline:
                raise ClusterFailed(f"not within {timeout_s:g} s: {what}; the brokers are {', '.join(self.states())}")
            time.sleep(self.poll_interval_s)
        return time.monotonic()

    def wait_whole(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Until there is one primary, and all others are ready."""
        return self.wait_until(self.is_whole, "one primary, and all others ready", timeout_s)


def _section(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"the section ha is {value!r}")
    return value
