"""Groups of blocks on their way to a disk without a thread: io_uring of Linux 5.19 or newer.

A group is a chain of three requests, each of which begins when the one before has done all that it was to do: the
write, the question whether the file still has a name, and the `fdatasync`. Threads of the kernel do them, and the
ring's descriptor can be read from once a chain has ended, as a socket can. So nobody hands the interpreter to anybody.

Each chain has one completion. Of a write that succeeds there is none, and none of what follows one that failed or was
cut short (io_uring_enter(2), IOSQE_CQE_SKIP_SUCCESS). The sync is the last and has one whatever comes of it: to the
kernel a sync that failed is one that was done, and it would go on behind it without a word. As a kernel that is silent
in the wrong place would have us confirm what is lost, each ring shows both failures before it is used.

By cffi in ABI mode: nothing is compiled. Without a barrier of memory between them the end of the completions and what
lies before it are read in order on x86-64 alone, so that other machines have no ring.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import platform
import struct
import weakref
from typing import Any, Final, NamedTuple

from cffi import FFI

from qpid_ha_broker.server.stores.group_ring import GroupDone
from qpid_ha_broker.store.files import File, LocalFile
from qpid_ha_broker.store.segment import sync_error

log = logging.getLogger("store")

MACHINE: Final = "x86_64"
GROUPS_MAX: Final = 4096
"""So many are on their way at once; what is more goes by the threads."""
WORKERS_MAX: Final = 16
"""Threads of the kernel that write and sync at the same time."""

_DECLARATIONS: Final = """
    long syscall(long number, long a, long b, long c, long d, void *e, long f);
    void *mmap(void *address, size_t length, int protection, int flags, int descriptor, long offset);
    int munmap(void *address, size_t length);
"""
_SETUP, _ENTER, _REGISTER = 425, 426, 427
_GET_EVENTS: Final = 1
_SETUP_CQSIZE: Final = 1 << 3
_SETUP_CLAMP: Final = 1 << 4
_SETUP_COOP_TASKRUN: Final = 1 << 8
"""The loop is not interrupted for each request that ends, but hears of the chain."""
_FEATURE_SINGLE_MMAP: Final = 1 << 0
_FEATURE_CQE_SKIP: Final = 1 << 11
_REGISTER_WORKERS: Final = 19
_QUEUED: Final = 8
"""Requests that wait for one `io_uring_enter`: a chain has three."""
_SQES_AT: Final = 0x10000000
_READ_WRITE, _SHARED_POPULATED = 3, 0x8001

_PARAMETERS: Final = struct.Struct("7I12x10I10I")
"""Entries of both queues, flags, two of a polling thread that there is none of, features; then where things lie."""
_PARAMETERS_BYTES: Final = 120
_REQUEST: Final = struct.Struct("BBHiQQIIQ24x")
"""Operation, flags, priority, descriptor, offset, address, length, flags of the operation, number."""
_COMPLETION: Final = struct.Struct("QiI")
_OP_FSYNC, _OP_STATX, _OP_WRITE = 3, 21, 23
_LINKED, _ASYNC, _SILENT = 1 << 2, 1 << 4, 1 << 6
"""`_ASYNC`: never on the loop's thread, not even where it looks as if it would not wait."""
_DATASYNC: Final = 1
_EMPTY_PATH, _STATX_NLINK = 0x1000, 0x4
_STATX_BYTES: Final = 256
_NLINK: Final = struct.Struct("16xI")
_WRITTEN, _ASKED, _SYNCED = range(3)
_STEPS: Final = 4
"""A chain's number times this, and the step: what a completion bears."""


class _Chain(NamedTuple):
    """A group on its way. The kernel reads `data` and writes `facts` until it has ended."""

    descriptor: int
    offset: int
    data: bytes
    address: Any
    facts: Any
    done: GroupDone


_rings: Final = itertools.count()
_on_their_way: Final[dict[tuple[int, int], _Chain]] = {}
"""By the ring's number and their own, of all rings: a loop may end before they do, and the memory must stay."""


class DiskRing:
    """The promise: `done` without an error comes only when the group is on disk, and exactly once for what was taken.

    On the loop. Raises OSError where there is no io_uring, or one that is too old.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if platform.machine() != MACHINE:
            raise OSError(errno.ENOSYS, f"a machine of another kind than {MACHINE}")
        self._number = next(_rings)
        self._ffi = ffi = FFI()
        ffi.cdef(_DECLARATIONS)
        self._libc = ffi.dlopen(None)
        parameters = ffi.new("unsigned char[]", _PARAMETERS_BYTES)
        flags = _SETUP_CQSIZE | _SETUP_CLAMP | _SETUP_COOP_TASKRUN
        ffi.buffer(parameters)[0:12] = struct.pack("3I", 0, GROUPS_MAX, flags)
        self._descriptor = self._call(_SETUP, _QUEUED, int(ffi.cast("uintptr_t", parameters)))
        self._close = weakref.finalize(self, os.close, self._descriptor)
        facts = _PARAMETERS.unpack(ffi.buffer(parameters))
        requests, completions, features = facts[0], facts[1], facts[5]
        if not (features & _FEATURE_CQE_SKIP and features & _FEATURE_SINGLE_MMAP):
            raise OSError(errno.ENOSYS, "io_uring of a kernel before 5.19")
        _, self._tail_at, self._mask_at, _, _, _, array_at = (at // 4 for at in facts[7:14])
        self._done_head_at, self._done_tail_at, self._done_mask_at = (at // 4 for at in facts[17:20])
        self._completions_at = facts[22]
        size = max(self._completions_at + completions * _COMPLETION.size, facts[13] + requests * 4)
        ring = self._map(size, 0)
        self._memory = ffi.buffer(ring, size)
        self._words = ffi.cast("uint32_t *", ring)
        size = requests * (_REQUEST.size)
        self._requests = ffi.buffer(self._map(size, _SQES_AT), size)
        for place in range(requests):
            self._words[array_at + place] = place
        self._most = completions
        self._nothing = ffi.new("char[]", 1)
        self._path = int(ffi.cast("uintptr_t", self._nothing))
        self._free: list[int] = []
        """Numbers of chains that have ended."""
        self._numbers = 0
        workers = ffi.new("uint32_t[2]", (WORKERS_MAX, 0))
        self._libc.syscall(
            _REGISTER, self._descriptor, _REGISTER_WORKERS, int(ffi.cast("uintptr_t", workers)), 2, ffi.NULL, 0
        )
        self._show_failures()
        loop.add_reader(self._descriptor, self._take_completions)

    def _show_failures(self) -> None:
        """Devices that take no byte, and that cannot sync, have to be told as such."""
        for device, code in (("/dev/full", errno.ENOSPC), ("/dev/null", errno.EINVAL)):
            told: list[OSError | None] = []
            descriptor = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
            try:
                if self._submit(descriptor, 0, b"0", told.append):
                    self._libc.syscall(_ENTER, self._descriptor, 0, 1, _GET_EVENTS, self._ffi.NULL, 0)
                    self._take_completions()
            finally:
                os.close(descriptor)
            if [error and error.errno for error in told] != [code]:
                raise OSError(errno.ENOSYS, f"what failed on {device} is told as {told}")

    def put(self, file: File, offset: int, data: bytes, done: GroupDone) -> bool:
        if not isinstance(file, LocalFile) or self._numbers - len(self._free) >= self._most:
            return False
        return self._submit(file.descriptor, offset, data, done)

    def _submit(self, descriptor: int, offset: int, data: bytes, done: GroupDone) -> bool:
        ffi, words, requests, step = self._ffi, self._words, self._requests, _REQUEST.size
        number = self._free.pop() if self._free else self._numbers
        chain = _Chain(descriptor, offset, data, ffi.from_buffer(data), ffi.new("unsigned char[]", _STATX_BYTES), done)
        address, facts = int(ffi.cast("uintptr_t", chain.address)), int(ffi.cast("uintptr_t", chain.facts))
        tail, mask, mark = words[self._tail_at], words[self._mask_at], number * _STEPS
        chained, path = _LINKED | _SILENT, self._path
        for place, request in enumerate(
            (
                (_OP_WRITE, chained | _ASYNC, 0, descriptor, offset, address, len(data), 0, mark + _WRITTEN),
                (_OP_STATX, chained, 0, descriptor, facts, path, _STATX_NLINK, _EMPTY_PATH, mark + _ASKED),
                (_OP_FSYNC, 0, 0, descriptor, 0, 0, 0, _DATASYNC, mark + _SYNCED),
            )
        ):
            _REQUEST.pack_into(requests, ((tail + place) & mask) * step, *request)
        words[self._tail_at] = (tail + 3) & 0xFFFFFFFF
        begun = self._libc.syscall(_ENTER, self._descriptor, 3, 0, 0, ffi.NULL, 0)
        if begun <= 0:
            words[self._tail_at] = tail
            if number != self._numbers:
                self._free.append(number)
            return False
        self._numbers = max(self._numbers, number + 1)
        _on_their_way[self._number, number] = chain
        if begun != 3:  # without its sync the write tells nobody, so its number and its memory stay as they are
            raise OSError(errno.EIO, "the kernel has begun to write, and will not say how that ends")
        return True

    def _take_completions(self) -> None:
        """Some chains have ended. Each is forgotten before anybody hears of it: what that raises costs no other one."""
        words = self._words
        while (head := words[self._done_head_at]) != words[self._done_tail_at]:
            at = self._completions_at + (head & words[self._done_mask_at]) * _COMPLETION.size
            mark, result, _ = _COMPLETION.unpack_from(self._memory, at)
            words[self._done_head_at] = (head + 1) & 0xFFFFFFFF
            number, step = divmod(mark, _STEPS)
            chain = _on_their_way.pop((self._number, number))
            self._free.append(number)
            self._end(chain, step, result)

    def _end(self, chain: _Chain, step: int, result: int) -> None:
        if step == _SYNCED and not result:
            has_name = _NLINK.unpack_from(self._ffi.buffer(chain.facts))[0]
            chain.done(None if has_name else OSError(errno.ENOENT, "its file was deleted by somebody else"))
        elif step == _WRITTEN and result > 0:  # as much as fits
            rest = chain.data[result:]
            if not self._submit(chain.descriptor, chain.offset + result, rest, chain.done):
                chain.done(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        elif step == _WRITTEN:
            code = -result or errno.ENOSPC
            chain.done(OSError(code, os.strerror(code)))
        else:
            chain.done(sync_error(OSError(-result, os.strerror(-result))))

    def _call(self, number: int, first: int, second: int) -> int:
        result: int = self._libc.syscall(number, first, second, 0, 0, self._ffi.NULL, 0)
        if result < 0:
            raise OSError(self._ffi.errno, os.strerror(self._ffi.errno))
        return result

    def _map(self, length: int, offset: int) -> Any:
        memory = self._libc.mmap(self._ffi.NULL, length, _READ_WRITE, _SHARED_POPULATED, self._descriptor, offset)
        if int(self._ffi.cast("intptr_t", memory)) == -1:
            raise OSError(self._ffi.errno, os.strerror(self._ffi.errno))
        weakref.finalize(self, self._libc.munmap, memory, length)
        return memory


def open_disk_ring(loop: asyncio.AbstractEventLoop) -> DiskRing | None:
    """The machine's, if there is one that may be used."""
    try:
        return DiskRing(loop)
    except OSError as error:
        log.info("stores are written by threads alone: io_uring cannot be used (%s)", error.strerror)
        return None
