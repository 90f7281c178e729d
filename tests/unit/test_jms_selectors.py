"""Selectors as JMS 3.1 section 3.8.1 has them, asked about messages as they lie in bytes: its examples, and its header
fields, among them ids of each type of AMQP."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest

from qpid_ha_broker.amqp.selectors.message_reader import AmqpMessageReader
from qpid_ha_broker.amqp.wire.jms_ids import canonical_id, id_text

UUID_TEXT = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def selects(selector: str, **fields: Any) -> bool:
    """Whether a message with these fields of Proton's `Message` matches."""
    message: Any = proton.Message("x", **fields)
    reader = AmqpMessageReader()
    return reader.selector(selector).matches(reader.lookup(bytes(message.encode())))


@pytest.mark.parametrize(
    ("selector", "properties", "expected"),
    [
        ("JMSType = 'car' AND color = 'blue' AND weight > 2500", {"color": "blue", "weight": 2501}, True),
        ("age BETWEEN 15 AND 19", {"age": 15}, True),
        ("age BETWEEN 15 AND 19", {"age": 20}, False),
        ("age NOT BETWEEN 15 AND 19", {"age": 14}, True),
        ("age < 15 OR age > 19", {"age": 14}, True),
        ("Country IN ('UK', 'US', 'France')", {"Country": "UK"}, True),
        ("Country IN ('UK', 'US', 'France')", {"Country": "Peru"}, False),
        ("(Country = 'UK') OR (Country = 'US') OR (Country = 'France')", {"Country": "US"}, True),
        ("Country NOT IN ('UK', 'US', 'France')", {"Country": "Peru"}, True),
        ("NOT ((Country = 'UK') OR (Country = 'US'))", {"Country": "UK"}, False),
        ("phone LIKE '12%3'", {"phone": "12993"}, True),
        ("phone LIKE '12%3'", {"phone": "1234"}, False),
        ("word LIKE 'l_se'", {"word": "lose"}, True),
        ("word LIKE 'l_se'", {"word": "loose"}, False),
        ("underscored LIKE '\\_%' ESCAPE '\\'", {"underscored": "_foo"}, True),
        ("underscored LIKE '\\_%' ESCAPE '\\'", {"underscored": "bar"}, False),
        ("phone NOT LIKE '12%3'", {"phone": "1234"}, True),
        ("prop_name IS NULL", {}, True),
        ("prop_name IS NOT NULL", {"prop_name": 1}, True),
        ("text = 'literal''s'", {"text": "literal's"}, True),
        ("a = 57 AND b = -957 AND c = +62", {"a": 57, "b": -957, "c": 62}, True),
        ("a = 7E3 AND b = -57.9E2 AND c = 7. AND d = -95.7 AND e = +6.2",
         {"a": 7000.0, "b": -5790.0, "c": 7.0, "d": -95.7, "e": 6.2}, True),
        ("flag = TRUE AND NOT other", {"flag": True, "other": False}, True),
        ("a + b * 2 - c / 3 = 6", {"a": 1, "b": 3, "c": 3}, True),
        ("-a < 0 AND +a > 0 AND - -a = a", {"a": 5}, True),
        ("code IN (1, -2, 3.5)", {"code": -2}, True),
        ("n BETWEEN low - 1 AND low * 2", {"n": 9, "low": 5}, True),
        ("n BETWEEN low - 1 AND low * 2", {"n": 11, "low": 5}, False),
        ("$a = 1 AND _b = 2", {"$a": 1, "_b": 2}, True),
    ],
)  # fmt: skip
def test_the_examples_of_the_specification(selector: str, properties: dict[str, Any], expected: bool) -> None:
    assert selects(selector, properties=properties, subject="car") is expected


def test_header_fields_have_the_names_and_values_of_jms() -> None:
    fields: dict[str, Any] = {
        "durable": True, "priority": 7, "subject": "order", "address": "q", "reply_to": "answers",
        "creation_time": 12.5, "group_id": "g", "group_sequence": 3, "user_id": b"ada",
    }  # fmt: skip
    for selector in (
        "JMSDeliveryMode = 'PERSISTENT'", "JMSDeliveryMode <> 'NON_PERSISTENT'", "JMSPriority = 7", "JMSPriority > 6",
        "JMSType = 'order'", "JMSTimestamp = 12500", "JMSXGroupID = 'g'", "JMSXGroupSeq = 3", "JMSXUserID = 'ada'",
        "JMSDestination = 'q'", "JMSReplyTo = 'answers'", "JMSMessageID IS NULL AND JMSCorrelationID IS NULL",
    ):  # fmt: skip
        assert selects(selector, **fields), selector
    assert selects("JMSDeliveryMode = 'NON_PERSISTENT' AND JMSPriority = 4 AND JMSTimestamp IS NULL")


IDS: list[tuple[Any, list[str]]] = [
    (proton.ulong(5), ["ID:AMQP_ULONG:5"]),
    (UUID(UUID_TEXT), [f"ID:AMQP_UUID:{UUID_TEXT}", f"ID:AMQP_UUID:{UUID_TEXT.upper()}"]),
    (b"\x00\xab", ["ID:AMQP_BINARY:00AB", "ID:AMQP_BINARY:00ab"]),
    ("ID:1234", ["ID:1234", "ID:AMQP_STRING:ID:1234"]),
    ("plain", ["plain", "ID:AMQP_NO_PREFIX:plain", "ID:AMQP_STRING:plain"]),
    ("ID:AMQP_ULONG:5", ["ID:AMQP_STRING:ID:AMQP_ULONG:5"]),
]


@pytest.mark.parametrize("name", ["JMSMessageID", "JMSCorrelationID"])
@pytest.mark.parametrize(("value", "texts"), IDS)
def test_an_id_of_each_type_is_found_by_the_text_that_jms_shows(name: str, value: Any, texts: list[str]) -> None:
    field = {"JMSMessageID": "id", "JMSCorrelationID": "correlation_id"}[name]
    for other, others in IDS:
        for text in others:
            expected = other is value
            for selector in (f"{name} = '{text}'", f"'{text}' = {name}", f"{name} IN ('?', '{text}')"):
                assert selects(selector, **{field: value}) is expected, (selector, value)
            assert selects(f"{name} <> '{text}'", **{field: value}) is not expected
    assert selects(f"{name} LIKE '{texts[0][:4]}%'", **{field: value})


def test_numbers_are_compared_with_the_field_of_amqp_itself() -> None:
    assert selects("amqp.message_id = 5", id=proton.ulong(5))
    assert selects("amqp.correlation_id = 'c'", correlation_id="c")
    assert not selects("JMSMessageID = 5", id=proton.ulong(5))


@pytest.mark.parametrize(("value", "texts"), IDS)
def test_what_an_id_is_shown_as_is_its_own_literal(value: Any, texts: list[str]) -> None:
    assert {canonical_id(text) for text in texts} == {id_text(value)}
    assert id_text(True) is None
    assert id_text(None) is None
