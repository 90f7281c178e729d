"""What the store's files say of the broker: STATUS, on disk before anybody relies on it, and the journal's headers."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from functools import partial
from typing import Any

from qpid_ha_broker.server.stores.appender import JournalAppender
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_broker.store.status import STATUS_FILE, Status


class StoreStatus:
    """The promise: what is on disk never is older than what `write` found when it was called, from whatever thread."""

    def __init__(self, disk: Disk, status: Status) -> None:
        """`status`: as it is on disk. A store that has no UUID yet gets one."""
        self._disk = disk
        self._writing = threading.Lock()
        self.current = status if status.store else replace(status, store=uuid.uuid4().hex)
        self.revision = status.revision
        """Of what is on disk."""
        self.journal: Journal | None = None
        """Once it has begun: STATUS tells how far it is on disk."""
        self._written: Status | None = None

    @property
    def store(self) -> str:
        """The UUID of the store."""
        return self.current.store

    def change(self, **fields: Any) -> bool:
        """Let this be known; `write` puts it on disk. Whether anything is new. From the loop only."""
        changed = replace(self.current, **fields)
        is_new = changed != self.current
        self.current = changed
        return is_new

    def write(self) -> None:
        """Put it on disk unless it is there. Raises OSError."""
        with self._writing:
            status = self.current
            if self.journal is not None:
                status = replace(status, journal_synced=self.journal.durable_end)
            if status != self._written:
                self._disk.replace(STATUS_FILE, replace(status, revision=self.revision + 1).encode())
                self.revision += 1
                self._written = status


def journal_identity(status: Status, last_lsn: int) -> Identity:
    """Whose the journal is whose replicated log ends at `last_lsn`.

    Who has written nothing yet may still become part of another cluster.
    """
    return Identity(status.cluster if last_lsn else "", status.broker, status.set)


class JournalIdentity:
    """The promise: the headers of files to come say whose the journal is, and of which generation, as STATUS has it."""

    def __init__(self, status: StoreStatus, journal: Journal, appender: JournalAppender) -> None:
        self._status = status
        self._journal = journal
        self._appender = appender
        self._named = journal.identity, journal.generation

    @property
    def lacks_cluster(self) -> bool:
        """Whether the broker is of a cluster, and the journal of none yet."""
        return bool(self._status.current.cluster) and not self._named[0].cluster

    def update(self) -> None:
        """STATUS has changed, or the first event was written."""
        status = self._status.current
        named = journal_identity(status, self._appender.replicated.last_lsn), status.generation
        if named != self._named:
            self._named = named
            self._appender.writer.run(partial(self._name_files, *named), is_short=True)

    def _name_files(self, identity: Identity, generation: int) -> None:
        """On the writer's thread."""
        self._journal.identity, self._journal.generation = identity, generation
