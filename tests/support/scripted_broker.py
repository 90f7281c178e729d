"""A broker of this machine as an agent's actions know it, whose program is a script of the test's choice."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import yaml

import fake_qpidd
from polling import wait_until
from qpid_ha_agent.broker_process import find_pid
from qpid_ha_agent.service import Service
from qpid_ha_broker.coordination.file import RECORD_FILE
from qpid_ha_broker.coordination.record import encode_record
from qpid_ha_broker.ha.cluster_record import ClusterRecord


class ScriptedBroker:
    """`service` is what an action needs to start one; nothing runs yet. Whatever was started is ended with it.

    `directory`: where others of its cluster are; one of its own otherwise.
    """

    def __init__(self, name: str = "a", directory: Path | None = None, /, **settings: object) -> None:
        self._place = ExitStack()
        if directory is None:  # a short path, because it holds a socket
            directory = Path(self._place.enter_context(tempfile.TemporaryDirectory(prefix="qpid-ha-test-")))
        self.directory = directory
        self.name = name
        self.config = self.directory / f"{name}.yaml"
        self.control_socket = self.directory / f"{name}.sock"
        self.log_file = self.directory / f"{name}.log"
        self.program = self.script("qpidd", f'exec {sys.executable} {fake_qpidd.__file__} "$@"')
        document = {
            "name": name,
            "control-socket": str(self.control_socket),
            "ha": {"cluster": True, "coordinator": f"file:{self.directory}"},
            **settings,
        }
        self.config.write_text(yaml.safe_dump(document), encoding="utf-8")

    @property
    def service(self) -> Service:
        """As the actions take it."""
        return Service(self.config, self.control_socket, self.log_file, (str(self.program),))

    @property
    def record(self) -> Path:
        """The coordinator's file."""
        return self.directory / RECORD_FILE

    def script(self, name: str, commands: str) -> Path:
        """A program of a few lines of shell."""
        path = self.directory / name
        new = path.with_suffix(".new")  # another broker of the directory may be started with the old one just now
        new.write_text(f"#!/bin/sh\n{commands}\n", encoding="utf-8")
        new.chmod(0o755)
        new.replace(path)
        return path

    def says(self, **status: object) -> None:
        """From now on, of itself. What in-sync set its log knows was recorded before."""
        generation, members = status.get("generation", 1), status.get("members", ["a", "b"])
        if isinstance(generation, int) and generation and isinstance(members, list):
            self.record.write_bytes(encode_record(ClusterRecord("uuid", generation, "a", 1, tuple(members))))
        temporary = self.directory / "told.tmp"
        temporary.write_text(json.dumps(status), encoding="utf-8")
        temporary.replace(self.directory / f"{self.name}.json")

    def asked(self, method: str) -> list[dict[str, object]]:
        """The params of each request, the oldest first."""
        path = self.directory / f"{self.name}.asked"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        requests = [json.loads(line) for line in lines]
        return [request["params"] for request in requests if request["method"] == method]

    @property
    def pid(self) -> int:
        """0 when it does not run."""
        return find_pid(self.control_socket)

    def send(self, number: signal.Signals) -> None:
        """To its process."""
        os.kill(self.pid, number)

    def await_end(self) -> None:
        """Until its process is gone."""
        wait_until(lambda: not self.pid, lambda: f"process {self.pid} of {self.name} is still there")

    def __enter__(self) -> ScriptedBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while pid := self.pid:
            os.kill(pid, signal.SIGKILL)
            self.await_end()
        self._place.close()
