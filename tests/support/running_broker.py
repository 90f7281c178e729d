"""A real broker process on loopback, for tests, the benchmark and the demo."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from limits import LIMIT_S
from polling import wait_until
from qpid_ha_demo.cluster import Process

QPIDD = ("-m", "qpid_ha_broker.server.main")
_LISTENING = re.compile(r"listens on (?P<url>[^ ,]+)[ ,]")


def start(command: Sequence[str], output: BinaryIO) -> Process:
    """With both its outputs there."""
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def start_qpidd(arguments: Sequence[str], output: BinaryIO) -> Process:
    """A new Python that imports it."""
    return start([sys.executable, *QPIDD, *arguments], output)


class RunningBroker:
    """`with RunningBroker() as broker:` starts qpidd on a free port and stops it in the end.

    `settings` are keys of the configuration file. Raises RuntimeError with the broker's own words if it does not start.
    `descriptors`: how many it may have open. `program`: words for Python that run it in another way.
    """

    spawn: Callable[[Sequence[str], BinaryIO], Process] = staticmethod(start_qpidd)

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        config: str | None = None,
        start_timeout_s: float = LIMIT_S,
        descriptors: int | None = None,
        program: Sequence[str] = (),
    ) -> None:
        self._start_timeout_s = start_timeout_s
        self.directory = Path(tempfile.mkdtemp(prefix="qpid-ha-test-"))
        self.control_socket = self.directory / "control.sock"
        self.log_path = self.directory / "log"
        given = {
            "name": "test",
            "listen": "amqp://127.0.0.1:0",
            "control-socket": str(self.control_socket),
            **(settings or {}),
        }
        self._descriptors, self._program = descriptors, program
        self._arguments = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        if config is not None:
            (self.directory / "qpid-ha.yaml").write_text(config, encoding="utf-8")
            self._arguments += ["--config", str(self.directory / "qpid-ha.yaml")]
        self.process: Process | None = None
        self.url = ""
        self._launched_s = 0.0
        self.start_s = 0.0
        """From the start of the process to the line that says that it listens."""

    def start(self) -> Self:
        """Start the process and wait until it listens."""
        self.launch()
        return self.wait_until_it_listens()

    def launch(self) -> None:
        """Start the process."""
        self._launched_s = time.monotonic()
        with self.log_path.open("wb") as output:
            self.process = self._start_process(output)

    def _start_process(self, output: BinaryIO) -> Process:
        if self._descriptors is None and not self._program:
            return self.spawn(self._arguments, output)
        limit = [] if self._descriptors is None else ["prlimit", f"--nofile={self._descriptors}"]
        return start([*limit, sys.executable, *(self._program or QPIDD), *self._arguments], output)

    def wait_until_it_listens(self) -> Self:
        """After `launch`. Raises RuntimeError with the broker's own words if it does not."""
        began = self._launched_s
        while (found := _LISTENING.search(self.log())) is None:
            has_ended = self.process is None or self.process.poll() is not None
            if has_ended or time.monotonic() - began > self._start_timeout_s:
                raise RuntimeError(f"the broker did not start: {self.log()}")
            time.sleep(0.005)
        self.start_s = time.monotonic() - began
        self.url = found["url"]
        return self

    def all_logs(self) -> str:
        """As `log`: see `ProxiedBroker`."""
        return self.log()

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return int(self.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError before `start`."""
        if self.process is None:
            raise RuntimeError("the broker was not started")
        return self.process.pid

    def log(self) -> str:
        """All that the broker has logged."""
        return self.log_path.read_text(encoding="utf-8") if self.log_path.exists() else ""

    def await_log(self, pattern: str, timeout_s: float = LIMIT_S) -> bool:
        """Whether `pattern` (a regular expression) comes up in the log in time."""
        with suppress(TimeoutError):
            wait_until(lambda: re.search(pattern, self.log()), str, timeout_s)
            return True
        return False

    def stop(self, timeout_s: float = LIMIT_S) -> int:
        """SIGTERM, and the exit code; SIGKILL and TimeoutExpired when it does not stop."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def remove(self) -> None:
        """Stop it, if it runs, and leave nothing."""
        try:
            RunningBroker.stop(self)  # this process alone, also where `stop` is of several
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


@contextmanager
def without_bugs(broker: RunningBroker) -> Iterator[RunningBroker]:
    """It runs inside; afterwards it has ended when it was told to, and has met no bug."""
    with broker as running:
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()
