"""Several brokers on one machine, of one file: what the file says of the machine, as it is for each of them. Pure.

Safety property: no two workers of a machine have a name, a file or a port in common, except the ports of `listen`,
which the kernel shares among them (SO_REUSEPORT), and what all of them only read. The first one is the broker that the
machine had before it had several: it has its name and its data.

| setting | worker 1 | worker K of N |
| --- | --- | --- |
| `name` | NAME | NAME.K |
| `data-dir` | DIR | DIR/WORKER-K |
| `control-socket` | NAME.sock | NAME.K.sock |
| `log-file`, `audit.file` | FILE.log | FILE.K.log |
| `listen` | as it is, shared, and `workers.listen` | as it is, shared, and `workers.listen` with its port + K - 1 |
| `admin.listen` | as it is | its ports + K - 1 |
| `memory-limit`, `store.memory` | an Nth | an Nth |

All else is as the file says, of each worker: users, certificates, rules, and limits such as `max-connections`. A name
with a slash, NAME/K, could be part of no file's name and of no ZooKeeper node's. `NAME.K` is a name like any other, and
nobody takes it apart: a broker says of which machine it is besides. In a data directory a name in upper-case letters is
no resource set's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qpid_ha_config.addresses import Address

MOST: Final = 64
"""Workers of a machine."""

Written = Callable[[str], Any]
"""The value of a setting of the machine, by key, or its default."""


def worker_name(machine: str, number: int) -> str:
    """Of the worker with that number, from 1."""
    return machine if number == 1 else f"{machine}.{number}"


def worker_address(listen: Address, number: int) -> Address:
    """Where it listens for other brokers, if the first one does at `listen`."""
    return listen._replace(port=listen.port + number - 1)


def values_of_worker(get: Written, has: Callable[[str], bool], number: int, count: int) -> Mapping[str, object]:
    """What differs from the file for the worker with that number (1 to `count`), by key.

    `has`: whether the file says something of a key; what is no file of its own by default stays so.
    """
    own: dict[str, object] = {
        "name": worker_name(get("name"), number),
        "listen": (*get("listen"), *_own_listeners(get("workers.listen"), number)),
        "memory-limit": get("memory-limit") // count,
        "store.memory": get("store.memory") // count,
    }
    if number > 1:
        for key in ("control-socket", "log-file", "audit.file"):
            if has(key):
                own[key] = _numbered(get(key), number)
        if has("data-dir"):
            own["data-dir"] = get("data-dir") / f"WORKER-{number}"
        own["admin.listen"] = tuple(_moved(get("admin.listen"), number))
    return {key: str(value) if isinstance(value, Path) else value for key, value in own.items()}


def _own_listeners(listen: Address | None, number: int) -> Sequence[Address]:
    return () if listen is None else (worker_address(listen, number),)


def _moved(addresses: Sequence[Address], number: int) -> Sequence[Address]:
    """Port 0 lets the system choose, for each worker."""
    return [worker_address(address, number) if address.port else address for address in addresses]


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")
