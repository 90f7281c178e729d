"""What a peer asks for when it attaches: addresses, filters, capabilities, as plain values (AMQP 1.0 section 3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import proton

from qpid_ha_broker.amqp.conditions import INVALID_FIELD, AmqpError
from qpid_ha_broker.amqp.selector import Selector, SelectorError, parse_selector
from qpid_ha_broker.amqp.values import value_of
from qpid_ha_broker.events.types import Scalar

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

DELETE_ON_NO_LINKS = "amqp:delete-on-no-links:list"


class Terminus(NamedTuple):
    """A source or a target. `address` None: the peer named none."""

    address: str | None
    dynamic: bool
    coordinator: bool
    durable: bool
    browse: bool
    topic: bool
    """The capability `topic`: the peer expects publish-subscribe."""
    arguments: dict[str, Scalar]
    """Queue arguments (`qpid.*`) from the node properties, for a node that is made on demand."""


def read_terminus(terminus: proton.Terminus) -> Terminus:
    """Read a remote source or target."""
    capabilities = {str(name) for name in _flattened(value_of(terminus.capabilities))}
    return Terminus(
        address=terminus.address or None,
        dynamic=bool(terminus.dynamic),
        coordinator=terminus.type == proton.Terminus.COORDINATOR,
        durable=terminus.expiry_policy == proton.Terminus.EXPIRE_NEVER,
        browse=terminus.distribution_mode == proton.Terminus.DIST_MODE_COPY,
        topic=bool(capabilities & {"topic", "temporary-topic"}),
        arguments=_queue_arguments(value_of(terminus.properties)),
    )


class Filters(NamedTuple):
    """The filters of a source that the broker applies. `applied` goes back to the peer, which can see what was not."""

    selector: Selector | None
    binding_key: str | None
    headers: dict[str, Scalar] | None
    after: int | None
    applied: dict[proton.symbol, object]


def read_filters(source: proton.Terminus) -> Filters:
    """Read the filter set. Raises AmqpError for a malformed one; unknown filters are left out, as the standard says."""
    given = value_of(source.filter)
    selector, key, headers, after = None, None, None, None
    applied: dict[proton.symbol, object] = {}
    for name, described in given.items() if isinstance(given, dict) else ():
        if not isinstance(described, proton.Described):
            continue
        descriptor, value = described.descriptor, described.value
        if descriptor in _SELECTOR_NAMES:
            selector = _selector(value)
        elif descriptor in _BINDING_NAMES:
            key = str(value)
        elif descriptor in _HEADERS_BINDING_NAMES and isinstance(value, dict):
            headers = _scalars(value)
        elif descriptor == AFTER:
            after = _message_id(value)
        else:
            continue
        applied[proton.symbol(name)] = described
    return Filters(selector, key, headers, after, applied)


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
    arguments = {name: value for name, value in _scalars(properties).items() if name.startswith("qpid.")}
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
