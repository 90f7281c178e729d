"""What the stores of a broker rest on: disks, who writes to them beside the loop, and who folds what is old."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import NamedTuple

from qpid_ha_broker.server.stores.folding import BeginFolding, FoldingProcess
from qpid_ha_broker.server.stores.writer import StoreWriter
from qpid_ha_broker.store.files import Disk, LocalDisk
from qpid_ha_config.settings import StoreSettings

MakeDisk = Callable[[Path, Container[str] | None], Disk]
"""Of a directory, with those of its directories of which a descriptor stays open: see `store.files.LocalDisk`."""


class Storage(NamedTuple):
    """One for all stores of a broker. Disks of the machine, threads and processes, unless others are given: a
    simulation has disks in memory, which are written on a virtual clock."""

    writer: StoreWriter
    make_disk: MakeDisk = LocalDisk
    begin_folding: BeginFolding = FoldingProcess


def storage_of_machine(settings: StoreSettings) -> Storage:
    """What a broker with these settings has."""
    if not settings.has_ring:
        return Storage(StoreWriter())
    from qpid_ha_broker.server.stores.disk_ring import open_disk_ring  # cffi: few brokers have a ring

    return Storage(StoreWriter(open_disk_ring))
