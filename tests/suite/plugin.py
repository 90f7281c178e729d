"""What pytest is told of this suite: which part runs, when no further test begins, and how long each took."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

from suite.gate import Part, file_of, part_of, without_a_test
from suite.times import expected_s, record

_LEFT_OUT: Final = "suite_left_out"


def add_options(parser: pytest.Parser) -> None:
    """Of `./dev test`, which sets them."""
    group = parser.getgroup("suite")
    group.addoption("--part", default=Part.ALL, type=Part, choices=list(Part), help="only these tests (tests/suite)")
    group.addoption("--until", type=float, metavar="EPOCH", help="begin no test that is not expected to end by then")
    group.addoption(
        "--slowness", type=float, default=1.0, metavar="FACTOR", help="how much longer than expected tests take here"
    )
    group.addoption(
        "--results", type=Path, metavar="FILE", help="write there, as JSON, what failed and what was left out"
    )
    group.addoption("--new-seeds", type=int, metavar="BASE", help="the first of the simulation's new seeds")
    group.addoption("--new-seed-portions", type=int, default=1, metavar="N", help="so many times more new seeds")


class SuitePlugin:
    """In the process that reports, and in each worker of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._part = Part(config.getoption("part"))
        self._until = config.getoption("until")
        self._slowness = config.getoption("slowness")
        self._results: Path | None = config.getoption("results")
        self._is_worker = hasattr(config, "workerinput")
        self._expected_s: dict[str, float] = {}
        """Of one test of a module."""
        self.left_out: list[str] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: dict[str, None] = {}
        self._running: dict[str, None] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._part is not Part.ALL:
            if stale := without_a_test(item.nodeid for item in items):
                raise pytest.UsageError(
                    f"tests/suite/gate.py names tests that are not there: {', '.join(sorted(stale))}"
                )
            others = [item for item in items if part_of(item.nodeid) is not self._part]
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if part_of(item.nodeid) is self._part]
        for file, tests in Counter(file_of(item.nodeid) for item in items).items():
            self._expected_s[file] = expected_s(file, self._part) / tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Whoever answers True has seen to the test; None: others are asked."""
        if self._until is None or time.time() + self._slowness * self._expected_s[file_of(item.nodeid)] < self._until:
            return None
        self.left_out.append(item.nodeid)
        _tear_down(item, nextitem)
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left_out += getattr(node, "workeroutput", {}).get(_LEFT_OUT, [])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_worker:
            session.config.workeroutput[_LEFT_OUT] = self.left_out  # type: ignore[attr-defined]  # pytest-xdist's
            return
        if session.config.option.collectonly:
            return
        record(self._seconds)
        if self._results is not None:
            results = {"failed": list(self._failed), "left_out": self.left_out, "tests": len(self._seconds)}
            self._results.write_text(json.dumps(results), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._running:
            terminalreporter.section("STILL RUNNING WHEN ALL WAS ENDED", sep="!", red=True, bold=True)
            for node_id in self._running:
                terminalreporter.line(node_id)
        if not self.left_out:
            return
        terminalreporter.section("LEFT OUT: THE TIME WAS OVER", sep="!", yellow=True, bold=True)
        for file, tests in sorted(Counter(map(file_of, self.left_out)).items()):
            terminalreporter.line(f"{file}: {tests} tests")


def _tear_down(item: pytest.Item, next_item: pytest.Item | None) -> None:
    """What was kept for `item`, which is left out: the fixtures that it had in common with the test before it."""
    state = item.session._setupstate
    ended = pytest.CallInfo.from_call(lambda: state.teardown_exact(next_item), "teardown")
    if ended.excinfo is not None:
        item.ihook.pytest_runtest_logreport(report=pytest.TestReport.from_item_and_call(item, ended))
