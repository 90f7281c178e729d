"""What the writer of a journal needs of a ring of the kernel. Apart from `disk_ring`, which few brokers load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from qpid_ha_broker.store.files import File

GroupDone = Callable[[OSError | None], None]
"""What became of a group: None: it is on disk, in a file that somebody can find. One of `files.FULL`: it had no room,
nothing was synced, and the same may be tried again. Any other: what of it is on disk nobody knows."""


class GroupRing(Protocol):
    """Writes and syncs beside the loop, and tells it there."""

    def put(self, file: File, offset: int, data: bytes, done: GroupDone) -> bool:
        """Write and sync `data`; `done` follows on the loop. False: it cannot be, and nothing was begun. Raises OSError
        where something was."""


OpenRing = Callable[[asyncio.AbstractEventLoop], GroupRing | None]
"""None: there is none here, and the log says why."""
