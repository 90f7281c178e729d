"""The two kinds of ensemble, as whoever compares them sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from etcd_ensemble import EtcdEnsemble
from qpid_ha_demo.zookeeper_ensemble import ZookeeperEnsemble


@dataclass(frozen=True)
class Ensemble:
    """Three servers that serve."""

    url: Callable[[str], str]
    """Of a namespace."""
    requests: Callable[[], int]
    """That all servers have carried out for clients so far, as far as clusters that are idle make any."""
    packets: Callable[[], int]
    """The same, with the pings by which sessions are kept."""
    kill_leader: Callable[[], object]
    """SIGKILL to the server that leads."""
    freeze: Callable[[], object]
    """SIGSTOP to all: connections stay, and nobody answers."""
    mend: Callable[[], object]
    """After either: all servers run and serve."""


@contextmanager
def zookeeper() -> Iterator[Ensemble]:
    """Idle clusters only have things agreed on. Asking for packets takes one for each server."""
    with (
        TemporaryDirectory(prefix="zookeeper-", dir="/dev/shm") as directory,
        ZookeeperEnsemble(Path(directory)) as ensemble,
    ):

        def freeze() -> None:
            for server in ensemble.servers:
                server.stop()

        yield Ensemble(
            ensemble.url,
            lambda: sum(server.updates() for server in ensemble.servers),
            ensemble.packets_received,
            kill_leader=lambda: ensemble.leader.kill(),
            freeze=freeze,
            mend=ensemble.mend,
        )


@contextmanager
def etcd() -> Iterator[Ensemble]:
    """What comes as JSON is a call of gRPC inside the server. There are no pings: a keep-alive is a request."""
    with EtcdEnsemble() as ensemble:
        everyone = range(len(ensemble.members))
        yield Ensemble(
            ensemble.url,
            ensemble.requests,
            ensemble.requests,
            kill_leader=lambda: ensemble.kill(ensemble.leader()),
            freeze=lambda: ensemble.pause(*everyone),
            mend=ensemble.mend,
        )


ENSEMBLES: Final[Mapping[str, Callable[[], AbstractContextManager[Ensemble]]]] = {"zookeeper": zookeeper, "etcd": etcd}
