"""Which tests run when: the gate, what a change reaches, shares of the long ones, and a time box."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite import gate, times
from suite.gate import ROOT, Part, part_of
from suite.plugin import SuitePlugin
from suite.reach import COMMANDS, FAR, HOMES, READ, Reach, readers_of
from suite.runs import HUNG, NO_TESTS, Runner, Stage

pytest_plugins = "pytester"


@pytest.fixture(scope="module")
def reach() -> Reach:
    return Reach()


MADE = {"__pycache__", "node_modules", "build", "dist"}
"""Directories that running something in the checkout makes."""


def tracked_files() -> Iterator[str]:
    """What is in the checkout and was not made by running something in it."""
    for directory, within, files in os.walk(ROOT):
        is_root = Path(directory) == ROOT
        within[:] = [
            name
            for name in within
            if name not in MADE and not name.endswith(".egg-info") and (name == ".ci" or not name.startswith("."))
        ]
        for name in files:
            if not (is_root and name.startswith(".")) and not name.startswith("_kernel."):
                yield str((Path(directory) / name).relative_to(ROOT))


# --- the gate


def test_what_the_gate_names_lies_in_the_tree() -> None:
    names = [*gate.SERVED, *(test for tests in gate.CHOSEN.values() for test in tests)]

    assert [name for name in names if not (ROOT / gate.file_of(name)).is_file()] == []


def test_a_test_that_the_gate_names_and_nobody_wrote_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = frozenset({"tests/a/test_a.py::test_there", "tests/a/test_a.py::test_gone", "tests/b/test_b.py"})
    monkeypatch.setattr(gate, "_IDS", chosen)

    assert gate.without_a_test(["tests/a/test_a.py::test_there[1]"]) == {"tests/a/test_a.py::test_gone"}


@pytest.mark.parametrize(
    ("node_id", "part"),
    [
        ("tests/unit/test_any.py::test_any[x]", Part.GATE),
        ("tests/integration/test_served.py::test_a[direct]", Part.GATE),
        ("tests/integration/test_served.py::test_a[proxy]", Part.LONG),
        ("tests/integration/test_served.py::test_a[case-proxy-x]", Part.LONG),
        ("tests/integration/test_served.py::test_through_a_proxy", Part.GATE),
        ("tests/integration/test_other.py::test_chosen", Part.GATE),
        ("tests/integration/test_other.py::test_chosen[x]", Part.GATE),
        ("tests/integration/test_other.py::test_cases[one]", Part.GATE),
        ("tests/integration/test_other.py::test_cases[two]", Part.LONG),
        ("tests/integration/test_other.py::test_new", Part.LONG),
    ],
)
def test_a_test_is_of_the_gate_or_long(node_id: str, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "tests/integration/test_other.py"
    monkeypatch.setattr(gate, "SERVED", ("tests/integration/test_served.py",))
    monkeypatch.setattr(gate, "_IDS", frozenset({f"{place}::test_chosen", f"{place}::test_cases[one]"}))

    assert part_of(node_id) is part


# --- what a change reaches


FOR_TYPE_CHECKERS = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import qpid_ha_broker.other\n\n"


def test_who_imports_what_has_changed_is_near_and_who_starts_it_is_far(tmp_path: Path) -> None:
    files = {
        "broker/qpid_ha_broker/__init__.py": "",
        "broker/qpid_ha_broker/log.py": "",
        "broker/qpid_ha_broker/other.py": "",
        "broker/qpid_ha_broker/server.py": FOR_TYPE_CHECKERS + "from . import log",
        "tests/support/running.py": "COMMAND = ['-m', 'qpid_ha_broker.server']",
        "tests/unit/test_log.py": "from qpid_ha_broker.log import Log",
        "tests/unit/test_server.py": "def test_it():\n    import qpid_ha_broker.server",
        "tests/unit/test_other.py": "",
        "tests/integration/conftest.py": "import running",
        "tests/integration/test_any.py": "",
    }
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source, encoding="utf-8")

    reach = Reach(tmp_path)

    assert reach.distances(["broker/qpid_ha_broker/other.py"]) == {}
    assert reach.distances(["broker/qpid_ha_broker/log.py", "gone.py"]) == {
        "tests/unit/test_log.py": 1,
        "tests/unit/test_server.py": 2,
        "tests/integration/test_any.py": 1 + FAR + 1 + FAR,
    }


def test_a_change_of_the_journal_reaches_its_tests_and_the_brokers_that_keep_one(reach: Reach) -> None:
    distances = reach.distances(["broker/qpid_ha_broker/store/journal.py"])

    assert distances["tests/unit/test_store_journal.py"] == 1
    assert distances["tests/integration/test_total_crash.py"] > FAR


def test_every_file_that_nobody_imports_has_a_row_of_who_reads_it() -> None:
    assert [name for name in tracked_files() if not name.endswith(".py") and readers_of(name) is None] == []


def test_every_row_of_readers_names_tests_that_are_there(reach: Reach) -> None:
    places = {place for readers in READ.values() for place in readers}

    assert {place for place in places if not (ROOT / place).is_dir()
            and not any(fnmatchcase(test, place) for test in reach.test_modules)} == set()  # fmt: skip


def test_imports_are_looked_up_where_pytest_does() -> None:
    import configparser

    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")

    assert set(HOMES) == set(config["tool:pytest"]["pythonpath"].split())
    scripts = config["options.entry_points"]["console_scripts"].strip().splitlines()
    assert {
        name: target.partition(":")[0] for name, _, target in (line.partition(" = ") for line in scripts)
    } == COMMANDS


# --- times and shares


def test_times_of_runs_are_kept_and_their_medians_expected(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    for took_s in (1.0, 9.0, 2.0, 3.0, 4.0, 5.0):
        times.record({"tests/lab/test_nodes.py::test_a": took_s, "tests/unit/test_codec.py::test_b": 0.01}, path)

    assert times.read_recorded(path)["tests/lab/test_nodes.py::test_a"] == [9.0, 2.0, 3.0, 4.0, 5.0]
    assert times.expect(times.read_recorded(path)) == {"tests/lab/test_nodes.py": {"long": 4.0}}


def test_times_that_cannot_be_read_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text("{", encoding="utf-8")

    assert times.read_recorded(tmp_path / "times.json") == {}


def test_shares_have_every_module_once_and_take_about_as_long(reach: Reach) -> None:
    shares = times.cut(reach.test_modules, 8)

    assert sorted(file for share in shares for file in share) == sorted(reach.test_modules)
    took = [sum(times.expected_s(file, Part.LONG) for file in share) for share in shares]
    longest = max(times.expected_s(file, Part.LONG) for file in reach.test_modules)
    assert max(took) - min(took) <= longest


def test_each_row_of_expected_times_is_of_a_module_that_is_there() -> None:
    rows = json.loads(times.EXPECTED.read_text(encoding="utf-8"))

    assert [file for file in rows if not (ROOT / file).is_file()] == [], "make them anew: ./dev times"


# --- the plugin


def plugin(**options: Any) -> SuitePlugin:
    given = {"part": "all", "until": None, "slowness": 1.0, "results": None, **options}
    return SuitePlugin(SimpleNamespace(getoption=given.__getitem__))  # type: ignore[arg-type]


def collect(suite: SuitePlugin, *node_ids: str) -> list[Any]:
    session = SimpleNamespace(_setupstate=SimpleNamespace(teardown_exact=lambda next_item: None))
    items = [SimpleNamespace(nodeid=node_id, session=session) for node_id in node_ids]
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    suite.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)  # type: ignore[arg-type]
    return items


def test_only_the_part_that_is_asked_for_is_run() -> None:
    tests = ("tests/unit/test_a.py::test_a", "tests/lab/test_b.py::test_b")

    assert [item.nodeid for item in collect(plugin(part="gate"), *tests)] == [tests[0]]
    assert [item.nodeid for item in collect(plugin(part="long"), *tests)] == [tests[1]]
    assert [item.nodeid for item in collect(plugin(), *tests)] == [*tests]


def test_no_test_begins_that_would_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.plugin.expected_s", lambda file, part: 60.0)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    late = plugin(until=1059.0)
    (item,) = collect(late, "tests/lab/test_a.py::test_a")
    in_time = plugin(until=1061.0)
    collect(in_time, item.nodeid)
    slow = plugin(until=1061.0, slowness=2.0)
    collect(slow, item.nodeid)

    assert late.pytest_runtest_protocol(item, None) is True
    assert late.left_out == [item.nodeid]
    assert in_time.pytest_runtest_protocol(item, None) is None
    assert slow.pytest_runtest_protocol(item, None) is True


CONFTEST = """
from suite.plugin import SuitePlugin, add_options

def pytest_addoption(parser):
    add_options(parser)

def pytest_configure(config):
    config.pluginmanager.register(SuitePlugin(config), "the suite")
"""
TWO_OF_A_FIXTURE = """
import pytest

@pytest.fixture(scope="module")
def kept(request):
    suite = request.config.pluginmanager.get_plugin("the suite")
    yield suite
    suite._until = None

def test_before_the_time_is_over(kept):
    kept._until = 0.0

def test_that_is_left_out(kept):
    pass
"""


def test_what_was_kept_for_a_test_that_is_left_out_is_torn_down(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.plugin.record", lambda seconds: None)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_a=TWO_OF_A_FIXTURE, test_b="def test_of_another_module(): pass")

    outcome = pytester.inline_run()

    passed, _, failed = outcome.listoutcomes()
    assert [report.nodeid for report in failed] == []
    assert [report.nodeid for report in passed] == [
        "test_a.py::test_before_the_time_is_over",
        "test_b.py::test_of_another_module",
    ]


# --- what failed, once more


@pytest.mark.parametrize(
    ("again", "code", "passed_alone"),
    [((0, []), 0, ["tests/lab/test_a.py::test_a"]), ((1, ["tests/lab/test_a.py::test_a"]), 1, []),
     ((NO_TESTS, []), 1, [])],
    ids=["it passes alone", "it fails again", "it was not found again"],
)  # fmt: skip
def test_what_failed_counts_unless_it_passes_alone(
    again: tuple[int, list[str]], code: int, passed_alone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: Iterator[tuple[int, list[str], list[str]]] = iter([(1, ["tests/lab/test_a.py::test_a"], []), (*again, [])])
    monkeypatch.setattr(Runner, "_pytest", lambda *_: next(ends))
    runner = Runner()

    runner.run(Stage("run one", Part.LONG, ["tests/unit/test_suite_scheduling.py"]))

    assert (runner.report.code, runner.report.passed_alone) == (code, passed_alone)


class HangingProcess:
    """Of pytest: it ends when it is interrupted, or, where that does not help, when it is killed."""

    def __init__(self, signals: list[str], heeds_interrupts: bool) -> None:
        self._signals = signals
        self._heeds_interrupts = heeds_interrupts

    def wait(self, timeout: float | None = None) -> int:
        if not ("killed" in self._signals or (self._heeds_interrupts and self._signals)):
            assert timeout is not None, "waits for ever"
            raise subprocess.TimeoutExpired("pytest", timeout)
        return 2

    def send_signal(self, number: int) -> None:
        self._signals.append(signal.Signals(number).name)

    def kill(self) -> None:
        self._signals.append("killed")


@pytest.mark.parametrize(
    ("heeds_interrupts", "signals"), [(True, ["SIGINT"]), (False, ["SIGINT", "killed"])], ids=["heeds", "is deaf"]
)
def test_a_run_that_hangs_is_ended_and_has_failed(
    heeds_interrupts: bool, signals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: HangingProcess(sent, heeds_interrupts))
    runner = Runner(given_up_at=time.time())

    runner.run(Stage("run one", Part.LONG, ["tests/unit/test_suite_scheduling.py"]))

    assert (runner.report.code, sent) == (HUNG, signals)


def test_what_was_running_at_the_end_is_named() -> None:
    ended = plugin()
    for node_id in ("tests/lab/test_a.py::test_a", "tests/lab/test_a.py::test_b"):
        ended.pytest_runtest_logstart(node_id)
    ended.pytest_runtest_logfinish("tests/lab/test_a.py::test_a")
    lines: list[str] = []
    reporter: Any = SimpleNamespace(section=lambda title, **_: lines.append(title), line=lines.append)

    ended.pytest_terminal_summary(reporter)

    assert lines == ["STILL RUNNING WHEN ALL WAS ENDED", "tests/lab/test_a.py::test_b"]


def test_the_shell_of_the_checkout_knows_each_way_to_test() -> None:
    text = (ROOT / "dev").read_text(encoding="utf-8")

    assert all(f"          {option}" in text for option in ("--changed [REV]:", "--all:", "--turn N/M:", "--ci:"))
    assert "exec ./dev test --ci" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
