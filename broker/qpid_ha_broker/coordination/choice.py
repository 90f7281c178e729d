"""The coordinator that the setting `ha.coordinator` means."""

from __future__ import annotations

from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.coordination.none import NoCoordinator
from qpid_ha_config.coordinator import CoordinatorUrl


def make_coordinator(url: CoordinatorUrl) -> Coordinator:
    """Nothing is opened yet."""
    if url.directory is not None:
        return FileCoordinator(url.directory)
    if url.property_set is None:
        return NoCoordinator()
    from qpid_ha_broker.coordination.pacemaker import PacemakerCoordinator  # with an XML parser: not for every start

    return PacemakerCoordinator(url.property_set)
