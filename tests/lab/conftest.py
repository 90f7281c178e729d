"""One lab per test run, put in order for each test; after each test the audits.

A test asks for `cluster` (well, with resources), `empty_cluster` (formed, without), and `load` (clients on the fourth
host). `@pytest.mark.explains("broker_monitor")` tells which failed actions are the test's own doing, as patterns;
`@pytest.mark.resources("properties", "...")` which blocks of docs/pacemaker.md its cluster has.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

import pytest

from lab import audits
from lab.cluster import Cluster
from lab.load import Load
from lab.netns.namespace_lab import what_is_missing
from lab.plan import Plan
from lab.stage import RESOURCES, Stage

_FAILED: Final = pytest.StashKey[bool]()
_SKIPPED: Final = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lab", choices=["netns", "vagrant"], default="netns", help="what the lab's machines are made of")
    parser.addoption("--coordinator", default=Plan.coordinator, help="ha.coordinator of the lab's brokers")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "explains(*patterns): failed actions that the lab test causes")
    config.addinivalue_line("markers", "resources(*titles): blocks of docs/pacemaker.md that the lab test runs with")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if reason := config.stash.get(_SKIPPED, ""):
        terminalreporter.section("THE LAB TESTS DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(f"tests/lab needs a real Corosync and Pacemaker cluster: {reason}")


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """The lab of this run."""
    if problem := what_is_missing():
        request.config.stash[_SKIPPED] = problem
        pytest.skip(problem)
    stage = Stage.set_up(Plan(coordinator=request.config.getoption("--coordinator")))
    yield stage
    stage.lab.down()


@pytest.fixture
def cluster(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One primary with the virtual address, two ready backups; afterwards the audits."""
    marker = request.node.get_closest_marker("resources")
    yield stage.ready(*(marker.args if marker else RESOURCES))
    _audit(stage, request)


@pytest.fixture
def empty_cluster(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Formed for the first time, no resource yet; afterwards the audits."""
    yield stage.empty()
    _audit(stage, request)


@pytest.fixture
def load(cluster: Cluster) -> Iterator[Load]:
    """A producer and a consumer that use the virtual address; afterwards their account."""
    with Load(cluster.lab) as running:
        yield running
        account = running.account or running.finish()
    assert account.complaints() == [], str(account)


def _audit(stage: Stage, request: pytest.FixtureRequest) -> None:
    """A test that failed has said what was wrong; its cluster is not for the next one."""
    if request.node.stash.get(_FAILED, False):
        stage.distrust()
        return
    explained = [pattern for marker in request.node.iter_markers("explains") for pattern in marker.args]
    try:
        audits.check(stage.cluster, explained)
    except audits.AuditFailed:
        stage.distrust()
        raise
