"""The door that clients use: whether somebody answers there. Nobody logs in for that."""

from __future__ import annotations

import socket
from collections.abc import Iterable

AMQP_HEADERS = (b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00")
"""Plain, and SASL (AMQP 1.0, part 2.2 and 5.3.1); a server answers with the one that it wants."""


def problem_at(address: str, timeout_s: float) -> str:
    """Why no AMQP server is at `address`, as amqp://HOST:PORT; empty: one is. TLS listeners are only connected to."""
    is_tls = address.startswith("amqps:")
    try:
        answer = _exchange(address, timeout_s, b"" if is_tls else AMQP_HEADERS[1])
    except (OSError, ValueError) as error:
        return f"nobody serves AMQP at {address}: {error}"
    return "" if is_tls or answer in AMQP_HEADERS else f"what answers at {address} does not speak AMQP 1.0"


def is_awake(addresses: Iterable[str], timeout_s: float) -> bool:
    """Whether the process that listens at one of them runs, and has its turns. Each takes `timeout_s` at most.

    The kernel takes connections for a process that is stopped, too; an answer of any kind, be it the alert of a TLS
    listener or the end of the connection, is the process's own.
    """
    return any(_is_awake_at(address, timeout_s) for address in addresses)


def _is_awake_at(address: str, timeout_s: float) -> bool:
    try:
        _exchange(address, timeout_s, AMQP_HEADERS[1])
    except ConnectionResetError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _exchange(address: str, timeout_s: float, said: bytes) -> bytes:
    """What is answered, 8 bytes at most; nothing is waited for when nothing was said. Raises OSError, ValueError."""
    host, _colon, port = address.partition("://")[2].rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        if not said:
            return b""
        connection.sendall(said)
        return connection.recv(8)
