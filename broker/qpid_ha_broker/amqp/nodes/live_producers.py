"""Which producers number messages now: those of links that are attached, and of clients' sessions that live.

A producer's name is what a client writes into its messages, so whose it is has to be asked: it belongs to the user of
the link, and one that a session names (`session_request.producer_of`) to links of that session for as long as it lives.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from qpid_ha_broker.access.rules import Subject
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.conditions import UNAUTHORIZED_ACCESS, AmqpError
from qpid_ha_broker.amqp.wire.session_request import session_of_producer
from qpid_ha_broker.model.sessions import Session
from qpid_ha_broker.model.transactions.producers import client_producer, name_of
from qpid_ha_broker.model.transactions.transaction import Message


class ProducersContainer(Protocol):
    """What is needed of the container."""

    default: HostedSet


class LiveProducers:
    """The promise: nobody numbers by a producer of another user, nor by one of another session that lives."""

    def __init__(self, container: ProducersContainer) -> None:
        self._container = container
        self._links: Counter[bytes] = Counter()
        """By key: how many links number by it."""

    def key_of(self, user: str, name: bytes, session: str) -> bytes:
        """Under which key a message is known that comes from `user`. `session`: the UUID of the link's; empty: none.

        Raises AmqpError where the name is that of another session.
        """
        key = client_producer(user, name)
        owner = self._session_of(key, name)
        if owner is not None and owner.name != session:
            text = "the producer is a session's, and this link is none of that session's: name another producer"
            raise AmqpError(UNAUTHORIZED_ACCESS, text)
        return key

    def _session_of(self, key: bytes, name: bytes) -> Session | None:
        """The session that lives, is the key's user's, and whose links are called so; None: there is none."""
        registry = self._container.default.resources.replicated.state.sessions
        session = registry.by_name.get(session_of_producer(name))
        if session is None or client_producer(Subject.logged_in(session.user, is_local=False).user, name) != key:
            return None
        return session

    def began(self, key: bytes) -> None:
        """A link numbers by it from now on."""
        self._links[key] += 1

    def ended(self, key: bytes) -> None:
        """A link does so no more."""
        self._links[key] -= 1
        if not self._links[key]:
            del self._links[key]

    def is_live(self, key: bytes) -> bool:
        """Whether somebody may still have to know how far it has come."""
        return key in self._links or self._session_of(key, name_of(key)) is not None


class OwnProducer:
    """The producer by which a client numbers the messages of a link itself, by the key that no other user's has.

    Its client may call it otherwise with each message; the last one it named lives as long as the link.
    """

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
