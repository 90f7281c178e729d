"""The two ways in which a primary ends in good order: another broker takes over, or the whole cluster is shut down.

Both begin with the clients: they are ended, the last turn's batch is written, and only then the log's end is final.

Source: seed 000, "Interaction with the store", clean shutdown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.effects import CleanEnd, DemoteAsked, EndClients, ShutdownAsked, SwitchoverAsked
from qpid_ha_broker.ha.frames import Answer, Question, Shutdown, TakeOver
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.verdict import Refusal

SWITCHOVER_LIMITS = 5
"""A backup that was asked to take over has so many ask limits for it, unless whoever asked gives it less time. It does
not try for longer by itself."""
HANDS_OVER_ALREADY = Refusal("this broker is handing over already: wait for that")
DEMOTED_ALREADY = Refusal("this broker is being demoted already: wait for that")
SHUT_DOWN_ALREADY = Refusal("the cluster is being shut down already: wait for that")
SHUTDOWN_GRACE_S = 5.0
"""Beyond `backup-timeout`, after which a shutdown waits for a silent backup no more."""


class _Switchover(NamedTuple):
    """A backup was asked to take over."""

    requests: tuple[int, ...]
    """All that are answered with what comes of it."""
    to: str
    is_named: bool
    """No other one will do."""
    cause: str
    void_s: float
    """When it is: whoever wanted it has been told that nothing came of it, and may want something else by now."""


class StepDown:
    """Of one generation: at most one at a time, for an operator or for a candidate that asks, or the end of all."""

    def __init__(self, ctx: MemberContext) -> None:
        self._ctx = ctx
        self.is_under_way = False
        """Clients are being ended for it."""
        self.shutdown: ClusterShutdown | None = None
        """Of the whole cluster. Nothing else begins beside it: it would never be done if that comes to nothing."""
        self._demotion: DemoteAsked | None = None
        self._handover: tuple[int, Question] | None = None
        """The link on which a candidate asked, and its question."""
        self._switchover: _Switchover | None = None
        self._void: _Switchover | None = None
        """The last one that came to nothing. Its backup may still ask, once a coordinator that hung has answered it."""

    @property
    def hands_over(self) -> bool:
        """A candidate has asked for it, and leads next."""
        return self._handover is not None

    @property
    def reason(self) -> str:
        """Why the state changes."""
        if self._demotion is not None:
            return self._demotion.cause
        to = self._handover[1].asker if self._handover else "another broker"
        return f"handed over to {to}{f': {self._switchover.cause}' if self._switchover else ''}"

    @property
    def _why_busy(self) -> Refusal | None:
        """Why nothing else can begin."""
        if self.shutdown is not None:
            return SHUT_DOWN_ALREADY
        if self._demotion is not None:
            return DEMOTED_ALREADY
        return HANDS_OVER_ALREADY if self._handover is not None else None

    def shut_down(self, asked: ShutdownAsked) -> None:
        """An operator wants the whole cluster to end."""
        busy = self._why_busy
        if busy is not None:
            self._ctx.answer(asked.request, False, busy.text)
        else:
            self.shutdown = ClusterShutdown(self._ctx, asked)
            self._ctx.is_status_stale = True

    def demote(self, asked: DemoteAsked) -> None:
        """An operator, or a resource manager, wants it."""
        busy = self._why_busy
        if busy is not None:
            self._ctx.answer(asked.request, False, busy.text)
            return
        self._ctx.note("info", f"{asked.cause}: clients are sent away")
        self._demotion = asked
        self._begin()

    def hand_over(self, link: int, question: Question) -> Refusal | None:
        """A candidate asks. The answer follows once clients are gone, unless it is refused now."""
        busy = self._why_busy
        if busy is not None:
            return busy
        void = self._void
        if void is not None and void.to == question.asker and self._ctx.now_s < void.void_s + self._limit_s:
            return Refusal("this broker wanted that a while ago, and does not any more: ask again later")
        self._ctx.note("info", f"{question.asker} takes over: clients are sent away")
        self._handover = link, question
        self._begin()
        return None

    def switch_over(self, primary: Primary, asked: SwitchoverAsked) -> None:
        """Have a backup ask; the best one unless the operator names another. Who asks for one that is under way hears
        what comes of that."""
        busy = self._why_busy
        if busy is not None and self._handover is None:
            self._ctx.answer(asked.request, False, busy.text)
            return
        under_way = self._under_way
        if under_way is not None and asked.to not in ("", under_way.to):
            self._ctx.answer(asked.request, False, f"{under_way.to} is asked to take over already: wait for that")
            return
        if under_way is not None:
            is_named = under_way.is_named or bool(asked.to)
            self._switchover = under_way._replace(requests=(*under_way.requests, asked.request), is_named=is_named)
            return
        fit = [backup for backup in primary.links.values() if backup.name in primary.in_sync and backup.is_level]
        chosen = [backup for backup in fit if not asked.to or backup.name == asked.to]
        if not chosen:
            names = ", ".join(backup.name for backup in fit) or "no backup"
            self._ctx.answer(asked.request, False, f"{self._why_not(primary, asked.to)}; ready: {names}")
            return
        best = max(chosen, key=lambda backup: backup.acknowledged)
        self._ctx.note("info", f"{asked.cause}: {best.name} is asked to take over")
        within_s = self._limit_s if asked.within_s is None else min(asked.within_s, self._limit_s)
        void_s = self._ctx.now_s + within_s
        self._switchover = _Switchover((asked.request,), best.name, bool(asked.to), asked.cause, void_s)
        self._void = None
        self._ctx.send(best.link, TakeOver(primary.generation))

    @property
    def _under_way(self) -> _Switchover | None:
        """A switchover that was asked for, or a candidate's own; None: there is none."""
        if self._switchover is None and self._handover is not None:
            question = self._handover[1]
            return _Switchover((), question.asker, False, "it asked for that", self._ctx.now_s)
        return self._switchover

    def tick(self) -> None:
        """A backup that does not take over in time will not."""
        asked = self._switchover
        if asked is not None and self._ctx.now_s > asked.void_s:
            self._come_to_nothing(asked, "did not take over in time: see its log")

    def backup_stops(self, name: str) -> None:
        """It has said so: if it was asked to take over, it will not."""
        asked = self._switchover
        if asked is not None and asked.to == name:
            self._come_to_nothing(asked, "stops, and does not take over")

    def _come_to_nothing(self, asked: _Switchover, why: str) -> None:
        if not self.is_under_way:
            self._switchover, self._void = None, asked
            self._answer(asked, False, f"{asked.to} {why}")

    def _answer(self, asked: _Switchover, done: bool, text: str) -> None:
        for request in asked.requests:
            self._ctx.answer(request, done, text)

    def _why_not(self, primary: Primary, to: str) -> str:
        if to == self._ctx.settings.name:
            return f"{to} is the primary already"
        backups = {backup.name: backup for backup in primary.links.values()}
        if to and to not in backups:
            return f"there is no backup {to}: no such broker, or it is not connected"
        if to:
            lacks = "is not in sync" if to not in primary.in_sync else "is catching up"
            return f"{to} {lacks}: it takes over once it is ready"
        return "nobody is ready to take over"

    @property
    def _limit_s(self) -> float:
        return SWITCHOVER_LIMITS * self._ctx.settings.ask_limit_s

    def ended(self, status: Callable[[int, bool, str], Answer]) -> None:
        """This broker is primary no more, whatever made it so: tell everybody who asked."""
        if self._handover is not None:
            link, question = self._handover
            self._ctx.send(link, status(question.number, True, "handed over"))
        if self._demotion is not None:
            self._ctx.answer(self._demotion.request, True, "demoted; promote another broker")
        asked = self._switchover
        if asked is not None:
            taker = self._handover[1].asker if self._handover is not None else asked.to
            is_another = asked.is_named and taker != asked.to
            text = f"{taker} takes over{f', and not {asked.to}' if is_another else ''}"
            self._answer(asked, not is_another, text)

    def _begin(self) -> None:
        self.is_under_way = True
        self._ctx.effects.append(EndClients())


class ClusterShutdown:
    """The promise: a store is marked only when all in-sync brokers hold the same, to the last event, and it does, too.

    Nobody waits for one that observes: it says itself, by what it holds when it is told, whether its store is whole.
    """

    def __init__(self, ctx: MemberContext, asked: ShutdownAsked) -> None:
        self._ctx = ctx
        self._asked = asked
        self._are_clients_gone = False
        self._began_s = ctx.clock_s
        ctx.note("info", "the cluster is shut down: clients are sent away")
        ctx.effects.append(EndClients())

    def clients_ended(self) -> None:
        """The log's last event is written: see `is_done`."""
        self._are_clients_gone = True

    def is_late(self) -> bool:
        """Whether somebody who is in sync was waited for long enough."""
        limit_s = self._ctx.settings.backup_timeout_s + SHUTDOWN_GRACE_S
        return self._are_clients_gone and self._ctx.clock_s - self._began_s > limit_s

    def mark_stores(self, primary: Primary) -> bool:
        """Mark the stores if everybody is level; whether that is done, and this broker ends."""
        last_lsn = self._ctx.resource_set.log.last_lsn
        in_sync = primary.in_sync
        if not self._are_clients_gone or in_sync.committed_lsn < last_lsn or in_sync.awaits_record:
            return False
        for backup in primary.links.values():
            may_be_whole = backup.is_level and (backup.name in in_sync or bool(backup.observes))
            uuid = self._asked.uuid if may_be_whole else ""
            self._ctx.send(backup.link, Shutdown(primary.generation, last_lsn, uuid))
        names = ", ".join(in_sync.members)
        self._ctx.answer(self._asked.request, True, f"{names} hold the same up to LSN {last_lsn}, and end")
        self._ctx.effects.append(CleanEnd(self._asked.uuid))
        return True

    def refuse(self, text: str) -> None:
        """It does not come to that."""
        self._ctx.answer(self._asked.request, False, text)
