"""A broker that still loads its store: it is there, and answers nobody yet.

Only what happens beside a start can meet one: a probe after a restart of Pacemaker, or a broker started by hand. To
call it a failure would have it killed, and the load begin anew.
"""

from __future__ import annotations

import time
from pathlib import Path

from qpid_ha_agent.broker_process import BrokerProcess, BrokerProcessError, find_pid

LAST_BYTES = 4096
PROGRESS = "recovering: "


def is_loading(control_socket: Path, limit_s: float) -> bool:
    """Whether there is a process that does not listen yet, and that started less than `limit_s` ago."""
    try:
        listener = BrokerProcess.adopt(control_socket)
    except BrokerProcessError:
        return False  # it listens, or did
    if listener is not None:
        listener.close()
        return False
    import psutil  # a monitor needs this module seldom

    pid = find_pid(control_socket)
    try:
        return bool(pid) and time.time() - psutil.Process(pid).create_time() < limit_s
    except psutil.Error:
        return False


def how_far(log_file: Path) -> str:
    """What the broker said last of its progress, such as `40% of 900 MB`; empty when nothing was said."""
    return _last_line(log_file).partition(PROGRESS)[2].strip()


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            opened.seek(max(0, path.stat().st_size - LAST_BYTES))
            lines = opened.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
