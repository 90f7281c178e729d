"""Machines that are network namespaces: each has a network of its own, and is gone when the test's process is.

All of it takes root. Nothing has a name in the file system, so nothing can be left over.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from qpid_ha_agent.local_addresses import NetworkInterface, link
from running_agent import wait_until

_CLONE_NEWNET = 0x40000000


def why_not_here() -> str:
    """Why no namespace can be made here; empty when they can."""
    if os.geteuid() != 0:
        return "SKIPPED FOR LACK OF ROOT: virtual addresses are tested in network namespaces, which only root can make"
    found = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"SKIPPED FOR LACK OF NETWORK NAMESPACES: {found.stderr.strip()}" if found.returncode else ""


class Machine:
    """A network namespace, kept by a process that ends when its input does."""

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo made; exec cat >&2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self._keeper.stdout is None or self._keeper.stdout.readline() != b"made\n":
            raise OSError("no network namespace was made")
        self.pid = self._keeper.pid
        self.namespace = Path(f"/proc/{self.pid}/ns/net")
        self.ip("link", "set", "lo", "up")

    def run(self, *command: str, may_fail: bool = False, environment: dict[str, str] | None = None) -> str:
        """What a command says there, on both streams. Raises AssertionError when it fails."""
        inside = ["nsenter", f"--net={self.namespace}", *command]
        found = subprocess.run(inside, capture_output=True, text=True, check=False, timeout=20, env=environment)
        if found.returncode and not may_fail:
            raise AssertionError(f"{' '.join(command)}: {found.stderr}")
        return found.stdout + found.stderr

    def ip(self, *arguments: str) -> str:
        """`ip ARGUMENTS`."""
        return self.run("ip", *arguments)

    def set(self, name: str, value: str) -> None:
        """A kernel parameter, with slashes: an interface's name may have dots."""
        with self.inside():
            Path(f"/proc/sys/{name}").write_text(value, encoding="ascii")

    def plug(self, nic: str, other: Machine, other_nic: str) -> None:
        """A cable from `nic` here to `other_nic` there; wait for the carrier before using it."""
        self.ip("link", "add", nic, "type", "veth", "peer", "name", other_nic, "netns", str(other.pid))
        self.ip("link", "set", nic, "up")
        other.ip("link", "set", other_nic, "up")

    def link(self, nic: str) -> NetworkInterface:
        """As it is now."""
        with self.inside():
            return link(nic)

    def wait_for_carrier(self, nic: str, *, carrier: bool = True) -> None:
        """Until the kernel has noticed that the cable is in, or out."""
        wait_until(lambda: self.link(nic).has_carrier == carrier, lambda: self.ip("link", "show", nic))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is on that machine meanwhile."""
        with Path("/proc/thread-self/ns/net").open("rb") as home, self.namespace.open("rb") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeper.communicate()


def _enter(namespace: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
