"""Which queue or exchange an address means, making it where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from qpid_ha_broker.access.address_rules import BUILT_IN, AddressRule, Named, NodeKind
from qpid_ha_broker.access.rules import ANONYMOUS_LOGIN, AccessControl, Permission, Subject, permissions_of_arguments
from qpid_ha_broker.access.user_limits import UserLimits
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits
from qpid_ha_broker.amqp.nodes.own_addresses import is_own, no_such_address
from qpid_ha_broker.amqp.nodes.sets_administration import HostedSets
from qpid_ha_broker.amqp.nodes.subscriptions import LIMITS, Route, Subscriptions
from qpid_ha_broker.amqp.nodes.temporary_topics import TemporaryTopics
from qpid_ha_broker.amqp.nodes.terminus import NO_CREATE, TEMPORARY, Filters, Terminus
from qpid_ha_broker.amqp.wire.conditions import NOT_ALLOWED, NOT_FOUND, NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.errors import OtherSet
from qpid_ha_broker.model.exchanges.broker_events import EVENTS_ADDRESS, is_for_events
from qpid_ha_broker.model.exchanges.exchange import NO_LOCAL_ARGUMENT, Exchange, ExchangeKind, selector_argument
from qpid_ha_broker.model.exchanges.notices import NOTICE_EXCHANGE, is_for_notices
from qpid_ha_broker.model.exchanges.topic_trie import ANY_WORDS, has_wildcards
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import with_creator, with_levels

TOPICS: Final = "amq.topic"
"""The exchange that has the topics which nobody has declared: each is a key of it, which needs no creation."""


@dataclass(frozen=True)
class NodeSettings:
    """How nodes come to be on demand."""

    auto_create: bool = True
    auto_create_arguments: Mapping[str, Scalar] = field(default_factory=dict)
    temporary_limits: Mapping[str, Scalar] = field(default_factory=dict)
    """Arguments of queues that go with their reader; for one that asks for a limit itself they do not count."""
    address_rules: tuple[AddressRule, ...] = BUILT_IN
    """The first one that fits says what an address means that is not the name of something."""
    jms_priorities: bool = True
    """What JMS makes, which asks for a queue by a capability of its terminus, has a level for each priority."""

    def temporary_arguments(self, asked: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Arguments of a queue that goes with its reader."""
        has_limit = any(name in asked for name in LIMITS)
        return dict(asked) if has_limit else {**self.temporary_limits, **asked}

    def ordered(self, arguments: Mapping[str, Scalar], terminus: Terminus | None) -> dict[str, Scalar]:
        """Arguments of a queue that is made for a link, with the levels that JMS expects of its queues."""
        is_of_jms = self.jms_priorities and terminus is not None and terminus.queue
        return with_levels(arguments) if is_of_jms else dict(arguments)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a publisher's messages go. `key` None: each message's subject is its routing key."""

    hosted: HostedSet
    """The set of the node."""
    node: Queue | Exchange
    key: str | None = None
    is_new: bool = False
    """The queue was not there, and has been made for whoever asked."""

    @property
    def address(self) -> str:
        """That always means this."""
        return self.node.name if self.key is None else f"{self.node.name}/{self.key}"

    @property
    def temporary_topic(self) -> str:
        """The key of a topic that was made for a link; empty: it is none."""
        is_one = self.key is not None and self.node.name == TOPICS and self.key.startswith(TEMPORARY)
        return self.key if is_one and self.key is not None else ""


class Meaning(NamedTuple):
    """What an address means, be there something or not."""

    address: str
    asked: NodeKind | None
    """What the link asks for, or a rule says; None: neither does."""
    kind: NodeKind | None
    """None: whatever is called so; if nothing is, a queue may be made."""
    name: str
    """Of a queue or an exchange; of a topic that has no exchange of its own, the topic."""
    key: str | None = None
    """Of an exchange; None: the address has none."""
    rule: AddressRule | None = None
    """Which says so; None: the name itself, or what the link asks for."""


class Nodes:
    """Finds nodes by address: a queue, an exchange, `exchange/key`, or a topic. What is made on demand is of `default`.

    What an address means (`meaning`), the first that is true:

    1. It is the name of a queue (and the link does not ask for a topic), or of an exchange, or `exchange/key`: that.
    2. A rule fits (`access.address_rules`): a queue, a topic or an exchange, by the name that the rule gives.
    3. The link asks for a topic: that topic. Else a queue.

    A topic is the exchange of its name, if there is one, else a key of `TOPICS`: so it is there without having been
    made, and a queue may have its name.
    """

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
        self.topics = TemporaryTopics()
        self.subscriptions = Subscriptions(
            self._catalog,
            self._configuration,
            unique_name,
            lambda deletion: default.await_commit(deletion, "the subscription that was there is being deleted"),
        )

    def meaning(self, address: str, terminus: Terminus | None = None) -> Meaning:
        """What a link to `address` means. Raises AmqpError, InvalidArgument."""
        asked = None if terminus is None else terminus.kind
        named = self._named(address, asked)
        if named is not None:
            return Meaning(address, asked, *named)
        for rule in self.settings.address_rules:
            of_rule = rule.apply(address)
            if of_rule is None:
                continue
            contradicts = asked is not None and of_rule.kind is not NodeKind.EXCHANGE and of_rule.kind is not asked
            if contradicts and rule.keeps_name:
                continue
            if contradicts:
                text = f"{address} means a {of_rule.kind.value} by the rule {rule.address}, and the link asks for a"
                raise AmqpError(PRECONDITION_FAILED, f"{text} {_text(asked)}: leave that capability out, or correct it")
            if of_rule.kind is NodeKind.EXCHANGE:
                return Meaning(address, asked, *of_rule, rule)
            return Meaning(address, of_rule.kind, *(self._named(of_rule.name, of_rule.kind) or of_rule), rule)
        return Meaning(address, asked, asked, address)

    def _named(self, address: str, kind: NodeKind | None) -> Named | None:
        """What is called so, other than a queue where a topic is asked for; None: nothing that is known here."""
        catalog = self._catalog
        if is_for_events(address):  # no node: who may read them attaches a link of its own, see `links.event_link`
            return Named(NodeKind.EXCHANGE, EVENTS_ADDRESS, address.partition("/")[2] or None)
        if is_for_notices(address):
            return Named(NodeKind.EXCHANGE, NOTICE_EXCHANGE, address.partition("/")[2] or None)
        if kind is not NodeKind.TOPIC and self.has_queue(address):
            return Named(NodeKind.QUEUE, address, None)
        if address in catalog.exchanges:
            return Named(NodeKind.EXCHANGE, address, None)
        name, slash, key = address.partition("/")
        return Named(NodeKind.EXCHANGE, name, key) if slash and name in catalog.exchanges else None

    def access(self, meaning: Meaning, binding_key: str | None = None) -> tuple[str, str | None]:
        """Which node it is for access control, and which topic of it: as of `Access`.

        `binding_key`: of a subscriber, which has that for the key of its address.
        """
        if meaning.kind is NodeKind.QUEUE:
            return meaning.name, None
        if meaning.kind is NodeKind.TOPIC:
            return TOPICS, binding_key or meaning.name
        return meaning.name, self.topic_of(meaning.name, binding_key or meaning.key)

    def access_by_name(self, name: str) -> tuple[str, str | None]:
        """The same, of a node as rules name it."""
        named = self._named(name, None)
        return (name, None) if named is None else self.access(Meaning(name, None, *named))

    def topic_of(self, name: str, key: str | None) -> str | None:
        """For access control, of the exchange `name`: its topic `key`; without one, all of them. None: it has none."""
        if name == EVENTS_ADDRESS:
            return key or ANY_WORDS
        exchange = self._catalog.exchanges.get(name)
        if exchange is None or exchange.kind is not ExchangeKind.TOPIC:
            return None
        return key or ANY_WORDS

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
        return self.find_meant(self.meaning(address, terminus), subject, terminus, in_replica=in_replica)

    def find_meant(
        self, meaning: Meaning, subject: Subject, terminus: Terminus | None = None, *, in_replica: bool = True
    ) -> Target:
        """As `find`, where it is known what the address means."""
        default, address = self._host.default, meaning.address
        found = self._existing(meaning)
        if found is None:
            if meaning.kind in (None, NodeKind.QUEUE):
                self._check_located(meaning.name)
            self._check_serves(default, address)
            found = self._on_demand(meaning, subject, terminus)
        is_queue = isinstance(found.node, Queue)
        if isinstance(found.node, Queue) and found.node.arguments.cluster_proxy:
            text = f"{address} stands for a node of another broker: attach a link to it, at a broker that knows it"
            raise AmqpError(NOT_IMPLEMENTED, text)
        if not (in_replica and is_queue and terminus is not None and terminus.browse):
            self._check_serves(found.hosted, address)
        if meaning.asked is not None and (meaning.asked is NodeKind.QUEUE) is not is_queue:
            there, asked = ("a queue", "topic") if is_queue else ("an exchange", "queue")
            text = f"{address} is {there}, and the link or a rule asks for a {asked}: leave that out, or correct it"
            raise AmqpError(PRECONDITION_FAILED, text)
        return found

    def find_to_publish(self, address: str, subject: Subject, terminus: Terminus | None = None) -> Target:
        """As `find`, for who publishes there."""
        return self.find_meant_to_publish(self.meaning(address, terminus), subject, terminus)

    def plain_queue(self, address: str, terminus: Terminus | None) -> Target | None:
        """The queue of that name, where `find_to_publish` would have nothing to decide; None: ask that."""
        queue, default = self._catalog.queues.get(address), self._host.default
        if queue is None or default.read_only or (terminus is not None and terminus.topic):
            return None
        if queue.arguments.cluster_proxy or is_for_notices(address) or is_for_events(address):
            return None
        if self._catalog.takes_notices_alone(queue):
            return None
        return Target(default, queue)

    def find_meant_to_publish(self, meaning: Meaning, subject: Subject, terminus: Terminus | None) -> Target:
        """The same, where it is known what the address means."""
        found = self.find_meant(meaning, subject, terminus)
        if isinstance(found.node, Queue) and self._catalog.takes_notices_alone(found.node):
            raise AmqpError(
                NOT_ALLOWED, f"{meaning.address} is for notices of {NOTICE_EXCHANGE}: the broker alone sends them"
            )
        return found

    def is_exchange(self, address: str, terminus: Terminus | None = None) -> bool:
        """Whether a link to the address is one to an exchange or a topic. Raises as `meaning`."""
        return self.meaning(address, terminus).kind in (NodeKind.EXCHANGE, NodeKind.TOPIC)

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
        self.check_arguments(subject, terminus)
        asked = {**self.settings.temporary_arguments(terminus.arguments), "qpid.auto_delete": True}
        arguments = with_creator(self.settings.ordered(asked, terminus), self.created_by(subject))
        return self._configuration.declare_queue(f"{TEMPORARY}{self._unique_name()}", arguments, by_rule=False)

    def temporary_topic(self, address: str) -> Target:
        """A topic of its own, for a dynamic terminus; `address`: the one that the link has had, at another broker.

        Raises AmqpError.
        """
        default = self._host.default
        self._check_serves(default, address)
        key = address.removeprefix(f"{TOPICS}/") or f"{TEMPORARY}{self._unique_name()}"
        return Target(default, self._catalog.exchanges[TOPICS], key)

    def topic_of_queue(self, queue: Queue) -> str:
        """To which a queue is bound that was made for one topic, as an address; empty: it is not bound any more."""
        keys = self._catalog.exchanges[TOPICS].keys_of(queue.id)
        return f"{TOPICS}/{keys[0]}" if keys else ""

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
        """What a subscription to `target`, an exchange, is bound to. Raises AmqpError for what nobody is to hear: a
        temporary topic is known to those who were told of it.

        `subscriber`: by that name of its origin a message is the subscriber's own, see `exchanges.exchange.Origin`."""
        exchange = target.node
        if not isinstance(exchange, Exchange):
            raise TypeError(f"{exchange.name} is a queue: nothing can be bound to it")
        key = filters.binding_key or target.key or ("#" if exchange.kind is ExchangeKind.TOPIC else "")
        if exchange.name == TOPICS and key.startswith(TEMPORARY) and has_wildcards(key):
            raise AmqpError(
                NOT_ALLOWED, f"{key} would be topics of others: subscribe to each temporary topic by its name"
            )
        selector = {} if filters.selector is None else selector_argument(filters.selector.text)
        no_local = {NO_LOCAL_ARGUMENT: subscriber} if filters.no_local else {}
        return Route(exchange, key, {**(filters.headers or {}), **selector, **no_local})

    def _existing(self, meaning: Meaning) -> Target | None:
        """What is there; None: nothing that is known here, or a topic without an exchange of its own. Raises as
        `_in_other_set`."""
        default, name = self._host.default, meaning.name
        if meaning.kind is NodeKind.EXCHANGE and name in self._catalog.exchanges:
            return Target(default, self._catalog.exchanges[name], meaning.key)
        if meaning.kind in (NodeKind.EXCHANGE, NodeKind.TOPIC):
            return None
        queue = self._catalog.queues.get(name)
        return self._in_other_set(name) if queue is None else Target(default, queue)

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

    def _on_demand(self, meaning: Meaning, subject: Subject, terminus: Terminus | None) -> Target:
        """What is not there, and needs nobody to make it, or is made. Raises AmqpError or ModelError."""
        name, rule = meaning.name, meaning.rule
        if is_own(name):
            raise no_such_address(name)
        what = "queue or exchange" if meaning.kind is None else _text(meaning.kind)
        if terminus is not None and terminus.temporary:
            raise AmqpError(NOT_FOUND, f"there is no temporary {what} {name}: it went with the link that had it made")
        if terminus is not None and NO_CREATE in terminus.capabilities:
            raise AmqpError(NOT_FOUND, f"there is no {what} {name}")
        if meaning.kind is NodeKind.EXCHANGE:
            raise AmqpError(NOT_FOUND, f"there is no exchange {name}: create it first, for an address does not say how")
        may_be_made = self.settings.auto_create if rule is None or rule.auto_create is None else rule.auto_create
        if not may_be_made:
            off = "auto-create is off" if rule is None or rule.auto_create is None else f"{rule.address} makes none"
            instead = f", or use the address {TOPICS}/{name}" if meaning.kind is NodeKind.TOPIC else ""
            raise AmqpError(NOT_FOUND, f"there is no {what} {name}, and {off}: create it first{instead}")
        default = self._host.default
        if meaning.kind is NodeKind.TOPIC:
            return Target(default, self._catalog.exchanges[TOPICS], name)
        queue = self._create(name, subject, terminus, {} if rule is None else rule.arguments)
        return Target(default, queue, is_new=True)

    def _create(self, name: str, subject: Subject, terminus: Terminus | None, by_rule: Mapping[str, Scalar]) -> Queue:
        self._access.check(subject, Permission.CREATE, name)
        if terminus is not None:
            self.check_arguments(subject, terminus)
        asked = {**self.settings.auto_create_arguments, **by_rule, **(terminus.arguments if terminus else {})}
        arguments = with_creator(self.settings.ordered(asked, terminus), self.created_by(subject))
        try:
            return self._configuration.declare_queue(name, arguments)
        except OtherSet:
            raise AttachWaits(self._host.directory.place(name, arguments)) from None


def _text(kind: NodeKind | None) -> str:
    return "" if kind is None else kind.value
