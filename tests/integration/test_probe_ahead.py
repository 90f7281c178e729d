"""The virtual IP, asked for before the promotion: only silence counts, and only for a moment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qpid_ha_agent.ocf import probe_ahead
from qpid_ha_agent.ocf.memory import MemoryFile
from qpid_ha_agent.ocf.probe_ahead import ProbeAhead


@pytest.fixture
def memory(tmp_path: Path) -> MemoryFile:
    return MemoryFile("broker", tmp_path)


def fails() -> bool:
    raise OSError("no such interface")


def dies() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


@pytest.mark.parametrize(
    ("is_free", "found"),
    [(lambda: True, True), (lambda: False, False), (fails, False), (dies, False)],
    ids=["nobody answers", "somebody answers", "it cannot be asked", "who asks is killed"],
)
def test_a_promotion_waits_for_the_answer_and_takes_silence_only(
    memory: MemoryFile, is_free: Callable[[], bool], found: bool
) -> None:
    ProbeAhead(memory).begin(is_free)
    assert ProbeAhead(memory).has_found_it_free() is found
    os.waitpid(memory.read().probe_pid, 0)


def test_where_nobody_asked_the_promotion_does(memory: MemoryFile) -> None:
    assert not ProbeAhead(memory).has_found_it_free()


def test_what_was_found_before_holds_no_more(memory: MemoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    ProbeAhead(memory).begin(lambda: True)
    os.waitpid(memory.read().probe_pid, 0)
    assert ProbeAhead(memory).has_found_it_free()
    monkeypatch.setattr(probe_ahead, "HOLDS_S", 0.0)
    assert not ProbeAhead(memory).has_found_it_free()


def test_an_earlier_silence_says_nothing_of_a_later_question(memory: MemoryFile) -> None:
    """Whoever came meanwhile answers it."""
    memory.note(probed_free_at_s=time.monotonic())
    ProbeAhead(memory).begin(lambda: False)
    assert not ProbeAhead(memory).has_found_it_free()
    os.waitpid(memory.read().probe_pid, 0)


def test_one_that_hangs_is_not_waited_for(memory: MemoryFile) -> None:
    def hangs() -> bool:
        os.kill(os.getpid(), signal.SIGSTOP)
        return True

    ProbeAhead(memory).begin(hangs)
    assert not ProbeAhead(memory).has_found_it_free()
    pid = memory.read().probe_pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
