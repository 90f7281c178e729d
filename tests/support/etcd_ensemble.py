"""Real etcd servers on loopback, and what a test does to them: kill, stop, restart, wipe, ask for users."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from limits import LIMIT_S
from qpid_ha_demo.running import HOST, LAST_WORDS, RunsWhileUsed, reserve_port
from stopped_processes import stop_processes

INSTALL = "apt-get install etcd-server etcd-client (`./dev setup` does it)"
ROOT_PASSWORD = "root's"
_CALLS = re.compile(r"^grpc_server_started_total\{.*\} (\S+)$", re.MULTILINE)
_FAST_DIRECTORY = Path("/dev/shm")
"""A write of etcd waits for the disk; what is measured here is not the disk."""


class EtcdFailed(Exception):
    """A server or `etcdctl` did not do what was asked; the text has what it said."""


class ServerTls(NamedTuple):
    """PEM files. With `client_ca`, whoever shows no certificate of that authority is turned away."""

    ca: Path
    certificate: Path
    key: Path
    client_ca: Path | None = None


def require_etcd() -> None:
    """Raises EtcdFailed, which says how to install it."""
    missing = [program for program in ("etcd", "etcdctl") if shutil.which(program) is None]
    if missing:
        raise EtcdFailed(f"{' and '.join(missing)} is not installed: {INSTALL}")


class EtcdMember:
    """One server: its ports, which stay its own while it is down, its directory and its process."""

    def __init__(self, stack: ExitStack, directory: Path, name: str) -> None:
        self.name = name
        self.port, self.peer_port = reserve_port(stack), reserve_port(stack)
        self.data = directory / name
        self._log_path = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"{HOST}:{self.port}"

    @property
    def peer_url(self) -> str:
        """For the other members."""
        return f"http://{HOST}:{self.peer_port}"

    @property
    def pid(self) -> int:
        """Of its process. Raises EtcdFailed when it is down."""
        if self._process is None:
            raise EtcdFailed(f"{self.name} is down")
        return self._process.pid

    def start(self, cluster: str, tls: ServerTls | None, options: Sequence[str]) -> None:
        """Start the process; it may take a moment until it answers."""
        url = f"{'https' if tls else 'http'}://{self.address}"
        command = ["etcd", "--name", self.name, "--data-dir", str(self.data)]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url]
        command += ["--initial-cluster", cluster, "--initial-cluster-state", "new", *options]
        if tls is not None:
            command += ["--cert-file", str(tls.certificate), "--key-file", str(tls.key)]
            if tls.client_ca is not None:
                command += ["--client-cert-auth", "--trusted-ca-file", str(tls.client_ca)]
        with self._log_path.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """SIGKILL, stopped or not; nothing if it is down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        """What it has said so far."""
        return self._log_path.read_text(encoding="utf-8", errors="replace") if self._log_path.exists() else ""


class EtcdEnsemble(RunsWhileUsed):
    """`with EtcdEnsemble() as etcd:` runs `size` servers and ends them all. A server is named by its index."""

    def __init__(self, size: int = 3, *, tls: ServerTls | None = None, options: Sequence[str] = ()) -> None:
        self._stack = ExitStack()
        parent = _FAST_DIRECTORY if _FAST_DIRECTORY.is_dir() else None
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="etcd-", dir=parent)))
        self._tls = tls
        self._options = options
        self._root: tuple[str, ...] = ()
        """What `etcdctl` needs once there are users."""
        self.members = [EtcdMember(self._stack, self._directory, f"etcd{number}") for number in range(1, size + 1)]

    def start(self, timeout_s: float = LIMIT_S) -> None:
        """Start whoever is down, and wait until all answer. Raises EtcdFailed."""
        require_etcd()
        for member in self.members:
            self._start(member)
        self.wait_healthy(timeout_s)

    def stop(self) -> None:
        """End every process, and leave nothing."""
        for member in self.members:
            member.kill()
        self._stack.close()

    def logs(self) -> Iterable[tuple[str, str]]:
        """Of each server."""
        return [(member.name, member.log()) for member in self.members]

    # --- how it is reached

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each server."""
        return [member.address for member in self.members]

    def url(self, namespace: str) -> str:
        """For `ha.coordinator`."""
        return f"etcd://{','.join(self.addresses)}/{namespace}"

    def etcdctl(self, *arguments: str, text: str = "") -> str:
        """What the program prints when it is given `text`. Raises EtcdFailed."""
        scheme = "https" if self._tls else "http"
        command = ["etcdctl", "--endpoints", ",".join(f"{scheme}://{address}" for address in self.addresses)]
        if self._tls is not None:
            command += ["--cacert", str(self._tls.ca)]
        if self._tls is not None and self._tls.client_ca is not None:
            command += ["--cert", str(self._tls.certificate), "--key", str(self._tls.key)]
        command += [*self._root, *arguments]
        settings = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=30, check=False, env=settings
        )
        if done.returncode:
            raise EtcdFailed(f"etcdctl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def wait_healthy(self, timeout_s: float = LIMIT_S) -> None:
        """Until every server answers a linearizable read. Raises EtcdFailed."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.etcdctl("endpoint", "health")
            except EtcdFailed as error:
                if time.monotonic() > deadline:
                    words = "\n".join(member.log()[-LAST_WORDS:] for member in self.members)
                    raise EtcdFailed(f"not healthy within {timeout_s:g} s: {error}\n{words}") from None
                time.sleep(0.05)
            else:
                return

    def leader(self) -> int:
        """The index of the server that leads. Raises EtcdFailed."""
        for index, member in enumerate(self.members):
            with contextlib.suppress(EtcdFailed):
                answer = self.etcdctl("endpoint", "status", "--endpoints", self._client_url(member), "-w", "fields")
                fields = dict(re.findall(r'^"(\w+)" : "?([^"\n]*)"?$', answer, re.MULTILINE))
                if fields.get("Leader") == fields.get("MemberID"):
                    return index
        raise EtcdFailed("nobody leads")

    def revision(self) -> int:
        """Of the newest change. Raises EtcdFailed."""
        found = re.search(r'^"Revision" : (\d+)$', self.etcdctl("get", "/", "-w", "fields"), re.MULTILINE)
        if found is None:
            raise EtcdFailed("no revision")
        return int(found[1])

    def requests(self) -> int:
        """How many calls the servers that are up have begun to carry out since they were started; not this one."""
        total = 0
        for member in self.members:
            with urllib.request.urlopen(f"http://{member.address}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            total += sum(int(float(count)) for count in _CALLS.findall(text))
        return total

    # --- what is done to it

    def kill(self, *indexes: int) -> None:
        """SIGKILL; without `indexes` to all."""
        for index in indexes or range(len(self.members)):
            self.members[index].kill()

    def restart(self, *indexes: int) -> None:
        """Start servers that are down, with the data that they had; without `indexes` all. They answer a moment
        later: `wait_healthy`."""
        for index in indexes or range(len(self.members)):
            self._start(self.members[index])

    def pause(self, *indexes: int) -> None:
        """SIGSTOP: connections stay, and nobody answers."""
        stop_processes(self.members[index].pid for index in indexes)

    def resume(self, *indexes: int) -> None:
        """SIGCONT."""
        for index in indexes:
            os.kill(self.members[index].pid, signal.SIGCONT)

    def mend(self) -> None:
        """Continue those that were stopped, start those that are down, and wait until all answer. Raises EtcdFailed."""
        for member in self.members:
            with contextlib.suppress(EtcdFailed):
                os.kill(member.pid, signal.SIGCONT)
        self.start()

    def wipe(self) -> None:
        """Kill all, and lose all that they knew: users, too. They are down afterwards."""
        self.kill()
        self._root = ()
        for member in self.members:
            shutil.rmtree(member.data, ignore_errors=True)

    def enable_users(self, users: Mapping[str, tuple[str, str]]) -> None:
        """From now on nobody does anything without a password. `users`: name to (password, prefix that is his)."""
        self.etcdctl("user", "add", f"root:{ROOT_PASSWORD}")
        self.etcdctl("user", "grant-role", "root", "root")
        for name, (password, prefix) in users.items():
            self.etcdctl("user", "add", f"{name}:{password}")
            self.etcdctl("role", "add", name)
            self.etcdctl("role", "grant-permission", name, "--prefix=true", "readwrite", prefix)
            self.etcdctl("user", "grant-role", name, name)
        self.etcdctl("auth", "enable")
        self._root = ("--user", f"root:{ROOT_PASSWORD}")

    def _start(self, member: EtcdMember) -> None:
        with contextlib.suppress(EtcdFailed):
            os.kill(member.pid, 0)
            return
        cluster = ",".join(f"{each.name}={each.peer_url}" for each in self.members)
        member.start(cluster, self._tls, self._options)

    def _client_url(self, member: EtcdMember) -> str:
        return f"{'https' if self._tls else 'http'}://{member.address}"
