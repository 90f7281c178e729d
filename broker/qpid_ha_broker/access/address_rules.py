"""What an address means that is not the name of something: rules, the first that fits decides.

A rule has a pattern of addresses. `{NAME}` in it stands for one or more characters up to the first one of what follows,
at the end for all that is left; the rest stands for itself. What it means is a queue, a topic or an exchange, whose
name (and key) are templates with the same `{NAME}`s in them.

What a link asks for            the rule `news.{x}` -> topic `news.{x}`    the rule `/topic/{x}` -> topic `{x}`
------------------------------  ------------------------------------------  ------------------------------------
nothing in particular           the topic                                   the topic
a topic                         the topic                                   the topic
a queue                         passed over: the next rule, or the queue    refused: the address says otherwise

So one name may be a queue and a topic, unless the address itself says which. A percent-encoded rule decodes what a
`{NAME}` stands for, as RabbitMQ 4 has it: then a `/` is written %2F.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.errors import InvalidArgument

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z][A-Za-z0-9_-]*)\}")
_SAMPLE: Final = "\ue000"
"""Stands for what a placeholder may stand for; nobody writes it."""
_NO_ARGUMENTS: Final[Mapping[str, Scalar]] = MappingProxyType({})
_WRONG_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class NodeKind(Enum):
    """What an address stands for, or a link asks for; the value is its name in a rule."""

    QUEUE = "queue"
    TOPIC = "topic"
    EXCHANGE = "exchange"


class Named(NamedTuple):
    """What a rule makes of an address."""

    kind: NodeKind
    name: str
    key: str | None
    """Of an exchange; None: the address has none."""


class AddressRule(NamedTuple):
    """One of them. Whoever makes it asks `problem` whether it can be."""

    address: str
    """The pattern."""
    kind: NodeKind
    name: str
    """The template."""
    key: str | None = None
    """The template of an exchange's key; None: each message's subject is its key."""
    percent_encoded: bool = False
    auto_create: bool | None = None
    """Whether what is not there is made, and a topic is there that nobody has declared; None: as for all others."""
    arguments: Mapping[str, Scalar] = _NO_ARGUMENTS
    """Of a queue that is made."""

    @property
    def keeps_name(self) -> bool:
        """What it means is called as the address is: so the address does not say what it is."""
        return self.name == self.address and self.key is None

    def fits(self, address: str) -> bool:
        """Whether the address is one of the pattern."""
        return _compiled(self.address).fullmatch(address) is not None

    def apply(self, address: str) -> Named | None:
        """What it means; None: it does not fit. Raises InvalidArgument where it is not encoded as it should be."""
        match = _compiled(self.address).fullmatch(address)
        if match is None:
            return None
        names = _PLACEHOLDER.findall(self.address)
        values = dict(zip(names, match.groups(), strict=True))
        if self.percent_encoded:
            values = {name: self._decoded(value, address) for name, value in values.items()}
        key = None if self.key is None else _rendered(self.key, values)
        return Named(self.kind, _rendered(self.name, values), key)

    def _decoded(self, text: str, address: str) -> str:
        rule = f"address-rules decode {self.address}"
        if "/" in text:
            raise InvalidArgument(f"{address}: {rule}, so write a / in a name as %2F")
        wrong = _WRONG_PERCENT.search(text)
        if wrong is not None:
            raise InvalidArgument(
                f"{address}: {rule}, and {text[wrong.start() : wrong.start() + 3]} is no byte in hexadecimal digits:"
                " write a % in a name as %25"
            )
        try:
            return unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"{address}: {rule}, and what is encoded is not UTF-8") from None

    def problem(self) -> str:
        """Why it cannot be one; empty: it can."""
        names = _PLACEHOLDER.findall(self.address)
        for text in (self.address, self.name, self.key or ""):
            if "{" in (rest := _PLACEHOLDER.sub("", text)) or "}" in rest:
                return f"{text!r:.80} has a brace that is none of a {{NAME}} of letters, digits, - and _"
        if len(set(names)) < len(names):
            return f"{self.address} has a {{NAME}} twice"
        if "}{" in self.address:
            return f"{self.address} has two {{NAME}} with nothing between them: where would the first one end?"
        for name in _PLACEHOLDER.findall(f"{self.name}{self.key or ''}"):
            if name not in names:
                return f"{{{name}}} is not in the address {self.address}"
        return ""


BUILT_IN: Final = (
    AddressRule("queue://{name}", NodeKind.QUEUE, "{name}"),
    AddressRule("topic://{name}", NodeKind.TOPIC, "{name}"),
)


def rules_in_force(rules: Sequence[AddressRule]) -> tuple[AddressRule, ...]:
    """`rules` behind the built-in ones, of which those go whose beginning one of `rules` has, too."""
    own = [rule.address.partition("{")[0] for rule in rules]
    kept = [rule for rule in BUILT_IN if not any(begin.startswith(rule.address.partition("{")[0]) for begin in own)]
    return (*kept, *rules)


def shadowed(rules: Sequence[AddressRule]) -> tuple[AddressRule, AddressRule] | None:
    """A rule that nothing ever comes to, and the one before it that takes all of that; None: there is no such rule."""
    for at, rule in enumerate(rules):
        sample = _PLACEHOLDER.sub(_SAMPLE, rule.address)
        for before in rules[:at]:
            passes_over = before.keeps_name and before.kind is not rule.kind
            if before.fits(sample) and not passes_over:
                return rule, before
    return None


@cache
def _compiled(address: str) -> re.Pattern[str]:
    """A placeholder ends at the first character of what follows it: so matching takes no longer than reading."""
    pieces = _PLACEHOLDER.split(address)
    literals = pieces[::2]
    pattern = re.escape(literals[0])
    for following in literals[1:]:
        pattern += f"([^{re.escape(following[0])}]+){re.escape(following)}" if following else "(.+)"
    return re.compile(pattern, re.DOTALL)


def _rendered(template: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)
