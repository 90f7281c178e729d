"""Engines for a listener's clients and for channels to other brokers: frame size, idle time-out, SASL and TLS."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import proton

from qpid_ha_broker.amqp.wire.engine import Engine, OnFault, Workspace, restrict_tls
from qpid_ha_broker.server.runtime.cluster_secret import ClusterSecret
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.loading import certificate_problems, check_files
from qpid_ha_config.remote_nodes import RemoteLogin
from qpid_ha_config.settings import BrokerSettings, TlsSettings, read_password_file

_SASL_SERVICE = "qpid-ha"
_PROOFS = "SCRAM-SHA-512 SCRAM-SHA-256 SCRAM-SHA-1"
"""Of a password, which they do not tell."""
_LOGINS = f"{_PROOFS} PLAIN"
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
    ) -> None:
        self._current = current
        self._on_fault = on_fault
        self._workspace = Workspace()
        settings = current()
        self._mechanisms = settings.mechanisms_for(address)
        self._insecure_plain = "PLAIN" in self._mechanisms and not address.is_tls
        self._sasl = sasl
        self._domain = server_domain(settings.tls) if address.is_tls else None
        if sasl is not None and not proton.SASL.extended():
            problem = "this build of Proton lacks Cyrus SASL; install libsasl2-dev and build python-qpid-proton again"
            raise SettingsError("sasl.users-db", problem)

    @property
    def is_tls(self) -> bool:
        """Whether clients of this listener speak TLS."""
        return self._domain is not None

    def use_domain(self, domain: proton.SSLDomain) -> None:
        """Show new clients the certificate of `domain`. Who is connected keeps what he has."""
        self._domain = domain

    def make(self) -> Engine:
        """An engine for a new client."""
        settings = self._current()
        transport = proton.Transport(proton.Transport.SERVER)
        transport.max_frame_size = settings.max_frame_bytes
        transport.channel_max = settings.max_sessions_per_connection - 1
        if settings.idle_timeout_s:
            transport.idle_timeout = settings.idle_timeout_s
        if self._domain is not None:
            proton.SSL(transport, self._domain)
        sasl = transport.sasl()
        if self._sasl is not None:
            sasl.config_name(_SASL_SERVICE)
            sasl.config_path(str(self._sasl.path))
        sasl.allowed_mechs(" ".join(self._mechanisms))
        sasl.allow_insecure_mechs = self._insecure_plain
        transport.require_auth("ANONYMOUS" not in self._mechanisms)
        engine = Engine(transport, proton.Connection(), self._workspace)
        engine.on_fault = self._on_fault
        engine.input.may_stream = settings.ha.frame_stream and not self.is_tls
        return engine


class Engines:
    """What the listeners have in common: the configuration for Cyrus, and certificates, which are read together."""

    def __init__(self, current: Callable[[], BrokerSettings], on_fault: OnFault | None = None) -> None:
        self._current = current
        self._on_fault = on_fault
        self._factories: list[EngineFactory] = []
        self._sasl: SaslConfiguration | None = None

    def start(self) -> None:
        """Before the first listener."""
        users_db = self._current().sasl.users_db
        if users_db is not None:
            self._sasl = SaslConfiguration(users_db.absolute())

    def for_listener(self, address: Address) -> EngineFactory:
        """Raises SettingsError when TLS or SASL cannot work."""
        factory = EngineFactory(self._current, address, self._sasl, self._on_fault)
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
        listeners = [factory for factory in self._factories if factory.is_tls]
        for factory, domain in [(factory, server_domain(settings.tls)) for factory in listeners]:
            factory.use_domain(domain)
        return len(listeners)

    def close(self) -> None:
        """Nobody is let in any more."""
        if self._sasl is not None:
            self._sasl.close()


def server_domain(tls: TlsSettings) -> proton.SSLDomain:
    """What `amqps` listeners need, read from the files as they are now. Raises SettingsError."""
    domain = proton.SSLDomain(proton.SSLDomain.MODE_SERVER)
    try:
        restrict_tls(domain, tls.versions, tls.ciphers)
        domain.set_credentials(str(tls.certificate), str(tls.key), None)
        if tls.ca is not None:
            domain.set_trusted_ca_db(str(tls.ca))
        if tls.require_client_certificate:
            domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER, str(tls.ca))
    except proton.SSLException as error:
        raise SettingsError("tls.certificate", f"{tls.certificate}: TLS cannot use it: {error}") from error
    return domain


class PeerEngines:
    """Makes our end of channels to other brokers: logs in as `ha.username`, or with our certificate, or as nobody."""

    def __init__(self, current: Callable[[], BrokerSettings], on_fault: OnFault | None = None) -> None:
        self._current = current
        self._on_fault = on_fault
        self._workspace = Workspace()

    def __call__(self, address: Address) -> Engine:
        """An engine for a connection to `address`. Raises SettingsError when TLS or the password cannot work."""
        settings = self._current()
        ha = settings.ha
        engine = client_engine(
            user=ha.username or "",
            password=ha.read_password() or "",
            mechanism=ha.mechanism or "",
            domain=_client_domain(settings) if address.is_tls else None,
            hostname=address.host,
            insecure_plain=address.is_loopback or settings.sasl.allow_insecure_plain,
            idle_timeout_s=settings.idle_timeout_s,
            workspace=self._workspace,
            on_fault=self._on_fault,
        )
        engine.proof = proof_for(ha.username, address)
        engine.input.may_stream = ha.frame_stream and not address.is_tls
        return engine


class RemoteEngines:
    """Makes our end of connections to brokers outside of the cluster."""

    def __init__(self, current: Callable[[], BrokerSettings], on_fault: OnFault | None = None) -> None:
        self._current = current
        self._on_fault = on_fault
        self._workspace = Workspace()

    def __call__(self, address: Address, login: RemoteLogin) -> Engine:
        """An engine for a connection to `address`. Raises SettingsError when TLS or the password cannot work."""
        settings = self._current()
        mechanisms, in_clear = remote_mechanisms(settings, address, login)
        return client_engine(
            user=login.user,
            password="" if login.password_file is None else _password_in(login.password_file),
            mechanism=mechanisms,
            domain=_verifying_domain(settings.tls, login.ca) if address.is_tls else None,
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


def _verifying_domain(tls: TlsSettings, ca: Path | None) -> proton.SSLDomain:
    """For those who are shown no certificate of ours."""
    domain = proton.SSLDomain(proton.SSLDomain.MODE_CLIENT)
    trusted = ca or tls.ca
    try:
        restrict_tls(domain, tls.versions, tls.ciphers)
        if trusted is not None:
            domain.set_trusted_ca_db(str(trusted))
        domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER_NAME)
    except proton.SSLException as error:
        raise SettingsError("ca", f"{trusted or 'the system'}: TLS to other brokers cannot use it: {error}") from error
    return domain


def client_engine(
    *,
    user: str = "",
    password: str = "",
    mechanism: str = "",
    domain: proton.SSLDomain | None = None,
    hostname: str = "",
    insecure_plain: bool = False,
    idle_timeout_s: float = 0,
    workspace: Workspace | None = None,
    on_fault: OnFault | None = None,
) -> Engine:
    """An engine that connects. With a user it never falls back to being nobody.

    `hostname`: what the peer's certificate has to say. `mechanism`: one, or several, of which the strongest
    that the peer offers is used; empty: any.
    """
    transport = proton.Transport()
    transport.max_frame_size = _PEER_FRAME_BYTES
    if idle_timeout_s:
        transport.idle_timeout = idle_timeout_s
    if domain is not None:
        proton.SSL(transport, domain).peer_hostname = hostname
    connection = proton.Connection()
    connection.hostname = hostname
    if user:
        connection.user, connection.password = user, password
    sasl = transport.sasl()
    sasl.allowed_mechs(mechanism or (_LOGINS if user else "ANONYMOUS"))
    sasl.allow_insecure_mechs = insecure_plain
    engine = Engine(transport, connection, workspace)
    engine.on_fault = on_fault
    return engine


def _client_domain(settings: BrokerSettings) -> proton.SSLDomain:
    tls = settings.tls
    domain = proton.SSLDomain(proton.SSLDomain.MODE_CLIENT)
    try:
        restrict_tls(domain, tls.versions, tls.ciphers)
        if tls.certificate is not None and tls.key is not None:
            domain.set_credentials(str(tls.certificate), str(tls.key), None)
        if tls.ca is not None:
            domain.set_trusted_ca_db(str(tls.ca))
        domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER_NAME)
    except proton.SSLException as error:
        raise SettingsError(
            "tls.ca", f"{tls.ca or 'the system'}: TLS to other brokers cannot use it: {error}"
        ) from error
    return domain
