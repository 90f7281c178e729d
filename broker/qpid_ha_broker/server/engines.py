"""Engines for a listener's clients: frame size, idle time-out, SASL and TLS as the settings say."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import proton

from qpid_ha_broker.amqp.engine import Engine, Workspace
from qpid_ha_broker.server.settings import BrokerSettings, ListenAddress, SettingsError

_SASL_SERVICE = "qpid-ha"


class SaslConfiguration:
    """The directory in which Cyrus finds its configuration: made for this process, gone with it.

    Cyrus reads such files only, and one process has one directory; so the broker writes it from its own settings.
    """

    def __init__(self, users_db: Path) -> None:
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
        self, current: Callable[[], BrokerSettings], address: ListenAddress, sasl: SaslConfiguration | None
    ) -> None:
        self._current = current
        self._workspace = Workspace()
        settings = current()
        self._mechanisms = settings.mechanisms_for(address)
        self._insecure_plain = "PLAIN" in self._mechanisms and not address.is_tls
        self._sasl = sasl
        self._domain = _tls_domain(settings) if address.is_tls else None
        if sasl is not None and not proton.SASL.extended():
            problem = "this build of Proton lacks Cyrus SASL; install libsasl2-dev and build python-qpid-proton again"
            raise SettingsError("sasl.users-db", problem)

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
        return Engine(transport, proton.Connection(), self._workspace)


def _tls_domain(settings: BrokerSettings) -> proton.SSLDomain:
    tls = settings.tls
    domain = proton.SSLDomain(proton.SSLDomain.MODE_SERVER)
    try:
        domain.set_credentials(str(tls.certificate), str(tls.key), None)
        if tls.ca is not None:
            domain.set_trusted_ca_db(str(tls.ca))
        if tls.require_client_certificate:
            domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER, str(tls.ca))
    except proton.SSLException as error:
        raise SettingsError("tls.certificate", f"{tls.certificate}: TLS cannot use it: {error}") from error
    return domain
