"""All settings of a broker, from its command line, its file and the defaults, and whether their files can be used.

Flags beat the file, the file beats the defaults. A configuration is read before anything is opened, so a mistake never
costs a running broker.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from qpid_ha_config.access_rules import parse_entries, read_file
from qpid_ha_config.certificates import CertificateError, validities
from qpid_ha_config.configuration import COMMAND_LINE, WrittenSettings
from qpid_ha_config.defaults import find_file
from qpid_ha_config.errors import ConfigError, SettingsError
from qpid_ha_config.remote_nodes import RemoteLogin
from qpid_ha_config.settings import (
    SECRETS,
    AccessSettings,
    BrokerSettings,
    RemoteSettings,
    TlsSettings,
    read_password_file,
)

CONTROL_SOCKET: Final = "control-socket"


def load_settings(
    config_file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> BrokerSettings:
    """The settings from flags (by dotted key), the file that `find_file` finds and the defaults. Raises ConfigError."""
    configuration = _read_all(config_file, flags or {}, environment)
    with configuration.blamed():
        settings = BrokerSettings.from_values(configuration.values)
        check_files(settings)
    return settings


def load_each(
    config_file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> list[BrokerSettings]:
    """As `load_settings`, of each broker that a machine has by this file: its workers, or the one that there is. Raises
    ConfigError."""
    given = flags or {}
    workers = _read_all(config_file, given, environment).worker_settings()
    if not workers.are_several or workers.number:
        return [load_settings(config_file, given, environment)]
    return [
        load_settings(config_file, {**given, "worker": number}, environment)
        for number in range(1, workers.there_are + 1)
    ]


def load_access(
    config_file: Path | None, flags: Mapping[str, object], environment: Mapping[str, str] = os.environ
) -> AccessSettings:
    """As `load_settings`, for a broker that runs, which takes over nothing else of what has changed meanwhile."""
    configuration = _read_all(config_file, flags, environment)
    with configuration.blamed():
        return BrokerSettings.from_values(configuration.values).access


def _read_all(config_file: Path | None, flags: Mapping[str, object], environment: Mapping[str, str]) -> WrittenSettings:
    configuration = WrittenSettings.of_flags(flags)
    for key in SECRETS:
        if configuration.has(key):
            problem = "every user of this machine can read a command line: put it into a file of mode 0600"
            raise ConfigError(COMMAND_LINE, key, f"{problem} and set {key}-file")
    configuration.check_each()
    path = find_file(config_file, environment)
    if path is not None:
        file = WrittenSettings.read(path)
        for key in SECRETS:
            if file.has(key):
                with file.blamed():
                    check_private(key, path)
        try:
            check_unchangeable("config", path)
        except SettingsError as error:
            raise ConfigError(path, "", error.problem) from None
        file.check_each()
        configuration = configuration.over(file)
    of_worker = configuration.of_worker()
    # What a process is found by is said to it as it is.
    named = WrittenSettings.of_flags({key: flags[key] for key in (CONTROL_SOCKET,) if key in flags})
    return named.over(of_worker)


def check_files(settings: BrokerSettings) -> None:
    """Raise SettingsError for a file that cannot be used, or may be used by others: of TLS, logins, the coordinator."""
    ha, tls, users_db, coordinator = settings.ha, settings.tls, settings.sasl.users_db, settings.coordinator
    ha.read_password()
    for key, file in (
        ("tls.certificate", tls.certificate),
        ("tls.key", tls.key),
        ("tls.ca", tls.ca),
        ("sasl.users-db", users_db),
        ("admin.tokens", settings.admin.tokens),
        ("ha.coordinator-password-file", coordinator.password_file),
        ("ha.coordinator-ca", coordinator.ca),
        ("ha.coordinator-certificate", coordinator.certificate),
        ("ha.coordinator-key", coordinator.key),
    ):
        if file is not None:
            _check_readable(key, file)
    for key, file in (
        ("tls.key", tls.key),
        ("sasl.users-db", users_db),
        ("admin.tokens", settings.admin.tokens),
        ("ha.password-file", ha.password_file),
        ("ha.coordinator-password-file", coordinator.password_file),
        ("ha.coordinator-key", coordinator.key),
    ):
        if file is not None:
            check_private(key, file)
    if coordinator.url.directory is not None:
        check_unshared("ha.coordinator", coordinator.url.directory)
    if settings.access.file is not None:
        check_unchangeable("acl.file", settings.access.file)
        try:
            read_file(settings.access.file)
        except ConfigError as error:
            raise SettingsError("acl.file", str(error)) from None
    elif settings.access.rules is not None:
        try:
            parse_entries(settings.access.rules)
        except ConfigError as error:
            raise SettingsError("acl.rules", str(error)) from None
    if settings.data_dir is not None:
        check_unshared("data-dir", settings.data_dir)
    if settings.audit.file is not None:
        check_unchangeable("audit.file", settings.audit.file)
        check_unshared("audit.file", settings.audit.file.parent)
    _check_tls(tls)
    _check_logins_elsewhere(settings.remote)
    if settings.admin.tokens is not None:
        from qpid_ha_config.tokens import read_tokens  # few brokers have tokens

        read_tokens(settings.admin.tokens)


def _check_logins_elsewhere(remote: RemoteSettings) -> None:
    for node in remote.nodes:
        _check_login("remote-nodes", node.name, node.login)
    for broker in remote.brokers:
        _check_login("remote-brokers", str(broker.addresses[0]), broker.login)


def _check_login(key: str, whose: str, login: RemoteLogin) -> None:
    for name, file in (("password-file", login.password_file), ("ca", login.ca)):
        if file is None:
            continue
        try:
            _check_readable(key, file)
            if name == "password-file":
                check_private(key, file)
                read_password_file(file)
            else:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError(key, f"{whose}: {name}: {file}: {_reason(error)}") from None
        except SettingsError as error:
            raise SettingsError(key, f"{whose}: {name}: {error.problem}") from None


def _check_readable(key: str, file: Path) -> None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        raise SettingsError(key, f"cannot read {file}: {error.strerror}") from None


def check_private(key: str, file: Path) -> None:
    """Raise SettingsError for a secret that every user of this machine may read or replace; its group may."""
    check_place(key, file)
    with contextlib.suppress(OSError):
        status = file.stat()
        if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IRWXO:
            raise SettingsError(key, f"{file} is a secret and open to all users: chmod o-rwx {file}")


def check_unchangeable(key: str, file: Path) -> None:
    """Raise SettingsError for a file that every user of this machine may change or replace."""
    check_place(key, file)
    with contextlib.suppress(OSError):
        mode = file.stat().st_mode
        if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
            raise SettingsError(key, f"every user may change {file}: chmod o-w {file}")


def check_place(key: str, file: Path) -> None:
    """Raise SettingsError for a file that every user of this machine may put another one in place of: somewhere on the
    way to it, also to what a link leads to. Where only owners may rename, as in /tmp, they may not."""
    for way in dict.fromkeys((file.absolute(), file.resolve())):
        for directory in way.parents:
            with contextlib.suppress(OSError):
                mode = directory.stat().st_mode
                if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                    problem = f"every user may change what is in {directory}, and so replace {file}"
                    raise SettingsError(key, f"{problem}: chmod o-w {directory}")


def check_unshared(key: str, directory: Path) -> None:
    """Raise SettingsError for a directory in which every user of this machine may replace what the broker relies on."""
    check_place(key, directory)
    with contextlib.suppress(OSError):
        if directory.stat().st_mode & stat.S_IWOTH:
            raise SettingsError(key, f"every user may change what is in {directory}: chmod o-w {directory}")


def certificate_problems(settings: BrokerSettings, now_s: float) -> list[SettingsError]:
    """Certificates that are not valid now: with them no TLS connection comes about. Of a file with authorities one has
    to be valid, of the others all. What cannot be read is not looked at."""
    tls, coordinator, remote = settings.tls, settings.coordinator, settings.remote
    elsewhere = [*(("remote-nodes", node.login.ca) for node in remote.nodes),
                 *(("remote-brokers", broker.login.ca) for broker in remote.brokers)]  # fmt: skip
    files = [
        ("tls.certificate", tls.certificate, False),
        ("tls.ca", tls.ca, True),
        ("ha.coordinator-certificate", coordinator.certificate, False),
        ("ha.coordinator-ca", coordinator.ca, True),
        *((key, file, True) for key, file in elsewhere),
    ]
    errors = []
    for key, file, is_of_authorities in files:
        if file is None:
            continue
        with contextlib.suppress(OSError, CertificateError):
            text = file.read_text(encoding="ascii", errors="replace")
            problems = [validity.problem(now_s) for validity in validities(text)]
            wrong = [problem for problem in problems if problem]
            if wrong and (not is_of_authorities or len(wrong) == len(problems)):
                errors.append(SettingsError(key, f"{file}: {wrong[0]}"))
    return errors


def _check_tls(tls: TlsSettings) -> None:
    """A passphrase is answered with nothing: OpenSSL would ask for it on the terminal, and wait there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if tls.certificate is not None and tls.key is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            pair = f"{tls.certificate} and {tls.key}"
            problem = f"{pair} are not a certificate in PEM form and its key without a passphrase ({_reason(error)})"
            raise SettingsError("tls.certificate", problem) from None
    if tls.ciphers is not None:
        try:
            context.set_ciphers(tls.ciphers)
        except ssl.SSLError:
            problem = f"OpenSSL knows none of {tls.ciphers!r}; see `openssl ciphers`"
            raise SettingsError("tls.ciphers", problem) from None
    if tls.ca is not None:
        try:
            context.load_verify_locations(tls.ca)
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError("tls.ca", f"{tls.ca} holds no certificate in PEM form ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)
