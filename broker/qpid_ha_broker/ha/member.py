"""A broker's part in its cluster: the core that a driver and a simulation run, `handle(input, now_s) -> effects`.

At any time it has one role, and can say which, since when and why. In doubt about who leads it does not.

A standalone broker, whose settings name no other one, is a cluster of one. Its in-sync set is itself, so there is
nobody to ask, to wait for or to hand over to: it leads from `Started` on, in the state STANDALONE, and what it writes
is confirmed by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.backup_link import BackupLink, BackupProgress
from qpid_ha_broker.ha.commit_wait import CommitStall, why_uncommitted
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.primary import WITNESS, Primary
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.roles import MemberParts, Role
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import LEADING, Cause, State
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.sets.resource_set import ResourceSet

STALLED_S: Final = 1.0
"""Nothing was committed for so long: before that it is on its way, as always."""


class Member:
    """The promise: nothing is confirmed that a broker which may be promoted lacks; one primary per generation."""

    def __init__(
        self,
        settings: MemberSettings,
        resource_set: ResourceSet,
        random: Callable[[], float],
        wall_ms: Callable[[], int],
        restored: Restored | None = None,
        steady_ms: Callable[[], int] | None = None,
    ) -> None:
        """`wall_ms`: the time of day, for time stamps only. `steady_ms`: of a clock that nobody can set, see
        `model.message_clock`; None: nobody sets that of `wall_ms`, as in most tests."""
        self.is_standalone = settings.is_standalone
        """It is in no cluster, for as long as the process lives."""
        if settings.has_witness:
            resource_set.log.add_witness(WITNESS)
        self._ctx = MemberContext(settings, resource_set, random, wall_ms, steady_ms)
        self._parts = MemberParts(self._ctx, restored or Restored(fr.StoreOrigin.MEMORY))
        if not settings.is_standalone:
            self._parts.machine.move(Cause.LOADED)
        self.status = self._look()
        """What can be told of it, since the last input."""
        self._is_status_told = False

    def handle(self, happened: fx.Input, now_s: float) -> list[fx.Effect]:
        """One input, and what is to be done because of it, in this order. `now_s`: a clock that never goes back."""
        ctx = self._ctx
        ctx.set_time(now_s)
        self._parts.role.handle(happened)
        if ctx.is_status_stale:
            ctx.is_status_stale = False
            status = self._look()
            if status != self.status or not self._is_status_told:
                self.status, self._is_status_told = status, True
                ctx.effects.append(fx.StatusChanged(status))
        effects, ctx.effects = ctx.effects, []
        return effects

    def ran_until(self, now_s: float) -> None:
        """Nothing may have happened to this member for long, but the process was not stopped before `now_s`."""
        self._ctx.ran_until(now_s)

    def _look(self) -> fx.MemberStatus:
        parts, replica, view = self._parts, self._parts.replica, self._parts.role.view()
        in_sync = replica.history.in_sync(replica.store)
        return fx.MemberStatus(
            state=parts.machine.state,
            phase=view.phase,
            generation=replica.history.generation,
            epoch=in_sync.epoch,
            members=in_sync.members,
            cluster=replica.history.cluster,
            history=replica.history.entries(),
            primary=view.primary,
            primary_address=view.primary_address,
            primary_broker_address=view.primary_broker_address,
            store=replica.store,
            is_chosen=replica.is_chosen,
            login_problem=view.login_problem,
            problem=view.problem,
            is_closing=view.is_closing,
            observes=view.observes,
            store_problem=self._ctx.store_problem,
        )

    @property
    def set(self) -> str:
        """The name of the resource set."""
        return self._ctx.resource_set.name

    @property
    def settings(self) -> MemberSettings:
        """The settings in force; others may be put in their place at any time."""
        return self._ctx.settings

    @settings.setter
    def settings(self, value: MemberSettings) -> None:
        self._ctx.settings = value
        if self.primary is not None:
            self.primary.settings_changed()

    @property
    def coordinator(self) -> fx.CoordinatorSeen:
        """Which one this broker goes by, as it was read last."""
        return self._ctx.coordinator

    # --- what changes with every message

    @property
    def primary(self) -> Primary | None:
        """The primary's side of replication, of one that leads."""
        return self._parts.role.primary

    def lead_proof(self, now_s: float, woke_s: float) -> LeadProof:
        """What consumers may be given, as sure as it is that this broker leads. `woke_s`: see `ha.process_time`."""
        primary = self.primary
        return LeadProof.PROVEN if primary is None else primary.proof.look(now_s, woke_s)

    @property
    def role(self) -> Role:
        """What this broker is now."""
        return self._parts.role

    @property
    def position(self) -> fr.LogPosition:
        """The end of this broker's log."""
        return fr.LogPosition(self.status.generation, self._parts.replica.held_lsn)

    @property
    def committed_lsn(self) -> int:
        """Up to there nobody can take anything back, as far as this broker knows."""
        return self._parts.role.committed_lsn

    def replica_lag_s(self, now_s: float) -> float | None:
        """Of a backup that is level: the primary was heard so long ago, and all that it had sent by then is held here.

        0 of one that leads; None of one that is not level. `now_s`: by the clock of the inputs.
        """
        state = self.status.state
        if state in LEADING:
            return 0.0
        if state is not State.READY:
            return None
        since_last_input_s = max(now_s - self._ctx.now_s, 0.0)  # the core's own clock does not count what a stop took
        return max(self._ctx.clock_s + since_last_input_s - self._parts.channel.heard_s, 0.0)

    def answer(self, number: int = 0, granted: bool = True, text: str = "") -> fr.Answer:
        """What this broker answers to another one."""
        return self._parts.answer(number, granted, text)

    # --- what operators see, as values that JSON can carry

    def commit_stall(self, now_s: float) -> CommitStall | None:
        """Of a primary that has committed nothing for a while. `now_s`: as for `replica_lag_s`."""
        primary = self.primary
        stalled_s = None if primary is None else primary.commits.stalled_s(self._ctx.clock_s)
        if primary is None or stalled_s is None:
            return None
        stalled_s += max(now_s - self._ctx.now_s, 0.0)
        if stalled_s < STALLED_S:
            return None
        last_lsn, problem = self._ctx.resource_set.log.last_lsn, primary.commits.write_problem
        why = why_uncommitted(primary.in_sync, last_lsn, problem, self.status.store_problem)
        return CommitStall(round(stalled_s, 1), why)

    def unwritable_s(self, now_s: float) -> float:
        """How long its store has taken nothing, for `status.store_problem`; 0: it does. `now_s`: as before."""
        if not self.status.store_problem:
            return 0.0
        return self._parts.replica.durable.unwritable_s + max(now_s - self._ctx.now_s, 0.0)

    def backups(self) -> list[dict[str, object]]:
        """Of a primary: each backup that is connected, and each that is waited for; lag in messages, bytes, seconds."""
        primary = self.primary
        if primary is None:
            return []
        connected = {backup.name: backup for backup in primary.links.values()}
        facts = [self._backup_facts(primary, backup) for _, backup in sorted(connected.items())]
        for name in primary.in_sync.members:
            if name not in connected and name != primary.in_sync.primary:
                facts.append({"name": name, "state": "expected", "in_sync": True, "lsn": 0})
        return facts

    def _backup_facts(self, primary: Primary, backup: BackupLink) -> dict[str, object]:
        in_sync = backup.name in primary.in_sync
        owes_since_s = backup.owes_since_s()
        is_level = backup.progress is BackupProgress.FOLLOWING and in_sync
        behind = State.OBSERVER if backup.observes else State.CATCHUP
        return {
            "name": backup.name,
            "state": str(State.READY if is_level else behind),
            "in_sync": in_sync,
            "lsn": backup.acknowledged,
            "lag_messages": self._parts.replica.tail.last_lsn - max(backup.acknowledged, backup.compared_lsn),
            "lag_bytes": backup.unacknowledged_bytes,
            "lag_s": 0.0 if owes_since_s is None else round(self._ctx.clock_s - owes_since_s, 3),
            **({"why": why} if (why := backup.observes or self._why_not_in_sync(backup, in_sync)) else {}),
        }

    def _why_not_in_sync(self, backup: BackupLink, in_sync: bool) -> str:
        if backup.hello.store_problem and not in_sync and not backup.is_level:
            return f"its store cannot be written: {backup.hello.store_problem}"
        if in_sync or not backup.is_level or not backup.probation_s:
            return ""
        return f"it was silent before: it is waited for again once it has been level for {backup.probation_s:g} s"

    def history(self) -> list[dict[str, object]]:
        """The generations of this broker's log, one line for each; `started_at_ms` 0: this broker was not told."""
        return [
            {
                "generation": event.generation,
                "primary": event.primary,
                "first_lsn": lsn,
                "started_at_ms": event.started_at_ms,
                "cause": event.cause,
                "forced": event.forced,
            }
            for lsn, event in self._parts.replica.history.generations()
        ]

    # ---

    def check_invariants(self) -> None:
        """Raise AssertionError where a promise is broken; called after each step in tests."""
        role, state = self._parts.role, self._parts.machine.state
        if (role.primary is not None) != (state in LEADING):
            raise AssertionError(f"{state}, but the role is {type(role).__name__}")
        if self.status != self._look():
            raise AssertionError(f"the status is {self._look()}, and the last that was told {self.status}")
        resource_set = self._ctx.resource_set
        resource_set.state.producers.check_invariants(resource_set.log.last_lsn)
        resource_set.state.sessions.check_invariants()
        role.check_invariants()
