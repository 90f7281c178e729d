"""What a setting is, and what its value may be: read from YAML or from text, and shown again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, NamedTuple

from qpid_ha_broker.events.set_names import set_name_problem
from qpid_ha_broker.model.queues.queue_arguments import Replicate, parse_level
from qpid_ha_config import coordinator
from qpid_ha_config.access_rules import parse_entries
from qpid_ha_config.address_rules import parse_address_rules, show_address_rules
from qpid_ha_config.addresses import (
    parse_admin_listeners,
    parse_listener,
    parse_listeners,
    parse_peers,
    show_addresses,
)
from qpid_ha_config.errors import ConfigError, SettingsError, shown
from qpid_ha_config.remote_nodes import (
    parse_remote_brokers,
    parse_remote_nodes,
    show_remote_brokers,
    show_remote_nodes,
)
from qpid_ha_config.scalars import (
    format_duration,
    format_size,
    parse_boolean,
    parse_count,
    parse_duration_s,
    parse_path,
    parse_size_bytes,
)

QueueArgument = str | int | float | bool
HIDDEN = "********"
"""What is shown for a secret."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ORIGIN = re.compile(r"(https?)://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII)
MOST_REPLICAS = 100
AUTO = -1
"""The number for a size that the broker chooses."""
LOG_LEVELS = ("debug", "info", "warning", "error")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
MECHANISMS = ("EXTERNAL", "SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1", "PLAIN", "ANONYMOUS")


class Kind(NamedTuple):
    """What a value may be, in words that each refusal quotes.

    `parse` takes what YAML or a command line gave and raises ValueError with the reason, or with none. `show` makes of
    its result what JSON can carry, and what `parse` takes back.
    """

    expected: str
    parse: Callable[[object], Any]
    show: Callable[[Any], object] = lambda value: value


class ChangeScope(Enum):
    """How a setting is changed."""

    RESTART = "with a restart"
    HERE = "at run time"
    """In this broker, which may need another value than others."""
    CLUSTER = "at run time, for all brokers"
    """In the cluster, or in this broker alone."""


class Setting(NamedTuple):
    """What a field's metadata says: its key, what it accepts, whether it may change in a running broker."""

    key: str
    kind: Kind
    change: ChangeScope
    secret: bool
    """Neither shown nor quoted."""

    @property
    def changeable(self) -> bool:
        """Whether a running broker takes another value."""
        return self.change is not ChangeScope.RESTART

    def read(self, value: object) -> Any:
        """The field's value from what YAML or a command line gave. Raises SettingsError."""
        if value is None:
            raise SettingsError(self.key, f"it has no value; give {self.kind.expected}, or leave the line out")
        try:
            return self.kind.parse(value)
        except ValueError as error:
            reason = f": {error}" if str(error) else ""
            given = "what is given" if self.secret else shown(value)
            raise SettingsError(self.key, f"{given} is not {self.kind.expected}{reason}") from None

    def show(self, value: Any) -> object:
        """The field's value as JSON can carry it; None is unset."""
        if value is None:
            return None
        return HIDDEN if self.secret else self.kind.show(value)


def setting(
    key: str, kind: Kind, default: Any = None, *, change: ChangeScope = ChangeScope.RESTART, secret: bool = False
) -> Any:
    """The field that the configuration file calls `key`. A `default` that can be called depends on the machine."""
    row = {"setting": Setting(key, kind, change, secret)}
    if callable(default):
        return field(default_factory=default, metadata=row, repr=not secret)
    return field(default=default, metadata=row, repr=not secret)


class ReplicationRule(NamedTuple):
    """Queues and exchanges whose name matches `pattern` (as in a shell) are replicated so far."""

    pattern: str
    replicate: Replicate


class ResourceSetRule(NamedTuple):
    """Queues whose name matches `pattern` (as in a shell) are in that resource set."""

    pattern: str
    resource_set: str


def _within(parse: Callable[[object], Any], minimum: float, maximum: float) -> Callable[[object], Any]:
    def parse_within(value: object) -> Any:
        number = parse(value)
        if not minimum <= number <= maximum:
            raise ValueError
        return number

    return parse_within


def count(minimum: int, maximum: int) -> Kind:
    """A whole number between `minimum` and `maximum`."""
    return Kind(f"a whole number from {minimum} to {maximum}", _within(parse_count, minimum, maximum))


def count_or_auto(minimum: int, maximum: int) -> Kind:
    """The same, or AUTO."""
    return Kind(
        f"a whole number from {minimum} to {maximum}, or auto",
        lambda value: AUTO if value == "auto" else _within(parse_count, minimum, maximum)(value),
        lambda number: "auto" if number == AUTO else number,
    )


def size(minimum_bytes: int, maximum_bytes: int) -> Kind:
    """A size in bytes, written with or without a unit."""
    bounds = f"from {format_size(minimum_bytes)} to {format_size(maximum_bytes)}"
    parse = _within(parse_size_bytes, minimum_bytes, maximum_bytes)
    return Kind(f"a size {bounds} such as 512KiB, 100MiB, 1GB", parse, format_size)


def duration(minimum_s: float, maximum_s: float) -> Kind:
    """A duration in seconds, written with or without a unit."""
    bounds = f"from {format_duration(minimum_s)} to {format_duration(maximum_s)}"
    parse = _within(lambda value: float(parse_duration_s(value)), minimum_s, maximum_s)
    return Kind(f"a duration {bounds} such as 200ms, 10s, 2m", parse, format_duration)


def choice(*allowed: str) -> Kind:
    """One of a few words, in any case of letters; shown in the spelling of `allowed`."""
    spelling = {word.lower(): word for word in allowed}

    def parse(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in spelling:
            raise ValueError
        return spelling[value.lower()]

    return Kind(f"one of {', '.join(allowed)}", parse)


def _parse_kernel_use(value: object) -> str:
    if value is False:  # as YAML reads a plain `off`
        return "off"
    word: str = _KERNEL_USES.parse(value)
    return word


def choices(*allowed: str) -> Kind:
    """Some of a few words, each once, as a list or as text."""
    spelling = {word.lower(): word for word in allowed}

    def parse(value: object) -> tuple[str, ...]:
        words: object = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(words, list | tuple) or not words:
            raise ValueError
        for word in words:
            if not isinstance(word, str) or word.lower() not in spelling:
                raise ValueError(f"{word!r} is unknown")
        return tuple(dict.fromkeys(spelling[word.lower()] for word in words))

    return Kind(f"a list out of {', '.join(allowed)}", parse, list)


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("put it in quotes" if isinstance(value, int | float) else "")
    if not value or not value.isprintable():
        raise ValueError
    return value


def _parse_name(value: object) -> str:
    """What may be part of a file's name."""
    if not _NAME.fullmatch(name := _parse_text(value)):
        raise ValueError
    return name


def _parse_secret(value: object) -> str:
    """Also with characters that no terminal shows."""
    if not isinstance(value, str):
        raise ValueError("put it in quotes" if isinstance(value, int | float) else "")
    if not value or "\0" in value:
        raise ValueError
    return value


def _parse_command(value: object) -> tuple[str, ...]:
    """Words as a shell would part them, if it is text; no shell ever runs it."""
    if isinstance(value, str):
        words: object = shlex.split(value)  # raises ValueError for a quote without an end
    else:
        words = value
    if not isinstance(words, list | tuple) or not words:
        raise ValueError
    for word in words:
        if not isinstance(word, str) or "\0" in word:
            raise ValueError(f"{word!r:.80} is not text; put it in quotes")
    if not words[0].startswith("/"):
        raise ValueError(f"{words[0]!r:.80} is not the absolute path of a program")
    return tuple(words)


def _parse_virtual_ip(value: object) -> tuple[str, str]:
    """ADDRESS/PREFIX and the interface, or an empty text for it."""
    text, _, nic = _parse_text(value).partition("@")
    address, slash, prefix = text.partition("/")
    ip = ip_address(address)
    if not slash or not prefix.isdecimal() or not 0 < int(prefix) <= ip.max_prefixlen:
        raise ValueError
    if "@" in str(value) and not nic:
        raise ValueError("no interface is named after the @")
    return f"{ip}/{int(prefix)}", nic


def _parse_size_or_auto(value: object) -> int:
    return AUTO if isinstance(value, str) and value.strip().lower() == "auto" else parse_size_bytes(value)


def _parse_queue_arguments(value: object) -> Mapping[str, QueueArgument]:
    if not isinstance(value, Mapping):
        raise ValueError
    for name, argument in value.items():
        if not isinstance(name, str) or not isinstance(argument, str | int | float | bool):
            raise ValueError(f"{name!r} does not name text, a number or a boolean")
    return MappingProxyType(dict(value))


def _parse_rules(value: object) -> tuple[ReplicationRule, ...]:
    if isinstance(value, str):
        return tuple(_rule(part) for part in value.split(",") if value.strip())
    if isinstance(value, Mapping):
        return tuple(_rule({"pattern": pattern, "replicate": level}) for pattern, level in value.items())
    if not isinstance(value, list | tuple):
        raise ValueError
    return tuple(_rule(item) for item in value)


def _parse_policies(value: object) -> tuple[tuple[str, int], ...]:
    """PATTERN=COUNT, as a mapping, a list of them, or text with commas."""
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple):
        pairs = [_policy(item) for item in value]
        value = dict(pairs)
        for pattern, wanted in pairs:
            if str(value[pattern]) != str(wanted):
                raise ValueError(f"{pattern} wants {wanted} and {value[pattern]} replicas: take one of the two out")
    if not isinstance(value, Mapping):
        raise ValueError
    policies = []
    for pattern, wanted in value.items():
        if not isinstance(pattern, str) or not pattern:
            raise ValueError(f"{pattern!r:.80} is no pattern; give text such as audit-*")
        number = parse_count(wanted)
        if not 1 <= number <= MOST_REPLICAS:
            raise ValueError(f"{number} replicas; give 1 to {MOST_REPLICAS}")
        policies.append((pattern, number))
    return tuple(policies)


def _policy(item: object) -> tuple[object, object]:
    if isinstance(item, str):
        pattern, separator, wanted = item.rpartition("=")
        if not separator:
            raise ValueError(f"{item!r:.80} is not PATTERN=COUNT")
        return pattern.strip(), wanted.strip()
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise ValueError(f"{item!r:.80} is not PATTERN=COUNT")
    return item[0], item[1]


def _rule(item: object) -> ReplicationRule:
    if isinstance(item, ReplicationRule):
        return item
    if isinstance(item, str):
        pattern, separator, level = item.rpartition("=")
        if not separator:
            raise ValueError(f"{item!r:.80} is not PATTERN=LEVEL")
        item = {"pattern": pattern.strip(), "replicate": level}
    if not isinstance(item, Mapping) or set(item) != {"pattern", "replicate"}:
        raise ValueError(f"a rule is {{pattern: PATTERN, replicate: LEVEL}}, not {item!r:.80}")
    if not isinstance(item["pattern"], str) or not item["pattern"]:
        raise ValueError(f"{item['pattern']!r:.80} is no pattern; give text such as tmp.*")
    try:
        return ReplicationRule(item["pattern"], parse_level(item["replicate"]))
    except ValueError as error:
        raise ValueError(f"{item['replicate']!r:.80} is not {error}") from None


def _parse_set_rules(value: object) -> tuple[ResourceSetRule, ...]:
    if isinstance(value, str):
        rules = tuple(_set_rule(part) for part in value.split(",") if part.strip())
    elif isinstance(value, Mapping):
        rules = tuple(_set_rule({"pattern": pattern, "set": name}) for pattern, name in value.items())
    elif isinstance(value, list | tuple):
        rules = tuple(_set_rule(item) for item in value)
    else:
        raise ValueError
    sets: dict[str, str] = {}
    for pattern, name in rules:
        if sets.setdefault(pattern, name) != name:
            raise ValueError(f"{pattern} is to be in {sets[pattern]} and in {name}: take one of the two rules out")
    return rules


def _set_rule(item: object) -> ResourceSetRule:
    if isinstance(item, ResourceSetRule):
        return item
    if isinstance(item, str):
        pattern, separator, name = item.rpartition("=")
        if not separator:
            raise ValueError(f"{item!r:.80} is not PATTERN=SET")
        item = {"pattern": pattern.strip(), "set": name.strip()}
    if not isinstance(item, Mapping) or set(item) != {"pattern", "set"}:
        raise ValueError(f"a rule is {{pattern: PATTERN, set: SET}}, not {item!r:.80}")
    pattern, name = item["pattern"], item["set"]
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"{pattern!r:.80} is no pattern; give text such as orders.*")
    if not isinstance(name, str):
        hint = "; to share queues among so many sets, write resource-sets.spread" if pattern == "spread" else ""
        raise ValueError(f"{name!r:.80} is no name of a resource set{hint}")
    problem = set_name_problem(name)
    if problem is not None:
        raise ValueError(problem)
    return ResourceSetRule(pattern, name)


def _parse_access_rules(value: object) -> tuple[str, ...]:
    """As they are written, once it is known that they can be read."""
    entries = value.split("\n") if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError
    try:
        parse_entries(entries)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("acl.rules, ")) from None
    return tuple(entries)


def _parse_patterns(value: object) -> tuple[str, ...]:
    parts: object = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise ValueError
    for part in parts:
        if not isinstance(part, str):
            raise ValueError(f"{part!r:.80} is not text")
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _parse_origins(value: object) -> tuple[str, ...]:
    """As browsers write them: a scheme, a host, and a port that is not the usual one; nothing behind it."""
    origins = []
    for part in _parse_patterns(value):
        match = _ORIGIN.fullmatch(part.lower())
        if match is None:
            raise ValueError(f"{part!r:.80} is no origin")
        usual = {"http": ":80", "https": ":443"}[match[1]]
        origins.append(part.lower().removesuffix(usual))
    return tuple(dict.fromkeys(origins))


_KERNEL_USES = choice("auto", "off", "required")
KERNEL_USE = Kind(_KERNEL_USES.expected, _parse_kernel_use)
BOOLEAN = Kind("true or false", parse_boolean)
TEXT = Kind("text", _parse_text)
NAME = Kind("a text of 1 to 64 letters, digits and . _ -, the first a letter or digit", _parse_name)
SECRET = Kind("text", _parse_secret)
PATH = Kind("a path", parse_path, str)
COMMAND = Kind("a list of the absolute path of a program and its arguments", _parse_command, list)
VIRTUAL_IP = Kind(
    "ADDRESS/PREFIX or ADDRESS/PREFIX@INTERFACE such as 192.168.1.100/24@eth0",
    _parse_virtual_ip,
    lambda value: f"{value[0]}@{value[1]}" if value[1] else value[0],
)
SIZE_OR_AUTO = Kind(
    "a size such as 16MiB, 0 for no limit, or auto",
    _parse_size_or_auto,
    lambda value: "auto" if value == AUTO else format_size(value),
)
LISTENERS = Kind(
    "a list of amqp://HOST[:PORT] or amqps://HOST[:PORT] (0.0.0.0 or [::]: every interface)",
    parse_listeners,
    lambda listed: [str(listener) for listener in listed],
)
LISTENER = Kind("amqp://HOST:PORT or amqps://HOST:PORT (0.0.0.0 or [::]: every interface)", parse_listener, str)
ADMIN_LISTENERS = Kind(
    "a list of http://HOST[:PORT] or https://HOST[:PORT] (0.0.0.0 or [::]: every interface)",
    parse_admin_listeners,
    lambda listed: [str(listener) for listener in listed],
)
PEERS = Kind("a URL such as amqp://node1:5672,node2:5672 or amqp://node1:5701-5704", parse_peers, show_addresses)
COORDINATOR = Kind(coordinator.EXPECTED, coordinator.CoordinatorUrl.parse, str)
MECHANISM = choice(*MECHANISMS)
MECHANISM_LIST = choices(*MECHANISMS)
TLS_VERSION_LIST = choices(*TLS_VERSIONS)
LEVEL = Kind("a level", parse_level, str)
RULES = Kind(
    "a list of {pattern: tmp.*, replicate: none}, or text such as tmp.*=none,log.*=configuration",
    _parse_rules,
    lambda rules: [{"pattern": rule.pattern, "replicate": str(rule.replicate)} for rule in rules],
)
SET_RULES = Kind(
    "a list of {pattern: orders.*, set: orders}, or text such as orders.*=orders,log.*=logs",
    _parse_set_rules,
    lambda rules: [{"pattern": rule.pattern, "set": rule.resource_set} for rule in rules],
)
POLICIES = Kind(
    "a mapping of patterns to numbers such as {audit-*: 5, '*': 3}", _parse_policies, lambda policies: dict(policies)
)
ORIGINS = Kind("a list of origins such as https://shop.example.org,https://test.example.org:8443", _parse_origins, list)
PATTERNS = Kind("a list of patterns of names such as orders.*,audit; an empty one for none", _parse_patterns, list)
ADDRESS_RULES = Kind(
    'a list of rules such as {address: "/queues/{name}", queue: "{name}"}, or the same as JSON',
    parse_address_rules,
    show_address_rules,
)
QUEUE_ARGUMENTS = Kind("a mapping such as {qpid.max_count: 1000}", _parse_queue_arguments, dict)
REMOTE_NODES = Kind(
    "a mapping such as {orders: {url: amqp://node1:5672/orders, user: U, password-file: PATH}}",
    parse_remote_nodes,
    show_remote_nodes,
)
ACCESS_RULES = Kind(
    "a list of rules such as `allow alice publish orders.*`, or the same as text with a rule in each line",
    _parse_access_rules,
    list,
)
REMOTE_BROKERS = Kind(
    "a list of {url: amqp://node1:5672, user: U, password-file: PATH}", parse_remote_brokers, show_remote_brokers
)
