"""Corosync's closed process groups, as its library libcpg.so.4 gives them: calls, and errors by name.

By cffi in ABI mode: nothing is compiled, and the library is only needed where a group is. The declarations are those of
corosync/cpg.h of Corosync 3, whose interface has had the number 4 since version 1.4. What comes is noted while the
library calls back, and taken after that: an exception must not pass through C.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from cffi import FFI

LIBRARY: Final = "libcpg.so.4"
_DECLARATIONS: Final = """
    typedef uint64_t cpg_handle_t;
    struct cpg_address { uint32_t nodeid; uint32_t pid; uint32_t reason; };
    struct cpg_name { uint32_t length; char value[128]; };
    struct iovec { void *iov_base; size_t iov_len; };
    typedef void (*cpg_deliver_fn_t)(
        cpg_handle_t handle, const struct cpg_name *group, uint32_t nodeid, uint32_t pid, void *message, size_t length);
    typedef void (*cpg_confchg_fn_t)(
        cpg_handle_t handle, const struct cpg_name *group,
        const struct cpg_address *members, size_t member_count,
        const struct cpg_address *left, size_t left_count,
        const struct cpg_address *joined, size_t joined_count);
    typedef struct { cpg_deliver_fn_t deliver; cpg_confchg_fn_t confchg; } cpg_callbacks_t;
    int cpg_initialize(cpg_handle_t *handle, cpg_callbacks_t *callbacks);
    int cpg_finalize(cpg_handle_t handle);
    int cpg_fd_get(cpg_handle_t handle, int *fd);
    int cpg_max_atomic_msgsize_get(cpg_handle_t handle, uint32_t *size);
    int cpg_dispatch(cpg_handle_t handle, int types);
    int cpg_join(cpg_handle_t handle, const struct cpg_name *group);
    int cpg_leave(cpg_handle_t handle, const struct cpg_name *group);
    int cpg_local_get(cpg_handle_t handle, unsigned int *nodeid);
    int cpg_mcast_joined(cpg_handle_t handle, int guarantee, const struct iovec *pieces, unsigned int count);
"""
_ONE_NONBLOCKING: Final = 4
_AGREED: Final = 2


class CpgResult(IntEnum):
    """What a call has come to; `cs_error_t`, as far as it is told apart here."""

    OK = 1
    LIBRARY = 2
    """The daemon is not there, or not any more."""
    TRY_AGAIN = 6
    """Not now: flow control, or the ring is being formed."""
    BAD_HANDLE = 9
    ACCESS = 11


class CpgReason(IntEnum):
    """Why a process left or joined; `cpg_reason_t`."""

    UNDEFINED = 0
    JOIN = 1
    LEAVE = 2
    NODEDOWN = 3
    NODEUP = 4
    PROCDOWN = 5


class CpgAddress(NamedTuple):
    """A process."""

    nodeid: int
    pid: int


class CpgMessage(NamedTuple):
    """A message was delivered."""

    sender: CpgAddress
    data: bytes


class CpgConfiguration(NamedTuple):
    """Who is in the group from here on."""

    members: tuple[CpgAddress, ...]
    left: tuple[tuple[CpgAddress, int], ...]
    """With the reason: a `CpgReason`, or one of a newer release."""
    joined: tuple[CpgAddress, ...]


class GroupTransportError(Exception):
    """The transport cannot be used: why, and what to do about it."""


class CpgCallFailed(GroupTransportError):
    """A call of the library has failed."""

    def __init__(self, call: str, result: int) -> None:
        self.result = result
        super().__init__(f"{call}: {_meaning(result)}")


def _meaning(result: int) -> str:
    if result == CpgResult.LIBRARY:
        return "Corosync does not answer here: start it (systemctl start corosync), see corosync-cfgtool -s"
    if result == CpgResult.ACCESS:
        return "Corosync does not let this user in: uidgid in corosync.conf(5) says who may"
    if result == CpgResult.TRY_AGAIN:
        return "Corosync takes nothing now: does it have quorum and a ring, as corosync-quorumtool shows?"
    return f"error {result} of Corosync's corotypes.h"


class CpgLibrary:
    """The library. Raises GroupTransportError when it is not there."""

    def __init__(self, path: str = LIBRARY) -> None:
        self.ffi = FFI()
        self.ffi.cdef(_DECLARATIONS)
        try:
            self.lib: Any = self.ffi.dlopen(path)
        except OSError as error:
            text = f"{path} is not there: install Corosync and its library (Debian: corosync, libcpg4): {error}"
            raise GroupTransportError(text) from error


class CpgHandle:
    """This process in one group. Raises CpgCallFailed.

    The library calls back only within `take`, in this thread. Whoever has one closes it.
    """

    def __init__(self, library: CpgLibrary, group: str) -> None:
        self._ffi, self._lib = library.ffi, library.lib
        ffi = self._ffi
        self._came: list[CpgMessage | CpgConfiguration] = []
        self._deliver = ffi.callback("cpg_deliver_fn_t", self._delivered)
        self._confchg = ffi.callback("cpg_confchg_fn_t", self._configured)
        self._callbacks = ffi.new("cpg_callbacks_t *", (self._deliver, self._confchg))
        """Kept as long as the library may call them."""
        handle = ffi.new("cpg_handle_t *")
        self._check("cpg_initialize", self._lib.cpg_initialize(handle, self._callbacks))
        self._handle: int = handle[0]
        try:
            self._join(group)
        except CpgCallFailed:
            self.close()
            raise

    def _join(self, group: str) -> None:
        ffi, encoded = self._ffi, group.encode()
        number, size, node = ffi.new("int *"), ffi.new("uint32_t *"), ffi.new("unsigned int *")
        self._check("cpg_fd_get", self._lib.cpg_fd_get(self._handle, number))
        self._check("cpg_max_atomic_msgsize_get", self._lib.cpg_max_atomic_msgsize_get(self._handle, size))
        self._check("cpg_local_get", self._lib.cpg_local_get(self._handle, node))
        self.fd: int = number[0]
        self.message_bytes_most: int = size[0]
        self.nodeid: int = node[0]
        name = ffi.new("struct cpg_name *", {"length": len(encoded), "value": encoded})
        self._check("cpg_join", self._lib.cpg_join(self._handle, name))

    def take(self, most: int) -> list[CpgMessage | CpgConfiguration]:
        """What has come, about `most` of it. Raises CpgCallFailed when the daemon is gone."""
        for _ in range(most):
            result = self._lib.cpg_dispatch(self._handle, _ONE_NONBLOCKING)
            if result == CpgResult.TRY_AGAIN:
                break
            self._check("cpg_dispatch", result)
        came, self._came = self._came, []
        return came

    def multicast(self, data: bytes) -> bool:
        """Send one message. False: not now. Raises CpgCallFailed."""
        ffi = self._ffi
        held = ffi.from_buffer(data)
        piece = ffi.new("struct iovec *", {"iov_base": ffi.cast("void *", held), "iov_len": len(data)})
        result = self._lib.cpg_mcast_joined(self._handle, _AGREED, piece, 1)
        if result == CpgResult.TRY_AGAIN:
            return False
        self._check("cpg_mcast_joined", result)
        return True

    def close(self) -> None:
        """Leave. What is on the way to this process is lost."""
        if self._handle:
            self._lib.cpg_finalize(self._handle)
            self._handle = 0

    @staticmethod
    def _check(call: str, result: int) -> None:
        if result != CpgResult.OK:
            raise CpgCallFailed(call, result)

    # --- called by the library

    def _delivered(self, _: int, __: Any, nodeid: int, pid: int, message: Any, length: int) -> None:
        self._came.append(CpgMessage(CpgAddress(nodeid, pid), bytes(self._ffi.buffer(message, length))))

    def _configured(
        self, _: int, __: Any, members: Any, member_count: int, left: Any, left_count: int, joined: Any,
        joined_count: int,
    ) -> None:  # fmt: skip
        self._came.append(
            CpgConfiguration(
                tuple([_address(members[at]) for at in range(member_count)]),
                tuple([(_address(left[at]), left[at].reason) for at in range(left_count)]),
                tuple([_address(joined[at]) for at in range(joined_count)]),
            )
        )


def _address(address: Any) -> CpgAddress:
    return CpgAddress(address.nodeid, address.pid)
