"""What an operator can decide about a broker's part in a cluster.

The keys are those that qpid's users know. Two stand outside the section `ha`, `link-heartbeat-interval` and
`replication-rules`, and are understood within it too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qpid_ha_broker.model.queue_arguments import Replicate
from qpid_ha_broker.server.ha_kinds import (
    ADDRESSES,
    COORDINATOR,
    LEVEL,
    MECHANISM,
    NO_COORDINATOR,
    RULES,
    SECRET,
    ReplicationRule,
    coordinator_path,
    show_addresses,
)
from qpid_ha_broker.server.listen_address import ListenAddress
from qpid_ha_broker.server.setting_fields import SettingsError, described
from qpid_ha_broker.server.setting_kinds import BOOLEAN, PATH, TEXT, choice, count, duration, size

KIB, MIB, TIB = 1024, 1024**2, 1024**4
ALIASES = {"ha.link-heartbeat-interval": "link-heartbeat-interval", "ha.replication-rules": "replication-rules"}


@dataclass(frozen=True)
class HaSettings:
    """The section `ha`. Raises SettingsError when fields do not go together."""

    cluster: bool = field(default=False, metadata=described("ha.cluster", BOOLEAN))
    brokers_url: tuple[ListenAddress, ...] = field(
        default=(), metadata=described("ha.brokers-url", ADDRESSES, changeable=True)
    )
    """Where the brokers of the cluster reach each other: all of them, this one too."""
    public_url: tuple[ListenAddress, ...] = field(
        default=(), metadata=described("ha.public-url", ADDRESSES, changeable=True)
    )
    """Where clients find the cluster, such as a virtual IP; empty: as in `brokers_url`."""

    replicate: Replicate = field(default=Replicate.MESSAGES, metadata=described("ha.replicate", LEVEL, changeable=True))
    """For what neither says it itself nor matches a rule."""
    replication_rules: tuple[ReplicationRule, ...] = field(
        default=(), metadata=described("replication-rules", RULES, changeable=True)
    )
    """The first that matches counts."""

    backup_timeout_s: float = field(
        default=10.0, metadata=described("ha.backup-timeout", duration(0.1, 3600), changeable=True)
    )
    """How long publishers wait for a backup that is silent or stalled; then the cluster goes on without it."""
    min_in_sync: int = field(default=1, metadata=described("ha.min-in-sync", count(1, 100), changeable=True))
    """Brokers that have to hold a message, the primary among them, or it is rejected."""
    confirm_dequeue: bool = field(default=True, metadata=described("ha.confirm-dequeue", BOOLEAN, changeable=True))
    """A consumer's acknowledgement is settled only when no broker can bring the message back."""
    link_heartbeat_interval_s: float = field(
        default=1.0, metadata=described("link-heartbeat-interval", duration(0.01, 600), changeable=True)
    )

    username: str | None = field(default=None, metadata=described("ha.username", TEXT))
    """Who the brokers are to each other; then nobody else may replicate or administer through AMQP."""
    password: str | None = field(default=None, repr=False, metadata=described("ha.password", SECRET, secret=True))
    password_file: Path | None = field(default=None, metadata=described("ha.password-file", PATH))
    mechanism: str | None = field(default=None, metadata=described("ha.mechanism", MECHANISM))
    """None: the strongest that the other broker offers."""

    queue_replication: bool = field(default=False, metadata=described("ha.queue-replication", BOOLEAN))
    """Let `qpid-ha replicate` copy single queues from another broker to one that is in no cluster."""
    coordinator: str = field(default=NO_COORDINATOR, metadata=described("ha.coordinator", COORDINATOR))
    store_error: str = field(default="abort", metadata=described("ha.store-error", choice("abort", "continue")))
    """What a backup does when its store does not fit what the primary sends."""
    dirty_store: str = field(default="rejoin", metadata=described("ha.dirty-store", choice("rejoin", "refuse")))
    """What a broker does that finds a store which was not closed in order."""
    auto_recover: bool = field(default=True, metadata=described("ha.auto-recover", BOOLEAN))
    """After a crash of all, go on without an operator once every member of the last in-sync set is back."""
    tail_bytes: int = field(default=64 * MIB, metadata=described("ha.tail-size", size(64 * KIB, TIB)))
    """What a primary keeps of the stream, for backups that come back."""

    def __post_init__(self) -> None:
        _check_login(self)
        _check_times(self)
        if self.brokers_url:
            _check_addresses(self.brokers_url)
        elif self.cluster:
            problem = "missing; ha.cluster needs it: name all brokers, such as amqp://node1:5672,node2:5672"
            raise SettingsError("ha.brokers-url", problem)

    @property
    def coordinator_path(self) -> Path | None:
        """Where the `file` coordinator keeps its record; None without one."""
        return coordinator_path(self.coordinator)

    def level_for(self, name: str) -> Replicate:
        """How far the queue or exchange `name` is replicated, if it does not say so itself."""
        return next((rule.replicate for rule in self.replication_rules if rule.matches(name)), self.replicate)

    def read_password(self) -> str | None:
        """The password, from its file if it is in one. Raises SettingsError."""
        if self.password_file is None:
            return self.password
        return read_password_file(self.password_file)

    def check_beside(self, listen: Sequence[ListenAddress]) -> None:
        """Raise SettingsError where this does not go with the broker's listeners."""
        if not self.cluster:
            return
        own = {(address.host.lower(), address.port) for address in listen}
        if {(address.host.lower(), address.port) for address in self.brokers_url} <= own:
            problem = f"{show_addresses(self.brokers_url)} names only this broker; name the others too"
            raise SettingsError("ha.brokers-url", problem)
        if len(self.brokers_url) == 1:
            problem = f"{self.brokers_url[0]} is one broker; name all of the cluster, this one too"
            raise SettingsError("ha.brokers-url", problem)
        if self.min_in_sync > len(self.brokers_url):
            problem = f"{self.min_in_sync} brokers, but ha.brokers-url names {len(self.brokers_url)}"
            raise SettingsError("ha.min-in-sync", f"{problem}: nothing could ever be confirmed; lower it")
        open_ones = [str(address) for address in (*self.brokers_url, *listen) if not address.is_loopback]
        if open_ones and self.username is None:
            problem = f"missing; {open_ones[0]} can be reached from outside, and anybody there could say to be a backup"
            raise SettingsError("ha.username", f"{problem}: set it and ha.password-file")


def read_password_file(path: Path) -> str:
    """The file's first line. Raises SettingsError."""
    try:
        password = path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise SettingsError("ha.password-file", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError("ha.password-file", f"{path} is not UTF-8 text") from None
    if not password:
        raise SettingsError("ha.password-file", f"the first line of {path} is empty; write the password there")
    return password


def _check_login(ha: HaSettings) -> None:
    if ha.password is not None and ha.password_file is not None:
        raise SettingsError("ha.password", "ha.password-file gives one too; take one of them out")
    has_password = ha.password is not None or ha.password_file is not None
    if has_password and ha.username is None:
        raise SettingsError("ha.username", "missing; there is a password for it")
    if ha.username is not None and not has_password and ha.mechanism != "EXTERNAL":
        raise SettingsError("ha.password", "missing; ha.username needs it: set ha.password-file (or ha.password)")


def _check_times(ha: HaSettings) -> None:
    if ha.backup_timeout_s < 2 * ha.link_heartbeat_interval_s:
        problem = "is less than two heartbeats (link-heartbeat-interval), so one late heartbeat would cost a backup"
        raise SettingsError("ha.backup-timeout", f"{ha.backup_timeout_s:g}s {problem}; raise it")


def _check_addresses(addresses: Sequence[ListenAddress]) -> None:
    places = Counter((address.host.lower(), address.port) for address in addresses)
    for (host, port), times in places.items():
        if times > 1:
            raise SettingsError("ha.brokers-url", f"{host}:{port} is there twice; name each broker once")
