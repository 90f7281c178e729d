"""`qpid-ha-agent run` as a process, with a broker of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from limits import LIMIT_S
from polling import wait_until
from qpid_ha_agent.control import ControlClient, ControlFailure
from scripted_broker import ScriptedBroker

__all__ = ["RunningAgent", "wait_until"]


class RunningAgent:
    """One agent and the fake broker that it drives, perhaps in a network namespace; ends both."""

    def __init__(self, directory: Path, name: str, namespace: Path | None = None, /, **settings: object) -> None:
        self.name = name
        self._inside = [] if namespace is None else ["nsenter", f"--net={namespace}"]
        broker = ScriptedBroker(name, directory, **settings)
        self.control_socket, self.log_path = broker.control_socket, broker.log_file
        self._config, self._qpidd = broker.config, broker.program
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [*self._inside, sys.executable, "-m", "qpid_ha_agent.cli.agent", "run", "--config", str(self._config)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self.log_path.open("ab") as output:
            return subprocess.Popen(
                [*command, "--qpidd", str(self._qpidd)], stdout=output, stderr=subprocess.STDOUT, env=environment
            )

    def restart(self) -> None:
        """A new agent after the old one died."""
        self.process = self._spawn()

    def log(self) -> str:
        """All that agent and broker said."""
        return self.log_path.read_text(encoding="utf-8")

    def status(self) -> dict[str, object]:
        """The broker's answer; empty when there is none."""
        try:
            with ControlClient(self.control_socket, 0.5) as control:
                found = control.call("status")
        except ControlFailure:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def broker_pid(self) -> int:
        """Of the fake broker."""
        return int(self.control_socket.with_suffix(".pid").read_text(encoding="utf-8"))

    def wait_for(self, state: str, timeout_s: float = LIMIT_S) -> float:
        """Until the broker is in `state`."""
        return wait_until(lambda: self.status().get("state") == state, self.log, timeout_s)

    def wait_for_line(self, text: str, timeout_s: float = LIMIT_S) -> float:
        """Until the log has `text`."""
        return wait_until(lambda: text in self.log(), self.log, timeout_s)

    def stop(self) -> int:
        """SIGTERM to the agent; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)

    def __enter__(self) -> RunningAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.control_socket.with_suffix(".pid").exists():
            try:
                os.kill(self.broker_pid, signal.SIGKILL)
            except ProcessLookupError:
                return
