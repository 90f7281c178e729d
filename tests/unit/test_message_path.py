"""The way of a message over bridges, as an annotation of it."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.message_path import MESSAGE_PATH, message_path, with_path
from qpid_ha_broker.amqp.wire.remote_path import Step

ONE, TWO = Step("id-1", "a", "orders"), Step("id-2", "b", "Aufträge")


def decoded(payload: bytes) -> Any:
    message = proton.Message()
    message.decode(payload)
    return message


@pytest.mark.parametrize("annotations", [None, {}, {"x": 1, "y": ["list"]}, {MESSAGE_PATH: "a\nb\nc"}])
def test_a_way_is_added_and_replaced_and_nothing_else_changes(annotations: Any) -> None:
    message: Any = proton.Message("body", durable=True, subject="s", properties={"p": 1}, annotations=annotations)
    message.instructions = {"hop": 1}
    payload = with_path(message.encode(), (ONE, TWO))
    assert message_path(payload) == (ONE, TWO)
    again = decoded(payload)
    assert (again.body, again.durable, again.subject, again.properties) == ("body", True, "s", {"p": 1})
    assert again.instructions == {"hop": 1}
    others = {name: value for name, value in (annotations or {}).items() if name != MESSAGE_PATH}
    assert {name: value for name, value in again.annotations.items() if name != MESSAGE_PATH} == others
    assert decoded(with_path(payload, (ONE,))).annotations[MESSAGE_PATH] == "id-1\na\norders"


def test_a_message_of_nothing_but_a_body_gets_its_annotations_before_it() -> None:
    payload = with_path(b"\x00\x53\x77\x40", (ONE,))
    assert message_path(payload) == (ONE,)
    assert decoded(payload).body is None


def test_a_message_without_a_way_has_come_by_no_bridge() -> None:
    assert message_path(proton.Message("a").encode()) == ()
    assert message_path(proton.Message(MESSAGE_PATH, annotations={"x": MESSAGE_PATH}).encode()) == ()


@pytest.mark.parametrize("text", ["", "a", "a\nb", "a\nb\nc\nd", "\n".join("abc" * 9)])
def test_a_way_that_no_broker_of_ours_wrote_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        message_path(proton.Message("a", annotations={MESSAGE_PATH: text}).encode())
