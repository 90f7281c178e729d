"""Where replicas go, as `ha.placement` names it: an entry point of the group `qpid_ha.placement`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from qpid_ha_broker.cluster.placement import Placement, ring, spread, static

log = logging.getLogger("controller")

GROUP: Final = "qpid_ha.placement"
_OWN: Final[Mapping[str, Placement]] = {"spread": spread, "ring": ring, "static": static}


def find_placement(name: str) -> Placement:
    """`spread`, where there is none of that name or it cannot be loaded; the log says so."""
    if name in _OWN:
        return _OWN[name]
    from importlib.metadata import entry_points  # 10 ms of a start, and few brokers have another one

    found = {each.name: each for each in entry_points(group=GROUP)}
    if name not in found:
        log.error("ha.placement: there is no %s, only %s; spread serves", name, ", ".join(sorted({*_OWN, *found})))
        return spread
    try:
        placement: Placement = found[name].load()
    except Exception as error:  # noqa: BLE001 # of somebody else's code: whatever is wrong with it, replicas are kept up
        log.error("ha.placement: %s cannot be loaded (%s: %s); spread serves", name, type(error).__name__, error)
        return spread
    return placement
