"""A broker whose process is there, and does not listen yet.

Only what happens beside a start can meet one: a probe after a restart of Pacemaker, or a broker started by hand. To
call it a failure would have it killed.
"""

from __future__ import annotations

from pathlib import Path

from qpid_ha_agent.broker_process import BrokerProcess, BrokerProcessError, age_s, find_pid


def is_starting(control_socket: Path, limit_s: float) -> bool:
    """Whether there is a process that does not listen yet, and that started less than `limit_s` ago."""
    try:
        listener = BrokerProcess.adopt(control_socket)
    except BrokerProcessError:
        return False  # it listens, or did
    if listener is not None:
        listener.close()
        return False
    pid = find_pid(control_socket)
    return bool(pid) and 0 < age_s(pid) < limit_s
