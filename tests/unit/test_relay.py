"""What a proxy says of a link at the primary: ids of messages in little room, and which of them may be reclaimed."""

from __future__ import annotations

import zlib
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, NOT_ALLOWED, AmqpError
from qpid_ha_broker.amqp.wire.relay import (
    DECLINED,
    HELD,
    MAX_HELD_BYTES,
    PATH,
    RelayAnswer,
    RelayRequest,
    check_path,
    decode_ids,
    encode_ids,
    read_answer,
    read_request,
    same_ids,
)

REQUEST = RelayRequest(
    ("a",), "client", "container", "user", b"producer", 7, (1, 2, 900, 1 << 50), address="h:1", declined=(3,)
)


@given(st.sets(st.integers(1, (1 << 64) - 1), max_size=300))
def test_ids_come_back_as_they_were(ids: set[int]) -> None:
    ascending = tuple(sorted(ids))
    assert decode_ids(encode_ids(ascending)) == ascending


def test_of_more_ids_than_an_attach_can_hold_the_oldest_are_claimed() -> None:
    ascending = sorted(Random(1).sample(range(1, 1 << 62), 40_000))
    encoded = encode_ids(ascending)
    found = decode_ids(encoded)
    assert len(encoded) <= MAX_HELD_BYTES
    assert 0 < len(found) < len(ascending)
    assert list(found) == ascending[: len(found)]


def test_thirty_thousand_ids_in_a_row_fit() -> None:
    assert len(decode_ids(encode_ids(range(1, 30_001)))) == 30_000


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        zlib.compress(b"\x00"),
        zlib.compress(b"\x80"),
        zlib.compress(b"\xff" * 20),
        zlib.compress(b"\x01" * (2 << 20)),
        zlib.compress(b"\xff" * 9 + b"\x01")[:-1],
    ],
)
def test_damaged_ids_are_refused(data: bytes) -> None:
    with pytest.raises(AmqpError) as refused:
        decode_ids(data)
    assert refused.value.name == INVALID_FIELD


@given(st.binary(max_size=200))
def test_any_bytes_are_ids_or_refused(data: bytes) -> None:
    with suppress(AmqpError):
        ids = decode_ids(data)
        assert list(ids) == sorted(set(ids))


def test_a_request_and_an_answer_come_back_as_they_were() -> None:
    assert read_request(REQUEST.properties()) == REQUEST
    answer = RelayAnswer(3, (4, 5), declined=(6, 7))
    assert read_answer(answer.properties()) == answer
    assert read_answer(None) == RelayAnswer(0, ())


@pytest.mark.parametrize("properties", [None, {}, {"other": 1}, []])
def test_a_link_that_does_not_say_so_is_not_relayed(properties: object) -> None:
    assert read_request(properties) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [(PATH, "a"), (PATH, []), (PATH, [1]), (HELD, "x"), (HELD, b"x" * (MAX_HELD_BYTES + 1)), (DECLINED, 7)],
)
def test_a_malformed_request_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(AmqpError, match=name):
        read_request({**REQUEST.properties(), name: value})


def test_a_link_that_comes_back_to_where_it_was_is_refused_with_its_way() -> None:
    with pytest.raises(AmqpError, match="a -> b -> a") as refused:
        check_path(REQUEST._replace(path=("a", "b")), "a")
    assert refused.value.name == NOT_ALLOWED
    check_path(REQUEST, "b")


def test_ids_of_what_was_written_after_the_generation_that_handed_them_out_mean_other_messages() -> None:
    ids = (5, 10, 11, 20)
    assert same_ids(ids, 2, [(1, 1), (2, 8)]) == [5, 10, 11, 20]
    assert same_ids(ids, 2, [(1, 1), (2, 8), (3, 11)]) == [5, 10]
    assert same_ids(ids, 2, [(1, 1), (3, 11), (4, 30)]) == [5, 10]
    assert same_ids(ids, 2, [(1, 1), (4, 4)]) == []


def test_ids_of_a_group_mean_the_same_over_generations_that_follow_one_another() -> None:
    """Links outlive them there: seed 21 of clusters with a group, in which what a session had accepted came again."""
    ids = (5, 10, 11, 20)
    assert same_ids(ids, 2, [(1, 1), (2, 8), (3, 11), (4, 15)], links_outlive=True) == [5, 10, 11, 20]
    assert same_ids(ids, 2, [(2, 8), (3, 11), (5, 15)], links_outlive=True) == [5, 10], "4 may be of another copy"
    assert same_ids(ids, 2, [(1, 1), (4, 11)], links_outlive=True) == [5, 10]
