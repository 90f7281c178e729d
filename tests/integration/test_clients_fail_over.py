"""Clients with a list of addresses, and nothing else: each finds the primary by itself, whatever the order of its list.

Proton's Python and C++ clients and rhea really run, each in six processes, one for each order of the list. One story is
played with all of them; the tests ask how each fared in each part of it. For Qpid JMS, which is not here,
tests/unit/test_backup_clients.py looks at what it is answered.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from threading import Thread

import pytest

from running_cluster import RunningCluster

HERE = Path(__file__).parent
PROTON_HEADER = Path("/usr/include/proton/container.hpp")
LIMIT_S = 30.0
"""For a machine that is busy with other things, and for Proton's pauses, which grow while nobody is primary."""
NOBODY_S = 10.0
CLIENTS = ("Proton Python", "BlockingConnection", "Proton C++", "rhea")
PARTS = ("connect", "switchover", "kill", "nobody is primary for 10 s")


class Publisher:
    """A process that prints a line for each message that was confirmed."""

    def __init__(self, command: Sequence[str], urls: Sequence[str]) -> None:
        self.urls = urls
        self._confirmed_at_s: list[float] = []
        self._process = subprocess.Popen(
            [*command, "q", *urls], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for _ in self._process.stdout or ():
            self._confirmed_at_s.append(time.monotonic())

    def is_confirmed_after(self, at_s: float, deadline_s: float) -> bool:
        """Whether a message is, before the deadline."""
        while not self._confirmed_at_s or self._confirmed_at_s[-1] <= at_s:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.02)
        return True

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


def commands(directory: Path) -> dict[str, list[str]]:
    """How each client is started; without those that are not installed here."""
    found = {
        "Proton Python": [sys.executable, str(HERE.parent / "support" / "proton_publisher.py")],
        "BlockingConnection": [sys.executable, str(HERE.parents[1] / "docs" / "examples" / "blocking.py")],
    }
    if shutil.which("node") and (HERE / "node" / "node_modules" / "rhea").exists():
        found["rhea"] = ["node", str(HERE / "node" / "publisher.js")]
    if shutil.which("g++") and PROTON_HEADER.exists():
        program = str(directory / "publisher")
        subprocess.run(
            ["g++", "-w", "-o", program, str(HERE / "cpp" / "publisher.cpp"), "-lqpid-proton-cpp"], check=True
        )
        found["Proton C++"] = [program]
    return found


Hung = dict[str, dict[str, list[Sequence[str]]]]
"""By client and part of the story: the lists of those for which no message was confirmed in time."""


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    directory = tmp_path_factory.mktemp("clients")
    with RunningCluster(directory) as cluster:
        cluster.form(0)
        publishers = [
            (client, Publisher(command, urls))
            for client, command in commands(directory).items()
            for urls in permutations(cluster.urls)
        ]
        try:
            yield play(cluster, publishers)
        finally:
            for _, publisher in publishers:
                publisher.stop()


def play(cluster: RunningCluster, publishers: Sequence[tuple[str, Publisher]]) -> Hung:
    hung: Hung = {client: {} for client, _ in publishers}

    def look(part: str) -> None:
        at_s = time.monotonic()
        for client, publisher in publishers:
            lists = hung[client].setdefault(part, [])
            if not publisher.is_confirmed_after(at_s, at_s + LIMIT_S):
                lists.append(publisher.urls)

    look("connect")

    first = cluster.the_primary()
    first.ask("switchover")
    cluster.wait_whole()
    look("switchover")

    second = cluster.the_primary()
    cluster.kill(second)
    third = next(broker for broker in cluster.brokers if broker not in (first, second))
    cluster.promote(third)
    look("kill")

    cluster.restart(second)
    cluster.wait_whole()
    cluster.demote(third)
    time.sleep(NOBODY_S)
    cluster.promote(third)
    look("nobody is primary for 10 s")
    return hung


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_all_addresses_in_any_order_finds_the_primary_by_itself(
    hung: Hung, client: str, part: str
) -> None:
    if client not in hung:
        pytest.skip(f"{client} is not installed: ./dev setup installs it, where the system has a package of it")
    assert hung[client][part] == []
