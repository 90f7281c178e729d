"""A real ZooKeeper ensemble on loopback: Debian's jars, servers that are killed, stopped, continued and wiped.

`with ZookeeperEnsemble(directory) as ensemble:` has three servers that serve; `servers=1` starts a single one. Where
many tests share one, who breaks it mends it, which `mended` does.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from qpid_ha_demo.running import RunsWhileUsed

_JAR_NAMES = ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")
JARS = tuple(Path("/usr/share/java", f"{name}.jar") for name in _JAR_NAMES)
"""The first names most of what it needs itself; not what TLS takes, and nothing that writes a log."""
TICK_MS = 250
"""Sessions are measured in it: one of 1 s ends 1 to 1.25 s after its last sign of life."""
SYNC_TICKS = 12
"""After so many, a server that is stopped is given up by the others, and a leader without followers leads no more."""
SHORTEST_SESSION_MS = 1000
LONGEST_SESSION_MS = 60_000
TIMEOUT_S = 30.0
_JAVA = ("-Xms24m", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")
_PROPERTIES = {
    "zookeeper.admin.enableServer": "false",
    "zookeeper.4lw.commands.whitelist": "*",
    "zookeeper.preAllocSize": "64",
    "zookeeper.forceSync": "no",  # nobody cuts the power, and others need the disk
    "org.slf4j.simpleLogger.defaultLogLevel": "warn",
    "org.slf4j.simpleLogger.showDateTime": "true",
    "org.slf4j.simpleLogger.dateTimeFormat": "HH:mm:ss.SSS",
}
_PORTS = range(18_000, 30_000)
"""Below those that the kernel gives to clients: a server that comes back finds its port free."""


class Network(Protocol):
    """Where servers may run instead of here: a network namespace."""

    @property
    def namespace(self) -> Path:
        """For nsenter."""
        ...

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """This thread is there meanwhile."""
        ...


class EnsembleFailed(Exception):
    """It did not come to what was waited for; the text has what the servers said last."""


def why_not_here() -> str:
    """What is missing for an ensemble, and how to install it; empty when nothing is."""
    missing = [str(jar) for jar in JARS if not jar.exists()]
    if shutil.which("java") is None:
        missing.append("java")
    if not missing:
        return ""
    return (
        f"ZOOKEEPER IS MISSING ({', '.join(missing)}), and a real one is needed here: run ./dev setup, or "
        "apt-get install zookeeper libslf4j-java openjdk-17-jre-headless"
    )


class ZookeeperServer:
    """One server: its files, its ports, its process."""

    def __init__(self, number: int, directory: Path, host: str, machine: Network | None) -> None:
        self.number = number
        self.host = host
        self.port, self.quorum_port, self.election_port, self.tls_port = _free_ports(4, host, machine)
        self._directory = directory / f"server{number}"
        self._config = self._directory / "zoo.cfg"
        self._machine = machine
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, lines: Sequence[str]) -> None:
        """Write its files; what it stored before stays."""
        self.data.mkdir(parents=True, exist_ok=True)
        (self.data / "myid").write_text(f"{self.number}\n", encoding="ascii")
        own = [f"dataDir={self.data}", f"clientPort={self.port}", f"clientPortAddress={self.host}"]
        self._config.write_text("\n".join([*lines, *own, ""]), encoding="utf-8")

    @property
    def data(self) -> Path:
        """Where it stores everything."""
        return self._directory / "data"

    @property
    def address(self) -> str:
        """HOST:PORT for clients without TLS."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Of its process. Raises EnsembleFailed when there is none."""
        if self._process is None:
            raise EnsembleFailed(f"server {self.number} does not run")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process, stopped or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it if it does not run; `ZookeeperEnsemble.wait` waits until it serves.

        In a session of its own: Ctrl-C is for us.
        """
        if self.is_running:
            return
        options = [f"-D{name}={value}" for name, value in _PROPERTIES.items()]
        command = ["java", *_JAVA, *options, "-cp", ":".join(map(str, JARS))]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._config)]
        inside = ["nsenter", f"--net={self._machine.namespace}"] if self._machine is not None else []
        with (self._directory / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [*inside, *command], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL, and wait for its end; nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGSTOP: its connections stay, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def ask(self, word: str, timeout_s: float = 1.0) -> str:
        """What it answers to a four-letter word (`srvr`, `mntr`, `cons`, `dump`); empty when it does not."""
        inside = self._machine.inside() if self._machine is not None else contextlib.nullcontext()
        try:
            with inside, socket.create_connection((self.host, self.port), timeout_s) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        except OSError:
            return ""

    @property
    def mode(self) -> str:
        """leader, follower or standalone; empty while it does not serve."""
        return next((line[6:] for line in self.ask("srvr").splitlines() if line.startswith("Mode: ")), "")

    def answers_tls(self, timeout_s: float = 5.0) -> bool:
        """Whether a TLS handshake comes to its end, with a refusal as well. The first one of a server loads what it
        needs, which takes seconds on a busy machine; clients give one attempt less than that."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with socket.create_connection((self.host, self.tls_port), timeout_s) as connection:
                context.wrap_socket(connection).close()
        except ssl.SSLError as error:  # it wants a certificate
            return "ALERT" in str(error.reason)
        except OSError:
            return False
        return True

    def packets_received(self) -> int:
        """From clients since its start, those that ask for this included. Raises EnsembleFailed."""
        return self._counted("zk_packets_received")

    def updates(self) -> int:
        """Requests of its clients that a majority agreed on, since its start: changes, and transactions that only
        compare. Raises EnsembleFailed."""
        return self._counted("zk_cnt_updatelatency")

    def _counted(self, name: str) -> int:
        for line in self.ask("mntr").splitlines():
            if line.startswith(f"{name}\t"):
                return int(line.split("\t")[1])
        raise EnsembleFailed(f"server {self.number} does not say its {name}")

    def log(self) -> str:
        """What it said; empty before its first start."""
        path = self._directory / "log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def wipe(self) -> None:
        """Kill it, and remove all that it stored."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)


class ZookeeperEnsemble(RunsWhileUsed):
    """Several servers, and what a test does to all of them.

    `hosts` are their addresses, of `machine` if that is given; `tls` (CA, certificate, key: PEM) opens a second port of
    each for TLS, on which clients need a certificate of that CA when `wants_clients_certificate`.
    """

    def __init__(
        self,
        directory: Path,
        servers: int = 3,
        *,
        hosts: Sequence[str] = (),
        machine: Network | None = None,
        tls: tuple[Path, Path, Path] | None = None,
        wants_clients_certificate: bool = False,
    ) -> None:
        self._directory = directory
        self._tls = tls
        self._wants_clients_certificate = wants_clients_certificate
        places = [*hosts] or ["127.0.0.1"] * servers
        self.servers = [ZookeeperServer(number, directory, host, machine) for number, host in enumerate(places, 1)]

    def url(self, namespace: str, *, tls: bool = False) -> str:
        """For `ha.coordinator`."""
        ports = [server.tls_port if tls else server.port for server in self.servers]
        hosts = [server.host for server in self.servers]
        addresses = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
        return f"zookeeper://{addresses}/{namespace}"

    @property
    def hosts(self) -> str:
        """HOST:PORT,... for clients of the test's own."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start those that do not run, and wait until all serve, also with TLS. Raises EnsembleFailed."""
        for server in self.servers:
            server.configure(self._lines(server))
            server.start()
        self.wait()
        until_s = time.monotonic() + TIMEOUT_S
        for server in self.servers if self._tls is not None else ():
            while not server.answers_tls():
                if time.monotonic() > until_s:
                    raise EnsembleFailed(f"no TLS handshake after {TIMEOUT_S:g} s:\n{self.log()[-4000:]}")
                time.sleep(0.02)

    def wait(self, serving: int | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Until so many serve (all), one of them as leader. Raises EnsembleFailed."""
        wanted, until_s = len(self.servers) if serving is None else serving, time.monotonic() + timeout_s
        while True:
            modes = [server.mode for server in self.servers if server.is_running]
            if sum(map(bool, modes)) >= wanted and {"leader", "standalone"} & set(modes):
                return
            if time.monotonic() > until_s:
                raise EnsembleFailed(f"{modes} after {timeout_s:g} s:\n{self.log()[-4000:]}")
            time.sleep(0.02)

    @property
    def leader(self) -> ZookeeperServer:
        """Which one leads. Raises EnsembleFailed when none does."""
        for server in self.servers:
            if server.is_running and server.mode in ("leader", "standalone"):
                return server
        raise EnsembleFailed(f"no server leads:\n{self.log()[-4000:]}")

    @property
    def followers(self) -> list[ZookeeperServer]:
        """Those that follow."""
        return [server for server in self.servers if server.is_running and server.mode == "follower"]

    def kill(self) -> None:
        """SIGKILL to all."""
        for server in self.servers:
            server.kill()

    def wipe(self) -> None:
        """Kill all, and remove all that they stored."""
        for server in self.servers:
            server.wipe()

    @contextlib.contextmanager
    def mended(self) -> Iterator[Self]:
        """What happens to it inside is over afterwards: all servers run and serve."""
        try:
            yield self
        finally:
            self.mend()

    def mend(self) -> None:
        """Continue those that were stopped, start those that do not run, and wait until all serve. Raises
        EnsembleFailed."""
        for server in self.servers:
            if server.is_running:
                server.resume()
        self.start()

    def packets_received(self) -> int:
        """Of all servers, from clients; asking takes one each."""
        return sum(server.packets_received() for server in self.servers)

    def log(self) -> str:
        """What all of them said."""
        return "\n".join(f"server {server.number}:\n{server.log()}" for server in self.servers)

    def stop(self) -> None:
        """As kill -9: they have nothing to end with."""
        self.kill()

    def _lines(self, server: ZookeeperServer) -> list[str]:
        lines = [
            f"tickTime={TICK_MS}", "initLimit=40", f"syncLimit={SYNC_TICKS}", "maxClientCnxns=0",
            f"minSessionTimeout={SHORTEST_SESSION_MS}", f"maxSessionTimeout={LONGEST_SESSION_MS}",
        ]  # fmt: skip
        if len(self.servers) > 1:
            lines += [
                f"server.{each.number}={each.host}:{each.quorum_port}:{each.election_port}" for each in self.servers
            ]
        return lines + self._tls_lines(server)

    def _tls_lines(self, server: ZookeeperServer) -> list[str]:
        if self._tls is None:
            return []
        ca, certificate, key = self._tls
        both = self._directory / "server.pem"
        both.write_text(key.read_text(encoding="ascii") + certificate.read_text(encoding="ascii"), encoding="ascii")
        return [
            f"secureClientPort={server.tls_port}", f"secureClientPortAddress={server.host}",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={both}", "ssl.keyStore.type=PEM",
            f"ssl.trustStore.location={ca}", "ssl.trustStore.type=PEM",
            f"ssl.clientAuth={'need' if self._wants_clients_certificate else 'none'}",
        ]  # fmt: skip


def _free_ports(count: int, host: str, machine: Network | None) -> list[int]:
    """Ports that nobody uses now."""
    found: list[int] = []
    with machine.inside() if machine is not None else contextlib.nullcontext(), contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.choice(_PORTS)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server((host, port)))
                found.append(port)
    return found
