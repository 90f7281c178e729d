"""STATUS as this process keeps it: what is known of the broker, on disk before anybody relies on it."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from typing import Any

from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.journal import Journal
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
