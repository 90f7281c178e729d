"""Who is in sync where not all are to be: the others observe, which means that nobody waits for them.

The promise that this must not touch: what is confirmed is held by every member of the recorded in-sync set. So an
observer is nothing new to it: a backup that is level and was not let in, or that left like a lost one. It follows the
log, applies what is committed, and is promoted by force only. Source: ZooKeeper's observers, Raft's learners.

A set has a limit when its settings say so and the cluster map has another set: then every broker needs the log of the
first one, because the map is in it, and few have to be waited for. What is done, one change at a time, the first
of these that applies:

1. One that left is level again, and it is not recorded that it left: it joins. As long as that is not recorded, nothing
   is committed without it, and the coordinator may be away for long. One that left by 3 is level all the time: it joins
   only when its leaving was not recorded within RECORD_WAIT_S, or it would join, and leave, at every tick.
2. More are in sync than the limit says, or two on one machine, and one of them is missing, or has not caught up, or a
   change of the set is not recorded: nothing. A set that may be smaller than it says does not become smaller still.
3. More are: one leaves; one on the machine of another one, else one that is being drained, else of a zone of which
   another one is, else who is furthest behind. With two on one machine one of them leaves in any case, unless fewer
   would be in sync than `ha.min-in-sync` wants.
4. As many are, or nobody else is level who is on a machine where nobody is in sync: nothing.
5. Fewer are than `ha.min-in-sync` wants: the best joins, because publishers wait for it.
6. The best is of a zone of which nobody is in sync: it joins. What fails together must not be all that there is.
7. A broker of such a zone is up, and somebody has been missing for less than a second: nothing. It may come.
8. The best joins.

The best: not being drained, of a zone of which nobody is in sync, least behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.backup_link import BackupLink
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.in_sync import InSyncSet

ZONE_WAIT_S: Final = 1.0
"""So long one of another zone is waited for when somebody is missing: as long as brokers need to find a new primary."""
RECORD_WAIT_S: Final = 2.0
"""So long it may take to record that one left which is to observe, and nothing is committed, before it joins again."""


class FollowerStanding(NamedTuple):
    """A broker that follows, as its primary sees it."""

    name: str
    zone: str = ""
    """Empty: not known, and then it is of no zone that anybody could prefer."""
    is_draining: bool = False
    is_level: bool = True
    lag: int = 0
    """Events that it has not acknowledged."""
    machine: str = ""
    """Whose worker it is; empty: not known, and then it shares its machine with nobody."""


class InSyncView(NamedTuple):
    """What there is to decide by."""

    limit: int
    min_in_sync: int
    primary_zone: str
    members: tuple[FollowerStanding, ...]
    """In sync, besides the primary. Who is missing is not level."""
    others: tuple[FollowerStanding, ...]
    """Who follows, and is not in sync."""
    is_settled: bool
    """Nothing that was changed has still to be recorded."""
    zones_up: frozenset[str]
    """Of all brokers of the cluster that are up and are not being drained, by the map."""
    short_for_s: float
    """Since when there are fewer than the limit."""
    awaited: frozenset[str] = frozenset()
    """Who has left, without whom nothing is committed before that is recorded. Not those whose leaving was decided here
    a moment ago."""
    primary_machine: str = ""


class Admit(NamedTuple):
    """Let it in."""

    name: str
    why: str


class Release(NamedTuple):
    """Wait for it no more."""

    name: str
    why: str


def next_change(view: InSyncView) -> Admit | Release | None:
    """By the table above; None: nothing is to be changed now."""
    size = 1 + len(view.members)
    back = [each.name for each in view.others if each.is_level and each.name in view.awaited]
    if back:
        return Admit(back[0], "it is back, and is waited for as long as it is not recorded that it left")
    machines = Counter(name for name in (view.primary_machine, *(each.machine for each in view.members)) if name)
    if size > view.limit or (size > view.min_in_sync and machines.total() > len(machines)):
        is_whole = view.is_settled and all(each.is_level for each in view.members)
        return _release(view, machines) if is_whole else None
    level = [each for each in view.others if each.is_level and not machines[each.machine]]
    if size == view.limit or not level:
        return None
    zones = {view.primary_zone, *(each.zone for each in view.members)} | {""}
    best = min(level, key=lambda each: (each.is_draining, each.zone in zones, each.lag, each.name))
    is_new_zone = best.zone not in zones
    if size < view.min_in_sync:
        return Admit(best.name, "fewer are in sync than ha.min-in-sync wants")
    if is_new_zone:
        return Admit(best.name, f"nobody of zone {best.zone} is in sync")
    if view.zones_up - zones and view.short_for_s < ZONE_WAIT_S:
        return None
    return Admit(best.name, f"{size} of {view.limit} are in sync")


def _release(view: InSyncView, machines: Counter[str]) -> Release:
    zones = Counter([view.primary_zone, *(each.zone for each in view.members)])

    def badness(each: FollowerStanding) -> tuple[object, ...]:
        return machines[each.machine] > 1, each.is_draining, zones[each.zone], each.lag, each.name

    last = max(view.members, key=badness)
    if machines[last.machine] > 1:
        return Release(last.name, f"another broker of machine {last.machine} is in sync")
    return Release(last.name, f"{1 + len(view.members)} are in sync, and {view.limit} are enough (ha.default-replicas)")


class LimitedInSync:
    """Looks at one generation's backups, and says what `next_change` makes of them; its primary does it."""

    def __init__(
        self, ctx: MemberContext, generation: int, in_sync: InSyncSet, links: Mapping[int, BackupLink]
    ) -> None:
        self._ctx = ctx
        self._generation = generation
        self._in_sync = in_sync
        self._links = links
        self._short_since_s: float | None = None
        self._observe_since_s: dict[str, float] = {}
        """By name, when each was told to observe last; means nothing for one that does not."""

    @property
    def limit(self) -> int:
        """How many may be in sync; 0: all."""
        most = self._ctx.settings.most_in_sync if self._ctx.resource_set.state.map.sets else 0
        return max(most, self._in_sync.least_beside_rival) if most else 0

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to look at: there is a limit, or somebody observes because there was one."""
        return self.limit > 0 or any(backup.observes for backup in self._links.values())

    def next_change(self, last_lsn: int, missing: Collection[str], *, is_settled: bool) -> Admit | Release | None:
        """What is to be done. `missing`: of the in-sync set, not back yet."""
        backups = {backup.name: backup for backup in self._links.values()}
        settings, limit = self._ctx.settings, self.limit
        joining = {backup.name for backup in backups.values() if backup.awaits_peer_check}
        if not limit:
            level = [each.name for each in backups.values() if each.observes and each.is_level]
            return Admit(level[0], "there is no other set any more that would need it") if level else None
        members = {*self._in_sync.members, *joining} - {settings.name}
        self._note_size(1 + len(members), limit)
        brokers = self._ctx.resource_set.state.map.brokers
        awaited = frozenset(name for name in self._in_sync.awaited if not self._has_just_left(backups.get(name)))

        def standing(name: str) -> FollowerStanding:
            backup, broker = backups.get(name), brokers.get(name)
            is_level = backup is not None and backup.is_level and name not in missing and name not in joining
            if backup is not None and name not in members and not self._is_proven(backup):
                is_level = is_level and (1 + len(members) < self._in_sync.least or name in awaited)
            return FollowerStanding(
                name,
                "" if broker is None else broker.place.zone,
                broker is not None and broker.draining,
                is_level,
                0 if backup is None else last_lsn - backup.acknowledged,
                "" if broker is None else broker.place.machine,
            )

        own = brokers.get(settings.name)
        return next_change(
            InSyncView(
                limit=limit,
                min_in_sync=self._in_sync.least,
                primary_zone="" if own is None else own.place.zone,
                members=tuple(map(standing, sorted(members))),
                others=tuple(map(standing, sorted(backups.keys() - members))),
                is_settled=is_settled,
                zones_up=frozenset(each.place.zone for each in brokers.values() if each.up and not each.draining),
                short_for_s=0.0 if self._short_since_s is None else self._ctx.clock_s - self._short_since_s,
                awaited=awaited,
                primary_machine="" if own is None else own.place.machine,
            )
        )

    def _has_just_left(self, backup: BackupLink | None) -> bool:
        """Whether that was decided here, and it may still be recorded soon."""
        if backup is None or not backup.observes:
            return False
        return self._ctx.clock_s - self._observe_since_s[backup.name] < RECORD_WAIT_S

    def _is_proven(self, backup: BackupLink) -> bool:
        """Of one that fell silent before: whether it has been level for long enough, and answers now."""
        settings, clock_s = self._ctx.settings, self._ctx.clock_s
        is_proven = backup.is_proven(clock_s)
        if not backup.probation_s or not settings.has_heartbeats:
            return is_proven
        return is_proven and clock_s - backup.heard_s <= 1.5 * settings.heartbeat_interval_s

    def _note_size(self, size: int, limit: int) -> None:
        if size >= limit:
            self._short_since_s = None
        elif self._short_since_s is None:
            self._short_since_s = self._ctx.clock_s

    def tell(self) -> None:
        """Say to whoever is level, and is not to join, that it observes."""
        limit, members = self.limit, self._in_sync.members
        if not limit:
            return
        is_full = len(members) >= limit
        beside = {self._machine(name) for name in members} - {""}
        for backup in self._links.values():
            if not backup.is_level or backup.observes or backup.awaits_peer_check or backup.name in self._in_sync:
                continue
            if is_full:
                enough = f"{', '.join(members)} are in sync, and {limit} are enough (ha.default-replicas)"
                self.observes(backup, enough)
            elif (machine := self._machine(backup.name)) in beside:
                self.observes(backup, f"another broker of machine {machine} is in sync")

    def _machine(self, name: str) -> str:
        broker = self._ctx.resource_set.state.map.brokers.get(name)
        return "" if broker is None else broker.place.machine

    def observes(self, backup: BackupLink, why: str) -> None:
        """It is not waited for from now on."""
        backup.observes, self._observe_since_s[backup.name] = why, self._ctx.clock_s
        self._ctx.note("info", f"backup {backup.name} observes: {why}")
        self._ctx.send(backup.link, fr.Observe(self._generation, why))
