"""Engines for a listener's clients and for channels to other brokers: frame size, idle time-out, SASL; and what their
sockets speak below them (`tls`)."""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import proton

from qpid_ha_broker.access.logins import Logins
from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.engine import Engine, OnFault, Workspace
from qpid_ha_broker.amqp.wire.peer_input import Security
from qpid_ha_broker.amqp.wire.sasl_server import HEADER, SaslServer, offered_mechanisms
from qpid_ha_broker.server.runtime.cluster_secret import ClusterSecret
from qpid_ha_broker.server.runtime.kept_logins import KeptLogins
from qpid_ha_broker.server.runtime.password_checks import PasswordChecks
from qpid_ha_broker.server.runtime.tls import Callers, listener_context
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.loading import certificate_problems, check_files
from qpid_ha_config.remote_nodes import RemoteLogin
from qpid_ha_config.settings import BrokerSettings, read_password_file

_SASL_SERVICE = "qpid-ha"
_PROOFS = "SCRAM-SHA-512 SCRAM-SHA-256 SCRAM-SHA-1"
"""Of a password, which they do not tell."""
_LOGINS = f"{_PROOFS} PLAIN"
_LOGIN_SECRET = secrets.token_bytes(32)
"""By which a process answers for users who are not there: always alike, so that nobody learns who is."""
_PEER_FRAME_BYTES = 64 * 1024
"""Of an AMQP frame from another broker. Proton moves its buffers often: larger ones cost it more per byte."""


class SaslConfiguration:
    """The directory in which Cyrus finds its configuration: made for this process, gone with it.

    Cyrus reads such files only, and one process has one directory; so the broker writes it from its own settings.
    """

    def __init__(self, users_db: Path) -> None:
        import tempfile  # with what it imports 2 ms of every start, and few brokers have users

        self._directory = tempfile.TemporaryDirectory(prefix="qpid-ha-sasl-")
        self.path = Path(self._directory.name)
        lines = ("pwcheck_method: auxprop", "auxprop_plugin: sasldb", f"sasldb_path: {users_db}")
        (self.path / f"{_SASL_SERVICE}.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Remove the directory."""
        self._directory.cleanup()


class EngineFactory:
    """Makes the engine for each client of one listener. Raises SettingsError when TLS or SASL cannot work."""

    def __init__(
        self,
        current: Callable[[], BrokerSettings],
        address: Address,
        sasl: SaslConfiguration | None,
        on_fault: OnFault | None = None,
        logins: Logins | None = None,
        password_checks: PasswordChecks | None = None,
    ) -> None:
        """`logins`: the users of the cluster; None: there are none, and there is no cluster."""
        self.password_checks = password_checks or PasswordChecks()
        self._current = current
        self._on_fault = on_fault
        self._logins = logins
        self._others: tuple[str, ...] | None = None
        """The mechanisms that Proton offers here, but for EXTERNAL; None: it has not been asked."""
        self._workspace = Workspace()
        settings = current()
        self._mechanisms = settings.mechanisms_for(address)
        self._for_users = settings.sasl.for_users_of_cluster(address) if settings.ha.cluster else ()
        self._insecure_plain = "PLAIN" in self._mechanisms and not address.is_tls
        self._sasl = sasl
        self.tls = listener_context(settings.tls) if address.is_tls else None
        """What the sockets of this listener speak. New clients are shown the certificate that is in it then."""
        if sasl is not None and not proton.SASL.extended():
            problem = "this build of Proton lacks Cyrus SASL; install libsasl2-dev and build python-qpid-proton again"
            raise SettingsError("sasl.users-db", problem)

    @property
    def handshake_timeout_s(self) -> float:
        """So long a client may take for TLS, and for all that comes before its AMQP open."""
        return self._current().handshake_timeout_s

    def make(self, security: Security | None = None) -> Engine:
        """An engine for a new client, of whom TLS has found that out."""
        settings = self._current()
        transport = self._transport(settings)
        engine = Engine(transport, proton.Connection(), self._workspace)
        engine.on_fault = self._on_fault
        engine.input.security = security
        engine.input.may_stream = settings.ha.frame_stream
        if self._logins is not None and self._for_users and self._logins.is_used:
            engine.input.login = self._login(settings, self._logins, security)
        return engine

    def _login(self, settings: BrokerSettings, logins: Logins, security: Security | None) -> SaslServer:
        """Of a client who may be a user of the cluster."""
        if self._others is None:
            asked = Engine(self._transport(settings), proton.Connection(), self._workspace)
            asked.push(HEADER)
            try:
                self._others = offered_mechanisms(asked.take_output())
            except DecodeError:  # it has none
                self._others = ()
            asked.close()
        has_file, own, others = self._sasl is not None, self._for_users, self._others
        if has_file:  # a client takes the strongest: not one that would not do for users in the file
            own = tuple(name for name in own if name in others) or own
        if "EXTERNAL" in self._mechanisms and security is not None and security.subject is not None:
            others = ("EXTERNAL", *others)
        nonce = secrets.token_urlsafe
        return SaslServer(logins, own, others, nonce, _LOGIN_SECRET, has_file=has_file)

    def _transport(self, settings: BrokerSettings) -> proton.Transport:
        transport = proton.Transport(proton.Transport.SERVER)
        transport.max_frame_size = settings.max_frame_bytes
        transport.channel_max = settings.max_sessions_per_connection - 1
        if settings.idle_timeout_s:
            transport.idle_timeout = settings.idle_timeout_s
        sasl = transport.sasl()
        if self._sasl is not None:
            sasl.config_name(_SASL_SERVICE)
            sasl.config_path(str(self._sasl.path))
        sasl.allowed_mechs(" ".join(self._mechanisms))
        sasl.allow_insecure_mechs = self._insecure_plain
        transport.require_auth("ANONYMOUS" not in self._mechanisms)
        return transport


class Engines:
    """What the listeners have in common: the configuration for Cyrus, and certificates, which are read together."""

    def __init__(
        self, current: Callable[[], BrokerSettings], on_fault: OnFault | None = None, kept: KeptLogins | None = None
    ) -> None:
        self._current = current
        self._on_fault = on_fault
        self.kept = kept or KeptLogins(lambda: True)
        """Whom the cluster lets in."""
        self._password_checks = PasswordChecks()
        self._factories: list[EngineFactory] = []
        self._sasl: SaslConfiguration | None = None

    def start(self) -> None:
        """Before the first listener."""
        users_db = self._current().sasl.users_db
        if users_db is not None:
            self._sasl = SaslConfiguration(users_db.absolute())

    def for_listener(self, address: Address) -> EngineFactory:
        """Raises SettingsError when TLS or SASL cannot work."""
        factory = EngineFactory(
            self._current, address, self._sasl, self._on_fault, self.kept.users, self._password_checks
        )
        self._factories.append(factory)
        return factory

    @property
    def certificate(self) -> Path | None:
        """The file with ours; None: no listener speaks TLS."""
        return self._current().tls.certificate

    def reload_tls(self) -> int:
        """Show new clients the certificates that are in the files now; returns for how many listeners.

        Raises SettingsError when they cannot be used; then everything stays as it was. Who is connected keeps what he
        has, and connections to other brokers read them whenever they are made.
        """
        settings = self._current()
        check_files(settings)
        for problem in certificate_problems(settings, time.time()):
            raise problem
        listeners = [factory for factory in self._factories if factory.tls is not None]
        for factory, context in [(factory, listener_context(settings.tls)) for factory in listeners]:
            factory.tls = context
        return len(listeners)

    def close(self) -> None:
        """Nobody is let in any more."""
        self._password_checks.cancel()
        if self._sasl is not None:
            self._sasl.close()


class PeerEngines:
    """Makes our end of channels to other brokers: logs in as `ha.username`, or with our certificate, or as nobody."""

    def __init__(self, current: Callable[[], BrokerSettings], on_fault: OnFault | None = None) -> None:
        self._current = current
        self._on_fault = on_fault
        self._workspace = Workspace()
        self._callers = Callers()

    def __call__(self, address: Address) -> Engine:
        """An engine for a connection to `address`. Raises SettingsError when TLS or the password cannot work."""
        settings = self._current()
        ha, tls = settings.ha, settings.tls
        engine = client_engine(
            user=ha.username or "",
            password=ha.read_password() or "",
            mechanism=ha.mechanism or "",
            encryption=self._callers.context(tls, tls.ca, shows_ourselves=True) if address.is_tls else None,
            hostname=address.host,
            insecure_plain=address.is_loopback or settings.sasl.allow_insecure_plain,
            idle_timeout_s=settings.idle_timeout_s,
            workspace=self._workspace,
            on_fault=self._on_fault,
        )
        engine.proof = proof_for(ha.username, address)
        engine.input.may_stream = ha.frame_stream
        return engine


class RemoteEngines:
    """Makes our end of connections to brokers outside of the cluster."""

    def __init__(self, current: Callable[[], BrokerSettings], on_fault: OnFault | None = None) -> None:
        self._current = current
        self._on_fault = on_fault
        self._workspace = Workspace()
        self._callers = Callers()

    def __call__(self, address: Address, login: RemoteLogin) -> Engine:
        """An engine for a connection to `address`. Raises SettingsError when TLS or the password cannot work."""
        settings = self._current()
        mechanisms, in_clear = remote_mechanisms(settings, address, login)
        tls, ca = settings.tls, login.ca or settings.tls.ca
        return client_engine(
            user=login.user,
            password="" if login.password_file is None else _password_in(login.password_file),
            mechanism=mechanisms,
            encryption=self._callers.context(tls, ca, shows_ourselves=False) if address.is_tls else None,
            hostname=address.host,
            insecure_plain=in_clear,
            idle_timeout_s=settings.idle_timeout_s,
            workspace=self._workspace,
            on_fault=self._on_fault,
        )


def proof_for(user: str | None, address: Address) -> str:
    """For a broker of a cluster of this machine that has no login. Raises SettingsError."""
    return "" if user or not address.is_loopback else ClusterSecret().proof()


def remote_mechanisms(settings: BrokerSettings, address: Address, login: RemoteLogin) -> tuple[str, bool]:
    """The SASL mechanisms by which to log in at `address`, and whether the password may be said there in clear, without
    TLS. A broker that the configuration does not name, to which another one has sent us, gets a proof of the password
    and never the password: it could log in with that at those that are named."""
    if not login.user:
        return "ANONYMOUS", False
    if not settings.remote.names(address):
        return _PROOFS, False
    return f"{_PROOFS} PLAIN", address.is_loopback or settings.sasl.allow_insecure_plain


def _password_in(file: Path) -> str:
    try:
        return read_password_file(file)
    except OSError as error:
        raise SettingsError("password-file", f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError("password-file", str(error)) from None


def client_engine(
    *,
    user: str = "",
    password: str = "",
    mechanism: str = "",
    encryption: ssl.SSLContext | None = None,
    hostname: str = "",
    insecure_plain: bool = False,
    idle_timeout_s: float = 0,
    workspace: Workspace | None = None,
    on_fault: OnFault | None = None,
) -> Engine:
    """An engine that connects. With a user it never falls back to being nobody.

    `hostname`: what its open says of whom it has called. `mechanism`: one, or several, of which the strongest
    that the peer offers is used; empty: any.
    """
    transport = proton.Transport()
    transport.max_frame_size = _PEER_FRAME_BYTES
    if idle_timeout_s:
        transport.idle_timeout = idle_timeout_s
    connection = proton.Connection()
    connection.hostname = hostname
    if user:
        connection.user, connection.password = user, password
    sasl = transport.sasl()
    sasl.allowed_mechs(mechanism or (_LOGINS if user else "ANONYMOUS"))
    sasl.allow_insecure_mechs = insecure_plain
    engine = Engine(transport, connection, workspace)
    engine.encryption = encryption
    engine.on_fault = on_fault
    return engine
