"""A group whose recorded members are all lost for good goes on with an older copy, because an operator says so.

It is the one record of a group that no member writes. Its generation is a new one, so the logs of those who come back
after all differ from there on, and they give up what the older copy lacks: see `group.joining.common_with`.
"""

from __future__ import annotations

from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.group_standing import standing_of, why_no_primary
from qpid_ha_broker.cluster.messages import FAILED
from qpid_ha_broker.cluster.queue_placement import ClusterRefusal
from qpid_ha_broker.cluster.reports import CATCHING_UP
from qpid_ha_broker.cluster_map import SetEntry


def go_on_with(ctx: ControllerContext, entry: SetEntry, broker: str, *, force: bool) -> str:
    """Have the group's record name that broker, and nobody else; returns what to tell whoever asked. Raises
    ClusterRefusal, without `force` in any case: with what would be given up."""
    given_up = _what_is_given_up(ctx, entry, broker)
    if not force:
        raise ClusterRefusal(
            f"{given_up}. Start them; if their data is lost for good, see that none of them runs, and"
            f" `qpid-ha set promote {entry.name} {broker} --force`"
        )
    record = entry.record
    generation, epoch = record.generation + 1, record.epoch + 1
    ctx.write(record._replace(generation=generation, primary=broker, epoch=epoch, members=(broker,), claimed=False))
    ctx.dirty.add(entry.name)
    ctx.note("warning", f"set {entry.name}: an operator has the group go on with {broker}: {given_up}", entry.name)
    return f"{entry.name} goes on with what {broker} has, in a moment: {given_up}"


def _what_is_given_up(ctx: ControllerContext, entry: SetEntry, broker: str) -> str:
    """If a group goes on with the copy of a broker that its record does not name. Raises ClusterRefusal.

    The first that applies:

    | | |
    | --- | --- |
    | somebody serves it, or the record names that broker | it goes on by itself |
    | one whom the record names is up, with a disk that is not empty | that may have all that was confirmed |
    | the broker is not up, has no copy, or none that is whole | there is nothing to go on with |
    """
    record = entry.record
    serving = [name for name in entry.replicas if ctx.is_up(name) and not standing_of(ctx, entry.name, name)]
    if serving or broker in record.members or not record.generation:
        raise ClusterRefusal(why_no_primary(ctx, entry, is_led=bool(serving)))
    told_of = {name: ctx.reports.replica(name, entry.name) for name in record.members if ctx.is_up(name)}
    up = [name for name, replica in told_of.items() if replica is None or replica.lsn or replica.state == FAILED]
    if up:
        told = ", ".join(f"{name} {standing_of(ctx, entry.name, name)}" for name in up)
        raise ClusterRefusal(
            f"{entry.name} has members that were in sync, are up, and may have all of it: {told}. Mend that; one whose"
            " data is lost for good has to be stopped first"
        )
    replica = ctx.reports.replica(broker, entry.name) if ctx.liveness.is_alive(broker) else None
    if replica is None or replica.state == FAILED:
        why = "has not told what it holds" if replica is None else f"cannot have its replica ({replica.problem})"
        raise ClusterRefusal(f"{broker} {why} of {entry.name}")
    if not replica.lsn or replica.state == CATCHING_UP:
        raise ClusterRefusal(
            f"{broker} has no whole copy of {entry.name}. If it was being let in when the others were lost, restart it:"
            " what it had before is on its disk"
        )
    members = ", ".join(record.members)
    return (
        f"{broker} holds {entry.name} up to LSN {replica.lsn}; in sync were {members} (generation {record.generation},"
        f" epoch {record.epoch}), and what they have confirmed that {broker} lacks is given up"
    )
