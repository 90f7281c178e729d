"""Bodies that are neither text nor bytes, in columns of Spark: maps, lists, numbers, as JSON and back.

Executors need this package and Proton, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, DataType, StringType

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import section_at
from qpid_ha_broker.amqp.wire.values import value_end

from .typed_json import decoded, encoded, parsed, text_of, without_types

_SEQUENCE, _VALUE = 0x76, 0x77
_VALUE_START = bytes((0x00, 0x53, _VALUE))


def decode_body(column: Column | str, *, types: bool = False) -> Column:
    """The JSON of bodies that are a value or sequences; null for data sections and for what is no body.

    `column`: `body_sections`; of `body`, too, which has maps and lists encoded, but text and bytes without their
    section, and they are null then. Several sequences are one list. `types`: each value with its type, as in
    docs/pipeline.md; else plain JSON, as one would write it by hand.
    """
    return _applied(partial(json_of_body, types=types), StringType(), pa.string(), column)


def encode_body(column: Column | str) -> Column:
    """The other way: JSON, with types or without, as `body_sections` with one value. Raises PipelineError, later."""
    return _applied(body_of_json, BinaryType(), pa.binary(), column)


def json_of_body(body: bytes, *, types: bool = False) -> str | None:
    """Of one body, see `decode_body`."""
    value: Any = None
    elements: list[Any] = []
    codes: list[int] = []
    at = 0
    try:
        while at < len(body):
            code, end = section_at(body, at)
            codes.append(code)
            if code not in (_SEQUENCE, _VALUE):
                return None
            value, _ = decoded(body, value_end(body, at + 1))
            elements += value["list"] if code == _SEQUENCE and value else []
            at = end
    except (DecodeError, KeyError):
        return None
    if codes != [_VALUE]:
        if not codes or _VALUE in codes:
            return None
        value = {"list": elements}
    return text_of(value if types else without_types(value))


def body_of_json(text: str) -> bytes:
    """Of one body, see `encode_body`."""
    return _VALUE_START + encoded(parsed(text))


def _applied(function: Callable[[Any], Any], returned: DataType, arrow: pa.DataType, column: Column | str) -> Column:
    """Made anew for each call: which kind of function Spark makes depends on the session that is active."""

    def of_batch(values: pa.Array) -> pa.Array:
        return pa.array([None if value is None else function(value) for value in values.to_pylist()], arrow)

    make: Any = arrow_udf  # its stub asks for a kind of function, where the hints above say it
    applied: Column = make(of_batch, returned)(column)
    return applied
