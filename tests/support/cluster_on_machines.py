"""A cluster whose brokers are on machines of their own, and an ensemble on another one: any two can be cut apart.

Machines are network namespaces, joined by a bridge in the one that has the ensemble, and the clients.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from network_namespaces import Machine
from qpid_ha_demo.cluster import LocalBroker
from qpid_ha_demo.zookeeper_ensemble import ZookeeperEnsemble
from running_cluster import RunningCluster

_BROKER, _SERVER, _CLIENTS = "10.77.0.1{}", "10.77.0.20{}", "10.77.0.100"
_PORT = 5672
_USER, _PASSWORD = "broker", "of these brokers"


class BrokerOnMachine(LocalBroker):
    """One that runs, with its agent, in a network namespace."""

    def __init__(self, directory: Path, settings: Mapping[str, object], machine: Machine, address: str) -> None:
        super().__init__(directory, settings, has_agent=True)
        self.machine = machine
        self.address = address

    @property
    def command(self) -> list[str]:
        """What starts it there."""
        return ["nsenter", f"--net={self.machine.namespace}", *super().command]


class ClusterOnMachines(RunningCluster):
    """`with ClusterOnMachines(tmp_path) as cluster:` has three brokers with agents, and three servers of ZooKeeper.

    `ha` is a section of the configuration, `settings` are other keys of it. With `stores` each broker has a data
    directory of its own there, named as it is; without, it keeps nothing.
    """

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        *,
        ha: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
        stores: Path | None = None,
    ) -> None:
        self._others = dict(settings or {})
        self._data = stores
        self._machines = ExitStack()
        self.hub = self._machines.enter_context(Machine())
        self.hub.ip("link", "add", "bridge", "type", "bridge")
        self.hub.ip("link", "set", "bridge", "up")
        for address in [_CLIENTS, *(_SERVER.format(number) for number in (1, 2, 3))]:
            self.hub.ip("address", "add", f"{address}/24", "dev", "bridge")
        servers = [_SERVER.format(number) for number in (1, 2, 3)]
        (directory / "ensemble").mkdir()
        self.ensemble = ZookeeperEnsemble(directory / "ensemble", hosts=servers, machine=self.hub)
        super().__init__(directory, 0, agents=True)
        self.urls = [f"amqp://{_BROKER.format(number)}:{_PORT}" for number in range(1, count + 1)]
        password = directory / "password"
        password.touch(0o600)
        password.write_text(f"{_PASSWORD}\n", encoding="ascii")
        given = {
            "cluster": True, "brokers-url": list(self.urls), "coordinator": self.ensemble.url("clusters/one"),
            "username": _USER, "password-file": str(password),
        }  # fmt: skip
        self._brokers = [self._add(directory, number, {**given, **(ha or {})}) for number in range(count)]
        self.brokers = [*self._brokers]

    def _add(self, directory: Path, number: int, ha: Mapping[str, object]) -> BrokerOnMachine:
        machine = self._machines.enter_context(Machine())
        address, name = _BROKER.format(number + 1), f"broker{number + 1}"
        machine.plug("net", self.hub, f"to-{name}")
        self.hub.ip("link", "set", f"to-{name}", "master", "bridge")
        machine.ip("address", "add", f"{address}/24", "dev", "net")
        open_to_all = {"sasl": {"allow-anonymous": True, "users-db": str(_users(directory))}}
        open_to_all["acl"] = {"rules": [f"allow {_USER} administer", "allow all all"]}
        own: dict[str, object] = {
            "name": name,
            "listen": [self.urls[number]],
            "control-socket": f"{self._sockets.name}/{name}.sock",
        }
        if self._data is not None:
            own["data-dir"] = str(self._data / name)
        return BrokerOnMachine(directory, {**own, **open_to_all, **self._others, "ha": ha}, machine, address)

    def start(self) -> None:
        """The servers, then the brokers."""
        self.ensemble.start()
        super().start()

    def stop(self) -> None:
        """End it all."""
        for broker in self.brokers:
            for pid in broker.processes():
                os.kill(pid, signal.SIGCONT)
        super().stop()
        self.ensemble.kill()
        self._machines.close()

    @contextmanager
    def cut(self, broker: LocalBroker, others: Iterable[LocalBroker] = (), *, ensemble: bool = False) -> Iterator[None]:
        """Nothing passes between that broker's machine and those, or the ensemble's servers, meanwhile."""
        near = self._of(broker)
        far = [self._of(other) for other in others]
        addresses = [other.address for other in far]
        addresses += [server.host for server in self.ensemble.servers] if ensemble else []
        routes = [(near.machine, address) for address in addresses]
        routes += [(other.machine, near.address) for other in far]
        for machine, address in routes:
            machine.ip("route", "add", "blackhole", f"{address}/32")
        try:
            yield
        finally:
            for machine, address in routes:
                machine.ip("route", "delete", "blackhole", f"{address}/32")

    def _of(self, broker: LocalBroker) -> BrokerOnMachine:
        return next(own for own in self._brokers if own is broker)


def _users(directory: Path) -> Path:
    """Who may replicate: brokers that others can reach want to know."""
    path = directory / "users.sasldb"
    if not path.exists():
        program = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin") or "saslpasswd2"
        command = [program, "-p", "-c", "-f", str(path), _USER]
        subprocess.run(command, input=_PASSWORD, text=True, check=True, capture_output=True)
    return path
