"""AMQP values as JSON with types: every type both ways, as docs/pipeline.md has them, and whatever else comes."""

from __future__ import annotations

import json
import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_values import SCALARS, RandomValues, values_in
from doc_blocks import DOCS
from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.typed_json import TYPES, decoded, encoded, map_of, parsed, text_of, without_types

PAGE = (DOCS / "pipeline.md").read_text(encoding="utf-8")
UUID = "00112233-4455-6677-8899-aabbccddeeff"
BOTH_WAYS = [
    ("40", "null"),
    ("41", '{"boolean":true}'),
    ("42", '{"boolean":false}'),
    ("50ff", '{"ubyte":255}'),
    ("60ffff", '{"ushort":65535}'),
    ("43", '{"uint":0}'),
    ("52ff", '{"uint":255}'),
    ("70ffffffff", '{"uint":4294967295}'),
    ("44", '{"ulong":0}'),
    ("53ff", '{"ulong":255}'),
    ("80ffffffffffffffff", '{"ulong":18446744073709551615}'),
    ("5180", '{"byte":-128}'),
    ("618000", '{"short":-32768}'),
    ("5480", '{"int":-128}'),
    ("71ffffff7f", '{"int":-129}'),
    ("557f", '{"long":127}'),
    ("810000000000000080", '{"long":128}'),
    ("723dcccccd", '{"float":0.1}'),
    ("7280000000", '{"float":-0.0}'),
    ("72ff800000", '{"float":"-Infinity"}'),
    ("823fb999999999999a", '{"double":0.1}'),
    ("827ff8000000000000", '{"double":"NaN"}'),
    ("742250000f", '{"decimal32":"2250000f"}'),
    ("8422500000000000ff", '{"decimal64":"22500000000000ff"}'),
    ("94" + "0f" * 16, '{"decimal128":"' + "0f" * 16 + '"}'),
    ("730001f600", '{"char":"\U0001f600"}'),
    ("730000d800", '{"char":55296}'),
    ("837fffffffffffffff", '{"timestamp":9223372036854775807}'),
    ("83ffffffffffffffff", '{"timestamp":-1}'),
    ("98" + UUID.replace("-", ""), f'{{"uuid":"{UUID}"}}'),
    ("a00200ff", '{"binary":"AP8="}'),
    ("a103e282ac", '{"string":"\u20ac"}'),
    ("a30161", '{"symbol":"a"}'),
    ("45", '{"list":[]}'),
    ("c00402550541", '{"list":[{"long":5},{"boolean":true}]}'),
    ("c10602a101615505", '{"map":{"a":{"long":5}}}'),
    ("c10402550140", '{"map":[[{"long":1},null]]}'),
    ("c10904a1016140a1016140", '{"map":[[{"string":"a"},null],[{"string":"a"},null]]}'),
    ("e00a027100000001fffffffe", '{"array":{"type":"int","items":[1,-2]}}'),
    ("e0020056", '{"array":{"type":"boolean","items":[]}}'),
    ("e0080100a3016b60ffff", '{"array":{"descriptor":{"symbol":"k"},"type":"ushort","items":[65535]}}'),
    ("0053105505", '{"described":[{"ulong":16},{"long":5}]}'),
]


@pytest.mark.parametrize(("data", "text"), BOTH_WAYS)
def test_a_value_and_its_type_go_both_ways(data: str, text: str) -> None:
    value, end = decoded(bytes.fromhex(data))
    assert (text_of(value), end) == (text, len(data) // 2)
    assert encoded(parsed(text)).hex() == data


def test_the_table_of_types_is_told_and_tried() -> None:
    tried = {next(iter(json.loads(text))) if text != "null" else text for _, text in BOTH_WAYS}
    assert tried == set(TYPES)
    table = PAGE.split("| AMQP type | JSON |")[1].split("\n\n")[0]
    told = re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE)[1:]
    assert {name for cell in told for name in re.findall(r"`(\w+)`", cell)} == set(TYPES)
    examples = re.findall(r"`({[^`]*})`", table)
    assert len(examples) >= len(told)
    assert all(values_in(encoded(parsed(example))) for example in examples)


@given(st.integers(min_value=0))
@settings(max_examples=300, deadline=None)
def test_whatever_proton_encodes_keeps_its_types(seed: int) -> None:
    data = RandomValues(Random(seed)).encoded(3)
    value, end = decoded(data)
    assert end == len(data)
    assert values_in(encoded(parsed(text_of(value)))) == values_in(data)


def test_whatever_proton_encodes_of_each_type_keeps_its_types() -> None:
    from proton import Data

    random = RandomValues(Random(7))
    for kind in SCALARS:
        for _ in range(40):
            data = Data()
            random.put_scalar(data, kind)
            one = bytes(data.encode())
            assert values_in(encoded(parsed(text_of(decoded(one)[0])))) == values_in(one)


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("5", '{"long":5}'),
        ("0.5", '{"double":0.5}'),
        ('"a"', '{"string":"a"}'),
        ("true", '{"boolean":true}'),
        ('{"map":[["a",1]]}', '{"map":{"a":{"long":1}}}'),
        ('{"array":{"type":"map","items":[{"a":1}]}}', '{"array":{"type":"map","items":[{"a":{"long":1}}]}}'),
        ('{"null":null}', "null"),
        ('{"double":1}', '{"double":1.0}'),
    ],
)
def test_what_has_no_type_gets_the_one_that_it_has_in_python(written: str, same: str) -> None:
    assert text_of(decoded(encoded(parsed(written)))[0]) == same


@pytest.mark.parametrize(
    "data",
    [
        "", "a1", "a105", "ff", "99", "c0", "c00501", "c0040255", "c10301a10161", "d0ffffffff", "a101ff", "0053",
        "f00000000900ffffffff", "f000000005ffffffff40", "c003025501", "e00401415501", "00" * 200, "c003014500",
    ],
)  # fmt: skip
def test_what_is_no_value_is_told(data: str) -> None:
    with pytest.raises(DecodeError):
        decoded(bytes.fromhex(data))


def test_a_short_array_is_no_long_text() -> None:
    def nulls(count: int) -> bytes:
        return b"\xf0\x00\x00\x00\x05" + count.to_bytes(4, "big") + b"\x40"

    assert decoded(nulls(256))[0] == {"array": {"type": "null", "items": [None] * 256}}
    with pytest.raises(DecodeError, match="257 elements without bytes"):
        decoded(nulls(257))


def test_values_in_each_other_have_an_end() -> None:
    data = b"\x45"
    for _ in range(65):
        data = b"\xd0" + (len(data) + 4).to_bytes(4, "big") + (1).to_bytes(4, "big") + data
    with pytest.raises(DecodeError, match="in each other"):
        decoded(data)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "expected JSON"),
        ("NaN", '{"double": "NaN"} is'),
        ("[1]", 'such as {"long": 5}'),
        ('{"long":1,"int":2}', 'such as {"long": 5}'),
        ('{"lnog":1}', "no type 'lnog'"),
        ('{"long":"1"}', "expected a whole number"),
        ('{"long":9223372036854775808}', "no AMQP value"),
        ('{"ubyte":-1}', "no AMQP value"),
        ('{"float":1e39}', "no AMQP value"),
        ('{"boolean":1}', "expected true or false"),
        ('{"char":"ab"}', "no AMQP value"),
        ('{"uuid":"x"}', "no AMQP value"),
        ('{"binary":"?"}', "expected base64"),
        ('{"decimal32":"00"}', "expected 8 hexadecimal digits"),
        ('{"list":{}}', "expected a list"),
        ('{"map":5}', "an object or a list of pairs"),
        ('{"map":[[1]]}', "an object or a list of pairs"),
        ('{"array":{"type":"lnog","items":[]}}', "no AMQP value"),
        ('{"described":[1]}', "no AMQP value"),
        ('{"string":"\\ud800"}', "no AMQP value"),
    ],
)
def test_what_cannot_be_encoded_is_told(text: str, reason: str) -> None:
    with pytest.raises(PipelineError) as caught:
        encoded(parsed(text))
    assert reason in caught.value.reason


def test_sections_that_are_maps_are_objects_where_their_keys_are_as_usual() -> None:
    strings, symbols = encoded(parsed('{"map":{"a":1}}')), encoded(parsed('{"map":[[{"symbol":"a"},1]]}'))
    assert map_of(strings, 0, "string") == map_of(symbols, 0, "symbol") == {"a": {"long": 1}}
    assert map_of(strings, 0, "symbol") == [[{"string": "a"}, {"long": 1}]]
    assert map_of(b"\x40", 0, "string") is None


@pytest.mark.parametrize(
    ("typed", "plain"),
    [
        ('{"map":{"a":{"long":5},"b":{"list":[{"uint":1},null]}}}', '{"a":5,"b":[1,null]}'),
        ('{"map":[[{"long":1},{"string":"x"}]]}', '{"1":"x"}'),
        ('{"map":[[{"long":1},5],[{"string":"1"},6]]}', '[["1",5],["1",6]]'),
        ('{"array":{"type":"short","items":[1,2]}}', "[1,2]"),
        ('{"described":[{"symbol":"d"},{"timestamp":7}]}', "7"),
        ("null", "null"),
    ],
)
def test_types_can_be_left_out(typed: str, plain: str) -> None:
    assert text_of(without_types(decoded(encoded(parsed(typed)))[0])) == plain
