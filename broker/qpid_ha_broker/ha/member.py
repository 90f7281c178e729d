"""A broker: its state, and what each input makes of it. The core that a driver and a simulation run.

At any time it leads or follows, and can say which, since when and why. In doubt about who leads it does not.

A standalone broker, whose settings name no other one, is a cluster of one. Its in-sync set is itself, so there is
nobody to ask, to wait for or to hand over to: it leads from `Started` on, in the state STANDALONE, and what it writes
is confirmed by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.accession import lead_alone, take_command
from qpid_ha_broker.ha.backup import STREAM_ERRORS, Stage
from qpid_ha_broker.ha.history import problem
from qpid_ha_broker.ha.keeping import Restored
from qpid_ha_broker.ha.member_answers import AnsweringMember
from qpid_ha_broker.ha.promotion import Granted, Outcome, Promotion, Refused
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import LEADING, Cause, State
from qpid_ha_broker.model.resource_set import ResourceSet

STANDALONE_REFUSAL = "this broker is in no cluster: set ha.cluster: true and ha.brokers-url, and restart it"
"""To whatever needs other brokers."""
NEEDS_CLUSTER = (fx.PromoteAsked, fx.DemoteAsked, fx.SwitchoverAsked, fx.DropAsked, fx.ShutdownAsked)
"""Requests that a standalone broker refuses."""


class Member(AnsweringMember):
    """The promise: nothing is confirmed that a broker which may be promoted lacks; one primary per generation."""

    def __init__(
        self,
        settings: MemberSettings,
        resources: ResourceSet,
        random: Callable[[], float],
        restored: Restored | None = None,
    ) -> None:
        super().__init__(settings, resources, random, restored or Restored(fr.Store.MEMORY))
        self._handlers: dict[type, Callable[[Any], None]] = {
            fx.Started: self._started,
            fx.Ticked: self._ticked,
            fx.LinkOpened: self._link_opened,
            fx.LinkLost: self._link_lost,
            fx.FrameReceived: self._frame_received,
            fx.FrameDamaged: self._frame_damaged,
            fx.LinkWritable: self._link_writable,
            fx.TurnEnded: self._turn_ended,
            fx.PromoteAsked: self._promote_asked,
            fx.DemoteAsked: self._demote_asked,
            fx.SwitchoverAsked: self._switchover_asked,
            fx.DropAsked: self._drop_asked,
            fx.ClientsEnded: self._clients_ended,
            fx.PeersAnswered: self._peers_answered,
            fx.RecordRead: self._record_read,
            fx.RecordWritten: self._record_written,
            fx.Kept: self._kept,
            fx.BaseKept: self._base_kept,
            fx.StoreFailed: self._store_failed,
            fx.ShutdownAsked: self._shutdown_asked,
            fx.Stopping: self._stopping,
        }
        if settings.is_standalone:
            self._handlers |= dict.fromkeys(NEEDS_CLUSTER, self._refuse_standalone)
        self._frames: dict[type, Callable[[int, Any], None]] = {
            fr.Hello: self._hello,
            fr.Follow: self._follow,
            fr.Question: self._question,
            fr.Welcome: self._welcome,
            fr.Refused: self._refused,
            fr.TakeOver: self._take_over,
            fr.Shutdown: self._shutdown,
        }
        self._of_backups: dict[type, Callable[[int, Any], None]] = {
            fr.Ack: self._ack,
            fr.Holdings: self._holdings,
            fr.HoldingsDone: self._holdings_done,
        }
        self._of_primary: dict[type, Callable[[Any], None]] = {
            fr.Batch: self._backup.batch,
            fr.Objects: self._backup.objects,
            fr.Chunk: self._backup.chunk,
            fr.CaughtUp: self._backup.caught_up,
            fr.Heartbeat: lambda frame: self._backup.committed(frame.committed_lsn),
        }

    def handle(self, what: fx.Input, now_s: float) -> list[fx.Effect]:
        """One input, and what is to be done because of it, in this order."""
        around = self._around
        around.set_time(now_s)
        if not self._stopped:
            self._handlers[type(what)](what)
            self._backup.acknowledge()
        effects, around.effects = around.effects, []
        return effects

    # --- life

    def _started(self, _: fx.Started) -> None:
        if self.is_standalone:
            self._primary = lead_alone(self._around, self._tail, self._keeping, self._backup)
            self._machine.move(Cause.LOADED_ALONE)
            return
        if self._around.settings.has_coordinator and self._claims.own_claim > self.generation:
            self._uncertain.begin(self._claims.own_claim)  # the process before may have been named primary
        self._set_writability("this broker looks for the primary")
        self._search(at_once=True)

    def _ticked(self, _: fx.Ticked) -> None:
        if self._primary is not None:
            self._primary.tick()
            self._after_change()
        elif self._backup.stage is Stage.SEARCHING:
            self._search_on()
        else:
            why = self._backup.tick()
            if why:
                self._give_up(why)
        if self._promotion is not None:
            self._promoted(self._promotion.held())
            if self._promotion is not None and self._promotion.ends_late():
                self._promoted(self._promotion.give_up("it took too long; try again"))
        self._uncertain.tick()
        self._departure.tick()

    def _stopping(self, _: fx.Stopping) -> None:
        if self._primary is not None:
            self._primary.end()
            self._primary = None
            if self.is_standalone:  # what it wrote to the end counts: nobody else can say otherwise
                self._around.effects.append(fx.CleanEnd(self._around.settings.instance))
        elif self._backup.link:
            self._around.close(self._backup.link, "stopping")
        self._move(Cause.STOPPED, "stopping")
        self._stopped = True

    def _move(self, cause: Cause, reason: str) -> None:
        before, after = self._machine.move(cause)
        self._refusal = ""
        self._set_writability(f"this broker is {after}, not primary")
        self._around.effects.append(fx.StateChanged(before, after, reason))

    def _set_writability(self, text: str) -> None:
        self._resources.read_only = "" if self._primary is not None else text

    def _answer(self, request: int, done: bool, text: str) -> None:
        if request:  # 0: the primary asked, in a switchover, and sees for itself
            self._around.effects.append(fx.Answered(request, done, text))

    # --- links

    def _search(self, at_once: bool = False) -> None:
        self._backup.search(at_once)
        if at_once:
            self._search_on()

    def _search_on(self) -> None:
        """Try the next address, unless somebody is being promoted: this broker, or one that has its promise."""
        if self._backup.is_due and self._promotion is None and not self._claims.is_live and self._primary is None:
            self._backup.try_next()

    def _link_opened(self, what: fx.LinkOpened) -> None:
        if what.link == self._backup.link and self._primary is None:
            self._backup.opened(self.cluster, self._backup.entries(), self._claims.binding)

    def _link_lost(self, what: fx.LinkLost) -> None:
        if self._primary is not None and self._primary.followers.lost(what.link, what.reason):
            return
        if self._primary is not None and what.link in self._primary.links:
            self._primary.lost(what.link, what.reason)
            self._after_change()
        elif what.link == self._backup.link and self._backup.stage is not Stage.SEARCHING:
            self._backup.note_login(what.reason if what.is_login else "")
            self._lost_primary(what.reason)

    def _give_up(self, why: str) -> None:
        self._around.close(self._backup.link, why)
        self._lost_primary(why)

    def _lost_primary(self, reason: str) -> None:
        following = self._backup.stage is Stage.FOLLOWING
        self._backup.lost()
        if following:
            self._around.note("warning", f"lost the primary at {self._backup.address}: {reason}")
        if self.state in (State.CATCHUP, State.READY):
            self._move(Cause.LINK_LOST, reason)
        self._search(at_once=following or not self._backup.is_round_over)
        if self._promotion is not None:
            self._promoted(self._promotion.held())

    def _link_writable(self, what: fx.LinkWritable) -> None:
        if self._primary is not None:
            self._primary.set_writable(what.link, what.writable)

    def _frame_damaged(self, what: fx.FrameDamaged) -> None:
        self._around.note("error", f"a damaged frame came: {what.problem}; the channel is given up")
        if what.link == self._backup.link and self._primary is None:
            self._give_up(what.problem)
        else:
            self._around.close(what.link, what.problem)
            self._link_lost(fx.LinkLost(what.link, what.problem))

    def _frame_received(self, what: fx.FrameReceived) -> None:
        link, frame = what
        kind = type(frame)
        if kind in self._of_primary:
            self._from_primary(link, frame)
        elif kind in self._of_backups:
            if self._primary is not None and link in self._primary.links:
                self._primary.heard(link)
                self._of_backups[kind](link, frame)
                self._after_change()
            elif self._primary is not None:
                self._primary.followers.received(link, frame)
        elif kind in self._frames:
            self._frames[kind](link, frame)
        else:
            self._frame_damaged(fx.FrameDamaged(link, f"{kind.__name__} was not asked for"))

    # --- as a backup

    def _from_primary(self, link: int, frame: Any) -> None:
        backup = self._backup
        if link != backup.link or backup.stage is not Stage.FOLLOWING:
            return
        if frame.generation != backup.generation:
            text = f"{type(frame).__name__} of generation {frame.generation}, the primary's is {backup.generation}"
            self._around.note("error", f"{text}: the channel is given up")
            self._give_up(text)
            return
        backup.heard()
        try:
            self._of_primary[type(frame)](frame)
        except STREAM_ERRORS as error:
            self._around.note("error", f"the primary's stream does not fit: {error}; connecting anew")
            self._give_up(str(error))
            return
        if self.state is State.CATCHUP and backup.is_ready:
            backup.is_level()
            self._move(Cause.CAUGHT_UP, "in sync")
        elif self.state is State.READY and not backup.is_ready:
            self._give_up("the primary has dropped this broker from the in-sync set")
        if self._promotion is not None:
            self._promoted(self._promotion.held())

    def _welcome(self, link: int, frame: fr.Welcome) -> None:
        if link != self._backup.link or self._backup.stage is not Stage.GREETING:
            return
        known = max(self.generation, self._claims.binding)
        if frame.generation < known:
            self._around.note("warning", f"{frame.name} is primary of generation {frame.generation}; {known} is known")
            self._give_up("an older generation")
            return
        if self._promotion is not None and self._promotion.is_being_filed:  # it was judged by what it holds now
            self._give_up("this broker is about to lead")
            return
        self._around.note("info", f"Connected to primary {frame.name} at {self._backup.address}")
        self._claims.end_wait()
        self._backup.heard()
        try:
            self._backup.welcomed(frame)
        except STREAM_ERRORS as error:
            self._around.note("error", f"the primary's welcome does not fit: {error}")
            self._give_up(str(error))
            return
        self._move(Cause.WELCOMED, f"welcomed by the primary {frame.name}")

    def _refused(self, link: int, frame: fr.Refused) -> None:
        if link != self._backup.link:
            return
        if frame.code in (fr.RefusalCode.OTHER_CLUSTER, fr.RefusalCode.VERSION):
            self._around.effects.append(fx.Stop(f"refused by {self._backup.address}: {frame.text}"))
        elif frame.code is not fr.RefusalCode.NOT_PRIMARY:
            self._around.note("error", f"refused by {self._backup.address}: {frame.text}")
        self._give_up(frame.text)
        known = [each for each in self._around.settings.addresses if each == frame.primary_address]
        if known and self._backup.stage is Stage.SEARCHING and not self._claims.is_live and self._promotion is None:
            self._backup.try_next(known[0])

    # --- as primary

    def _hello(self, link: int, hello: fr.Hello) -> None:
        if self._primary is None:
            self._refuse_as_backup(link)
            return
        newest = max(hello.history[-1].generation if hello.history else 0, hello.promised)
        same_cluster = not hello.cluster or hello.cluster == self.cluster
        is_sound = not problem(hello.history, hello.last_lsn)
        if same_cluster and is_sound and newest > self._primary.generation:
            text = f"{hello.name} knows of generation {newest}"
            self._around.send(link, fr.Refused(fr.RefusalCode.STEPPED_DOWN, f"{text}: stepping down", ""))
            self._around.close(link, text)
            self._step_down(text)
            return
        self._primary.hello(link, hello, self._backup.entries(), self.cluster)
        self._after_change()

    def _follow(self, link: int, frame: fr.Follow) -> None:
        if self._primary is None:
            self._refuse_as_backup(link)
        else:
            self._primary.followers.follow(link, frame, self._backup.entries(), self.cluster)

    def _refuse_as_backup(self, link: int) -> None:
        text, where = f"this broker is {self.state}, not primary", self._backup.address if self._backup.primary else ""
        self._around.send(link, fr.Refused(fr.RefusalCode.NOT_PRIMARY, text, where))
        self._around.close(link, text)

    def _ack(self, link: int, frame: fr.Ack) -> None:
        primary = self._primary
        if primary is None:
            return
        wrong = primary.acknowledged(link, frame)
        if wrong:
            self._around.note("error", f"backup {primary.links[link].name} sent {wrong}: the channel is given up")
            self._around.close(link, wrong)
            primary.lost(link, wrong)

    def _holdings(self, link: int, frame: fr.Holdings) -> None:
        if self._primary is not None:
            self._primary.holdings(link, frame)

    def _holdings_done(self, link: int, _: fr.HoldingsDone) -> None:
        if self._primary is not None:
            self._primary.holdings_done(link)

    def _turn_ended(self, what: fx.TurnEnded) -> None:
        if self._primary is not None:
            self._primary.turn_ended(what.batch)
            self._after_change()

    def _after_change(self) -> None:
        """The in-sync set may be another one, or what it has committed. Of a standalone broker nobody has to know."""
        if self.is_standalone:
            return
        self._report_phase()
        self._file()
        if self._primary is not None and self._closing.go_on(self._primary):
            self._end_with_cluster()

    def _report_phase(self) -> None:
        if self.phase is not self._phase:
            self._phase = self.phase
            if self._phase is not None:
                self._around.effects.append(fx.PhaseChanged(self._phase))

    def _file(self) -> None:
        if self._primary is not None:
            self._filing.go_on(self._primary, self.status)

    def _step_down(self, why: str) -> None:
        """Somebody else commands: confirm nothing more."""
        if self._primary is None:
            return
        self._around.note("warning", f"stepping down: {why}")
        self._end_primary(why)

    def _end_primary(self, why: str) -> None:
        if self._primary is None:
            return
        self._primary.end()
        self._primary = None
        self._phase = None
        self._filing.forget()
        self._move(Cause.DEMOTED, why)
        self._departure.left(self.status)
        self._closing.forget()
        self._search()

    # --- promotion

    def _refuse_standalone(self, what: Any) -> None:
        self._answer(what.request, False, STANDALONE_REFUSAL)

    def _promote_asked(self, what: fx.PromoteAsked) -> None:
        if self._primary is not None:
            if what.force:
                self._filing.replace_record()
                self._file()
            self._answer(what.request, True, f"already primary of generation {self.generation}")
        elif self._promotion is not None:
            self._answer(what.request, False, "this broker is being promoted already: wait for that")
        else:
            self._promotion = Promotion(self._around, what, self._own, self._claim)
            self._promotion.begin()

    def _claim(self, generation: int) -> None:
        self._claims.claim(generation, self.generation)

    def _promoted(self, outcome: Outcome) -> None:
        promotion = self._promotion
        if promotion is None or outcome is None:
            return
        self._promotion = None
        if isinstance(outcome, Refused):
            if outcome.text != self._refusal:  # an agent tries again and again
                self._around.note("warning", f"promotion refused: {outcome.text}")
            self._refusal = outcome.text if self.state is State.CONNECTING else ""
            if promotion.outcome_is_unknown:
                self._uncertain.begin(promotion.wanted_generation)
            self._answer(promotion.request, False, outcome.text)
            if self._backup.stage is Stage.SEARCHING:
                self._search()
            return
        self._become_primary(promotion, outcome)

    def _become_primary(self, promotion: Promotion, granted: Granted) -> None:
        if self._backup.link:
            self._around.close(self._backup.link, "promoted")
        self._claims.lead()
        self._uncertain.end()
        self._primary = take_command(self._around, self._tail, self._keeping, self._backup, promotion, granted)
        self._filing.begin(granted.record)
        if granted.record is not None:
            self._primary.filed(granted.accept.epoch)
        self._move(Cause.PROMOTED, promotion.cause)
        self._report_phase()
        self._around.ask(fr.Topic.ANNOUNCE, self.status())
        self._answer(promotion.request, True, f"primary of generation {self.generation}")

    def _demote_asked(self, what: fx.DemoteAsked) -> None:
        if self._primary is None:
            self._answer(what.request, False, f"this broker is {self.state}: only a primary can be demoted")
        else:
            self._departure.demote(what)

    def _clients_ended(self, _: fx.ClientsEnded) -> None:
        if self._closing.is_under_way:
            self._closing.clients_ended()
            self._after_change()
        else:
            self._end_primary(self._departure.reason)

    def _shutdown_asked(self, what: fx.ShutdownAsked) -> None:
        if self._primary is None:
            primary = self.primary_name or "once there is one"
            self._answer(what.request, False, f"this broker is {self.state}: ask the primary, {primary}")
        else:
            self._closing.begin(what)

    def _switchover_asked(self, what: fx.SwitchoverAsked) -> None:
        if self._primary is None:
            primary = self.primary_name or "once there is one"
            self._answer(what.request, False, f"this broker is {self.state}: ask the primary, {primary}")
        else:
            self._departure.switch_over(self._primary, what)

    def _drop_asked(self, what: fx.DropAsked) -> None:
        if self._primary is None:
            primary = self.primary_name or "once there is one"
            self._answer(what.request, False, f"this broker is {self.state}: ask the primary, {primary}")
            return
        had_it = self._primary.drop(what.backup, what.reason)
        members = ", ".join(self._primary.in_sync.members)
        done = "is dropped" if had_it else "is not waited for"
        self._answer(what.request, True, f"{what.backup} {done}; in sync: {members}")
        self._after_change()

    def _take_over(self, link: int, frame: fr.TakeOver) -> None:
        if link == self._backup.link and self._backup.stage is Stage.FOLLOWING:
            self._promote_asked(fx.PromoteAsked(0, False, f"switchover from {self._backup.primary}"))

    # --- the store

    def _kept(self, what: fx.Kept) -> None:
        self._keeping.kept(what.number)
        self._after_keeping()

    def _base_kept(self, what: fx.BaseKept) -> None:
        self._keeping.base_kept(what.number)
        self._after_keeping()

    def _store_failed(self, _: fx.StoreFailed) -> None:
        self._backup.store = fr.Store.FAILED

    def _after_keeping(self) -> None:
        if self._primary is not None:
            self._primary.kept()
            self._after_change()

    def _shutdown(self, link: int, frame: fr.Shutdown) -> None:
        backup = self._backup
        if link != backup.link or backup.stage is not Stage.FOLLOWING or frame.generation != backup.generation:
            return
        is_whole = backup.held_lsn == frame.lsn and backup.is_ready
        backup.committed(frame.lsn)
        self._around.note("info", f"{backup.primary} shuts the cluster down")
        self._around.effects.append(fx.CleanEnd(frame.uuid if is_whole else ""))
        self._end_with_cluster()

    def _end_with_cluster(self) -> None:
        """Whatever happens from now on, the log ends here: that is what the mark on the store says."""
        self._primary = None
        self._move(Cause.STOPPED, "the cluster is shut down")
        self._stopped = True

    # --- what was asked for

    def _peers_answered(self, what: fx.PeersAnswered) -> None:
        if self._primary is not None:
            newer = self._filing.peers_answered(self._primary, what)
            if newer:
                self._step_down(newer)
            self._after_change()
        elif self._promotion is not None:
            self._promoted(self._promotion.answered(what))

    def _record_read(self, what: fx.RecordRead) -> None:
        self._uncertain.record_read(what.number, what.record)
        if self._primary is not None:
            newer = self._filing.record_read(self._primary, what)
            if newer:
                self._step_down(newer)
            self._after_change()
        elif self._promotion is not None:
            self._promoted(self._promotion.record_read(what.number, what.record))

    def _record_written(self, what: fx.RecordWritten) -> None:
        if self._primary is not None:
            newer = self._filing.record_written(self._primary, what)
            if newer:
                self._step_down(newer)
            self._after_change()
        elif self._promotion is not None:
            self._promoted(self._promotion.record_written(*what))

    # ---

    def check_invariants(self) -> None:
        """Raise AssertionError where a promise is broken; called after each step in tests."""
        if (self._primary is not None) != (self.state in LEADING):
            raise AssertionError(f"{self.state}, but the role is {'primary' if self._primary else 'backup'}")
        self._tail.check_invariants()
        resources = self._around.resources
        resources.state.producers.check_invariants(resources.log.last_lsn)
        if self._primary is not None:
            self._primary.check_invariants()
        else:
            self._backup.check_invariants()
