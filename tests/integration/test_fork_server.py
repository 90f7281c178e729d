"""What is forked is as if it had been started: its output, environment, directory, session and end are its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fork_server import ForkedProcess, ForkServer
from limits import LIMIT_S

PROGRAM = """
import json, os, signal, sys, time

def main():
    facts = {"arguments": sys.argv[1:], "where": os.getcwd(), "word": os.environ.get("WORD"), "session": os.getsid(0)}
    facts["open"] = sorted(int(each) for each in os.listdir("/proc/self/fd"))
    print(json.dumps(facts | {"imported_by": IMPORTED_BY, "pid": os.getpid()}), flush=True)
    if sys.argv[1] == "wait":
        signal.pause()
    sys.exit(int(sys.argv[1]))

IMPORTED_BY = os.getpid()
"""

Spawn = Callable[..., ForkedProcess]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.fixture
def spawn(tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> Spawn:
    (tmp_path / "forked_program.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer("forked_program", "forked_program")

    def spawn_one(word: str, *, new_session: bool = False) -> ForkedProcess:
        with output.open("ab") as file:
            return server.spawn([word], file, new_session=new_session)

    return spawn_one


def facts_in(output: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def await_facts(output: Path, count: int) -> list[dict[str, object]]:
    while len(output.read_text(encoding="utf-8").splitlines()) < count:
        os.sched_yield()
    return facts_in(output)


def test_each_has_its_arguments_environment_directory_and_exit_code(
    spawn: Spawn, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "one")
    assert spawn("3").wait(LIMIT_S) == 3
    monkeypatch.setenv("WORD", "two")
    monkeypatch.chdir(tmp_path)
    assert spawn("0").wait(LIMIT_S) == 0
    one, two = facts_in(output)
    assert (one["arguments"], one["word"]) == (["3"], "one")
    assert (two["arguments"], two["word"], two["where"]) == (["0"], "two", str(tmp_path))


def test_it_has_not_imported_anything_itself(spawn: Spawn, output: Path) -> None:
    processes = [spawn("0"), spawn("0")]
    assert [each.wait(LIMIT_S) for each in processes] == [0, 0]
    found = facts_in(output)
    assert {each["pid"] for each in found} == {each.pid for each in processes}
    assert len({each["imported_by"] for each in found}) == 1


def test_it_has_nothing_open_of_the_server_or_of_those_before_it(spawn: Spawn, output: Path) -> None:
    waiting = spawn("wait")
    assert spawn("0").wait(LIMIT_S) == 0
    waiting.kill()
    for facts in facts_in(output):
        assert facts["open"] == [0, 1, 2, 3]  # the last one is that of the list itself


def test_it_is_in_a_session_of_its_own_where_that_is_wanted(spawn: Spawn, output: Path) -> None:
    own, ours = spawn("0", new_session=True), spawn("0")
    assert (own.wait(LIMIT_S), ours.wait(LIMIT_S)) == (0, 0)
    sessions = {facts["pid"]: facts["session"] for facts in facts_in(output)}
    assert sessions == {own.pid: own.pid, ours.pid: os.getsid(0)}


def test_one_that_a_signal_ended_has_the_code_of_the_signal_and_others_live_on(spawn: Spawn, output: Path) -> None:
    one, other = spawn("wait"), spawn("wait")
    await_facts(output, 2)
    assert one.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0.0)
    one.kill()
    assert one.wait(LIMIT_S) == one.poll() == -signal.SIGKILL
    one.kill()  # nothing is there to be killed
    assert other.poll() is None
    other.send_signal(signal.SIGTERM)
    assert other.wait(LIMIT_S) == -signal.SIGTERM


def test_a_server_that_cannot_import_says_so(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as file, pytest.raises(RuntimeError, match="no_such_program is gone"):
        ForkServer("no_such_program", "no_such_program").spawn([], file)
