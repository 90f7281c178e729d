"""A disk that reads from a store and writes somewhere else: what is folded for others leaves the store untouched."""

from __future__ import annotations

from pathlib import Path

from qpid_ha_broker.store.files import Disk, File, LocalDisk


class OverlayDisk(LocalDisk):
    """`root` is where is written, `below` what is read where nothing was written."""

    def __init__(self, root: Path, below: Disk) -> None:
        super().__init__(root)
        self._below = below

    def names(self, directory: str) -> list[str]:
        """Of both."""
        return sorted({*super().names(directory), *self._below.names(directory)})

    def exists(self, path: str) -> bool:
        """In either."""
        return super().exists(path) or self._below.exists(path)

    def open(self, path: str, *, writable: bool = False) -> File:  # type: ignore[override]
        """What was written here, else what lies below, and that only to be read."""
        if super().exists(path):
            return super().open(path, writable=writable)
        if writable:
            raise PermissionError(f"{path} belongs to the store below, which is only read")
        return self._below.open(path)
