"""The note by which an agent is asked to begin anew: who writes it when, and what stands in the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from qpid_ha_agent.planned_restart import (
    RESTART_NOTE,
    TAKES_MOST,
    PlannedRestart,
    RestartRequest,
    Stage,
    decode_request,
    encode_request,
)
from qpid_ha_broker import __version__
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha.states import State

NOW = datetime.now(UTC)
REQUEST = RestartRequest("1", "a", "root on n1", NOW + timedelta(days=1))


class UncertainCoordinator(FileCoordinator):
    """Writes, and fails before it can say so."""

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        super().replace_note(name, expected, wanted)
        raise CoordinatorError("no answer")


def nothing() -> str:
    """Stands in the way."""
    return ""


def startable(version: str) -> str:
    """2.0 is installed."""
    return "" if version in ("", "2.0") else f"2.0 is installed there, and not {version}"


@pytest.fixture
def planned(tmp_path: Path) -> PlannedRestart:
    return PlannedRestart("a", FileCoordinator(tmp_path), startable)


def note_of(planned: PlannedRestart) -> str:
    return planned.coordinator.read_note(RESTART_NOTE)


def stage_of(planned: PlannedRestart) -> tuple[Stage, str]:
    request = decode_request(note_of(planned))
    assert request is not None
    return request.stage, request.text


def ask(planned: PlannedRestart, request: RestartRequest = REQUEST) -> str:
    assert planned.coordinator.replace_note(RESTART_NOTE, note_of(planned), encode_request(request))
    return note_of(planned)


def test_a_note_is_read_as_it_was_written() -> None:
    for stage in Stage:
        request = REQUEST._replace(stage=stage, version="2.0", text="why")
        assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize(
    "note", ["", "{", "[]", "7", '{"node": "a"}', encode_request(REQUEST).replace("asked", "wished"), "[" * 9999]
)
def test_nobody_acts_on_a_note_that_he_does_not_understand(planned: PlannedRestart, note: str) -> None:
    assert decode_request(note) is None
    assert not planned.begin_answer(note, State.READY, NOW)


def test_it_stands_in_the_way_of_others_until_it_is_void_answered_or_long_over() -> None:
    late, later = REQUEST.until, REQUEST.until + TAKES_MOST
    taken = REQUEST._replace(stage=Stage.TAKEN)
    assert [REQUEST.is_under_way(at) for at in (NOW, late)] == [True, False]
    assert [taken.is_under_way(at) for at in (NOW, late, later)] == [True, True, False]
    assert not any(REQUEST._replace(stage=stage).is_under_way(NOW) for stage in (Stage.REFUSED, Stage.BACK))


@pytest.mark.parametrize(
    ("request_", "state", "is_due"),
    [
        (REQUEST, State.READY, True),
        (REQUEST, State.CATCHUP, True),  # to refuse it
        (REQUEST._replace(node="b"), State.READY, False),
        (REQUEST._replace(until=NOW), State.READY, False),
        (REQUEST._replace(stage=Stage.TAKEN), State.READY, True),
        (REQUEST._replace(stage=Stage.TAKEN), State.LOADING, False),
        (REQUEST._replace(stage=Stage.TAKEN), None, False),
        (REQUEST._replace(stage=Stage.REFUSED), State.READY, False),
        (REQUEST._replace(stage=Stage.BACK), State.READY, False),
    ],
)
def test_an_agent_answers_what_it_is_asked_in_time_and_what_the_one_before_it_took(
    planned: PlannedRestart, request_: RestartRequest, state: State | None, is_due: bool
) -> None:
    assert planned.begin_answer(encode_request(request_), state, NOW) is is_due


def test_a_request_is_taken_once_and_the_next_agent_says_that_it_is_back(planned: PlannedRestart) -> None:
    note = ask(planned)
    assert planned.begin_answer(note, State.READY, NOW)
    assert not planned.begin_answer(note, State.READY, NOW)
    assert "a restart by root on n1" in planned.answer(note, nothing)
    assert planned.cause == "a restart by root on n1"
    assert stage_of(planned) == (Stage.TAKEN, "")
    assert not planned.begin_answer(note_of(planned), State.READY, NOW)

    following = PlannedRestart("a", planned.coordinator, startable)
    assert following.begin_answer(note_of(planned), State.READY, NOW)
    assert following.answer(note_of(planned), nothing)
    assert stage_of(planned) == (Stage.BACK, __version__)
    assert following.cause == ""


def test_it_is_refused_where_something_stands_in_its_way(planned: PlannedRestart) -> None:
    planned.answer(ask(planned), lambda: "paused by root")
    assert stage_of(planned) == (Stage.REFUSED, "paused by root")
    came_since = iter(["", "its broker is catchup"])
    planned.answer(ask(planned), lambda: next(came_since))
    assert stage_of(planned) == (Stage.REFUSED, "its broker is catchup")
    assert planned.cause == ""


@pytest.mark.parametrize(("version", "stage"), [("2.0", Stage.TAKEN), ("3.0", Stage.REFUSED)])
def test_an_upgrade_is_refused_where_another_version_is_installed(
    planned: PlannedRestart, version: str, stage: Stage
) -> None:
    planned.answer(ask(planned, REQUEST._replace(version=version)), nothing)
    assert stage_of(planned)[0] is stage
    assert ("2.0 is installed there, and not 3.0" in stage_of(planned)[1]) is (stage is Stage.REFUSED)


def test_a_request_that_was_taken_back_meanwhile_is_not_carried_out(planned: PlannedRestart) -> None:
    note = ask(planned)
    planned.coordinator.replace_note(RESTART_NOTE, note, "")
    assert planned.answer(note, nothing) == ""
    assert planned.cause == ""


def test_one_whose_time_ended_while_it_was_looked_at_is_refused(planned: PlannedRestart) -> None:
    planned.answer(ask(planned, REQUEST._replace(until=datetime.now(UTC))), nothing)
    assert stage_of(planned)[0] is Stage.REFUSED
    assert planned.cause == ""


def test_a_hand_over_that_comes_to_nothing_refuses_it(planned: PlannedRestart) -> None:
    planned.answer(ask(planned), nothing)
    planned.give_up("there is no backup")
    assert planned.begin_answer(note_of(planned), State.PRIMARY, NOW)
    planned.answer(note_of(planned), nothing)
    assert stage_of(planned) == (Stage.REFUSED, "there is no backup")


def test_when_nobody_knows_whether_it_was_taken_it_was_not(planned: PlannedRestart, tmp_path: Path) -> None:
    note = ask(planned)
    sound, planned.coordinator = planned.coordinator, UncertainCoordinator(tmp_path)
    with pytest.raises(CoordinatorError):
        planned.answer(note, nothing)
    assert (planned.cause, stage_of(planned)[0]) == ("", Stage.TAKEN)
    planned.coordinator = sound
    assert planned.begin_answer(note_of(planned), State.READY, NOW)
    planned.answer(note_of(planned), nothing)
    assert stage_of(planned)[0] is Stage.REFUSED
