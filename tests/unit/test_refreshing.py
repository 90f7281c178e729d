"""`--watch`: one mechanism for whatever a person waits for, with a clock that the test turns."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from control_broker import ControlBroker, answering
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.invocation import NO, UNREACHABLE, CliFailure, Invocation, WallClock
from qpid_ha_agent.cli.refreshing import Frame, frame_of, keep_showing
from qpid_ha_broker.server.control.control import NOT_ALLOWED, REFUSED, ControlError

SHOWN_AGAIN = {
    "backups", "brokers", "connections list", "diagnose", "query", "queue list", "remote-nodes", "replicate",
    "session list", "set list", "set show", "status",
}  # fmt: skip
"""What people look at again and again; `watch` does nothing else."""


class Clock:
    """It is 10:00:00 UTC, and goes on by what is waited; in the `last` wait somebody interrupts."""

    def __init__(self, last: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.waited_s: list[float] = []
        self._last = last
        self._meanwhile = meanwhile

    def pause(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        if len(self.waited_s) == self._last:
            raise KeyboardInterrupt
        self._meanwhile()

    def invocation(self) -> Invocation:
        return Invocation(clock=WallClock(lambda: 36_000 + sum(self.waited_s), self.pause))


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ControlBroker]:
    broker = ControlBroker(tmp_path, "primary")
    with answering(broker):
        yield broker


def qpid_ha(broker: ControlBroker, clock: Clock, *words: str) -> Result:
    return CliRunner().invoke(admin, [*words, "-b", str(broker.path)], obj=clock.invocation())


def commands_with_watch(group: click.Group, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if any(option.name == "is_watched" for option in command.params):
            yield f"{before}{name}"
        if isinstance(command, click.Group):
            yield from commands_with_watch(command, f"{before}{name} ")


def test_wherever_a_person_waits_there_is_watch() -> None:
    assert set(commands_with_watch(admin)) == SHOWN_AGAIN


def test_without_a_terminal_it_prints_a_block_each_time_and_ends_with_0(broker: ControlBroker) -> None:
    clock = Clock(last=3)
    done = qpid_ha(broker, clock, "backups", "--watch")
    assert (done.exit_code, clock.waited_s) == (0, [1.0, 1.0, 1.0])
    blocks = done.stdout.strip().split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["10:00:00Z", "10:00:01Z", "10:00:02Z"]
    assert [block.splitlines()[2].split()[0] for block in blocks] == ["node2"] * 3
    assert [asked for asked, _ in broker.asked] == ["backups"] * 3


@pytest.mark.parametrize("words", [("status",), ("status", "--all"), ("queue", "list"), ("query",), ("watch",)])
def test_what_it_shows_is_what_the_command_prints(broker: ControlBroker, words: tuple[str, ...]) -> None:
    once = qpid_ha(broker, Clock(last=1), *words, *(["--once"] if words == ("watch",) else []))
    again = qpid_ha(broker, Clock(last=2), *words, *([] if words == ("watch",) else ["--watch"]))
    assert (once.exit_code, again.exit_code) == (0, 0), again.output
    assert again.stdout.count(once.stdout.rstrip("\n")) == 2


def test_what_has_changed_meanwhile_is_shown(broker: ControlBroker) -> None:
    def demote() -> None:
        broker.state = "connecting"

    done = qpid_ha(broker, Clock(last=2, meanwhile=demote), "status", "--watch")
    assert [line for line in done.stdout.splitlines() if line and ":" not in line] == ["primary", "connecting"]


@pytest.mark.parametrize(("text", "seconds"), [("5s", 5.0), ("100ms", 0.1), ("1m", 60.0)])
def test_how_often_is_a_choice(broker: ControlBroker, text: str, seconds: float) -> None:
    for words in (("backups", "--watch"), ("watch",)):
        clock = Clock(last=1)
        assert qpid_ha(broker, clock, *words, "--interval", text).exit_code == 0
        assert clock.waited_s == [seconds]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("backups", "--watch", "--interval", "1ms"), "at least 0.1s"),
        (("backups", "--watch", "--interval", "soon"), "no duration"),
        (("backups", "--interval", "1s"), "--interval is for --watch"),
        (("queue", "list", "--watch", "--format", "json"), "for programs leave --watch out"),
        (("status", "--watch", "--wait", "10s"), "leave it or --wait out"),
        (("status", "--watch", "--expect", "ready"), "leave it or --expect out"),
        (("status", "--watch", "--is-primary"), "leave it or --is-primary out"),
        (("set", "list", "--watch", "--wait", "10s"), "leave it or --wait out"),
        (("brokers", "--watch", "forget", "node4"), "forget does something"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_asked(
    broker: ControlBroker, words: tuple[str, ...], says: str
) -> None:
    done = qpid_ha(broker, Clock(last=1), *words)
    assert (done.exit_code, broker.asked) == (2, [])
    assert says in " ".join(done.output.split())


def test_a_broker_that_is_away_may_come_back(tmp_path: Path) -> None:
    broker = ControlBroker(tmp_path, "primary")
    with _coming_and_going(broker) as come:
        done = qpid_ha(broker, Clock(last=2, meanwhile=come), "status", "--watch")
    first, second = done.stdout.strip().split("\n\n")
    assert (done.exit_code, str(broker.path) in first, second.splitlines()[1]) == (0, True, "primary")


@contextmanager
def _coming_and_going(broker: ControlBroker) -> Iterator[Callable[[], object]]:
    running = answering(broker)
    yield running.__enter__
    running.__exit__(None, None, None)


class Backup(ControlBroker):
    """It has no backups of its own, and whoever is wrong is not let in."""

    code = REFUSED

    def backups(self, params: dict[str, object]) -> object:
        raise ControlError(self.code, "ask the primary, node2")


def test_a_refusal_is_shown_and_what_we_may_not_ends_it(tmp_path: Path) -> None:
    broker = Backup(tmp_path, "ready")
    with answering(broker):
        refused = qpid_ha(broker, Clock(last=2), "backups", "--watch")
        broker.code = NOT_ALLOWED
        forbidden = qpid_ha(broker, Clock(last=2), "backups", "--watch")
    assert (refused.exit_code, refused.stdout.count("ask the primary, node2")) == (0, 2)
    assert (forbidden.exit_code, len(broker.asked)) == (4, 3)


def test_both_streams_and_any_exit_code_are_one_frame() -> None:
    def show() -> None:
        click.echo("a table")
        click.echo("node1: paused", err=True)
        raise click.exceptions.Exit(NO)

    def fail() -> None:
        raise CliFailure("nobody answers", UNREACHABLE)

    assert frame_of(show) == Frame("a table", "node1: paused")
    assert frame_of(fail) == Frame("", "nobody answers")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_last_look_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    looks = iter([Frame("first"), Frame("second", "node3 does not answer")])
    clock, terminal = Clock(last=2), Terminal()
    with redirect_stdout(terminal):
        keep_showing(clock.invocation(), lambda: next(looks), 0.5)
    shown = terminal.getvalue()
    assert shown.index("first") < shown.index("node3 does not answer") < shown.index("second")
    assert clock.waited_s == [0.5, 0.5]
