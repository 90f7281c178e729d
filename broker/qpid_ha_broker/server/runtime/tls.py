"""TLS below the broker's sockets, by Python's `ssl` on the loop: whom we show ourselves to, and whom we believe.

Proton has TLS of its own, which the broker does not use: what that has decrypted it gives to AMQP alone. So frames of
other brokers could not come as a stream, and what Proton does not know of AMQP (`amqp.wire.peer_input`) was not there
for those who encrypt.

| whose certificate | has to be signed by | has to be for |
| --- | --- | --- |
| a client's, where it is demanded | `tls.ca` | anybody: its subject is the user |
| another broker's | `tls.ca` or the system's authorities | the host that was called |
| a remote node's | its own `ca`, else as another broker's | the same |
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from qpid_ha_broker.amqp.wire.peer_input import Security
from qpid_ha_broker.server.runtime.certificates import is_for, subject_of
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import TlsSettings

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def security_of(encrypted: ssl.SSLObject) -> Security:
    """What TLS has found out about the other end. After the handshake."""
    der, cipher = encrypted.getpeercert(binary_form=True), encrypted.cipher()
    return Security(cipher[2] if cipher else 0, None if der is None else subject_of(der))


def listener_context(tls: TlsSettings) -> ssl.SSLContext:
    """For those who connect to us, from the files as they are now. Raises SettingsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        _restrict(context, tls)
        _show_ourselves(context, tls)
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise SettingsError("tls.certificate", f"{tls.certificate}: TLS cannot use it: {error}") from error
    if tls.require_client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Callers:
    """Contexts for those to whom we connect, each kept until a file of it is another one: to read the system's
    authorities alone takes longer than to connect."""

    def __init__(self) -> None:
        self._kept: dict[object, tuple[object, ssl.SSLContext]] = {}

    def context(self, tls: TlsSettings, ca: Path | None, *, shows_ourselves: bool) -> ssl.SSLContext:
        """From the files as they are now. Raises SettingsError."""
        key, versions = (tls, ca, shows_ourselves), file_versions(tls.certificate, tls.key, ca)
        kept = self._kept.get(key)
        if kept is None or kept[0] != versions:
            self._kept[key] = kept = versions, _caller_context(tls, ca, shows_ourselves=shows_ourselves)
        return kept[1]


def _caller_context(tls: TlsSettings, ca: Path | None, *, shows_ourselves: bool) -> ssl.SSLContext:
    """The other end's name is for `verify_name`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        _restrict(context, tls)
        context.set_default_verify_paths()
        if shows_ourselves and tls.certificate is not None and tls.key is not None:
            _show_ourselves(context, tls)
        if ca is not None:
            context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise SettingsError("tls.ca", f"{ca or 'the system'}: TLS to other brokers cannot use it: {error}") from error
    return context


def verify_name(encrypted: ssl.SSLObject, host: str) -> None:
    """Before anything is said to the other end. Raises `ssl.SSLCertVerificationError`."""
    der = encrypted.getpeercert(binary_form=True)
    if der is None or not is_for(der, host):
        whose = "nobody" if der is None else subject_of(der)
        raise ssl.SSLCertVerificationError(f"its certificate is not for {host} but for {whose}")


def problem_of(error: OSError) -> str:
    """Of a connection that did not come about, in words for who has set it up."""
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_message:
        return f"its certificate is not accepted: {error.verify_message}; renew it, or correct tls.ca"
    if isinstance(error, ssl.SSLCertVerificationError):
        return text
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text or "HTTP_REQUEST" in text:
        return "it speaks no TLS"
    if isinstance(error, ssl.SSLEOFError) or (isinstance(error, ConnectionError) and not text):
        return "it ended the connection in the handshake of TLS"
    if "ALERT" in text.upper():
        return f"it does not accept our TLS or certificate: {getattr(error, 'reason', None) or text}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or text}"
    return str(error.strerror or error)


def file_versions(*files: Path | None) -> tuple[object, ...]:
    """Others when the files are others."""
    return tuple(None if file is None else _version(file) for file in files)


def _version(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _restrict(context: ssl.SSLContext, tls: TlsSettings) -> None:
    versions = [_VERSIONS[name] for name in tls.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if tls.ciphers is not None:
        context.set_ciphers(tls.ciphers)


def _show_ourselves(context: ssl.SSLContext, tls: TlsSettings) -> None:
    context.load_cert_chain(str(tls.certificate), tls.key, password=lambda: "")
