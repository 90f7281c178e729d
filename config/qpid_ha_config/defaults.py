"""Defaults that depend on the machine: the broker's name, its memory limit, where its files and its socket lie."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

CONFIG_FILE = Path("/etc/qpid-ha/qpid-ha.yaml")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_LEAST_MEMORY_BYTES = 128 * 1024**2
"""So that the largest message that is let in by default fits on the smallest machine."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)


def find_file(named: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file that is `named`, else the one of `QPID_HA_CONFIG`, else that of this machine, if there is one."""
    if named is not None:
        return named
    if text := environment.get("QPID_HA_CONFIG"):
        return Path(text)
    with suppress(PermissionError):  # whoever reads it is told
        return CONFIG_FILE if CONFIG_FILE.exists() else None
    return CONFIG_FILE


def broker_name() -> str:
    """The host name; what a file name should not hold is replaced."""
    return _NOT_IN_A_NAME.sub("-", socket.gethostname())[:64].lstrip("._-") or "broker"


def processors() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0))


def memory_limit_bytes() -> int:
    """Half of the memory that this process may use: the machine's, or its control group's if that is less."""
    usable_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no control groups v2 here, or no limit in this one ("max")
        usable_bytes = min(usable_bytes, int(_CGROUP_LIMIT.read_text()))
    return int(max(usable_bytes // 2, _LEAST_MEMORY_BYTES))


def socket_directories(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Where brokers put their control sockets unless told otherwise: for a system service, a user, and anybody."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    of_user = [Path(runtime) / "qpid-ha"] if runtime.startswith("/") else []
    return [Path("/run/qpid-ha"), *of_user, Path(f"/tmp/qpid-ha-{os.getuid()}")]


def control_socket(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the broker `name` puts its control socket unless told otherwise: the first place where we may write."""
    directories = socket_directories(environment)
    for directory in directories[:-1]:
        if os.access(directory if os.access(directory, os.F_OK) else directory.parent, os.W_OK | os.X_OK):
            return directory / f"{name}.sock"
    return directories[-1] / f"{name}.sock"
