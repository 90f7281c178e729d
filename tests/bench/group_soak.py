"""`./dev soak --group`: a group on three machines with Corosync and Pacemaker, its clients, and all that befalls it.

The machines are those of the lab, and the faults its table (`lab.group.FAULTS`), here drawn by a seed, of any length,
and over one another. Each member has a publisher and a consumer, all of one queue, and one set of books for all of it:
nothing that was confirmed is lost; what was accepted or rejected, and confirmed, comes never again; nothing is with two
consumers at once, but for what one has of a member that was disturbed just then; a copy has a mark; and what comes
without one is in the order of its publisher.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from bench.soak_report import read_logs, show_kinds, show_steps, write_steps
from bench.steps import DrawnSteps, Kind, Skipped, Step
from lab.cluster import NotInTime
from lab.group import FAULTS, Disturbance, Fault, Group, GroupLoad
from lab.load import LoadProblem
from lab.machines import MachineError
from lab.netns.namespace_lab import what_is_missing
from lab.plan import Plan
from lab.stage import RESOURCES
from lab.stage import Stage as LabStage
from qpid_ha_demo.stage import Stage

RATE: Final = 30
"""Messages a second of each publisher."""
LASTS_S: Final = (0.3, 12.0)
"""Shorter, and longer, than a token's time-out and `ha.backup-timeout`."""
WEIGHTS: Final[Mapping[str, int]] = {
    "kill-broker": 4,
    "kill-all-brokers": 1,
    "kill-corosync": 3,
    "power-off": 2,
    "cut-off": 4,
    "no-majority": 1,
    "one-way": 3,
    "stop-broker": 3,
    "stop-corosync": 3,
    "restart-all-corosyncs": 1,
}
OF_ALL: Final = frozenset({"kill-all-brokers", "no-majority", "restart-all-corosyncs"})
OF_THE_NETWORK: Final = frozenset({"cut-off", "no-majority", "one-way"})
"""They are mended all at once."""
STUCK_S: Final = 60.0
"""After the last fault every publisher is served again."""
SETTLES_S: Final = 180.0


class GroupTrouble(DrawnSteps):
    """Makes trouble, and a list of it; one fault of a member at a time."""

    pauses_s = (2.0, 15.0)
    refusals: ClassVar[tuple[type[Exception], ...]] = (MachineError, NotInTime)

    def __init__(self, group: Group, load: GroupLoad, seed: int) -> None:
        self._group, self._load = group, load
        self._befallen: dict[str, str] = {}
        """Which fault a member has now."""
        self.disturbed: list[Disturbance] = []
        super().__init__(seed, len(group.members), 1)

    def kinds(self) -> Mapping[str, Kind]:
        """The lab's faults, and a consumer that loses its connection."""
        befall = {name: (self._befall, weight) for name, weight in WEIGHTS.items()}
        return {**befall, "disconnect": (self._disconnect, 3)}

    def end(self) -> None:
        """All is mended, and all are in sync. Raises NotInTime, LoadProblem."""
        self.rest_until_nothing_is_due()
        self._group.wait_whole()
        self._load.wait_at(self._group.members, timeout_s=STUCK_S)

    @property
    def last_disturbed_s(self) -> float:
        """When the last fault was over."""
        return max([self._began_s, *(each.until_s for each in self.disturbed)])

    def _befall(self, step: Step) -> None:
        name, fault = step.kind, FAULTS[step.kind]
        victim = self._victim(step)
        for_s = LASTS_S[0] + step.share * (LASTS_S[1] - LASTS_S[0])
        concerned = self._group.members if name in OF_ALL else (victim,)
        began_s = time.monotonic()
        self._befallen.update(dict.fromkeys(concerned, name))
        self._later(for_s, partial(self._mend, name, fault, victim, concerned, began_s))
        fault.begin(self._group, victim)
        self._note(name, f"{', '.join(concerned)} for {for_s:.1f} s", "")

    def _victim(self, step: Step) -> str:
        """Raises Skipped when it would meet a fault that does not go together with this one."""
        if step.kind in OF_ALL and self._befallen:
            raise Skipped("somebody has a fault already")
        if step.kind in OF_THE_NETWORK and OF_THE_NETWORK & set(self._befallen.values()):
            raise Skipped("the network is cut already")
        free = [member for number in step.brokers if (member := self._group.members[number]) not in self._befallen]
        if not free:
            raise Skipped("all have a fault already")
        return free[0]

    def _mend(self, name: str, fault: Fault, victim: str, concerned: Sequence[str], began_s: float) -> None:
        try:
            fault.mend(self._group, victim)
        except self.refusals as error:
            self._note(f"{name}, the mending", victim, str(error).partition("\n")[0])
        ended_s = time.monotonic()
        for member in concerned:
            self._befallen.pop(member, None)
            self.disturbed.append(Disturbance(member, began_s, ended_s))

    def _disconnect(self, step: Step) -> None:
        member = self._group.members[step.brokers[0]]
        self._load.break_consumer(member)
        self._note(step.kind, member, "")


class GroupSoak:
    """One run, and what it showed."""

    def __init__(self, stage: Stage, directory: Path, seed: int) -> None:
        self._stage, self._directory, self._seed = stage, directory, seed
        self._findings: list[str] = []

    def run(self, minutes: float) -> bool:
        """Make trouble for so long; whether all promises were kept."""
        if problem := what_is_missing():
            self._stage.announce(problem)
            return False
        lab = LabStage.set_up(Plan())
        try:
            group = Group(lab.ready(*RESOURCES))
            group.make()
            self._stage.step("three machines, and a resource set that each of them writes")
            with GroupLoad(group, rate=RATE) as load:
                load.wait_at(group.members)
                self._trouble(group, load, 60 * minutes)
            self._look_at_logs(group)
        finally:
            lab.close()
        for text in self._findings:
            self._stage.console.print(f"   {text}", style="bold red", markup=False, highlight=False)
        return not self._findings

    def _trouble(self, group: Group, load: GroupLoad, for_s: float) -> None:
        trouble = GroupTrouble(group, load, self._seed)
        began_s = time.monotonic()
        try:
            while time.monotonic() < began_s + for_s:
                step = trouble.draw()
                trouble.make(step)
                trouble.rest(step.pause_s)
            trouble.end()
        except (NotInTime, LoadProblem) as error:
            self._findings.append(str(error))
        finally:
            write_steps(trouble, self._directory)
        show_steps(self._stage.console, trouble, self._seed)
        outages_s = load.outages(began_s)
        worst = ", ".join(f"{member} {outage_s:.1f} s" for member, outage_s in outages_s.items())
        self._stage.step("the longest time without a confirmation, faults of its own member included", worst)
        account = load.close_books(trouble.disturbed, SETTLES_S)
        self._stage.step(str(account))
        self._findings += account.complaints()

    def _look_at_logs(self, group: Group) -> None:
        logs = {member: group.lab.log(member, f"/var/log/qpid-ha/{member}.log") for member in group.members}
        for member, text in logs.items():
            (self._directory / f"{member}.log").write_text(text, encoding="utf-8")
        lines = read_logs(logs.values())
        show_kinds(self._stage.console, "Warnings in the logs", lines.warnings)
        show_kinds(self._stage.console, "Errors in the logs", lines.errors)
        if lines.tracebacks:
            self._findings.append(f"there are {lines.tracebacks} tracebacks in the logs")
