"""Which queue or exchange an address means, making it where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from qpid_ha_broker.access.rules import ANONYMOUS_LOGIN, AccessControl, Permission, Subject, permissions_of_arguments
from qpid_ha_broker.access.user_limits import UserLimits
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits
from qpid_ha_broker.amqp.nodes.own_addresses import is_own, no_such_address
from qpid_ha_broker.amqp.nodes.sets_administration import HostedSets
from qpid_ha_broker.amqp.nodes.subscriptions import LIMITS, Route, Subscriptions
from qpid_ha_broker.amqp.nodes.terminus import NO_CREATE, Filters, Terminus
from qpid_ha_broker.amqp.wire.conditions import NOT_ALLOWED, NOT_FOUND, NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.errors import OtherSet
from qpid_ha_broker.model.exchanges.exchange import NO_LOCAL_ARGUMENT, Exchange, ExchangeKind, selector_argument
from qpid_ha_broker.model.exchanges.notices import NOTICE_EXCHANGE, is_for_notices
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import with_creator

TEMPORARY: Final = "temporary."
"""What the names of queues with a dynamic address begin with, and for access control the name of one to be made."""


@dataclass(frozen=True)
class NodeSettings:
    """How nodes come to be on demand."""

    auto_create: bool = True
    auto_create_arguments: Mapping[str, Scalar] = field(default_factory=dict)
    temporary_limits: Mapping[str, Scalar] = field(default_factory=dict)
    """Arguments of queues that go with their reader; for one that asks for a limit itself they do not count."""

    def temporary_arguments(self, asked: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Arguments of a queue that goes with its reader."""
        has_limit = any(name in asked for name in LIMITS)
        return dict(asked) if has_limit else {**self.temporary_limits, **asked}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a publisher's messages go. `key` None: each message's subject is its routing key."""

    hosted: HostedSet
    """The set of the node."""
    node: Queue | Exchange
    key: str | None = None


class Nodes:
    """Finds nodes by address: a queue, an exchange, or `exchange/key`. What is made on demand is of `default`."""

    def __init__(
        self,
        host: HostedSets,
        settings: NodeSettings,
        unique_name: Callable[[], str],
        access: AccessControl,
        limits: UserLimits,
    ) -> None:
        default = host.default
        self._host = host
        self._catalog = default.resources.catalog
        self._configuration = default.configuration
        self.settings = settings
        self._unique_name = unique_name
        self._access = access
        self.limits = limits
        self._configuration.check_creator = self._check_creator
        self.subscriptions = Subscriptions(
            self._catalog,
            self._configuration,
            unique_name,
            lambda deletion: default.await_commit(deletion, "the subscription that was there is being deleted"),
        )

    def name_of(self, address: str) -> str:
        """The name of the node under `address`, which may have a routing key behind it."""
        if is_for_notices(address):
            return NOTICE_EXCHANGE
        if address in self._catalog.queues or address in self._catalog.exchanges:
            return address
        name, slash, _ = address.partition("/")
        return name if slash and name in self._catalog.exchanges else address

    def find(
        self, address: str, subject: Subject, terminus: Terminus | None = None, *, in_replica: bool = True
    ) -> Target:
        """What is there under `address`, or is made for it if `subject` may create it.

        Raises AmqpError or ModelError: also where it is for another broker to serve. Raises AttachWaits where it is
        about to be there.

        `in_replica`: a queue may also be browsed where another broker leads its set.

        Refused is also what is there and is not what the link asks for: on an exchange several consumers each get
        everything, on a queue they share it.
        """
        default = self._host.default
        found = self._existing(address) or self._in_other_set(address)
        if found is None:
            self._check_located(address)
            self._check_serves(default, address)
            found = Target(default, self._create(address, subject, terminus))
        is_queue = isinstance(found.node, Queue)
        if isinstance(found.node, Queue) and found.node.arguments.cluster_proxy:
            text = f"{address} stands for a node of another broker: attach a link to it, at a broker that knows it"
            raise AmqpError(NOT_IMPLEMENTED, text)
        if not (in_replica and is_queue and terminus is not None and terminus.browse):
            self._check_serves(found.hosted, address)
        is_contradicted = (
            terminus is not None and terminus.queue is not terminus.topic and terminus.queue is not is_queue
        )
        if is_contradicted:
            there, asked = ("a queue", "topic") if is_queue else ("an exchange", "queue")
            text = f"{address} is {there}, and the link asks for a {asked}: leave that capability out, or correct it"
            raise AmqpError(PRECONDITION_FAILED, text)
        return found

    def find_to_publish(self, address: str, subject: Subject, terminus: Terminus | None = None) -> Target:
        """As `find`, for who publishes there."""
        found = self.find(address, subject, terminus)
        if isinstance(found.node, Queue) and self._catalog.takes_notices_alone(found.node):
            raise AmqpError(NOT_ALLOWED, f"{address} is for notices of {NOTICE_EXCHANGE}: the broker alone sends them")
        return found

    def is_exchange(self, address: str) -> bool:
        """Whether the address is that of an exchange, with a key or without."""
        found = self._existing(address)
        return found is not None and isinstance(found.node, Exchange)

    def reply_address(self) -> str:
        """An address of its own for replies of `$management`; no node, and nobody can publish to it."""
        return f"$management/{self._unique_name()}"

    def check_arguments(self, subject: Subject, terminus: Terminus) -> None:
        """Raises Denied where `subject` may not have a queue move messages as the terminus asks for."""
        for action, node in permissions_of_arguments(terminus.arguments):
            self._access.check(subject, action, node)

    def temporary_queue(self, terminus: Terminus, subject: Subject) -> Queue:
        """A queue with a name of its own, for a dynamic terminus. Raises AmqpError or ModelError."""
        self._check_serves(self._host.default, "")
        if terminus.topic:
            raise AmqpError(
                NOT_IMPLEMENTED, "there are no temporary topics: create an exchange, and delete it afterwards"
            )
        self.check_arguments(subject, terminus)
        asked = {**self.settings.temporary_arguments(terminus.arguments), "qpid.auto_delete": True}
        arguments = with_creator(asked, self.created_by(subject))
        return self._configuration.declare_queue(f"{TEMPORARY}{self._unique_name()}", arguments, by_rule=False)

    def created_by(self, subject: Subject) -> str:
        """As whose a queue counts that is made for `subject`; empty: nobody's."""
        return self.limits.creator(subject.user)

    def count_created_by(self, user: str) -> int:
        """How many queues of all sets were made for the user while that was counted; empty: for who had not logged
        in."""
        creator = user or ANONYMOUS_LOGIN
        return self._catalog.created_by[creator] + self._catalog.map.created_by[creator]

    def _check_creator(self, creator: str) -> None:
        """Raises LimitReached."""
        self.limits.check_queue(creator, self.count_created_by(creator))

    def route(self, target: Target, filters: Filters, subscriber: str) -> Route:
        """What a subscription to `target`, an exchange, is bound to. `subscriber`: by that name of its origin a message
        is the subscriber's own, see `exchanges.exchange.Origin`."""
        exchange = target.node
        if not isinstance(exchange, Exchange):
            raise TypeError(f"{exchange.name} is a queue: nothing can be bound to it")
        key = filters.binding_key or target.key or ("#" if exchange.kind is ExchangeKind.TOPIC else "")
        selector = {} if filters.selector is None else selector_argument(filters.selector.text)
        no_local = {NO_LOCAL_ARGUMENT: subscriber} if filters.no_local else {}
        return Route(exchange, key, {**(filters.headers or {}), **selector, **no_local})

    def _existing(self, address: str) -> Target | None:
        default = self._host.default
        if address in self._catalog.queues and not is_for_notices(address):
            return Target(default, self._catalog.queues[address])
        if address in self._catalog.exchanges:
            return Target(default, self._catalog.exchanges[address])
        name, slash, key = address.partition("/")
        if slash and name in self._catalog.exchanges:
            return Target(default, self._catalog.exchanges[name], key)
        return None

    def _in_other_set(self, address: str) -> Target | None:
        """A queue of a set other than `default`; None: there is none. Raises ServedElsewhere, AttachWaits."""
        directory = self._host.directory
        set_name = directory.set_of(address)
        if set_name is None:
            return None
        hosted = self._host.sets.get(set_name)
        if hosted is None:
            raise ServedElsewhere(directory, set_name, address)
        queue = hosted.resources.catalog.queues.get(address)
        if queue is not None:
            return None if queue.deleted else Target(hosted, queue)
        self._check_serves(hosted, address)
        raise AttachWaits(hosted.await_queue(address))

    def _check_located(self, address: str) -> None:
        """Raises AttachWaits where the broker that leads `default` may know of a queue that is not known here yet."""
        if self._host.default.read_only:
            wait = self._host.directory.locate(address)
            if wait is not None:
                raise AttachWaits(wait)

    def has_queue(self, address: str) -> bool:
        """Whether the address is that of a queue, wherever it is."""
        return address in self._catalog.queues or self._host.directory.set_of(address) is not None

    def _check_serves(self, hosted: HostedSet, address: str) -> None:
        """Raises ServedElsewhere where another broker leads the set; not in a cluster of one set, see `read_only`."""
        directory = self._host.directory
        if hosted.read_only and directory.has_many_sets:
            raise ServedElsewhere(directory, hosted.name, address)

    def _create(self, address: str, subject: Subject, terminus: Terminus | None) -> Queue | Exchange:
        if is_own(address):
            raise no_such_address(address)
        if terminus is not None and NO_CREATE in terminus.capabilities:
            raise AmqpError(NOT_FOUND, f"there is no queue or exchange {address}")
        if not self.settings.auto_create:
            raise AmqpError(
                NOT_FOUND, f"there is no queue or exchange {address}, and auto-create is off: create it first"
            )
        self._access.check(subject, Permission.CREATE, address)
        if terminus is not None:
            self.check_arguments(subject, terminus)
        if terminus is not None and terminus.topic:
            return self._configuration.declare_exchange(address, ExchangeKind.TOPIC, {})
        asked = {**self.settings.auto_create_arguments, **(terminus.arguments if terminus else {})}
        arguments = with_creator(asked, self.created_by(subject))
        try:
            return self._configuration.declare_queue(address, arguments)
        except OtherSet:
            raise AttachWaits(self._host.directory.place(address, arguments)) from None
