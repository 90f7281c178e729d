"""What a peer asks for when it attaches, as plain values; what nobody can read is refused by name."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.amqp.nodes.terminus import SELECTOR, Terminus, read_filters, read_terminus
from qpid_ha_broker.amqp.wire.conditions import AmqpError

UNDESCRIBED: Any = proton.UNDESCRIBED
CONNECTION = proton.Connection()
"""Keeps what belongs to it alive: a terminus alone does not."""
SESSION = CONNECTION.session()
LINKS: list[proton.Link] = []


def source() -> proton.Terminus:
    """An empty source, as a peer would fill it in."""
    link = SESSION.receiver("x")
    LINKS.append(link)
    return link.source


def described(descriptor: Any, value: Any) -> proton.Described:
    return proton.Described(descriptor, value)


def test_a_source_that_says_nothing_asks_for_nothing() -> None:
    assert read_terminus(source()) == Terminus(None, False, False, False, False, frozenset(), {})
    filters = read_filters(source())
    assert (filters.selector, filters.binding_key, filters.headers, filters.applied) == (None, None, None, {})


def test_what_a_source_says_is_read() -> None:
    given_source = source()
    given_source.address = "news"
    given_source.dynamic = True
    given_source.expiry_policy = proton.Terminus.EXPIRE_NEVER
    given_source.distribution_mode = proton.Terminus.DIST_MODE_COPY

    assert read_terminus(given_source) == Terminus("news", True, False, True, True, frozenset(), {})


@pytest.mark.parametrize(
    "capabilities",
    [
        proton.symbol("topic"),
        proton.Array(UNDESCRIBED, proton.Data.SYMBOL, proton.symbol("queue"), proton.symbol("topic")),
    ],
    ids=["one", "several"],
)
def test_the_capability_topic_is_found_alone_and_among_others(capabilities: object) -> None:
    given_source = source()
    given_source.capabilities.put_object(capabilities)

    assert read_terminus(given_source).topic


def test_queue_arguments_come_from_the_node_properties_and_nothing_else_does() -> None:
    given_source = source()
    given_source.properties.put_object(
        {
            proton.symbol("qpid.max_count"): proton.uint(5),
            proton.symbol("qpid.policy_type"): "ring",
            proton.symbol("qpid.list"): [1],
            proton.symbol("supported-dist-modes"): "copy",
            proton.symbol("lifetime-policy"): described(proton.symbol("amqp:delete-on-no-links:list"), []),
        }
    )

    arguments = read_terminus(given_source).arguments

    assert arguments == {"qpid.max_count": 5, "qpid.policy_type": "ring", "qpid.auto_delete": True}
    assert type(arguments["qpid.max_count"]) is int  # not one of Proton's, which the log could not hold


@pytest.mark.parametrize("descriptor", [proton.symbol(SELECTOR), proton.ulong(0x468C00000004)], ids=["symbol", "code"])
def test_a_selector_is_known_by_its_name_and_by_its_code(descriptor: object) -> None:
    given_source = source()
    given_source.filter.put_object({proton.symbol("any name"): described(descriptor, "colour = 'red'")})

    filters = read_filters(given_source)

    assert filters.selector is not None
    assert filters.selector.matches({"colour": "red"}.get)
    assert not filters.selector.matches({"colour": "blue"}.get)
    assert list(filters.applied) == ["any name"]


def test_an_unknown_filter_is_left_out_of_what_was_applied() -> None:
    given_source = source()
    given_source.filter.put_object({proton.symbol("x"): described(proton.symbol("nobody:knows:this"), "x")})

    assert read_filters(given_source).applied == {}


@pytest.mark.parametrize("value", ["colour =", 5, None, ["list"], {"a": 1}, b"bytes"], ids=repr)
def test_a_malformed_selector_is_an_invalid_field(value: object) -> None:
    given_source = source()
    given_source.filter.put_object({proton.symbol("selector"): described(proton.symbol(SELECTOR), value)})

    with pytest.raises(AmqpError) as refused:
        read_filters(given_source)

    assert refused.value.name == "amqp:invalid-field"


def nested(depth: int) -> bytes:
    """A list in a list in a list, on the wire."""
    inside, levels = 1, []
    for _ in range(depth):
        levels.append(b"\xd0" + (inside + 4).to_bytes(4, "big") + (1).to_bytes(4, "big"))
        inside += 9
    return b"".join(reversed(levels)) + b"\x45"


@pytest.mark.parametrize(
    "value",
    [nested(3000), b"\xc1\x05\x02\x45\x45\x45\x45", b"\xa3\x02\xff\xff", b"\xa1\x02\xff\xff"],
    ids=["deep", "a list as a key", "a symbol that is not ASCII", "text that is not UTF-8"],
)
@pytest.mark.parametrize("place", ["filter", "properties", "capabilities"])
def test_what_no_program_can_hold_is_a_decode_error(place: str, value: bytes) -> None:
    given_source = source()
    getattr(given_source, place).decode(value)

    with pytest.raises(AmqpError) as refused:
        read_filters(given_source) if place == "filter" else read_terminus(given_source)

    assert refused.value.name == "amqp:decode-error"


@given(st.sampled_from(["filter", "properties", "capabilities"]), st.binary(min_size=1, max_size=60))
def test_random_values_raise_nothing_but_amqp_errors(place: str, value: bytes) -> None:
    given_source = source()
    try:
        getattr(given_source, place).decode(value)
    except proton.ProtonException:
        return  # Proton would not have let it in either
    try:
        read_terminus(given_source)
        read_filters(given_source)
    except AmqpError:
        pass
