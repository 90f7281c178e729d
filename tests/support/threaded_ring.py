"""Rings that write to any file, so that disks which fail on purpose can lie behind them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from qpid_ha_broker.server.stores.group_ring import GroupDone
from qpid_ha_broker.store.files import File
from qpid_ha_broker.store.segment import sync


class RingGroup(NamedTuple):
    """What was put."""

    file: File
    offset: int
    data: bytes
    done: GroupDone

    def write(self) -> OSError | None:
        """As the kernel would."""
        try:
            self.file.write(self.offset, self.data)
            sync(self.file)
        except OSError as error:
            return error
        return None


class ThreadedRing:
    """Groups are written on threads, as by the kernel, and told on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.puts = 0
        self._loop = loop
        self._threads = ThreadPoolExecutor(64, "kernel")

    def put(self, file: File, offset: int, data: bytes, done: GroupDone) -> bool:
        self.puts += 1
        group = RingGroup(file, offset, data, done)
        self._threads.submit(lambda: self._loop.call_soon_threadsafe(done, group.write()))
        return True


class HeldRing:
    """Groups wait until somebody says what became of them."""

    def __init__(self) -> None:
        self.groups: deque[RingGroup] = deque()
        self.is_full = False
        self.has_got_one: Callable[[], None] = lambda: None

    def put(self, file: File, offset: int, data: bytes, done: GroupDone) -> bool:
        if not self.is_full:
            self.groups.append(RingGroup(file, offset, data, done))
            self.has_got_one()
        return not self.is_full

    def write(self) -> None:
        """The oldest one has come to its end."""
        group = self.groups.popleft()
        group.done(group.write())

    def fail(self, error: OSError) -> None:
        """The oldest one has not."""
        self.groups.popleft().done(error)
