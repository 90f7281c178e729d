"""STATUS as this process keeps it: what is known of the broker, on disk before anybody relies on it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.status import STATUS_FILE, Status


class StoreStatus:
    """The promise: what is on disk never is older than what `write` found when it was called, from whatever thread."""

    def __init__(self, disk: Disk, status: Status) -> None:
        self._disk = disk
        self._writing = threading.Lock()
        self.current = status
        self._written: Status | None = None

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
            if status != self._written:
                self._disk.replace(STATUS_FILE, status.encode())
                self._written = status
