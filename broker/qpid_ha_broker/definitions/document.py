"""Definitions as a file has them: sets, policies, exchanges, queues and bindings, settings of the cluster, and users.

| key | entries | |
| --- | --- | --- |
| `format` | 1 | |
| `sets` | `name`, `strategy`, `min-replicas`, `min-in-sync`, `preferred` | all but `default` |
| `replica-policies` | `pattern`, `replicas` | in their order: the first that matches counts |
| `exchanges` | `name`, `kind`, `arguments` | all but the standard ones |
| `queues` | `name`, `set`, `arguments` | left out are those that belong to a client: see `is_of_client` |
| `bindings` | `exchange`, `queue`, `key`, `arguments` | of these queues |
| `settings` | `key`, `value` | those of the cluster; rules of access are one, `acl.rules` |
| `users` | `name`, `verifiers` | those of the cluster, only where asked for: by these, passwords can be guessed |
| `tokens` | `name`, `role`, `digest` | the same of the HTTP port |

What is left out has its default. JSON is YAML, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from qpid_ha_broker.events.types import STRATEGIES
from qpid_ha_config.errors import ConfigError, SettingsError, nearest, shown
from qpid_ha_config.kinds import ChangeScope
from qpid_ha_config.settings import find
from qpid_ha_config.strict_yaml import StrictLoader, read_yaml
from qpid_ha_config.tokens import read_entry
from qpid_ha_config.users import read_user

FORMAT: Final = 1
DEFAULT_SET: Final = "default"
EXCHANGE_KINDS: Final = ("direct", "topic", "fanout", "headers")
STANDARD_PREFIX: Final = "amq."
"""Exchanges that are always there have names that begin so."""
_OF_CLIENTS: Final = ("qpid.subscription", "qpid.exclusive", "qpid.auto_delete")
"""Arguments of queues that belong to a client, or go with one."""
_OF_THE_CLUSTER: Final = "of the cluster"
"""The origin of a policy that an operator has given; the others are settings."""
_SET_BY_BROKER: Final = ("qpid.created_by",)

Arguments = Mapping[str, object]


class SetDefinition(NamedTuple):
    """A resource set; None: as the settings of the cluster say."""

    name: str
    strategy: str = STRATEGIES[0]
    min_replicas: int | None = None
    min_in_sync: int | None = None
    preferred: str | None = None


class ReplicaPolicy(NamedTuple):
    """So many replicas for sets whose names match `pattern`."""

    pattern: str
    replicas: int


class ExchangeDefinition(NamedTuple):
    """An exchange, without its bindings."""

    name: str
    kind: str
    arguments: Arguments


class QueueDefinition(NamedTuple):
    """A queue, without its messages. `set` empty: where the rules of the cluster put it."""

    name: str
    set: str
    arguments: Arguments

    @property
    def asked(self) -> dict[str, object]:
        """The arguments with which it is to be declared."""
        return {**self.arguments, "qpid.resource-set": self.set} if self.set else dict(self.arguments)


class BindingDefinition(NamedTuple):
    """What matches `key` goes from the exchange to the queue."""

    exchange: str
    queue: str
    key: str
    arguments: Arguments


class SettingDefinition(NamedTuple):
    """A setting that counts for all brokers. `value`: as JSON can carry it, and as a broker shows it."""

    key: str
    value: object


class UserDefinition(NamedTuple):
    """A user of the cluster, with what his password is checked by."""

    name: str
    verifiers: str


class TokenDefinition(NamedTuple):
    """A token of the cluster."""

    name: str
    role: str
    digest: str


@dataclass(frozen=True)
class Definitions:
    """All that is defined, each in the order in which it was made, or written."""

    sets: tuple[SetDefinition, ...] = ()
    policies: tuple[ReplicaPolicy, ...] = ()
    exchanges: tuple[ExchangeDefinition, ...] = ()
    queues: tuple[QueueDefinition, ...] = ()
    bindings: tuple[BindingDefinition, ...] = ()
    settings: tuple[SettingDefinition, ...] = ()
    users: tuple[UserDefinition, ...] = ()
    tokens: tuple[TokenDefinition, ...] = ()

    @property
    def without_users(self) -> Definitions:
        """The same, but for users and tokens."""
        return replace(self, users=(), tokens=())

    def as_document(self) -> dict[str, Any]:
        """As the file has it: what is as by default is left out."""
        sections = {
            "sets": [_entry(definition, {"strategy": STRATEGIES[0]}) for definition in self.sets],
            "replica-policies": [_entry(policy) for policy in self.policies],
            "exchanges": [_entry(exchange) for exchange in self.exchanges],
            "queues": [_entry(queue) for queue in self.queues],
            "bindings": [_entry(binding) for binding in self.bindings],
            "settings": [setting._asdict() for setting in self.settings],
            "users": [user._asdict() for user in self.users],
            "tokens": [token._asdict() for token in self.tokens],
        }
        return {"format": FORMAT, **{name: entries for name, entries in sections.items() if entries}}


def _entry(definition: Any, usual: Mapping[str, object] = {}) -> dict[str, object]:
    """Its fields without those that are empty or as usual."""
    fields = {name.replace("_", "-"): value for name, value in definition._asdict().items()}
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in fields.items()
        if value not in (None, "", {}) and value != usual.get(name)
    }


def is_of_client(arguments: Arguments) -> bool:
    """Whether a queue belongs to a client, which makes it itself: a subscription, a temporary or exclusive queue."""
    return any(arguments.get(name) for name in _OF_CLIENTS)


def definitions_of(
    queues: Sequence[Mapping[str, Any]],
    exchanges: Sequence[Mapping[str, Any]],
    sets: Sequence[Mapping[str, Any]],
    policies: Sequence[Mapping[str, Any]],
    settings: Sequence[Mapping[str, Any]] = (),
    users: Sequence[Mapping[str, Any]] = (),
    tokens: Sequence[Mapping[str, Any]] = (),
) -> Definitions:
    """What is there, by the lists of a broker."""
    kept = [row for row in queues if not is_of_client(row.get("arguments") or {})]
    names = {row["name"] for row in kept}
    return Definitions(
        sets=tuple(_set_of(row) for row in sets if row["name"] != DEFAULT_SET),
        policies=tuple(
            ReplicaPolicy(row["pattern"], row["replicas"]) for row in policies if row.get("origin") == _OF_THE_CLUSTER
        ),
        exchanges=tuple(
            ExchangeDefinition(row["name"], row["kind"], dict(row.get("arguments") or {}))
            for row in exchanges
            if not row["name"].startswith(STANDARD_PREFIX)
        ),
        queues=tuple(_queue_of(row) for row in kept),
        bindings=tuple(
            BindingDefinition(row["name"], binding["queue"], binding["key"], dict(binding.get("arguments") or {}))
            for row in exchanges
            for binding in row.get("bindings") or ()
            if binding["queue"] in names
        ),
        settings=tuple(SettingDefinition(row["key"], row["cluster"]) for row in settings if row["cluster"] is not None),
        users=tuple(UserDefinition(row["name"], row["verifiers"]) for row in users),
        tokens=tuple(TokenDefinition(row["name"], row["role"], row["digest"]) for row in tokens),
    )


def _set_of(row: Mapping[str, Any]) -> SetDefinition:
    return SetDefinition(
        name=row["name"],
        strategy=row.get("strategy") or STRATEGIES[0],
        min_replicas=row.get("min_replicas") or None,
        min_in_sync=row.get("min_in_sync") or None,
        preferred=row.get("preferred") or None,
    )


def _queue_of(row: Mapping[str, Any]) -> QueueDefinition:
    arguments = {name: value for name, value in (row.get("arguments") or {}).items() if name not in _SET_BY_BROKER}
    arguments.pop("qpid.resource-set", None)
    set_name = row.get("set") or DEFAULT_SET
    return QueueDefinition(row["name"], "" if set_name == DEFAULT_SET else set_name, arguments)


# --- reading a file


def read_definitions(path: Path | str, text: str) -> Definitions:
    """Raises ConfigError with file, line, and the nearest word, for the first thing that is wrong."""

    def definitions(loader: StrictLoader, root: yaml.Node | None) -> Definitions:
        return _FileReader(loader).definitions(root)

    return read_yaml(path, text, definitions)


_SECTIONS: Final[dict[str, dict[str, type]]] = {
    "sets": {"name": str, "strategy": str, "min-replicas": int, "min-in-sync": int, "preferred": str},
    "replica-policies": {"pattern": str, "replicas": int},
    "exchanges": {"name": str, "kind": str, "arguments": dict},
    "queues": {"name": str, "set": str, "arguments": dict},
    "bindings": {"exchange": str, "queue": str, "key": str, "arguments": dict},
    "settings": {"key": str, "value": object},
    "users": {"name": str, "verifiers": str},
    "tokens": {"name": str, "role": str, "digest": str},
}
"""Which fields the entries of each section have, and of what type."""
_REQUIRED: Final = {
    "sets": ("name",),
    "replica-policies": ("pattern", "replicas"),
    "exchanges": ("name", "kind"),
    "queues": ("name",),
    "bindings": ("exchange", "queue"),
    "settings": ("key", "value"),
    "users": ("name", "verifiers"),
    "tokens": ("name", "role", "digest"),
}
_TYPES: Final = {str: "a text", int: "a whole number from 1 up", dict: "names with values"}


class _FileReader:
    def __init__(self, loader: StrictLoader) -> None:
        self._loader = loader

    def definitions(self, root: yaml.Node | None) -> Definitions:
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(self._loader.name, "", "expected `format: 1` and sections such as `queues:`")
        sections: dict[str, list[dict[str, Any]]] = {}
        version: object = None
        for key, node in root.value:
            name = self._loader.construct_object(key)
            if name == "format":
                version = self._loader.construct_object(node)
            elif name not in _SECTIONS:
                hint = nearest(str(name)[:80], ("format", *_SECTIONS))
                raise self._error(key, "", f"there is no section {shown(name)}; {hint}")
            else:
                sections[name] = list(self._entries(name, node))
        if version != FORMAT:
            given = "is missing" if version is None else f"is {shown(version)}"
            raise ConfigError(self._loader.name, "format", f"{given}: this version reads `format: {FORMAT}`")
        return Definitions(
            sets=tuple(SetDefinition(**_fields(entry)) for entry in sections.get("sets", ())),
            policies=tuple(ReplicaPolicy(**entry) for entry in sections.get("replica-policies", ())),
            exchanges=tuple(ExchangeDefinition(**{"arguments": {}, **e}) for e in sections.get("exchanges", ())),
            queues=tuple(QueueDefinition(**{"set": "", "arguments": {}, **e}) for e in sections.get("queues", ())),
            bindings=tuple(
                BindingDefinition(**{"key": "", "arguments": {}, **e}) for e in sections.get("bindings", ())
            ),
            settings=tuple(SettingDefinition(**entry) for entry in sections.get("settings", ())),
            users=tuple(UserDefinition(**entry) for entry in sections.get("users", ())),
            tokens=tuple(TokenDefinition(**entry) for entry in sections.get("tokens", ())),
        )

    def _entries(self, section: str, node: yaml.Node) -> Iterator[dict[str, Any]]:
        if node.tag.endswith(":null"):
            return
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, section, "expected a list: a line that begins with `- ` for each")
        seen: set[tuple[object, ...]] = set()
        for entry in node.value:
            fields = self._fields_of(section, entry)
            identity = tuple(fields.get(name) for name in ("name", "pattern", "exchange", "queue", "key"))
            if identity in seen:
                raise self._error(entry, section, "the same is defined twice; take one out")
            seen.add(identity)
            yield fields

    def _fields_of(self, section: str, entry: yaml.Node) -> dict[str, Any]:
        known = _SECTIONS[section]
        if not isinstance(entry, yaml.MappingNode):
            raise self._error(entry, section, f"expected {', '.join(known)} with values")
        fields: dict[str, Any] = {}
        for key, node in entry.value:
            name = self._loader.construct_object(key)
            if name not in known:
                hint = nearest(str(name)[:80], known)
                raise self._error(key, section, f"there is no field {shown(name)}; {hint}")
            value = self._loader.construct_object(node, deep=True)
            if known[name] is object:
                fields[name] = value
                continue
            if not isinstance(value, known[name]) or isinstance(value, bool) or (isinstance(value, int) and value < 1):
                raise self._error(node, name, f"expected {_TYPES[known[name]]}, found {shown(value)}")
            if isinstance(value, dict):
                self._check_arguments(node, value)
            fields[name] = value
        for name in _REQUIRED[section]:
            if fields.get(name) in (None, ""):
                raise self._error(entry, section, f"{name} is missing")
        if section == "settings":
            fields["value"] = self._setting(entry, **fields)
        if section in ("users", "tokens"):
            self._check_login(section, entry, **fields)
        self._check_word(entry, fields, "kind", EXCHANGE_KINDS)
        self._check_word(entry, fields, "strategy", STRATEGIES)
        return fields

    def _setting(self, entry: yaml.Node, key: str, value: object) -> object:
        """As a broker shows it."""
        try:
            setting = find(key).setting
            if setting.change is not ChangeScope.CLUSTER:
                raise SettingsError(key, "it is no setting of a cluster: each broker has its own, in its file")
            return setting.show(setting.read(value))
        except SettingsError as error:
            raise self._error(entry, error.key, error.problem) from None

    def _check_login(self, section: str, entry: yaml.Node, name: str, **secret: str) -> None:
        try:
            if section == "users":
                read_user(name, **secret)
            else:
                read_entry([name, secret["role"], secret["digest"]])
        except ValueError as error:
            raise self._error(entry, f"{section}, {name}", str(error)) from None

    def _check_word(self, entry: yaml.Node, fields: Mapping[str, Any], name: str, known: Sequence[str]) -> None:
        if name in fields and fields[name] not in known:
            raise self._error(entry, name, f"there is no {shown(fields[name])}; {nearest(fields[name][:80], known)}")

    def _check_arguments(self, node: yaml.Node, arguments: Mapping[Any, object]) -> None:
        for name, value in arguments.items():
            if not isinstance(name, str):
                raise self._error(node, "arguments", f"a name is a text, not {shown(name)}: put it in quotes")
            if not isinstance(value, str | int | float):
                raise self._error(node, name, f"a value is a text, a number, true or false, not {shown(value)}")

    def _error(self, node: yaml.Node, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self._loader.name}:{node.start_mark.line + 1}", key, problem)


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in entry.items()}
