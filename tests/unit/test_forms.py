"""Tables of fields: what they write they read, and what they refuse they name."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.events.fields import (
    BYTES,
    IDS,
    SHORT_TEXT,
    TEXT,
    TEXTS,
    TRUTH,
    U8,
    U32,
    U64,
    UNREADABLE,
    checked,
    list_of,
    pairs_to_end,
    tuple_of,
)
from qpid_ha_broker.events.forms import Form
from qpid_ha_broker.events.json_forms import JsonForm, Later, integer, text


class Parcel(NamedTuple):
    """One of everything; the fields of the table are in another order."""

    names: tuple[str, ...]
    data: bytes
    number: int
    ids: tuple[int, ...]
    heavy: bool
    pairs: tuple[tuple[int, int], ...]
    rows: tuple[tuple[int, str], ...]
    tag: bytes
    word: str


class Plain(NamedTuple):
    """Numbers alone."""

    low: int
    high: int
    name: str = ""


def short(value: str) -> str:
    if len(value) > 3:
        raise ValueError("expected three characters at most")
    return value


FIELDS = {
    "heavy": TRUTH,
    "number": U8,
    "word": checked(SHORT_TEXT, short),
    "names": TEXTS,
    "ids": IDS,
    "rows": list_of("H", tuple_of(U32, TEXT), 3),
    "tag": BYTES,
    "pairs": pairs_to_end(),
}
PARCEL = Form(Parcel, FIELDS, "data")
EXAMPLE = Parcel(("a", "é"), b"data", 7, (5,), True, ((1, 2),), ((3, "x"),), b"tag", "abc")
NUMBERS = st.integers(0, 2**64 - 1)
WORDS = st.text(st.characters(codec="utf-8"), max_size=3)
PARCELS = st.builds(
    Parcel, st.lists(WORDS, max_size=3).map(tuple), st.binary(max_size=5), st.integers(0, 255),
    st.lists(NUMBERS, max_size=3).map(tuple), st.booleans(),
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple),
    st.lists(st.tuples(st.integers(0, 2**32 - 1), WORDS), max_size=3).map(tuple), st.binary(max_size=5), WORDS,
)  # fmt: skip


@given(PARCELS)
def test_what_a_table_writes_it_reads(parcel: Parcel) -> None:
    body, payload = PARCEL.write(parcel)
    assert payload == parcel.data
    assert PARCEL.read(memoryview(body), memoryview(payload)) == parcel


@given(st.binary(max_size=80))
def test_any_body_has_one_spelling_or_is_refused(body: bytes) -> None:
    try:
        parcel = PARCEL.read(memoryview(body), memoryview(b""))
    except UNREADABLE:
        return
    assert PARCEL.write(parcel) == (body, b"")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("names", ("\ud800",)),
        ("data", "text"),
        ("number", 256),
        ("ids", (-1,)),
        ("pairs", ((1, 2, 3),)),
        ("rows", ((1, ""),) * 4),
        ("rows", ((1, "", 2),)),
        ("tag", "text"),
        ("word", "four"),
        ("word", None),
    ],
)
def test_a_value_that_cannot_be_written_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    assert PARCEL.refusal(EXAMPLE._replace(**{field: value})).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"\x02\x00", "heavy: expected 0 or 1"),
        (b"\x00\x00\x04four", "word: expected three characters"),
        (b"\x00\x00\x09four", "word: expected 9 bytes of text, found 4"),
        (b"\x00\x00\x00\x00\x00\xff\xff\xff\xffid", "ids: expected 4294967295 ids of 8 bytes, found 2 bytes"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff", "rows: expected at most 3, found 65535"),
        (b"\x00\x00\x00" + b"\x00" * 10 + b"odd", "pairs: expected pairs of 16 bytes to the end, found 3 bytes"),
    ],
)
def test_a_body_that_is_none_is_refused_by_the_name_of_the_field(body: bytes, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        PARCEL.read(memoryview(body), memoryview(b""))


def test_numbers_alone_are_one_format_and_nothing_follows_them() -> None:
    form = Form(Plain, {"low": U64, "high": U64, "name": SHORT_TEXT})
    body, _ = form.write(Plain(1, 2))
    assert form.read(memoryview(body)) == Plain(1, 2)
    with pytest.raises(ValueError, match="expected 17 bytes, found 18"):
        form.read(memoryview(body + b"x"))


def test_a_table_has_each_field_of_its_tuple_and_no_other() -> None:
    for fields in ({"low": U64}, {"low": U64, "high": U64, "name": TEXT, "more": U64}):
        with pytest.raises(TypeError, match="Plain: expected the fields low, high, name"):
            Form(Plain, fields)


def test_a_later_field_is_sent_only_where_it_says_something_and_need_not_be_there() -> None:
    form = JsonForm(Plain, {"low": integer(), "high": integer(9), "name": Later(text(3))}, 100)
    assert form.write(Plain(1, 2))[0] == b'{"low":1,"high":2}'
    assert form.write(Plain(1, 2, "new"))[0] == b'{"low":1,"high":2,"name":"new"}'
    assert form.read(memoryview(b'{"low":1,"high":2}')) == Plain(1, 2)
    for body, part in (
        (b'{"low":1}', "expected an object with low, high, name"),
        (b'{"low":1,"high":10}', "high: expected an integer from 0 to 9"),
        (b'{"low":1,"high":2,"name":"long"}', "name: expected text of at most 3"),
        (b" " * 101, "expected at most 100 bytes"),
    ):
        with pytest.raises(ValueError, match=part):
            form.read(memoryview(body))
