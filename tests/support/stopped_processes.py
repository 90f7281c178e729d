"""SIGSTOP that has taken effect."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from limits import LIMIT_S

_STOPPED = ("T", "t", "Z", "X")
_LOOK_S = 0.001


def stop_processes(pids: Iterable[int]) -> None:
    """Come back when none of their threads runs any more: on a busy machine those of a server may answer for a while
    after the signal was sent, until the one that takes it has been given a processor.

    Raises ProcessLookupError if one is gone, TimeoutError if one goes on.
    """
    pids = list(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    deadline_s = time.monotonic() + LIMIT_S
    for pid in pids:
        while not all(_is_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"process {pid} goes on after SIGSTOP")
            time.sleep(_LOOK_S)


def _is_stopped(thread: Path) -> bool:
    """Its state is what follows its name, which may hold anything."""
    try:
        stat = (thread / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in _STOPPED
