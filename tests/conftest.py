"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from suite.plugin import SuitePlugin, add_options

if TYPE_CHECKING:
    from qpid_ha_demo.zookeeper_ensemble import ZookeeperEnsemble

# A busy machine is no failure: how long an example takes says nothing about whether it is right.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


# What a test starts is of this tree too, whatever an installation of it knows: a new package, for one, it does not.
_HOMES = [
    str(Path(__file__).resolve().parents[1] / home)
    for home in ("agent", "broker", "client", "config", "demo", "kernel", "pipeline")
]
os.environ["PYTHONPATH"] = os.pathsep.join([*_HOMES, *filter(None, [os.environ.get("PYTHONPATH")])])


YOUNG_OBJECTS = 100_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and collected tests are no garbage: looking through all of them again and again takes a sixth of the
    processor time of the unit tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)
    parser.addoption("--rewrite", action="store_true", help="write down what the stories in tests/golden say now")
    parser.addoption(
        "--clusters", type=int, metavar="N",
        help="have tests/pipeline/test_random_fleets.py check every job on each of N random clusters",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts so what runs beside it: not what tests start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(SuitePlugin(config), "qpid-ha-suite")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """See suite/scheduling.py."""
    from suite.scheduling import GroupScheduling

    return GroupScheduling(config, log)


@pytest.fixture(scope="session")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperEnsemble]:
    """Three servers for all tests of this process, each of which takes a namespace of its own, and mends what it
    breaks."""
    import qpid_ha_demo.zookeeper_ensemble as module

    problem = module.why_not_here()
    if problem:
        pytest.fail(problem)
    with module.ZookeeperEnsemble(tmp_path_factory.mktemp("zookeeper")) as ensemble:
        yield ensemble
