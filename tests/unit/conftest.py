"""No unit test starts a process: what takes one belongs to tests/integration. Those about engines run both ways."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from kernel_use import WAYS, engines_of, use_what_is_built
from paired_engines import PairedBroker, PairedClient
from paired_proxy import paired_broker
from qpid_ha_broker.store import snapshot_index

use_what_is_built()

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


# fmt: off
BOTH_WAYS = frozenset({
    "test_aborted_deliveries", "test_bridges", "test_budgets", "test_bugs_on_connections",
    "test_consumer_credit", "test_credit_that_shrinks", "test_drains_behind_windows", "test_engine_fuzz",
    "test_link_names", "test_links_ended_behind_windows", "test_links_ended_by_us", "test_message_format",
    "test_publishing", "test_relay", "test_relayed_links", "test_send_window",
    "test_transactions_of_ended_links", "test_unsent_messages",
})
# fmt: on
"""Modules about what comes on links and goes there: the compiled kernel and plain Python must come to the same."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of these modules run with the kernel and without it; others with it, where it was built."""
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS:
        metafunc.fixturenames.append("engine_way")
        metafunc.parametrize("engine_way", WAYS, indirect=True)


@pytest.fixture
def engine_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How the engines of this test handle batches."""
    way: str = request.param
    with engines_of(way):
        yield way


@pytest.fixture(params=["direct", "proxied"])
def broker(request: pytest.FixtureRequest) -> PairedBroker:
    """Where clients connect: it serves them itself, or relays them to the one that leads."""
    return paired_broker(request.param)


@pytest.fixture
def client(broker: PairedBroker) -> PairedClient:
    """Of the module's own `broker`, if it has one."""
    return broker.connect()


@pytest.fixture(autouse=True)
def _no_process(_process_guard: _Guard) -> Iterator[None]:
    _process_guard.is_on = True
    yield
    _process_guard.is_on = False
