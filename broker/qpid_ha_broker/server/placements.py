"""Where replicas go, as `ha.placement` names it: an entry point of the group `qpid_ha.placement`."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import Final

from qpid_ha_broker.cluster.placement import Placement, spread

log = logging.getLogger("controller")

GROUP: Final = "qpid_ha.placement"


def find_placement(name: str) -> Placement:
    """`spread`, where there is none of that name or it cannot be loaded; the log says so."""
    found = {each.name: each for each in entry_points(group=GROUP)}
    if name not in found:
        log.error("ha.placement: there is no %s, only %s; spread serves", name, ", ".join(sorted(found)))
        return spread
    try:
        placement: Placement = found[name].load()
    except Exception as error:  # noqa: BLE001 # of somebody else's code: whatever is wrong with it, replicas are kept up
        log.error("ha.placement: %s cannot be loaded (%s: %s); spread serves", name, type(error).__name__, error)
        return spread
    return placement
