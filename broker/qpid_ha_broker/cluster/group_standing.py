"""What the controller knows of a group: whether somebody serves it, and why not, for people.

It orders nothing there. The members of a group have themselves recorded, and the record's `primary` is the one that did
so last: it looks after the set's queues in the directory, and so it says of the set what a primary says of others.
"""

from __future__ import annotations

from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.liveness import BrokerLife
from qpid_ha_broker.cluster.messages import FAILED
from qpid_ha_broker.cluster.reports import CATCHING_UP, FOLLOWING, LEADING
from qpid_ha_broker.cluster_map import SetEntry


def why_not_served(ctx: ControllerContext, entry: SetEntry) -> str:
    """Of a group that nobody leads, by its record: who is missing, and what to do."""
    record = entry.record
    members = record.members or entry.replicas
    standings = {name: standing_of(ctx, entry.name, name) for name in members}
    serving = [name for name, standing in standings.items() if not standing]
    if serving:
        after = "is away, which they have to record" if not ctx.is_up(record.primary) else "has not said so yet"
        return f"{', '.join(serving)} serve it; {record.primary} is to look after its queues, and {after}"
    away = [name for name in members if not ctx.is_up(name)]
    start = f": start {'one of ' if len(away) > 1 else ''}{', '.join(away)}" if away else ""
    begun = "no member of the group serves" if record.generation else "it is new, and no member of the group serves yet"
    return f"{begun}: {', '.join(f'{name} {standing}' for name, standing in standings.items())}{start}"


def troubled_members(ctx: ControllerContext, entry: SetEntry) -> dict[str, str]:
    """Of a group that is served: what its other replicas say of themselves. One that comes level needs no help."""
    told = {name: ctx.reports.replica(name, entry.name) for name in entry.replicas if ctx.is_up(name)}
    return {
        name: replica.problem
        for name, replica in told.items()
        if replica is not None and replica.problem and replica.state != CATCHING_UP and name != entry.record.primary
    }


def why_no_primary(ctx: ControllerContext, entry: SetEntry, *, is_led: bool) -> str:
    """What to answer to somebody who wants to choose the primary of a group."""
    if is_led:
        return f"{entry.name} is a group: each of its brokers serves it, so there is no primary to move"
    members = ", ".join(entry.record.members or entry.replicas)
    why = why_not_served(ctx, entry)
    return f"{entry.name} is a group, and goes on by itself once one of {members} is there; {why}"


def standing_of(ctx: ControllerContext, set_name: str, name: str) -> str:
    """Of one member; empty: it serves."""
    life = ctx.liveness.life(name)
    if life is not BrokerLife.ALIVE:
        return "has not been heard of yet" if life is BrokerLife.AWAITED else "is away"
    replica = ctx.reports.replica(name, set_name)
    if replica is None:
        return "does not host it"
    if replica.state == FAILED:
        return f"cannot serve ({replica.problem})"
    if replica.state in (LEADING, FOLLOWING):
        return ""
    return f"is {replica.state}" + (f" ({replica.problem})" if replica.problem else "")
