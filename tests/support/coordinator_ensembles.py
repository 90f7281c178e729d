"""The two kinds of ensemble, as whoever compares them sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from etcd_ensemble import EtcdEnsemble
from zookeeper_ensemble import ZookeeperEnsemble


@dataclass(frozen=True)
class Ensemble:
    """Three servers that serve."""

    url: Callable[[str], str]
    """Of a namespace."""
    requests: Callable[[], int]
    """That all servers have received from clients so far; pings of sessions count, asking for this does not."""


@contextmanager
def zookeeper() -> Iterator[Ensemble]:
    """Asking takes one packet for each server."""
    with (
        TemporaryDirectory(prefix="zookeeper-", dir="/dev/shm") as directory,
        ZookeeperEnsemble(Path(directory)) as servers,
    ):
        asked = 0

        def requests() -> int:
            nonlocal asked
            asked += len(servers.servers)
            return servers.packets_received() - asked

        yield Ensemble(servers.url, requests)


@contextmanager
def etcd() -> Iterator[Ensemble]:
    """What comes as JSON is a call of gRPC inside the server."""
    with EtcdEnsemble() as servers:
        yield Ensemble(servers.url, servers.requests)


ENSEMBLES: Final[Mapping[str, Callable[[], AbstractContextManager[Ensemble]]]] = {"zookeeper": zookeeper, "etcd": etcd}
