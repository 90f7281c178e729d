"""Frames about forwarded messages: the agreed bytes, both directions, and everything that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.ha import forward_frames as ff
from qpid_ha_broker.ha.forward_frames import ForwardCode, ForwardFrame, ForwardKind, decode, encode
from qpid_ha_broker.ha.frame_codec import FrameKind
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.ha.sealed_frames import note

VECTORS = Path(__file__).parent / "vectors" / "forwards.json"
EXAMPLES: dict[str, ForwardFrame] = {
    "a process begins": ff.ForwardBegin(b"beta/1f0b"),
    "a message for two queues": ff.ForwardMessage(7, ("q", "Büro"), False, 4, 0, b"", 0, b"\x00Sw\xa1\x01x"),
    "one that its publisher numbers": ff.ForwardMessage(8, ("q",), True, 9, 1_700_000_000_000, b"app", 41, b"\x00"),
    "one that is due later": ff.ForwardMessage(
        9, ("q",), True, 4, 1_700_000_000_000, b"app", 42, b"\x00Sw\xa1\x01x", 1_600_000_000_000
    ),
    "a refusal is known": ff.ForwardSkip(8),
    "all up to here is committed": ff.ForwardDone(7),
    "a queue is full": ff.ForwardRefused(8, ForwardCode.FULL, "queue q is full"),
    "another broker leads": ff.ForwardRefused(0, ForwardCode.NOT_PRIMARY, "gamma leads"),
}
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=50)
FRAMES: st.SearchStrategy[ForwardFrame] = st.one_of(
    st.builds(ff.ForwardBegin, st.binary(min_size=1, max_size=40)),
    st.builds(
        ff.ForwardMessage, U64, st.lists(TEXT, max_size=4).map(tuple), st.booleans(), st.integers(0, 255), U64,
        st.binary(max_size=40), U64, st.binary(max_size=100), st.just(0) | U64,
    ),
    st.builds(ff.ForwardSkip, U64),
    st.builds(ff.ForwardDone, U64),
    st.builds(ff.ForwardRefused, U64, st.sampled_from(ForwardCode), TEXT),
)  # fmt: skip


def seal(kind: int, head: bytes, data: bytes) -> bytes:
    return note(kind, head, len(data)) + head + data


def vectors() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in vectors()])
def test_agreed_bytes(vector: dict[str, Any]) -> None:
    frame = EXAMPLES[vector["name"]]
    assert encode(frame).hex() == vector["hex"]
    assert decode(bytes.fromhex(vector["hex"])) == frame


def test_there_is_an_example_of_each_frame() -> None:
    assert [vector["name"] for vector in vectors()] == list(EXAMPLES)
    assert {bytes.fromhex(vector["hex"])[0] for vector in vectors()} == set(ForwardKind)
    assert not {int(kind) for kind in ForwardKind} & {int(kind) for kind in FrameKind}


@given(FRAMES)
def test_what_is_written_is_read_back(frame: ForwardFrame) -> None:
    assert decode(encode(frame)) == frame


@given(FRAMES, st.data())
def test_a_frame_that_was_cut_or_changed_is_refused_or_another_frame_of_the_same_bytes(
    frame: ForwardFrame, data: st.DataObject
) -> None:
    whole = encode(frame)
    with pytest.raises(FrameError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    payload = len(frame.payload) if isinstance(frame, ff.ForwardMessage) else 0
    at = data.draw(st.integers(0, len(whole) - payload - 1))
    with pytest.raises(FrameError):
        decode(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])


@given(st.sampled_from(ForwardKind), st.binary(max_size=60), st.binary(max_size=5))
def test_any_bytes_are_a_frame_in_its_one_spelling_or_refused(kind: int, head: bytes, payload: bytes) -> None:
    sealed = seal(kind, head, payload)
    try:
        frame = decode(sealed)
    except FrameError:
        return
    assert encode(frame) == sealed


def test_what_no_frame_can_hold_is_refused() -> None:
    for frame in (ff.ForwardBegin(b""), ff.ForwardSkip(-1), ff.ForwardMessage(1, ("q",), True, 256, 0, b"", 0, b"")):
        with pytest.raises(ValueError, match=type(frame).__name__):
            encode(frame)
    with pytest.raises(FrameError, match="expected no data"):
        decode(seal(ForwardKind.SKIP, bytes(8), b"x"))
    with pytest.raises(FrameError, match="about forwarded messages"):
        decode(seal(FrameKind.ACK, bytes(24), b""))
