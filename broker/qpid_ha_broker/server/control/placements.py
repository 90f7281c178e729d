"""Where replicas go, as `ha.placement` names it: an entry point of the group `qpid_ha.placement`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from qpid_ha_broker.cluster.placement import Placement, ring, spread, static
from qpid_ha_config.errors import SettingsError, nearest

log = logging.getLogger("controller")

GROUP: Final = "qpid_ha.placement"
_OWN: Final[Mapping[str, Placement]] = {"spread": spread, "ring": ring, "static": static}


class NoPlacement(SettingsError):
    """There is none of that name, or it cannot be loaded."""

    def __init__(self, problem: str) -> None:
        super().__init__("ha.placement", problem)


def find_placement(name: str) -> Placement:
    """`spread`, where there is none of that name or it cannot be loaded; the log says so."""
    try:
        return load_placement(name)
    except NoPlacement as problem:
        log.error("%s; spread serves", problem)
        return spread


def load_placement(name: str) -> Placement:
    """The one of that name. Raises NoPlacement."""
    if name in _OWN:
        return _OWN[name]
    from importlib.metadata import entry_points  # 10 ms of a start, and few brokers have another one

    entry_points_by_name = {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}
    if name not in entry_points_by_name:
        raise NoPlacement(f"there is no {name}; {nearest(name, sorted({*_OWN, *entry_points_by_name}))}")
    try:
        placement: Placement = entry_points_by_name[name].load()
    except Exception as error:  # of somebody else's code: whatever is wrong with it, replicas are kept up
        raise NoPlacement(f"{name} cannot be loaded ({type(error).__name__}: {error})") from error
    return placement
