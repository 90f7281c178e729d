"""Asking a broker on another machine: the requests of the control socket, as messages to its node `$management`.

A request is a message with the application properties operation=`control` and type=`org.qpid-ha.broker` whose body is
the text of a JSON-RPC 2.0 request; the body of the answer is the text of the reply.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import proton
import proton.reactor
import proton.utils
from proton import _reactor

from qpid_ha_agent.broker_address import AddressError
from qpid_ha_agent.control import NotAllowed, RequestRefused, TimedOut, Unreachable, refusal_of
from qpid_ha_agent.login import HOW_TO_LOG_IN, Login
from qpid_ha_config.addresses import Address
from qpid_ha_config.closing import Closing

NODE, OPERATION, TYPE = "$management", "control", "org.qpid-ha.broker"
ADMIN_PROPERTY = "qpid.ha-admin"
"""In the open: let in everywhere, also where ordinary clients are sent to the primary."""
OK, UNAUTHORIZED = 200, 401
NOT_HERE = -32000


class RemoteControlClient(Closing):
    """As `ControlClient`, through one AMQP connection, made at the first call; each step takes `timeout_s` at most."""

    def __init__(self, broker: Address, login: Login | None = None, timeout_s: float = 10.0) -> None:
        self.broker = broker
        self.timeout_s = timeout_s
        self._login = login or Login(broker.user, None)
        self._connection: Any = None
        self._requests: Any = None
        self._replies: Any = None
        self._last_identity = 0

    def close(self) -> None:
        """Drop the connection, if there is one."""
        connection, self._connection, self._requests, self._replies = self._connection, None, None, None
        if connection is not None:
            with suppress(proton.ProtonException, OSError):
                connection.close()

    def call(self, method: str, **params: object) -> object:
        """The result of `method`. Raises Refused with the broker's reason, TimedOut or Unreachable."""
        self._last_identity += 1
        request = {"jsonrpc": "2.0", "id": self._last_identity, "method": method, "params": params}
        return self._read(self._guarded(lambda: self._exchange(json.dumps(request))))

    def stream(self, method: str, **params: object) -> Iterator[object]:
        """Not through AMQP: always raises Refused."""
        raise RequestRefused(NOT_HERE, f"{method} is told on the machine of the broker only; run this there")

    def _exchange(self, request: str) -> proton.Message:
        """The answer comes to a link of its own: a backup makes no temporary queue for it."""
        if self._connection is None:
            self._connect()
        identity, properties = uuid.uuid4().hex, {"operation": OPERATION, "type": TYPE}
        self._requests.send(
            proton.Message(body=request, properties=properties, id=identity, reply_to=self._replies.name)
        )
        while True:
            answer: proton.Message = self._replies.receive(timeout=self.timeout_s)
            if answer.correlation_id == identity:
                return answer

    def _connect(self) -> None:
        properties = {proton.symbol(ADMIN_PROPERTY): True}
        self._connection = open_connection(self.broker, self._login, self.timeout_s, properties=properties)
        self._replies = self._connection.create_receiver(NODE, name=f"replies-{uuid.uuid4().hex}", credit=10)
        self._requests = self._connection.create_sender(NODE)

    def _guarded(self, step: Callable[[], proton.Message]) -> proton.Message:
        """`step`; whatever Proton says is told in our terms, and ends the connection."""
        try:
            return step()
        except proton.Timeout:
            self._hang_up()
            raise TimedOut(f"no answer from {self.broker} within {self.timeout_s:g} s") from None
        except (proton.ProtonException, proton.utils.LinkDetached, OSError) as error:
            self.close()
            text = str(error)
            if "unauthorized-access" in text:
                raise NotAllowed(f"{self.broker} does not let {self._who()} administer it: {text}") from None
            raise Unreachable(f"cannot reach a broker at {self.broker}: {text}") from None

    def _hang_up(self) -> None:
        """On a broker that does not answer: it answers no close either, for which Proton waits without an end."""
        connection = self._connection
        if connection is not None and connection.conn is not None and connection.conn.transport is not None:
            connection.conn.transport.close_tail()
            connection.timeout = 0.0
        self.close()

    def _who(self) -> str:
        return self._login.user or f"anybody without a login ({HOW_TO_LOG_IN})"

    def _read(self, message: proton.Message) -> object:
        properties: dict[Any, Any] = message.properties or {}
        status = properties.get("statusCode")
        if status != OK:
            text = f"{self.broker}: {properties.get('statusDescription', 'refused')}"
            if status != UNAUTHORIZED:
                raise RequestRefused(NOT_HERE, text)
            raise NotAllowed(text if self._login.user else f"{text} ({HOW_TO_LOG_IN})")
        try:
            reply = json.loads(str(message.body))
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise Unreachable(f"what listens at {self.broker} is no qpid-ha broker")
        if "result" in reply:
            result: object = reply["result"]
            return result
        error = reply.get("error")
        if not isinstance(error, dict):
            raise Unreachable(f"what listens at {self.broker} is no qpid-ha broker")
        raise refusal_of(error)


def open_connection(broker: Address, login: Login, timeout_s: float, **options: Any) -> Any:
    """A blocking connection of Proton's; each step takes `timeout_s` at most. `options`: as its container takes them.

    Raises AddressError, and what Proton raises.
    """
    return proton.utils.BlockingConnection(
        str(broker), timeout=timeout_s, container=_make_container(), **connect_options(broker, login), **options
    )


def connect_options(broker: Address, login: Login) -> dict[str, Any]:
    """Of a container's `connect`: who we are, and how TLS is spoken. A password goes in clear over TLS alone.

    Raises AddressError.
    """
    return {
        "user": login.user or None,
        "password": login.password if login.user else None,
        "allow_insecure_mechs": False,
        "ssl_domain": _tls_domain(login) if broker.is_tls else None,
    }


def _make_container() -> Any:
    """Proton's, without the two domains for TLS that each one makes for itself, as where Proton has no TLS: one takes
    20 to 60 ms of processor, and `open_connection` has its own where it is needed."""
    container: Any = proton.reactor.Container(impl=None)  # that much of it is left out: what follows is the rest
    container.ssl = container.trigger = container.user = container.password = container.allowed_mechs = None
    container.global_handler = _reactor.GlobalOverrides(container.global_handler)
    container.container_id = str(uuid.uuid4())
    container.allow_insecure_mechs = container.sasl_enabled = True
    return container


def _tls_domain(login: Login) -> Any:
    """How a broker's certificate is checked, and which one is shown to it. Raises AddressError for files of no use."""
    tls, domain = login.tls, proton.SSLDomain(proton.SSLDomain.MODE_CLIENT)
    try:
        if tls.ca:
            domain.set_trusted_ca_db(tls.ca)
        if tls.certificate and tls.key:
            domain.set_credentials(tls.certificate, tls.key, None)
        domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER_NAME)
    except proton.SSLException as error:
        raise AddressError(f"TLS cannot use {', '.join(filter(None, tls))} of the configuration: {error}") from None
    return domain
