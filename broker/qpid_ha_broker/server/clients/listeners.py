"""The sockets on which clients come in: a few in each turn of the loop, and none for which there is no room.

Connections are taken from the kernel by hand, not by the loop's own servers: those take all that wait at once, make a
transport for each before anybody is asked, and drop the waiting ones, those of other brokers and of administrators too,
when descriptors run out.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from qpid_ha_broker.server.clients.admission import Admission
from qpid_ha_broker.server.clients.client_protocol import ClientProtocol
from qpid_ha_broker.server.runtime.descriptors import Descriptors
from qpid_ha_broker.server.runtime.logs import RateLimitedLog
from qpid_ha_broker.server.runtime.tls import problem_of
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import SettingsError

BACKLOG: Final = 1024
ACCEPTED_AT_ONCE: Final = 16
"""In one turn of the loop: a flood must not keep it from those who are served."""
PAUSE_S: Final = 0.02
"""Until there may be room again."""
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class _Place(NamedTuple):
    """One listening socket, and who talks to those that come in there."""

    socket: socket.socket
    make_protocol: Callable[[], ClientProtocol]


class Listeners:
    """The promise: clients never take the descriptors that are kept for the store, the control socket and others."""

    def __init__(
        self, admission: Admission[ClientProtocol], descriptors: Descriptors, refusals: RateLimitedLog
    ) -> None:
        self._admission = admission
        self.descriptors = descriptors
        self._refusals = refusals
        self.addresses: list[str] = []
        """Those in use, with the real port where 0 was asked."""
        self._places: list[_Place] = []
        self._paused: dict[_Place, asyncio.TimerHandle] = {}
        self._attaching: set[asyncio.Task[None]] = set()

    async def listen(
        self, address: Address, make_protocol: Callable[[], ClientProtocol], *, is_shared: bool = False
    ) -> None:
        """Accept at `address`. `is_shared`: other processes of this user listen there, too, and the kernel gives each
        of them some of the connections. Raises SettingsError."""
        loop = asyncio.get_running_loop()
        try:
            flags, kind = socket.AI_PASSIVE, socket.SOCK_STREAM
            infos = await loop.getaddrinfo(address.host, address.port, type=kind, flags=flags)
            bindable = dict.fromkeys((family, bound) for family, _, _, _, bound in infos)
            sockets = [listening_socket(family, bound, is_shared=is_shared) for family, bound in bindable]
            places = [_Place(listening, make_protocol) for listening in sockets]
        except OSError as error:
            raise SettingsError("listen", f"{address}: {error.strerror or error}; is it in use?") from error
        self._places += places
        for place in places:
            loop.add_reader(place.socket, self._accept, place)
        port = places[0].socket.getsockname()[1]
        self.addresses.append(f"{address.scheme}://{address.host}:{port}")

    def close(self) -> None:
        """Accept nobody any more. What is open stays."""
        for timer in self._paused.values():
            timer.cancel()
        self._paused.clear()
        for attaching in self._attaching:
            attaching.cancel()
        for place in self._places:
            asyncio.get_running_loop().remove_reader(place.socket)
            place.socket.close()
        self._places.clear()

    def admit(self, protocol: ClientProtocol, descriptor: int, address: str) -> bool:
        """A client that has come in at another port, as of HTTP: whether there is room for it as for one of these."""
        if descriptor >= self.descriptors.for_clients:
            self._refusals.warning("%s turned away: %s", address, _no_descriptors(self.descriptors.limit))
            return False
        if self._admission.is_full and not self._make_room("others are waiting"):
            return False
        protocol.peer = address
        self._admission.accepted(protocol, address, time.monotonic())
        return True

    # --- accepting

    def _accept(self, place: _Place) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self._admission.is_full and not self._make_room("others are waiting"):
                self._pause(place)
                return
            try:
                connection, peer = place.socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _SHORTAGES:
                    self._make_room(str(error.strerror))
                    self._pause(place)
                    return
                continue  # it went away while it waited: accept(2) hands over errors of the network
            if connection.fileno() >= self.descriptors.for_clients:
                connection.close()
                self._refusals.warning("%s turned away: %s", peer[0], _no_descriptors(self.descriptors.limit))
                self._make_room(_no_descriptors(self.descriptors.limit))
                self._pause(place)
                return
            self._take(place, connection, str(peer[0]))

    def _take(self, place: _Place, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        protocol = place.make_protocol()
        self._admission.accepted(protocol, address, time.monotonic())
        task = asyncio.get_running_loop().create_task(self._attach(protocol, connection, address))
        protocol.coming, protocol.peer = task, address
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, protocol: ClientProtocol, connection: socket.socket, address: str) -> None:
        loop, tls = asyncio.get_running_loop(), protocol.engines.tls
        try:
            if tls is None:
                await loop.connect_accepted_socket(lambda: protocol, connection)
            else:
                limit_s = protocol.engines.handshake_timeout_s
                await loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls, ssl_handshake_timeout=limit_s)
        except OSError as error:  # the peer was quicker, or speaks no TLS that is let in
            if tls is not None:
                self._refusals.warning("%s dropped in the handshake of TLS: %s", address, problem_of(error))
            self._admission.gone(protocol)
            connection.close()
        except asyncio.CancelledError:  # somebody else has its place
            self._admission.gone(protocol)
            connection.close()
            raise
        finally:
            protocol.coming = None

    def _make_room(self, reason: str) -> bool:
        """Whether somebody had to go."""
        connection = self._admission.next_to_go(time.monotonic())
        if connection is None:
            return False
        self._admission.gone(connection)
        self._refusals.warning("%s dropped before its AMQP open: %s", connection.peer, reason)
        connection.abort()
        return True

    def _pause(self, place: _Place) -> None:
        """Who waits goes on waiting in the kernel; a listener that stays readable must not keep the loop busy."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(place.socket)
        self._paused[place] = loop.call_later(PAUSE_S, self._resume, place)

    def _resume(self, place: _Place) -> None:
        del self._paused[place]
        asyncio.get_running_loop().add_reader(place.socket, self._accept, place)


def listening_socket(family: int, bound: tuple[object, ...], *, is_shared: bool = False) -> socket.socket:
    """A socket that listens at one address of the machine; `is_shared`: beside others of this user that say the same of
    theirs. Raises OSError. Source: Linux, socket(7), SO_REUSEPORT."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(bound)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _no_descriptors(limit: int) -> str:
    return f"of {limit} file descriptors no more are left for clients; raise LimitNOFILE, or lower max-connections"
