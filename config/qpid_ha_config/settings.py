"""What an operator can decide about one broker: a table of settings, and how they depend on each other.

Each field carries its key in the configuration file, what it accepts, its default, and whether it may change while the
broker runs. The names of fields have units. Relations between fields are checked when the settings are made: a
`BrokerSettings` that exists is one that a broker can start with, as far as that can be told without opening files
(`loading` does).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from qpid_ha_broker.access.address_rules import AddressRule
from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, Replicate, check_settable
from qpid_ha_config import defaults
from qpid_ha_config.addresses import Address, show_addresses
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.errors import SettingsError, nearest
from qpid_ha_config.kinds import (
    ACCESS_RULES,
    ADDRESS_RULES,
    ADMIN_LISTENERS,
    AUTO,
    BOOLEAN,
    COMMAND,
    COORDINATOR,
    KERNEL_USE,
    LEVEL,
    LISTENER,
    LISTENERS,
    LOG_LEVELS,
    MECHANISM,
    MECHANISM_LIST,
    MOST_REPLICAS,
    NAME,
    ORIGINS,
    PATH,
    PATTERNS,
    PEERS,
    POLICIES,
    QUEUE_ARGUMENTS,
    REMOTE_BROKERS,
    REMOTE_NODES,
    RULES,
    SECRET,
    SET_RULES,
    SIZE_OR_AUTO,
    TEXT,
    TLS_VERSION_LIST,
    TLS_VERSIONS,
    VIRTUAL_IP,
    ChangeScope,
    QueueArgument,
    ReplicationRule,
    ResourceSetRule,
    Setting,
    choice,
    count,
    count_or_auto,
    duration,
    setting,
    size,
)
from qpid_ha_config.remote_nodes import RemoteBroker, RemoteNode
from qpid_ha_config.workers import MOST as MOST_WORKERS
from qpid_ha_config.workers import worker_address

KIB, MIB, TIB = 1024, 1024**2, 1024**4
LARGEST_MESSAGE_BYTES: Final = 127 * MIB
"""A message has to fit into a record of the log (128 MiB), with the names of the queues that it joins."""
PRIORITY_MAX: Final = 1000
PRODUCERS_MAX: Final = 100_000
"""So that all of them fit into one frame to a backup."""
SPREAD_MAX: Final = 1000
_LAST_PORT: Final = 65_535
_LONGEST_SOCKET_PATH = 107
"""Bytes that a Unix socket's address holds on Linux, without the final zero."""


@dataclass(frozen=True)
class TlsSettings:
    """Of `amqps` listeners, and of connections to other brokers. The files are PEM."""

    certificate: Path | None = setting("tls.certificate", PATH)
    key: Path | None = setting("tls.key", PATH)
    ca: Path | None = setting("tls.ca", PATH)
    require_client_certificate: bool = setting("tls.require-client-certificate", BOOLEAN, False)
    versions: tuple[str, ...] = setting("tls.versions", TLS_VERSION_LIST, TLS_VERSIONS)
    ciphers: str | None = setting("tls.ciphers", TEXT)
    """For TLS 1.2, as OpenSSL writes them (`man openssl-ciphers`); None: the library's own. TLS 1.3 has its own."""


@dataclass(frozen=True)
class SaslSettings:
    """Who may log in, and how. `allow_anonymous` None: through loopback listeners only."""

    mechanisms: tuple[str, ...] | None = setting("sasl.mechanisms", MECHANISM_LIST)
    users_db: Path | None = setting("sasl.users-db", PATH)
    allow_anonymous: bool | None = setting("sasl.allow-anonymous", BOOLEAN)
    allow_insecure_plain: bool = setting("sasl.allow-insecure-plain", BOOLEAN, False)

    def takes_passwords(self, address: Address) -> bool:
        """Whether clients may say them at that listener, instead of proving that they know them."""
        return address.is_tls or address.is_loopback or self.allow_insecure_plain

    def for_users_of_cluster(self, address: Address) -> tuple[str, ...]:
        """The mechanisms that the listener offers them, strongest first."""
        possible = ("SCRAM-SHA-512", "SCRAM-SHA-256", *(["PLAIN"] if self.takes_passwords(address) else []))
        return tuple(name for name in possible if self.mechanisms is None or name in self.mechanisms)


@dataclass(frozen=True)
class AddressSettings:
    """What addresses mean that clients name, and whether what is not there is made for them."""

    auto_create: bool = setting("auto-create", BOOLEAN, True, change=ChangeScope.CLUSTER)
    auto_create_arguments: Mapping[str, QueueArgument] = setting(
        "auto-create-arguments", QUEUE_ARGUMENTS, lambda: MappingProxyType({})
    )
    jms_priorities: bool = setting("jms-priorities", BOOLEAN, True, change=ChangeScope.CLUSTER)
    rules: tuple[AddressRule, ...] = setting("address-rules", ADDRESS_RULES, (), change=ChangeScope.CLUSTER)
    """Beside those that are built in: `access.address_rules`."""


@dataclass(frozen=True)
class AccessSettings:
    """Who may do what: `access_rules` has the language. Neither: clients of this machine everything, others nothing."""

    rules: tuple[str, ...] | None = setting("acl.rules", ACCESS_RULES, change=ChangeScope.CLUSTER)
    file: Path | None = setting("acl.file", PATH)
    """It, or the rules of the configuration file, are read again by `qpid-ha acl reload`."""


@dataclass(frozen=True)
class AuditSettings:
    """Of the audit log."""

    file: Path | None = setting("audit.file", PATH)
    """A line for each administrative act is added to it; None: there is none."""


@dataclass(frozen=True)
class StoreSettings:
    """Of a broker with a data-dir; without one there is no store, whatever they say."""

    enabled: bool = setting("store.enabled", BOOLEAN, True)
    segment_bytes: int = setting("store.segment-size", size(64 * KIB, 4096 * MIB), 64 * MIB)
    """Of a journal file; its room is taken when it is made."""
    consolidate_bytes: int = setting("store.consolidate-at", size(64 * KIB, TIB), 256 * MIB, change=ChangeScope.HERE)
    """So much in closed journal files, and at least as much as the last snapshot has, is folded into a new one."""
    memory_bytes: int = setting(
        "store.memory", size(MIB, 1024 * TIB), lambda: defaults.memory_limit_bytes() // 2, change=ChangeScope.HERE
    )
    """Beyond this, payloads of durable messages are on disk alone until their consumers come near."""
    has_ring: bool = setting("store.io-uring", BOOLEAN, False)
    """Where the kernel has it and lets us, it writes and syncs without a thread of ours."""


@dataclass(frozen=True)
class DeduplicationSettings:
    """Of producers that number their messages. In a cluster, those of the primary count."""

    producers: int = setting("deduplication.producers", count(0, PRODUCERS_MAX), 10_000, change=ChangeScope.CLUSTER)
    """So many are remembered; who sent nothing for longest is forgotten. 0: the annotations mean nothing."""


@dataclass(frozen=True)
class SessionSettings:
    """Of clients' sessions, which outlive their connections. In a cluster, those of the primary of `default` count."""

    max_timeout_s: float = setting("sessions.max-timeout", duration(0, 7 * 86_400), 300.0, change=ChangeScope.CLUSTER)
    """So long one may wait for its client, whatever that asks for."""
    most: int = setting("sessions.max", count(0, 1_000_000), 10_000, change=ChangeScope.CLUSTER)
    """So many there may be, with those that wait. 0: none."""


@dataclass(frozen=True)
class AdminSettings:
    """Of the HTTP port for administrators, load balancers and monitoring."""

    listen: tuple[Address, ...] = setting("admin.listen", ADMIN_LISTENERS, ())
    """None: there is no such port."""
    tokens: Path | None = setting("admin.tokens", PATH)
    """Who may do what there, beside tokens of the cluster. With none of both nobody gets more than load balancers."""
    amqp: bool = setting("admin.amqp", BOOLEAN, False)
    """Clients may speak AMQP over WebSockets there, at `/amqp`."""
    amqp_origins: tuple[str, ...] = setting("admin.amqp-origins", ORIGINS, ())
    """Sites whose pages may do so, as browsers name them; programs, which name none, may in any case."""


@dataclass(frozen=True)
class MetricsSettings:
    """What `GET /metrics` tells of single queues; sums over all queues are there in any case."""

    queues: tuple[str, ...] = setting("metrics.queues", PATTERNS, ("*",), change=ChangeScope.CLUSTER)
    """Patterns of names as a shell knows them; a queue that matches one is told of by itself."""
    queues_most: int = setting("metrics.max-queues", count(0, 1_000_000), 10_000, change=ChangeScope.CLUSTER)
    """So many of those at most, the older ones."""


BACKUP_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True)
class HaSettings:
    """A broker's part in a cluster; the keys are those that qpid's users know."""

    cluster: bool = setting("ha.cluster", BOOLEAN, False)
    brokers_url: tuple[Address, ...] = setting("ha.brokers-url", PEERS, (), change=ChangeScope.HERE)
    """Where the brokers of the cluster reach each other: all of them, this one too."""
    public_url: tuple[Address, ...] = setting("ha.public-url", PEERS, (), change=ChangeScope.CLUSTER)
    """Where clients find the cluster, such as a virtual IP; empty: as in `brokers_url`."""

    replicate: Replicate = setting("ha.replicate", LEVEL, Replicate.MESSAGES, change=ChangeScope.CLUSTER)
    """For what neither says it itself nor matches a rule."""
    replication_rules: tuple[ReplicationRule, ...] = setting("replication-rules", RULES, (), change=ChangeScope.CLUSTER)
    """The first that matches counts."""

    backup_timeout_s: float = setting(
        "ha.backup-timeout", duration(0.1, 3600), BACKUP_TIMEOUT_S, change=ChangeScope.CLUSTER
    )
    """How long publishers wait for a backup that is silent or stalled; then the cluster goes on without it."""
    min_in_sync: int = setting("ha.min-in-sync", count(1, 100), 1, change=ChangeScope.CLUSTER)
    """Brokers that have to hold a message, the primary among them, or it is rejected."""
    confirm_dequeue: bool = setting("ha.confirm-dequeue", BOOLEAN, True, change=ChangeScope.CLUSTER)
    """A consumer's acknowledgement is settled only when no broker can bring the message back."""
    clients: str = setting("ha.clients", choice("redirect", "proxy"), "redirect")
    """What a broker does for a client that wants what another one leads: say where it is, or relay the link."""
    sole_connections: str = setting(
        "ha.sole-connections", choice("broker", "cluster"), "broker", change=ChangeScope.CLUSTER
    )
    """Where a connection is the only one with its container id that asks to be that; the latter with proxies alone."""
    link_heartbeat_interval_s: float = setting(
        "link-heartbeat-interval", duration(0.01, 600), 1.0, change=ChangeScope.HERE
    )

    frame_stream: bool = setting("ha.frame-stream", BOOLEAN, True)
    """Leave AMQP between brokers where both can and TLS is not spoken: what replicates is short frames on a stream."""

    username: str | None = setting("ha.username", TEXT)
    """Who the brokers are to each other; then nobody else may replicate or administer through AMQP."""
    password: str | None = setting("ha.password", SECRET, secret=True)
    password_file: Path | None = setting("ha.password-file", PATH)
    mechanism: str | None = setting("ha.mechanism", MECHANISM)
    """None: the strongest that the other broker offers."""

    queue_replication: bool = setting("ha.queue-replication", BOOLEAN, False)
    """Let `qpid-ha replicate` copy single queues from another broker to one that is in no cluster."""
    store_error: str = setting("ha.store-error", choice("abort", "continue"), "abort")
    """What a backup does when its store does not fit what the primary sends."""
    dirty_store: str = setting("ha.dirty-store", choice("rejoin", "refuse"), "rejoin")
    """What a broker does that finds a store which was not closed in order."""
    auto_recover: bool = setting("ha.auto-recover", BOOLEAN, True)
    """After a crash of all, go on without an operator once every member of the last in-sync set is back."""
    tail_bytes: int = setting("ha.tail-size", size(64 * KIB, TIB), 64 * MIB)
    """What a primary keeps of the stream, for backups that come back."""

    @property
    def waits_for_backup_s(self) -> float:
        """`ha.backup-timeout`, but never less than two heartbeats: one that is late must not cost a backup."""
        return max(self.backup_timeout_s, 2 * self.link_heartbeat_interval_s)

    def read_password(self) -> str | None:
        """The password, from its file if it is in one. Raises SettingsError."""
        if self.password_file is None:
            return self.password
        try:
            return read_password_file(self.password_file)
        except OSError as error:
            raise SettingsError("ha.password-file", f"cannot read {self.password_file}: {error.strerror}") from None
        except ValueError as error:
            raise SettingsError("ha.password-file", str(error)) from None


@dataclass(frozen=True)
class ResourceSetSettings:
    """Of a cluster with more than one resource set. Those of the primary of `default` count."""

    rules: tuple[ResourceSetRule, ...] = setting("resource-sets", SET_RULES, (), change=ChangeScope.CLUSTER)
    """The first that matches counts, for a queue that does not say itself where it is to be."""
    spread: int = setting("resource-sets.spread", count(0, SPREAD_MAX), 0, change=ChangeScope.CLUSTER)
    """What matches no rule is in one of so many sets, `shard-1` and so on; 0: in `default`."""


@dataclass(frozen=True)
class RemoteSettings:
    """Of nodes of other brokers that clients find here. All brokers of a cluster have the same."""

    nodes: tuple[RemoteNode, ...] = setting("remote-nodes", REMOTE_NODES, ())
    """By local name."""
    brokers: tuple[RemoteBroker, ...] = setting("remote-brokers", REMOTE_BROKERS, ())
    """Who this broker is to others, for nodes that do not say so: those that are declared never do."""
    check_interval_s: float = setting("remote-check-interval", duration(0.1, 86400), 60.0, change=ChangeScope.HERE)
    """About so often it is looked whether a node that nobody uses, or that was missing, is there."""
    proxy_idle_s: float = setting("ha.proxy-idle", duration(0.1, 86400), 30.0, change=ChangeScope.HERE)
    """A connection for links of clients to another broker, of the cluster or outside, is kept for so long without."""

    def names(self, address: Address) -> bool:
        """Whether a broker is one of those that the configuration gives a login for."""
        named = [*(node.url.addresses for node in self.nodes), *(broker.addresses for broker in self.brokers)]
        return any(listener.is_same_listener(address) for addresses in named for listener in addresses)


@dataclass(frozen=True)
class CoordinatorSettings:
    """Which coordinator a cluster has, and how it is reached: what its factory is given."""

    url: CoordinatorUrl = setting("ha.coordinator", COORDINATOR, CoordinatorUrl())
    username: str | None = setting("ha.coordinator-username", TEXT)
    """Who this broker and its agent are to it."""
    password_file: Path | None = setting("ha.coordinator-password-file", PATH)
    """Its first line is the password; `read_password_file` reads it."""
    tls: bool = setting("ha.coordinator-tls", BOOLEAN, False)
    ca: Path | None = setting("ha.coordinator-ca", PATH)
    """PEM; None: the system's."""
    certificate: Path | None = setting("ha.coordinator-certificate", PATH)
    """PEM; ours, with `key`."""
    key: Path | None = setting("ha.coordinator-key", PATH)
    session_timeout_s: float = setting("ha.coordinator-timeout", duration(1, 60), 4.0)
    """After so long without a sign of life, it gives the lock of one agent to another."""


@dataclass(frozen=True)
class ActivationSettings:
    """What the agent of a broker does (`qpid-ha-agent run`); the broker itself has no use for it."""

    coordinator_loss: str = setting("ha.coordinator-loss", choice("continue", "stop"), "continue")
    """What becomes of a primary while the coordinator is out of reach. `stop`: its agent demotes it."""
    failback: str = setting("ha.failback", choice("stay", "preferred"), "stay")
    """`preferred`: the primary hands over to a backup of higher priority that has been ready for a while."""
    priority: int = setting("ha.priority", count(0, PRIORITY_MAX), 0)
    """Of this broker as primary; its agent tells the others."""
    failback_delay_s: float = setting("ha.failback-delay", duration(1, 86_400), 30.0)
    """How long the other one has to be ready before that."""
    virtual_ip: tuple[str, str] | None = setting("ha.virtual-ip", VIRTUAL_IP)
    """ADDRESS/PREFIX, and the interface; an empty text: the one whose network holds it."""
    on_promoted: tuple[str, ...] | None = setting("ha.on-promoted", COMMAND)
    """Run when the broker has become primary."""
    on_demoted: tuple[str, ...] | None = setting("ha.on-demoted", COMMAND)
    """Run when it is primary no more, or dead."""
    hook_timeout_s: float = setting("ha.hook-timeout", duration(0.1, 3600), 30.0)
    """After so long either of them is killed."""


@dataclass(frozen=True)
class ReplicaSettings:
    """How the replicas of resource sets are placed and kept up. Those of the primary of `default` count, but `zone`."""

    zone: str | None = setting("ha.zone", NAME)
    """Where this broker is: what fails together, such as a rack."""
    min_replicas: int = setting("ha.min-replicas", count(1, MOST_REPLICAS), 3, change=ChangeScope.CLUSTER)
    """Of a set that neither says it itself nor matches a policy; never more than there are brokers."""
    of_default: int = setting("ha.default-replicas", count(1, MOST_REPLICAS), 3, change=ChangeScope.CLUSTER)
    """Of `default`, that are waited for once there is another set: the other brokers observe. Never fewer than
    `ha.min-in-sync`."""
    policies: tuple[tuple[str, int], ...] = setting("replica-policies", POLICIES, (), change=ChangeScope.HERE)
    """By patterns of the names of sets; the first that matches counts."""
    placement: str = setting("ha.placement", NAME, "spread", change=ChangeScope.CLUSTER)
    """Where replicas go: an entry point of the group `qpid_ha.placement`."""
    failure_timeout_s: float = setting("ha.failure-timeout", duration(0.2, 3600), 2.0)
    """A broker that has been silent for so long counts as failed."""
    failure_recovery_interval_s: float = setting(
        "ha.failure-recovery-interval", duration(0, 86_400), 60.0, change=ChangeScope.CLUSTER
    )
    """So long a broker may be away before its replicas are made up for elsewhere."""
    check_interval_s: float = setting(
        "ha.replica-check-interval", duration(0.1, 86_400), 60.0, change=ChangeScope.CLUSTER
    )
    additions: int = setting("ha.replica-additions", count(1, 100), 2, change=ChangeScope.CLUSTER)
    """New replicas that one broker catches up with at a time."""
    auto_trim: bool = setting("ha.auto-trim", BOOLEAN, False, change=ChangeScope.CLUSTER)
    """Remove replicas that a set has beyond what it wants."""
    group_transport: str = setting("group.transport", choice("cpg"), "cpg")
    """What brings the batches of groups to all in one order: Corosync's closed process groups."""
    group_window_bytes: int = setting("group.window", size(64 * KIB, 1024 * MIB), MIB)
    """Of a broker's own batches, for each group, so much may be on the way."""
    group_slice_s: float = setting("group.ownership-slice", duration(0.001, 10), 0.02)
    """So long a broker hands out from a queue of a group for which others wait."""


@dataclass(frozen=True)
class WorkerSettings:
    """Of a machine on which `qpid-ha-agent run` runs several brokers: see `qpid_ha_config.workers`."""

    wanted: int = setting("workers", count_or_auto(1, MOST_WORKERS), 1)
    """How many; AUTO: one for each processor."""
    listen: Address | None = setting("workers.listen", LISTENER)
    """Where the first one listens for other brokers; each further one has the next port."""
    number: int = setting("worker", count(0, MOST_WORKERS), 0)
    """Which of them this broker is, which its agent says; 0: it is the only one here."""

    @property
    def there_are(self) -> int:
        """How many, on this machine."""
        return min(defaults.processors(), MOST_WORKERS) if self.wanted == AUTO else self.wanted

    @property
    def are_several(self) -> bool:
        """Whether brokers of this machine share ports; with one processor and `auto` there is one that could."""
        return self.there_are > 1 or self.listen is not None

    @property
    def own_listener(self) -> Address | None:
        """Where this broker listens alone; None: it shares no port."""
        return worker_address(self.listen, self.number) if self.listen is not None and self.number else None

    def machine_of(self, name: str) -> str:
        """The name of the first worker, where this broker is called `name`; empty: it is alone there, as far as it
        knows."""
        return name.removesuffix(f".{self.number}") if self.number > 1 else name if self.number else ""

    def is_shared(self, address: Address) -> bool:
        """Whether the other workers of this machine listen there, too."""
        return self.number > 0 and address != self.own_listener


_SECTIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "tls": TlsSettings,
        "sasl": SaslSettings,
        "addresses": AddressSettings,
        "access": AccessSettings,
        "audit": AuditSettings,
        "store": StoreSettings,
        "deduplication": DeduplicationSettings,
        "sessions": SessionSettings,
        "admin": AdminSettings,
        "metrics": MetricsSettings,
        "ha": HaSettings,
        "resource_sets": ResourceSetSettings,
        "remote": RemoteSettings,
        "coordinator": CoordinatorSettings,
        "activation": ActivationSettings,
        "replicas": ReplicaSettings,
        "workers": WorkerSettings,
    }
)
"""The field of `BrokerSettings`, and what is in it."""
_ALIASES: Final = {"ha.link-heartbeat-interval": "link-heartbeat-interval", "ha.replication-rules": "replication-rules"}
"""Two of the section `ha` stand outside it, as in qpid, and are understood within it too."""


@dataclass(frozen=True)
class BrokerSettings:
    """One broker's settings. Raises SettingsError when fields do not go together."""

    name: str = setting("name", NAME, defaults.broker_name)
    data_dir: Path | None = setting("data-dir", PATH)
    listen: tuple[Address, ...] = setting("listen", LISTENERS, (Address("amqp", "127.0.0.1", 5672),))
    control_socket: Path = setting("control-socket", PATH, Path())
    """Left out, it becomes `defaults.control_socket(name)`."""

    max_connections: int = setting("max-connections", count(1, 1_000_000), 5000, change=ChangeScope.CLUSTER)
    """Clients whose AMQP open was let in."""
    max_connections_per_address: int = setting(
        "max-connections-per-address", count(1, 1_000_000), 2500, change=ChangeScope.CLUSTER
    )
    """Of those, from one IP address."""
    max_unopened_connections: int = setting(
        "max-unopened-connections", count(1, 1_000_000), 1000, change=ChangeScope.CLUSTER
    )
    """Sockets without an AMQP open: beyond it the oldest of the address that has most make way."""
    max_sessions_per_connection: int = setting("max-sessions-per-connection", count(1, 65_536), 256)
    max_links_per_connection: int = setting("max-links-per-connection", count(1, 1_000_000), 1000)
    max_unsettled_per_connection: int = setting(
        "max-unsettled-per-connection", count(1, 1_000_000), 30_000, change=ChangeScope.CLUSTER
    )
    """Messages that a client has got and not answered: it gets no more before it answers some."""
    max_frame_bytes: int = setting("max-frame-size", size(512, 16 * MIB), 64 * KIB)
    max_message_bytes: int = setting(
        "max-message-size", size(512, LARGEST_MESSAGE_BYTES), 100 * MIB, change=ChangeScope.CLUSTER
    )
    max_transaction_messages: int = setting(
        "max-transaction-messages", count(1, 1_000_000), 2000, change=ChangeScope.CLUSTER
    )
    """Published and accepted in one transaction: while it is committed, nobody else is served."""
    memory_limit_bytes: int = setting(
        "memory-limit", size(16 * MIB, 1024 * TIB), defaults.memory_limit_bytes, change=ChangeScope.HERE
    )
    """Publishers get no credit while the broker holds more than this."""
    publisher_credit: int = setting("publisher-credit", count(1, 1_000_000), 1000, change=ChangeScope.CLUSTER)
    temporary_queue_bytes: int = setting("temporary-queue-size", SIZE_OR_AUTO, AUTO, change=ChangeScope.CLUSTER)
    """What may wait for a reader whose queue goes with it. AUTO: a share of memory-limit; 0: no limit."""

    idle_timeout_s: float = setting("idle-timeout", duration(0, 86_400), 60.0, change=ChangeScope.CLUSTER)
    """How long a peer may be silent; advertised to it as AMQP's idle-time-out. 0: for ever."""
    handshake_timeout_s: float = setting("handshake-timeout", duration(0.1, 3600), 3.0, change=ChangeScope.CLUSTER)
    """From accepting a connection to its AMQP open; TLS and SASL included."""
    stop_timeout_s: float = setting("stop-timeout", duration(0, 3600), 10.0, change=ChangeScope.CLUSTER)

    log_level: str = setting("log-level", choice(*LOG_LEVELS), "info", change=ChangeScope.HERE)
    log_file: Path | None = setting("log-file", PATH)
    kernel: str = setting("kernel", KERNEL_USE, "auto")
    """Whether C does what is done for each of many messages, where it was built: `auto`, `off`, `required`."""

    tls: TlsSettings = TlsSettings()
    sasl: SaslSettings = SaslSettings()
    addresses: AddressSettings = field(default_factory=AddressSettings)
    access: AccessSettings = AccessSettings()
    audit: AuditSettings = AuditSettings()
    store: StoreSettings = field(default_factory=StoreSettings)
    deduplication: DeduplicationSettings = DeduplicationSettings()
    sessions: SessionSettings = SessionSettings()
    admin: AdminSettings = AdminSettings()
    metrics: MetricsSettings = MetricsSettings()
    ha: HaSettings = HaSettings()
    resource_sets: ResourceSetSettings = ResourceSetSettings()
    remote: RemoteSettings = RemoteSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    activation: ActivationSettings = ActivationSettings()
    replicas: ReplicaSettings = ReplicaSettings()
    workers: WorkerSettings = WorkerSettings()

    def __post_init__(self) -> None:
        if self.control_socket == Path():
            object.__setattr__(self, "control_socket", defaults.control_socket(self.name))
        for check in _CHECKS:
            check(self)

    @property
    def has_store(self) -> bool:
        """Whether what is durable is kept on disk."""
        return self.data_dir is not None and self.store.enabled

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> BrokerSettings:
        """Settings from {dotted key: value as YAML or a command line gives it}. Raises SettingsError."""
        sections: dict[str, dict[str, Any]] = {section: {} for section in ("", *_SECTIONS)}
        for key, value in values.items():
            row = find(key)
            sections[row.section][row.name] = row.setting.read(value)
        own = {name: make(**sections[name]) for name, make in _SECTIONS.items()}
        return cls(**sections[""], **own)

    def get(self, key: str) -> object:
        """The setting `key` as JSON can carry it and as `with_change` takes it. Raises SettingsError."""
        row = find(key)
        return row.setting.show(getattr(getattr(self, row.section) if row.section else self, row.name))

    def as_mapping(self) -> dict[str, object]:
        """Every setting, by key."""
        return {key: self.get(key) for key in TABLE}

    def with_changes(self, values: Mapping[str, object]) -> BrokerSettings:
        """These settings with those changed, which have to go together, as `qpid-ha config set` does. Raises
        SettingsError."""
        changed: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            section, name, row, _default = find(key)
            if not row.changeable:
                can_change = ", ".join(key for key, row in TABLE.items() if row.setting.changeable)
                problem = "cannot change while the broker runs: change the configuration file and restart"
                raise SettingsError(row.key, f"{problem} (can change: {can_change})")
            changed.setdefault(section, {})[name] = row.read(value)
        own = changed.pop("", {})
        of_sections = {name: dataclasses.replace(getattr(self, name), **values) for name, values in changed.items()}
        return dataclasses.replace(self, **own, **of_sections)

    def mechanisms_for(self, address: Address) -> tuple[str, ...]:
        """The SASL mechanisms that the listener offers, strongest first; none when nobody could log in there."""
        wanted = self.sasl.mechanisms
        return tuple(name for name in self._possible_mechanisms(address) if wanted is None or name in wanted)

    def _possible_mechanisms(self, address: Address) -> list[str]:
        possible = []
        if address.is_tls and self.tls.require_client_certificate:  # Proton asks every client for one, or none
            possible.append("EXTERNAL")
        if self.sasl.users_db is not None:
            possible += ["SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1"]
            if self.sasl.takes_passwords(address):
                possible.append("PLAIN")
        anonymous = self.sasl.allow_anonymous
        if anonymous or (anonymous is None and address.is_loopback):
            possible.append("ANONYMOUS")
        return possible


class SettingRow(NamedTuple):
    """Where the value of a setting is: `name` is the field of `section` (empty: of `BrokerSettings`)."""

    section: str
    name: str
    setting: Setting
    default: Any
    """A value, or a function that makes it."""


def _rows() -> Iterable[SettingRow]:
    for section, owner in (("", BrokerSettings), *_SECTIONS.items()):
        for item in fields(owner):
            if "setting" in item.metadata:
                default = item.default_factory if item.default is MISSING else item.default
                yield SettingRow(section, item.name, item.metadata["setting"], default)


TABLE: Final[Mapping[str, SettingRow]] = MappingProxyType({row.setting.key: row for row in _rows()})
"""Every setting, by its dotted key."""
SECRETS: Final = tuple(key for key, row in TABLE.items() if row.setting.secret)
"""The keys whose value nobody but the broker may see."""


def canonical_key(key: str) -> str:
    """The one name of a setting that may be written in two ways."""
    return _ALIASES.get(key, key)


def find(key: str) -> SettingRow:
    """Raises SettingsError for a key that does not exist, with the nearest one."""
    row = TABLE.get(canonical_key(key))
    if row is None:
        raise SettingsError(key, f"unknown key; {nearest(key, TABLE)}")
    return row


def read_password_file(path: Path) -> str:
    """The file's first line. Raises OSError, or ValueError where there is no password."""
    try:
        password = path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    if not password:
        raise ValueError(f"the first line of {path} is empty; write the password there")
    return password


# --- what does not go together


def _check_names(settings: BrokerSettings) -> None:
    length = len(bytes(settings.control_socket))
    if length > _LONGEST_SOCKET_PATH:
        problem = f"the path has {length} bytes, a Unix socket takes {_LONGEST_SOCKET_PATH}; choose a shorter one"
        raise SettingsError("control-socket", problem)
    for host, port in _twice(address for address in settings.listen if address.port):
        raise SettingsError("listen", f"port {port} of {host} is there twice; take one out")
    if not settings.listen:
        raise SettingsError("listen", "at least one address is needed")


def _twice(addresses: Iterable[Address]) -> list[tuple[str, int]]:
    return [place for place, times in Counter(address.place for address in addresses).items() if times > 1]


def _check_limits(settings: BrokerSettings) -> None:
    if settings.max_message_bytes > settings.memory_limit_bytes:
        problem = f"{settings.get('max-message-size')} is over memory-limit ({settings.get('memory-limit')})"
        raise SettingsError("max-message-size", f"{problem}; lower it, or raise memory-limit")


def _check_addresses(settings: BrokerSettings) -> None:
    addresses = settings.addresses
    for_all = addresses.auto_create_arguments
    of_rules = [(f"entry {number}, {rule.address}: ", rule.arguments) for number, rule in enumerate(addresses.rules, 1)]
    for key, where, given in (
        ("auto-create-arguments", "", for_all),
        *(("address-rules", where, arguments) for where, arguments in of_rules if arguments),
    ):
        try:
            check_settable(given)
            QueueArguments.parse({**for_all, **given})
        except InvalidArgument as error:
            raise SettingsError(key, f"{where}{error}") from None


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


def _check_admin(settings: BrokerSettings) -> None:
    """A token that passes through a network in the clear is everybody's."""
    admin = settings.admin
    for host, port in _twice(address for address in (*admin.listen, *settings.listen) if address.port):
        raise SettingsError("admin.listen", f"port {port} of {host} is there twice; take one out")
    for address in admin.listen:
        if address.is_tls and settings.tls.certificate is None:
            raise SettingsError("tls.certificate", f"missing; the listener {address} needs it and tls.key")
        if not address.is_tls and not address.is_loopback and admin.tokens is not None:
            problem = f"tokens would pass through the network in the clear to {address}"
            raise SettingsError("admin.listen", f"{problem}: make it https, or listen on loopback only")
    if admin.amqp and not admin.listen:
        raise SettingsError("admin.amqp", "there is no port for it: set admin.listen")
    if admin.amqp_origins and not admin.amqp:
        raise SettingsError("admin.amqp-origins", "AMQP is not spoken there: set admin.amqp: true")


def _check_logins(settings: BrokerSettings) -> None:
    """Secure by default: whoever opens a port to the network says who may come in."""
    web_listen = settings.admin.listen if settings.admin.amqp else ()
    for address in (*settings.listen, *web_listen):
        if settings.mechanisms_for(address):
            continue
        if settings.sasl.mechanisms is not None:
            offered = ", ".join(settings.sasl.mechanisms)
            possible = ", ".join(settings._possible_mechanisms(address)) or "none"
            problem = f"none of {offered} can work on {address} (what can: {possible})"
            advice = "see sasl.users-db, tls.require-client-certificate, sasl.allow-anonymous"
            raise SettingsError("sasl.mechanisms", f"{problem}; {advice}")
        ways = "set sasl.users-db (qpid-ha user add --here makes it), or sasl.allow-anonymous: true to let everybody in"
        if address.is_tls:
            ways = f"set tls.ca and tls.require-client-certificate, or {ways}"
        key = "admin.amqp" if address in web_listen else "listen"
        raise SettingsError(key, f"nobody could log in at {address}: {ways}, or listen on loopback only")


def _check_access(settings: BrokerSettings) -> None:
    if settings.access.rules is not None and settings.access.file is not None:
        raise SettingsError("acl.rules", "acl.file has rules, too; put all of them in one place")


def _check_cluster(settings: BrokerSettings) -> None:
    ha, listen = settings.ha, settings.listen
    _check_cluster_login(ha)
    if ha.backup_timeout_s != BACKUP_TIMEOUT_S and ha.backup_timeout_s < ha.waits_for_backup_s:
        problem = "is less than two heartbeats (link-heartbeat-interval), so one late heartbeat would cost a backup"
        raise SettingsError("ha.backup-timeout", f"{ha.backup_timeout_s:g}s {problem}; raise it")
    for host, port in _twice(ha.brokers_url):
        raise SettingsError("ha.brokers-url", f"{host}:{port} is there twice; name each broker once")
    if not ha.cluster:
        return
    _check_members(ha, listen)
    open_ones = [str(address) for address in (*ha.brokers_url, *listen) if not address.is_loopback]
    if open_ones and ha.username is None:
        problem = f"missing; {open_ones[0]} can be reached from outside, and anybody there could say to be a backup"
        raise SettingsError("ha.username", f"{problem}: set it and ha.password-file")


def _check_cluster_login(ha: HaSettings) -> None:
    if ha.password is not None and ha.password_file is not None:
        raise SettingsError("ha.password", "ha.password-file gives one too; take one of them out")
    if ha.username == "anonymous":
        raise SettingsError("ha.username", "anonymous is what who has not logged in is called; choose another user")
    has_password = ha.password is not None or ha.password_file is not None
    if has_password and ha.username is None:
        raise SettingsError("ha.username", "missing; there is a password for it")
    if ha.username is not None and not has_password and ha.mechanism != "EXTERNAL":
        raise SettingsError("ha.password", "missing; ha.username needs it: set ha.password-file (or ha.password)")


def _check_coordinator(settings: BrokerSettings) -> None:
    given = settings.coordinator
    if given.username is not None and given.password_file is None:
        raise SettingsError("ha.coordinator-password-file", "missing; ha.coordinator-username needs it")
    if given.password_file is not None and given.username is None:
        raise SettingsError("ha.coordinator-username", "missing; there is a password for it")
    if (given.certificate is None) != (given.key is None):
        missing, there = ("key", "certificate") if given.key is None else ("certificate", "key")
        raise SettingsError(f"ha.coordinator-{missing}", f"missing; ha.coordinator-{there} needs it")
    for name, file in (("ca", given.ca), ("certificate", given.certificate)):
        if file is not None and not given.tls:
            raise SettingsError("ha.coordinator-tls", f"it is not true, and ha.coordinator-{name} is for TLS alone")


def _check_activation(settings: BrokerSettings) -> None:
    """Under Pacemaker no agent of ours decides: a wish that nobody would hear must not pass in silence."""
    if settings.coordinator.url.property_set is None:
        return
    instead = {
        "ha.failback": "prefer a node with a location constraint",
        "ha.virtual-ip": "set the resource's parameter virtual_ip",
        "ha.on-promoted": "use Pacemaker's alerts",
        "ha.on-demoted": "use Pacemaker's alerts",
    }
    for key, advice in instead.items():
        if settings.get(key) != TABLE[key].setting.show(TABLE[key].default):
            raise SettingsError(key, f"Pacemaker decides with ha.coordinator: pacemaker; {advice}, docs/pacemaker.md")


def _check_members(ha: HaSettings, listen: Sequence[Address]) -> None:
    count_of_brokers = len(ha.brokers_url)
    if not ha.brokers_url:
        problem = "missing; ha.cluster needs it: name all brokers, such as amqp://node1:5672,node2:5672"
        raise SettingsError("ha.brokers-url", problem)
    if {address.place for address in ha.brokers_url} <= {address.place for address in listen}:
        problem = f"{show_addresses(ha.brokers_url)} names only this broker; name the others too"
        raise SettingsError("ha.brokers-url", problem)
    if count_of_brokers == 1:
        problem = f"{ha.brokers_url[0]} is one broker; name all of the cluster, this one too"
        raise SettingsError("ha.brokers-url", problem)
    if ha.min_in_sync > count_of_brokers:
        problem = f"{ha.min_in_sync} brokers, but ha.brokers-url names {count_of_brokers}"
        raise SettingsError("ha.min-in-sync", f"{problem}: nothing could ever be confirmed; lower it")


def _check_workers(settings: BrokerSettings) -> None:
    """The rest follows from `workers.values_of_worker`: no two of them have anything to themselves in common."""
    workers, ha = settings.workers, settings.ha
    most, own = workers.there_are, workers.own_listener
    if not workers.are_several and not workers.number:
        return
    needs = f"missing; workers ({most}) needs it"
    if settings.coordinator.url.property_set is not None:
        raise SettingsError(
            "workers", "Pacemaker runs one broker on each node: leave it out with ha.coordinator: pacemaker"
        )
    if not workers.number:
        raise SettingsError(
            "workers", f"`qpid-ha-agent run` starts the {most} brokers of this machine; this is one broker"
        )
    if workers.number > most:
        raise SettingsError("worker", f"there is no worker {workers.number}: workers is {most}")
    if not ha.cluster:
        raise SettingsError("ha.cluster", f"{needs}: what a worker alone has nobody takes over")
    if own is None or workers.listen is None:
        raise SettingsError("workers.listen", f"{needs}: where the first one listens for other brokers")
    if settings.activation.virtual_ip is not None:
        problem = f"the {most} agents of this machine would take it from each other"
        raise SettingsError(
            "ha.virtual-ip", f"{problem}: leave it out, and name all machines to clients (ha.public-url)"
        )
    if ha.public_url and ha.clients == "redirect":
        problem = (
            "a client cannot be sent to the worker that leads what it wants, which has no address of its own there"
        )
        raise SettingsError("ha.public-url", f"{problem}: set ha.clients: proxy, or leave it out")
    _check_worker_ports(settings, workers.listen, own)


def _check_worker_ports(settings: BrokerSettings, listen: Address, own: Address) -> None:
    """`listen`: where the first worker listens alone, `own`: where this one does."""
    workers, ha, most = settings.workers, settings.ha, settings.workers.there_are
    last = worker_address(listen, most).port
    if last > _LAST_PORT:
        raise SettingsError("workers.listen", f"worker {most} would have port {last}; choose a lower one")
    ports = range(listen.port, last + 1)
    taken = [address for address in (*settings.listen, *settings.admin.listen) if address != own]
    for address in taken:
        if address.port in ports:
            raise SettingsError(
                "workers.listen", f"workers have the ports {ports[0]} to {last}, and {address} is there"
            )
    for address in settings.admin.listen:
        first = address.port - workers.number + 1
        if address.port and any(first <= other.port < first + most for other in settings.listen):
            raise SettingsError("admin.listen", f"workers have the ports {first} to {first + most - 1}; choose others")
    shared = {address.port for address in settings.listen if workers.is_shared(address)}
    for peer in ha.brokers_url:
        if peer.port in shared:
            problem = f"workers share port {peer.port}, so that {peer} may be any of them"
            raise SettingsError("ha.brokers-url", f"{problem}: name them such as amqp://node1:{ports[0]}-{last}")
    if any(peer.port == own.port for peer in ha.brokers_url):
        return
    problem = f"worker {workers.number} listens for other brokers at port {own.port}, which it does not name"
    raise SettingsError("ha.brokers-url", f"{problem}: name all workers, such as amqp://node1:{ports[0]}-{last}")


_CHECKS: Final = (
    _check_names,
    _check_limits,
    _check_addresses,
    _check_tls,
    _check_admin,
    _check_logins,
    _check_access,
    _check_cluster,
    _check_coordinator,
    _check_activation,
    _check_workers,
)
