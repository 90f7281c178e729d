"""Whether another machine answers for the virtual IP, asked before the promotion that brings it up.

To ask is to wait for an answer that should not come, 0.1 s. The notification before a promotion comes when everybody
who had the address has been demoted, or fenced; the node that will be promoted asks then, in a process of its own, and
its promotion finds what came of it. Only silence counts, and only for a second; otherwise the promotion asks itself.
Nobody can bring the address up within that second but a primary, and this node's is the only promotion.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable

from qpid_ha_agent.ocf.memory import MemoryFile

HOLDS_S = 1.0
ENDS_WITHIN_S = 0.3
"""A process that asks, or has hung."""


class ProbeAhead:
    """Of one resource on this node."""

    def __init__(self, memory: MemoryFile) -> None:
        self._memory = memory

    def begin(self, is_free: Callable[[], bool]) -> None:
        """Ask, while the caller goes on; `is_free` waits for an answer, and may raise what it likes. Raises OSError."""
        self._memory.note(probe_pid=0, probed_free_at_s=0.0)
        pid = os.fork()
        if not pid:
            try:
                self._ask(is_free)
            finally:
                os._exit(0)
        self._memory.note(probe_pid=pid)

    def _ask(self, is_free: Callable[[], bool]) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # Pacemaker waits for the end of an action's output
            os.dup2(null, descriptor)
        if is_free():
            self._memory.note(probed_free_at_s=time.monotonic())

    def has_found_it_free(self) -> bool:
        """Waits for one that asks just now."""
        pid = self._memory.read().probe_pid
        if not pid:
            return False
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                select.select([pidfd], [], [], ENDS_WITHIN_S)
            finally:
                os.close(pidfd)
        return time.monotonic() - self._memory.read().probed_free_at_s < HOLDS_S
