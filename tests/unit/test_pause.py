"""The note by which an operator has all agents pause, and when its end has come for one machine's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from qpid_ha_broker.coordination.pause import UNREADABLE, Pause, PauseView, decode_pause, encode_pause

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
PAUSE = Pause("root on node1", NOON, NOON + 2 * HOUR, "new disks")


@pytest.mark.parametrize("pause", [PAUSE, Pause("root on node1", NOON)])
def test_a_note_is_read_as_it_was_written(pause: Pause) -> None:
    assert decode_pause(encode_pause(pause)) == pause
    assert decode_pause("") is None


def test_a_pause_says_who_wants_it_until_when_and_why() -> None:
    assert PAUSE.text == "paused by root on node1 since 2026-03-01T12:00:00Z until 2026-03-01T14:00:00Z: new disks"
    assert "qpid-ha resume" in Pause("root", NOON).text


@pytest.mark.parametrize("note", ["{", "[]", "7", '{"by": "a"}', '{"by": 1, "since": "x", "until": null}', "[" * 9999])
def test_a_note_that_cannot_be_understood_is_a_pause_without_an_end(note: str) -> None:
    """Somebody wanted one. It says how to be rid of it."""
    found = decode_pause(note)
    assert found is not None
    assert (found.until, found.reason) == (None, UNREADABLE)


def test_a_pause_that_would_be_over_or_is_too_long_to_write_is_refused() -> None:
    with pytest.raises(ValueError, match="which is over"):
        encode_pause(PAUSE._replace(until=NOON))
    with pytest.raises(ValueError, match="500 characters"):
        encode_pause(PAUSE._replace(reason="x" * 501))


def view_of(pause: Pause, at_s: float = 0.0) -> PauseView:
    view = PauseView()
    view.note(encode_pause(pause), at_s)
    return view


def test_a_pause_is_in_force_until_its_end_by_this_machines_clock() -> None:
    view = view_of(PAUSE)
    assert view.at(NOON + HOUR, 3600.0) == PAUSE
    assert view.at(NOON + 2 * HOUR, 7199.0) is None


def test_a_pause_without_an_end_lasts_until_it_is_taken_back() -> None:
    view = view_of(PAUSE._replace(until=None))
    assert view.at(NOON + 9999 * HOUR, 9e9) is not None
    view.note("", 9e9)
    assert view.at(NOON, 9e9) is None


def test_a_clock_that_is_set_back_does_not_prolong_a_pause_beyond_its_length() -> None:
    view = view_of(PAUSE, at_s=500.0)
    assert view.at(NOON - 1000 * HOUR, 500.0 + 7199.0) == PAUSE
    assert view.at(NOON - 1000 * HOUR, 500.0 + 7200.0) is None


def test_reading_the_same_note_again_does_not_begin_it_anew() -> None:
    view = view_of(PAUSE)
    view.note(encode_pause(PAUSE), 7000.0)
    assert view.at(NOON, 7200.0) is None
    view.note(encode_pause(PAUSE._replace(reason="longer than thought")), 7200.0)
    assert view.at(NOON, 7201.0) is not None
