"""The file of an export: whatever is changed or missing in it is found, with the place, before anything is sent."""

from __future__ import annotations

import io
import json
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_agent.message_file import FileDamaged, MessageFile, end_line, header_line, line_of, message_line
from qpid_ha_agent.message_import import PRODUCER, SEQUENCE, numbered, producer_name
from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import MessageSections

EXPORT = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
PAYLOADS = [b"one", b"", bytes(range(256))]


def whole(payloads: list[bytes] = PAYLOADS) -> bytes:
    lines = [message_line(number, str(number * 7), 5, each) for number, each in enumerate(payloads, 1)]
    return b"".join([header_line(EXPORT, "q", at_ms=1), *lines, end_line(len(payloads))])


def read(data: bytes) -> list[bytes]:
    return [message.payload for message in MessageFile(io.BytesIO(data)).messages()]


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_what_is_written_is_read(payloads: list[bytes]) -> None:
    assert read(whole(payloads)) == payloads


def test_each_line_is_json_with_what_an_operator_may_want_to_know() -> None:
    header, first, *_, end = map(json.loads, whole().splitlines())
    assert (header["format"], header["queue"], first["id"], first["enqueued_ms"], end["end"]) == (
        "qpid-ha-messages", "q", "7", 5, 3,
    )  # fmt: skip
    assert MessageFile(io.BytesIO(whole())).export == EXPORT


def test_any_byte_that_is_changed_and_any_that_is_missing_is_noticed() -> None:
    data = whole()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        for broken in (bytes(changed), data[:at]):
            with pytest.raises(FileDamaged, match=r"^line \d+: "):
                read(broken)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (whole() + b"x", "line 5: something comes after the end"),
        (b"", "line 1: the file ends here"),
        (b"hello\n", "line 1: no checksum"),
        (line_of({"format": "other"}), "line 1: this is no export"),
        (line_of({"format": "qpid-ha-messages", "export": "x", "version": 2}), "line 1: version 2"),
        (header_line(EXPORT, "q") + message_line(2, "1", None, b""), "line 2: message 1 belongs here"),
        (header_line(EXPORT, "q") + line_of({"number": 1, "amqp": "!"}), "line 2: the bytes of message 1"),
        (header_line(EXPORT, "q") + end_line(1), "line 2: there should be 1 messages"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(data: bytes, problem: str) -> None:
    with pytest.raises(FileDamaged) as damaged:
        read(data)
    assert str(damaged.value).startswith(problem)


# --- the number under which a message is sent


@pytest.mark.parametrize("annotations", [None, {"x-opt-mine": 5}, {PRODUCER: "its own", SEQUENCE: 9, "x-opt-mine": 5}])
def test_a_message_is_numbered_anew_and_else_stays_as_it_was(annotations: dict[str, Any] | None) -> None:
    message = proton.Message("body", subject="s", durable=True, properties={"k": 1})
    if annotations is not None:
        message.annotations = {proton.symbol(name): value for name, value in annotations.items()}
    payload = numbered(message.encode(), "importer", 7)
    found = dict(MessageSections().annotations(payload))
    assert (found.pop(PRODUCER), found.pop(SEQUENCE)) == ("importer", 7)
    assert found == {name: value for name, value in (annotations or {}).items() if name == "x-opt-mine"}
    again: Any = proton.Message()
    again.decode(payload)
    assert (again.body, again.subject, again.durable, again.properties) == ("body", "s", True, {"k": 1})


def test_bytes_that_are_no_message_are_not_sent() -> None:
    with pytest.raises(DecodeError):
        numbered(b"garbage", "importer", 1)


def test_each_file_queue_and_run_has_a_producer_of_its_own() -> None:
    asked = [(EXPORT, "q", ""), (EXPORT, "other", ""), (EXPORT, "q", "again"), ("another", "q", "")]
    assert len({producer_name(*each) for each in asked}) == 4
    assert producer_name(*asked[0]) == producer_name(*asked[0])
