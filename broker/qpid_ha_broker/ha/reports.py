"""What an operator may see of a member, as values that JSON can carry."""

from __future__ import annotations

from qpid_ha_broker.events.types import GenerationStarted
from qpid_ha_broker.ha.backup_link import BackupLink, Progress
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.states import State


def backup_facts(primary: Primary, last_lsn: int, clock_s: float) -> list[dict[str, object]]:
    """Each backup that is connected, and each that is waited for; lag in messages, bytes and seconds."""
    connected = {backup.name: backup for backup in primary.links.values()}
    facts = [_facts(primary, backup, last_lsn, clock_s) for _, backup in sorted(connected.items())]
    for name in primary.in_sync.members:
        if name not in connected and name != primary.in_sync.primary:
            facts.append({"name": name, "state": "expected", "in_sync": True, "lsn": 0})
    return facts


def _facts(primary: Primary, backup: BackupLink, last_lsn: int, clock_s: float) -> dict[str, object]:
    in_sync = backup.name in primary.in_sync
    owes_since_s = backup.owes_since_s()
    is_level = backup.progress is Progress.FOLLOWING and in_sync
    return {
        "name": backup.name,
        "state": str(State.READY if is_level else State.CATCHUP),
        "in_sync": in_sync,
        "lsn": backup.acknowledged,
        "lag_messages": last_lsn - max(backup.acknowledged, backup.compared_lsn),
        "lag_bytes": backup.unacknowledged_bytes,
        "lag_s": 0.0 if owes_since_s is None else round(clock_s - owes_since_s, 3),
    }


def history_facts(generations: list[tuple[int, GenerationStarted]]) -> list[dict[str, object]]:
    """One line per generation; `started_at_ms` 0: this broker was not told."""
    return [
        {
            "generation": event.generation,
            "primary": event.primary,
            "first_lsn": lsn,
            "started_at_ms": event.started_at_ms,
            "cause": event.cause,
            "forced": event.forced,
        }
        for lsn, event in generations
    ]
