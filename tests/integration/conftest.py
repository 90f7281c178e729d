"""One broker per module, a client per test, and an address that no other test uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from blocking_client import BlockingClient, Management
from etcd_ensemble import EtcdEnsemble
from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings
from running_broker import RunningBroker

Connect = Callable[..., BlockingClient]
Open = Callable[..., Coordinator]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """A broker with default settings. Whatever the module's tests did, it stops cleanly and has met no bug."""
    with RunningBroker() as running:
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture
def connect(broker: RunningBroker) -> Iterator[Connect]:
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
def opened() -> Iterator[Open]:
    """Opens coordinators by their URL and settings, and closes them."""
    with ExitStack() as stack:

        def open_one(url: str, **settings: Any) -> Coordinator:
            coordinator = open_coordinator(CoordinatorSettings(url=CoordinatorUrl.parse(url), **settings))
            stack.callback(coordinator.close)
            return coordinator

        yield open_one
