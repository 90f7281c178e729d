"""How a member and those whom the record names stand, as it knows it: what operators and publishers are told."""

from __future__ import annotations

from collections.abc import Iterator

from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.lineage import NOTHING_ACKNOWLEDGED
from qpid_ha_broker.group.parts import GroupParts
from qpid_ha_broker.model.errors import NotEnoughReplicas


class MemberStanding:
    """Of one member. It changes nothing."""

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts

    def lags(self) -> Iterator[tuple[str, int]]:
        """Of the others whom the record names, how many LSNs each has not acknowledged."""
        if self._parts.log is not None:
            acknowledged = self._parts.log.lineage.acknowledged
            for name in self._parts.records.record.members:
                if name != self._parts.ctx.settings.name:
                    lsn, _ = acknowledged.get(name, NOTHING_ACKNOWLEDGED)
                    yield name, max(0, self._parts.ctx.last_lsn - lsn)

    @property
    def held_lsn(self) -> int:
        """Up to where a group could go on with the copy that is here; 0: it is a part of one."""
        is_part = self._parts.role is GroupRole.OUTSIDE and not self._parts.is_whole
        return 0 if is_part else self._parts.ctx.last_lsn

    @property
    def missing(self) -> tuple[str, ...]:
        """Whom the record names, and who is not in step with this member; of one that is outside nobody knows."""
        log, record = self._parts.log, self._parts.records.record
        return () if log is None else tuple(name for name in record.members if name not in log.lineage.in_step)

    @property
    def record_problem(self) -> str:
        """Why the record cannot be changed; empty: it can, or need not be."""
        return self._parts.records.problem

    @property
    def refusal(self) -> NotEnoughReplicas | None:
        """Why nothing is to be published now; None: it may be."""
        lineage = self._parts.log.lineage if self._parts.log is not None else None
        if lineage is None or lineage.is_large_enough:
            return None
        members = ", ".join(lineage.record.members)
        return NotEnoughReplicas(f"in sync are only {members}, and ha.min-in-sync is {lineage.min_in_sync}: start more")
