"""A broker for the length of a `with`: the demo's own, on a free port, in a directory that goes away with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from qpid_ha_agent.control import ControlClient, Unreachable

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 15.0


class BrokerFailed(Exception):
    """It did not start; the text is what it said itself."""


class DemoBroker:
    """`with DemoBroker() as broker:` runs qpidd as a process of its own. Raises BrokerFailed when it does not start."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="qpid-ha-demo-")
        directory = Path(self._directory.name)
        self._log = directory / "log"
        self.control_socket = directory / "demo.sock"
        self.address = ""
        """Where it listens: `amqp://127.0.0.1:PORT`."""
        self.start_s = 0.0
        self.stop_s = 0.0

    def __enter__(self) -> DemoBroker:
        began = time.monotonic()
        command = [sys.executable, "-m", "qpid_ha_broker.server.main", "--name", "demo"]
        command += ["--listen", "amqp://127.0.0.1:0", "--control-socket", str(self.control_socket)]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            self._wait_until_it_answers(began + START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise
        self.start_s = time.monotonic() - began
        return self

    def _wait_until_it_answers(self, deadline: float) -> None:
        while not self.address:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BrokerFailed(self._log.read_text(encoding="utf-8", errors="replace").strip())
            try:
                self.address = str(self.facts()["listening"])
            except Unreachable:
                time.sleep(0.005)

    def facts(self) -> dict[str, object]:
        """What it says of itself, as `qpid-ha query` shows it. Raises Unreachable."""
        with ControlClient(self.control_socket) as control:
            facts = control.call("query")
        if not isinstance(facts, dict):
            raise TypeError(f"the broker answered {facts!r}")
        return facts

    def stop(self) -> int:
        """Ask it to go (SIGTERM), and wait; its exit code."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_TIMEOUT_S)
        self.stop_s = time.monotonic() - began
        return code

    def kill(self) -> None:
        """Make sure that nothing is left of it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._directory.cleanup()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
