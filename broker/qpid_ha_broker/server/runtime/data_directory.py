"""One broker per data directory: two that write the same journal would each destroy the other's."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from qpid_ha_config.errors import SettingsError
from qpid_ha_config.loading import check_unshared

LOCK_FILE = "LOCK"


def lock_data_directory(path: Path) -> int:
    """Make the directory if need be (mode 0700) and lock it, until the descriptor that this returns is closed: at the
    latest when the process ends, the kernel does that.

    Raises SettingsError naming who holds it. The file stays: removing it would race with the next holder.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_unshared("data-dir", path)
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SettingsError("data-dir", f"cannot use {path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        problem = f"{path} is in use by another broker (pid {holder}); stop it, or give this one its own directory"
        raise SettingsError("data-dir", problem) from None
    except OSError as error:
        os.close(descriptor)
        raise SettingsError("data-dir", f"cannot lock {path}: {error.strerror}") from None
    return descriptor
