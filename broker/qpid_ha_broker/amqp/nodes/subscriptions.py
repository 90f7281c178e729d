"""Queues that the broker makes for those who consume from an exchange, and how a subscriber finds its own again.

A durable subscription belongs to a user, a container id and a link name. Its queue has the argument
`qpid.subscription`, which only the broker sets and which names the three without ambiguity. A queue without it is no
subscription, whatever its name. Releases before named no user in it: then it is the first user's who comes back to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from qpid_ha_broker.amqp.wire.conditions import NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.events.joined_names import percent_encoded
from qpid_ha_broker.events.types import Arguments, Scalar
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import SELECTOR_ARGUMENT, Binding, Exchange
from qpid_ha_broker.model.exchanges.notices import DURABLE_SUBSCRIPTION, TEMPORARY_SUBSCRIPTION
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import SUBSCRIPTION, with_creator
from qpid_ha_broker.model.sets.catalog import Catalog

_SEPARATOR = ":"
_ESCAPED = re.compile(r"[%:]|[^ -~]")


class Subscriber(NamedTuple):
    """Who has a durable subscription: JMS calls the first two the client id and the name of the subscription."""

    container: str
    link: str
    user: str
    """Empty: it has not logged in."""

    @property
    def identity(self) -> str:
        """All in one text, from which each can be told: what is in a part is escaped as in a URL."""
        return _SEPARATOR.join(_ESCAPED.sub(_percent, part) for part in self)

    @property
    def identity_of_nobody(self) -> str:
        """The identity as releases wrote it in which a subscription belonged to no user."""
        return _SEPARATOR.join(_ESCAPED.sub(_percent, part) for part in self[:2])

    @property
    def queue_name(self) -> str:
        """Of the queue that is made for it."""
        return f"{DURABLE_SUBSCRIPTION}{self.identity if self.user else self.identity_of_nobody}"

    @property
    def queue_name_of_nobody(self) -> str:
        """Of the queue that was made for it before there were users in names."""
        return f"{DURABLE_SUBSCRIPTION}{self.identity_of_nobody}"

    @property
    def queue_name_before(self) -> str:
        """Of the queue that release 0.1.0 made for it: the same for `a` and `b.c` as for `a.b` and `c`."""
        return f"{self.container}.{self.link}"


class Route(NamedTuple):
    """What a subscription is bound to: an exchange, with a key and arguments."""

    exchange: Exchange
    key: str
    arguments: Arguments


class Subscriptions:
    """The promise: a subscriber gets its own queue, and nobody gets one that was not made for a subscription."""

    def __init__(self, catalog: Catalog, configuration: Configuration, unique_name: Callable[[], str]) -> None:
        self._catalog = catalog
        self._configuration = configuration
        self._unique_name = unique_name

    def temporary(self, route: Route, arguments: Arguments, created_by: str = "") -> Queue:
        """A queue for one link, which goes with it. Raises ModelError. `created_by`: see `with_creator`."""
        name, own = f"{TEMPORARY_SUBSCRIPTION}{self._unique_name()}", {**arguments, "qpid.auto_delete": True}
        return self._make(name, route, own, created_by)

    def durable(self, subscriber: Subscriber, route: Route, arguments: Arguments, created_by: str = "") -> Queue:
        """The queue that `subscriber` has, or a new one. Raises AmqpError, ModelError."""
        queue = self._existing(subscriber) or self._adopted(subscriber, route)
        if queue is None:
            asked = {name: value for name, value in arguments.items() if not name.startswith("qpid.auto_delete")}
            own: dict[str, Scalar] = {"qpid.exclusive": True, SUBSCRIPTION: subscriber.identity}
            return self._make(subscriber.queue_name, route, {**asked, **own}, created_by)
        there = route.exchange.binding(queue.id, route.key)
        if there is None or _without_selector(there.arguments) != _without_selector(route.arguments):
            raise AmqpError(
                PRECONDITION_FAILED,
                f"the subscription {subscriber.link} of {subscriber.container} (queue {queue.name}) is not bound to"
                f" {route.exchange.name} with the key {route.key!r}: unsubscribe first, which deletes what it holds",
            )
        if dict(there.arguments) != dict(route.arguments):
            # Another selector than before, or the first since a release that kept none in bindings: for what comes.
            self._configuration.bind(route.exchange.name, queue.name, route.key, route.arguments)
        return queue

    def left_behind(self, subscriber: Subscriber) -> tuple[Queue, Exchange, Binding]:
        """The queue that `subscriber` has, without knowing what it is bound to. Raises AmqpError."""
        queue = self._existing(subscriber)
        if queue is None:
            before = self._catalog.queues.get(subscriber.queue_name_before)
            if before is not None and _was_made_for(before, subscriber) and len(self._bindings(before)) == 1:
                queue = before
        bindings = [] if queue is None else self._bindings(queue)
        if queue is None or not bindings:
            raise AmqpError(
                NOT_FOUND,
                f"there is no durable subscription {subscriber.link} of {subscriber.container}, which a receiver"
                " without a source asks for; anything else needs an address, or dynamic=true",
            )
        if queue.dispatcher.consumers:
            raise AmqpError(RESOURCE_LOCKED, f"the subscription {subscriber.link} has a consumer: close that first")
        return queue, *bindings[0]

    def _existing(self, subscriber: Subscriber) -> Queue | None:
        """The queue that is marked as this subscriber's."""
        if not subscriber.container:
            raise AmqpError(
                PRECONDITION_FAILED, "a durable subscription belongs to a container id, and this connection has none"
            )
        name, queues = subscriber.queue_name, self._catalog.queues
        for queue_name in (name, subscriber.queue_name_of_nobody, subscriber.queue_name_before):
            queue = queues.get(queue_name)
            if queue is not None and queue.arguments.subscription == subscriber.identity:
                return queue
        for queue_name in (subscriber.queue_name_of_nobody, subscriber.queue_name_before):
            queue = queues.get(queue_name)
            if queue is not None and _is_unowned(queue, subscriber):
                return self._configuration.update_queue(queue_name, {SUBSCRIPTION: subscriber.identity})
        if name in self._catalog.exchanges or name in queues:
            raise AmqpError(
                PRECONDITION_FAILED,
                f"{name} is no subscription of this user's and has the name of one: delete it, or subscribe under"
                " another name",
            )
        return None

    def _adopted(self, subscriber: Subscriber, route: Route) -> Queue | None:
        """The queue of a subscription that release 0.1.0 has made, marked from now on.

        Its name alone says nothing. It is taken for one when it has the arguments that such a queue got, has been
        consumed from, and is bound as the subscriber asks now. Of two whose names come to the same, the one that comes
        first gets it: they had one queue together before.
        """
        before = self._catalog.queues.get(subscriber.queue_name_before)
        if before is None or not _was_made_for(before, subscriber):
            return None
        if route.exchange.binding(before.id, route.key) is None:
            return None
        return self._configuration.update_queue(before.name, {SUBSCRIPTION: subscriber.identity})

    def _bindings(self, queue: Queue) -> list[tuple[Exchange, Binding]]:
        return [
            (exchange, binding)
            for exchange in self._catalog.exchanges.values()
            for binding in exchange.bindings()
            if binding.queue == queue.id
        ]

    def _make(self, name: str, route: Route, arguments: Arguments, created_by: str) -> Queue:
        queue = self._configuration.declare_queue(name, with_creator(arguments, created_by), by_rule=False)
        try:
            self._configuration.bind(route.exchange.name, name, route.key, route.arguments)
        except ModelError:
            self._configuration.delete_queue(name)  # nobody would ever get anything from it
            raise
        return queue


def _is_unowned(queue: Queue, subscriber: Subscriber) -> bool:
    """Whether a release made it in which subscriptions belonged to no user. What counts for a user is that user's."""
    arguments = queue.arguments
    created_by = arguments.created_by
    return arguments.subscription == subscriber.identity_of_nobody and created_by in ("", subscriber.user)


def _was_made_for(queue: Queue, subscriber: Subscriber) -> bool:
    """Whether a queue that is not marked has all that release 0.1.0 gave the subscription of that name."""
    arguments = queue.arguments
    if arguments.subscription or not arguments.exclusive or arguments.auto_delete:
        return False
    return queue.used and queue.owner in ("", subscriber.container)


def _without_selector(arguments: Arguments) -> dict[str, Scalar]:
    return {name: value for name, value in arguments.items() if name != SELECTOR_ARGUMENT}


def _percent(match: re.Match[str]) -> str:
    return percent_encoded(match[0], "replace")
