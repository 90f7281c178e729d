"""What can be told of a broker's part in its cluster, as values that JSON can carry.

Of a standalone broker there is nothing to tell but that it is one.
"""

from __future__ import annotations

from qpid_ha_broker.ha.member import Member


def summary(member: Member, *, shut_down: bool) -> dict[str, object]:
    """What `status` tells."""
    if member.is_standalone:
        return {"state": member.state.value, "name": member.settings.name}
    return {
        "name": member.settings.name,
        "state": member.state.value,
        "phase": None if member.phase is None else member.phase.value,
        "generation": member.generation,
        "lsn": member.position.lsn,
        "epoch": member.epoch,
        "members": list(member.members),
        "min_in_sync": member.settings.min_in_sync,
        "restored": member.store.value or None,
        "chosen": member.is_chosen,
        "primary": member.primary_name or None,
        "primary_address": member.primary_address or None,
        "login_problem": member.login_problem or None,
        "problem": member.problem or None,
        "shut_down": shut_down,
    }


def facts(member: Member, *, peer_channels: int, discarded: int) -> dict[str, object]:
    """What `query` tells beside the figures of every broker, flat."""
    if member.is_standalone:
        return {"state": member.state.value}
    backups = member.backups()
    lags = [lag for backup in backups if isinstance(lag := backup.get("lag_messages"), int)]
    return {
        "state": member.state.value,
        "phase": "" if member.phase is None else member.phase.value,
        "generation": member.generation,
        "epoch": member.epoch,
        "primary": member.primary_name,
        "in_sync": ", ".join(member.members),
        "problem": member.problem,
        "backups": len(backups),
        "lag_messages": max(lags, default=0),
        "peer_channels": peer_channels,
        "discarded": discarded,
    }
