"""The agents of a machine that runs several brokers (`workers`), each in a process of its own, and who sees to them.

Safety property: a broker has at most one agent. Each agent is a child of this process and dies with it (its broker
lives on, and the next agent takes care of it, as of any); another one is started only when the first is dead.

What is done, by what happens; an agent is the one of `qpid-ha-agent run` for a single broker, and decides all else:

| what happens | while it runs | once it is told to stop |
| --- | --- | --- |
| an agent ends in order (the cluster was shut down) | nothing | the next one is told to stop |
| an agent fails | another one after RETRY_S; none after FAILURES_MOST in FAILURES_S | the next one is told to stop |
| SIGTERM, SIGINT | the last worker's agent is told to stop | nothing |
| an agent takes STOP_PATIENCE_S to stop | - | the next one is told to stop, too |
| all have ended, and none is to be started | this process ends: with 1 if an agent failed for good, else 0 | the same |

Told to stop one after the other: each hands over what it leads before the next one does.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

log = logging.getLogger("agent")

RETRY_S: Final = 1.0
FAILURES_MOST: Final = 5
FAILURES_S: Final = 60.0
STOP_PATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1
"""Source: Linux, prctl(2); kept by execve(2)."""


class StartAgent(NamedTuple):
    """Of that worker."""

    number: int


class StopAgent(NamedTuple):
    """The same."""

    number: int


class End(NamedTuple):
    """Of this process, with an exit code."""

    code: int


Effect = StartAgent | StopAgent | End


class WorkerAgents:
    """The table above, as a machine: events in, effects out."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._running: set[int] = set()
        self._due_s: dict[int, float] = {}
        """Workers whose agents are to be started again, and when."""
        self._failed_s: dict[int, list[float]] = {number: [] for number in range(1, count + 1)}
        """When the agents of each have failed, of late."""
        self._given_up: set[int] = set()
        self._to_stop: list[int] = []
        """In this order, the last one first."""
        self._is_stopping = False
        self._told_s = 0.0

    def begin(self) -> list[Effect]:
        """Start all."""
        self._running.update(range(1, self._count + 1))
        return [StartAgent(number) for number in sorted(self._running)]

    def ended(self, number: int, failure: str, now_s: float) -> list[Effect]:
        """The agent of that worker is dead; `failure`: how it failed, empty: it did not."""
        self._running.discard(number)
        if self._is_stopping:
            return self._stop_next(now_s) or self._end()
        if not failure:
            return self._end()
        failures = [at_s for at_s in self._failed_s[number] if now_s - at_s < FAILURES_S]
        self._failed_s[number] = failures = [*failures, now_s]
        if len(failures) < FAILURES_MOST:
            log.error("the agent of worker %d %s: starting it again", number, failure)
            self._due_s[number] = now_s + RETRY_S
        else:
            text = "the agent of worker %d %s, %d times within %.0f s: it is left alone until this agent is restarted"
            log.error(text, number, failure, len(failures), FAILURES_S)
            self._given_up.add(number)
        return self._end()

    def stop(self, now_s: float) -> list[Effect]:
        """Told to stop."""
        if self._is_stopping:
            return []
        self._is_stopping = True
        self._due_s.clear()
        self._to_stop = sorted(self._running)
        return self._stop_next(now_s) or self._end()

    def tick(self, now_s: float) -> list[Effect]:
        """Time passes."""
        if self._is_stopping:
            return self._stop_next(now_s) if now_s - self._told_s >= STOP_PATIENCE_S else []
        due = [number for number, at_s in self._due_s.items() if at_s <= now_s]
        for number in due:
            del self._due_s[number]
            self._running.add(number)
        return [StartAgent(number) for number in due]

    def _stop_next(self, now_s: float) -> list[Effect]:
        while self._to_stop:
            number = self._to_stop.pop()
            if number in self._running:
                self._told_s = now_s
                return [StopAgent(number)]
        return []

    def _end(self) -> list[Effect]:
        return [] if self._running or self._due_s else [End(1 if self._given_up else 0)]


def become_worker(count: int) -> int:
    """Start an agent for each of `count` workers, and see to them until they have ended: then this process ends.

    It returns in each agent's process alone, with the worker's number, from 1. What is imported before they share.
    """
    return _Processes(count).run()


class _Processes:
    """Carries out what `WorkerAgents` decides."""

    def __init__(self, count: int) -> None:
        self._agents = WorkerAgents(count)
        self._pids: dict[int, int] = {}
        """By worker."""
        self._signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}

    def run(self) -> int:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        effects: Iterable[Effect] = self._agents.begin()
        while True:
            for effect in effects:
                if isinstance(effect, StartAgent) and self._is_agent(effect.number):
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                    return effect.number
                self._carry_out(effect)
            effects = self._next()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case StopAgent(number):
                pid = self._pids.get(number)
                if pid is not None:  # else it was found dead in the same round
                    log.info("telling the agent of worker %d to stop", number)
                    os.kill(pid, signal.SIGTERM)  # not waited for yet, so the number is still its own
            case End(code):
                sys.exit(code)

    def _next(self) -> list[Effect]:
        """What follows from what happens next."""
        received = signal.sigtimedwait(self._signals, _LOOK_S)
        now_s = time.monotonic()
        effects: list[Effect] = []
        if received is not None and received.si_signo != signal.SIGCHLD:
            effects += self._agents.stop(now_s)
        for number, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._pids[number]
                effects += self._agents.ended(number, _failure(status), now_s)
        return effects + self._agents.tick(now_s)

    def _is_agent(self, number: int) -> bool:
        """Start the agent of that worker; whether this is its process."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._pids[number] = pid
            return False
        die_with_parent(parent)
        os.setpgid(0, 0)  # Ctrl-C is for who sees to all
        return True


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent is dead; it may be already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _failure(status: int) -> str:
    """How a process has failed, by what `waitpid` tells of it; empty: it has not."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}" if code else ""
