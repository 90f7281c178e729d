"""Local transactions of a `PairedClient`, delivery by delivery, as AMQP 1.0 part 4 has them."""

from __future__ import annotations

from itertools import count
from typing import Any

import proton

from paired_engines import PairedClient
from qpid_ha_broker.amqp.wire.engine import set_local_data

ACCEPTED = proton.Described(proton.ulong(0x24), [])
RELEASED = proton.Described(proton.ulong(0x26), [])
TRANSACTIONAL, DECLARED = 0x34, 0x33

_names = count(1)


class PairedCoordinator:
    """A coordinator link of one client."""

    def __init__(self, client: PairedClient) -> None:
        self._client = client
        self.link: Any = client.session.sender(f"coordinator-{next(_names)}")
        self.link.target.type = proton.Terminus.COORDINATOR
        client.attach(self.link)

    def ask(self, descriptor: str, *fields: Any) -> Any:
        """The delivery of a request that has been carried as far as it goes."""
        body = proton.Described(proton.symbol(f"amqp:{descriptor}:list"), list(fields))
        (delivery,) = self._client.send_all(self.link, proton.Message(body=body))
        return delivery

    def declare(self) -> bytes:
        """A new transaction's id."""
        delivery = self.ask("declare", None)
        assert delivery.remote_state == DECLARED
        return bytes(delivery.remote.data[0])

    def discharge(self, transaction_id: bytes, *, fails: bool = False) -> Any:
        """The delivery of a commit, or of a rollback."""
        return self.ask("discharge", transaction_id, fails)

    def publish(self, link: Any, transaction_id: bytes) -> Any:
        """The delivery of a message in a transaction that has been carried as far as it goes."""
        delivery = publish(self._client, link, transaction_id, "x")
        self._client.broker.settle_down()
        return delivery


def publish(client: PairedClient, link: Any, transaction_id: bytes, text: str) -> Any:
    """Publish in a transaction; it is on its way after the next `settle_down`."""
    return publish_message(client, link, transaction_id, proton.Message(text))


def publish_message(client: PairedClient, link: Any, transaction_id: bytes, message: proton.Message) -> Any:
    """The same, of a whole message."""
    delivery = client.send(link, message)
    delivery.local.data = [transaction_id]
    delivery.update(TRANSACTIONAL)
    return delivery


def answer(delivery: Any, transaction_id: bytes, outcome: Any = ACCEPTED, *, settles: bool = False) -> None:
    """Answer a message in a transaction."""
    set_local_data(delivery._impl, TRANSACTIONAL, [transaction_id, outcome], settle_now=False)
    if settles:
        delivery.settle()
