"""What an operator can decide about one broker.

Each field carries its key in the configuration file, what it accepts, and whether it may change while the
broker runs. Relations between fields are checked when the settings are made: a `BrokerSettings` that exists
is one that a broker can start with, as far as that can be told without opening files (`config_file` does).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from qpid_ha_broker.events.codec import MAX_RECORD_BYTES
from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.queue_arguments import FullPolicy, QueueArguments, check_settable
from qpid_ha_broker.model.state import MESSAGE_OVERHEAD
from qpid_ha_broker.server import defaults
from qpid_ha_broker.server.deduplication_settings import DeduplicationSettings
from qpid_ha_broker.server.ha_settings import ALIASES, HaSettings
from qpid_ha_broker.server.listen_address import ListenAddress
from qpid_ha_broker.server.setting_fields import Setting, SettingsError, described, shown
from qpid_ha_broker.server.setting_kinds import (
    AUTO,
    BOOLEAN,
    LISTEN,
    LOG_LEVELS,
    MECHANISM_LIST,
    PATH,
    QUEUE_ARGUMENTS,
    SIZE_OR_AUTO,
    TEXT,
    TLS_VERSION_LIST,
    TLS_VERSIONS,
    QueueArgument,
    choice,
    count,
    duration,
    size,
)
from qpid_ha_broker.server.store_settings import StoreSettings

__all__ = ["BrokerSettings", "HaSettings", "ListenAddress", "SaslSettings", "SettingsError", "TlsSettings", "nearest"]

KIB, MIB, TIB = 1024, 1024**2, 1024**4
LARGEST_MESSAGE = MAX_RECORD_BYTES - MIB
"""A message has to fit into a record of the log, with the names of the queues that it joins."""
TEMPORARY_QUEUE_SHARE = 128
"""Of memory-limit, by default: 64 readers that do not read at all fill it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_LONGEST_SOCKET_PATH = 107
"""Bytes that a Unix socket's address holds on Linux, without the final zero."""


@dataclass(frozen=True)
class TlsSettings:
    """Of `amqps` listeners, and of connections to other brokers. The files are PEM."""

    certificate: Path | None = field(default=None, metadata=described("tls.certificate", PATH))
    key: Path | None = field(default=None, metadata=described("tls.key", PATH))
    ca: Path | None = field(default=None, metadata=described("tls.ca", PATH))
    require_client_certificate: bool = field(
        default=False, metadata=described("tls.require-client-certificate", BOOLEAN)
    )
    versions: tuple[str, ...] = field(default=TLS_VERSIONS, metadata=described("tls.versions", TLS_VERSION_LIST))
    ciphers: str | None = field(default=None, metadata=described("tls.ciphers", TEXT))
    """For TLS 1.2, as OpenSSL writes them (`man openssl-ciphers`); None: the library's own. TLS 1.3 has its own."""


@dataclass(frozen=True)
class SaslSettings:
    """Who may log in, and how. `allow_anonymous` None: through loopback listeners only."""

    mechanisms: tuple[str, ...] | None = field(default=None, metadata=described("sasl.mechanisms", MECHANISM_LIST))
    users_db: Path | None = field(default=None, metadata=described("sasl.users-db", PATH))
    allow_anonymous: bool | None = field(default=None, metadata=described("sasl.allow-anonymous", BOOLEAN))
    allow_insecure_plain: bool = field(default=False, metadata=described("sasl.allow-insecure-plain", BOOLEAN))


_SECTIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "tls": TlsSettings,
        "sasl": SaslSettings,
        "store": StoreSettings,
        "deduplication": DeduplicationSettings,
        "ha": HaSettings,
    }
)
"""The field of `BrokerSettings`, and what is in it."""


@dataclass(frozen=True)
class BrokerSettings:
    """One broker's settings. Raises SettingsError when fields do not go together."""

    name: str = field(default_factory=defaults.broker_name, metadata=described("name", TEXT))
    data_dir: Path | None = field(default=None, metadata=described("data-dir", PATH))
    listen: tuple[ListenAddress, ...] = field(
        default=(ListenAddress("amqp", "127.0.0.1", 5672),), metadata=described("listen", LISTEN)
    )
    control_socket: Path = field(default=Path(), metadata=described("control-socket", PATH))
    """Left out, it becomes `defaults.control_socket(name)`."""

    max_connections: int = field(
        default=5000, metadata=described("max-connections", count(1, 1_000_000), changeable=True)
    )
    """Clients whose AMQP open was let in."""
    max_connections_per_address: int = field(
        default=2500, metadata=described("max-connections-per-address", count(1, 1_000_000), changeable=True)
    )
    """Of those, from one IP address."""
    max_unopened_connections: int = field(
        default=1000, metadata=described("max-unopened-connections", count(1, 1_000_000), changeable=True)
    )
    """Sockets without an AMQP open: beyond it the oldest of the address that has most make way."""
    max_sessions_per_connection: int = field(
        default=256, metadata=described("max-sessions-per-connection", count(1, 65_536))
    )
    max_links_per_connection: int = field(
        default=4096, metadata=described("max-links-per-connection", count(1, 1_000_000))
    )
    max_unsettled_per_connection: int = field(
        default=30_000, metadata=described("max-unsettled-per-connection", count(1, 1_000_000), changeable=True)
    )
    """Messages that a client has got and not answered: it gets no more before it answers some."""
    max_frame_bytes: int = field(default=64 * KIB, metadata=described("max-frame-size", size(512, 16 * MIB)))
    max_message_bytes: int = field(
        default=100 * MIB, metadata=described("max-message-size", size(512, LARGEST_MESSAGE), changeable=True)
    )
    max_transaction_messages: int = field(
        default=2000, metadata=described("max-transaction-messages", count(1, 1_000_000), changeable=True)
    )
    """Published and accepted in one transaction: while it is committed, nobody else is served."""
    memory_limit_bytes: int = field(
        default_factory=defaults.memory_limit_bytes,
        metadata=described("memory-limit", size(16 * MIB, 1024 * TIB), changeable=True),
    )
    """Publishers get no credit while the broker holds more than this."""
    publisher_credit: int = field(
        default=1000, metadata=described("publisher-credit", count(1, 1_000_000), changeable=True)
    )

    temporary_queue_bytes: int = field(
        default=AUTO, metadata=described("temporary-queue-size", SIZE_OR_AUTO, changeable=True)
    )
    """What may wait for a reader whose queue goes with it. AUTO: a share of memory-limit; 0: no limit."""

    idle_timeout_s: float = field(
        default=60.0, metadata=described("idle-timeout", duration(0, 86_400), changeable=True)
    )
    """How long a peer may be silent; advertised to it as AMQP's idle-time-out. 0: for ever."""
    handshake_timeout_s: float = field(
        default=3.0, metadata=described("handshake-timeout", duration(0.1, 3600), changeable=True)
    )
    """From accepting a connection to its AMQP open; TLS and SASL included."""
    stop_timeout_s: float = field(default=10.0, metadata=described("stop-timeout", duration(0, 3600), changeable=True))

    auto_create: bool = field(default=True, metadata=described("auto-create", BOOLEAN, changeable=True))
    auto_create_arguments: Mapping[str, QueueArgument] = field(
        default_factory=lambda: MappingProxyType({}), metadata=described("auto-create-arguments", QUEUE_ARGUMENTS)
    )
    log_level: str = field(default="info", metadata=described("log-level", choice(*LOG_LEVELS), changeable=True))
    log_file: Path | None = field(default=None, metadata=described("log-file", PATH))

    tls: TlsSettings = field(default_factory=TlsSettings)
    sasl: SaslSettings = field(default_factory=SaslSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    deduplication: DeduplicationSettings = field(default_factory=DeduplicationSettings)
    ha: HaSettings = field(default_factory=HaSettings)

    def __post_init__(self) -> None:
        if self.control_socket == Path():
            object.__setattr__(self, "control_socket", defaults.control_socket(self.name))
        for check in (_check_names, _check_limits, _check_auto_create, _check_tls, _check_logins):
            check(self)
        self.ha.check_beside(self.listen)

    @property
    def temporary_limits(self) -> dict[str, QueueArgument]:
        """Queue arguments that bound what waits for a reader: bytes of payload, and as much again besides it."""
        size_bytes = self.temporary_queue_bytes
        if size_bytes == AUTO:
            size_bytes = max(self.memory_limit_bytes // TEMPORARY_QUEUE_SHARE, MIB)
        if not size_bytes:
            return {}
        limits = {"qpid.max_size": size_bytes, "qpid.max_count": max(size_bytes // MESSAGE_OVERHEAD, 1)}
        return {**limits, "qpid.policy_type": FullPolicy.SELF_DESTRUCT.value}

    @property
    def has_store(self) -> bool:
        """Whether what is durable is kept on disk."""
        return self.data_dir is not None and self.store.enabled

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> BrokerSettings:
        """Settings from {dotted key: value as YAML or a command line gives it}. Raises SettingsError."""
        sections = cls.read_values(values)
        own = {name: make(**sections[name]) for name, make in _SECTIONS.items()}
        return cls(**sections[""], **own)

    @staticmethod
    def read_values(values: Mapping[str, object]) -> dict[str, dict[str, Any]]:
        """{section: {field name: value}}, each value alone checked, not their relations. Raises SettingsError."""
        known = _settings_by_key()
        sections: dict[str, dict[str, Any]] = {section: {} for section in ("", *_SECTIONS)}
        for key, value in values.items():
            section, name, found = _find(key, known)
            sections[section][name] = found.read(value)
        return sections

    def get(self, key: str) -> object:
        """The setting `key` as JSON can carry it and as `with_change` takes it. Raises SettingsError."""
        section, name, found = _find(key, _settings_by_key())
        return found.show(getattr(getattr(self, section) if section else self, name))

    def as_mapping(self) -> dict[str, object]:
        """Every setting, by key."""
        return {key: self.get(key) for key in known_keys()}

    def with_change(self, key: str, value: object) -> BrokerSettings:
        """These settings with `key` changed, as `qpid-ha set` does. Raises SettingsError."""
        section, name, found = _find(key, _settings_by_key())
        if not found.changeable:
            problem = "cannot change while the broker runs: change the configuration file and restart"
            raise SettingsError(found.key, f"{problem} (can change: {', '.join(changeable_keys())})")
        changed: dict[str, Any] = {name: found.read(value)}
        if section:
            changed = {section: dataclasses.replace(getattr(self, section), **changed)}
        return dataclasses.replace(self, **changed)

    def mechanisms_for(self, address: ListenAddress) -> tuple[str, ...]:
        """The SASL mechanisms that the listener offers, strongest first; none when nobody could log in there."""
        wanted = self.sasl.mechanisms
        return tuple(name for name in self._possible_mechanisms(address) if wanted is None or name in wanted)

    def _possible_mechanisms(self, address: ListenAddress) -> list[str]:
        possible = []
        if address.is_tls and self.tls.require_client_certificate:  # Proton asks every client for one, or none
            possible.append("EXTERNAL")
        if self.sasl.users_db is not None:
            possible += ["SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1"]
            if address.is_tls or address.is_loopback or self.sasl.allow_insecure_plain:
                possible.append("PLAIN")
        anonymous = self.sasl.allow_anonymous
        if anonymous or (anonymous is None and address.is_loopback):
            possible.append("ANONYMOUS")
        return possible


def known_keys() -> list[str]:
    """Every key of the configuration file, dotted."""
    return list(_settings_by_key())


def secret_keys() -> list[str]:
    """The keys whose value nobody but the broker may see."""
    return [key for key, (_section, _name, found) in _settings_by_key().items() if found.secret]


def changeable_keys() -> list[str]:
    """The keys that `set` may change in a running broker."""
    return [key for key, (_section, _name, found) in _settings_by_key().items() if found.changeable]


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is not known: the nearest one, or all when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(word.replace("_", "-").lower(), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"


def unknown_key(key: str, known: Iterable[str]) -> SettingsError:
    """The error for a key that does not exist."""
    return SettingsError(key, f"unknown key; {nearest(key, known)}")


def canonical_key(key: str) -> str:
    """The one name of a setting that may be written in two ways."""
    return ALIASES.get(key, key)


def _find(key: str, known: Mapping[str, tuple[str, str, Setting]]) -> tuple[str, str, Setting]:
    found = known.get(canonical_key(key))
    if found is None:
        raise unknown_key(key, known)
    return found


def _settings_by_key() -> dict[str, tuple[str, str, Setting]]:
    """Key -> (section, field name, setting)."""
    found: dict[str, tuple[str, str, Setting]] = {}
    for section, owner in (("", BrokerSettings), *_SECTIONS.items()):
        for item in fields(owner):
            if "setting" in item.metadata:
                found[item.metadata["setting"].key] = (section, item.name, item.metadata["setting"])
    return found


def _check_names(settings: BrokerSettings) -> None:
    if not _NAME.fullmatch(settings.name):
        raise SettingsError("name", f"{shown(settings.name)} is not 1 to 64 of letters, digits and . _ -")
    length = len(bytes(settings.control_socket))
    if length > _LONGEST_SOCKET_PATH:
        problem = f"the path has {length} bytes, a Unix socket takes {_LONGEST_SOCKET_PATH}; choose a shorter one"
        raise SettingsError("control-socket", problem)
    fixed = [(address.host, address.port) for address in settings.listen if address.port]
    for twice in {place for place in fixed if fixed.count(place) > 1}:
        raise SettingsError("listen", f"port {twice[1]} of {twice[0]} is there twice; take one out")
    if not settings.listen:
        raise SettingsError("listen", "at least one address is needed")


def _check_limits(settings: BrokerSettings) -> None:
    if settings.max_message_bytes > settings.memory_limit_bytes:
        problem = f"{settings.get('max-message-size')} is over memory-limit ({settings.get('memory-limit')})"
        raise SettingsError("max-message-size", f"{problem}; lower it, or raise memory-limit")


def _check_auto_create(settings: BrokerSettings) -> None:
    try:
        check_settable(settings.auto_create_arguments)
        QueueArguments.parse(settings.auto_create_arguments)
    except InvalidArgument as error:
        raise SettingsError("auto-create-arguments", str(error)) from None


def _check_tls(settings: BrokerSettings) -> None:
    tls = settings.tls
    if (tls.certificate is None) != (tls.key is None):
        missing, given = ("key", "certificate") if tls.key is None else ("certificate", "key")
        raise SettingsError(f"tls.{missing}", f"missing; tls.{given} needs it")
    if tls.require_client_certificate and tls.ca is None:
        raise SettingsError("tls.ca", "missing; tls.require-client-certificate needs it to check certificates")
    for address in settings.listen:
        if address.is_tls and tls.certificate is None:
            raise SettingsError("tls.certificate", f"missing; the listener {address} needs it and tls.key")


def _check_logins(settings: BrokerSettings) -> None:
    """Secure by default: whoever opens a port to the network says who may come in."""
    for address in settings.listen:
        if settings.mechanisms_for(address):
            continue
        if settings.sasl.mechanisms is not None:
            offered = ", ".join(settings.sasl.mechanisms)
            possible = ", ".join(settings._possible_mechanisms(address)) or "none"
            problem = f"none of {offered} can work on {address} (what can: {possible})"
            advice = "see sasl.users-db, tls.require-client-certificate, sasl.allow-anonymous"
            raise SettingsError("sasl.mechanisms", f"{problem}; {advice}")
        ways = "set sasl.users-db (made with saslpasswd2), or sasl.allow-anonymous: true to let everybody in"
        if address.is_tls:
            ways = f"set tls.ca and tls.require-client-certificate, or {ways}"
        raise SettingsError("listen", f"nobody could log in at {address}: {ways}, or listen on loopback only")
