"""Clients with a session, in memory: Proton's engine at one end, the broker's container at the other."""

from __future__ import annotations

from typing import Any

import proton

from paired_engines import PairedBroker, PairedClient
from session_support import FIRST

PRODUCER, SEQUENCE = "x-opt-qpid-producer", "x-opt-qpid-sequence"


def session_properties(name: str) -> dict[Any, Any]:
    """Of an open."""
    return {proton.symbol("qpid.session"): name, proton.symbol("qpid.session-timeout"): 60}


def open_session(
    broker: PairedBroker,
    name: Any = FIRST,
    timeout: Any = 60,
    *,
    resume: bool | None = None,
    keep: bool | None = None,
    properties: dict[str, Any] | None = None,
    user: str = "",
    container: str | None = None,
) -> PairedClient:
    """A client that has opened with a session, and been answered if it is answered."""
    given = {
        "qpid.session": name, "qpid.session-timeout": timeout, "qpid.session-resume": resume, "qpid.keep-session": keep,
        **(properties or {}),
    }  # fmt: skip
    opened: dict[Any, Any] = {proton.symbol(key): value for key, value in given.items() if value is not None}
    client = PairedClient(broker, opened, user=user, container=container)
    broker.settle_down()
    return client


def told(client: PairedClient) -> dict[str, Any]:
    """What the broker's open says of the session."""
    properties = client.connection.remote_properties or {}
    return {str(key): value for key, value in properties.items() if "session" in str(key)}


def status(client: PairedClient) -> object:
    return told(client).get("qpid.session-status")


def refusal(client: PairedClient) -> str | None:
    """The condition with which the broker has closed the connection."""
    condition = client.connection.remote_condition
    return None if condition is None else condition.name


def consume(client: PairedClient, queue: str, credit: int = 0, name: str = "in") -> Any:
    """A consumer's link with a name of its own."""
    return client.receiver(queue, credit, name)


def publish(client: PairedClient, queue: str | None, name: str = "out") -> Any:
    """A publisher's link with a name of its own."""
    return client.sender(queue, name)


def numbered(number: int, name: str = FIRST, link: str = "out") -> proton.Message:
    message = proton.Message(f"m{number}")
    message.annotations = {PRODUCER: f"{name}/{link}", SEQUENCE: proton.ulong(number)}
    return message


def held(link: Any) -> object:
    return dict(link.remote_properties or {}).get("qpid.session-held")


def confirmed(link: Any) -> object:
    return dict(link.remote_properties or {}).get("qpid.session-confirmed")


def ids(client: PairedClient, link: Any) -> list[int]:
    """The ids of the messages that have come."""
    return [int(message.instructions["qpid.message-id"]) for _, message in client.received(link)]


def refused(link: Any) -> list[int]:
    """The numbers that the broker's attach names as refused."""
    return [int(number) for number in dict(link.remote_properties or {}).get("qpid.session-refused", [])]
