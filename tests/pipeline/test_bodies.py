"""Stories about bodies in columns: maps and lists as JSON, and the recipes of docs/pipeline.md."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random
from typing import Any

import fastavro
import proton
import pytest
from pyspark.sql import SparkSession

from amqp_values import RandomValues, values_in
from doc_blocks import titled_blocks
from qpid_ha_pipeline.bodies import body_of_json, decode_body, encode_body, json_of_body
from written_journal import WrittenJournal, amqp

VALUE, SEQUENCE = b"\x00Sw", b"\x00Sv"


def value(body: object) -> bytes:
    """A section with a value."""
    data = proton.Data()
    data.put_object(body)
    return VALUE + bytes(data.encode())


@pytest.mark.parametrize(
    ("body", "plain", "typed"),
    [
        (value({"n": 1, "s": "a"}), '{"n":1,"s":"a"}', '{"map":{"n":{"long":1},"s":{"string":"a"}}}'),
        (value([1, None, True]), "[1,null,true]", '{"list":[{"long":1},null,{"boolean":true}]}'),
        (value(proton.uint(7)), "7", '{"uint":7}'),
        (value("text"), '"text"', '{"string":"text"}'),
        (value(b"\xff"), '"/w=="', '{"binary":"/w=="}'),
        (value(None), "null", "null"),
        (SEQUENCE + b"\xc0\x03\x01\x55\x05", "[5]", '{"list":[{"long":5}]}'),
        ((SEQUENCE + b"\xc0\x03\x01\x55\x05") * 2 + SEQUENCE + b"\x45", "[5,5]", '{"list":[{"long":5},{"long":5}]}'),
        (b"\x00Su\xa0\x01a", None, None),
        (b"plain text", None, None),
        (b"", None, None),
        (value(1) + value(2), None, None),
        (value([1])[:-1], None, None),
        (SEQUENCE + b"\x55\x05", None, None),
    ],
)
def test_a_body_is_json_with_its_types_or_without(body: bytes, plain: str | None, typed: str | None) -> None:
    assert (json_of_body(body), json_of_body(body, types=True)) == (plain, typed)


def test_any_value_as_a_body_goes_both_ways() -> None:
    random = RandomValues(Random(11))
    for _ in range(300):
        body = VALUE + random.encoded(3)
        text = json_of_body(body, types=True)
        assert text is not None
        assert values_in(body_of_json(text)) == values_in(body)
        assert json_of_body(body) is not None


def test_bodies_are_decoded_and_encoded_on_executors(spark: SparkSession) -> None:
    bodies = [(value({"n": 1}),), (b"\x00Su\xa0\x01a",), (None,)]
    table = spark.createDataFrame(bodies, "body_sections binary")
    assert [row[0] for row in table.select(decode_body("body_sections")).collect()] == ['{"n":1}', None, None]
    again = table.select(encode_body(decode_body(table.body_sections, types=True)).alias("body_sections"))
    assert [row[0] and bytes(row[0]) for row in again.collect()] == [body_of_json('{"map":{"n":1}}'), None, None]


def recipe(title: str, spark: SparkSession, journal: WrittenJournal, bodies: list[bytes]) -> Callable[[str], list[Any]]:
    """What the rows of a variable are, after the example has run over messages with these bodies."""
    journal.enqueue(journal.declare("orders"), *bodies)
    given: dict[str, Any] = {"spark": spark, "data_dir": str(journal.data_dir)}
    exec(compile(titled_blocks("pipeline.md", "python")[title], title, "exec"), given)
    return lambda name: [row[0] and row[0].asDict() for row in given[name].collect()]


def test_the_recipe_for_json_and_maps(spark: SparkSession, journal: WrittenJournal) -> None:
    as_map = bytes(proton.Message({"id": 2, "item": "pen"}).encode())
    rows = recipe("bodies", spark, journal, [amqp(b'{"id": 1, "item": "book"}'), as_map])
    assert rows("of_json")[0] == {"id": 1, "item": "book"}
    assert rows("of_maps")[1] == {"id": 2, "item": "pen"}


def test_the_recipe_for_avro(spark: SparkSession, journal: WrittenJournal) -> None:
    schema = {"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "item", "type": "string"},
    ]}  # fmt: skip
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, schema, {"id": 3, "item": "ink"})
    rows = recipe("avro-bodies", spark, journal, [amqp(encoded.getvalue())])
    assert rows("of_avro") == [{"id": 3, "item": "ink"}]


def test_the_recipe_for_properties_with_types(spark: SparkSession, journal: WrittenJournal) -> None:
    properties: Any = {"x": 5, "note": "a", "u": proton.ubyte(7), "nothing": None}
    journal.enqueue(journal.declare("orders"), amqp("text", properties=properties))
    given: dict[str, Any] = {"spark": spark, "data_dir": str(journal.data_dir)}
    exec(compile(titled_blocks("pipeline.md", "python")["typed-properties"], "typed-properties", "exec"), given)
    numbers, structs, variants = (given[name].collect()[-1][0] for name in ("numbers", "as_structs", "as_variant"))
    assert numbers == "5"
    assert (structs["x"]["long"], structs["note"]["string"], structs["nothing"]) == (5, "a", None)
    assert variants.toPython() == {"x": {"long": 5}, "note": {"string": "a"}, "u": {"ubyte": 7}, "nothing": None}
