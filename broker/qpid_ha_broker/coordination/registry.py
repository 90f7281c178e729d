"""Which implementation a coordinator's URL means: those of this release, and those that are installed beside it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, NamedTuple

from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.moved import MovingCoordinator
from qpid_ha_config.coordinator import ENTRY_POINT_GROUP
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import CoordinatorSettings

Factory = Callable[[CoordinatorSettings], Coordinator]
KEY: Final = "ha.coordinator"
NEVER_MOVE: Final = ("none", "pacemaker")
"""There is no record, or Pacemaker itself promotes: another coordinator means another way to run the cluster."""


class Implementation(NamedTuple):
    """`module:factory`, and the extra that brings the libraries it imports."""

    place: str
    extra: str = ""


BUILT_IN: Final = MappingProxyType(
    {
        "none": Implementation("qpid_ha_broker.coordination.none:open_none"),
        "file": Implementation("qpid_ha_broker.coordination.file:open_file"),
        "pacemaker": Implementation("qpid_ha_broker.coordination.pacemaker:open_pacemaker"),
        "zookeeper": Implementation("qpid_ha_broker.coordination.zookeeper:open_zookeeper", "zookeeper"),
        "etcd": Implementation("qpid_ha_broker.coordination.etcd:open_etcd", "etcd"),
    }
)
"""The same as the entry points in setup.cfg; they are not asked, because each start would wait for the lookup."""


def open_coordinator(settings: CoordinatorSettings) -> Coordinator:
    """The coordinator of `settings.url`, wherever it has moved; nothing is connected yet.

    Raises SettingsError when there is none for its scheme, or its settings do not fit.
    """
    if settings.url.scheme in NEVER_MOVE:
        return open_place(settings)
    return MovingCoordinator(settings, open_place)


def open_place(settings: CoordinatorSettings) -> Coordinator:
    """What is at `settings.url` itself, a pointer to another place too. Raises SettingsError."""
    return _factory(settings.url.scheme)(settings)


def _factory(scheme: str) -> Factory:
    built_in = BUILT_IN.get(scheme)
    if built_in is None:
        return _installed(scheme)
    module, _, name = built_in.place.partition(":")
    try:
        factory: Factory = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if not built_in.extra or (error.name or "").startswith("qpid_ha"):
            raise
        problem = f"{scheme}: needs {error.name}, which is not installed: pip install 'qpid-ha[{built_in.extra}]'"
        raise SettingsError(KEY, problem) from None
    return factory


def _installed(scheme: str) -> Factory:
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINT_GROUP, name=scheme):
        try:
            factory: Factory = entry.load()
        except (ImportError, AttributeError) as error:
            raise SettingsError(KEY, f"{scheme}: is {entry.value}, which cannot be loaded: {error}") from None
        return factory
    known = ", ".join(sorted(BUILT_IN))
    raise SettingsError(KEY, f"no coordinator for {scheme}: is installed (there are: {known})")
