"""What addresses mean that are no names: the setting `address-rules`, a list of mappings, or the same as JSON.

`{address: "/queues/{q}", queue: "{q}", percent-encoded: true, arguments: {...}, auto-create: false}`: the pattern, and
one of `queue`, `topic` and `exchange`, the last with a `key` or without. `access.address_rules` says what they do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from qpid_ha_broker.access.address_rules import AddressRule, NodeKind, shadowed
from qpid_ha_config.errors import nearest
from qpid_ha_config.scalars import parse_boolean

EXAMPLE = '{address: "/queues/{name}", queue: "{name}"}'
MOST_RULES = 1000
_KINDS = {kind.value: kind for kind in NodeKind}
_KEYS = ("address", *_KINDS, "key", "percent-encoded", "auto-create", "arguments")


def parse_address_rules(value: object) -> tuple[AddressRule, ...]:
    """Raises ValueError, naming the entry."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"as text it is JSON: {error}") from None
    if not isinstance(value, list | tuple):
        raise ValueError
    if len(value) > MOST_RULES:
        raise ValueError(f"{len(value)} entries, and each address is compared with all: {MOST_RULES} are allowed")
    rules = []
    for number, entry in enumerate(value, 1):
        try:
            rules.append(entry if isinstance(entry, AddressRule) else _rule(entry))
        except ValueError as error:
            raise ValueError(f"entry {number}: {error}") from None
    pair = shadowed(rules)
    if pair is not None:
        rule, before = pair
        later, earlier = rules.index(rule) + 1, rules.index(before) + 1
        text = f"entry {earlier}, {before.address}, takes all addresses of {rule.address}"
        raise ValueError(f"entry {later}: {text}: put that one behind it, or take one out")
    return tuple(rules)


def show_address_rules(rules: Iterable[AddressRule]) -> object:
    """What `parse_address_rules` reads back."""
    return [_shown(rule) for rule in rules]


def _shown(rule: AddressRule) -> dict[str, object]:
    entry: dict[str, object] = {"address": rule.address, rule.kind.value: rule.name}
    if rule.key is not None:
        entry["key"] = rule.key
    if rule.percent_encoded:
        entry["percent-encoded"] = True
    if rule.auto_create is not None:
        entry["auto-create"] = rule.auto_create
    if rule.arguments:
        entry["arguments"] = dict(rule.arguments)
    return entry


def _rule(entry: object) -> AddressRule:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{entry!r:.80} is not a mapping such as {EXAMPLE}")
    for key in entry:
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!s:.40}; {nearest(str(key), _KEYS)}")
    kinds = [name for name in _KINDS if name in entry]
    if "address" not in entry or len(kinds) != 1:
        raise ValueError(f"it has an address and one of {', '.join(_KINDS)}, such as {EXAMPLE}")
    kind = _KINDS[kinds[0]]
    for key, needed in (("key", NodeKind.EXCHANGE), ("arguments", NodeKind.QUEUE)):
        if key in entry and kind is not needed:
            raise ValueError(f"{key} is for a rule with {needed.value}, and this one is about a {kind.value}")
    if kind is NodeKind.EXCHANGE and "auto-create" in entry:
        raise ValueError("auto-create is not for exchanges: an address does not say which kind to make")
    rule = AddressRule(
        _text(entry, "address"),
        kind,
        _text(entry, kind.value),
        _text(entry, "key") if "key" in entry else None,
        _boolean(entry, "percent-encoded") or False,
        _boolean(entry, "auto-create"),
        _arguments(entry.get("arguments", {})),
    )
    problem = rule.problem()
    if problem:
        raise ValueError(problem)
    return rule


def _text(entry: Mapping[Any, object], key: str) -> str:
    text = entry[key]
    if not isinstance(text, str) or not text or not text.isprintable():
        raise ValueError(f"{key} is {text!r:.80}, not printable text; put it in quotes, such as {EXAMPLE}")
    if key in ("address", *_KINDS) and text.startswith("$"):
        raise ValueError(f"{key} is {text!r:.80}: names with $ are the broker's own")
    return text


def _boolean(entry: Mapping[Any, object], key: str) -> bool | None:
    if key not in entry:
        return None
    try:
        return parse_boolean(entry[key])
    except ValueError:
        raise ValueError(f"{key} is {entry[key]!r:.80}, not true or false") from None


def _arguments(value: object) -> Mapping[str, str | int | float | bool]:
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(argument, str | int | float | bool) for name, argument in value.items()
    ):
        raise ValueError(f"arguments is {value!r:.80}, not a mapping such as {{qpid.max_count: 1000}}")
    return MappingProxyType(dict(value))
