"""Queues that the broker makes for those who consume from an exchange, and how a subscriber finds its own again.

A durable subscription belongs to a user, a container id and a link name. Its queue has the argument
`qpid.subscription`, which only the broker sets and which names the three without ambiguity. A queue without it is no
subscription, whatever its name. Releases before named no user in it: then it is the first user's who comes back to it.

Who finds which queue (JMS 3.1 section 8.3):

subscription             belongs to                          its queue                  ends
-----------------------  ----------------------------------  -------------------------  --------------------------------
for one link             the link                            has a name of its own      with the link
durable                  user, container, link               exclusive                  when its link is closed
... with a timeout       the same                            the same, auto-delete      the same, or so long after it
shared durable           user, container, subscription       for several links          when its last link is closed
shared, not durable      the same, but other names           the same, auto-delete      when its last link has ended
shared and global        user, subscription                  as without global          as without global

The name of a shared subscription is that of the link up to a `|`, behind which clients number their links. Of what is
durable, one name is either shared or not. Who asks for another exchange, key or selector, or changes `no-local`, ends
what was there and begins anew; of a shared subscription only while nobody consumes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits, NodeWait
from qpid_ha_broker.amqp.wire.conditions import (
    INVALID_FIELD,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpError,
)
from qpid_ha_broker.events.joined_names import percent_encoded
from qpid_ha_broker.events.types import Arguments, Scalar
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.commands.deletion import Deletion
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import SELECTOR_ARGUMENT, Binding, Exchange, selector_of
from qpid_ha_broker.model.exchanges.notices import DURABLE_SUBSCRIPTION, TEMPORARY_SUBSCRIPTION
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import SUBSCRIPTION, with_creator
from qpid_ha_broker.model.sets.catalog import Catalog

MOST_NAME_CHARACTERS: Final = 1023
"""Of a container id or the name of a link by which a subscription is known: of longer ones proxies pass on the
beginning alone, and two of them would be taken for one."""
_SEPARATOR = ":"
_LINK_SEPARATOR = "|"
_GLOBAL_LINKS = "global"
LIMITS: Final = ("qpid.max_count", "qpid.max_size", "qpid.policy_type")
"""Who asks for one of them has the limits that it asks for."""
_EXPIRY = ("qpid.auto_delete", "qpid.auto_delete_delay_s")
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


class SharedSubscription(NamedTuple):
    """A subscription from which several links consume, each message going to one of them."""

    container: str
    """Empty: it is global, and links of all containers share it."""
    name: str
    user: str
    """Empty: it has not logged in."""
    is_durable: bool

    @classmethod
    def of_link(cls, link: Subscriber, *, is_global: bool, is_durable: bool) -> SharedSubscription:
        """The one that this link asks for. Raises AmqpError for a link that can ask for none."""
        name = link.link.partition(_LINK_SEPARATOR)[0]
        _check_names(name if is_global else link.container, name)
        return cls("" if is_global else link.container, name, link.user, is_durable)

    @property
    def unshared(self) -> Subscriber:
        """Who would have a durable subscription of its own under the same name."""
        return Subscriber(self.container, self.name, self.user)

    @property
    def identity(self) -> str:
        """As that of a subscriber, with a fourth part."""
        return f"{self.unshared.identity}{_SEPARATOR}{'shared' if self.is_durable else 'volatile'}"

    @property
    def queue_name(self) -> str:
        """Of the queue that is made for it: if durable that of a subscriber of its own, for one name is one of both."""
        return self.unshared.queue_name if self.is_durable else f"{DURABLE_SUBSCRIPTION}{self.identity}"


class NamedConsumer(Protocol):
    """A link that consumes, and that another one of its name takes the place of."""

    queue: Queue
    subscriber: Subscriber | None


class NamedConsumers:
    """The promise: of the links of one user, container id and name, one consumes from a queue."""

    def __init__(self) -> None:
        self._links: dict[tuple[Queue, Subscriber | None], NamedConsumer] = {}

    def of(self, queue: Queue, subscriber: Subscriber) -> NamedConsumer | None:
        """That link; None: there is none."""
        return self._links.get((queue, subscriber))

    def began(self, link: NamedConsumer, subscriber: Subscriber) -> None:
        """`link` is that of `subscriber`. The one before has ended."""
        link.subscriber = subscriber
        self._links[link.queue, subscriber] = link

    def ended(self, link: NamedConsumer) -> None:
        """It is no more, if it ever was."""
        key = link.queue, link.subscriber
        if self._links.get(key) is link:
            del self._links[key]


class Route(NamedTuple):
    """What a subscription is bound to: an exchange, with a key and arguments."""

    exchange: Exchange
    key: str
    arguments: Arguments


class SubscriptionTerms(NamedTuple):
    """What a link asks of a subscription that outlives it, or that it shares."""

    route: Route
    arguments: Arguments
    """Of the queue."""
    created_by: str = ""
    """See `with_creator`."""
    timeout_s: int = 0
    """So long the subscription waits for its link to come back; 0: for ever, or not at all if it is not durable."""


class Subscriptions:
    """The promise: a subscriber gets its own queue, and nobody gets one that was not made for a subscription."""

    def __init__(
        self,
        catalog: Catalog,
        configuration: Configuration,
        unique_name: Callable[[], str],
        await_end: Callable[[Deletion], NodeWait],
    ) -> None:
        """`await_end`: what an attach waits for that needs a deletion to be committed."""
        self._catalog = catalog
        self._configuration = configuration
        self._unique_name = unique_name
        self.await_end = await_end

    def temporary(self, route: Route, arguments: Arguments, created_by: str = "") -> Queue:
        """A queue for one link, which goes with it. Raises ModelError. `created_by`: see `with_creator`."""
        name, own = f"{TEMPORARY_SUBSCRIPTION}{self._unique_name()}", {**arguments, "qpid.auto_delete": True}
        return self._make(name, route, own, created_by)

    def find(self, subscriber: Subscriber, route: Route) -> Queue | None:
        """The queue that `subscriber` has. Raises AmqpError, also where it shares it with others."""
        return self._existing(subscriber) or self._adopted(subscriber, route)

    def durable(self, subscriber: Subscriber, terms: SubscriptionTerms) -> Queue:
        """The queue that `subscriber` has, or a new one. Raises AmqpError, ModelError, AttachWaits."""
        queue = self.find(subscriber, terms.route)
        if queue is not None and not self._is_bound(queue, terms.route):
            self._begin_anew(queue, terms.route)
            queue = None
        expiring: dict[str, Scalar] = {}
        if terms.timeout_s:
            expiring = {"qpid.auto_delete": True, "qpid.auto_delete_delay_s": terms.timeout_s}
        if queue is None:
            own: dict[str, Scalar] = {"qpid.exclusive": True, SUBSCRIPTION: subscriber.identity, **expiring}
            return self._make_kept(subscriber.queue_name, terms, own)
        before = queue.arguments.given
        if {name: before[name] for name in _EXPIRY if name in before} != expiring:
            limits = {name: terms.arguments.get(name) for name in LIMITS}
            self._configuration.update_queue(queue.name, {**dict.fromkeys(_EXPIRY), **expiring, **limits})
        return queue

    def find_shared(self, wanted: SharedSubscription, now_ms: int) -> Queue | None:
        """The queue of that subscription; one that nobody uses any more, and that is not durable, is deleted. Raises
        AmqpError, also where the name is that of one that is not shared."""
        queue = self._catalog.queues.get(wanted.queue_name)
        if queue is not None and queue.arguments.subscription == wanted.identity:
            if not queue.is_due_for_deletion(now_ms):
                return queue
            self._delete(queue)
            return None
        if wanted.is_durable and self._unshared(wanted.unshared) is not None:
            raise AmqpError(
                PRECONDITION_FAILED,
                f"the subscription {wanted.name} is there, and not shared: unsubscribe first, which deletes what it"
                " holds, or use another name",
            )
        if queue is not None or wanted.queue_name in self._catalog.exchanges:
            raise _taken(wanted.queue_name)
        return None

    def shared(self, wanted: SharedSubscription, terms: SubscriptionTerms, now_ms: int) -> Queue:
        """The queue of that subscription, or a new one. Raises AmqpError, ModelError, AttachWaits."""
        queue = self.find_shared(wanted, now_ms)
        if queue is not None and not self._is_bound(queue, terms.route):
            if queue.dispatcher.has_takers:
                raise AmqpError(
                    RESOURCE_LOCKED,
                    f"the subscription {wanted.name} has consumers, and another topic, selector or no-local than this"
                    " link asks for: ask for the same, or close them first",
                )
            self._begin_anew(queue, terms.route)
            queue = None
        if queue is None:
            own: dict[str, Scalar] = {SUBSCRIPTION: wanted.identity}
            if not wanted.is_durable:
                own["qpid.auto_delete"] = True
            return self._make_kept(wanted.queue_name, terms, own)
        return queue

    def left_behind(self, subscriber: Subscriber) -> tuple[Queue, Exchange, Binding]:
        """The queue that `subscriber` has, or that of the shared subscription which its link is called after, without
        knowing what it is bound to. Raises AmqpError."""
        queue = self._left_behind_shared(subscriber) or self._existing(subscriber)
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

    def _left_behind_shared(self, link: Subscriber) -> Queue | None:
        name, _, number = link.link.partition(_LINK_SEPARATOR)
        is_global = number.startswith(_GLOBAL_LINKS)
        if self._unshared(link) is not None or not name or not (is_global or link.container):
            return None
        shared = SharedSubscription.of_link(link, is_global=is_global, is_durable=True)
        queue = self._catalog.queues.get(shared.queue_name)
        return queue if queue is not None and queue.arguments.subscription == shared.identity else None

    def _existing(self, subscriber: Subscriber) -> Queue | None:
        """The queue that is marked as this subscriber's."""
        _check_names(subscriber.container, subscriber.link)
        queue = self._unshared(subscriber)
        if queue is not None:
            if queue.arguments.subscription == subscriber.identity:
                return queue
            return self._configuration.update_queue(queue.name, {SUBSCRIPTION: subscriber.identity})
        name = subscriber.queue_name
        there = self._catalog.queues.get(name)
        shared = SharedSubscription(*subscriber, is_durable=True)
        if there is not None and there.arguments.subscription == shared.identity:
            raise AmqpError(
                PRECONDITION_FAILED,
                f"the subscription {subscriber.link} is there, and shared: ask for the capability shared, unsubscribe"
                " first, which deletes what it holds, or use another name",
            )
        if there is not None or name in self._catalog.exchanges:
            raise _taken(name)
        return None

    def _unshared(self, subscriber: Subscriber) -> Queue | None:
        """The queue that is marked as this subscriber's, or that is still to be, for a release knew no users."""
        queues = self._catalog.queues
        for queue_name in (subscriber.queue_name, subscriber.queue_name_of_nobody, subscriber.queue_name_before):
            queue = queues.get(queue_name)
            if queue is not None and queue.arguments.subscription == subscriber.identity:
                return queue
        for queue_name in (subscriber.queue_name_of_nobody, subscriber.queue_name_before):
            queue = queues.get(queue_name)
            if queue is not None and _is_unowned(queue, subscriber):
                return queue
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

    def _is_bound(self, queue: Queue, route: Route) -> bool:
        """Whether the queue is bound as `route` says. One of a release that kept no selectors in bindings is: its
        subscriber's is put there."""
        there, wanted = route.exchange.binding(queue.id, route.key), _with_selector(route.arguments)
        if there is None or _without_selector(there.arguments) != _without_selector(wanted):
            return False
        if SELECTOR_ARGUMENT not in there.arguments:
            self._configuration.bind(route.exchange.name, queue.name, route.key, wanted)
            return True
        return selector_of(there.arguments) == selector_of(wanted)

    def _begin_anew(self, queue: Queue, route: Route) -> None:
        """What JMS says of another topic or selector: as if the subscriber had unsubscribed first. What cannot be bound
        so is refused, and nothing is deleted. Raises AmqpError, ModelError, AttachWaits."""
        self._configuration.bind(route.exchange.name, queue.name, route.key, _with_selector(route.arguments))
        self._delete(queue)

    def _delete(self, queue: Queue) -> None:
        """Raises AttachWaits where that takes some turns."""
        deletion = self._configuration.delete_queue(queue.name)
        if queue.name in self._catalog.queues:
            raise AttachWaits(self.await_end(deletion))

    def _make_kept(self, name: str, terms: SubscriptionTerms, own: Arguments) -> Queue:
        """A queue that is found again: its binding says that it has no selector, where it has none."""
        exchange, key, arguments = terms.route
        asked = {name: value for name, value in terms.arguments.items() if name not in _EXPIRY}
        route = Route(exchange, key, _with_selector(arguments))
        return self._make(name, route, {**asked, **own}, terms.created_by)

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


def _with_selector(arguments: Arguments) -> dict[str, Scalar]:
    """Where it is missing nobody knows whether its subscriber has one: a release before kept none in bindings."""
    return {SELECTOR_ARGUMENT: "", **arguments}


def _check_names(container: str, name: str) -> None:
    """Raises AmqpError for those by which no subscription can be known."""
    if not name:
        raise AmqpError(INVALID_FIELD, f"the name of a subscription is that of its link up to a {_LINK_SEPARATOR}")
    if not container:
        raise AmqpError(
            PRECONDITION_FAILED,
            "a subscription that is durable or shared belongs to a container id, and this connection has none",
        )
    if max(len(container), len(name)) > MOST_NAME_CHARACTERS:
        text = "the container id and the link of a subscription that is durable or shared have names of at most"
        raise AmqpError(INVALID_FIELD, f"{text} {MOST_NAME_CHARACTERS} characters: use shorter ones")


def _taken(name: str) -> AmqpError:
    return AmqpError(
        PRECONDITION_FAILED,
        f"{name} is no subscription of this user's and has the name of one: delete it, or subscribe under another name",
    )


def _percent(match: re.Match[str]) -> str:
    return percent_encoded(match[0], "replace")
