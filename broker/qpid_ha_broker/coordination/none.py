"""No coordinator: the record lives only in the brokers' logs."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.ha.effects import ClusterRecord


class NoCoordinator:
    """Remembers nothing and agrees to everything; a broker that has this one asks its peers instead.

    Not guaranteed without a coordinator: that a broker which was dropped from the in-sync set finds out when all the
    others are gone. It can only ask those that answer, so after a crash of several an operator says who is the newest
    (`qpid-ha promote --force`). Nor is there a lock: who calls `promote` sees to it that one does.
    """

    def read(self) -> ClusterRecord:
        """An empty record."""
        return ClusterRecord()

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        """Always agreed to, never kept."""
        return True, wanted

    def watch(self, callback: Callable[[ClusterRecord], None]) -> Callable[[], None]:
        """Nothing ever changes."""
        return lambda: None
