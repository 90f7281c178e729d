"""The transport of groups with a real Corosync on loopback: order, views, large batches, and the daemon's end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from one_corosync import corosync
from polling import wait_until
from qpid_ha_broker.server.peers.cpg_order import OrderedView
from qpid_ha_broker.server.peers.cpg_transport import CpgTransport
from qpid_ha_broker.server.peers.libcpg import CpgLibrary, GroupTransportError
from qpid_ha_demo.corosync_daemon import CorosyncDaemon, what_is_missing

WHY_NOT_HERE = what_is_missing()
needs_corosync = pytest.mark.skipif(bool(WHY_NOT_HERE), reason=WHY_NOT_HERE)
SUPPORT = Path(__file__).parents[1] / "support"
LARGE = 3 * 1024 * 1024


class CpgProcess:
    """A member, and what it has printed."""

    def __init__(self, cluster: str, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        command = [sys.executable, str(SUPPORT / "cpg_process.py"), cluster, name]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append(line.strip())

    def send(self, first: int, count: int, size: int = 64) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"send {first} {count} {size}\n")
        self._process.stdin.flush()

    def batches(self) -> list[str]:
        return [line.split(" ", 2)[2] for line in tuple(self.lines) if line.startswith("batch")]

    def views(self) -> list[str]:
        return [line.removeprefix("view ") for line in tuple(self.lines) if line.startswith("view")]

    def wait_for_members(self, *names: str) -> None:
        wanted = ",".join(names) or "-"
        wait_until(
            lambda: self.views() and self.views()[-1].split(" ")[0] == wanted, lambda: f"{self.name}: {self.views()}"
        )

    def wait_for_own_batches(self, count: int) -> list[str]:
        """Those that this process has sent, as it got them."""
        wait_until(lambda: len(self._own()) >= count, lambda: f"{self.name} has {self._own()}")
        return self._own()

    def _own(self) -> list[str]:
        return [line for line in self.batches() if line.startswith(f"{self.name}-")]

    def wait_for_batches(self, count: int) -> None:
        wait_until(lambda: len(self.batches()) >= count, lambda: f"{self.name} has {len(self.batches())} of {count}")

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[CorosyncDaemon]:
    with corosync(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def three(daemon: CorosyncDaemon, tmp_path: Path) -> Iterator[list[CpgProcess]]:
    processes = [CpgProcess(tmp_path.name, name) for name in ("a", "b", "c")]
    try:
        for process in processes:
            process.wait_for_members("a", "b", "c")
        yield processes
    finally:
        for process in processes:
            process.close()


@needs_corosync
def test_all_get_all_batches_in_one_order_and_large_ones_whole(three: list[CpgProcess]) -> None:
    for process in three:
        process.send(0, 200)
        process.send(200, 1, LARGE)
        process.send(201, 50)

    for process in three:
        process.wait_for_batches(3 * 251)

    assert three[0].batches() == three[1].batches() == three[2].batches()
    for process in three:
        own = process.wait_for_own_batches(251)
        assert [line.split()[0] for line in own] == [f"{process.name}-{number}" for number in range(251)]
        assert own[200] == f"{process.name}-200 {LARGE}"


@needs_corosync
def test_a_process_that_is_killed_leaves_the_view_as_one_that_has_ended(three: list[CpgProcess]) -> None:
    three[1].kill()

    for process in (three[0], three[2]):
        process.wait_for_members("a", "c")
        assert process.views()[-1] == "a,c - b b"


@needs_corosync
def test_when_the_daemon_ends_nobody_is_in_a_view_and_what_was_said_meanwhile_comes_when_it_is_back(
    daemon: CorosyncDaemon, three: list[CpgProcess]
) -> None:
    daemon.kill()
    for process in three:
        process.wait_for_members()
        process.send(0, 5)

    daemon.start()

    for process in three:
        process.wait_for_members("a", "b", "c")
        assert process.wait_for_own_batches(5) == [f"{process.name}-{number} 64" for number in range(5)]


class Silence:
    def delivered(self, sender: str, data: bytes) -> None:
        raise AssertionError(f"{sender} sent {data!r}")

    def view_changed(self, view: OrderedView) -> None:
        raise AssertionError(view)


@needs_corosync
def test_without_a_daemon_it_says_what_to_start() -> None:
    async def look() -> str:
        transport = CpgTransport("none", "a", Silence())
        transport.start()
        transport.multicast(b"kept until there is one")
        problem = transport.problem
        transport.close()
        return problem

    assert "Corosync does not answer here: start it (systemctl start corosync)" in asyncio.run(look())


def test_a_library_that_is_missing_is_named_with_what_installs_it() -> None:
    with pytest.raises(GroupTransportError, match=r"libnone\.so\.4 is not there: install Corosync .*libcpg4"):
        CpgLibrary("libnone.so.4")
