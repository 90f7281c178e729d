"""What keeps a cluster's record apart from the brokers' logs, and the lock by which one agent is chosen: the interface.

A coordinator answers one question that the brokers alone cannot: after a crash of some, which in-sync set was the last?
Everything here may block on a disk or a network: a broker calls it from a thread of its own, and from several at once.

Whoever implements it names a factory, `Callable[[CoordinatorSettings], Coordinator]`, as an entry point of the group
`qpid_ha.coordinators` under the scheme of its URLs, and runs `qpid_ha_broker.coordination.conformance` against it;
docs/coordinators.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from qpid_ha_broker.ha.cluster_record import ClusterRecord

PRIMARY_LEASE: Final = "primary"
"""The lease of whose agent may promote its broker."""
LONGEST_NOTE_BYTES: Final = 64 * 1024
CALL_LIMIT_S: Final = 1.9
"""Of one call to an ensemble, whatever its servers do: an agent takes one of 2 s for a coordinator that is lost."""


class CoordinatorError(Exception):
    """The coordinator cannot be reached, or what it holds cannot be used; the text names it and says what to do."""


class Coordinator(Protocol):
    """Holds one `ClusterRecord`, and a few notes. What `compare_and_set` has confirmed, every later `read` returns, or
    a newer one, whoever reads.

    Making one opens nothing. A call that cannot be answered within a few seconds raises CoordinatorError; the next one
    tries again.
    """

    @property
    def look_interval_s(self) -> float:
        """How often whoever relies on it looks by itself, though `watch` said nothing."""

    def read(self) -> ClusterRecord:
        """The record; `ClusterRecord()` when there is none yet. Raises CoordinatorError."""

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        """Replace `expected` by `wanted`: True and `wanted`, or False and what is there instead.

        Raises CoordinatorError, and then nobody knows whether it was written: `read` tells.
        """

    def read_note(self, name: str) -> str:
        """The note `name` (lower-case letters and dashes); empty when there is none. Raises CoordinatorError."""

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        """Replace the note `expected` by `wanted` (empty: there is none, at most `LONGEST_NOTE_BYTES` of UTF-8); False
        when another one is there. Raises CoordinatorError, and then nobody knows whether it was written.
        """

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed`, from a thread of its own, after each change of the record or of a note, and when the
        coordinator was lost or is back, until the returned function is called. Changes that follow each other closely
        may share one call, which comes after the last of them.
        """

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> Lease:
        """A lease for `holder`, which others see as its name. Raises CoordinatorError where it has none to give."""

    def close(self) -> None:
        """Let go of what it has opened, its leases too; it is not used any more."""


class Lease(Protocol):
    """Held by one at a time, as long as its process lives and the coordinator remembers it.

    A process that hangs lives, too. So its holder renews it again and again, and either the coordinator takes it from
    one that does not (`session_timeout_s`), or others see that nobody renews it (`last_renewal`). They may go by what
    they see, because the lease only chooses who tries: what counts is the record.
    """

    def try_lock(self) -> bool:
        """Take it if it is free. Raises CoordinatorError."""

    def acquire(self, cancel: threading.Event) -> bool:
        """Wait until it is ours; False, and not ours, when `cancel` was set meanwhile. Raises CoordinatorError."""

    def is_held(self) -> bool:
        """Whether the lease is still ours, without asking anybody: it is lost when what it rests on was taken away, and
        no later than the coordinator may give it to another one, whether this process was awake or not."""

    def renew(self) -> None:
        """Say that its holder goes on, at least every second; nothing if it is not ours. Raises CoordinatorError."""

    def last_renewal(self) -> str:
        """What whoever holds it wrote last: another text than before is a sign of life. It is no time to compare with,
        because machines' clocks differ. Empty where the coordinator itself takes it from those who do not renew it.
        Raises CoordinatorError."""

    def holder(self) -> str:
        """Who holds it, for people; empty: nobody. Raises CoordinatorError."""

    def release(self) -> None:
        """Let another have it; nothing if it is not ours."""
