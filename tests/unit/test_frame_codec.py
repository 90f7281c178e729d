"""What brokers say to each other: the agreed bytes, both directions, and everything that is no frame."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.frame_codec import FrameKind, decode, encode
from qpid_ha_broker.ha.frames import Frame, FrameError, GenerationEntry
from qpid_ha_broker.ha.link_ends import LinkEnd, end_of
from qpid_ha_broker.ha.sealed_frames import MAX_FRAME_BYTES
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.message_clock import LAST_MS

HERE = Path(__file__).parent
NOTE_BYTES = 13

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=64)
IDS = st.lists(U64, max_size=20).map(tuple)
DATA = st.binary(max_size=200)
HISTORY = st.lists(st.builds(GenerationEntry, U64, TEXT, U64), max_size=5).map(tuple)
ARGUMENTS = st.dictionaries(
    TEXT, TEXT | st.booleans() | st.none() | st.integers(0, 2**62) | st.floats(allow_nan=False, allow_infinity=False),
    max_size=3,
)  # fmt: skip
NAMES = st.lists(TEXT, max_size=5).map(tuple)


@st.composite
def ascending_ranges(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    ends = sorted(draw(st.sets(U64, max_size=20)))
    return tuple(zip(ends[::2], ends[1::2], strict=False))


FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        fr.Hello,
        *(st.integers(0, 2**32 - 1), TEXT, TEXT, TEXT, HISTORY, U64, U64),
        *(st.booleans(), st.booleans(), U64, st.booleans(), TEXT, st.lists(U64, max_size=5).map(tuple)),
        st.booleans(),
    ),
    st.builds(
        fr.Welcome,
        *(TEXT, TEXT, U64, HISTORY, U64, st.sampled_from(fr.Resync), TEXT, st.floats(0, 1e6, allow_nan=False)),
        st.lists(st.builds(fr.GenerationDetails, U64, st.booleans(), TEXT), max_size=5).map(tuple),
    ),
    st.builds(fr.Refused, st.sampled_from(fr.RefusalCode), TEXT, TEXT),
    st.builds(fr.Batch, U64, U64, U64, U64, DATA),
    st.builds(fr.Ack, U64, U64, U64),
    st.builds(fr.Heartbeat, U64, U64, U64),
    st.builds(fr.ClockReading, U64, st.integers(0, LAST_MS)),
    st.builds(fr.Holdings, U64, ascending_ranges()),
    st.just(fr.HoldingsDone()),
    st.builds(fr.Objects, U64, U64, U64, NAMES, st.lists(st.tuples(U64, TEXT), max_size=5).map(tuple), IDS, DATA),
    st.builds(
        fr.Chunk, U64, U64, U64, U64, st.booleans(), IDS, st.lists(st.tuples(U64, U64), max_size=9).map(tuple), DATA
    ),
    st.builds(fr.CaughtUp, U64, U64),
    st.builds(fr.Observe, U64, TEXT),
    st.builds(fr.TakeOver, U64),
    st.builds(fr.Shutdown, U64, U64, TEXT),
    st.builds(fr.Question, U64, st.sampled_from(fr.Topic), TEXT, TEXT, TEXT, U64, U64, TEXT, TEXT, TEXT),
    st.builds(
        fr.Answer,
        *(U64, TEXT, TEXT, TEXT, st.sampled_from([state.value for state in State]), U64, U64, NAMES, NAMES, U64),
        *(st.booleans(), U64, TEXT, st.booleans(), TEXT, st.integers(0, 2**32 - 1), st.sampled_from(fr.StoreOrigin)),
        *(U64, U64, st.lists(U64, max_size=5).map(tuple), st.integers(0, LAST_MS)),
    ),
    st.builds(fr.Follow, st.integers(0, 2**32 - 1), TEXT, TEXT, TEXT, HISTORY, U64, st.booleans()),
    st.builds(fr.Followed, TEXT, TEXT, U64, HISTORY, U64, U64, ARGUMENTS, st.floats(0, 1e6, allow_nan=False)),
)


# --- what was agreed


def vectors() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((HERE / "vectors" / "frames.json").read_text(encoding="utf-8"))
    return loaded


VECTORS = [pytest.param(vector, id=f"{vector['type']}: {vector['name']}") for vector in vectors()]
EXAMPLES = [bytes.fromhex(vector["hex"]) for vector in vectors()]


def as_tuples(value: object) -> object:
    return tuple(as_tuples(each) for each in value) if isinstance(value, list) else value


def frame_of(vector: dict[str, Any]) -> Frame:
    fields = {name: as_tuples(value) for name, value in vector["fields"].items()}
    if "data" in fields:
        fields["data"] = bytes.fromhex(str(fields["data"]))
    frame: Frame = getattr(fr, vector["type"])(**fields)
    return frame


@pytest.mark.parametrize("vector", VECTORS)
def test_the_agreed_bytes_are_read_and_written(vector: dict[str, Any]) -> None:
    assert decode(bytes.fromhex(vector["hex"])) == frame_of(vector)
    assert encode(frame_of(vector)).hex() == vector["hex"]


@pytest.mark.parametrize(
    "name", ["set", "committed_generation", "committed_lsn", "claims", "started", "reads_clock", "clock_ms"]
)
def test_a_field_that_an_older_release_does_not_send_says_nothing(name: str) -> None:
    vector = next(each for each in vectors() if each["type"] in ("Hello", "Answer") and name in each["fields"])
    older = {field: value for field, value in vector["fields"].items() if field != name}
    frame = decode(sealed(bytes.fromhex(vector["hex"])[0], json.dumps(older).encode()))
    assert getattr(frame, name) == {"set": "default", "claims": (), "started": ()}.get(name, 0)
    assert f'"{name}"'.encode() not in encode(frame)


@pytest.mark.parametrize("name", ["Hello", "Follow"])
def test_a_first_word_with_a_field_that_is_not_known_is_refused_with_words_that_its_sender_knows_that_by(
    name: str,
) -> None:
    vector = next(each for each in vectors() if each["type"] == name)
    newer = sealed(bytes.fromhex(vector["hex"])[0], json.dumps({**vector["fields"], "reads_minds": True}).encode())
    with pytest.raises(FrameError) as refusal:
        decode(newer)
    assert end_of(str(refusal.value)) is LinkEnd.UNREADABLE


def test_a_clock_beyond_the_year_9999_is_no_reading() -> None:
    late = sealed(FrameKind.CLOCK_READING, struct.pack("<QQ", 1, LAST_MS + 1))
    with pytest.raises(FrameError, match="up to the year 9999"):
        decode(late)
    with pytest.raises(ValueError, match="up to the year 9999"):
        encode(fr.ClockReading(1, LAST_MS + 1))


def test_every_kind_of_frame_has_agreed_bytes() -> None:
    assert {type(frame_of(vector)) for vector in vectors()} == set(get_args(Frame))
    assert {example[0] for example in EXAMPLES} == set(FrameKind)


def test_the_manual_names_every_kind_with_its_number() -> None:
    manual = (HERE.parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
    chapter = manual.split("## Peer channels")[1].split("\n## ")[0]
    for example in EXAMPLES:
        assert f"| {type(decode(example)).__name__} | `{example[0]:#04x}` |" in chapter


# --- both directions


@given(FRAMES)
def test_what_is_written_is_read(frame: Frame) -> None:
    found = decode(encode(frame))
    assert found == frame
    assert type(found) is type(frame)


@given(FRAMES)
def test_a_frame_may_lie_in_the_middle_of_a_buffer(frame: Frame) -> None:
    encoded = encode(frame)
    assert decode(memoryview(b"before" + encoded + b"after")[6:-5]) == frame


def test_fields_come_back_as_what_they_are() -> None:
    """Equality would not tell a text from an enum, nor an integer from a double."""
    welcome = fr.Welcome("b", "u", 2, (GenerationEntry(1, "a", 1),), 7, fr.Resync.DIFF, "", 3)
    found = decode(encode(welcome))
    assert isinstance(found, fr.Welcome)
    assert type(found.resync) is fr.Resync
    assert type(found.link_timeout_s) is float
    assert type(found.history[0]) is GenerationEntry


# --- what is no frame


@pytest.mark.parametrize("example", EXAMPLES, ids=[vector["name"] for vector in vectors()])
def test_no_part_of_a_frame_is_a_frame(example: bytes) -> None:
    for stop in range(len(example)):
        with pytest.raises(FrameError):
            decode(example[:stop])
    with pytest.raises(FrameError):
        decode(example + b"\0")


@pytest.mark.parametrize("example", EXAMPLES, ids=[vector["name"] for vector in vectors()])
def test_one_changed_bit_outside_of_the_records_is_noticed(example: bytes) -> None:
    """The records in `data` have their own checksums: what is changed there comes through, and is noticed later."""
    sealed = NOTE_BYTES + int.from_bytes(example[1:5], "little")
    for bit in range(8 * len(example)):
        damaged = bytearray(example)
        damaged[bit // 8] ^= 1 << bit % 8
        if bit < 8 * sealed:
            with pytest.raises(FrameError):
                decode(damaged)
        else:
            assert decode(damaged) != decode(example)


@given(st.binary(max_size=300))
def test_noise_is_a_frame_error(noise: bytes) -> None:
    with pytest.raises(FrameError):
        decode(noise)


def sealed(kind: int, head: bytes, data: bytes = b"") -> bytes:
    """A frame whose checksum is right, whatever it says."""
    sizes = struct.pack("<BII", kind, len(head), len(data))
    return sizes + struct.pack("<I", crc32(sizes + head)) + head + data


@given(st.sampled_from(list(FrameKind)), st.binary(max_size=200), DATA)
def test_a_well_sealed_head_of_noise_is_a_frame_or_an_error(kind: FrameKind, head: bytes, data: bytes) -> None:
    try:
        frame = decode(sealed(kind, head, data))
    except FrameError:
        return
    assert encode(frame) == sealed(kind, head, data)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
JSON_VECTORS = [vector for vector in vectors() if vector["hex"].find("7b22") == 2 * NOTE_BYTES]


@given(st.sampled_from(JSON_VECTORS), JSON_VALUES, st.data())
def test_any_value_in_any_field_is_a_frame_or_an_error(
    vector: dict[str, Any], value: object, data: st.DataObject
) -> None:
    field = data.draw(st.sampled_from(sorted(vector["fields"])))
    head = json.dumps({**vector["fields"], field: value}).encode()
    try:
        frame = decode(sealed(bytes.fromhex(vector["hex"])[0], head))
    except FrameError:
        return
    assert decode(encode(frame)) == frame


HELLO = next(vector["fields"] for vector in vectors() if vector["type"] == "Hello")
ANSWER = next(vector["fields"] for vector in vectors() if vector["type"] == "Answer")
WELCOME = next(vector["fields"] for vector in vectors() if vector["type"] == "Welcome")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        pytest.param(FrameKind.HELLO, {**HELLO, "more": 1}, id="a field too many"),
        pytest.param(FrameKind.HELLO, {name: HELLO[name] for name in list(HELLO)[1:]}, id="a field too few"),
        pytest.param(FrameKind.HELLO, {**HELLO, "name": "x" * 65}, id="a long name"),
        pytest.param(FrameKind.HELLO, {**HELLO, "name": "\ud800"}, id="half of a character"),
        pytest.param(FrameKind.HELLO, {**HELLO, "last_lsn": 2**64}, id="a number of 65 bits"),
        pytest.param(FrameKind.HELLO, {**HELLO, "last_lsn": -1}, id="below zero"),
        pytest.param(FrameKind.HELLO, {**HELLO, "last_lsn": True}, id="true for 1"),
        pytest.param(FrameKind.HELLO, {**HELLO, "last_lsn": 1.0}, id="a double for an integer"),
        pytest.param(FrameKind.HELLO, {**HELLO, "complete": 1}, id="1 for true"),
        pytest.param(FrameKind.HELLO, {**HELLO, "history": [[1, "a", 1, 0]]}, id="four in a line of history"),
        pytest.param(FrameKind.HELLO, {**HELLO, "history": [[1, "a", 1]] * 100_001}, id="a history without end"),
        pytest.param(FrameKind.ANSWER, {**ANSWER, "state": "president"}, id="no state"),
        pytest.param(FrameKind.ANSWER, {**ANSWER, "members": "bc"}, id="text for a list"),
        pytest.param(FrameKind.ANSWER, {**ANSWER, "members": ["b"] * 1001}, id="too many members"),
        pytest.param(FrameKind.WELCOME, {**WELCOME, "resync": ["tail"]}, id="a list for a word"),
        pytest.param(FrameKind.WELCOME, {**WELCOME, "link_timeout_s": float("nan")}, id="no number"),
        pytest.param(FrameKind.WELCOME, {**WELCOME, "link_timeout_s": 1e9}, id="a time-out of 30 years"),
        pytest.param(FrameKind.WELCOME, {**WELCOME, "clients_url": "x" * 2001}, id="a long address"),
        pytest.param(FrameKind.WELCOME, [], id="no object"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused(kind: FrameKind, fields: object) -> None:
    with pytest.raises(FrameError):
        decode(sealed(kind, json.dumps(fields).encode()))


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b'{"generation":1,"generation":2}', id="a field twice"),
        pytest.param(b'{"generation":' + b"[" * 100_000, id="a thousand brackets"),
        pytest.param(b'{"generation":' + b"9" * 10_000 + b"}", id="a number that cannot be printed"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_json_that_is_a_trap_is_refused(head: bytes) -> None:
    with pytest.raises(FrameError):
        decode(sealed(FrameKind.TAKE_OVER, head))


@pytest.mark.parametrize(
    "flat",
    [(5, 4), (1, 3, 3, 6), (7, 8, 1, 2), (1, 2, 3)],
    ids=["backwards", "overlapping", "descending", "half a range"],
)
def test_ranges_that_do_not_ascend_are_refused(flat: tuple[int, ...]) -> None:
    with pytest.raises(FrameError):
        decode(sealed(FrameKind.HOLDINGS, struct.pack(f"<Q{len(flat)}Q", 1, *flat)))


@pytest.mark.parametrize("example", EXAMPLES, ids=[vector["name"] for vector in vectors()])
def test_a_head_with_a_byte_too_many_is_refused(example: bytes) -> None:
    head_bytes = int.from_bytes(example[1:5], "little")
    head, data = example[NOTE_BYTES : NOTE_BYTES + head_bytes], example[NOTE_BYTES + head_bytes :]
    assert sealed(example[0], head, data) == example
    with pytest.raises(FrameError):
        decode(sealed(example[0], head + b"}", data))


def test_data_where_there_is_none_is_refused() -> None:
    with pytest.raises(FrameError, match="data"):
        decode(sealed(FrameKind.ACK, struct.pack("<QQQ", 1, 2, 3), b"records"))


def test_a_kind_of_another_release_is_named() -> None:
    with pytest.raises(FrameError, match="0x7f"):
        decode(sealed(0x7F, b""))


@pytest.mark.parametrize(
    "frame",
    [
        fr.Ack(-1, 0, 0),
        fr.Ack(0, 2**64, 0),
        fr.Batch(1, 1, 1, 1, b"x" * MAX_FRAME_BYTES),
        fr.Holdings(1, ((3, 2),)),
        fr.Refused(fr.RefusalCode.PROTOCOL, "x" * 2001, ""),
        fr.TakeOver(1.5),  # type: ignore[arg-type]
        fr.Objects(1, 1, 1, ("x" * 65,), (), (), b""),
        fr.Chunk(1, 1, 1, 1, False, (), ((1, 2, 3),), b""),  # type: ignore[arg-type]
        fr.Objects(1, 1, 1, (), ((1, "x" * 70_000),), (), b""),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_what_no_frame_can_hold_is_not_sent(frame: Frame) -> None:
    with pytest.raises(ValueError, match=type(frame).__name__):
        encode(frame)
