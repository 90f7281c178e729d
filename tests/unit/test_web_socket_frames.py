"""Frames of WebSockets: what a client puts into binary messages comes out in order, however it is cut, and what is not
allowed (RFC 6455) ends it with a reason."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.server.clients.web_socket_frames import (
    FRAME_BYTES,
    CloseCode,
    WebSocketEnd,
    WebSocketInput,
    WebSocketKind,
    WebSocketReader,
    accept_key,
    close_frame,
    data_frames,
)

FIN, MASKED = 0x80, 0x80


def client_frame(kind: int, payload: bytes, *, mask: bytes = b"\x01\x02\x03\x04", final: bool = True) -> bytes:
    """As RFC 6455 section 5.3 has a client write it."""
    size = len(payload)
    if size < 126:
        length = bytes((MASKED | size,))
    elif size < 1 << 16:
        length = bytes((MASKED | 126,)) + struct.pack(">H", size)
    else:
        length = bytes((MASKED | 127,)) + struct.pack(">Q", size)
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return bytes((FIN * final | kind,)) + length + mask + masked


def fed(reader: WebSocketReader, pieces: list[bytes]) -> tuple[bytes, list[bytes], WebSocketEnd | None]:
    """Data, pings and the end that come of these pieces."""
    data, pings, end = b"", [], None
    for piece in pieces:
        received: WebSocketInput = reader.feed(piece)
        data += received.data
        pings += [] if received.ping is None else [received.ping]
        end = end or received.end
    return data, pings, end


def cut(text: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:stop] for start, stop in pairwise(bounds)]


messages = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.lists(st.binary(max_size=300), min_size=1, max_size=4)),
        st.tuples(st.just("ping"), st.lists(st.binary(max_size=125), min_size=1, max_size=1)),
        st.tuples(st.just("pong"), st.lists(st.binary(max_size=125), min_size=1, max_size=1)),
    ),
    max_size=6,
)


@given(messages, st.lists(st.integers(0, 4000), max_size=12), st.binary(min_size=4, max_size=4))
def test_bytes_come_out_in_order_however_messages_and_frames_are_cut(
    messages: list[tuple[str, list[bytes]]], places: list[int], mask: bytes
) -> None:
    text, expected, pings = b"", b"", []
    for what, parts in messages:
        if what == "data":
            for number, part in enumerate(parts):
                kind = WebSocketKind.CONTINUATION if number else WebSocketKind.BINARY
                text += client_frame(kind, part, mask=mask, final=number == len(parts) - 1)
                text += client_frame(WebSocketKind.PING, b"within", mask=mask)  # also between the frames of a message
                pings.append(b"within")
            expected += b"".join(parts)
        else:
            text += client_frame(WebSocketKind.PING if what == "ping" else WebSocketKind.PONG, parts[0], mask=mask)
            pings += parts if what == "ping" else []
    text += client_frame(WebSocketKind.CLOSE, struct.pack(">H", 1001) + b"bye", mask=mask)
    by_byte = fed(WebSocketReader(), [bytes((byte,)) for byte in text])
    assert by_byte == (expected, pings, WebSocketEnd(1001))
    data, heard, end = fed(WebSocketReader(), cut(text, places))
    assert (data, end) == (expected, WebSocketEnd(1001))
    assert set(heard) <= set(pings)


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_whatever_comes_is_data_or_an_end_and_little_is_held_back(pieces: list[bytes]) -> None:
    reader = WebSocketReader()
    data, _, _ = fed(reader, pieces)
    assert len(data) <= sum(map(len, pieces))
    assert len(reader._held) < 139


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (client_frame(WebSocketKind.TEXT, b"AMQP"), CloseCode.UNSUPPORTED),
        (bytes((FIN | WebSocketKind.BINARY, 1)) + b"x", CloseCode.PROTOCOL_ERROR),  # not masked
        (bytes((FIN | 0x40 | WebSocketKind.BINARY, MASKED)), CloseCode.PROTOCOL_ERROR),
        (client_frame(0x3, b"x"), CloseCode.PROTOCOL_ERROR),
        (client_frame(0xB, b"x"), CloseCode.PROTOCOL_ERROR),
        (client_frame(WebSocketKind.PING, b"x", final=False), CloseCode.PROTOCOL_ERROR),
        (client_frame(WebSocketKind.PING, bytes(126)), CloseCode.PROTOCOL_ERROR),
        (client_frame(WebSocketKind.CONTINUATION, b"x"), CloseCode.PROTOCOL_ERROR),
        (client_frame(WebSocketKind.BINARY, b"", final=False) + client_frame(WebSocketKind.BINARY, b""), 1002),
        (bytes((FIN | WebSocketKind.BINARY, MASKED | 127)) + b"\xff" * 12, CloseCode.PROTOCOL_ERROR),
    ],
)
def test_what_is_not_allowed_ends_it_with_a_reason_and_nothing_behind_it_is_read(text: bytes, code: int) -> None:
    before, behind = client_frame(WebSocketKind.BINARY, b"before"), client_frame(WebSocketKind.BINARY, b"behind")
    reader = WebSocketReader()
    data, _, end = fed(reader, [before + text + behind, behind])
    assert data == b"before"
    assert end is not None
    assert end.code == code
    assert end.problem
    assert len(close_frame(end)) <= 127


@pytest.mark.parametrize(
    ("payload", "code"),
    [(b"", 1000), (b"\x03", 1002), (b"\x03\xe8", 1000), (b"\x0f\xa0x", 4000), (b"\x03\xee", 1002), (b"\0\1", 1002)],
)
def test_a_close_is_answered_with_its_code_if_it_is_one(payload: bytes, code: int) -> None:
    assert WebSocketReader().feed(client_frame(WebSocketKind.CLOSE, payload)).end == WebSocketEnd(code)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, FRAME_BYTES + 1, 3 * FRAME_BYTES])
def test_what_is_sent_is_in_messages_of_bounded_size(size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    text, found, at = data_frames(data), b"", 0
    while at < len(text):
        assert text[at] == FIN | WebSocketKind.BINARY
        length, head = text[at + 1], 2
        if length == 126:
            length, head = int.from_bytes(text[at + 2 : at + 4], "big"), 4
        elif length == 127:
            length, head = int.from_bytes(text[at + 2 : at + 10], "big"), 10
        assert length <= FRAME_BYTES
        found += text[at + head : at + head + length]
        at += head + length
    assert found == data


def test_the_key_of_the_specification_is_accepted_and_what_is_no_key_is_not() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    for wrong in ("", "x", "dGhlIHNhbXBsZSBub25jZQ", "AAAA", "dGhlIHNhbXBsZSBub25jZQ== "):
        assert accept_key(wrong) is None
