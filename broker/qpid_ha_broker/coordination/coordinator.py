"""Where a cluster's record is kept apart from the brokers' logs, and the lock by which one agent is chosen.

A coordinator answers one question that the brokers alone cannot: after a crash of some, which in-sync set was the last?
Everything here may block on a disk or a network: a broker calls it from a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from qpid_ha_broker.ha.effects import ClusterRecord


class CoordinatorError(Exception):
    """The coordinator cannot be reached, or what it holds cannot be used; the text names it and says what to do."""


class Coordinator(Protocol):
    """Holds one `ClusterRecord`. What `compare_and_set` has confirmed, every later `read` returns, or a newer one."""

    def read(self) -> ClusterRecord:
        """The record; `ClusterRecord()` when there is none yet. Raises CoordinatorError."""

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        """Replace `expected` by `wanted`: True and `wanted`, or False and what is there instead.

        Raises CoordinatorError, and then nobody knows whether it was written: `read` tells.
        """

    def watch(self, callback: Callable[[ClusterRecord], None]) -> Callable[[], None]:
        """Call `callback` with each new record, from a thread of its own, until the returned function is called."""


class Lease(Protocol):
    """Held by one at a time, as long as its process lives and the coordinator remembers it.

    A process that hangs lives, too: so its holder renews it again and again, and others may go by what they see of that
    instead of by the lock. They may, because the lock only chooses who tries: what counts is the record.
    """

    def try_lock(self) -> bool:
        """Take it if it is free. Raises CoordinatorError."""

    def acquire(self, cancel: threading.Event) -> bool:
        """Wait until it is ours; False, and not ours, when `cancel` was set meanwhile. Raises CoordinatorError."""

    def is_held(self) -> bool:
        """Whether it is still ours; it is lost when somebody took away what it rests on."""

    def renew(self) -> None:
        """Say that its holder goes on; nothing if it is not ours. Raises CoordinatorError."""

    def last_renewal(self) -> str:
        """What whoever holds it wrote last: another text than before is a sign of life. It is no time to compare with,
        because machines' clocks differ. Raises CoordinatorError."""

    def release(self) -> None:
        """Let another have it; nothing if it is not ours."""
