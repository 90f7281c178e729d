"""The suite for coordinators: ours pass it, and each that breaks a promise fails the test that is about it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import broken_coordinators
from broken_coordinators import BROKEN, DirectoryFaults, ServerFaults
from etcd_ensemble import EtcdEnsemble
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_demo.zookeeper_ensemble import ZookeeperEnsemble

SUITE = "qpid_ha_broker.coordination.conformance"
TIMEOUT_S = 400
FAST = Path("/dev/shm")
EXPECTED = {
    "generations": ("test_record", "test_a_record_is_replaced_only_if_all_of_it_is_as_expected[epoch]"),
    "not-atomic": ("test_record", "test_of_many_processes_exactly_one_makes_each_step"),
    "stale": ("test_record", "test_another_process_reads_at_once_what_was_confirmed"),
    "swallows": ("test_watch", "test_a_change_soon_after_a_call_is_followed_by_another_call"),
    "two-holders": ("test_lease", "test_of_many_threads_one_has_it_at_a_time"),
    "outlives": ("test_lease", "test_who_is_dead_no_longer_has_it"),
    "never-lost": ("test_faults", "test_a_lease_is_lost_in_time"),
    "guesses": ("test_faults", "test_who_was_connected_gets_errors"),
}
"""The test that each broken one has to fail."""
SERVERS_ANSWER_IN_TIME = pytest.mark.alone("within a second, from servers that are stopped and continued")


def play(url: str, *options: str, module: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """pytest, as whoever checks a coordinator calls it."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=line", "-p", f"{SUITE}.plugin"]
    command += ["--pyargs", f"{SUITE}.{module}" if module else SUITE]
    command += ["--coordinator", url, "--coordinator-setting", "ha.coordinator-timeout=1s", *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_ADDOPTS": "", **environment},
    )  # fmt: skip


def outcomes(done: subprocess.CompletedProcess[str], outcome: str) -> set[str]:
    """Names of the tests that had it."""
    return set(re.findall(rf"^{outcome} \S*::(.+?)(?: - .*)?$", done.stdout, re.MULTILINE))


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where nothing waits for a disk."""
    parent = FAST if FAST.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="conformance-", dir=parent) as made:
        shared = Path(made, "shared")
        shared.mkdir()
        yield shared


def test_file_passes_and_again(directory: Path) -> None:
    faults = ("--coordinator-faults", "broken_coordinators:directory_faults")
    done = play(f"file:{directory}", *faults, **{DirectoryFaults.VARIABLE: str(directory)})

    assert (done.returncode, outcomes(done, "FAILED")) == (0, set()), done.stdout[-3000:]
    assert outcomes(done, "PASSED") >= {test for _, test in EXPECTED.values()}
    assert outcomes(done, "SKIPPED") == set()
    again = play(f"file:{directory}", module="test_notes")
    assert again.returncode == 0, again.stdout[-3000:]


@pytest.mark.parametrize("name", BROKEN)
def test_who_breaks_a_promise_fails(name: str, directory: Path) -> None:
    module, test = EXPECTED[name]
    broken_coordinators.install(directory.parent)
    environment = {
        DirectoryFaults.VARIABLE: str(directory),
        "PYTHONPATH": os.pathsep.join([str(directory.parent), *sys.path]),
    }

    done = play(
        f"broken-{name}:{directory}", "--coordinator-faults", "broken_coordinators:directory_faults",
        "-k", test.partition("[")[0], module=module, **environment,
    )  # fmt: skip

    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-1000:]
    assert test in outcomes(done, "FAILED")


def test_a_directory_in_use_is_refused_and_left_alone(directory: Path) -> None:
    record = ClusterRecord("c1", 3, "a", 7, ("a", "b"))
    FileCoordinator(directory).compare_and_set(ClusterRecord(), record)

    done = play(f"file:{directory}")

    assert done.returncode == 4
    assert "holds the record of a cluster (c1, generation 3): give the suite a namespace of its own" in done.stdout
    assert FileCoordinator(directory).read() == record


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("file:/nowhere/at/all", 3, "cannot be used"),
        ("ftp:x", 4, "no coordinator for ftp:"),
        ("file:relative", 4, "not absolute"),
    ],
)
def test_what_cannot_be_checked_is_said(url: str, code: int, said: str) -> None:
    done = play(url, module="test_notes")

    assert (done.returncode, said in done.stdout) == (code, True), done.stdout[-2000:]


def test_without_a_url_it_asks_for_one() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", f"{SUITE}.plugin", "--pyargs", SUITE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir(), timeout=60)

    assert (done.returncode, "--coordinator URL" in done.stdout) == (4, True), done.stdout


@SERVERS_ANSWER_IN_TIME
def test_etcd_passes() -> None:
    with EtcdEnsemble() as etcd:
        done = play(
            etcd.url("conformance"), "--coordinator-faults", "broken_coordinators:server_faults",
            **{ServerFaults.VARIABLE: " ".join(str(member.pid) for member in etcd.members)},
        )  # fmt: skip

    assert (done.returncode, outcomes(done, "FAILED")) == (0, set()), done.stdout[-3000:]
    assert outcomes(done, "SKIPPED") == set()


@SERVERS_ANSWER_IN_TIME
def test_zookeeper_passes(zookeeper_ensemble: ZookeeperEnsemble) -> None:
    with zookeeper_ensemble.mended() as ensemble:
        done = play(
            ensemble.url("conformance"), "--coordinator-faults", "broken_coordinators:server_faults",
            **{ServerFaults.VARIABLE: " ".join(str(server.pid) for server in ensemble.servers)},
        )  # fmt: skip

    assert (done.returncode, outcomes(done, "FAILED")) == (0, set()), done.stdout[-3000:]
    assert outcomes(done, "SKIPPED") == set()
