"""What a peer asks for when it attaches, as plain values, and what it is answered (AMQP 1.0 section 3.5).

The answer says what the peer has got. What it asked for and does not get is not repeated, so that it can tell; where
that would change what the link means, the link is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import proton

from qpid_ha_broker.access.address_rules import NodeKind
from qpid_ha_broker.amqp.selectors.selector import Selector, SelectorError, parse_selector
from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, NOT_IMPLEMENTED, AmqpError
from qpid_ha_broker.amqp.wire.sections import DESTINATION_KIND, MessageSections
from qpid_ha_broker.amqp.wire.values import value_of
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import Exchange, ExchangeKind
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import PREFIX, check_settable

SELECTOR = "apache.org:selector-filter:string"
AFTER = "qpid-ha.org:after:ulong"
"""Of a browser: begin behind the message with this id, and go on by ascending ids."""
_SELECTOR_NAMES = (SELECTOR, 0x468C00000004)
_BINDING_NAMES = (
    "apache.org:legacy-amqp-direct-binding:string",
    "apache.org:legacy-amqp-topic-binding:string",
    0x468C00000000,
    0x468C00000001,
)
_HEADERS_BINDING_NAMES = ("apache.org:legacy-amqp-headers-binding:map", 0x468C00000002)
_NO_LOCAL_NAMES = ("apache.org:no-local-filter:list", 0x468C00000003)

DELETE_ON_NO_LINKS = "amqp:delete-on-no-links:list"
DELETE_ON_CLOSE = "amqp:delete-on-close:list"

QUEUE_CAPABILITIES = frozenset({"queue", "temporary-queue"})
TOPIC_CAPABILITIES = frozenset({"topic", "temporary-topic"})
TEMPORARY_CAPABILITIES = frozenset({"temporary-queue", "temporary-topic"})
TEMPORARY = "temporary."
"""What the names of queues, and of topics, with a dynamic address begin with; for access control the name of one to be
made."""
DELAYED_DELIVERY = "DELAYED_DELIVERY"
"""Of a target, and of a connection: what asks for that is delivered later."""
SHARED = "shared"
"""Of a source: several links consume from one subscription, whose name is theirs up to a `|`."""
GLOBAL = "global"
"""Beside it: whatever their container ids are."""
LONGEST_TIMEOUT_S = 86_400
"""That a subscription waits for its link."""
NO_CREATE = "qpid.no-create"
"""Of a target: a node that is not there is not to be made."""
_OUTCOMES = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")


class Terminus(NamedTuple):
    """A source or a target. `address` None: the peer named none."""

    address: str | None
    dynamic: bool
    coordinator: bool
    durable: bool
    """It is to stay for ever without its link."""
    browse: bool
    capabilities: frozenset[str]
    arguments: dict[str, Scalar]
    """Queue arguments (`qpid.*`) from the node properties, for a node that is made on demand."""
    timeout_s: int = 0
    """So long it is to stay without its link; 0: not at all, or for ever."""

    @property
    def topic(self) -> bool:
        """The peer expects publish-subscribe."""
        return bool(self.capabilities & TOPIC_CAPABILITIES)

    @property
    def queue(self) -> bool:
        """The peer expects a queue."""
        return bool(self.capabilities & QUEUE_CAPABILITIES)

    @property
    def kind(self) -> NodeKind | None:
        """What the peer expects; None: it does not say, or says both."""
        capabilities = self.capabilities
        if not capabilities:
            return None
        is_queue = not QUEUE_CAPABILITIES.isdisjoint(capabilities)
        if is_queue is not TOPIC_CAPABILITIES.isdisjoint(capabilities):
            return None
        return NodeKind.QUEUE if is_queue else NodeKind.TOPIC

    @property
    def temporary(self) -> bool:
        """The peer expects what somebody has got by a dynamic address."""
        return bool(self.capabilities & TEMPORARY_CAPABILITIES)


COORDINATOR_CAPABILITIES: Final = ("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
"""Several transactions at a time, and each over all sessions of its connection."""


def read_terminus(terminus: proton.Terminus) -> Terminus:
    """Read a remote source or target."""
    durable = terminus.expiry_policy == proton.Terminus.EXPIRE_NEVER
    return Terminus(
        address=terminus.address or None,
        dynamic=bool(terminus.dynamic),
        coordinator=terminus.type == proton.Terminus.COORDINATOR,
        durable=durable,
        timeout_s=0 if durable else min(terminus.timeout, LONGEST_TIMEOUT_S),
        browse=terminus.distribution_mode == proton.Terminus.DIST_MODE_COPY,
        capabilities=frozenset(str(name) for name in _flattened(value_of(terminus.capabilities))),
        arguments=_queue_arguments(value_of(terminus.properties)),
    )


def terminus_of_message(sections: MessageSections, payload: bytes) -> Terminus | None:
    """What a message for an anonymous relay says of its address by the annotation `x-opt-jms-dest`, as a link would by
    its capabilities; None: nothing. Raises AmqpError."""
    kind = sections.destination_kind(payload, sections.header(payload).length)
    if kind is None:
        return None
    if not isinstance(kind, int) or isinstance(kind, bool) or not 0 <= kind < len(_OF_MESSAGES):
        text = "0 (a queue), 1 (a topic), 2 (a temporary queue) or 3 (a temporary topic)"
        raise AmqpError(INVALID_FIELD, f"message annotation {DESTINATION_KIND}: expected {text}, found {kind!r:.80}")
    return _OF_MESSAGES[kind]


_OF_MESSAGES = tuple(
    Terminus(None, False, False, False, False, frozenset({capability}), {})
    for capability in ("queue", "topic", "temporary-queue", "temporary-topic")
)


def answer_terminus(
    own: proton.Terminus, remote: proton.Terminus, asked: Terminus, node: Queue | Exchange | None, key: str = "", *,
    durable: bool, timeout_s: int = 0, sharing: frozenset[str] = frozenset(), is_target: bool = False,
) -> None:  # fmt: skip
    """Fill in what the peer gets: of capabilities and node properties those that hold for `node`, or for its `key`.

    `durable`: what has been set up outlives the link. With `timeout_s` it does for so long, counted from the end of the
    link, whatever else has ended. Nothing else does, and no unsettled deliveries. `sharing`: who shares it.
    `is_target`: messages can be sent there.
    """
    own.copy(remote)
    own.durability = proton.Terminus.CONFIGURATION if durable else proton.Terminus.NONDURABLE
    own.expiry_policy = proton.Terminus.EXPIRE_NEVER if durable else proton.Terminus.EXPIRE_WITH_LINK
    own.timeout = timeout_s
    held = _held_by(node, key) | sharing | ({DELAYED_DELIVERY} if is_target else frozenset())
    _put_symbols(own.capabilities, sorted(asked.capabilities & held))
    properties: dict[Any, object] = {}
    if isinstance(node, Queue):
        given = node.arguments.given
        properties = {proton.symbol(n): value for n, value in asked.arguments.items() if given.get(n) == value}
    if asked.dynamic:
        properties[proton.symbol("lifetime-policy")] = proton.Described(proton.symbol(DELETE_ON_CLOSE), [])
    own.properties.clear()
    if properties:
        own.properties.put_object(properties)


def answer_coordinator(own: proton.Terminus) -> None:
    """What a coordinator can, whatever the peer hopes for (AMQP 1.0 section 4.5.7): nothing of another broker's."""
    _put_symbols(own.capabilities, COORDINATOR_CAPABILITIES)


def _held_by(node: Queue | Exchange | None, key: str) -> frozenset[str]:
    if node is None:
        return frozenset()
    kinds, name = (QUEUE_CAPABILITIES, node.name) if isinstance(node, Queue) else (TOPIC_CAPABILITIES, key)
    return kinds if name.startswith(TEMPORARY) else kinds - TEMPORARY_CAPABILITIES


def answer_source(own: proton.Terminus, remote: proton.Terminus, filters: Filters) -> None:
    """The part of the answer that only a source has: filters that are applied, outcomes that are known."""
    own.filter.clear()
    if filters.applied:
        own.filter.put_object(filters.applied)
    _put_symbols(own.outcomes, [name for name in map(str, _flattened(value_of(remote.outcomes))) if name in _OUTCOMES])


def _put_symbols(data: proton.Data, names: Sequence[str]) -> None:
    data.clear()
    if names:
        symbols = map(proton.symbol, names)
        data.put_object(proton.Array(proton.UNDESCRIBED, proton.Data.SYMBOL, *symbols))  # type: ignore[arg-type]


class Filters(NamedTuple):
    """The filters of a source, each known at most once. `applied` goes back to the peer, which can see what was not."""

    selector: Selector | None
    binding_key: str | None
    headers: dict[str, Scalar] | None
    after: int | None
    applied: dict[proton.symbol, object]
    no_local: bool = False
    """What the subscriber publishes itself is not for it."""
    bindings: Mapping[proton.symbol, object] = {}
    """Those of `applied` that only the binding of a subscription has a use for."""

    def for_queue(self) -> Filters:
        """What of them is applied by a consumer of a queue. Raises AmqpError for `no-local`: others count on having in
        the queue what it publishes there."""
        if self.no_local:
            text = "the filter no-local is for subscriptions to exchanges: leave it out, and skip what you have sent"
            raise AmqpError(NOT_IMPLEMENTED, text)
        return self._without(self.bindings)

    def for_exchange(self, kind: ExchangeKind) -> Filters:
        """What of them is applied by a subscription to an exchange of that kind: only some look at keys or headers."""
        by_headers = kind is ExchangeKind.HEADERS
        idle = {
            name: described
            for name, described in self.bindings.items()
            if kind is ExchangeKind.FANOUT or (_kind_of(described) == "headers") is not by_headers
        }
        idle |= {name: described for name, described in self.applied.items() if _kind_of(described) == "after"}
        return self._without(idle)._replace(after=None)

    def _without(self, names: Mapping[proton.symbol, object]) -> Filters:
        return self._replace(applied={name: described for name, described in self.applied.items() if name not in names})


def read_filters(source: proton.Terminus) -> Filters:
    """Read the filter set. Unknown filters are left out, as the standard says.

    Raises AmqpError for a malformed one, and for two of a kind, of which only one could be applied.
    """
    given = value_of(source.filter)
    by_kind: dict[str, tuple[proton.symbol, proton.Described]] = {}
    for name, described in given.items() if isinstance(given, dict) else ():
        kind = _kind_of(described)
        if kind in by_kind:
            raise AmqpError(INVALID_FIELD, f"two filters are of the kind {kind}, and only one can be applied")
        if kind:
            by_kind[kind] = proton.symbol(name), described
    values = {kind: described.value for kind, (_, described) in by_kind.items()}
    return Filters(
        _selector(values["selector"]) if "selector" in values else None,
        str(values["key"]) if "key" in values else None,
        _scalars(cast(dict[Any, object], values["headers"])) if "headers" in values else None,
        _message_id(values["after"]) if "after" in values else None,
        applied=dict(by_kind.values()),
        no_local="no-local" in by_kind,
        bindings=dict(by_kind[kind] for kind in ("key", "headers") if kind in by_kind),
    )


def binding_key_of(source: proton.Terminus) -> str | None:
    """The key that a filter has, whatever the others are: they may be for another broker to read."""
    given = value_of(source.filter)
    for described in given.values() if isinstance(given, dict) else ():
        if _kind_of(described) == "key":
            return str(described.value)
    return None


def _kind_of(described: object) -> str:
    """Which filter it is: selector, key, headers, after or no-local; empty for one that is unknown."""
    if not isinstance(described, proton.Described):
        return ""
    descriptor = described.descriptor
    if descriptor in _HEADERS_BINDING_NAMES:
        return "headers" if isinstance(described.value, dict) else ""
    kinds = {"selector": _SELECTOR_NAMES, "key": _BINDING_NAMES, "after": (AFTER,), "no-local": _NO_LOCAL_NAMES}
    return next((kind for kind, names in kinds.items() if descriptor in names), "")


def _selector(text: object) -> Selector:
    if not isinstance(text, str):
        raise AmqpError(INVALID_FIELD, f"a selector is a text, not {text!r}")
    try:
        return parse_selector(text)
    except SelectorError as error:
        raise AmqpError(INVALID_FIELD, f"selector: {error}") from error


def _message_id(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise AmqpError(INVALID_FIELD, f"{AFTER} takes a message id, a ulong, not {value!r:.80}")
    return int(value)


def _flattened(value: object) -> list[object]:
    if isinstance(value, proton.Array):
        return list(value.elements)
    return value if isinstance(value, list) else [] if value is None else [value]


def _queue_arguments(properties: object) -> dict[str, Scalar]:
    if not isinstance(properties, dict):
        return {}
    given = _scalars(properties)
    try:
        check_settable(given)
    except ModelError as error:
        raise AmqpError(INVALID_FIELD, str(error)) from error
    arguments = {name: value for name, value in given.items() if name.startswith(PREFIX)}
    policy = properties.get("lifetime-policy")
    if isinstance(policy, proton.Described) and policy.descriptor in (DELETE_ON_NO_LINKS, 0x2C):
        arguments["qpid.auto_delete"] = True
    return arguments


def _scalars(values: Mapping[Any, object]) -> dict[str, Scalar]:
    return {str(name): _plain(value) for name, value in values.items() if isinstance(value, str | int | float)}


def _plain(value: object) -> Scalar:
    """The value without Proton's types, which would not survive the log."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)
