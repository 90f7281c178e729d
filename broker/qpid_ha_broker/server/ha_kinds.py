"""The kinds of settings that only a cluster has: URLs of several brokers, rules, levels, the coordinator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from qpid_ha_broker.coordination.cib_record import DEFAULT_NAME, check_name
from qpid_ha_broker.model.queue_arguments import Replicate
from qpid_ha_broker.server.listen_address import ListenAddress
from qpid_ha_broker.server.setting_kinds import MECHANISMS, Kind

NO_COORDINATOR = "none"
_FILE = "file:"
_PACEMAKER = "pacemaker"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
_ANY_INTERFACE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ReplicationRule:
    """Queues and exchanges whose name matches `pattern` (as in a shell: `*`, `?`, `[a-z]`) are replicated so far."""

    pattern: str
    replicate: Replicate

    def matches(self, name: str) -> bool:
        """Upper and lower case differ."""
        return fnmatchcase(name, self.pattern)


def _parse_addresses(value: object) -> tuple[ListenAddress, ...]:
    """`amqp://a:5672,b` or a list of such texts: a scheme holds for those after it too, and is amqp when left out."""
    scheme, addresses = "amqp", []
    for part in _parts(value):
        if isinstance(part, ListenAddress):
            addresses.append(part)
            continue
        found = _SCHEME.match(part)
        scheme, rest = (found[1], part[found.end() :]) if found else (scheme, part)
        if "@" in rest:
            raise ValueError("it takes no user; see ha.username and ha.password-file")
        address = ListenAddress.parse(f"{scheme}://{rest}")
        if address.host in _ANY_INTERFACE:
            raise ValueError(f"{address.host} is every interface, and nobody's address; name the host")
        if address.port == 0:
            raise ValueError(f"port 0 of {address.host} is nobody's; name the port")
        addresses.append(address)
    return tuple(addresses)


def _parts(value: object) -> Iterator[str | ListenAddress]:
    if not isinstance(value, str | list | tuple):
        raise ValueError
    for part in [value] if isinstance(value, str) else value:
        if isinstance(part, ListenAddress):
            yield part
        elif isinstance(part, str):
            yield from (each.strip() for each in part.split(",") if part.strip())
        else:
            raise ValueError(f"{part!r:.80} is not text")


def show_addresses(addresses: Iterable[ListenAddress]) -> str:
    """The URL that `_parse_addresses` reads back; empty for none."""
    texts: list[str] = []
    scheme = ""
    for address in addresses:
        text = str(address)
        texts.append(text if address.scheme != scheme else text.partition("://")[2])
        scheme = address.scheme
    return ",".join(texts)


def read_level(value: object) -> Replicate:
    """`all` is what `messages` was called in qpid. Raises ValueError."""
    text = value.strip().lower() if isinstance(value, str) else ""
    try:
        return Replicate.MESSAGES if text == "all" else Replicate(text)
    except ValueError:
        levels = ", ".join(Replicate)
        raise ValueError(f"{value!r:.80} is no level; known: {levels}, and all, which is messages") from None


def _parse_level(value: object) -> Replicate:
    try:
        return read_level(value)
    except ValueError:
        raise ValueError from None  # the kind says it all


def _parse_rules(value: object) -> tuple[ReplicationRule, ...]:
    if isinstance(value, str):
        return tuple(_rule_of_text(part) for part in value.split(",") if value.strip())
    if isinstance(value, Mapping):
        return tuple(_rule(pattern, level) for pattern, level in value.items())
    if not isinstance(value, list | tuple):
        raise ValueError
    return tuple(_rule_of_item(item) for item in value)


def _rule_of_item(item: object) -> ReplicationRule:
    if isinstance(item, ReplicationRule):
        return item
    if isinstance(item, str):
        return _rule_of_text(item)
    if not isinstance(item, Mapping) or set(item) != {"pattern", "replicate"}:
        raise ValueError(f"a rule is {{pattern: PATTERN, replicate: LEVEL}}, not {item!r:.80}")
    return _rule(item["pattern"], item["replicate"])


def _rule_of_text(text: str) -> ReplicationRule:
    pattern, separator, level = text.rpartition("=")
    if not separator:
        raise ValueError(f"{text!r:.80} is not PATTERN=LEVEL")
    return _rule(pattern.strip(), level)


def _rule(pattern: object, level: object) -> ReplicationRule:
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"{pattern!r:.80} is no pattern; give text such as tmp.*")
    return ReplicationRule(pattern, read_level(level))


def _parse_coordinator(value: object) -> str:
    """Normalised: `none`, or `file:` and an absolute path, or `pacemaker:` and the name of a property set."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    if value.strip().lower() == NO_COORDINATOR:
        return NO_COORDINATOR
    kind, colon, name = value.strip().partition(":")
    if kind == _PACEMAKER:
        return f"{_PACEMAKER}:{check_name(name) if colon else DEFAULT_NAME}"
    if not value.startswith(_FILE):
        raise ValueError
    path = Path(value.removeprefix(_FILE).removeprefix("//")).expanduser()
    if not path.is_absolute():
        raise ValueError("the path is not absolute; it has to mean the same to each broker")
    return f"{_FILE}{path}"


def coordinator_path(coordinator: str) -> Path | None:
    """Where the `file` coordinator keeps its record; None for others."""
    return Path(coordinator.removeprefix(_FILE)) if coordinator.startswith(_FILE) else None


def _parse_mechanism(value: object) -> str:
    if not isinstance(value, str) or value.upper() not in MECHANISMS:
        raise ValueError
    return value.upper()


def _parse_secret(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("put it in quotes" if isinstance(value, int | float) else "")
    if not value or "\0" in value:
        raise ValueError
    return value


def _kind(expected: str, parse: Callable[[object], object], show: Callable[..., object] = lambda value: value) -> Kind:
    return Kind(expected, parse, show)


ADDRESSES = _kind("a URL such as amqp://node1:5672,node2:5672", _parse_addresses, show_addresses)
LEVEL = _kind(f"one of {', '.join(Replicate)}, or all, which is messages", _parse_level, str)
RULES = _kind(
    "a list of {pattern: tmp.*, replicate: none}, or text such as tmp.*=none,log.*=configuration",
    _parse_rules,
    lambda rules: [{"pattern": rule.pattern, "replicate": str(rule.replicate)} for rule in rules],
)
COORDINATOR = _kind("none, file:PATH or pacemaker", _parse_coordinator)
MECHANISM = _kind(f"one of {', '.join(MECHANISMS)}", _parse_mechanism)
SECRET = _kind("text", _parse_secret)
