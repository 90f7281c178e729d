"""The watcher: one small process per broker, which tells Pacemaker at once when the broker dies or hangs.

Without it a death is found by the next monitor, many seconds later. It reports one death once, and none that was asked
for: a stop says so in the memory file first. It does nothing but report; Pacemaker decides.

A failed primary is reported in two steps. Pacemaker recovers a failed member of a clone before it promotes another one:
demote, stop, start, and only then promote. So first the promotion score says that this node is out of the question,
which makes Pacemaker promote another one at once. What it demotes it monitors anew, and so finds that it has to be
recovered; only where it does not, the failure is reported a while later.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from qpid_ha_agent.broker_process import BrokerProcess, BrokerProcessError, find_pid
from qpid_ha_agent.control import ControlClient, ControlFailure, TimedOut
from qpid_ha_agent.ocf.memory import MemoryFile, state_directory
from qpid_ha_agent.pacemaker.attributes import ClusterUnreachable
from qpid_ha_agent.pacemaker.companions import watch_of
from qpid_ha_agent.pacemaker.scores import FALL_AFTER_S
from qpid_ha_agent.sight import Life, Sight, who_answers

log = logging.getLogger("watch")

LOOK_EVERY_S = 0.5
DYING_S = 3.0
"""A process that is being killed loses its sockets first, and on a busy machine it is there for a while longer."""
LASTS_AFTER_S = FALL_AFTER_S + LOOK_EVERY_S
"""A state that lasts for so long is no stage of a failover."""
TELL_ATTEMPTS = 5
TELL_AGAIN_AFTER_S = 0.3
FAILOVER_FIRST_S = 10.0
"""By then the monitor that follows a demotion has found the dead broker, unless none is configured for that role."""


class Watch:
    """One broker process. `changed` hears of each new status, `lasts` once of each state that goes on.

    After a loss of all power a broker must not lead before all of the last in-sync set can be asked. One that comes
    first refuses, and its score rises again a while later only, perhaps long after the one that was missing has come.
    So while a promotion is refused and nobody is primary, `try_again` is called when somebody answers who did not then:
    `refused_among` are those who did; None when no refusal stands. It outlives the broker, because Pacemaker restarts
    who refuses: two who do would be news to each other for ever.
    """

    def __init__(
        self,
        process: BrokerProcess,
        control_socket: Path,
        hang_timeout_s: float,
        is_end_wanted: Callable[[], bool],
        changed: Callable[[Sight], None],
        refused_among: Callable[[], Collection[str] | None] = lambda: None,
        try_again: Callable[[Sight], None] = lambda _sight: None,
        lasts: Callable[[Sight], None] = lambda _sight: None,
    ) -> None:
        self._process = process
        self._client = ControlClient(control_socket, hang_timeout_s)
        self._news = ControlClient(control_socket, hang_timeout_s)
        """On which the broker tells of changes of its state: those are looked at at once."""
        self._hang_timeout_s = hang_timeout_s
        self._is_end_wanted = is_end_wanted
        self._changed = changed
        self._last = Sight(Life.SILENT, "it was not asked yet")
        self._refused_among = refused_among
        self._try_again = try_again
        self._lasts = lasts
        self._lasts_at_s: float | None = None
        """When the state of the last answer has gone on for long enough; None: that was told."""

    def run(self) -> str:
        """Until the process is dead or silent: what happened to it, empty when its end was wanted."""
        is_dead = False
        while not is_dead:  # it looks before it waits: what dies soon after may have been the primary
            try:
                self._look()
            except TimedOut:
                problem, grace_s = f"no answer for {self._hang_timeout_s:g} s", 0.0
            except ControlFailure as failure:
                problem, grace_s = str(failure), DYING_S
            else:
                problem, grace_s = "", 0.0
            if problem and not self._process.wait(grace_s) and not (grace_s and self._answers()):
                return "" if self._is_end_wanted() else problem
            is_dead = self._wait()
        return "" if self._is_end_wanted() else f"its process {self._process.pid} {self._process.end_text()}"

    def _wait(self) -> bool:
        """Until the broker says that it has changed, or the next look is due: whether its process is dead."""
        if self._news.fileno() < 0:
            with suppress(ControlFailure):  # the next look tells more
                self._news.call("events")
        poll = select.poll()
        for descriptor in (self._process.pidfd, self._news.fileno()):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _event in poll.poll(LOOK_EVERY_S * 1000)}
        if self._news.fileno() in ready:
            self._news.skip()
        return self._process.pidfd in ready

    def _answers(self) -> bool:
        """It may have lost its socket for a moment, and nothing else."""
        try:
            self._client.call("status")
        except ControlFailure:
            return False
        return True

    @property
    def was_primary(self) -> bool:
        """By its last answer."""
        return self._last.is_primary

    def _look(self) -> None:
        """Ask it, and tell what is new. Raises ControlFailure, TimedOut if it was silent for too long."""
        status = self._ask()
        if isinstance(status, dict) and _without_clock(status) != _without_clock(self._last.status):
            before, self._last = self._last, Sight(Life.ANSWERS, "the broker answered", status)
            if before.state is not self._last.state:
                self._lasts_at_s = time.monotonic() + LASTS_AFTER_S
            self._changed(self._last)
        if self._lasts_at_s is not None and time.monotonic() >= self._lasts_at_s:
            self._lasts_at_s = None
            self._lasts(self._last)
        self._look_for_others()

    def _ask(self) -> object:
        """Its status. One that has just closed our connection is asked again on a new one."""
        try:
            return self._client.call("status")
        except TimedOut:
            raise
        except ControlFailure:
            return self._client.call("status")

    def _look_for_others(self) -> None:
        among = self._refused_among() if not self._last.text("primary") else None
        if among is not None and who_answers(self._client).difference(among):
            self._try_again(self._last)


def _without_clock(status: Mapping[str, object]) -> Mapping[str, object]:
    """That a disk has been full for a while longer is no news: a backup's may be for days."""
    return {name: value for name, value in status.items() if name != "unwritable_s"}


def main(arguments: list[str]) -> int:
    """Watch the broker that listens now, with the parameters in the environment."""
    from qpid_ha_agent.ocf.agent import OcfAgent
    from qpid_ha_agent.ocf.parameters import read_parameters

    resource, control_socket, hang_timeout_s = arguments[0], Path(arguments[1]), float(arguments[2])
    memory = MemoryFile(resource, state_directory())
    lock = watch_of(memory).be_it()
    if lock is None:
        return 0
    agent = OcfAgent(read_parameters())
    agent.open_log()
    try:
        process = BrokerProcess.find(control_socket)
    except BrokerProcessError as error:
        log.error("%s", error)
        return 1
    if process is None:
        return 0
    stops = memory.read().stops
    watch = Watch(
        process, control_socket, hang_timeout_s, lambda: memory.read().stops != stops,
        agent.status_changed, lambda: memory.read().standing_refusal, agent.try_again, agent.status_lasts,
    )  # fmt: skip
    problem = watch.run()
    os.close(lock)  # whoever recovers the broker starts another watcher
    if problem:
        _insist(lambda: agent.note_failure(problem))
        log.error("the broker failed: %s", problem)
        if process.is_alive():
            _insist(agent.note_hang)
        if watch.was_primary:
            _insist(agent.rule_out)
            time.sleep(FAILOVER_FIRST_S)
        _insist(
            agent.report_failure, lambda: memory.read().stops == stops and not _has_successor(process, control_socket)
        )
    return 0


def _has_successor(process: BrokerProcess, control_socket: Path) -> bool:
    """Whether another broker runs in its place: after a clean-up by hand Pacemaker starts one without a stop before."""
    return find_pid(control_socket) not in (0, process.pid)


def _insist(tell: Callable[[], None], is_news: Callable[[], bool] = lambda: True) -> None:
    """Until it is told, or is no news any more: a tool that gave no answer may have told it all the same."""
    for _attempt in range(TELL_ATTEMPTS):
        if not is_news():
            return
        try:
            tell()
        except (ClusterUnreachable, OSError) as problem:
            log.warning("Pacemaker was not told: %s", problem)
            time.sleep(TELL_AGAIN_AFTER_S)
        else:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
