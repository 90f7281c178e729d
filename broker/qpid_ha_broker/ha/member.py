"""A broker of a cluster: its state, and what each input makes of it. The core that a driver and a simulation run.

Like a ship's officer: at any time either in command or following the one who is, always able to say which, since when
and why; and when in doubt about who commands, not the one who gives orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qpid_ha_broker.events.types import GenerationStarted, InSyncChanged
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.backup import STREAM_ERRORS, Backup, Stage
from qpid_ha_broker.ha.claims import Claims
from qpid_ha_broker.ha.filing import Filing
from qpid_ha_broker.ha.in_sync import Change
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.promotion import Granted, Outcome, Promotion, Refused, Step
from qpid_ha_broker.ha.reports import backup_facts, history_facts
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import Cause, Phase, State, StateMachine
from qpid_ha_broker.ha.surroundings import Surroundings
from qpid_ha_broker.ha.tail import Tail
from qpid_ha_broker.model.configuration import Configuration
from qpid_ha_broker.model.resource_set import ResourceSet

SWITCHOVER_LIMITS = 5
"""A backup that was asked to take over has so many ask limits for it."""


class Member:
    """The promise: nothing is confirmed that a broker which may be promoted lacks; one primary per generation."""

    def __init__(self, settings: MemberSettings, resources: ResourceSet, random: Callable[[], float]) -> None:
        self._around = Surroundings(settings, resources, random)
        self._resources = resources
        self._tail = Tail(settings.tail_bytes, resources.log.last_lsn)
        self._machine = StateMachine(State.CONNECTING)
        self._backup = Backup(self._around, self._tail)
        self._primary: Primary | None = None
        self._promotion: Promotion | None = None
        self._claims = Claims(self._around)
        self._filing = Filing(self._around)
        self._phase: Phase | None = None
        self._handover: tuple[int, fr.Question] | None = None
        """The candidate to hand over to, while clients are being ended."""
        self._demotion: int | None = None
        self._switchover: tuple[int, str, float] | None = None
        """Request, to whom, since when."""
        self._stopped = False
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
            fx.ClientsEnded: self._clients_ended,
            fx.PeersAnswered: self._peers_answered,
            fx.RecordRead: self._record_read,
            fx.RecordWritten: self._record_written,
            fx.Stopping: self._stopping,
        }
        self._frames: dict[type, Callable[[int, Any], None]] = {
            fr.Hello: self._hello,
            fr.Question: self._question,
            fr.Welcome: self._welcome,
            fr.Refused: self._refused,
            fr.TakeOver: self._take_over,
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

    # --- what others may know

    @property
    def wall_ms(self) -> int:
        """The time of day, for time stamps only; the driver sets it."""
        return self._around.wall_ms

    @wall_ms.setter
    def wall_ms(self, value: int) -> None:
        self._around.wall_ms = value

    @property
    def settings(self) -> MemberSettings:
        """The settings in force; others may be put in their place at any time."""
        return self._around.settings

    @settings.setter
    def settings(self, value: MemberSettings) -> None:
        self._around.settings = value
        if self._primary is not None:
            self._primary.settings_changed()

    @property
    def state(self) -> State:
        """Connecting, catchup, ready, primary or stopping."""
        return self._machine.state

    @property
    def phase(self) -> Phase | None:
        """Of a primary."""
        return self._primary.phase if self._primary is not None else None

    @property
    def generation(self) -> int:
        """The newest in this broker's log; 0 for an empty one."""
        return self._backup.newest_generation()

    @property
    def epoch(self) -> int:
        """Of the in-sync set that this broker knows of."""
        return self._in_sync().epoch

    @property
    def members(self) -> tuple[str, ...]:
        """The in-sync set that this broker knows of."""
        return self._in_sync().members

    @property
    def position(self) -> fr.Position:
        """The end of this broker's log."""
        return fr.Position(self.generation, self._backup.held_lsn)

    @property
    def primary_name(self) -> str:
        """Who is primary, as far as this broker knows; empty: nobody."""
        return self._around.settings.name if self._primary is not None else self._backup.primary

    @property
    def primary_address(self) -> str:
        """Where clients find the primary; empty when this broker does not know, or is it."""
        if self._primary is not None or not self._backup.primary:
            return ""
        return self._backup.clients_url or self._backup.address

    @property
    def cluster(self) -> str:
        """The UUID of this broker's log; empty for an empty one."""
        generations = self._backup.generations()
        return generations[-1][1].cluster if generations else ""

    @property
    def has_work(self) -> bool:
        """Whether another turn would bring a backup further at once."""
        return self._primary is not None and self._primary.has_work

    def backups(self) -> list[dict[str, object]]:
        """Of a primary: each backup with its lag."""
        return [] if self._primary is None else backup_facts(self._primary, self._tail.last_lsn, self._around.clock_s)

    def history(self) -> list[dict[str, object]]:
        """The generations of this broker's log."""
        return history_facts(self._backup.generations())

    def status(self, number: int = 0, granted: bool = True, text: str = "") -> fr.Answer:
        """What this broker answers to another one."""
        settings, in_sync = self._around.settings, self._in_sync()
        promised, promised_to = self._claims.promised
        return fr.Answer(
            number, settings.name, settings.instance, self.cluster, self.state.value, self.generation, in_sync.epoch,
            in_sync.members, self._backup.held_lsn, self._backup.complete, promised, promised_to, granted, text,
            settings.min_in_sync,
        )  # fmt: skip

    def _in_sync(self) -> InSyncChanged:
        return self._backup.in_sync()

    def _own(self) -> tuple[fr.Answer, str]:
        generations = self._backup.generations()
        return self.status(), generations[-1][1].primary if generations else ""

    # --- life

    def _started(self, _: fx.Started) -> None:
        self._set_writability("this broker looks for the primary")
        self._search(at_once=True)

    def _ticked(self, _: fx.Ticked) -> None:
        if self._primary is not None:
            self._primary.tick()
            self._report_phase()
            self._file()
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
        if self._switchover is not None:
            request, to, since_s = self._switchover
            if self._around.now_s - since_s > SWITCHOVER_LIMITS * self._around.settings.ask_limit_s:
                self._switchover = None
                self._answer(request, False, f"{to} did not take over in time; see its log")

    def _stopping(self, _: fx.Stopping) -> None:
        if self._primary is not None:
            self._primary.end()
            self._primary = None
        elif self._backup.link:
            self._around.close(self._backup.link, "stopping")
        self._move(Cause.STOPPED, "stopping")
        self._stopped = True

    def _move(self, cause: Cause, reason: str) -> None:
        before, after = self._machine.move(cause)
        self._set_writability(f"this broker is {after}, not primary")
        self._around.effects.append(fx.StateChanged(before, after, reason))

    def _set_writability(self, text: str) -> None:
        self._resources.read_only = "" if self._primary is not None else text

    def _answer(self, request: int, done: bool, text: str) -> None:
        if request > 0:
            self._around.effects.append(fx.Answered(request, done, text))
        elif not done:
            self._around.note("warning", f"the switchover to this broker failed: {text}")

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
            self._backup.opened(self.cluster, self._backup.entries(), self._claims.promised[0])

    def _link_lost(self, what: fx.LinkLost) -> None:
        if self._primary is not None and what.link in self._primary.links:
            self._primary.lost(what.link, what.reason)
            self._after_change()
        elif what.link == self._backup.link and self._backup.stage is not Stage.SEARCHING:
            self._lost_primary(what.reason)
        if self._handover is not None and self._handover[0] == what.link:
            self._around.note("warning", "the broker that was to take over is gone; this one demotes all the same")

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
        if self._primary is not None and what.link in self._primary.links:
            self._primary.links[what.link].writable = what.writable
            if what.writable:
                self._around.want_turn()

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
            self._move(Cause.CAUGHT_UP, "in sync")
        elif self.state is State.READY and not backup.is_ready:
            self._give_up("the primary has dropped this broker from the in-sync set")
        if self._promotion is not None:
            self._promoted(self._promotion.held())

    def _welcome(self, link: int, frame: fr.Welcome) -> None:
        if link != self._backup.link or self._backup.stage is not Stage.GREETING:
            return
        known = max(self.generation, self._claims.promised[0])
        if frame.generation < known:
            self._around.note("warning", f"{frame.name} is primary of generation {frame.generation}; {known} is known")
            self._give_up("an older generation")
            return
        self._around.note("info", f"Connected to primary {frame.name} at {self._backup.address}")
        self._claims.forget()
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
            text = f"this broker is {self.state}, not primary"
            self._around.send(
                link, fr.Refused(fr.RefusalCode.NOT_PRIMARY, text, self._backup.address if self._backup.primary else "")
            )
            self._around.close(link, text)
            return
        newest = hello.history[-1].generation if hello.history else 0
        same_cluster = not hello.cluster or hello.cluster == self.cluster
        if same_cluster and newest > self._primary.generation and newest < 1 << 62:
            text = f"{hello.name} knows generation {newest}"
            self._around.send(link, fr.Refused(fr.RefusalCode.STEPPED_DOWN, f"{text}: stepping down", ""))
            self._around.close(link, text)
            self._step_down(text)
            return
        self._primary.hello(link, hello, self._backup.entries(), self.cluster)
        self._after_change()

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
        """The in-sync set may be another one."""
        self._report_phase()
        self._file()

    def _report_phase(self) -> None:
        if self.phase is not self._phase:
            self._phase = self.phase
            if self._phase is not None:
                self._around.effects.append(fx.PhaseChanged(self._phase))

    def _file(self) -> None:
        if self._primary is not None:
            self._filing.go_on(self._primary, self.status())

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
        handover, self._handover = self._handover, None
        if handover is not None:
            link, question = handover
            self._around.send(link, self.status(question.number, True, "handed over"))
        self._search()

    # --- promotion

    def _promote_asked(self, what: fx.PromoteAsked) -> None:
        if self._primary is not None:
            self._answer(what.request, True, f"already primary of generation {self.generation}")
        elif self._promotion is not None:
            self._answer(what.request, False, "this broker is being promoted already: wait for that")
        else:
            self._promotion = Promotion(self._around, what.request, what.force, what.cause, self._own)
            self._promotion.begin()

    def _promoted(self, outcome: Outcome) -> None:
        promotion = self._promotion
        if promotion is None or outcome is None:
            return
        self._promotion = None
        if isinstance(outcome, Refused):
            self._around.note("warning", f"promotion refused: {outcome.text}")
            self._answer(promotion.request, False, outcome.text)
            if self._backup.stage is Stage.SEARCHING:
                self._search()
            return
        self._become_primary(promotion, outcome)

    def _become_primary(self, promotion: Promotion, granted: Granted) -> None:
        around, backup = self._around, self._backup
        if backup.link:
            around.close(backup.link, "promoted")
        backup.lost()
        backup.search()
        backup.link = 0
        committed = backup.committed_lsn
        backup.apply_all()
        backup.complete = True
        log = self._resources.log
        if self._tail.last_lsn != log.last_lsn:
            self._tail.reset(log.last_lsn)
        accept = granted.accept
        change = Change(accept.epoch, accept.members)
        self._claims.forget()
        self._primary = Primary(around, self._tail, accept.generation, change, min(committed, log.last_lsn))
        self._resources.read_only = ""
        start_lsn = self._write_generation(promotion, granted, change)
        Configuration(self._resources).declare_standard_exchanges()
        self._resources.take_over(around.wall_ms, int(around.settings.backup_timeout_s * 1000))
        self._filing.begin(granted.record)
        if granted.record is not None:
            self._primary.filed(accept.epoch)
        self._move(Cause.PROMOTED, promotion.cause)
        around.note("info", f"Promoted to primary: generation {accept.generation} from LSN {start_lsn}; {accept.text}")
        recovering = [name for name in accept.members if name != around.settings.name]
        if recovering:
            around.note("info", f"Recovering backups: {', '.join(recovering)}")
        self._report_phase()
        self._announce(accept.generation)
        around.want_turn()
        self._answer(promotion.request, True, f"primary of generation {accept.generation}")

    def _write_generation(self, promotion: Promotion, granted: Granted, change: Change) -> int:
        name, primary = self._around.settings.name, self._primary
        cluster = granted.cluster or self._around.settings.instance
        log, state = self._resources.log, self._resources.state
        started = GenerationStarted(
            granted.accept.generation, name, cluster, self._around.wall_ms, promotion.force, promotion.cause
        )
        start_lsn = log.append(started)
        state.apply(start_lsn, started)
        changed = InSyncChanged(change.epoch, change.members)
        in_sync_lsn = log.append(changed)
        state.apply(in_sync_lsn, changed)
        if primary is not None:
            primary.began(start_lsn, in_sync_lsn)
        if promotion.force:
            self._around.note("warning", "promoted by force: messages that only other brokers hold are given up")
        return start_lsn

    def _announce(self, generation: int) -> None:
        settings = self._around.settings
        question = fr.Question(
            self._around.number(), fr.Topic.ANNOUNCE, settings.name, settings.instance, self.cluster, generation,
            self._backup.held_lsn, settings.own_address,
        )  # fmt: skip
        addresses = tuple(each for each in settings.addresses if each != settings.own_address)
        self._around.effects.append(fx.Ask(question, addresses, settings.ask_limit_s))

    def _demote_asked(self, what: fx.DemoteAsked) -> None:
        if self._primary is None:
            self._answer(what.request, False, f"this broker is {self.state}: only a primary can be demoted")
        elif self._demotion is not None or self._handover is not None:
            self._answer(what.request, False, "this broker is being demoted already: wait for that")
        else:
            self._demotion = what.request
            self._around.effects.append(fx.EndClients())

    def _clients_ended(self, _: fx.ClientsEnded) -> None:
        request, self._demotion = self._demotion, None
        to = self._handover[1].asker if self._handover is not None else ""
        self._end_primary(f"handed over to {to}" if to else "demoted by an operator")
        if request is not None:
            self._answer(request, True, "demoted; promote another broker")
        if self._switchover is not None:
            self._answer(self._switchover[0], True, f"{to or 'another broker'} takes over")
            self._switchover = None

    def _switchover_asked(self, what: fx.SwitchoverAsked) -> None:
        if self._primary is None:
            self._answer(
                what.request,
                False,
                f"this broker is {self.state}: ask the primary, {self.primary_name or 'once there is one'}",
            )
            return
        fit = [each for each in self._primary.links.values() if each.name in self._primary.in_sync and each.is_level]
        chosen = [each for each in fit if not what.to or each.name == what.to]
        if not chosen:
            names = ", ".join(each.name for each in fit) or "no backup"
            self._answer(what.request, False, f"{what.to or 'no backup'} is not ready to take over; ready: {names}")
            return
        best = max(chosen, key=lambda each: each.acknowledged)
        self._switchover = what.request, best.name, self._around.now_s
        self._around.send(best.link, fr.TakeOver(self._primary.generation))

    def _take_over(self, link: int, frame: fr.TakeOver) -> None:
        if link == self._backup.link and self._backup.stage is Stage.FOLLOWING:
            self._promote_asked(fx.PromoteAsked(0, False, f"switchover from {self._backup.primary}"))

    # --- questions and answers

    def _question(self, link: int, question: fr.Question) -> None:
        granted, text = True, ""
        cluster = self.cluster
        if cluster and question.cluster and question.cluster != cluster:
            granted, text = False, f"this broker belongs to the cluster {cluster}"
        elif question.topic is fr.Topic.STEP_DOWN:
            text = self._asked_to_step_down(link, question)
            if not text:
                return  # answered once clients are gone
            granted = False
        elif question.topic is fr.Topic.CLAIM:
            text = self._claimed(question)
            granted = not text
        elif question.topic is fr.Topic.WITHDRAW:
            self._claims.withdraw(question)
        elif question.topic is fr.Topic.ANNOUNCE:
            self._announced(question)
        self._around.send(link, self.status(question.number, granted, text))

    def _asked_to_step_down(self, link: int, question: fr.Question) -> str:
        primary = self._primary
        if primary is None:
            return f"this broker is {self.state}"
        if question.generation > primary.generation:
            self._step_down(f"{question.asker} knows generation {question.generation}")
            return "this broker has just stepped down"
        if question.asker not in primary.in_sync:
            return f"{question.asker} is not in sync: {', '.join(primary.in_sync.members)} are"
        if self._handover is not None or self._demotion is not None:
            return "this broker is handing over already"
        self._around.note("info", f"{question.asker} takes over: clients are sent away")
        self._handover = link, question
        self._around.effects.append(fx.EndClients())
        return ""

    def _claimed(self, question: fr.Question) -> str:
        """Why this broker does not follow the candidate; empty: it promises to follow nobody older."""
        if self._primary is not None:
            return f"this broker is primary of generation {self._primary.generation}"
        promotion = self._promotion
        if promotion is not None:
            own = self.position.lsn, self._around.settings.name
            if own > (question.lsn, question.asker) or promotion.step in (Step.FILING, Step.ENDED):
                return "this broker is being promoted itself"
        refused = self._claims.promise(question, self.generation)
        if refused:
            return refused
        if promotion is not None:
            self._promoted(promotion.give_up(f"{question.asker} is being promoted and is further"))
        if self._backup.stage is not Stage.SEARCHING:
            self._give_up(f"{question.asker} becomes primary of generation {question.generation}")
        return ""

    def _announced(self, question: fr.Question) -> None:
        if self._primary is not None:
            mine = self._primary.generation, question.asker
            theirs = question.generation, self._around.settings.name
            if mine < theirs:  # of two in one generation, which a coordinator would have prevented, one remains
                self._step_down(f"{question.asker} is primary of generation {question.generation}")
        if self._primary is None and question.generation >= max(self.generation, self._claims.promised[0]):
            self._claims.forget()
            if self._promotion is not None:
                self._promoted(self._promotion.give_up(f"{question.asker} has become primary"))
            if self._backup.stage is Stage.FOLLOWING and self._backup.generation < question.generation:
                self._give_up(f"{question.asker} is primary of generation {question.generation}")
            if self._backup.stage is not Stage.FOLLOWING and self._promotion is None:
                self._go_to(question.address)

    def _go_to(self, address: str) -> None:
        if self._backup.stage is not Stage.SEARCHING:
            if address and address == self._backup.address:
                return
            self._around.close(self._backup.link, "the primary is elsewhere")
        self._backup.search(at_once=True)
        self._backup.try_next(address if address in self._around.settings.addresses else "")

    def _peers_answered(self, what: fx.PeersAnswered) -> None:
        if self._primary is not None:
            newer = self._filing.peers_answered(self._primary, what)
            if newer:
                self._step_down(newer)
            self._after_change()
        elif self._promotion is not None:
            self._promoted(self._promotion.answered(what))

    def _record_read(self, what: fx.RecordRead) -> None:
        if self._promotion is not None and self._primary is None:
            self._promoted(self._promotion.record_read(what.record))

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
        if (self._primary is not None) != (self.state is State.PRIMARY):
            raise AssertionError(f"{self.state}, but the role is {'primary' if self._primary else 'backup'}")
        self._tail.check_invariants()
        if self._primary is not None:
            self._primary.check_invariants()
        else:
            self._backup.check_invariants()
