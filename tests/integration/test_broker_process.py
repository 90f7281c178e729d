"""The broker's process as its agent knows it: started, stopped, killed, and how it ended."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from qpid_ha_agent.broker_process import BrokerProcess, BrokerProcessError

TIMEOUT_S = 10.0


def test_a_process_that_was_stopped_can_be_killed_and_says_how_it_ended() -> None:
    process = BrokerProcess.start([sys.executable, "-c", "import time; time.sleep(600)"])
    assert os.getsid(process.pid) == process.pid  # a Ctrl-C in the agent's terminal is not for the broker
    process.send(signal.SIGSTOP)
    assert process.is_alive()

    process.send(signal.SIGKILL)

    assert process.end_text() == "killed by SIGKILL"
    assert not process.is_alive()
    process.send(signal.SIGKILL)  # hits nobody
    process.close()


def test_a_process_that_works_or_waits_for_a_processor_is_told_from_one_that_is_stopped() -> None:
    busy, stopped = [BrokerProcess.start([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        wait_worked(stopped, 0.05)
        stopped.send(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        worked_s = stopped.worked_s()
        wait_worked(busy, busy.worked_s() + 0.1)
        assert stopped.worked_s() == worked_s
    finally:
        for process in (busy, stopped):
            process.send(signal.SIGKILL)
            assert process.end_text() == "killed by SIGKILL"
            process.close()


def wait_worked(process: BrokerProcess, worked_s: float) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while process.worked_s() < worked_s:
        assert time.monotonic() < deadline, "it does not work"
        time.sleep(0.005)


def test_an_exit_code_is_told() -> None:
    process = BrokerProcess.start([sys.executable, "-c", "raise SystemExit(3)"])
    assert process.end_text() == "ended with exit code 3"
    process.close()


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(BrokerProcessError, match="/no/such/qpidd"):
        BrokerProcess.start(["/no/such/qpidd"])
