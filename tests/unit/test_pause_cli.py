"""`qpid-ha pause` and `resume` against a directory: what they write, what they say, and what they refuse."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qpid_ha_agent.cli import pause as pause_command
from qpid_ha_agent.cli.admin import admin
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.coordination.pause import PAUSE_NOTE, Pause, decode_pause


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a cluster shares, and the configuration that this machine's tools find."""
    shared = tmp_path / "shared"
    shared.mkdir()
    config = tmp_path / "c.yaml"
    config.write_text(f"name: a\nha: {{cluster: true, coordinator: 'file:{shared}'}}\n", encoding="utf-8")
    monkeypatch.setenv("QPID_HA_CONFIG", str(config))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(pause_command, "HEEDED_AFTER_S", 0.0)
    return shared


def qpid_ha(*words: str) -> Result:
    return CliRunner().invoke(admin, list(words))


def noted(directory: Path) -> Pause | None:
    return decode_pause(FileCoordinator(directory).read_note(PAUSE_NOTE))


def test_a_pause_is_noted_with_who_when_and_why_and_taken_back(directory: Path) -> None:
    assert qpid_ha("pause", "--for", "2h", "--reason", "new disks").exit_code == 0
    pause = noted(directory)
    assert pause is not None
    assert pause.until is not None
    assert timedelta(0) <= pause.until - pause.since - timedelta(hours=2) <= timedelta(seconds=1)
    assert abs(datetime.now(UTC) - pause.since) < timedelta(minutes=1)
    assert " on " in pause.by
    assert pause.reason == "new disks"

    assert qpid_ha("resume").stdout.startswith("agents go on; it was paused by")
    assert noted(directory) is None
    assert qpid_ha("resume").stdout == "it was not paused\n"


def test_another_pause_replaces_the_one_before(directory: Path) -> None:
    qpid_ha("pause", "--for", "1h")
    qpid_ha("pause")
    pause = noted(directory)
    assert pause is not None
    assert pause.until is None


def test_programs_get_what_was_noted(directory: Path) -> None:
    told = json.loads(qpid_ha("pause", "--format", "json", "--reason", "r").stdout)
    assert (told["paused"]["reason"], told["paused"]["until"]) == ("r", None)
    gone = json.loads(qpid_ha("resume", "--format", "json").stdout)
    assert (gone["paused"], gone["was"]["reason"]) == (None, "r")


@pytest.mark.parametrize(
    "text", ["23:59", "23:59:30", "2099-03-01 17:30", "2099-03-01T16:30Z", "2099-03-01T17:30+01:00"]
)
def test_an_end_is_a_time_of_day_or_a_date_with_or_without_a_zone(directory: Path, text: str) -> None:
    done = qpid_ha("pause", "--until", text)
    assert done.exit_code == 0, done.output
    pause = noted(directory)
    assert pause is not None
    assert pause.until is not None
    if text.startswith("2099") and text.endswith(("Z", "+01:00")):
        assert pause.until == datetime(2099, 3, 1, 16, 30, tzinfo=UTC)
    if not text.startswith("2099"):
        assert timedelta(0) < pause.until - pause.since <= timedelta(days=1)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--for", "1h", "--until", "23:59"], "give one of them"),
        (["--until", "tomorrow"], "2026-03-01T16:30Z"),
        (["--until", "25:61"], "17:30"),
        (["--until", "2001-01-01"], "which is over"),
        (["--for", "0s"], "which is over"),
        (["--for", "soon"], "no duration"),
        (["--reason", "x" * 501], "500 characters"),
        (["-b", "node1"], "leave -b out"),
    ],
)
def test_what_makes_no_sense_is_refused_and_notes_nothing(directory: Path, words: list[str], named: str) -> None:
    refused = qpid_ha("pause", *words)
    assert refused.exit_code == 2
    assert named in refused.stderr
    assert noted(directory) is None


def test_a_note_that_cannot_be_understood_is_removed_by_resume(directory: Path) -> None:
    FileCoordinator(directory).replace_note(PAUSE_NOTE, "", "{")
    assert "cannot be understood" in qpid_ha("resume").stdout
    assert noted(directory) is None


def test_a_coordinator_that_cannot_be_reached_is_named(directory: Path) -> None:
    directory.rmdir()
    failed = qpid_ha("pause")
    assert failed.exit_code == 3
    assert f"the shared directory {directory} is not there" in failed.stderr


def test_a_machine_without_a_configuration_is_told_where_to_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QPID_HA_CONFIG", raising=False)
    monkeypatch.setattr("qpid_ha_config.defaults.find_file", lambda *_: None)
    refused = qpid_ha("pause")
    assert refused.exit_code == 2
    assert "--config" in refused.stderr


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize(
    ("coordinator", "remedy"),
    [("none", "ha.coordinator is none"), ("pacemaker", "crm_attribute --name maintenance-mode --update true")],
)
def test_where_no_agent_would_heed_a_pause_it_is_refused_with_what_to_do_instead(
    tmp_path: Path, command: str, coordinator: str, remedy: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"ha: {{cluster: true, coordinator: {coordinator}}}\n", encoding="utf-8")
    refused = qpid_ha(command, "--config", str(config))
    assert refused.exit_code == 1
    assert remedy in refused.stderr
    assert refused.stderr.count("\n") == 1
