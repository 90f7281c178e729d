"""Notes: small documents beside the record, replaced by one of many at a time, too."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest

from qpid_ha_broker.coordination.conformance.at_once import at_once
from qpid_ha_broker.coordination.conformance.under_test import CLUSTER, NOTES, UnderTest
from qpid_ha_broker.coordination.coordinator import LONGEST_NOTE_BYTES, Coordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord

NOTE, OTHER_NOTE = NOTES
RECORD: Final = ClusterRecord(CLUSTER, 1, "a", 1, ("a",))
RACERS, ROUNDS = 4, 10
TEXTS: Final = {
    "JSON": '{"until": "2031-01-01T00:00:00Z", "why": "a <new> switch & \'cables\'"}',
    "all scripts": "Ångström 日本 🐎 \u001b[1m",
    "white space": " \t a\r\nb\n\n ",
    "as long as may be": "x" * LONGEST_NOTE_BYTES,
    "as long as may be, of three bytes each": "日" * (LONGEST_NOTE_BYTES // 3),
    "percent signs and quotes": "100%25 \"quoted\" 'too' \\",
}


def test_a_note_that_nobody_wrote_is_empty(coordinator: Coordinator) -> None:
    assert coordinator.read_note(NOTE) == ""


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_any_text_is_read_back_and_replaced(text: str, coordinator: Coordinator, under_test: UnderTest) -> None:
    assert coordinator.replace_note(NOTE, "", text)
    assert under_test.worker().tell("read_note", NOTE) == text
    assert coordinator.replace_note(NOTE, text, "another")
    assert coordinator.read_note(NOTE) == "another"


def test_a_note_is_replaced_only_if_it_is_as_expected(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.replace_note(NOTE, "", "one")

    assert not other.replace_note(NOTE, "", "two")
    assert not other.replace_note(NOTE, "on", "two")
    assert not other.replace_note(NOTE, "one ", "two")
    assert other.read_note(NOTE) == "one"


def test_a_note_can_become_empty_again(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.replace_note(NOTE, "", "one")

    assert other.replace_note(NOTE, "one", "")
    assert coordinator.read_note(NOTE) == ""
    assert coordinator.replace_note(NOTE, "", "two")


def test_of_many_exactly_one_replaces_a_note(under_test: UnderTest) -> None:
    coordinators = [under_test.connect() for _ in range(RACERS)]
    text = ""
    for step in range(ROUNDS):
        wanted = [f"{step} by {number}" for number in range(RACERS)]
        calls = [partial(own.replace_note, NOTE, text, one) for own, one in zip(coordinators, wanted, strict=True)]
        winners = [one for one, is_done in zip(wanted, at_once(calls), strict=True) if is_done]
        text = coordinators[0].read_note(NOTE)
        assert winners == [text]


def test_notes_and_the_record_do_not_touch_each_other(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.replace_note(NOTE, "", "one")
    coordinator.replace_note(OTHER_NOTE, "", "other")
    coordinator.compare_and_set(ClusterRecord(), RECORD)

    assert other.replace_note(NOTE, "one", "two")
    assert other.read() == RECORD
    assert other.compare_and_set(RECORD, RECORD._replace(epoch=2))[0]
    assert [other.read_note(name) for name in NOTES] == ["two", "other"]
