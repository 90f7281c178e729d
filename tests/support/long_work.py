"""Commands of one client that mean work on very many objects: each makes them first, and then gives the command."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, product, repeat
from typing import Any, Final

from proton import Message

from attackers import HOST, attached
from blocking_client import BlockingClient, Management
from raw_peer import (
    ATTACH,
    DETACH,
    FLOW,
    RECEIVER,
    RawPeer,
    attach,
    message,
    transfer,
)

MANY: Final = 200_000
MANY_BINDINGS: Final = 30_000
MANY_QUEUES: Final = 20_000
MANY_LINKS: Final = 1000
"""As many as max-links-per-connection allows."""
_NUMBER: Final = 0x01020304
_NUMBER_BYTES: Final = struct.pack(">I", _NUMBER)


def send(port: int, address: str, payloads: Iterable[bytes], credit: int) -> None:
    """Send all of them, settled, to a link that has its `credit` back when half of it is used."""
    whole = b"".join
    numbers = iter(range(1 << 32))
    rest = iter(payloads)
    with attached(port, address) as peer:
        while frames := [_numbered(next(numbers), payload) for payload in islice(rest, credit // 2)]:
            peer.send(whole(frames))
            if len(frames) == credit // 2:
                peer.expect(FLOW)


_frames: dict[bytes, bytes] = {}


def _numbered(number: int, payload: bytes) -> bytes:
    """A transfer. To encode one takes long, so those of the same message differ in their number only."""
    if payload not in _frames:
        _frames.clear()
        _frames[payload] = transfer(0, _NUMBER, payload, settled=True)
    return _frames[payload].replace(_NUMBER_BYTES, struct.pack(">I", number))


def filled(port: int, client: BlockingClient, name: str) -> Management:
    """A queue with very many messages."""
    management = Management(client)
    management.create_queue(name)
    send(port, name, repeat(message(b"x"), MANY), 1000)
    return management


def bind_often(port: int, management: Management) -> None:
    """Bind a queue to a topic exchange very often."""
    management.create_queue("bound")
    send(port, "$management", map(_bind, range(MANY_BINDINGS)), 100)
    found = management.ask("READ", type="exchange", name="amq.topic").body["bindings"]
    if found != MANY_BINDINGS:
        raise AssertionError(f"{found} of {MANY_BINDINGS} bindings were made")


def create_many(port: int) -> None:
    """Make very many queues."""
    send(port, "$management", map(_create, range(MANY_QUEUES)), 100)


def _create(number: int) -> bytes:
    properties: Any = {"operation": "CREATE", "type": "queue", "name": f"q{number}"}
    return bytes(Message(properties=properties).encode())


def _bind(number: int) -> bytes:
    body: Any = {"exchange": "amq.topic", "queue": "bound", "key": f"a.{number}.b.{number % 7}.c"}
    return bytes(Message(body, properties={"operation": "CREATE", "type": "binding"}).encode())


def change_level(port: int) -> None:
    """A long queue, and one with many bindings, leave the replicated log and come back."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        management = filled(port, client, "long")
        bind_often(port, management)
        for name, level in product(("long", "bound"), ("none", "messages")):
            management.ask("UPDATE", {"arguments": {"qpid.replicate": level}}, type="queue", name=name)


def shrink(port: int) -> None:
    """A long queue becomes a ring of few messages."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        management = filled(port, client, "long")
        limits = {"arguments": {"qpid.max_count": 10, "qpid.policy_type": "ring"}}
        management.ask("UPDATE", limits, type="queue", name="long")
        client.send("long", "one more")
        while management.messages("long") != 10:
            pass


def _with_consumers(port: int) -> RawPeer:
    """As many as a connection may have, in one session, of one queue."""
    peer = RawPeer(port, timeout_s=30)
    peer.open_session()
    peer.send(b"".join(attach(f"l{number}", number, RECEIVER, "linked") for number in range(MANY_LINKS)))
    for _ in range(MANY_LINKS):
        peer.expect(ATTACH)
    return peer


def delete_consumed(port: int) -> None:
    """A queue with very many consumers."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        peers = [_with_consumers(port) for _ in range(12)]
        Management(client).delete_queue("linked")
        for peer in peers:
            for _ in range(MANY_LINKS):
                peer.expect(DETACH)
            peer.close()


LONG_WORK: Final[Mapping[str, Callable[[int], None]]] = {
    each.__name__: each for each in (change_level, shrink, delete_consumed)
}
"""Those of which no unit test shows that they are done in portions (`test_budgets`, `test_purge`, `test_deletion`)."""
