"""Which queue or exchange an address means, making it where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qpid_ha_broker.amqp.conditions import NOT_FOUND, AmqpError
from qpid_ha_broker.amqp.terminus import Filters, Terminus
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.configuration import Configuration
from qpid_ha_broker.model.exchanges import Exchange, ExchangeKind
from qpid_ha_broker.model.queue import Queue
from qpid_ha_broker.model.state import State


@dataclass(frozen=True)
class NodeSettings:
    """How nodes come to be on demand."""

    auto_create: bool = True
    auto_create_arguments: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a publisher's messages go. `key` None: each message's subject is its routing key."""

    node: Queue | Exchange
    key: str | None = None


class Nodes:
    """Finds nodes by address: a queue, an exchange, or `exchange/key`."""

    def __init__(
        self, state: State, configuration: Configuration, settings: NodeSettings, unique_name: Callable[[], str]
    ) -> None:
        self._state = state
        self._configuration = configuration
        self.settings = settings
        self._unique_name = unique_name

    def target(self, address: str, terminus: Terminus | None = None) -> Target:
        """Where to publish. Raises AmqpError or ModelError."""
        found = self._existing(address)
        if found is not None:
            return found
        return Target(self._create(address, terminus))

    def temporary_queue(self, arguments: Mapping[str, Scalar]) -> Queue:
        """A queue with a name of its own, for a dynamic terminus."""
        return self._configuration.declare_queue(f"temporary.{self._unique_name()}", arguments)

    def source_queue(self, address: str, terminus: Terminus) -> tuple[Queue | None, Target | None]:
        """The queue to consume from; or, second, the exchange to subscribe to."""
        found = self._existing(address) or Target(self._create(address, terminus))
        if isinstance(found.node, Queue):
            return found.node, None
        return None, found

    def subscription(self, target: Target, filters: Filters, durable_name: str | None) -> Queue:
        """A queue bound to an exchange for one subscriber; with `durable_name`, the one that it left behind."""
        exchange = target.node
        if durable_name and durable_name in self._state.queues:
            return self._state.queues[durable_name]
        arguments: dict[str, Scalar] = {"qpid.exclusive": True} if durable_name else {"qpid.auto_delete": True}
        name = durable_name or f"subscription.{self._unique_name()}"
        queue = self._configuration.declare_queue(name, arguments)
        is_topic = isinstance(exchange, Exchange) and exchange.kind is ExchangeKind.TOPIC
        key = filters.binding_key or target.key or ("#" if is_topic else "")
        self._configuration.bind(exchange.name, name, key, filters.headers or {})
        return queue

    def _existing(self, address: str) -> Target | None:
        if address in self._state.queues:
            return Target(self._state.queues[address])
        if address in self._state.exchanges:
            return Target(self._state.exchanges[address])
        name, slash, key = address.partition("/")
        if slash and name in self._state.exchanges:
            return Target(self._state.exchanges[name], key)
        return None

    def _create(self, address: str, terminus: Terminus | None) -> Queue | Exchange:
        if not self.settings.auto_create:
            raise AmqpError(
                NOT_FOUND, f"there is no queue or exchange {address}, and auto-create is off: create it first"
            )
        if terminus is not None and terminus.topic:
            return self._configuration.declare_exchange(address, ExchangeKind.TOPIC, {})
        arguments = {**self.settings.auto_create_arguments, **(terminus.arguments if terminus else {})}
        return self._configuration.declare_queue(address, arguments)
