"""How many replicas each resource set wants, which ones it has, and what is to be done about the difference. Pure.

Source: seed 003, continuously maintained minimum replica count. Never below, above is fine.

What follows from a check of one set (`check`); all that apply, in this order:

| what is | what is done | why |
| --- | --- | --- |
| too few count, and one that leaves is on an open broker | it stays | it has the data already |
| too few count, and a broker is open that may take an addition | a replica is added there | the placement says where |
| too few count, and who is open is about to stop | wait | it may be back in a moment, and begins nothing new |
| too few count, and who is open has an earlier replica yet | wait | what it says of that one would count for the next |
| too few count, and all open brokers have their additions | wait | a failure does not start everything at once |
| too few count, and no broker is open | say so | one that joins has it looked at again |
| two that count are on one machine | one of them is to leave | what fails together is one copy |
| one is on a draining broker, or on one that is of the cluster no more | it is to leave | an operator said so |
| the set is new, one has failed, or its broker is away, and another counts | it is to leave | it holds nothing |
| one has failed where it is, and enough are in sync | it is to leave | it was made up for |
| one is on a broker that is away for too long, and enough are in sync | it is to leave | it was made up for |
| one is to leave, the set is new, and there are others | it is removed | it holds nothing |
| one is to leave, another one leads, and the rest in sync is enough | it is removed | nothing that counts is lost |
| one of a group is to leave, and the rest in sync is enough | it is removed | the others have themselves recorded |
| more count than wanted | shown; with `auto_trim` the worst are to leave | what an operator adds stays |

A replica *counts* unless it is to leave, its broker is draining, is away for longer than the recovery interval, or
cannot have it: a store that cannot be opened or written does not come back by itself, so nobody waits for it. Of a
set that nobody has led yet, a replica on a broker that is away does not count: there is nothing to come back for.
Of two on one machine one counts: that of who leads or should, else one that is in sync.

A set is *new* while nobody has ever led it, beyond doubt (`SetRecords.is_new`). Then all of its replicas have to
be there before one leads (`leadership`), and so nobody stays in its list who cannot be. A group begins without him.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

from qpid_ha_broker.cluster.messages import ControllerSettings
from qpid_ha_broker.cluster.placement import Placement, PlacementBroker, PlacementSet, one_a_machine, rank
from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.events.counted import counted


class ReplicaStep(StrEnum):
    """What is done about one replica."""

    ADD = "add"
    KEEP = "keep"
    """It was to leave."""
    LEAVE = "leave"
    REMOVE = "remove"
    WAIT = "wait"
    """For additions that are under way, or for a broker that is about to stop, or to give up an earlier replica."""
    LACK = "lack"
    """There is no broker for it."""
    EXTRA = "extra"


class ReplicaAction(NamedTuple):
    """One line of a plan. `broker` is empty where there is none to be had."""

    set: str
    step: ReplicaStep
    broker: str
    why: str


class WantedReplicas(NamedTuple):
    """How many, and who says so."""

    number: int
    why: str


class ReplicaDecision(NamedTuple):
    """What `SetPlaced` should say of a set, and why."""

    replicas: tuple[str, ...]
    leaving: tuple[str, ...]
    actions: tuple[ReplicaAction, ...]
    counted: tuple[str, ...]
    """The replicas that count."""
    problem: str
    """Of the placement."""


def wanted_replicas(
    entry: SetEntry, policies: tuple[tuple[str, int], ...], settings: ControllerSettings, brokers: int, machines: int
) -> WantedReplicas:
    """The set's own number, else the first policy that matches, else the default; never more than there are machines
    with brokers."""
    matching = next((policy for policy in (*policies, *settings.policies) if fnmatchcase(entry.name, policy[0])), None)
    if entry.min_replicas:
        wanted = WantedReplicas(entry.min_replicas, "the set's own")
    elif matching is not None:
        wanted = WantedReplicas(matching[1], f"policy {matching[0]}")
    else:
        wanted = WantedReplicas(settings.min_replicas, "ha.min-replicas")
    if wanted.number <= machines:
        return wanted
    there = counted(brokers, "broker")
    if machines != brokers:
        there = f"{there} on {counted(machines, 'machine')}"
    return WantedReplicas(max(machines, 1), f"{wanted.why} says {wanted.number}, and there are {there}")


class _Check:
    """A check as it goes on."""

    def __init__(
        self, entry: SetEntry, brokers: Mapping[str, PlacementBroker], wanted: int, settings: ControllerSettings
    ) -> None:
        self.is_led = False
        """Only a primary can have it recorded that somebody is not in sync any more."""
        self.failed: Mapping[str, str] = {}
        """Brokers that cannot have their replica, and why."""
        self.parting: Collection[str] = ()
        """Brokers that have not given up an earlier replica yet."""
        self.is_new = False
        """Nobody has ever led it, beyond doubt."""
        self.entry, self.brokers, self.wanted, self.settings = entry, brokers, wanted, settings
        self.replicas, self.leaving = list(entry.replicas), list(entry.leaving)
        self.actions: list[ReplicaAction] = []
        self.problem = ""

    def act(self, step: ReplicaStep, broker: str, why: str) -> None:
        self.actions.append(ReplicaAction(self.entry.name, step, broker, why))

    def is_away(self, name: str) -> bool:
        """For too long, or for ever."""
        broker = self.brokers.get(name)
        if broker is None:
            return True
        patience_s = self.settings.recovery_interval_s if self.entry.record.generation else 0.0
        return not broker.up and broker.away_s >= patience_s

    def is_draining(self, name: str) -> bool:
        broker = self.brokers.get(name)
        return broker is None or broker.draining

    def counted(self) -> list[str]:
        here = [name for name in self.replicas if name not in self.leaving]
        lost = [name for name in here if self.is_away(name) or self.is_draining(name) or name in self.failed]
        whole = [name for name in here if name not in lost]
        first = one_a_machine(sorted(whole, key=self._standing), self.brokers)
        return [name for name in whole if name in first]

    def _standing(self, name: str) -> tuple[bool, bool, bool]:
        """Of two on one machine the one with the lower stays."""
        record, is_group = self.entry.record, self.entry.is_group
        return is_group or name != record.primary, name != self.entry.preferred, name not in record.members

    def make_up(self, placement: Placement, size_bytes: int) -> None:
        """Have enough that count."""
        while len(self.counted()) < self.wanted:
            whole = [name for name in self.leaving if name in self.brokers and name not in self.failed]
            hosts = {self.brokers[name].host for name in self.counted()}
            open_ones = [name for name in whole if self.brokers[name].is_open]
            back = next((name for name in open_ones if self.brokers[name].host not in hosts), None)
            if back is not None:
                self.leaving.remove(back)
                self.act(ReplicaStep.KEEP, back, "it is needed again")
            elif not self._add(placement, size_bytes):
                return

    def _add(self, placement: Placement, size_bytes: int) -> bool:
        counted = self.counted()
        primary = first_replica(self.entry, counted)
        outside = {
            name: broker for name, broker in self.brokers.items() if name in counted or name not in self.replicas
        }
        ranking = rank(placement, PlacementSet(self.entry.name, tuple(counted), primary, size_bytes), outside)
        self.problem = self.problem or ranking.problem
        shortage = f"{len(counted)} of {self.wanted} replicas count"
        if not ranking.ranked:
            self.act(ReplicaStep.LACK, "", f"{shortage}, and no other broker is open")
            return False
        most = self.settings.additions
        beginning = [each for each in ranking.ranked if not self._hindrance(each.broker)]
        if not beginning:
            why = "; ".join(f"{each.broker} {self._hindrance(each.broker)}" for each in ranking.ranked)
            self.act(ReplicaStep.WAIT, "", f"{shortage}, and nobody can begin with another one now: {why}")
            return False
        chosen = next((each for each in beginning if self.brokers[each.broker].catching_up < most), None)
        if chosen is None:
            self.act(ReplicaStep.WAIT, "", f"{shortage}, and each open broker catches up with {most} already")
            return False
        self.replicas.append(chosen.broker)
        self.act(ReplicaStep.ADD, chosen.broker, f"{shortage}; {chosen.why}")
        return True

    def _hindrance(self, name: str) -> str:
        """Why it cannot begin with a replica now; it may be able to in a moment. Empty: it can."""
        if self.brokers[name].stopping:
            return "is about to stop"
        return "has not given up an earlier one yet" if name in self.parting else ""

    def send_away(self) -> None:
        """Have those leave that are made up for, or shall not be there."""
        counted = {self.brokers[name].host: name for name in self.counted()}
        for name in self.replicas:
            if name in self.leaving:
                continue
            if self.is_draining(name):
                known = "it is drained" if name in self.brokers else "it is of the cluster no more"
                self._leave(name, known)
            elif self.holds_up(name) and counted:
                why = f"it has failed ({self.failed[name]})" if name in self.failed else "it is away"
                self._leave(name, f"{why}, and nobody has led the set yet")
            elif name in self.failed:
                if self.is_led and len(self.in_sync_without(name)) >= self.wanted:
                    self._leave(name, f"it has failed ({self.failed[name]}), and is made up for")
            elif self.is_away(name) and self.is_led and len(self.in_sync_without(name)) >= self.wanted:
                self._leave(name, f"it has been away for {self.brokers[name].away_s:.0f} s, and is made up for")
            elif (there := counted.get(self.brokers[name].host, name)) != name and not self.is_away(name):
                self._leave(name, f"{there} has one, and is on the same machine")

    def holds_up(self, name: str) -> bool:
        """Whether a set is not led for the first time because of that replica. A group begins without it."""
        return self.is_new and not self.entry.is_group and (name in self.failed or self.is_away(name))

    def in_sync_without(self, name: str) -> list[str]:
        """The rest of the in-sync set: who is up and stays."""
        staying = [each for each in self.entry.record.members if each in self.replicas and each not in self.leaving]
        here = [each for each in staying if each not in self.failed]
        return [each for each in here if each != name and each in self.brokers and self.brokers[each].up]

    def _leave(self, name: str, why: str) -> None:
        self.leaving.append(name)
        self.act(ReplicaStep.LEAVE, name, why)

    def trim(self) -> None:
        """What is beyond the wanted number, worst first."""
        extras = extra_replicas(self.entry, self.brokers, self.counted(), self.wanted)
        for name in extras:
            if self.settings.auto_trim:
                self._leave(name, f"{self.wanted} are wanted, and ha.auto-trim is on")
            else:
                self.act(ReplicaStep.EXTRA, name, f"{self.wanted} are wanted")

    def remove(self) -> None:
        """Those that leave, once the rest is enough."""
        record = self.entry.record
        open_machines = {broker.host for broker in self.brokers.values() if not broker.draining}
        enough = max(1, min(self.wanted, len(open_machines)))
        for name in list(self.leaving):
            rest = self.in_sync_without(name)
            if self.is_new and len(self.replicas) > 1:
                why = "nobody has led the set yet"
            elif self.is_led and (self.entry.is_group or name != record.primary) and len(rest) >= enough:
                why = f"in sync without it are {', '.join(rest)}"
            else:
                continue
            self.replicas.remove(name)
            self.leaving.remove(name)
            self.act(ReplicaStep.REMOVE, name, why)


def first_replica(entry: SetEntry, placed: Sequence[str]) -> str:
    """Where the placement begins: the replica that leads, or should; of a group, of which none does, the first that is
    placed, so that nothing is to be moved because another one wrote the record. Empty: there is none yet."""
    primary = "" if entry.is_group else entry.preferred or entry.record.primary
    return primary or (placed[0] if placed else "")


def extra_replicas(
    entry: SetEntry, brokers: Mapping[str, PlacementBroker], counted: list[str], wanted: int
) -> tuple[str, ...]:
    """Of those that count, the ones beyond the wanted number, worst first.

    Neither who leads nor who should, unless it is a group; first who is not in sync, then who shares its zone with
    most, then who has most replicas.
    """
    record = entry.record
    staying, extras = list(counted), []
    while len(staying) > wanted:
        zones = [brokers[name].zone for name in staying]

        def badness(name: str, zones: list[str] = zones) -> tuple[object, ...]:
            broker = brokers[name]
            return name not in record.members, zones.count(broker.zone), broker.replicas, name

        may_go = [name for name in staying if entry.is_group or name not in (record.primary, entry.preferred)]
        if not may_go:
            break
        worst = max(may_go, key=badness)
        staying.remove(worst)
        extras.append(worst)
    return tuple(extras)


def check(
    entry: SetEntry,
    brokers: Mapping[str, PlacementBroker],
    wanted: int,
    settings: ControllerSettings,
    placement: Placement,
    size_bytes: int = 0,
    is_led: bool = True,
    failed: Mapping[str, str] | None = None,
    parting: Collection[str] = (),
    is_new: bool = False,
) -> ReplicaDecision:
    """What the table above comes to for one set.

    `failed`: who cannot have its replica, and why; `parting`: who has not given up an earlier one yet; `is_new`: nobody
    has ever led it, and no record of that can be lost.
    """
    going = _Check(entry, brokers, wanted, settings)
    going.is_led, going.failed, going.parting, going.is_new = is_led, failed or {}, parting, is_new
    going.make_up(placement, size_bytes)
    going.send_away()
    going.trim()
    going.remove()
    return ReplicaDecision(
        tuple(going.replicas), tuple(going.leaving), tuple(going.actions), tuple(going.counted()), going.problem
    )
