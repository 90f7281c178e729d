"""What can be told of a broker's part in its cluster, as values that JSON can carry.

Of a standalone broker there is nothing to tell but that it is one.
"""

from __future__ import annotations

import time
from typing import Final

from qpid_ha_broker.coordination.pause import Pause
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.known_in_sync import CURRENT
from qpid_ha_broker.ha.member import Member

FROM_STREAM: Final = (StoreOrigin.MEMORY, StoreOrigin.UNVERIFIED)
"""What is held came from no store."""


def summary(member: Member, *, shut_down: bool, paused: Pause | None, coordinator: str) -> dict[str, object]:
    """What `status` tells. `coordinator`: as the configuration has it."""
    now_s, store_problem = time.monotonic(), member.status.store_problem
    store = {"store_problem": store_problem, "unwritable_s": round(member.unwritable_s(now_s), 1)}
    if member.is_standalone:
        return {
            "state": member.status.state.value,
            "name": member.settings.name,
            **(store if store_problem else {}),
        }
    stall = member.commit_stall(now_s)
    return {
        "name": member.settings.name,
        "set": member.set,
        "state": member.status.state.value,
        "phase": None if member.status.phase is None else member.status.phase.value,
        "generation": member.status.generation,
        "lsn": member.position.lsn,
        "epoch": member.status.epoch,
        "members": list(member.status.members),
        "members_current": member.status.state in CURRENT,
        "min_in_sync": member.settings.min_in_sync,
        "restored": None if member.status.store in FROM_STREAM else member.status.store.value,
        "chosen": member.status.is_chosen,
        "primary": member.status.primary or None,
        "primary_address": member.status.primary_address or None,
        "login_problem": member.status.login_problem or None,
        "problem": member.status.problem or None,
        "paused": None if paused is None else paused.as_mapping(),
        "shut_down": shut_down,
        "instance": member.settings.instance,
        "cluster": member.status.cluster or None,
        "coordinator": coordinator,
        "coordinator_identity": member.coordinator.identity or None,
        "addresses": list(member.settings.addresses),
        "uncommitted_s": None if stall is None else stall.stalled_s,
        "uncommitted_why": None if stall is None else stall.why,
        **({"observes": member.status.observes} if member.status.observes else {}),
        **(store if store_problem else {}),
    }


def facts(member: Member, *, peer_channels: int, discarded: int) -> dict[str, object]:
    """What `query` tells beside the figures of every broker, flat."""
    if member.is_standalone:
        return {"state": member.status.state.value}
    backups = member.backups()
    lags = [lag for backup in backups if isinstance(lag := backup.get("lag_messages"), int)]
    return {
        "state": member.status.state.value,
        "phase": "" if member.status.phase is None else member.status.phase.value,
        "generation": member.status.generation,
        "epoch": member.status.epoch,
        "primary": member.status.primary,
        "in_sync": _in_sync_text(member),
        "problem": member.status.problem,
        "backups": len(backups),
        "lag_messages": max(lags, default=0),
        "peer_channels": peer_channels,
        "discarded": discarded,
    }


def _in_sync_text(member: Member) -> str:
    """Who is in sync, as a broker knows that leads or follows; of any other one that it does not know."""
    names = ", ".join(member.status.members)
    return names if member.status.state in CURRENT or not names else f"unknown; when it knew last: {names}"
