"""Which queues have a bridge to a node of another broker now, and to whom each leads: see `amqp.links.bridges`.

A queue with `qpid.cluster.source` is filled as long as this broker leads its set. One with `qpid.cluster.proxy` is
emptied while there is something in it, which only exchanges bring there: links of clients go on to the node itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from qpid_ha_broker.amqp.links.bridges import BRIDGES, Bridge
from qpid_ha_broker.amqp.links.remote_links import RemoteTarget
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.model.errors import InvalidArgument, ModelError
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.server.proxies.far_links import ProxyHost
from qpid_ha_broker.server.proxies.remote_names import RemoteDefinition
from qpid_ha_broker.server.proxies.remote_nodes import RemoteNodes
from qpid_ha_broker.server.sets.membership import Membership
from qpid_ha_config.addresses import show_addresses
from qpid_ha_config.remote_nodes import RemoteUrl

log = logging.getLogger("remote")


class BridgeHost(ProxyHost, Protocol):
    """What is needed of the broker."""

    membership: Membership
    is_stopping: bool


class _Begun(NamedTuple):
    url: str
    bridge: Bridge


class Bridges:
    """The promise: a queue whose set is led here has the bridge that its arguments say, and soon no other."""

    def __init__(self, broker: BridgeHost, remotes: RemoteNodes) -> None:
        self._broker = broker
        self._remotes = remotes
        self._begun: dict[Queue, _Begun] = {}
        self._refused: dict[Queue, str] = {}
        """Why a queue cannot have its bridge."""

    def tick(self) -> None:
        """Begin and end bridges; several times in a second."""
        wanted = {queue: (hosted, url) for hosted, queue, url in self._wanted()}
        for queue, (url, bridge) in list(self._begun.items()):
            hosted = bridge.hosted
            if bridge.has_ended:
                del self._begun[queue]
            elif wanted.get(queue) != (hosted, url) or self._is_idle(queue, bridge):
                log.log(_level(bridge), "queue %s: its bridge to %s ends", queue.name, url)
                bridge.finish(closed=_is_over(queue, url))
                del self._begun[queue]
        for queue, (hosted, url) in wanted.items():
            if queue not in self._begun and self._is_due(queue):
                self._begin(hosted, queue, url)
        self._refused = {queue: text for queue, text in self._refused.items() if queue in wanted}

    @property
    def leads_default(self) -> bool:
        """Whether this broker is the primary, or there is no other."""
        return self._leads(self._broker.container.default)

    def _wanted(self) -> Iterator[tuple[HostedSet, Queue, str]]:
        """Queues of sets that are led here, with the URL of their node."""
        for hosted in self._broker.container.sets.values():
            bridged = hosted.resources.catalog.bridged
            if bridged and self._leads(hosted):
                for queue in bridged:
                    yield hosted, queue, _url_of(queue)

    def _leads(self, hosted: HostedSet) -> bool:
        if hosted.read_only or hosted.resources.replication.read_only or self._broker.is_stopping:
            return False
        return hosted.name != DEFAULT_SET or self._broker.membership.clients.is_serving

    @staticmethod
    def _is_due(queue: Queue) -> bool:
        """Whether there is something to do for its bridge."""
        return _is_filled(queue) or bool(queue.messages.count)

    def _is_idle(self, queue: Queue, bridge: Bridge) -> bool:
        if bridge.fills or queue.messages.count:
            return False
        return self._broker.container.clock() - bridge.used_s > self._broker.current().remote.proxy_idle_s

    def _begin(self, hosted: HostedSet, queue: Queue, url: str) -> None:
        argument, _ = _asked(queue)
        try:
            self._remotes.directory.configured.check(argument, url)
            parsed = RemoteUrl.parse(url)
            target = RemoteTarget(queue.name, parsed.node, show_addresses(parsed.addresses))
            bridge = BRIDGES[argument](hosted, queue, target, self._remotes, self._broker.container)
        except (InvalidArgument, ModelError) as error:
            if self._refused.get(queue) != str(error):
                self._refused[queue] = str(error)
                log.warning("queue %s has no bridge: %s", queue.name, error)
            return
        self._refused.pop(queue, None)
        self._begun[queue] = _Begun(url, bridge)
        log.log(_level(bridge), "queue %s: a bridge %s %s begins", queue.name, "from" if bridge.fills else "to", url)
        self._remotes.attach(bridge, RemoteDefinition(target, parsed.addresses, None))

    def rows(self) -> list[dict[str, object]]:
        """One for each queue that is filled, for operators."""
        found = []
        for hosted in self._broker.container.sets.values():
            for queue in hosted.resources.catalog.bridged:
                if _is_filled(queue):
                    found.append(self._row(hosted, queue))
        return found

    def _row(self, hosted: HostedSet, queue: Queue) -> dict[str, object]:
        url = RemoteUrl.parse(_url_of(queue))
        begun, report = self._begun.get(queue), self._remotes.reports.get(queue.name)
        problem = self._refused.get(queue) or (report is not None and (report.problem or report.warning)) or None
        if not self._leads(hosted):
            state, problem = "elsewhere", None
        elif queue in self._refused:
            state = "refused"
        elif begun is not None and begun.bridge.is_attached:
            state = "filling"
        else:
            state = "missing" if report is not None and report.is_missing else "failing" if problem else "connecting"
        passed = 0 if report is None else report.passed
        return {
            "name": queue.name,
            "node": url.node,
            "at": show_addresses(url.addresses),
            "from": "source",
            "state": state,
            "links": int(begun is not None),
            "messages": passed + (0 if begun is None else begun.bridge.passed),
            "held": queue.messages.count,
            "problem": problem,
        }

    def stop(self) -> None:
        """The process will end; what other brokers keep for it stays there."""
        for queue, (url, bridge) in self._begun.items():
            bridge.finish(closed=_is_over(queue, url))
        self._begun.clear()


def _asked(queue: Queue) -> tuple[str, str]:
    """The argument that asks for a bridge, and its URL; empty: none does any more."""
    return queue.arguments.bridge or ("", "")


def _url_of(queue: Queue) -> str:
    return _asked(queue)[1]


def _is_filled(queue: Queue) -> bool:
    """Whether messages come to it by its bridge."""
    argument, _ = _asked(queue)
    return argument in BRIDGES and BRIDGES[argument].fills


def _is_over(queue: Queue, url: str) -> bool:
    """Whether nobody will go on with the bridge of `queue` to `url`."""
    return queue.deleted or _url_of(queue) != url


def _level(bridge: Bridge) -> int:
    """Outbound ones come and go with what there is to send."""
    return logging.INFO if bridge.fills else logging.DEBUG
