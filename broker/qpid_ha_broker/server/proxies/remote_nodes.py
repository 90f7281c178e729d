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
from qpid_ha_broker.server.proxies.proxying import ProxyHost
from qpid_ha_broker.server.proxies.remote_names import RemoteDefinition, RemoteDirectory
from qpid_ha_broker.server.proxies.upstream_socket import UpstreamSocket
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks, TicksWhileUsed
from qpid_ha_broker.server.runtime.broker_identity import broker_uuid
from qpid_ha_config.addresses import Address, parse_broker, show_addresses
from qpid_ha_config.remote_nodes import RemoteLogin

log = logging.getLogger("remote")

TICK_S: Final = 0.05
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


class _Route:
    """The way to some brokers that have the same nodes: who is tried next, when, and the connections there are."""

    def __init__(self, key: _RouteKey) -> None:
        self.key = key
        self.sockets: list[Socket] = []
        self.next = 0
        """Of the addresses."""
        self.redirected: Address | None = None
        """Where to try instead."""
        self.redirects = 0
        self.retry_s = 0.0
        self.pause_s = TICK_S
        self.problem = ""
        """Why the last connection could not be had, or has ended; empty while there is one."""

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return any(each.upstream is not None and each.upstream.is_open for each in self.sockets)


class _LinkPlace:
    """Where a link is, or is to be."""

    def __init__(self, definition: RemoteDefinition, route: _Route) -> None:
        self.definition = definition
        self.home = self.route = route
        """By the URL; and where it was redirected to."""
        self.socket: Socket | None = None
        self.retry_s = 0.0
        self.pause_s = TICK_S
        self.since_s = 0.0
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


class RemoteNodes:
    """The promise: a link to a remote node is attached there as soon as its broker can be reached, or ended.

    For `attach_again` and what follows it see `amqp.links.remote_links.RemoteDriver`.
    """

    def __init__(self, broker: ProxyHost, make_engine: MakeRemoteEngine) -> None:
        self.name = broker.current().name
        self._own_id = ""
        self.directory = RemoteDirectory(broker.container, lambda: broker.current().remote)
        self.reports: dict[str, NodeReport] = {}
        self._host = broker
        self._make_engine = make_engine
        self._container_id = f"{self.name}/{uuid.uuid4().hex[:8]}"
        self._links: dict[DrivenEnd, _LinkPlace] = {}
        self._routes: dict[_RouteKey, _Route] = {}
        self._of_socket: dict[Socket, _Route] = {}
        self._unflushed: dict[Socket, None] = {}
        self._tasks = BackgroundTasks()
        self._ticks = TicksWhileUsed(
            TICK_S, lambda: bool(self._links or self._of_socket), self._tick, broker.notices.bugs_noted
        )
        self._is_stopped = False

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
        self._links[link] = _LinkPlace(definition, self._route(key))
        report = self.report(definition.target.name)
        report.links += 1
        report.used_s = time.monotonic()
        self._ticks.start()
        asyncio.get_running_loop().call_soon(self._place, link)

    def report(self, name: str) -> NodeReport:
        """Of the node that is called so here."""
        return self.reports.setdefault(name, NodeReport())

    def attach_again(self, link: DrivenEnd, reason: str) -> None:
        """Its far end is gone, or was not to be had: at a later tick it is attached again."""
        place = self._links.get(link)
        if place is None:
            return
        now_s = time.monotonic()
        if place.socket is not None and now_s - place.since_s > STEADY_S:
            place.pause_s = TICK_S
        if place.socket is not None and not reason.startswith(place.socket.address):
            reason = f"{place.socket.address}: {reason}"
        place.socket, place.route = None, place.home
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
        place = self._links.get(link)
        if place is None or place.redirects >= MOST_REDIRECTS:
            return False
        address = self._redirected_to(place.route, error)
        if address is None:
            return False
        place.redirects += 1
        place.route, place.socket = self._route(place.home.key._replace(addresses=(address,))), None
        asyncio.get_running_loop().call_soon(self._place, link)
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
        place = self._links.get(link)
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
        place = self._links.pop(link, None)
        if place is None:
            return
        if place.socket is not None and place.socket.upstream is not None:
            place.socket.upstream.detach(link, closed=closed)
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

    def _place(self, link: DrivenEnd) -> None:
        place = self._links.get(link)
        if self._is_stopped or place is None or place.socket is not None:
            return
        route = place.route
        for socket in route.sockets:
            if socket.upstream is None or socket.upstream.has_room:
                place.socket, place.since_s = socket, time.monotonic()
                if socket.upstream is not None:
                    socket.upstream.attach(link)
                return
        if time.monotonic() >= route.retry_s:
            place.socket, place.since_s = self._open(route), time.monotonic()

    def _open(self, route: _Route) -> Socket:
        """Connect to the next of its brokers; after the last one there is a pause."""
        addresses = route.key.addresses
        address = route.redirected or addresses[route.next]
        route.redirected = None
        route.next = (route.next + 1) % len(addresses)
        if route.next == 0:
            route.retry_s = time.monotonic() + route.pause_s
            route.pause_s = min(2 * route.pause_s, RETRY_MOST_S)
        socket: Socket = UpstreamSocket(self, str(address))
        route.sockets.append(socket)
        self._of_socket[socket] = route

        def connect(place: Address, touched: Callable[[], None], ended: Callable[[str], None]) -> RemoteConnection:
            login = route.key.login or self.directory.configured.login_at(place) or RemoteLogin()
            engine = self._make_engine(place, login)
            container = route.key.container or self._container_id
            return RemoteConnection(engine, container, place.host, touched, ended)

        self._tasks.start(socket.open(connect))
        return socket

    def connecting(self, socket: Socket) -> None:
        """Its connection is there: give it the links that wait for that."""
        if socket.upstream is not None:
            for link in [link for link, place in self._links.items() if place.socket is socket]:
                socket.upstream.attach(link)

    def ended(self, socket: Socket, reason: str) -> None:
        """It is gone. Links that it has told so are without a place already."""
        route = self._of_socket.pop(socket, None)
        if route is None:
            return
        route.sockets.remove(socket)
        error = None if socket.upstream is None else socket.upstream.error
        text = f"{socket.address}: {reason}"
        for link in [link for link, place in self._links.items() if place.socket is socket]:
            self.attach_again(link, text)
        # A backup of ours says which one is primary, and calls that `forced`.
        leads_on = error is not None and error.name in (CONNECTION_REDIRECT, CONNECTION_FORCED)
        if error is not None and leads_on and route.redirects < MOST_REDIRECTS:
            route.redirects += 1
            route.redirected = self._redirected_to(route, error)
        elif error is not None and error.name == UNAUTHORIZED_ACCESS:
            self._refuse_waiting(route, error, text)
        if not self._is_stopped and text != route.problem:
            route.problem = text
            log.warning("remote broker %s: %s", socket.address, reason)
        self._host.schedule_turn()

    def _refuse_waiting(self, route: _Route, error: AmqpError, text: str) -> None:
        """This broker is not let in there: whoever attaches is told so; who is attached may hope for an operator."""
        for link in [link for link, place in self._links.items() if place.home is route and not link.is_open]:
            link.refuse(
                AmqpError(error.name, f"{text}: see the user and password-file of remote-nodes, remote-brokers")
            )

    # --- as time goes by

    def _tick(self) -> None:
        now_s = time.monotonic()
        clock_s = self._host.container.clock()
        for link, place in list(self._links.items()):
            if link not in self._links:
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
                elif place.socket is None and now_s >= place.retry_s:
                    self._place(link)
        self._tend_sockets(now_s)
        self._host.schedule_turn()

    def _tend_sockets(self, now_s: float) -> None:
        used = {place.socket for place in self._links.values()}
        for socket, route in list(self._of_socket.items()):
            socket.heartbeat(int(now_s * 1000))
            if socket.upstream is not None and socket.upstream.is_open:
                route.problem, route.redirects = "", 0
                route.pause_s, route.retry_s = TICK_S, 0.0
            if socket in used:
                socket.used_s = now_s
            elif now_s - socket.used_s > self._host.current().remote.proxy_idle_s and socket in self._of_socket:
                self._drop(socket, "not needed any more")
        for key, route in list(self._routes.items()):
            if not route.sockets and not any(route in (each.route, each.home) for each in self._links.values()):
                del self._routes[key]

    def _drop(self, socket: Socket, reason: str) -> None:
        self._of_socket.pop(socket).sockets.remove(socket)
        socket.close(reason)

    # --- the broker's and the sockets' calls

    def set_time(self) -> None:
        """Let the container know what time it is."""
        self._host.set_time()

    def want_flush(self, socket: Socket) -> None:
        """It has something to send, or to tell clients, at the end of the turn."""
        self._unflushed[socket] = None
        self._host.schedule_turn()

    def flush(self) -> None:
        """The end of a turn."""
        if self._unflushed:
            unflushed, self._unflushed = self._unflushed, {}
            for socket in unflushed:
                socket.flush()

    def facts(self) -> dict[str, object]:
        """What `query` tells; nothing where there is no remote node."""
        if not self.reports:
            return {}
        return {"remote_links": len(self._links), "remote_connections": len(self._of_socket)}

    def row(self, name: str, found: RemoteDefinition | AmqpError) -> dict[str, object]:
        """What operators see of one node, as `directory` has it."""
        if isinstance(found, AmqpError):
            return {"name": name, "state": "refused", "problem": found.description}
        report = self.reports.get(name)
        links = [link for link in self._links if link.target.name == name]
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

    def stop(self) -> None:
        """The process will end; the clients' links are ended by others."""
        self._is_stopped = True
        self._ticks.cancel()
        self._tasks.cancel()
        for socket in list(self._of_socket):
            self._drop(socket, "the broker is stopping")
