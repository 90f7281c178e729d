"""A real RabbitMQ with its AMQP 1.0 plug-in, on loopback, with directories and an epmd of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from cluster_in_process import free_ports
from qpid_ha_demo.running import HOST, LAST_WORDS, RunsWhileUsed

INSTALL: Final = "apt-get install rabbitmq-server (`./dev setup` does it)"
START_TIMEOUT_S: Final = 90.0
USER, PASSWORD = "guest", "guest"
_SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitFailed(Exception):
    """It did not start; the text has what it said."""


class RabbitServer(RunsWhileUsed):
    """`with RabbitServer() as rabbit:` runs one, and ends it and its epmd by their ids."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rabbitmq-")))
        self.port, self._peer_port, self._epmd_port = free_ports(3)
        self._output = self._directory / "output"
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """Without a user."""
        return f"amqp://{HOST}:{self.port}"

    def start(self) -> None:
        """Start both, and wait until it serves. Raises RabbitFailed."""
        epmd = _epmd()
        if not _SERVER.exists() or epmd is None:
            raise RabbitFailed(f"RabbitMQ is not installed: {INSTALL}")
        environment = self._environment()
        for name in ("home", "mnesia", "log"):
            (self._directory / name).mkdir()
        (self._directory / "plugins").write_text("[rabbitmq_amqp1_0].\n", encoding="ascii")
        lines = [f"listeners.tcp.1 = {HOST}:{self.port}", f"distribution.listener.interface = {HOST}"]
        (self._directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n", encoding="ascii")
        # Whoever starts an Erlang node first starts epmd, which would stay for ever: this one goes with us.
        self._run([str(epmd), "-address", HOST, "-port", str(self._epmd_port)], environment)
        server = self._run([str(_SERVER.resolve())], environment)
        deadline = time.monotonic() + START_TIMEOUT_S
        while "Starting broker... completed" not in self.output():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RabbitFailed(f"it did not start: {self.output()[-LAST_WORDS:]}")
            time.sleep(0.05)

    def _environment(self) -> dict[str, str]:
        directory = self._directory
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(directory / "home"),  # with Erlang's cookie
            "RABBITMQ_NODENAME": f"test-{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_DIST_PORT": str(self._peer_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
        }

    def _run(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        self._processes.append(process)
        return process

    def control(self, *words: str) -> str:
        """What `rabbitmqctl` says to these words."""
        command = [str(_SERVER.with_name("rabbitmqctl")), *words]
        ran = subprocess.run(command, capture_output=True, text=True, env=self._environment(), timeout=60, check=False)
        if ran.returncode:
            raise RabbitFailed(f"rabbitmqctl {' '.join(words)}: {ran.stdout[-LAST_WORDS:]}{ran.stderr[-LAST_WORDS:]}")
        return ran.stdout

    def output(self) -> str:
        """What it has said so far."""
        return self._output.read_text(encoding="utf-8", errors="replace") if self._output.exists() else ""

    def stop(self) -> None:
        """End what was started, the server first: its scripts and Erlang are one group of processes."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()
        self._stack.close()

    def logs(self) -> Iterable[tuple[str, str]]:
        """Of both."""
        return [("rabbitmq", self.output())]


def _epmd() -> Path | None:
    found = shutil.which("epmd") or next(iter(map(str, Path("/usr/lib/erlang").glob("erts-*/bin/epmd"))), None)
    return None if found is None else Path(found)
