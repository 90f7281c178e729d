"""Messages of a file into a queue, through AMQP: one after the other, each under a number by which a copy is known.

A message that is refused must not be followed by one that is accepted: the broker would take its number for known when
it is sent again (docs/decisions/0008). So each is answered before the next one goes out.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

import proton
import proton.utils

from qpid_ha_agent.login import Login
from qpid_ha_agent.messaging.exchange import NoCreate
from qpid_ha_agent.remote_control import open_connection
from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import DELIVERY_ANNOTATIONS, HEADER, MESSAGE_ANNOTATIONS, section_at
from qpid_ha_broker.amqp.wire.values import value_end, value_of
from qpid_ha_config.addresses import Address

PRODUCER: Final = "x-opt-qpid-producer"
SEQUENCE: Final = "x-opt-qpid-sequence"
DEDUPLICATES: Final = "qpid.producer-deduplication"


class ImportFailed(Exception):
    """The broker cannot be reached, or does not take a message; the text says why."""


def producer_name(export: str, queue: str, run: str) -> str:
    """Who numbers the messages of a file for a queue: the same each time, and another one for another `run`."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"qpid-ha:import:{export}:{queue}:{run}"))


def numbered(payload: bytes, producer: str, number: int) -> bytes:
    """The message with these annotations in place of those that numbered it for another producer.

    Nothing else of it changes. Raises DecodeError for bytes that are no message.
    """
    at, annotations = 0, dict[Any, Any]()
    end_of_head = 0
    while at < len(payload):
        code, end = section_at(payload, at)
        if code in (HEADER, DELIVERY_ANNOTATIONS):
            end_of_head = end
        elif code == MESSAGE_ANNOTATIONS:
            data = proton.Data()
            data.decode(payload[value_end(payload, at + 1) : end])
            annotations_value = value_of(data)
            annotations = dict(annotations_value) if isinstance(annotations_value, dict) else {}
            return payload[:at] + _section(annotations, producer, number) + payload[end:]
        else:
            break
        at = end
    return payload[:end_of_head] + _section(annotations, producer, number) + payload[end_of_head:]


def _section(annotations: dict[Any, Any], producer: str, number: int) -> bytes:
    annotations[proton.symbol(PRODUCER)], annotations[proton.symbol(SEQUENCE)] = producer, proton.ulong(number)
    data = proton.Data()
    data.put_object(proton.Described(proton.ulong(MESSAGE_ANNOTATIONS), annotations))
    return bytes(data.encode())


class _Encoded:
    """A message as bytes, as Proton's senders take it."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def send(self, sender: Any, tag: str | None = None) -> Any:
        """As `proton.Message.send`."""
        delivery = sender.delivery(tag or sender.delivery_tag())
        sender.stream(self._payload)
        sender.advance()
        return delivery


class QueueImport:
    """A connection to a broker and a link to a queue that is there. Raises ImportFailed, at each step."""

    def __init__(self, broker: Address, login: Login, queue: str, timeout_s: float) -> None:
        self._broker = broker
        try:
            self._connection = open_connection(broker, login, timeout_s)
            self._sender: Any = self._connection.create_sender(queue, options=NoCreate())
        except (proton.ProtonException, proton.utils.LinkDetached, OSError) as error:
            raise ImportFailed(f"cannot publish to {queue} at {broker}: {error}") from None
        connection: Any = self._connection.conn
        offered = connection.remote_offered_capabilities
        self.knows_copies = DEDUPLICATES in [str(name) for name in offered or ()]
        """The broker knows a message that is sent twice."""

    def send(self, payload: bytes, producer: str, number: int) -> None:
        """Send one message, and wait until the broker has accepted it."""
        try:
            self._sender.send(_Encoded(numbered(payload, producer, number)))
        except DecodeError as error:
            raise ImportFailed(f"message {number} is none of AMQP 1.0: {error}") from None
        except proton.utils.SendException as refused:
            raise ImportFailed(f"message {number} was not accepted ({refused.state})") from None
        except (proton.ProtonException, proton.utils.LinkDetached, OSError) as error:
            raise ImportFailed(f"the broker at {self._broker} was lost, or ended the link: {error}") from None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
