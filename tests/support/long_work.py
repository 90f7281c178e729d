"""Commands of one client that mean work on very many objects: each makes them first, and then gives the command."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, product, repeat
from typing import Any, Final

import proton
from proton import Message

from attackers import HOST, attached
from blocking_client import BlockingClient, LocalTransaction, Management
from raw_peer import (
    ATTACH,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    RECEIVER,
    SENDER,
    TRANSFER,
    RawPeer,
    attach,
    credit,
    described,
    frame,
    message,
    transfer,
)

MANY: Final = 200_000
MANY_BINDINGS: Final = 30_000
MANY_QUEUES: Final = 20_000
MANY_UNSETTLED: Final = 30_000
"""As many as max-unsettled-per-connection allows."""
MANY_LINKS: Final = 1000
"""As many as max-links-per-connection allows."""
HELD: Final = 28
"""Messages that each of so many consumers has."""
MANY_ACCEPTED: Final = 2000
"""As many as max-transaction-messages allows."""
TRANSACTIONS: Final = 5
RELEASED: Final = 0x26
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


def purge(port: int) -> None:
    """Of a long queue."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        purged = filled(port, client, "long").ask("PURGE", type="queue", name="long").body["purged"]
        if purged != MANY:
            raise AssertionError(f"{purged} of {MANY} messages were purged")


def delete(port: int) -> None:
    """A long queue."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        filled(port, client, "long").delete_queue("long")


def delete_bound(port: int) -> None:
    """A queue that is bound to a topic exchange very often."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        management = Management(client)
        bind_often(port, management)
        management.delete_queue("bound")


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


def query(port: int) -> None:
    """Page after page of many queues: some dozens of requests come in one piece of what is read."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        management = Management(client)
        for number in range(300):
            management.create_queue(f"q{number}")
        request = bytes(Message(properties={"operation": "QUERY"}).encode())
        send(port, "$management", repeat(request, 600), 100)


def release(port: int) -> None:
    """Everything that was delivered, as much as can be, with one frame."""
    count = MANY_UNSETTLED
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        filled(port, client, "long")
    with attached(port, "elsewhere") as peer:
        peer.send(attach("in", 1, RECEIVER, "long") + credit(1, count))
        for _ in range(count):
            peer.expect(TRANSFER)
        outcome = described(RELEASED, [])
        peer.send(frame(DISPOSITION, [RECEIVER, proton.uint(0), proton.uint(count - 1), True, outcome]))
        peer.send(frame(DETACH, [proton.uint(1), True]))
        peer.expect(DETACH)


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


def delete_to_alternate(port: int) -> None:
    """A long queue whose messages go elsewhere."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        management = Management(client)
        management.create_queue("dead")
        management.create_exchange("elsewhere", "fanout")
        management.bind("elsewhere", "dead")
        management.create_queue("long", {"qpid.alternate_exchange": "elsewhere"})
        count = MANY // 4
        send(port, "long", repeat(message(b"x"), count), 1000)
        management.delete_queue("long")
        moved = management.messages("dead")
        if moved != count:
            raise AssertionError(f"{moved} of {count} messages were moved")


def _with_links(port: int, role: bool) -> RawPeer:
    """As many as a connection may have, in one session, to a queue or from it; from it, each with some messages."""
    peer = RawPeer(port, timeout_s=30)
    peer.open_session()
    peer.send(b"".join(attach(f"l{number}", number, role, "linked") for number in range(MANY_LINKS)))
    for _ in range(MANY_LINKS):
        peer.expect(ATTACH)
    return peer


def _holding(port: int) -> RawPeer:
    """The same with consumers that have messages and have not answered."""
    peer = _with_links(port, RECEIVER)
    send(port, "linked", repeat(message(b"x"), MANY_LINKS * HELD), 1000)
    peer.send(b"".join(credit(number, HELD) for number in range(MANY_LINKS)))
    for _ in range(MANY_LINKS * HELD):
        peer.expect(TRANSFER)
    return peer


def end_session(port: int) -> None:
    """With very many links."""
    for peer in (_with_links(port, SENDER), _holding(port)):
        with peer:
            peer.send(frame(END, []))
            peer.expect(END)


def vanish(port: int) -> None:
    """Without a word, with very many links."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        management = Management(client)
        _holding(port).close()
        while (management.queue("linked") or {})["consumers"]:
            pass


def delete_consumed(port: int) -> None:
    """A queue with very many consumers."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        peers = [_with_links(port, RECEIVER) for _ in range(12)]
        Management(client).delete_queue("linked")
        for peer in peers:
            for _ in range(MANY_LINKS):
                peer.expect(DETACH)
            peer.close()


def delete_accepted(port: int) -> None:
    """A queue whose messages go elsewhere, after open transactions have accepted many of them."""
    count = MANY_ACCEPTED * TRANSACTIONS
    with BlockingClient(f"amqp://{HOST}:{port}") as client, BlockingClient(f"amqp://{HOST}:{port}") as other:
        management = Management(other)
        management.create_queue("dead")
        management.create_exchange("elsewhere", "fanout")
        management.bind("elsewhere", "dead")
        management.create_queue("accepted", {"qpid.alternate_exchange": "elsewhere"})
        send(port, "accepted", repeat(message(b"x"), count), 1000)
        receiver = client.receiver("accepted", count)
        for _ in range(TRANSACTIONS):
            transaction = LocalTransaction(client)
            for _ in range(MANY_ACCEPTED):
                receiver.receive()
            transaction.accept(receiver)
        client.round_trip()
        management.delete_queue("accepted")
        moved = management.messages("dead")
        if moved != count:
            raise AssertionError(f"{moved} of {count} messages were moved")


LONG_WORK: Final[Mapping[str, Callable[[int], None]]] = {
    each.__name__: each
    for each in (
        purge,
        delete,
        delete_bound,
        query,
        release,
        change_level,
        shrink,
        delete_to_alternate,
        delete_accepted,
        delete_consumed,
        end_session,
        vanish,
    )
}
