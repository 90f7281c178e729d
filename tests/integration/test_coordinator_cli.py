"""`qpid-ha coordinator`: what is there, whether it works, and moving a running cluster to another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broken_coordinators import install
from etcd_ensemble import EtcdEnsemble
from failover_load import FailoverLoad
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha.effects import ClusterRecord
from qpid_ha_demo.cluster import LocalCluster

EMPTY = ClusterRecord()
RECORD = ClusterRecord("c1", 3, "a", 7, ("a", "b"))


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "coordinator", *map(str, words)]
    path = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), *sys.path]))
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "QPID_HA_CONFIG": "", "PYTHONPATH": path, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdEnsemble]:
    with EtcdEnsemble(1) as ensemble:
        yield ensemble


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a cluster's record and notes."""
    made = tmp_path / "from"
    made.mkdir()
    coordinator = FileCoordinator(made)
    coordinator.compare_and_set(EMPTY, RECORD)
    coordinator.replace_note("pause", "", '{"by": "somebody"}')
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

    assert shown.returncode == 0, shown.stderr
    facts = json.loads(shown.stdout)
    assert (facts["cluster"], facts["generation"], facts["members"]) == ("c1", 3, ["a", "b"])
    assert facts["lock"].startswith("node7")
    assert facts["notes"] == {"pause": '{"by": "somebody"}'}
    assert "generation" in run("show", "--url", f"file:{place}").stdout


def test_show_takes_the_coordinator_of_a_configuration(place: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    config.write_text(f"ha.cluster: true\nha.coordinator: file:{place}\n", encoding="utf-8")

    assert "c1" in run("show", "--config", config).stdout
    assert run("show", "--config", tmp_path / "missing.yaml").returncode == 2
    assert "give --config or --url" in run("show", HOME=str(tmp_path)).stderr


def test_check_tries_everything_and_leaves_what_was_there(place: Path) -> None:
    checked = run("check", "--url", f"file:{place}", "--format", "json")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    rows = json.loads(checked.stdout)
    assert [row["found"].partition(":")[0] for row in rows] == ["ok"] * 6
    assert all(row["ms"] >= 0 for row in rows)
    assert FileCoordinator(place).read() == RECORD
    assert FileCoordinator(place).read_note("check") == ""


@pytest.mark.parametrize(
    ("name", "what"), [("two-holders", "hold a lease"), ("swallows", ""), ("guesses", "")], ids=str
)
def test_check_says_what_is_wrong(name: str, what: str, place: Path, tmp_path: Path) -> None:
    install(tmp_path)

    checked = run("check", "--url", f"broken-{name}:{place}", PYTHONPATH=str(tmp_path))

    assert checked.returncode == (1 if what else 0), checked.stdout + checked.stderr
    assert what in checked.stderr


def test_who_cannot_be_reached_is_told_apart(tmp_path: Path) -> None:
    for verb in ("show", "check"):
        done = run(verb, "--url", f"file:{tmp_path}/away")
        assert (done.returncode, "is not there: mount it" in done.stderr) == (3, True)


def test_migrate_moves_everything_and_says_what_to_do_then(place: Path, other: Path) -> None:
    done = run("migrate", f"file:{place}", f"file:{other}")

    assert done.returncode == 0, done.stderr
    assert f"set ha.coordinator to file:{other} on all machines" in done.stdout
    assert FileCoordinator(other).read() == RECORD
    assert FileCoordinator(other).read_note("pause") == '{"by": "somebody"}'
    shown = run("show", "--url", f"file:{place}")
    assert (shown.returncode, f"set ha.coordinator to file:{other}" in shown.stderr) == (1, True)
    assert run("migrate", f"file:{place}", f"file:{other}").returncode == 0


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

    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert FileCoordinator(place).read() == RECORD


def test_a_running_cluster_moves_and_loses_nothing(etcd: EtcdEnsemble) -> None:
    """file to etcd; then it fails over by what is there."""
    with tempfile.TemporaryDirectory(prefix="move-") as directory, LocalCluster(Path(directory)) as cluster:
        cluster.wait_whole()
        primary = cluster.primary()
        assert primary is not None
        source, target = f"file:{directory}/coordinator", etcd.url("moved")
        with FailoverLoad(cluster.urls) as load:
            load.wait_confirmed(100)
            before = promotions(cluster)
            done = run("migrate", source, target)
            assert done.returncode == 0, done.stderr
            cluster.wait_until(lambda: primary.name in lock(target), "the lock follows")
            load.wait_confirmed(100)
            assert cluster.is_whole()
            assert (cluster.primary(), promotions(cluster)) == (primary, before)

            primary.kill()
            cluster.wait_until(lambda: cluster.primary() not in (None, primary), "another primary")
            cluster.wait_whole()
            load.wait_confirmed(100)
            account = load.finish()
        assert account.is_flawless, account
        leader, facts = cluster.primary(), shown(target)
        assert leader is not None
        assert (facts["primary"], facts["generation"]) == (leader.name, 2)
        for broker in cluster.brokers:
            assert broker.log().count("the coordinator has moved to") >= 1


def promotions(cluster: LocalCluster) -> int:
    """How many were tried."""
    return sum(broker.log().count("promote: ") for broker in cluster.brokers)


def shown(url: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(run("show", "--url", url, "--format", "json").stdout)
    return found


def lock(url: str) -> str:
    return str(shown(url)["lock"])
