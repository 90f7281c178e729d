"""The directory in which a broker has its control socket, and brokers of one machine their secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from qpid_ha_config.errors import SettingsError


def make_socket_directory(key: str, directory: Path) -> None:
    """A directory that we make is ours alone, but root's under /run: members of the socket's group pass there.

    One that somebody else made where everybody may (/tmp) is a trap: its owner could put another socket there. Raises
    SettingsError, for the setting `key`.
    """
    mode = 0o755 if directory.is_relative_to("/run") and os.geteuid() == 0 else 0o700
    try:
        directory.mkdir(mode=mode, exist_ok=True)
        status, above = directory.stat(), directory.parent.stat()
    except OSError as error:
        raise SettingsError(key, f"cannot make {directory}: {error.strerror}") from None
    if above.st_mode & stat.S_IWOTH and status.st_uid not in (0, os.geteuid()):
        raise SettingsError(key, f"the directory {directory} belongs to somebody else; choose another one")
