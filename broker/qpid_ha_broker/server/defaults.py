"""Defaults that depend on the machine: the broker's name, its memory limit, where its control socket lies."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SYSTEM_SOCKET_DIRECTORY = Path("/run/qpid-ha")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_LEAST_MEMORY_BYTES = 128 * 1024**2
"""So that the largest message that is let in by default fits on the smallest machine."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)


def broker_name() -> str:
    """The host name; what a file name should not hold is replaced."""
    return _NOT_IN_A_NAME.sub("-", socket.gethostname())[:64].lstrip("._-") or "broker"


def memory_limit_bytes() -> int:
    """Half of the memory that this process may use: the machine's, or its control group's if that is less."""
    usable_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no control groups v2 here, or no limit in this one ("max")
        usable_bytes = min(usable_bytes, int(_CGROUP_LIMIT.read_text()))
    return int(max(usable_bytes // 2, _LEAST_MEMORY_BYTES))


def control_socket(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the broker `name` puts its control socket unless told otherwise.

    `/run/qpid-ha` for a system service (it may write there, or is root and may make it), else the user's
    runtime directory, else a private directory under /tmp. `qpid-ha` looks in the same places, in this order.
    """
    return _socket_directory(environment) / f"{name}.sock"


def _socket_directory(environment: Mapping[str, str]) -> Path:
    system = SYSTEM_SOCKET_DIRECTORY
    if os.access(system if system.exists() else system.parent, os.W_OK | os.X_OK):
        return system
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime) / "qpid-ha"
    return Path(f"/tmp/qpid-ha-{os.getuid()}")
