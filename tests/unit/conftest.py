"""No unit test starts a process: what takes one belongs to tests/integration."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from qpid_ha_broker.store import snapshot_index

STARTS_A_PROCESS = frozenset({"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"})


class ProcessStarted(AssertionError):
    """A test of tests/unit started a process."""


class _Guard:
    """An audit hook cannot be taken away again: this one looks only while a unit test runs."""

    is_on = False

    def look(self, event: str, _arguments: object) -> None:
        if self.is_on and event in STARTS_A_PROCESS:
            raise ProcessStarted(f"{event} in a unit test: move it to tests/integration")


@pytest.fixture(scope="session", autouse=True)
def _short_stretches() -> Iterator[None]:
    """A unit test has few messages: without this none of them would be told of by the index of a snapshot alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_index, "MIN_MESSAGES", 1)
        patch.setattr(snapshot_index, "STRETCH_LENGTH", 3)
        patch.setattr(snapshot_index, "COPIED_BYTES", 100)
        yield


@pytest.fixture(scope="session")
def _process_guard() -> _Guard:
    guard = _Guard()
    sys.addaudithook(guard.look)
    return guard


@pytest.fixture(autouse=True)
def _no_process(_process_guard: _Guard) -> Iterator[None]:
    _process_guard.is_on = True
    yield
    _process_guard.is_on = False
