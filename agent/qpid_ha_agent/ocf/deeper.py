"""What a monitor of a higher OCF_CHECK_LEVEL looks at: the door that clients use, and the other brokers."""

from __future__ import annotations

import socket
from pathlib import Path

from qpid_ha_agent.control import ControlClient, ControlFailure
from qpid_ha_agent.sight import look_at_all

AMQP_HEADERS = (b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00")
"""Plain, and SASL (AMQP 1.0, part 2.2 and 5.3.1); a server answers with the one that it wants."""


def closer_look(control_socket: Path, timeout_s: float, with_peers: bool) -> str:
    """What is wrong; empty when nothing is."""
    try:
        with ControlClient(control_socket, timeout_s) as client:
            problem = _at_the_door(client, timeout_s)
            return problem or (_among_peers(client) if with_peers else "")
    except ControlFailure as failure:
        return str(failure)


def _at_the_door(client: ControlClient, timeout_s: float) -> str:
    facts = client.call("query")
    listening = facts.get("listening") if isinstance(facts, dict) else None
    for address in str(listening or "").split(", "):
        problem = _knock(address, timeout_s)
        if problem:
            return problem
    return ""


def _knock(address: str, timeout_s: float) -> str:
    """Whether an AMQP server answers there; TLS listeners are only connected to."""
    scheme, _separator, rest = address.partition("://")
    host, _colon, port = rest.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            if scheme == "amqps":
                return ""
            connection.sendall(AMQP_HEADERS[1])
            answer = connection.recv(8)
    except (OSError, ValueError) as error:
        return f"nobody serves AMQP at {address}: {error}"
    return "" if answer in AMQP_HEADERS else f"what answers at {address} does not speak AMQP 1.0"


def _among_peers(client: ControlClient) -> str:
    primaries = [row for row in look_at_all(client) if row.get("state") == "primary"]
    if len(primaries) < 2:
        return ""
    names = ", ".join(f"{row.get('name')} (generation {row.get('generation')})" for row in primaries)
    return f"there is more than one primary: {names}"
