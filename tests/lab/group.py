"""A group on the lab's cluster, its clients, and what befalls it: the table `FAULTS`, for tests and for the soak.

Nobody is fenced meanwhile: a node that is off can break no promise, and what the group does by itself is looked at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import permutations
from typing import Any, Final, NamedTuple

from lab.cluster import Cluster
from lab.load import Load, LoadProblem
from lab.machines import Lab, MachineError
from lab.plan import AMQP_PORT

SET: Final = "orders"
WHOLE_LIMIT_S: Final = 120.0
DRAIN_LIMIT_S: Final = 60.0
EXCUSED_S: Final = 5.0
"""So long after its fault is over a member may not have heard yet that the others went on without it."""
_GLANCE_S: Final = 0.2
_PACEMAKER: Final = (
    "export PCMK_logfacility=none PCMK_logfile=/var/log/pacemaker/pacemaker.log PCMK_fail_fast=no\n"
    "setsid pacemakerd </dev/null >>/var/log/console.log 2>&1 &\n"
)


class Disturbance(NamedTuple):
    """A member may not know what the others do; by the monotonic clock of this host."""

    member: str
    from_s: float
    until_s: float


class Group:
    """The resource set `SET` of a cluster, which every member serves."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.members = cluster.lab.plan.members

    @property
    def lab(self) -> Lab:
        """Its machines."""
        return self.cluster.lab

    def make(self) -> None:
        """Unless it is there. From now on nobody is fenced."""
        self.cluster.set_property("stonith-enabled", "false")
        if not self.row():
            self.cluster.wait(
                lambda: self._ask_leader("sets", action="create", name=SET, strategy="group"), "it is made"
            )
        self.wait_whole()

    def make_queue(self, name: str) -> None:
        """Of the group."""
        arguments = {"qpid.resource-set": SET}
        self.cluster.wait(
            lambda: self._ask_leader("queues", action="create", name=name, arguments=arguments), "it is made"
        )

    def urls(self) -> list[str]:
        """Of the members, in order."""
        return [self.url(member) for member in self.members]

    def url(self, member: str) -> str:
        """Where its clients connect."""
        return f"amqp://{self.lab.plan.address(member)}:{AMQP_PORT}"

    # --- what it says

    def row(self) -> Mapping[str, Any]:
        """As whoever leads `default` tells it; empty when nobody does."""
        for member in self.lab.members_on():
            with suppress(MachineError):
                if self.cluster.state(member) == "primary":
                    rows = self.cluster.ask(member, "sets", action="list")
                    return next((dict(row) for row in rows if row["name"] == SET), {})
        return {}

    def is_whole(self) -> bool:
        """All members are in sync, and nobody complains."""
        row = self.row()
        return bool(row) and len(row["in_sync"]) == len(self.members) and not row["problem"]

    def wait_whole(self) -> float:
        """The seconds that it took. Raises NotInTime."""
        return self.cluster.wait(self.is_whole, "the group has all its members", WHOLE_LIMIT_S, glance_s=_GLANCE_S)

    def depths(self, queue: str) -> dict[str, int]:
        """How many messages each member has of it."""
        return {member: self.cluster.queue_depths(member).get(queue, -1) for member in self.members}

    def _ask_leader(self, method: str, **params: Any) -> bool:
        leaders = [member for member in self.lab.members_on() if self.cluster.state(member) == "primary"]
        if not leaders:
            return False
        self.cluster.ask(leaders[0], method, **params)
        return True

    def leader(self) -> str:
        """Who leads `default`; empty: nobody."""
        return next((member for member in self.lab.members_on() if self.cluster.state(member) == "primary"), "")

    def diagnosis(self) -> str:
        """What a person would ask for."""
        return f"the group: {json.dumps(dict(self.row()))}\n{self.cluster.diagnosis()}"


class GroupAccount(NamedTuple):
    """What became of everything at all members together."""

    audits: Mapping[str, Mapping[str, Any]]
    """By producer, as `delivery_ledger.DeliveryAudit` says it."""
    unexcused: Sequence[Mapping[str, Any]]
    """Of what was out twice, what no disturbance explains."""
    left: Mapping[str, int]
    """Messages that nobody was given, by member."""

    def sum(self, name: str) -> int:
        """Of a fact of all producers."""
        values = [audit[name] for audit in self.audits.values()]
        return sum(len(value) if isinstance(value, list) else int(value) for value in values)

    def complaints(self) -> list[str]:
        """Broken promises, a sentence each."""
        broken = {
            "lost": "confirmed, and no consumer ever answered for it",
            "duplicates_unmarked": "delivered again without a mark",
            "out_of_order": "delivered out of order",
            "accepted_again": "accepted, and confirmed, twice",
            "rejected_again": "rejected, and confirmed, twice",
            "released_lost": "released, and no consumer ever answered for it",
            "broken_lost": "left behind by a consumer, and none ever answered for it",
        }
        told = [
            f"{producer}: {meaning}: {audit[name]}"
            for name, meaning in broken.items()
            for producer, audit in self.audits.items()
            if audit[name]
        ]
        told += [
            f"{producer}: late: {late}" for producer, audit in self.audits.items() for late in audit.get("late", ())
        ]
        if self.unexcused:
            told.append(f"out at two members at once, or again after it was gone: {self.unexcused}")
        if any(self.left.values()):
            told.append(f"nobody is given what is left: {self.left}")
        return told

    def __str__(self) -> str:
        names = ("sent", "confirmed", "received", "accepted", "rejected", "returned", "broken", "lost",
                 "duplicates_marked", "duplicates_sent_again", "duplicates_unmarked", "out_of_order", "accepted_again",
                 "rejected_again", "released_lost", "broken_lost", "out_twice")  # fmt: skip
        sums = ", ".join(f"{name.replace('_', ' ')} {self.sum(name):,}" for name in names)
        return f"{sums}; out twice without an excuse {len(self.unexcused)}; left {sum(self.left.values())}"


class GroupLoad(Load):
    """A publisher and a consumer at each member, all of one queue of the group."""

    def __init__(self, group: Group, queue: str = "", *, rate: int = 50) -> None:
        super().__init__(group.lab, queue, url=",".join(group.urls()), rate=rate)
        self._group = group
        self._command.append("--group")
        group.make_queue(self.queue)

    def confirmed_at(self) -> dict[str, int]:
        """How many messages each member's publisher got confirmed."""
        return dict(zip(self._group.members, self.ask("report")["confirmed_at"], strict=True))

    def wait_at(self, members: Sequence[str], count: int = 10, timeout_s: float = 90.0) -> float:
        """Until each publisher there has so many more confirmed; the seconds that took. Raises LoadProblem."""
        before = self.confirmed_at()

        def have_more() -> bool:
            now = self.confirmed_at()
            return all(now[member] >= before[member] + count for member in members)

        return self._wait(have_more, f"publishers at {', '.join(members)} are served", timeout_s)

    def outages(self, since_s: float) -> dict[str, float]:
        """Of each member's publisher, the longest stretch without a confirmation since then."""
        found = self.ask("gaps", since_s=since_s + self._offset_s, longer_than_s=0.1)["gaps_at"]
        longest = [max((ended_s - began_s for began_s, ended_s in gaps), default=0.0) for gaps in found]
        return dict(zip(self._group.members, longest, strict=True))

    def break_consumer(self, member: str) -> None:
        """The one that belongs to this member loses its connection."""
        self.ask("break", number=self._group.members.index(member))

    def close_books(self, disturbed: Sequence[Disturbance], timeout_s: float = DRAIN_LIMIT_S) -> GroupAccount:
        """Publish no more, let all be answered for, and draw up the account."""
        self.pause()

        def is_over() -> bool:
            report = self.ask("report")
            over = report["is_settled"] and report["missing"] == 0 and report["holds"] == 0
            return over and not any(self._group.depths(self.queue).values())

        with suppress(LoadProblem):  # what is not there then, the account says
            self._wait(is_over, "all was answered for", timeout_s)
        audits = self.ask("audit")["audit"]
        left = self._group.depths(self.queue)
        self._end()
        twice = [
            {"producer": producer, **_named(each)} for producer in audits for each in audits[producer]["out_twice"]
        ]
        return GroupAccount(audits, [each for each in twice if not self._is_excused(each, disturbed)], left)

    def _is_excused(self, twice: Mapping[str, Any], disturbed: Sequence[Disturbance]) -> bool:
        """Whether the member that should not have had it may not have known better: it was disturbed, or the other one
        was, and had it recorded that it goes on alone before that was noticed."""
        concerned = [
            member for member in self._group.members if self._group.url(member) in (twice["at"], twice["other"])
        ]
        return any(is_excused(member, twice["when_s"] - self._offset_s, disturbed) for member in concerned)


def is_excused(member: str, when_s: float, disturbed: Sequence[Disturbance]) -> bool:
    """Whether that member may not have known then what the others did."""
    return any(each.member == member and each.from_s <= when_s <= each.until_s + EXCUSED_S for each in disturbed)


def _named(out_twice: Sequence[Any]) -> dict[str, Any]:
    """A tuple is a list where it has gone through JSON."""
    return dict(zip(("number", "at", "other", "when_s"), out_twice, strict=True))


# --- faults


class Fault(NamedTuple):
    """Something that befalls a member, or all."""

    begin: Callable[[Group, str], Sequence[str]]
    """Do it to that one; which members are disturbed."""
    mend: Callable[[Group, str], None]
    for_s: float
    """How long it lasts, where a test does not wait for more."""
    serve: bool = True
    """Whether the others serve meanwhile."""


def _nothing(_: Group, __: str) -> None:
    """It mends itself."""


def kill_broker(group: Group, victim: str) -> Sequence[str]:
    """SIGKILL: Pacemaker starts it again."""
    group.cluster.kill_broker(victim)
    return (victim,)


def kill_corosync(group: Group, victim: str) -> Sequence[str]:
    """SIGKILL. Most of Pacemaker's processes end with it; the broker does not."""
    group.lab.run(victim, "pkill", "-KILL", "-x", "corosync")
    return (victim,)


def start_corosync(group: Group, victim: str) -> None:
    """And Pacemaker, if it has not waited for it, as systemd would."""
    lab = group.lab
    lab.shell(victim, "corosync </dev/null >>/var/log/console.log 2>&1")
    group.cluster.wait(
        lambda: lab.run(victim, "corosync-cfgtool", "-s", check=False).returncode == 0, f"{victim}'s Corosync answers"
    )
    if not _runs(lab, victim, "pacemakerd"):
        lab.shell(victim, _PACEMAKER)


def _runs(lab: Lab, machine: str, *names: str) -> bool:
    return any(process.name in names and process.state != "Z" for process in lab.processes(machine))


def power_off(group: Group, victim: str) -> Sequence[str]:
    """Pull the plug."""
    group.lab.power_off(victim)
    return (victim,)


def power_on(group: Group, victim: str) -> None:
    """It boots."""
    group.lab.power_on(victim)


def cut_off(group: Group, victim: str) -> Sequence[str]:
    """From the other members, both ways; clients reach it."""
    for other in group.members:
        if other != victim:
            group.lab.cut(victim, other)
            group.lab.cut(other, victim)
    return (victim,)


def shatter(group: Group, _: str) -> Sequence[str]:
    """No member hears of any other."""
    for one, other in permutations(group.members, 2):
        group.lab.cut(one, other)
    return group.members


def mute(group: Group, victim: str) -> Sequence[str]:
    """No other member hears it any more, and it hears them."""
    for other in group.members:
        if other != victim:
            group.lab.cut(victim, other)
    return (victim,)


def heal(group: Group, _: str) -> None:
    """One network again."""
    group.lab.heal()


def freeze_broker(group: Group, victim: str) -> Sequence[str]:
    """SIGSTOP."""
    group.cluster.freeze_broker(victim)
    return (victim,)


def thaw_broker(group: Group, victim: str) -> None:
    """SIGCONT, if Pacemaker has not killed it meanwhile."""
    with suppress(MachineError):
        group.cluster.thaw_broker(victim)


def freeze_corosync(group: Group, victim: str) -> Sequence[str]:
    """SIGSTOP for longer than its token: the others form a membership without it."""
    group.lab.run(victim, "pkill", "-STOP", "-x", "corosync")
    return (victim,)


def thaw_corosync(group: Group, victim: str) -> None:
    """SIGCONT."""
    group.lab.run(victim, "pkill", "-CONT", "-x", "corosync")


def kill_all_corosyncs(group: Group, _: str) -> Sequence[str]:
    """At once."""
    for member in group.members:
        kill_corosync(group, member)
    return group.members


def start_all_corosyncs(group: Group, _: str) -> None:
    """One after the other."""
    for member in group.members:
        start_corosync(group, member)


def kill_all_brokers(group: Group, _: str) -> Sequence[str]:
    """At once."""
    for member in group.members:
        with suppress(MachineError):
            group.cluster.kill_broker(member)
    return group.members


FAULTS: Final[Mapping[str, Fault]] = {
    "kill-broker": Fault(kill_broker, _nothing, 1.0),
    "kill-all-brokers": Fault(kill_all_brokers, _nothing, 1.0, serve=False),
    "kill-corosync": Fault(kill_corosync, start_corosync, 6.0),
    "power-off": Fault(power_off, power_on, 6.0),
    "cut-off": Fault(cut_off, heal, 8.0),
    "no-majority": Fault(shatter, heal, 8.0, serve=False),
    "one-way": Fault(mute, heal, 8.0),
    "stop-broker": Fault(freeze_broker, thaw_broker, 8.0),
    "stop-corosync": Fault(freeze_corosync, thaw_corosync, 8.0),
    "restart-all-corosyncs": Fault(kill_all_corosyncs, start_all_corosyncs, 2.0, serve=False),
}


class Befallen(NamedTuple):
    """What a fault led to."""

    account: GroupAccount
    outages_s: Mapping[str, float]
    """Of each member's publisher."""
    whole_s: float
    """From the mending until all members are in sync."""


def befall(group: Group, name: str, victim: str, *, calm: int = 30) -> Befallen:
    """The whole story of one fault under load. Raises NotInTime, LoadProblem."""
    fault = FAULTS[name]
    others = [member for member in group.members if member != victim]
    with GroupLoad(group) as load:
        load.wait_at(group.members, calm)
        load.break_consumer(others[0])
        load.wait_at(group.members, calm)
        began_s = time.monotonic()
        disturbed = fault.begin(group, victim)
        if fault.serve:
            load.wait_at(others, calm)
        while time.monotonic() < began_s + fault.for_s:
            time.sleep(_GLANCE_S)
        fault.mend(group, victim)
        whole_s = group.wait_whole()
        load.wait_at(group.members, calm)
        ended_s = time.monotonic()
        outages_s = load.outages(began_s)
        account = load.close_books([Disturbance(member, began_s, ended_s) for member in disturbed])
    return Befallen(account, outages_s, whole_s)
