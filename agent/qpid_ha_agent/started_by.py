"""Which service of a resource manager has this machine's broker: written at its start, gone when it was stopped.

rgmanager gives every service a stop on every node, whoever owns it, when it starts and when a service is new in its
configuration. On a node whose broker serves, the stop of another node's service must not end it; only the name of the
service tells the two apart.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from qpid_ha_agent.ocf.memory import DIRECTORY


@dataclass(frozen=True)
class StartedBy:
    """`service` is empty when somebody started it by hand."""

    service: str
    control_socket: str
    """So that the broker can be stopped when its configuration cannot be read any more."""


class StartedByFile:
    """One per configuration file of a broker."""

    def __init__(self, config: Path, directory: Path = DIRECTORY) -> None:
        self._directory = directory
        self._path = directory / f"service-{str(config.absolute()).strip('/').replace('/', '-')}.json"

    def read(self) -> StartedBy | None:
        """None: it was not started since the machine was, or was stopped."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            return StartedBy(str(document["service"]), str(document["control_socket"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, started_by: StartedBy) -> None:
        """Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(started_by)), encoding="utf-8")
        temporary.replace(self._path)

    def forget(self) -> None:
        """The broker was stopped. Raises OSError."""
        self._path.unlink(missing_ok=True)
