"""`qpid-ha coordinator`: what is there, whether it works, and moving what a directory holds to another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broken_coordinators import install
from qpid_ha_agent.cli.admin import admin
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.coordination.identity import identity_of
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import installed_schemes

EMPTY = ClusterRecord()
RECORD = ClusterRecord("c1", 3, "a", 7, ("a", "b"))


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has none of its own."""
    monkeypatch.setenv("QPID_HA_CONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))


def run(*words: object) -> Result:
    return CliRunner().invoke(admin, ["coordinator", *map(str, words)])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a cluster's record and notes."""
    made = tmp_path / "from"
    made.mkdir()
    coordinator = FileCoordinator(made)
    coordinator.compare_and_set(EMPTY, RECORD)
    coordinator.replace_note("pause", "", '{"by": "somebody"}')
    identity_of(coordinator)
    return made


@pytest.fixture
def other(tmp_path: Path) -> Path:
    made = tmp_path / "to"
    made.mkdir()
    return made


def test_show_tells_the_record_the_lock_and_the_notes(place: Path) -> None:
    lock = FileCoordinator(place).lease("node7")
    assert lock.try_lock()

    shown = run("show", "--url", f"file:{place}", "--format", "json")

    assert shown.exit_code == 0, shown.stderr
    facts = json.loads(shown.stdout)
    assert (facts["cluster"], facts["generation"], facts["members"]) == ("c1", 3, ["a", "b"])
    assert facts["lock"].startswith("node7")
    assert facts["identity"] == identity_of(FileCoordinator(place))
    assert facts["notes"] == {"pause": '{"by": "somebody"}'}
    assert "generation" in run("show", "--url", f"file:{place}").stdout


def test_show_leaves_out_a_pause_that_is_over(place: Path) -> None:
    over = '{"by": "ann", "since": "2020-01-01T00:00:00Z", "until": "2020-01-01T01:00:00Z", "reason": ""}'
    coordinator = FileCoordinator(place)
    coordinator.replace_note("pause", coordinator.read_note("pause"), over)
    assert json.loads(run("show", "--url", f"file:{place}", "--format", "json").stdout)["notes"] == {}


def test_show_takes_the_coordinator_of_a_configuration(place: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    config.write_text(f"ha.cluster: true\nha.coordinator: file:{place}\n", encoding="utf-8")

    assert "c1" in run("show", "--config", config).stdout
    assert run("show", "--config", tmp_path / "missing.yaml").exit_code == 2
    assert "give --config or --url" in run("show").stderr


def test_check_tries_everything_and_leaves_what_was_there(place: Path) -> None:
    checked = run("check", "--url", f"file:{place}", "--format", "json")

    assert checked.exit_code == 0, checked.stdout + checked.stderr
    rows = json.loads(checked.stdout)
    assert [row["found"].partition(":")[0] for row in rows] == ["ok"] * 6
    assert all(row["ms"] >= 0 for row in rows)
    assert FileCoordinator(place).read() == RECORD
    assert FileCoordinator(place).read_note("check") == ""


@pytest.fixture
def broken_coordinators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution that adds them is installed, and gone afterwards. A process looks up once what is installed."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    installed_schemes.cache_clear()
    yield
    installed_schemes.cache_clear()


@pytest.mark.usefixtures("broken_coordinators")
@pytest.mark.parametrize(
    ("name", "what"), [("two-holders", "hold a lease"), ("swallows", ""), ("guesses", "")], ids=str
)
def test_check_says_what_is_wrong(name: str, what: str, place: Path) -> None:
    checked = run("check", "--url", f"broken-{name}:{place}")

    assert checked.exit_code == (1 if what else 0), checked.stdout + checked.stderr
    assert what in checked.stderr


def test_who_cannot_be_reached_is_told_apart(tmp_path: Path) -> None:
    for verb in ("show", "check"):
        done = run(verb, "--url", f"file:{tmp_path}/away")
        assert (done.exit_code, "is not there: mount it" in done.stderr) == (3, True)


def test_migrate_moves_everything_and_says_what_to_do_then(place: Path, other: Path) -> None:
    done = run("migrate", f"file:{place}", f"file:{other}")

    assert done.exit_code == 0, done.stderr
    assert f"set ha.coordinator to file:{other} on all machines" in done.stdout
    assert FileCoordinator(other).read() == RECORD
    assert FileCoordinator(other).read_note("pause") == '{"by": "somebody"}'
    assert identity_of(FileCoordinator(other)) == identity_of(FileCoordinator(place)), "it is the same cluster's record"
    shown = run("show", "--url", f"file:{place}")
    assert (shown.exit_code, f"set ha.coordinator to file:{other}" in shown.stderr) == (1, True)
    assert run("migrate", f"file:{place}", f"file:{other}").exit_code == 0


@pytest.mark.parametrize(
    ("source", "target", "code", "said"),
    [
        ("file:{place}", "file:{place}", 2, "are the same"),
        ("file:{place}", "none", 1, "is none"),
        ("pacemaker", "file:{other}", 2, "changes who starts and promotes"),
        ("file:{place}", "pacemaker:orders", 2, "changes who starts and promotes"),
        ("file:{other}", "file:{place}", 1, "holds no record"),
        ("file:{place}", "file:{other}/away", 3, "is not there"),
        ("file:{place}", "ftp:x", 2, "no coordinator for ftp:"),
    ],
)
def test_migrate_refuses(source: str, target: str, code: int, said: str, place: Path, other: Path) -> None:
    done = run("migrate", source.format(place=place, other=other), target.format(place=place, other=other))

    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert FileCoordinator(place).read() == RECORD
