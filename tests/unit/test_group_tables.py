"""The tables of a group's member are whole, and what its frames hold comes back as it went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group import frames as fr
from qpid_ha_broker.group.deliveries import FRAMES, Deliveries, RoleCells
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.frames import decode_batch, encode_batch, encode_frame
from qpid_ha_broker.group.member import INPUTS, GroupMember
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import FrameError, GenerationEntry

RECORD = ClusterRecord("uuid", 7, "a", 7, ("a", "b"), False)
PLACE = fr.LinkPlace(3, "uuid", "in", 2, "a")
SHOWN = fr.LineageShown(
    to="c", instance="c-2", number=3, record=RECORD, in_step=("a", "b"), admitting=(("d", 9),), gone=("d",),
    joining=(("c", 3, "a"),), acknowledged=(("a", 12, 4),), committed_lsn=11, position=4,
    shares=(fr.QueueShare(5, "a", 2, ("b",), (("b", ((6, 8), (10, 10))),), (PLACE,), "b"),),
    history=(GenerationEntry(1, "b", 1), GenerationEntry(7, "a", 9)),
)  # fmt: skip
SAMPLES: list[fr.GroupFrame] = [
    fr.Submitted(1, b"records"),
    fr.Acknowledged(12, 4),
    fr.QueueWanted(5),
    fr.QueueYielded(5, ((6, 8), (10, 10))),
    fr.LinkTaken(4, 5, 3, "uuid", "in", 2),
    fr.LinkLeft(5, 3, "uuid", "in"),
    fr.EpochBegun(RECORD, True, ("d",)),
    fr.MemberPresent(RECORD, False),
    fr.JoinAsked("c-2", 3),
    SHOWN,
    fr.ObjectsShown("c", "c-2", 3, b"objects"),
    fr.ChunkAsked(5, 100, ((1, 4),)),
    fr.ChunkShown("c", b"chunk"),
    fr.AdmissionAsked(3, "a"),
]


def test_each_input_and_each_frame_has_a_row_and_nothing_else_has() -> None:
    assert set(INPUTS) == set(get_args(fx.Input))
    assert set(FRAMES) == set(get_args(fr.GroupFrame))


def test_each_cell_names_a_method() -> None:
    for table, handler in ((INPUTS, GroupMember), (FRAMES, Deliveries)):
        cells = {cell for row in table.values() for cell in row}
        assert {cell for cell in cells if not callable(getattr(handler, cell, None))} == set()


def test_each_role_has_a_column() -> None:
    assert tuple(role.replace("-", "_") for role in GroupRole) == RoleCells._fields


def test_there_is_a_sample_of_each_frame() -> None:
    assert {type(frame) for frame in SAMPLES} == set(get_args(fr.GroupFrame))


def agreed_bytes() -> list[tuple[str, bytes]]:
    """Of each sample; other bytes would be another GROUP_VERSION."""
    vectors = json.loads((Path(__file__).parent / "vectors" / "group_frames.json").read_text(encoding="utf-8"))
    return [(vector["name"], bytes.fromhex(vector["hex"])) for vector in vectors]


def test_the_agreed_bytes_are_written() -> None:
    assert [(type(frame).__name__, encode_frame(frame)) for frame in SAMPLES] == agreed_bytes()


def test_the_agreed_bytes_are_read() -> None:
    assert decode_batch(encode_batch("orders", [agreed for _, agreed in agreed_bytes()])) == ("orders", SAMPLES)


def test_a_batch_has_its_frames_in_their_order() -> None:
    assert decode_batch(encode_batch("orders", list(map(encode_frame, SAMPLES)))) == ("orders", SAMPLES)


@pytest.mark.parametrize("cut", [0, 1, 5, 9, 20])
def test_a_batch_that_is_cut_is_none(cut: int) -> None:
    batch = encode_batch("orders", [encode_frame(SAMPLES[0]), encode_frame(SHOWN)])
    with pytest.raises(FrameError):
        decode_batch(batch[: -1 - cut])


def test_any_bit_of_a_frame_is_checked() -> None:
    batch = bytearray(encode_batch("orders", [encode_frame(fr.Acknowledged(12, 4))]))
    batch[-3] ^= 1
    with pytest.raises(FrameError, match="damaged on its way"):
        decode_batch(batch)


def test_a_batch_of_another_version_is_refused_by_name() -> None:
    with pytest.raises(FrameError, match="expected version 2 of what groups say, found 1"):
        decode_batch(b"\x01" + encode_batch("orders", [])[1:])
