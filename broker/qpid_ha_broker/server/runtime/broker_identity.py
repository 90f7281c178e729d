"""Which broker this is, whatever it is called: of what it holds, so another one once its data directory is another."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_config.errors import SettingsError

UUID_FILE: Final = "BROKER"


def broker_uuid(data_dir: Path | None) -> str:
    """That of the data directory, made when it is missing; without one what a broker holds goes with its process.

    Raises SettingsError.
    """
    if data_dir is None:
        return str(uuid.uuid4())
    path = data_dir / UUID_FILE
    try:
        if path.exists():
            return str(uuid.UUID(path.read_text(encoding="ascii").strip()))
        made = str(uuid.uuid4())
        LocalDisk(data_dir, kept=()).replace(UUID_FILE, f"{made}\n".encode("ascii"))
    except OSError as error:
        raise SettingsError("data-dir", f"cannot use {path}: {error.strerror}") from None
    except ValueError:
        problem = f"{path} holds no UUID: remove it, and the cluster takes this broker for a new one"
        raise SettingsError("data-dir", problem) from None
    return made
