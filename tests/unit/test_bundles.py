"""What travels on a connection that carries sub-channels: the agreed bytes, both directions, and what is no bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.ha.bundles import (
    BUNDLE,
    MAX_BUNDLE_BYTES,
    Entry,
    SubChannelClosed,
    SubChannelFrame,
    SubChannelOpened,
    SubChannelStopped,
    decode_bundle,
    encode_bundle,
)
from qpid_ha_broker.ha.frame_codec import FrameKind
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.ha.sealed_frames import MAX_FRAME_BYTES

HERE = Path(__file__).parent
KINDS = {
    "opened": SubChannelOpened,
    "frame": SubChannelFrame,
    "closed": SubChannelClosed,
    "stopped": SubChannelStopped,
}
U32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
ENTRIES: st.SearchStrategy[list[Entry]] = st.lists(
    st.one_of(
        st.builds(SubChannelOpened, U32, TEXT, st.integers(0, 255)),
        st.builds(SubChannelFrame, U32, st.binary(max_size=100)),
        st.builds(SubChannelClosed, U32, TEXT),
        st.builds(SubChannelStopped, U32, st.booleans()),
    ),
    max_size=20,
)


def vectors() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((HERE / "vectors" / "bundles.json").read_text(encoding="utf-8"))
    return loaded


def entry_of(kind: str, *fields: Any) -> Entry:
    values = [bytes.fromhex(fields[1]) if kind == "frame" and at == 1 else value for at, value in enumerate(fields)]
    made: Entry = KINDS[kind](*values)
    return made


@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in vectors()])
def test_the_agreed_bytes_are_read_and_written(vector: dict[str, Any]) -> None:
    entries = [entry_of(*entry) for entry in vector["entries"]]
    assert decode_bundle(bytes.fromhex(vector["hex"])) == entries
    assert encode_bundle(entries).hex() == vector["hex"]


def test_every_kind_of_entry_has_agreed_bytes_and_a_line_in_the_manual() -> None:
    assert {entry[0] for vector in vectors() for entry in vector["entries"]} == set(KINDS)
    manual = (HERE.parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
    chapter = manual.split("### Shared connections")[1].split("\n### ")[0]
    for number, name in enumerate(("opened", "frame", "closed", "stopped", "goes on"), start=1):
        assert f"| {name} | {number} |" in chapter


def test_a_bundle_is_taken_for_no_frame() -> None:
    assert BUNDLE not in set(FrameKind)


@given(ENTRIES)
def test_what_is_written_is_read(entries: list[Entry]) -> None:
    assert decode_bundle(encode_bundle(entries)) == entries


@given(st.binary(max_size=200))
def test_any_bytes_are_a_bundle_or_an_error(data: bytes) -> None:
    try:
        decode_bundle(data)
    except FrameError:
        return
    assert data[0] == BUNDLE


@given(ENTRIES, st.data())
def test_no_damage_to_entries_goes_unnoticed(entries: list[Entry], data: st.DataObject) -> None:
    bundle = bytearray(encode_bundle(entries))
    frames = sum(len(entry.frame) for entry in entries if isinstance(entry, SubChannelFrame))
    at = data.draw(st.integers(0, len(bundle) - frames - 1))
    bundle[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        decode_bundle(bundle)


def test_a_frame_of_the_largest_size_fits() -> None:
    bundle = encode_bundle([SubChannelFrame(1, bytes(MAX_FRAME_BYTES))])
    assert len(bundle) <= MAX_BUNDLE_BYTES
    assert len(decode_bundle(bundle)) == 1


def test_more_than_a_bundle_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=f"no bundle can hold that: .* at most {MAX_BUNDLE_BYTES}"):
        encode_bundle([SubChannelFrame(1, bytes(MAX_BUNDLE_BYTES))])
    with pytest.raises(ValueError, match="no bundle can hold that"):
        encode_bundle([SubChannelStopped(2**32, True)])
