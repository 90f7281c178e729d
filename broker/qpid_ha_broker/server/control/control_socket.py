"""The control socket's file: for this user, this group and root, and never for a moment open to others."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from qpid_ha_broker.access.audit import AuditChannel, Caller
from qpid_ha_broker.server.runtime.socket_directory import make_socket_directory
from qpid_ha_config.errors import SettingsError

_KEY = "control-socket"
_MODE = 0o660
_BACKLOG = 64
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """Who is at the other end, as the kernel knows it."""

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, connection: socket.socket) -> PeerCredentials:
        """The credentials that the peer had when it connected (SO_PEERCRED, unix(7))."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return cls(*_CREDENTIALS.unpack(raw))

    def caller(self) -> Caller:
        """For the audit log."""
        return Caller(AuditChannel.CONTROL_SOCKET, _name_of(self.uid), pid=self.pid, uid=self.uid)

    def may_administer(self, socket_gid: int) -> bool:
        """Root, the broker's own user, and members of the socket's group."""
        return self.uid in (0, os.geteuid()) or self.gid == socket_gid or socket_gid in _groups_of(self.uid, self.gid)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _groups_of(uid: int, gid: int) -> list[int]:
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:  # a user that this machine has no name for has no groups either
        return [gid]


def bind_control_socket(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 0660 from its first moment on. Raises SettingsError.

    What a dead broker left there is replaced; a live one is an error that names it.
    """
    make_socket_directory(_KEY, path.parent)
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous_umask = os.umask(0o777 & ~_MODE)
    try:
        listening.bind(os.fspath(path))
    except OSError as error:
        listening.close()
        raise SettingsError(_KEY, f"cannot listen at {path}: {error.strerror or error}") from None
    finally:
        os.umask(previous_umask)
    listening.listen(_BACKLOG)
    listening.setblocking(False)
    return listening


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SettingsError(_KEY, f"{path} exists and is no socket; choose another path")
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError(_KEY, f"cannot look at {path}: {error.strerror}") from None
    if _is_alive(path):
        raise SettingsError(_KEY, f"a broker already listens at {path}; stop it, or give this one another name")
    path.unlink(missing_ok=True)


def _is_alive(path: Path) -> bool:
    """Only a refused connection proves that nobody is there; a busy broker, or one of another user, is alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
