"""The lock of the `file` coordinator between processes: the kernel frees it when its holder dies."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from descriptors import open_files
from qpid_ha_broker.coordination.file import Lock, holder_of
from running_agent import wait_until

HOLD_LOCK = """
import sys
from pathlib import Path
from qpid_ha_broker.coordination.file import Lock
lock = Lock(Path(sys.argv[1]), holder="other")
print(lock.try_lock(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_holder(tmp_path: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until it is killed."""
    command = [sys.executable, "-c", HOLD_LOCK, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def wait_for_waiting(waiting: Lock, cancel: threading.Event) -> queue.Queue[bool]:
    """What its `acquire` in a thread returns, once that thread has opened the file whose lock it will wait for."""
    before, result = open_files(waiting.path), queue.Queue[bool]()
    threading.Thread(target=lambda: result.put(waiting.acquire(cancel)), daemon=True).start()
    wait_until(lambda: open_files(waiting.path) > before, lambda: f"{waiting.path} was not opened")
    return result


def test_a_waiting_one_has_the_lock_the_moment_its_holder_dies(
    tmp_path: Path, other_holder: subprocess.Popen[str]
) -> None:
    waiting = Lock(tmp_path)
    assert not waiting.try_lock()
    assert holder_of(waiting.path).startswith("other (pid")
    acquired = wait_for_waiting(waiting, threading.Event())

    other_holder.kill()
    began = time.monotonic()

    assert acquired.get(timeout=10)
    assert time.monotonic() - began < 5  # no polling, no lease to run out
    assert waiting.is_held()
    end(other_holder)


def test_a_cancelled_wait_gives_the_lock_back_when_it_comes(
    tmp_path: Path, other_holder: subprocess.Popen[str]
) -> None:
    cancelled = threading.Event()
    result = wait_for_waiting(Lock(tmp_path), cancelled)
    cancelled.set()

    end(other_holder)

    assert result.get(timeout=10) is False
    assert Lock(tmp_path).try_lock()


def test_a_lock_won_on_a_file_that_was_replaced_meanwhile_is_no_lock(tmp_path: Path) -> None:
    """Otherwise two hold it: the one who waited for the old file, and the one who found the new one."""
    old, new, waiting = Lock(tmp_path), Lock(tmp_path), Lock(tmp_path)
    assert old.try_lock()
    result = wait_for_waiting(waiting, threading.Event())
    old.path.unlink()
    assert new.try_lock()

    old.release()
    with pytest.raises(queue.Empty):
        result.get(timeout=0.1)
    new.release()

    assert result.get(timeout=10)
    assert waiting.is_held()
