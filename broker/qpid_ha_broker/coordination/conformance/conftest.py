"""What each test is given: the coordinator, empty."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from qpid_ha_broker.coordination.conformance.under_test import Faults, UnderTest, flags_of
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_config.errors import ConfigError, SettingsError

USAGE, UNREACHABLE = 4, 3


@pytest.fixture(scope="session")
def flags(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The coordinator's settings by dotted key. Ends the run when they are no use, or the coordinator is not empty; in
    the end it is empty again."""
    url = request.config.getoption("--coordinator")
    if not isinstance(url, str):
        pytest.exit("which coordinator? Name it: --coordinator URL", USAGE)
    try:
        coordinator_flags = flags_of(url, request.config.getoption("--coordinator-setting"))
        there = UnderTest(coordinator_flags, None).clean()
    except (ValueError, ConfigError, SettingsError) as error:
        pytest.exit(str(error), USAGE)
    except CoordinatorError as error:
        pytest.exit(f"{url} cannot be used: {error}", UNREACHABLE)
    if there is not None:
        pytest.exit(
            f"{url} holds the record of a cluster ({there.cluster or there.primary}, generation {there.generation}): "
            "give the suite a namespace of its own",
            USAGE,
        )
    yield coordinator_flags
    UnderTest(coordinator_flags, None).clean()


@pytest.fixture(scope="session")
def faults(request: pytest.FixtureRequest) -> Faults | None:
    """What --coordinator-faults names."""
    place = request.config.getoption("--coordinator-faults")
    if not isinstance(place, str):
        return None
    module, _, name = place.partition(":")
    try:
        coordinator_faults: Faults = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        pytest.exit(f"--coordinator-faults {place}: {error}", USAGE)
    return coordinator_faults


@pytest.fixture
def under_test(flags: dict[str, str], faults: Faults | None) -> Iterator[UnderTest]:
    """The coordinator, with an empty record and without notes."""
    subject = UnderTest(flags, faults)
    subject.clean()
    yield subject
    subject.close()


@pytest.fixture
def coordinator(under_test: UnderTest) -> Coordinator:
    """One."""
    return under_test.connect()


@pytest.fixture
def other(under_test: UnderTest) -> Coordinator:
    """Another one, of the same process."""
    return under_test.connect()


@pytest.fixture
def leases(coordinator: Coordinator, under_test: UnderTest) -> UnderTest:
    """The coordinator, if it has leases."""
    try:
        coordinator.lease("conformance", "conformance")
    except CoordinatorError as error:
        pytest.skip(f"it has no leases: {error}")
    return under_test
