"""One connection to a broker over a blocking socket: the AMQP engine of the broker, seen from the other end."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import proton

from qpid_ha_broker.amqp.wire.conditions import LINK_REDIRECT, RESOURCE_LOCKED, SOLE_CONNECTION
from qpid_ha_broker.amqp.wire.engine import Engine, Receiving, Sending
from qpid_ha_broker.amqp.wire.values import listed
from qpid_ha_config.addresses import Address
from qpid_ha_pipeline.amqp.brokers import Cluster
from qpid_ha_pipeline.errors import PipelineError

_INPUT_BYTES: Final = 256 * 1024
_FRAME_BYTES: Final = 64 * 1024
_LOGINS: Final = "SCRAM-SHA-256 SCRAM-SHA-1 PLAIN"
_REFUSED_LOGIN: Final = (proton.SASL.AUTH, proton.SASL.PERM)
_UNAUTHORIZED: Final = "amqp:unauthorized-access"


class BrokerLost(Exception):
    """This broker does not serve us, now or any more; another one may. `instead`: the primary, where it says so."""

    def __init__(self, text: str, instead: Address | None = None) -> None:
        super().__init__(text)
        self.instead = instead


class LedElsewhere(BrokerLost):
    """Of one node: another broker leads its resource set, `instead` where that is known. The connection goes on."""


class LinkRefused(Exception):
    """The broker has ended a link, and says why; the connection goes on."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{description or 'no reason given'} ({condition})")
        self.condition = condition


class BrokerConnection:
    """Open after `__init__`, which raises BrokerLost or, for a wrong login, PipelineError."""

    def __init__(self, broker: Address, cluster: Cluster) -> None:
        self.broker = broker
        self._cluster = cluster
        self._end: BrokerLost | PipelineError | None = None
        self._refused: dict[Any, LinkRefused | LedElsewhere] = {}
        self._is_open = False
        self._input = memoryview(bytearray(_INPUT_BYTES))
        self.engine = self._make_engine()
        try:
            self._socket = socket.create_connection((broker.host, broker.port), cluster.reply_timeout_s)
        except OSError as error:
            self.engine.close()
            raise BrokerLost(f"{broker}: {error.strerror or error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection = self.engine.connection
            connection.open()
            self.session: Any = connection.session()
            self.session.open()
            self.wait(lambda: self._is_open and bool(self.session.state & proton.Endpoint.REMOTE_ACTIVE))
        except BaseException:
            self.close()
            raise

    def _make_engine(self) -> Engine:
        broker, login = self.broker, self._cluster.login
        transport = proton.Transport()
        transport.max_frame_size = _FRAME_BYTES
        if broker.is_tls:
            proton.SSL(transport, self._tls_domain()).peer_hostname = broker.host
        connection = proton.Connection()
        connection.container = f"qpid-ha-pipeline-{uuid.uuid4().hex[:12]}"
        connection.hostname = broker.host
        connection.properties = {proton.symbol("product"): "qpid-ha-pipeline"}
        connection.desired_capabilities = [proton.symbol(SOLE_CONNECTION)]  # a refusal comes with its reason
        if login.user:
            connection.user, connection.password = login.user, login.password
        self._sasl = transport.sasl()
        self._sasl.allowed_mechs(_LOGINS if login.user else "ANONYMOUS")
        self._sasl.allow_insecure_mechs = self._cluster.may_read_password(broker)
        return Engine(transport, connection)

    def _tls_domain(self) -> proton.SSLDomain:
        domain = proton.SSLDomain(proton.SSLDomain.MODE_CLIENT)
        try:
            if self._cluster.ca_file:
                domain.set_trusted_ca_db(self._cluster.ca_file)
            domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER_NAME)
        except proton.SSLException as error:
            raise PipelineError(f"caFile: TLS cannot use {self._cluster.ca_file}: {error}") from None
        return domain

    # --- bytes

    def wait(self, is_reached: Callable[[], object], link: Any = None) -> None:
        """Exchange bytes until it is so. Raises BrokerLost, LinkRefused or PipelineError; also when nothing comes.

        `link`: whose wait it is. Where another one is led elsewhere, that is for who uses that.
        """
        limit_s = self._cluster.reply_timeout_s
        deadline = time.monotonic() + limit_s
        self.flush()
        while not is_reached():
            self._check(link)
            if self._read(max(deadline - time.monotonic(), 0.001)):
                deadline = time.monotonic() + limit_s
            elif time.monotonic() >= deadline:
                raise BrokerLost(f"{self.broker} says nothing for {limit_s:g} s")
            self.flush()
        self._check(link)

    def _check(self, link: Any) -> None:
        if self._end is not None:
            raise self._end
        for refused, reason in self._refused.items():
            if not isinstance(reason, LedElsewhere) or (link is not None and refused == link._impl):
                raise reason

    def _read(self, timeout_s: float) -> bool:
        self._socket.settimeout(timeout_s)
        try:
            size = self._socket.recv_into(self._input)
        except TimeoutError:
            return False
        except OSError as error:
            raise BrokerLost(f"{self.broker}: {error.strerror or error}") from None
        self.engine.push(bytes(self._input[:size]))
        self.engine.process(self)
        if self._sasl.outcome in _REFUSED_LOGIN:
            self.failed(_UNAUTHORIZED, "")
        if not size:
            self._ended(BrokerLost(f"{self.broker} has closed the connection"))
        return True

    def flush(self) -> None:
        """Write what there is to write, heartbeats too. Raises BrokerLost."""
        self.engine.tick(int(time.monotonic() * 1000))
        data = self.engine.take_output()
        if data:
            try:
                self._socket.settimeout(self._cluster.reply_timeout_s)
                self._socket.sendall(data)
            except OSError as error:
                self.engine.process(self)
                raise self._end or BrokerLost(f"{self.broker}: {error.strerror or error}") from None

    def close(self) -> None:
        """Say goodbye as far as somebody listens, and drop the socket."""
        self.engine.connection.close()
        try:
            self._socket.settimeout(1.0)
            self._socket.sendall(self.engine.take_output())
        except OSError:
            pass  # who does not listen need not be told
        self._socket.close()
        self.engine.close()

    # --- links

    def receiver(self, address: str, handler: Receiving, *, name: str = "", **source: Any) -> Any:
        """A link that is attached. `source`: attributes of it, and `filters`."""
        link = self.session.receiver(name or uuid.uuid4().hex)
        link.source.address = address
        filters = source.pop("filters", None)
        for attribute, value in source.items():
            setattr(link.source, attribute, value)
        if filters:
            link.source.filter.put_object(filters)
            link.snd_settle_mode = proton.Link.SND_SETTLED
        self.engine.attach_receiving(link, handler)
        self._attach(link)
        return link

    def sender(self, address: str | None, handler: Sending, *, coordinator: bool = False) -> Any:
        """A link that is attached."""
        link = self.session.sender(uuid.uuid4().hex)
        link.target.address = address
        if coordinator:
            link.target.type = proton.Terminus.COORDINATOR
        self.engine.attach_sending(link, handler)
        self._attach(link)
        return link

    def _attach(self, link: Any) -> None:
        link.open()
        try:
            self.wait(lambda: link.state & proton.Endpoint.REMOTE_ACTIVE, link)
            # A link that is refused is opened, too, and then closed with the reason, in the bytes that follow.
            remote = link.remote_source if link.is_receiver else link.remote_target
            if remote.type == proton.Terminus.UNSPECIFIED:
                self.wait(lambda: False, link)
        except LedElsewhere:
            self.end(link)
            raise

    def end(self, link: Any) -> None:
        """Close `link`; what is still on its way to it is dropped."""
        link.close()
        self.engine.detach(link)
        self._refused.pop(link._impl, None)

    # --- what the broker did: see engine.Handler

    def opened(self) -> None:
        self._is_open = True

    @property
    def offered(self) -> list[str]:
        """The capabilities that the broker's open offers."""
        return [str(name) for name in listed(self.engine.connection.remote_offered_capabilities)]

    def closed(self) -> None:
        condition = self.engine.connection.remote_condition
        name = condition.name if condition else ""
        text = (condition.description if condition else None) or name or "no reason given"
        instead = broker_in(condition.info, self.broker) if condition else None
        self._ended(BrokerLost(f"{self.broker}: {text}", instead))

    def failed(self, name: str, description: str) -> None:
        if name == _UNAUTHORIZED:
            who = self._cluster.login.user or "anybody without a login"
            self._ended(
                PipelineError(f"{self.broker} does not let {who} in: {description or 'wrong user or password'}")
            )
        else:
            self._ended(BrokerLost(f"{self.broker}: {description or name}"))

    def malformed(self, name: str, description: str) -> None:
        self._ended(BrokerLost(f"{self.broker} is no AMQP 1.0 broker, or expects TLS: {description}"))

    def session_opened(self, session: proton.Session) -> None:
        session.open()

    def session_closed(self, session: proton.Session) -> None:
        self._ended(BrokerLost(f"{self.broker} has ended the session"))

    def link_attached(self, link: proton.Link) -> None:
        """`_attach` sees it."""

    def link_detached(self, link: proton.Link, closed: bool) -> None:
        if link.state & proton.Endpoint.LOCAL_ACTIVE:
            condition = link.remote_condition
            name, text = (condition.name, condition.description) if condition else ("", "")
            if condition and name in (LINK_REDIRECT, RESOURCE_LOCKED):
                instead = broker_in(condition.info, self.broker)
                self._refused[link._impl] = LedElsewhere(f"{self.broker}: {text or name}", instead)
            else:
                self._refused[link._impl] = LinkRefused(name or "amqp:internal-error", text or "")
        else:
            link.free()

    def _ended(self, reason: BrokerLost | PipelineError) -> None:
        self._end = self._end or reason


def broker_in(info: Any, asked: Address) -> Address | None:
    """Where a broker sends us, and what it says of that; reached in the way in which `asked` was."""
    known = {str(name): value for name, value in info.items()} if isinstance(info, dict) else {}
    host, port = known.get("network-host"), known.get("port")
    if not isinstance(host, str) or not isinstance(port, int):
        return None
    return Address(asked.scheme, host, int(port))
