"""No coordinator: the record lives only in the brokers' logs."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.coordination.coordinator import PRIMARY_LEASE, CoordinatorError, Lease
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.settings import CoordinatorSettings


def open_none(settings: CoordinatorSettings) -> NoCoordinator:
    """The factory for `none`."""
    return NoCoordinator()


class NoCoordinator:
    """Remembers nothing and agrees to everything; a broker that has this one asks its peers instead.

    Not guaranteed without a coordinator: that a broker which was dropped from the in-sync set finds out when all the
    others are gone. It can only ask those that answer, so after a crash of several an operator says who is the newest
    (`qpid-ha promote --force`). Nor is there a lock: who calls `promote` sees to it that one does.
    """

    look_interval_s = 3600.0

    def read(self) -> ClusterRecord:
        """An empty record."""
        return ClusterRecord()

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        """Always agreed to, never kept."""
        return True, wanted

    def read_note(self, name: str) -> str:
        """There is none."""
        return ""

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        """Raises CoordinatorError: what somebody wants to be remembered must not pass as if it were."""
        raise CoordinatorError("there is no coordinator to keep that: set ha.coordinator")

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Nothing ever changes."""
        return lambda: None

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> Lease:
        """Raises CoordinatorError: a lock that everybody has would be none."""
        raise CoordinatorError("without a coordinator there is no lock to agree by: set ha.coordinator")

    def close(self) -> None:
        """Nothing is open."""
