"""One lab per process of the test run, put in order for each test; after each test the audits.

A test asks for `cluster` (well, with resources), `empty_cluster` (formed, without), and `load` (clients on the fourth
host). `@pytest.mark.explains("broker_monitor")` tells which failed actions are the test's own doing, as patterns;
`@pytest.mark.resources("properties", "...")` which blocks of docs/pacemaker.md its cluster has.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest

from lab import audits, vagrant_lab
from lab.cluster import Cluster
from lab.load import Load
from lab.netns.namespace_lab import what_is_missing
from lab.plan import Plan
from lab.stage import RESOURCES, Stage
from lab.vagrant_lab import VagrantStage

_FAILED: Final = pytest.StashKey[bool]()
_SKIPPED: Final = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lab", choices=["netns", "vagrant"], default="netns", help="what the lab's machines are made of")
    parser.addoption("--lab-coordinator", default=Plan.coordinator, help="ha.coordinator of the lab's brokers")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "explains(*patterns): failed actions that the lab test causes")
    config.addinivalue_line("markers", "resources(*titles): blocks of docs/pacemaker.md that the lab test runs with")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands over why there was no lab to whoever reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["lab_skipped"] = session.config.stash.get(_SKIPPED, "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if reason := getattr(node, "workeroutput", {}).get("lab_skipped", ""):
        node.config.stash[_SKIPPED] = reason


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if reason := config.stash.get(_SKIPPED, ""):
        terminalreporter.section("THE LAB TESTS DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(f"tests/lab needs a real Corosync and Pacemaker cluster: {reason}")


@pytest.fixture(scope="package")
def keeper(request: pytest.FixtureRequest) -> Iterator[Stage | VagrantStage]:
    """The lab of this process, and its caretaker. It ends with the last test that needs it: an idle one still works."""
    in_namespaces = request.config.getoption("--lab") == "netns"
    if problem := what_is_missing() if in_namespaces else vagrant_lab.what_is_missing():
        request.config.stash[_SKIPPED] = problem
        pytest.skip(problem)
    keeper = (
        Stage.set_up(Plan(coordinator=request.config.getoption("--lab-coordinator")))
        if in_namespaces
        else VagrantStage()
    )
    yield keeper
    keeper.close()


@pytest.fixture(scope="package")
def stage(keeper: Stage | VagrantStage) -> Stage:
    """The lab in namespaces, which makes clusters on empty disks."""
    if not isinstance(keeper, Stage):
        pytest.skip("takes empty disks, which only --lab=netns has")
    return keeper


@pytest.fixture
def cluster(keeper: Stage | VagrantStage, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One primary with the virtual address, two ready backups; afterwards the audits."""
    marker = request.node.get_closest_marker("resources")
    if marker and not isinstance(keeper, Stage):
        pytest.skip("takes resources of its own, which only --lab=netns has")
    yield keeper.ready(*(marker.args if marker else RESOURCES))
    _audit(keeper, request)


@pytest.fixture
def empty_cluster(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Formed for the first time, no resource yet; afterwards the audits."""
    yield stage.empty()
    _audit(stage, request)


@pytest.fixture
def load(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Load]:
    """A producer and a consumer that use the virtual address; afterwards their account."""
    with Load(cluster.lab) as running:
        yield running
        if request.node.stash.get(_FAILED, False):
            print(f"the clients: {running.ask('audit') if running.account is None else running.account}")
            return
        account = running.account or running.finish()
    assert account.complaints() == [], str(account)


def _audit(keeper: Stage | VagrantStage, request: pytest.FixtureRequest) -> None:
    """A test that failed has said what was wrong; its cluster is not for the next one."""
    if request.node.stash.get(_FAILED, False):
        keeper.distrust()
        return
    explained = [pattern for marker in request.node.iter_markers("explains") for pattern in marker.args]
    try:
        audits.check(keeper.cluster, explained)
    except audits.AuditFailed:
        keeper.distrust()
        raise
