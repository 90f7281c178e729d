"""Agents as processes over scripted brokers: the programs that run when a broker is promoted and demoted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from running_agent import RunningAgent, wait_until

SCRIPT = """#!/bin/sh
echo "$QPID_HA_EVENT $QPID_HA_GENERATION $QPID_HA_NAME $QPID_HA_ADDRESS $QPID_HA_VIRTUAL_IP$*" >> {told}
echo "told about $1"
{more}
"""
LISTEN = "amqp://127.0.0.1:5679"


class Hook:
    """A program that writes down how it was called."""

    def __init__(self, directory: Path, more: str = "") -> None:
        self.told = directory / "told"
        self.path = directory / "hook"
        self.path.write_text(SCRIPT.format(told=self.told, more=more), encoding="utf-8")
        self.path.chmod(0o755)

    def lines(self) -> list[str]:
        return self.told.read_text(encoding="utf-8").splitlines() if self.told.exists() else []

    def wait_for(self, agent: RunningAgent, *lines: str) -> None:
        """Until it was called so, in this order, and not otherwise."""
        wait_until(lambda: len(self.lines()) >= len(lines), lambda: f"{self.lines()}\n{agent.log()}")
        assert self.lines() == list(lines)

    @contextmanager
    def agent(self, directory: Path, name: str = "a", **settings: object) -> Iterator[RunningAgent]:
        both = {f"ha.on-{event}": [str(self.path), f"a {event} one"] for event in ("promoted", "demoted")}
        with RunningAgent(directory, name, listen=[LISTEN], **{**both, **settings}) as agent:
            yield agent


PROMOTED = f"promoted 1 a {LISTEN} a promoted one"
DEMOTED = f"demoted 1 a {LISTEN} a demoted one"


def test_each_change_is_told_once_with_what_it_is_about(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    with hook.agent(tmp_path) as agent:
        agent.wait_for("primary")
        hook.wait_for(agent, PROMOTED)
        agent.wait_for_line("ha.on-promoted: told about a promoted one")

        os.kill(agent.broker_pid, signal.SIGKILL)
        hook.wait_for(agent, PROMOTED, DEMOTED, PROMOTED)

        assert agent.stop() == 0  # it waits for the program
        assert hook.lines() == [PROMOTED, DEMOTED, PROMOTED, DEMOTED]


def test_a_new_agent_tells_nothing_anew_and_what_nobody_was_there_to_tell(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    with hook.agent(tmp_path) as agent:
        hook.wait_for(agent, PROMOTED)
        agent.process.kill()
        agent.process.wait()
        agent.restart()
        wait_until(lambda: agent.log().count("agent a: we have the lock") == 2, agent.log)
        assert hook.lines() == [PROMOTED]

        agent.process.kill()
        agent.process.wait()
        os.kill(agent.broker_pid, signal.SIGKILL)
        agent.restart()
        hook.wait_for(agent, PROMOTED, DEMOTED, PROMOTED)


def test_a_program_that_hangs_is_killed_with_its_children_and_holds_nobody_up(tmp_path: Path) -> None:
    hook = Hook(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; wait")
    with ExitStack() as stack:
        agent = stack.enter_context(hook.agent(tmp_path, **{"ha.hook-timeout": "10s"}))
        child = tmp_path / "child"
        wait_until(lambda: child.exists() and bool(child.read_text()), agent.log)
        other = stack.enter_context(RunningAgent(tmp_path, "b"))
        other.wait_for_line("wait for the lock")
        os.kill(agent.broker_pid, signal.SIGKILL)
        other.wait_for("primary")
        assert "not done after" not in agent.log()  # it waits for the program still

        pidfd = os.pidfd_open(int(child.read_text()))
        agent.wait_for_line("ha.on-promoted: not done after 10 s (ha.hook-timeout): it is killed")
        wait_until(lambda: _is_dead(pidfd), agent.log)
        os.close(pidfd)
        hook.wait_for(agent, PROMOTED, DEMOTED)


def _is_dead(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_program_that_fails_or_is_not_there_is_logged_and_the_broker_serves(tmp_path: Path) -> None:
    hook = Hook(tmp_path, "exit 3")
    with hook.agent(tmp_path, **{"ha.on-demoted": "/nowhere/at-all"}) as agent:
        agent.wait_for_line("hook ended with exit code 3")
        assert agent.status()["state"] == "primary"
        os.kill(agent.broker_pid, signal.SIGKILL)
        agent.wait_for_line("ha.on-demoted: cannot start /nowhere/at-all: No such file or directory")
        hook.wait_for(agent, PROMOTED, PROMOTED)
