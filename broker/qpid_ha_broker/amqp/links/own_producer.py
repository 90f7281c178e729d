"""The producer by which a client numbers the messages of a link itself: under the key that no other user's has."""

from __future__ import annotations

from qpid_ha_broker.amqp.nodes.live_producers import LiveProducers
from qpid_ha_broker.model.transactions.transaction import Message


class OwnProducer:
    """Its client may call it otherwise with each message; the last one it named lives as long as the link."""

    def __init__(self, producers: LiveProducers, user: str, session: str) -> None:
        """`session`: the UUID of the one that the link is of; empty: it is of none."""
        self._producers = producers
        self._user = user
        self._session = session
        self._name = b""
        """What the last numbered message called it."""
        self._key = b""
        """Empty: no message was numbered."""

    def key_of(self, name: bytes) -> bytes:
        """See `LiveProducers.key_of`."""
        return self._producers.key_of(self._user, name, self._session)

    def numbered(self, message: Message) -> Message:
        """The same, of the producer by its key. Raises AmqpError for one of another session."""
        if message.producer != self._name:
            key = self.key_of(message.producer)
            self.ended()
            self._name, self._key = message.producer, key
            self._producers.began(key)
        return message._replace(producer=self._key)

    def ended(self) -> None:
        """The link has, or its client calls the producer otherwise now."""
        if self._key:
            self._producers.ended(self._key)
            self._name = self._key = b""
