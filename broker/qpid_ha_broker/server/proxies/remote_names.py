"""Which addresses here are nodes of brokers outside of the cluster: those of the configuration, and declared ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.links.remote_links import RemoteTarget
from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, PRECONDITION_FAILED, AmqpError
from qpid_ha_broker.model.commands.configuration import RemoteNames
from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_config.addresses import Address, show_addresses
from qpid_ha_config.remote_nodes import RemoteLogin, RemoteUrl
from qpid_ha_config.settings import RemoteSettings


class RemoteDefinition(NamedTuple):
    """A node of another broker: where it is, and who this broker is there."""

    target: RemoteTarget
    addresses: tuple[Address, ...]
    login: RemoteLogin | None
    """For all addresses, and those that they redirect to; None: `remote-brokers` has one for each."""
    queue: Queue | None = None
    """What was declared to stand for it; None: the configuration says so."""


class ConfiguredRemotes(RemoteNames):
    """What the configuration says, for the commands that declare queues and for whoever connects."""

    def __init__(self, settings: RemoteSettings) -> None:
        self.names = frozenset(node.name for node in settings.nodes)
        self._settings = settings

    def check(self, argument: str, url: str) -> None:
        """See `model.configuration.RemoteNames`."""
        try:
            parsed = RemoteUrl.parse(url)
        except ValueError as error:
            raise InvalidArgument(f"{argument}={url!r:.80}: {error}") from None
        for address in parsed.addresses:
            if self.login_at(address) is None:
                text = f"remote-brokers of the configuration does not have {address}, and whoever may declare a queue"
                text += " must not have this broker connect to anywhere: let an operator add it there"
                raise InvalidArgument(f"{argument}={url!r:.80}: {text}")

    def login_at(self, address: Address) -> RemoteLogin | None:
        """Of `remote-brokers`; None: it is not among them."""
        for broker in self._settings.brokers:
            if any(each.is_same_listener(address) for each in broker.addresses):
                return broker.login
        return None


class RemoteDirectory:
    """Finds remote nodes by their names here."""

    def __init__(self, container: Container, current: Callable[[], RemoteSettings]) -> None:
        self._catalog = container.default.resources.catalog
        settings = current()
        self.configured = ConfiguredRemotes(settings)
        self._configured = {
            node.name: RemoteDefinition(
                _target(node.name, node.url),
                node.url.addresses,
                node.login if node.login != RemoteLogin() or not self._are_known(node.url) else None,
            )
            for node in settings.nodes
        }
        self._declared: dict[Queue, RemoteDefinition] = {}
        """Those that were asked for, so that their URLs are read once."""

    def _are_known(self, url: RemoteUrl) -> bool:
        return all(self.configured.login_at(address) is not None for address in url.addresses)

    def find(self, name: str) -> RemoteDefinition | None:
        """The node that clients here call so; None: it is none of another broker. Raises AmqpError."""
        catalog = self._catalog
        found = self._configured.get(name)
        if found is not None:
            if name in catalog.queues or name in catalog.exchanges or name in catalog.map.queues:
                text = f"{name} is a node of another broker by remote-nodes of the configuration, and there is a queue"
                text += " or exchange of that name here, too: rename one of the two"
                raise AmqpError(PRECONDITION_FAILED, text)
            return found
        queue = catalog.queues.get(name)
        if queue is None or not queue.arguments.cluster_proxy:
            return None
        return self.declared(queue)

    def declared(self, queue: Queue) -> RemoteDefinition:
        """What `queue` stands for. Raises AmqpError."""
        known = self._declared.get(queue)
        if known is None:
            try:
                self.configured.check("qpid.cluster.proxy", queue.arguments.cluster_proxy)
            except InvalidArgument as error:
                raise AmqpError(INVALID_FIELD, str(error)) from None
            url = RemoteUrl.parse(queue.arguments.cluster_proxy)
            known = RemoteDefinition(_target(queue.name, url), url.addresses, None, queue)
            self._declared = {each: there for each, there in self._declared.items() if self.is_there(there)}
            self._declared[queue] = known
        return known

    def is_there(self, definition: RemoteDefinition) -> bool:
        """Whether it still means something here."""
        queue = definition.queue
        return queue is None or self._catalog.queues_by_id.get(queue.id) is queue

    def all(self) -> Iterator[tuple[str, RemoteDefinition | AmqpError]]:
        """Every one, by name; what is wrong with it in place of one that cannot be used."""
        names = [*self._configured, *(queue.name for queue in self._catalog.bridged if _stands(queue))]
        for name in names:
            try:
                found = self.find(name)
            except AmqpError as error:
                yield name, error
            else:
                if found is not None:
                    yield name, found


def _stands(queue: Queue) -> bool:
    return bool(queue.arguments.cluster_proxy)


def _target(name: str, url: RemoteUrl) -> RemoteTarget:
    return RemoteTarget(name, url.node, show_addresses(url.addresses))
