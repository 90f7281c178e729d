"""Attaches links of this broker's clients to nodes of brokers outside of the cluster: where those are, and the sockets.

The link itself is `amqp.links.remote_links`'. Links to the same brokers with the same login share connections, which
are opened when needed and closed some time after. The brokers of a URL are tried in turn, and all of them again after
a pause that grows with each round.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.remote_connection import RemoteConnection, RemoteEnd
from qpid_ha_broker.amqp.links.remote_links import RemoteLink, RemoteTarget, remote_link
from qpid_ha_broker.amqp.wire.conditions import (
    CONNECTION_FORCED,
    CONNECTION_REDIRECT,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_DELETED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
)
from qpid_ha_broker.amqp.wire.engine import Engine, remote_properties_of
from qpid_ha_broker.amqp.wire.remote_path import check_ends_here, read_path
from qpid_ha_broker.server.proxies.far_links import TICK_S, FarLinks, ProxyHost
from qpid_ha_broker.server.proxies.far_pool import Way
from qpid_ha_broker.server.proxies.remote_names import RemoteDefinition, RemoteDirectory
from qpid_ha_broker.server.proxies.upstream_socket import Made, UpstreamSocket
from qpid_ha_broker.server.runtime.broker_identity import broker_uuid
from qpid_ha_config.addresses import Address, parse_broker, show_addresses
from qpid_ha_config.remote_nodes import RemoteLogin

log = logging.getLogger("remote")

RETRY_MOST_S: Final = 5.0
"""Between two rounds over the brokers of a URL, or two attempts to attach a link; they begin at TICK_S."""
STEADY_S: Final = 1.0
"""A link or connection that has been there for so long may be had again at once when it is lost."""
MOST_REDIRECTS: Final = 5
"""In a row, before the first address is tried again."""

MakeRemoteEngine = Callable[[Address, RemoteLogin], Engine]
Socket = UpstreamSocket[RemoteConnection]


class DrivenEnd(RemoteEnd, Protocol):
    """What is attached at other brokers: a client's link, or a bridge of a queue."""

    target: RemoteTarget
    passed: int
    """Messages, so far."""
    is_open: bool
    """A client's attach is answered."""
    far_container: str
    """The container id under which it is attached; empty: this broker's own."""

    @property
    def is_attached(self) -> bool:
        """The other broker has answered."""

    def note(self, reason: str) -> None:
        """Why it is not."""

    def refuse(self, error: AmqpError) -> None:
        """It cannot be had there."""

    def expire(self, now_s: float) -> None:
        """Time goes by, by the container's clock."""


class _RouteKey(NamedTuple):
    addresses: tuple[Address, ...]
    login: RemoteLogin | None
    container: str = ""
    """The container id of the connections; empty: this broker's own."""


class _Route(Way[Socket]):
    """The way to some brokers outside of the cluster that have the same nodes."""

    def __init__(self, key: _RouteKey) -> None:
        super().__init__(tuple(map(str, key.addresses)), RETRY_MOST_S)
        self.key = key
        self.redirected: Address | None = None
        """Where to try instead, once."""
        self.redirects = 0
        self.problem = ""
        """Why the last connection could not be had, or has ended; empty while there is one."""

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return any(each.upstream is not None and each.upstream.is_open for each in self.connections)

    def take_address(self, now_s: float) -> str | None:
        address = super().take_address(now_s)
        if address is not None and self.redirected is not None:
            address, self.redirected = str(self.redirected), None
        return address


class _LinkPlace:
    """Where a link is, or is to be."""

    def __init__(self, definition: RemoteDefinition, route: _Route) -> None:
        self.definition = definition
        self.home = self.route = route
        """By the URL; and where it was redirected to."""
        self.retry_s = 0.0
        """It is assigned again then, by the loop's clock."""
        self.pause_s = TICK_S
        self.since_s = 0.0
        """When it was assigned."""
        self.redirects = 0


class NodeReport:
    """What is known of one remote node since this broker has run."""

    def __init__(self) -> None:
        self.links = 0
        self.passed = 0
        """Messages, on links that have ended."""
        self.problem = ""
        self.warning = ""
        """The last thing that was wrong with a message."""
        self.is_missing = False
        """Its broker says that there is no such node."""
        self.is_found = False
        """It was there when it was used, or looked for, last."""
        self.used_s = time.monotonic()


class RemoteNodes(FarLinks[DrivenEnd, RemoteConnection, _Route]):
    """The promise: a link to a remote node is attached there as soon as its broker can be reached, or ended.

    For `attach_again` and what follows it see `amqp.links.remote_links.RemoteDriver`.
    """

    def __init__(self, broker: ProxyHost, make_engine: MakeRemoteEngine) -> None:
        super().__init__(broker)
        self.name = broker.current().name
        self._own_id = ""
        self.directory = RemoteDirectory(broker.container, lambda: broker.current().remote)
        self.reports: dict[str, NodeReport] = {}
        self._make_engine = make_engine
        self._container_id = f"{self.name}/{uuid.uuid4().hex[:8]}"
        self._places: dict[DrivenEnd, _LinkPlace] = {}
        self._routes: dict[_RouteKey, _Route] = {}

    @property
    def broker(self) -> str:
        """By which this broker is told from all others outside: the UUID of its cluster, or of its store."""
        generations = self._host.container.default.resources.replicated.state.generations
        if generations and generations[-1][1].cluster:
            return generations[-1][1].cluster
        if not self._own_id:
            settings = self._host.current()
            self._own_id = broker_uuid(settings.data_dir if settings.has_store else None)
        return self._own_id

    # --- clients

    def relay(self, connection: Connection, link: proton.Link, address: str) -> RemoteLink | None:
        """See `amqp.connections.connection.Remotes`."""
        definition = self.directory.find(address)
        if definition is None:
            path = read_path(remote_properties_of(link))
            if path:
                check_ends_here(path, self.broker, address)
            return None
        if connection.session is not None:
            text = f"{address} is a node of a broker outside of the cluster, where nothing is held for a session"
            raise AmqpError(NOT_IMPLEMENTED, f"{text}: use it on a connection without one")
        relayed = remote_link(connection, link, definition.target, self)
        self.attach(relayed, definition)
        return relayed

    def attach(self, link: DrivenEnd, definition: RemoteDefinition) -> None:
        """Have `link` attached there, in a moment."""
        key = _RouteKey(definition.addresses, definition.login, link.far_container)
        self._places[link] = _LinkPlace(definition, self._route(key))
        self.pool.links[link] = None
        report = self.report(definition.target.name)
        report.links += 1
        report.used_s = time.monotonic()
        self._assign_soon(link)

    def report(self, name: str) -> NodeReport:
        """Of the node that is called so here."""
        return self.reports.setdefault(name, NodeReport())

    def attach_again(self, link: DrivenEnd, reason: str) -> None:
        """Its far end is gone, or was not to be had: at a later tick it is attached again."""
        place = self._places.get(link)
        if place is None:
            return
        now_s, socket = asyncio.get_running_loop().time(), self.pool.links[link]
        if socket is not None and now_s - place.since_s > STEADY_S:
            place.pause_s = TICK_S
        if socket is not None and not reason.startswith(socket.address):
            reason = f"{socket.address}: {reason}"
        self.pool.links[link], place.route = None, place.home
        place.retry_s, place.pause_s = now_s + place.pause_s, min(2 * place.pause_s, RETRY_MOST_S)
        self._note(link, reason)

    def _note(self, link: DrivenEnd, reason: str) -> None:
        target = link.target
        link.note(reason)
        report = self.report(target.name)
        if reason != report.problem:
            report.problem = reason
            log.info("remote node %s, %s at %s: %s", target.name, target.node, target.where, reason)

    def redirect(self, link: DrivenEnd, error: AmqpError) -> bool:
        """Attach it where the other broker says; whether it says so, and that is to be followed."""
        place = self._places.get(link)
        if place is None or place.redirects >= MOST_REDIRECTS:
            return False
        address = self._redirected_to(place.route, error)
        if address is None:
            return False
        place.redirects += 1
        place.route, self.pool.links[link] = self._route(place.home.key._replace(addresses=(address,))), None
        self._assign_soon(link)
        return True

    def _redirected_to(self, route: _Route, error: AmqpError) -> Address | None:
        """Where an error of redirection leads; None: nowhere that may be connected to. TLS is never given up."""
        info = error.info or {}
        host, port = info.get("network-host") or info.get("hostname"), info.get("port")
        if not isinstance(port, int):
            return None
        scheme = route.key.addresses[0].scheme
        if info.get("scheme") == "amqps":
            scheme = "amqps"
        try:
            address = parse_broker(f"[{host}]:{int(port)}" if ":" in str(host) else f"{host}:{int(port)}", scheme)
        except ValueError:
            return None
        if route.key.login is None and self.directory.configured.login_at(address) is None:
            log.warning(
                "%s leads to %s, which remote-brokers does not have", show_addresses(route.key.addresses), address
            )
            return None
        return address

    def gone(self, link: DrivenEnd, error: AmqpError) -> None:
        """The other broker has refused it, or ended it for good."""
        report = self.report(link.target.name)
        report.is_missing, report.is_found = error.name == NOT_FOUND, False
        if error.description not in report.problem:  # what is tried again has been noted
            report.problem = error.description
        place = self._places.get(link)
        queue = None if place is None else place.definition.queue
        default = self._host.container.default
        is_unused = queue is not None and not queue.messages.count and not default.resources.catalog.is_bound(queue)
        if report.is_missing and queue is not None and is_unused and default.is_there(queue) and not default.read_only:
            log.warning("remote node %s is deleted: %s has no %s", queue.name, link.target.where, link.target.node)
            default.configuration.delete_queue(queue.name)

    def found(self, link: DrivenEnd) -> None:
        """The other broker has such a node."""
        report = self.report(link.target.name)
        report.problem, report.is_missing, report.is_found = "", False, True
        report.used_s = time.monotonic()

    def warn(self, link: DrivenEnd, text: str) -> None:
        """Something for operators, who see the last one beside the node."""
        report = self.report(link.target.name)
        if text != report.warning:
            report.warning = text
            log.warning("queue %s, %s at %s: %s", link.target.name, link.target.node, link.target.where, text)

    def forget(self, link: DrivenEnd, *, closed: bool = True) -> None:
        """It has ended."""
        if self._places.pop(link, None) is None:
            return
        self._take_back(link, closed=closed)
        report = self.report(link.target.name)
        report.links -= 1
        report.passed += link.passed
        report.used_s = time.monotonic()

    # --- where they are attached

    def _route(self, key: _RouteKey) -> _Route:
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _Route(key)
        return route

    def _find_ways(self) -> Callable[[DrivenEnd], _Route | None]:
        return lambda link: self._places[link].route

    def _maker(self, way: _Route) -> Made[RemoteConnection]:
        def connect(place: Address, touched: Callable[[], None], ended: Callable[[str], None]) -> RemoteConnection:
            login = way.key.login or self.directory.configured.login_at(place) or RemoteLogin()
            engine = self._make_engine(place, login)
            return RemoteConnection(engine, way.key.container or self._container_id, place.host, touched, ended)

        return connect

    def _placed(self, link: DrivenEnd, socket: Socket) -> None:
        self._places[link].since_s = asyncio.get_running_loop().time()

    def _socket_lost(self, socket: Socket, way: _Route, reason: str) -> None:
        error = None if socket.upstream is None else socket.upstream.error
        text = f"{socket.address}: {reason}"
        for link in self.pool.links_of(socket):
            self.attach_again(link, text)
        # A backup of ours says which one is primary, and calls that `forced`.
        leads_on = error is not None and error.name in (CONNECTION_REDIRECT, CONNECTION_FORCED)
        if error is not None and leads_on and way.redirects < MOST_REDIRECTS:
            way.redirects += 1
            way.redirected = self._redirected_to(way, error)
        elif error is not None and error.name == UNAUTHORIZED_ACCESS:
            self._refuse_waiting(way, error, text)
        if not self._is_stopped and text != way.problem:
            way.problem = text
            log.warning("remote broker %s: %s", socket.address, reason)

    def _refuse_waiting(self, route: _Route, error: AmqpError, text: str) -> None:
        """This broker is not let in there: whoever attaches is told so; who is attached may hope for an operator."""
        for link in [link for link, place in self._places.items() if place.home is route and not link.is_open]:
            link.refuse(
                AmqpError(error.name, f"{text}: see the user and password-file of remote-nodes, remote-brokers")
            )

    # --- as time goes by

    def _tick_links(self, now_s: float) -> None:
        clock_s, due = self._host.container.clock(), []
        for link, place in list(self._places.items()):
            if link not in self._places:
                continue
            with self._host.notices.bugs_noted():
                if not self.directory.is_there(place.definition):
                    link.refuse(AmqpError(RESOURCE_DELETED, f"{link.target.name} was deleted"))
                    continue
                link.expire(clock_s)
                if link.is_attached:
                    self.found(link)
                    place.redirects = 0
                    if now_s - place.since_s > STEADY_S:
                        place.pause_s = TICK_S
                elif now_s >= place.retry_s:
                    due.append(link)
        self._assign(due)
        used = {route for place in self._places.values() for route in (place.route, place.home)}
        self._routes = {key: route for key, route in self._routes.items() if route.connections or route in used}

    def _socket_open(self, way: _Route) -> None:
        way.problem, way.redirects = "", 0

    def facts(self) -> dict[str, object]:
        """What `query` tells; nothing where there is no remote node."""
        if not self.reports:
            return {}
        return {"remote_links": len(self._places), "remote_connections": len(self.pool.connections)}

    def row(self, name: str, found: RemoteDefinition | AmqpError) -> dict[str, object]:
        """What operators see of one node, as `directory` has it."""
        if isinstance(found, AmqpError):
            return {"name": name, "state": "refused", "problem": found.description}
        report = self.reports.get(name)
        links = [link for link in self._places if link.target.name == name]
        route = self._routes.get(_RouteKey(found.addresses, found.login))
        state = "connected" if route is not None and route.is_open else "unused"
        if state == "unused" and report is not None and report.is_found:
            state = "there"
        if report is not None and report.problem:
            state = "missing" if report.is_missing else "failing"
        return {
            "name": name,
            "node": found.target.node,
            "at": found.target.where,
            "from": "configuration" if found.queue is None else "declaration",
            "state": state,
            "links": len(links),
            "messages": sum(link.passed for link in links) + (0 if report is None else report.passed),
            "held": 0 if found.queue is None else found.queue.messages.count,
            "problem": None if report is None else report.problem or report.warning or None,
        }
