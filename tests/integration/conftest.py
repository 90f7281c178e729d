"""One broker per module, a client per test, and an address that no other test uses.

Whatever clients ask of a broker they ask twice: of one by itself, and through a proxy, as `served_by` says. So every
test that speaks AMQP is also one of relaying. What is about the process that clients talk to, and not about what it
serves, is marked `direct_only`, with the reason. Tests that start a `RunningBroker` of their own are direct as well:
they are about one process, its start, end and store (`test_bad_start`, `test_durable_broker`, `test_graceful_stop`,
`test_paged_broker`, `test_numbered_messages`), its descriptors, connections and memory (`test_connection_floods`,
`test_backpressure`, parts of `test_bad_clients` and `test_bad_peers`), or about a setting that one broker alone has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from blocking_client import BlockingClient, Management
from coordinator_calls import Open, Watch
from etcd_ensemble import EtcdEnsemble
from forked_brokers import have_brokers_forked
from ocf_resource import Resource, resource_here
from proxied_broker import ProxiedBroker, Serve, Served
from qpid_ha_broker.coordination.conformance.watcher import Watcher
from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings
from running_broker import RunningBroker

have_brokers_forked()

Connect = Callable[..., BlockingClient]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have each test that asks for a broker to be served run by one by itself, and through a proxy."""
    if "served_by" in metafunc.fixturenames:
        is_direct = metafunc.definition.get_closest_marker("direct_only") is not None
        ways = ["direct"] if is_direct else ["direct", "proxy"]
        metafunc.parametrize("served_by", ways, scope="module", indirect=True)


@pytest.fixture(scope="module")
def served_by(request: pytest.FixtureRequest) -> str:
    """`direct`: clients are at the broker that has what they use. `proxy`: at one that relays what they do."""
    return str(request.param)


@pytest.fixture(scope="module")
def serve(served_by: str) -> Serve:
    """Starts a broker with these settings. Whatever is done to it, it stops cleanly and has met no bug."""

    @contextmanager
    def run(settings: Mapping[str, object] | None = None) -> Iterator[Served]:
        with (RunningBroker if served_by == "direct" else ProxiedBroker)(settings) as running:
            yield running
            assert running.stop() == 0, running.all_logs()
            assert "Traceback" not in running.all_logs(), running.all_logs()

    return run


@pytest.fixture(scope="module")
def broker(serve: Serve) -> Iterator[Served]:
    """A broker with default settings."""
    with serve() as running:
        yield running


@pytest.fixture
def connect(broker: Served) -> Iterator[Connect]:
    """Opens connections that are closed when the test is over."""
    with ExitStack() as stack:

        def open_connection(**options: Any) -> BlockingClient:
            return stack.enter_context(BlockingClient(broker.url, **options))

        yield open_connection


@pytest.fixture
def client(connect: Connect) -> BlockingClient:
    """The test's first connection."""
    return connect()


@pytest.fixture
def management(connect: Connect) -> Management:
    """Makes and reads queues, over a connection of its own."""
    return Management(connect())


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """A queue's name after the test."""
    return re.sub(r"\W+", "-", request.node.name).strip("-")


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdEnsemble]:
    """Three servers. Whoever kills, stops or wipes some has them whole again before the test ends; each test has a
    namespace of its own."""
    with EtcdEnsemble() as ensemble:
        yield ensemble


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """Of this test alone, in a coordinator that others use, too."""
    return f"tests/{re.sub('[^a-z0-9]+', '-', request.node.name)[:60]}"


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens coordinators by their URL and settings, and closes them."""
    with ExitStack() as stack:

        def open_one(url: str, **settings: Any) -> Coordinator:
            coordinator = open_coordinator(CoordinatorSettings(url=CoordinatorUrl.parse(url), **settings))
            stack.callback(coordinator.close)
            return coordinator

        yield open_one


@pytest.fixture
def watching() -> Iterator[Watch]:
    """Makes those that look at a coordinator when it tells of a change."""
    with ExitStack() as stack:

        def watch(coordinator: Coordinator) -> Watcher:
            watcher = Watcher(coordinator)
            stack.callback(watcher.end)
            return watcher

        yield watch


@pytest.fixture
def resource(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Resource]:
    """What Pacemaker's agent is called for, on this machine."""
    with resource_here(tmp_path, monkeypatch, capfd) as resource:
        yield resource
