"""What a member of a cluster is, and what each input makes of it: the four roles, and the table of roles and inputs.

`TABLE` has a row for each input and each frame, and a column for each role; a cell names the method that handles it. A
pair without a cell is a bug, and a test looks for it. docs/states.md shows the table.

    Connecting   has no primary, and looks for one
    Following    a primary has welcomed it, and sends what it lacks and what is new
    Candidate    is being promoted; until that is decided it goes on as the standby (Connecting or Following) it was
    Leader       writes the log: a primary in a cluster, or a standalone broker

A role changes in one place, `MemberParts.become`, which checks the transition against `states.TRANSITIONS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from qpid_ha_broker.events.types import GenerationStarted, InSyncChanged, TransientsLost
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.epoch_recorder import Deposed, EpochRecorder
from qpid_ha_broker.ha.history import SWITCHOVER_FROM, problem
from qpid_ha_broker.ha.in_sync import InSyncChange
from qpid_ha_broker.ha.link_ends import STOPPING, LinkEnd
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.primary_channel import PrimaryChannel
from qpid_ha_broker.ha.promotion import AttemptStep, Granted, Outcome, OwnEvidence, Promotion
from qpid_ha_broker.ha.replica import STREAM_ERRORS, Replica, Restored, StreamError
from qpid_ha_broker.ha.states import Cause, Phase, State, StateMachine
from qpid_ha_broker.ha.step_down import ClusterShutdown, StepDown
from qpid_ha_broker.ha.verdict import NONE_COMMITTED, TOLD_OF_NONE, Refusal, ToldGeneration, told_commit
from qpid_ha_broker.ha.votes import UnresolvedRecordWrite, Votes

STANDALONE_REFUSAL: Final = "this broker is in no cluster: set ha.cluster: true and ha.brokers-url, and restart it"
"""To whatever needs other brokers."""
_VERIFY_AGAIN_S: Final = 6.0
"""Between two looks of a backup at a record that did not name its primary, or could not be read: longer than an answer
takes."""
CLOCKS_AGREE_MS: Final = 2000
"""Clocks of brokers that differ by less need no word."""
NEEDS_CLUSTER: Final = (fx.PromoteAsked, fx.DemoteAsked, fx.SwitchoverAsked, fx.DropAsked, fx.ShutdownAsked)
"""Requests that a standalone broker refuses."""


class UnexpectedInput(Exception):
    """A bug: the driver fed what cannot happen in this role."""


class MemberParts:
    """What a member keeps whatever its role, and the one way from a role to the next."""

    def __init__(self, ctx: MemberContext, restored: Restored) -> None:
        self.ctx = ctx
        self.replica = Replica(ctx, restored)
        self.channel = PrimaryChannel(ctx)
        self.votes = Votes(ctx, restored)
        self.unresolved = UnresolvedRecordWrite(ctx, self.votes)
        self.confirmed_record: ClusterRecord | None = None
        """The last record that the coordinator has confirmed to this process."""
        self.told = TOLD_OF_NONE
        self.told_committed = NONE_COMMITTED
        """Both by those who were asked before a promotion, since this broker has had a primary."""
        self.refusal: str | None = None
        """Of the last promotion, until this broker has a primary or is one."""
        self.machine = StateMachine(State.LOADING)
        self.role: Role = Connecting(self)

    def become(self, role: Role, cause: Cause, reason: str) -> None:
        """The next role. Raises UnknownTransition."""
        before, after = self.machine.move(cause)
        was_leading = self.role.primary is not None
        self.role = self.role.followed_by(role)
        if was_leading and self.role.primary is None:
            self.ctx.resource_set.log.end_writing()
        self.refusal = None
        self.ctx.is_status_stale = True
        self.ctx.replication.read_only = "" if self.role.primary is not None else f"this broker is {after}, not primary"
        self.ctx.effects.append(fx.StateChanged(before, after, reason))

    def answer(self, number: int = 0, granted: bool = True, text: str = "") -> fr.Answer:
        """What this broker answers to another one."""
        settings, replica = self.ctx.settings, self.replica
        in_sync = replica.history.in_sync(replica.store)
        promised, promised_to = self.votes.promised
        committed = replica.committed_position
        return fr.Answer(
            number=number,
            name=settings.name,
            instance=settings.instance,
            cluster=replica.history.cluster or settings.cluster,
            state=self.machine.state.value,
            generation=replica.history.generation,
            epoch=in_sync.epoch,
            members=in_sync.members,
            newest_members=replica.history.newest_in_sync().members,
            lsn=replica.held_lsn,
            complete=replica.complete,
            promised=promised,
            promised_to=promised_to,
            granted=granted,
            text=text,
            min_in_sync=settings.min_in_sync,
            store=replica.store,
            committed_generation=committed.generation,
            committed_lsn=committed.lsn,
            claims=self.votes.claims,
        )

    def evidence(self) -> OwnEvidence:
        """What a candidate knows of itself."""
        replica = self.replica
        newest = replica.history.newest_generation()
        return OwnEvidence(
            answer=self.answer(),
            primary=newest.primary if newest is not None else "",
            is_chosen=replica.is_chosen,
            committed=replica.committed_in_sync(),
            record=self.confirmed_record,
            told=self.told,
            told_committed=self.told_committed,
            lacks_transient=replica.lacks_transient,
        )

    def note_answers(self, answers: Sequence[fr.Answer]) -> None:
        """Remember the newest generation and commit: who knows of them may not answer the next time."""
        related = [each for each in answers if each.cluster == self.replica.history.cluster]
        told = [ToldGeneration(each.generation, each.name) for each in related]
        self.told = max([self.told, *told], key=lambda each: each.generation)
        self.told_committed = max([self.told_committed, *map(told_commit, related)])
        steady_ms = self.ctx.steady_ms()
        for each in related:
            if each.clock_ms:
                self.ctx.resource_set.catalog.clock.note_peer(each.name, each.clock_ms, steady_ms)


class RoleView(NamedTuple):
    """What a role adds to `MemberStatus`, which says what each field means."""

    primary: str = ""
    primary_address: str = ""
    primary_broker_address: str = ""
    phase: Phase | None = None
    login_problem: str = ""
    problem: str = ""
    is_closing: bool = False
    observes: str = ""


class Role(ABC):
    """What a member is now, as `Member` sees it."""

    primary: Primary | None = None
    """Of the leader."""
    awaits_successor = False
    """It has handed over, and has no channel to the next primary yet, which waits for it as for all in sync."""

    def __init__(self, parts: MemberParts) -> None:
        self._parts = parts
        self._ctx = parts.ctx
        self._replica = parts.replica

    @abstractmethod
    def handle(self, happened: fx.Input) -> None:
        """One input."""

    def followed_by(self, role: Role) -> Role:
        """What a member is once this role, or the standby in it, has become `role`."""
        return role

    def view(self) -> RoleView:
        """Of one that does not lead."""
        channel = self._parts.channel
        problem = channel.login_problem or channel.stream_problem or self._parts.refusal or ""
        return RoleView(login_problem=channel.login_problem, problem=problem)

    @property
    def committed_lsn(self) -> int:
        """Up to there nobody can take anything back, as far as this broker knows."""
        return self._replica.committed_lsn

    def check_invariants(self) -> None:
        """Raise AssertionError where a promise is broken; called after each step in tests."""
        self._replica.check_invariants()


class ActiveRole(Role):
    """A role with a column in `TABLE`. Methods that a cell names take the input, or a link and a frame of it."""

    column: ClassVar[str]
    """Of `TABLE`."""

    def __init__(self, parts: MemberParts) -> None:
        super().__init__(parts)
        self._handlers = HANDLERS[self.column]
        """Names of methods."""

    def handle(self, happened: fx.Input) -> None:
        """One input. Raises KeyError where the table has no row, which is a bug."""
        getattr(self, self._handlers[type(happened)])(happened)

    # --- cells that several roles share

    def ignore(self, happened: Any, frame: Any = None) -> None:
        """Nothing follows from it here."""

    def never(self, happened: Any) -> None:
        """A bug of the driver."""
        raise UnexpectedInput(f"{type(happened).__name__} while {self._parts.machine.state}")

    def dispatch(self, received: fx.FrameReceived) -> None:
        """A frame: by its type."""
        getattr(self, self._handlers[type(received.frame)])(received.link, received.frame)

    def reject(self, link: int, frame: fr.Frame) -> None:
        """Nobody asked for such a frame."""
        self.frame_damaged(fx.FrameDamaged(link, f"{type(frame).__name__} was not asked for"))

    def frame_damaged(self, damaged: fx.FrameDamaged) -> None:
        """Nothing more is believed of that channel."""
        self._ctx.note("error", f"a damaged frame came: {damaged.problem}; the channel is given up")
        self._ctx.close(damaged.link, damaged.problem)
        self.link_lost(fx.LinkLost(damaged.link, damaged.problem))

    @abstractmethod
    def link_lost(self, lost: fx.LinkLost) -> None:
        """A channel is gone."""

    def persisted(self, happened: fx.Persisted | fx.CheckpointPersisted) -> None:
        """The store holds more of the log, or a whole state."""
        if isinstance(happened, fx.Persisted):
            self._replica.durable.persisted(happened.number)
        else:
            self._replica.durable.checkpoint_persisted(happened.number)

    def lose_store(self, _: fx.StoreFailed) -> None:
        """What comes from now on is held in memory only."""
        self._replica.durable.note_writable("")
        self._replica.mark_store_failed()

    def store_writable(self, happened: fx.StoreWritable) -> None:
        """The store takes what it is given, or does not."""
        self._replica.durable.note_writable(happened.problem)

    def note_identity(self, seen: fx.CoordinatorSeen) -> None:
        """It was read which one this broker goes by."""
        self._ctx.coordinator = seen
        self._ctx.is_status_stale = True

    def reply(self, link: int, question: fr.Question) -> None:
        """Another broker asks. The topic decides who answers; a step-down is answered once clients are gone."""
        refusal: Refusal | None = None
        granted, text, cluster = True, "", self._replica.history.cluster
        if question.set != self._ctx.resource_set.name:
            refusal = Refusal(f"there is no resource set {question.set} here")
        elif question.instance == self._ctx.settings.instance:
            text = "this is the broker that asks"
        elif cluster and question.cluster and question.cluster != cluster:
            refusal = Refusal(f"this broker belongs to the cluster {cluster}")
            self._ctx.was_asked_by_stranger = True
        elif question.topic is fr.Topic.STATUS:
            refusal = self.why_not_trusted()
        elif question.topic is fr.Topic.STEP_DOWN:
            refusal = self.step_down_asked(link, question)
            if refusal is None:
                return
        elif question.topic is fr.Topic.CLAIM:
            if self._ctx.store_problem:  # a vote that it could not keep; and a refusal would count as one
                return
            refusal = self.vote_asked(question)
        elif question.topic is fr.Topic.WITHDRAW:
            self._parts.votes.withdraw(question)
        elif question.topic is fr.Topic.ANNOUNCE:
            self.primary_announced(question)
        if refusal is not None:
            granted, text = False, refusal.text
        answer = self._parts.answer(question.number, granted, text)
        if question.topic is fr.Topic.STATUS and question.request == fr.WITH_CLOCK and answer.generation:
            answer = answer._replace(clock_ms=self._ctx.message_time_ms())
        elif question.topic is fr.Topic.STATUS and question.request == fr.WITH_IDENTITY:
            identity, place = self._ctx.coordinator
            answer = answer._replace(record_identity=identity, record_place=place)
        self._ctx.send(link, answer)

    def why_not_trusted(self) -> Refusal | None:
        """Why nobody else should be promoted now, although this broker does not lead."""
        return None

    def step_down_asked(self, link: int, question: fr.Question) -> Refusal | None:
        """A candidate wants to take over from this broker."""
        return Refusal(f"this broker is {self._parts.machine.state}")

    @abstractmethod
    def vote_asked(self, question: fr.Question) -> Refusal | None:
        """A candidate wants this broker to follow nobody older."""

    @abstractmethod
    def primary_announced(self, question: fr.Question) -> None:
        """Somebody has become primary."""

    def stop(self, _: fx.Stopping) -> None:
        """The process will end."""
        self.end()
        self._parts.become(Stopped(self._parts), Cause.STOPPED, "stopping")

    def end(self) -> None:
        """Let go of what the process holds."""


class Standby(ActiveRole):
    """Not the leader: it has a channel to a primary, or looks for one."""

    @property
    def is_top(self) -> bool:
        """Whether it is what the member is; if not, it is being promoted meanwhile."""
        return self._parts.role is self

    # --- requests

    def refuse_to_demote(self, asked: fx.DemoteAsked) -> None:
        """Only a primary can be demoted."""
        text = f"this broker is {self._parts.machine.state}: only a primary can be demoted"
        self._ctx.answer(asked.request, False, text)

    def refuse_ask_primary(self, asked: fx.SwitchoverAsked | fx.DropAsked | fx.ShutdownAsked) -> None:
        """That is for the primary."""
        primary = self.view().primary or "once there is one"
        text = f"this broker is {self._parts.machine.state}: ask the primary, {primary}"
        self._ctx.answer(asked.request, False, text)

    def begin_promotion(self, asked: fx.PromoteAsked) -> None:
        """Become a candidate. Not while the store takes nothing: that this broker wants to lead has to be on its disk
        first, and it could confirm nothing."""
        problem = self._ctx.store_problem
        if problem:
            text = f"the store of {self._ctx.settings.name} cannot be written: {problem}; have another broker lead"
            self._ctx.answer(asked.request, False, text)
            return
        candidate = Candidate(self._parts, self, asked)
        self._parts.role = candidate
        candidate.promotion.begin()

    def record_read(self, read: fx.RecordRead) -> None:
        """Whether the record names this broker primary, if that is not known."""
        self._parts.unresolved.record_read(read.number, read.record)

    # --- other brokers

    def refuse_to_lead(self, link: int, frame: fr.Hello | fr.Follow) -> None:
        """Somebody looks for the primary."""
        text = f"this broker is {self._parts.machine.state}, not primary"
        where = self._parts.channel.address if self.view().primary else ""
        self._ctx.send(link, fr.Refused(fr.RefusalCode.NOT_PRIMARY, text, where))
        self._ctx.close(link, text)

    def vote_asked(self, question: fr.Question) -> Refusal | None:
        """Vote for the candidate, and follow nobody from now on, unless there is a reason not to."""
        refusal = self._parts.votes.vote(question, self._replica.history.generation)
        if refusal is None and self._parts.channel.link:
            self.give_up(f"{question.asker} becomes primary of generation {question.generation}")
        return refusal

    def primary_announced(self, question: fr.Question) -> None:
        """Go there, unless it is older than what is known."""
        votes = self._parts.votes
        if question.generation < max(self._replica.history.generation, votes.oldest_followable):
            return
        votes.end_wait()
        self.go_to_primary(question)

    def go_to_primary(self, question: fr.Question) -> None:
        """Dial it."""
        channel, address = self._parts.channel, question.address
        if channel.link:
            if address and address == channel.address:
                channel.is_announced = True
                return
            self._ctx.close(channel.link, "the primary is elsewhere")
        channel.search(at_once=True)
        channel.dial(address if address in self._ctx.settings.addresses else "")

    # --- the channel

    def link_lost(self, lost: fx.LinkLost) -> None:
        """Look for the primary again if it was the channel to it."""
        channel = self._parts.channel
        if lost.link == channel.link:
            channel.note_refusal(lost.reason, lost.end)
            channel.note_end(lost.end)
            self.lose_primary(lost.reason)

    def refused(self, link: int, frame: fr.Refused) -> None:
        """The other side does not lead, or does not want this broker."""
        channel = self._parts.channel
        if link != channel.link:
            return
        if frame.code in (fr.RefusalCode.OTHER_CLUSTER, fr.RefusalCode.VERSION):
            self._ctx.effects.append(fx.Stop(f"refused by {channel.address}: {frame.text}"))
        elif frame.code is not fr.RefusalCode.NOT_PRIMARY:
            channel.log_refusal(frame.text)
        standby = self.give_up(frame.text)
        is_free = not channel.link and not self._parts.votes.is_awaited and standby.is_top
        if is_free and frame.primary_address in self._ctx.settings.addresses:
            channel.dial(frame.primary_address)

    def give_up(self, reason: str) -> Standby:
        """End the channel, and look for the primary again: what this standby is now."""
        self._ctx.close(self._parts.channel.link, reason)
        return self.lose_primary(reason)

    @abstractmethod
    def lose_primary(self, reason: str) -> Standby:
        """The channel is gone."""

    def tick(self, _: fx.Ticked) -> None:
        """A while went by."""
        self.tick_channel()
        self._parts.unresolved.tick()

    def tick_channel(self) -> None:
        """Dial, or give up a channel on which nothing comes."""
        reason = self._parts.channel.silence(self._ctx.settings.ask_limit_s)
        if reason is not None:
            self.give_up(reason)

    def end(self) -> None:
        """End the channel."""
        if self._parts.channel.link:
            self._ctx.close(self._parts.channel.link, STOPPING)


class Connecting(Standby):
    """Nobody leads, as far as this broker knows: it tries one address after the other."""

    column = "connecting"

    def start(self, _: fx.Started) -> None:
        """The store is loaded: look for the primary, or lead alone."""
        parts, ctx = self._parts, self._ctx
        if ctx.settings.is_standalone:
            lead_alone(parts)
            return
        if ctx.settings.has_coordinator and parts.votes.own_claim > self._replica.history.generation:
            parts.unresolved.begin(parts.votes.own_claim)  # the process before may have been recorded as primary
        ctx.replication.read_only = "this broker looks for the primary"
        self.search(at_once=True)

    def search(self, at_once: bool = False) -> None:
        """Look for the primary, after a pause unless `at_once`."""
        self._parts.channel.search(at_once)
        if at_once:
            self._dial_next()

    def search_lost(self) -> None:
        """The primary is lost: look for it, or for the next one."""
        if not self._parts.channel.search_lost():
            return
        if self._ctx.settings.looks_everywhere:
            self._dial_next()
        else:
            self.dial_again()

    def dial_again(self) -> None:
        """Try the address that was tried last, at once; after that everybody, from the first on."""
        self._parts.channel.search(at_once=True)
        if self._may_dial:
            self._parts.channel.dial_again()

    @property
    def _may_dial(self) -> bool:
        """Not while somebody is being promoted: this broker, or one that has its vote."""
        return self._parts.channel.is_due and self.is_top and not self._parts.votes.is_awaited

    def _dial_next(self) -> None:
        """Try the next address."""
        if self._may_dial:
            self._parts.channel.dial()

    def tick_channel(self) -> None:
        """Dial, or give up a channel on which nothing comes."""
        if self._parts.channel.link:
            super().tick_channel()
        else:
            self._dial_next()

    def lose_primary(self, reason: str) -> Standby:
        """That address did not lead to it; if a primary has announced itself there meanwhile, it does now."""
        channel = self._parts.channel
        if channel.is_announced:
            self.dial_again()
        elif channel.is_round_over:
            self.search()
        else:
            channel.try_next()
            self._dial_next()
        return self

    def greet(self, opened: fx.LinkOpened) -> None:
        """The channel is there: say hello."""
        parts, ctx, replica = self._parts, self._ctx, self._replica
        if opened.link != parts.channel.link:
            return
        parts.channel.opened()
        parts.channel.told_problem = ctx.store_problem
        settings = ctx.settings
        ctx.send(
            opened.link,
            fr.Hello(
                version=fr.PROTOCOL_VERSION,
                name=settings.name,
                instance=settings.instance,
                cluster=replica.history.cluster or settings.cluster,
                history=replica.history.entries(),
                last_lsn=replica.held_lsn,
                applied_lsn=ctx.resource_set.log.last_lsn,
                complete=replica.complete,
                lacks_transient=replica.lacks_transient,
                promised=parts.votes.oldest_followable,
                remembers=settings.has_store or replica.complete,
                set=ctx.resource_set.name,
                started=replica.history.started() if parts.channel.greeting.is_full else (),
                reads_clock=parts.channel.greeting.is_full,
                store_problem=parts.channel.told_problem if parts.channel.greeting.has_marks else "",
                reads_marks=parts.channel.greeting.has_marks,
                reads_schedules=parts.channel.greeting.has_schedules,
                reads_annotations=parts.channel.greeting.has_annotations,
                reads_details=parts.channel.greeting.is_newest,
            ),
        )

    def welcomed(self, link: int, welcome: fr.Welcome) -> None:
        """Follow, unless somebody newer is known, or this broker is about to lead."""
        parts, ctx = self._parts, self._ctx
        if link != parts.channel.link or not parts.channel.is_open:
            return
        newest = max(self._replica.history.generation, parts.votes.oldest_followable)
        if welcome.generation < newest:
            ctx.note("warning", f"{welcome.name} is primary of generation {welcome.generation}; {newest} is known")
            self.give_up("an older generation")
            return
        if self._is_being_recorded:
            self.give_up("this broker is about to lead")
            return
        ctx.note("info", f"Connected to primary {welcome.name} at {parts.channel.address}")
        parts.votes.end_wait()
        parts.channel.heard()
        try:
            frames = self._replica.follow(welcome)
        except STREAM_ERRORS as error:
            ctx.note("error", f"the primary's welcome does not fit: {error}")
            parts.channel.stream_refused("welcome", error)
            self.give_up(str(error))
            return
        for frame in frames:
            ctx.send(link, frame)
        parts.channel.welcomed()
        # An operator may have had this generation begin without whoever knew of those.
        parts.told, parts.told_committed = TOLD_OF_NONE, NONE_COMMITTED
        following = Following(parts, welcome)
        parts.become(following, Cause.WELCOMED, f"welcomed by the primary {welcome.name}")
        following.acknowledge()

    @property
    def _is_being_recorded(self) -> bool:
        """The verdict is spoken and is not asked for again: what this broker holds must stay what was judged."""
        role = self._parts.role
        return isinstance(role, Candidate) and role.promotion.step is AttemptStep.RECORDING


class Following(Standby):
    """A primary has welcomed this broker. In sync once it holds all that is confirmed, and the primary waits for it.

    The promise: no LSN is acknowledged before everything up to it is held, unbroken, checked, and in the store.
    """

    column = "following"

    def __init__(self, parts: MemberParts, welcome: fr.Welcome) -> None:
        super().__init__(parts)
        self._welcome = welcome
        self.generation = welcome.generation
        """Of the primary."""
        self._target_lsn = 0
        """Level once it is applied up to there; 0 before the primary has said so."""
        self._chunks = 0
        """Of a comparison; taken in so far."""
        self._acknowledged = 0, 0
        """LSN and chunks that the primary was told."""
        self._sent_s = 0.0
        self._verification = 0
        """Number of the request for the record, since this broker is level; 0: none was made."""
        self._verification_s = 0.0
        self._observes = ""
        """Why the primary does not wait for this broker, as it said last; empty: it did not."""
        self._clock = self._ctx.resource_set.catalog.clock
        self._clock.follow()

    def view(self) -> RoleView:
        """And where its primary is found."""
        address = self._parts.channel.address
        clients_url = self._welcome.clients_url or address
        return (
            super()
            .view()
            ._replace(
                primary=self._welcome.name,
                primary_address=clients_url,
                primary_broker_address=address,
                observes=self._observes if self._parts.machine.state is State.OBSERVER else "",
            )
        )

    @property
    def is_level(self) -> bool:
        """Whether it holds everything that the primary has confirmed, and the primary waits for it."""
        return self._has_all and self._ctx.settings.name in self._ctx.resource_set.state.in_sync.members

    @property
    def _has_all(self) -> bool:
        """Whether it lacks nothing of what it was to be sent."""
        target_lsn = self._target_lsn
        return target_lsn > 0 and self._replica.complete and self._ctx.resource_set.log.last_lsn >= target_lsn

    # --- the stream

    def take(self, link: int, frame: Any) -> None:
        """What the primary sends. One that does not fit ends the channel, and leaves what is held as it was."""
        parts, ctx = self._parts, self._ctx
        if link != parts.channel.link:
            return
        if frame.generation != self.generation:
            text = f"{type(frame).__name__} of generation {frame.generation}, the primary's is {self.generation}"
            ctx.note("error", f"{text}: the channel is given up")
            self.give_up(text)
            return
        parts.channel.heard()
        try:
            _STREAM[type(frame)](self, frame)
        except STREAM_ERRORS as error:
            ctx.note("error", f"the primary's stream does not fit: {error}; connecting anew")
            parts.channel.stream_refused("stream", error)
            self.give_up(str(error))
            return
        if self._is_in_step():
            self.acknowledge()
        else:
            self.give_up("the primary has dropped this broker from the in-sync set")

    def _is_in_step(self) -> bool:
        """Become what this broker is by now to its primary; False: one that is out of the in-sync set, unexpectedly."""
        parts = self._parts
        is_ready = parts.machine.state is State.READY
        if self.is_level is is_ready:
            if not is_ready and self._observes and self._has_all and parts.machine.state is State.CATCHUP:
                parts.become(self, Cause.NOT_WAITED_FOR, self._observes)
            return True
        if is_ready:
            if self._observes:
                parts.become(self, Cause.NOT_WAITED_FOR, self._observes)
            return bool(self._observes)
        self._observes = parts.channel.stream_problem = ""
        self._replica.mark_level()
        parts.become(self, Cause.CAUGHT_UP, "in sync")
        self._verify_primary()
        return True

    def _verify_primary(self) -> None:
        """Have the record read, while this process does not know that what it holds counts (`StoreOrigin`).

        If it names this primary now, nothing newer was confirmed before, and what is confirmed from now on this broker
        holds as long as the record has its name. If it names another one, this primary has slept.
        """
        if self._replica.store is fr.StoreOrigin.UNVERIFIED and self._parts.machine.state is State.READY:
            self._verification, self._verification_s = self._ctx.number(), self._ctx.clock_s
            self._ctx.effects.append(fx.ReadRecord(self._verification))

    def record_read(self, read: fx.RecordRead) -> None:
        """What the coordinator holds."""
        super().record_read(read)
        if read.number != self._verification or read.record is None:
            return
        leading = self._replica.history.cluster, self.generation, self._welcome.name
        if read.record[:3] == leading:
            self._replica.mark_verified()

    def _take_chunk(self, frame: fr.Chunk) -> None:
        self._replica.catch_up_chunk(frame)
        self._chunks += 1

    def _caught_up(self, frame: fr.CaughtUp) -> None:
        self._replica.caught_up()
        self._target_lsn = max(frame.lsn, 1)

    def _observe(self, frame: fr.Observe) -> None:
        self._observes = frame.why
        self._ctx.is_status_stale = True

    def acknowledge(self) -> None:
        """Tell the primary how far we are, if it does not know. Of one that observes, its heartbeats tell."""
        position = self._replica.acknowledged_lsn, self._chunks
        if position != self._acknowledged and not self._is_not_waited_for:
            self._send_position(position)

    @property
    def _is_not_waited_for(self) -> bool:
        """Whether it observes, and nothing that it holds says that this is about to end."""
        if self._parts.machine.state is not State.OBSERVER or not self._ctx.settings.has_heartbeats:
            return False
        return self._ctx.settings.name not in self._replica.history.newest_in_sync().members

    def _send_position(self, position: tuple[int, int]) -> None:
        self._acknowledged = position
        self._sent_s = self._ctx.clock_s
        self._ctx.send(self._parts.channel.link, fr.Ack(self.generation, *position))

    def persisted(self, happened: fx.Persisted | fx.CheckpointPersisted) -> None:
        """The store holds more: so does this broker."""
        super().persisted(happened)
        self.acknowledge()

    def store_writable(self, happened: fx.StoreWritable) -> None:
        """Publishers do not wait for one that says that it cannot write."""
        super().store_writable(happened)
        if not happened.problem:
            self._parts.channel.told_problem = ""
        self._leave_if_unwritable()

    def _leave_if_unwritable(self) -> None:
        """Be in sync no more, as whoever ends its channel. The next one begins with why, and this broker is in sync
        again once its store has all that it lacks."""
        problem, name = self._ctx.store_problem, self._ctx.settings.name
        is_waited_for = name in self._replica.history.newest_in_sync().members
        if problem and not self._parts.channel.told_problem and is_waited_for:
            self.give_up(f"the store of {name} cannot be written: {problem}")

    # --- the channel

    def tick_channel(self) -> None:
        """A heartbeat if one is due."""
        settings = self._ctx.settings
        reason = self._parts.channel.silence(settings.link_timeout_s) if settings.has_heartbeats else None
        if reason is not None:
            self.give_up(reason)
            return
        if settings.has_heartbeats and self._ctx.clock_s - self._sent_s >= settings.heartbeat_interval_s:
            self._send_position((self._replica.acknowledged_lsn, self._chunks))
        if self._ctx.clock_s - self._verification_s >= _VERIFY_AGAIN_S:
            self._verify_primary()
        self._leave_if_unwritable()

    def go_to_primary(self, question: fr.Question) -> None:
        """Leave this primary for a newer one."""
        if self.generation < question.generation:
            standby = self.give_up(f"{question.asker} is primary of generation {question.generation}")
            standby.go_to_primary(question)

    def lose_primary(self, reason: str) -> Standby:
        """Nothing more comes from it."""
        parts = self._parts
        self._replica.abandon_catch_up()
        self._ctx.note("warning", f"lost the primary at {parts.channel.address}: {reason}")
        connecting = Connecting(parts)
        parts.become(connecting, Cause.LINK_LOST, reason)
        connecting.search_lost()
        return connecting

    # --- what only its primary may tell it

    def take_over(self, link: int, frame: fr.TakeOver) -> None:
        """The primary wants this broker to lead."""
        if link == self._parts.channel.link:
            self._parts.role.handle(fx.PromoteAsked(0, False, f"{SWITCHOVER_FROM}{self.view().primary}"))

    def shut_down(self, link: int, frame: fr.Shutdown) -> None:
        """The primary shuts the whole cluster down: mark the store if it holds the same."""
        if link != self._parts.channel.link or frame.generation != self.generation:
            return
        observes = self._parts.machine.state is State.OBSERVER
        is_whole = self._replica.held_lsn == frame.lsn and (self._has_all if observes else self.is_level)
        self._replica.commit(frame.lsn)
        self._ctx.note("info", f"{self.view().primary} shuts the cluster down")
        self._ctx.effects.append(fx.CleanEnd(frame.uuid if is_whole else ""))
        self._parts.become(Stopped(self._parts), Cause.STOPPED, "the cluster is shut down")

    def check_invariants(self) -> None:
        """And that nothing is acknowledged that is not held."""
        super().check_invariants()
        if self._acknowledged[0] > self._replica.held_lsn:
            raise AssertionError(f"acknowledged LSN {self._acknowledged[0]}, but holds {self._replica.held_lsn}")


_STREAM: Final[dict[type, Callable[[Following, Any], None]]] = {
    fr.Batch: lambda role, frame: role._replica.append(frame),
    fr.Objects: lambda role, frame: role._replica.catch_up_objects(frame, role._welcome),
    fr.Chunk: Following._take_chunk,
    fr.CaughtUp: Following._caught_up,
    fr.Observe: Following._observe,
    fr.Heartbeat: lambda role, frame: role._replica.commit(frame.committed_lsn),
    fr.ClockReading: lambda role, frame: role._clock.told(frame.now_ms, role._ctx.steady_ms()),
}
"""What a primary sends. Of the class and not of each role: one begins with every connection to a primary, and with its
own methods in a table of its own nothing but a collector would free it."""


class Candidate(ActiveRole):
    """Being promoted. Whatever is no answer to that is for the standby that it was, and is again if it is refused."""

    column = "candidate"

    def __init__(self, parts: MemberParts, standby: Standby, asked: fx.PromoteAsked) -> None:
        super().__init__(parts)
        self.standby = standby
        self.promotion = Promotion(parts.ctx, asked, parts.evidence, self._claim)

    def _claim(self, generation: int, recorded: int) -> None:
        self._parts.votes.claim(generation, self._replica.history.generation, recorded)

    def followed_by(self, role: Role) -> Role:
        """Its standby may change; it stays a candidate until that is decided."""
        if not isinstance(role, Standby):
            return role
        self.standby = role
        return self

    def view(self) -> RoleView:
        """As its standby."""
        return self.standby.view()

    # --- what the standby does

    def link_lost(self, lost: fx.LinkLost) -> None:
        """It may be the standby's."""
        self.as_standby(lost)

    def as_standby(self, happened: fx.Input) -> None:
        """Have the standby handle it; the end of the old primary's stream may have come with it, or be lost."""
        self.standby.handle(happened)
        self._decide_if_held()

    def as_standby_frame(self, link: int, frame: fr.Frame) -> None:
        """The same for a frame."""
        self.as_standby(fx.FrameReceived(link, frame))

    def _decide_if_held(self) -> None:
        if self._parts.role is self:
            self.decide(self.promotion.held())

    def tick(self, happened: fx.Ticked) -> None:
        """A while went by: perhaps too long."""
        self.standby.tick_channel()
        self._decide_if_held()
        if self._parts.role is self and self.promotion.ends_late():
            self.decide(self.promotion.give_up("it took too long; try again"))
        self._parts.unresolved.tick()

    # --- the promotion

    def join_promotion(self, asked: fx.PromoteAsked) -> None:
        """One at a time: who asks again for the same, because he has heard nothing, hears what comes of that."""
        if not self.promotion.join(asked):
            self._ctx.answer(asked.request, False, "this broker is being promoted already: wait for that")

    def peers_answered(self, answered: fx.PeersAnswered) -> None:
        """All peers were asked."""
        self._parts.note_answers(answered.answers)
        self.decide(self.promotion.answered(answered))

    def record_read(self, read: fx.RecordRead) -> None:
        """What the coordinator holds."""
        self._parts.unresolved.record_read(read.number, read.record)
        self.decide(self.promotion.record_read(read.number, read.record))

    def record_written(self, written: fx.RecordWritten) -> None:
        """The coordinator took the new generation, or holds something else."""
        self.decide(self.promotion.record_written(*written))

    def decide(self, outcome: Outcome) -> None:
        """Lead, or go on as the standby; None: not yet."""
        if isinstance(outcome, Granted):
            start_generation(self._parts, self.promotion, outcome)
        elif isinstance(outcome, Refusal):
            self._refused(outcome)

    def _refused(self, refusal: Refusal) -> None:
        parts, promotion = self._parts, self.promotion
        parts.role = self.standby
        if refusal.text != parts.refusal:  # an agent tries again and again
            self._ctx.note("warning", f"promotion refused: {refusal.text}")
        parts.refusal = refusal.text if parts.machine.state is State.CONNECTING else None
        self._ctx.is_status_stale = True
        if promotion.outcome_is_unknown:
            parts.unresolved.begin(promotion.wanted_generation)
        for request in promotion.requests:
            self._ctx.answer(request, False, refusal.text)
        if not parts.channel.link:
            parts.channel.search()

    # --- questions of other brokers

    def why_not_trusted(self) -> Refusal | None:
        """A primary has handed over to this broker, or is about to."""
        return Refusal(f"{self._ctx.settings.name} takes over from the primary") if self.promotion.takes_over else None

    def vote_asked(self, question: fr.Question) -> Refusal | None:
        """Of two candidates the one that is further goes on."""
        own = self._replica.held_lsn, self._ctx.settings.name
        if own > (question.lsn, question.asker) or self.promotion.step in (AttemptStep.RECORDING, AttemptStep.ENDED):
            return Refusal("this broker is being promoted itself")
        refusal = self._parts.votes.vote(question, self._replica.history.generation)
        if refusal is not None:
            return refusal
        self.decide(self.promotion.give_up(f"{question.asker} is being promoted and is further"))
        if self._parts.channel.link:
            standby = self.standby
            standby.give_up(f"{question.asker} becomes primary of generation {question.generation}")
        return None

    def primary_announced(self, question: fr.Question) -> None:
        """Somebody was faster."""
        votes = self._parts.votes
        if question.generation < max(self._replica.history.generation, votes.oldest_followable):
            return
        votes.end_wait()
        self.promotion.overtaken(question.asker, question.generation)
        self.decide(self.promotion.give_up(f"{question.asker} has become primary"))
        standby = self.standby
        if self._parts.role is standby:
            standby.go_to_primary(question)
        elif isinstance(standby, Following) and standby.generation < question.generation:
            standby.give_up(f"{question.asker} is primary of generation {question.generation}")

    def end(self) -> None:
        """End the standby's channel."""
        self.standby.end()

    def check_invariants(self) -> None:
        """Of the standby."""
        self.standby.check_invariants()


class Leader(ActiveRole):
    """This broker writes the log. The promise: it confirms what its in-sync set holds, and nothing once deposed."""

    column = "leader"
    primary: Primary

    def __init__(self, parts: MemberParts, primary: Primary) -> None:
        super().__init__(parts)
        self.primary = primary
        self._recorder = EpochRecorder(parts.ctx, primary, parts.answer, parts.confirmed_record)
        self._step_down = StepDown(parts.ctx)

    # --- what is seen of it

    def view(self) -> RoleView:
        """A standalone broker is in no phase: it never had a backup."""
        return RoleView(
            primary=self._ctx.settings.name,
            phase=None if self._ctx.settings.is_standalone else self.primary.phase,
            problem=self._recorder.problem or "",
            is_closing=self._step_down.shutdown is not None,
        )

    @property
    def committed_lsn(self) -> int:
        """What the in-sync set has committed."""
        return self._ctx.resource_set.log.committed_lsn

    # --- the log

    def turn_ended(self, ended: fx.TurnEnded) -> None:
        """Send what the turn wrote."""
        self.primary.turn_ended(ended.batch)
        self._go_on()

    def persisted(self, happened: fx.Persisted | fx.CheckpointPersisted) -> None:
        """The store holds more."""
        super().persisted(happened)
        self.primary.persisted()
        self._go_on()

    def _go_on(self) -> None:
        """Record what changed, and end with the cluster once everybody is level. Most inputs change neither."""
        if self._recorder.has_work:
            self._recorder.go_on()
        if self._step_down.shutdown is not None:
            self._go_on_shutting_down(self._step_down.shutdown)

    # --- backups

    def greeted(self, link: int, hello: fr.Hello) -> None:
        """A broker wants to follow. One that knows of a newer generation shows that this primary was deposed."""
        newest = max(hello.history[-1].generation if hello.history else 0, hello.promised)
        same_cluster = not hello.cluster or hello.cluster == self._replica.history.cluster
        same_set = hello.set == self._ctx.resource_set.name
        is_sound = not problem(hello.history, hello.last_lsn)
        if same_set and same_cluster and is_sound and newest > self.primary.generation:
            text = f"{hello.name} knows of generation {newest}"
            self._ctx.send(link, fr.Refused(fr.RefusalCode.STEPPED_DOWN, f"{text}: stepping down", ""))
            self._ctx.close(link, text)
            self._go_on_unless(Deposed(text))
            return
        self.primary.hello(link, hello)
        self._go_on()

    def copy_asked(self, link: int, frame: fr.Follow) -> None:
        """Somebody wants to keep a copy of one queue."""
        self.primary.followers.follow(link, frame, self._replica.history.entries(), self._replica.history.cluster)

    def acknowledged(self, link: int, frame: fr.Ack) -> None:
        """A backup says how far it is."""
        primary = self.primary
        if link not in primary.links:
            return
        try:
            primary.acknowledged(link, frame)
        except StreamError as error:
            name = primary.links[link].name
            self._ctx.note("error", f"backup {name} sent {error}: the channel is given up")
            self._ctx.close(link, str(error))
            primary.lost(link, str(error))
        self._go_on()

    def held_told(self, link: int, frame: fr.Holdings | fr.HoldingsDone) -> None:
        """A backup, or one that copies a queue, tells what it holds."""
        primary = self.primary
        if link not in primary.links:
            primary.followers.received(link, frame)
            return
        primary.held_told(link, frame)
        self._go_on()

    def link_lost(self, lost: fx.LinkLost) -> None:
        """A backup, or one that copies a queue, is gone."""
        if self.primary.followers.lost(lost.link, lost.reason):
            return
        backup = self.primary.links.get(lost.link)
        if backup is not None:
            self.primary.lost(lost.link, lost.reason, lost.end)
            if lost.end is LinkEnd.STOPPING:
                self._step_down.backup_stops(backup.name)
            self._go_on()

    def set_writable(self, happened: fx.LinkWritable) -> None:
        """Whether there is room on a channel for more than the live stream."""
        self.primary.set_writable(happened.link, happened.writable)

    def drop(self, asked: fx.DropAsked) -> None:
        """Somebody knows that a backup is gone: do not wait for it."""
        had_it = self.primary.drop(asked.backup, asked.reason)
        members = ", ".join(self.primary.in_sync.members)
        done = "is dropped" if had_it else "is not waited for"
        self._ctx.answer(asked.request, True, f"{asked.backup} {done}; in sync: {members}")
        self._go_on()

    def tick(self, _: fx.Ticked) -> None:
        """Heartbeats, and whoever was silent for too long; whether anybody else leads."""
        self.primary.tick()
        self._recorder.go_on()
        if self._step_down.shutdown is not None:
            self._go_on_shutting_down(self._step_down.shutdown)
        self._step_down.tick()

    # --- whether it is deposed

    def peers_answered(self, answered: fx.PeersAnswered) -> None:
        """What the others know."""
        self._parts.note_answers(answered.answers)
        self._go_on_unless(self._recorder.peers_answered(answered))

    def record_read(self, read: fx.RecordRead) -> None:
        """What the coordinator holds."""
        self._go_on_unless(self._recorder.record_read(read))

    def record_written(self, written: fx.RecordWritten) -> None:
        """What the coordinator holds now."""
        self._go_on_unless(self._recorder.record_written(written))

    def _go_on_unless(self, deposed: Deposed | None) -> None:
        """If somebody else leads, confirm nothing more."""
        if deposed is None:
            self._go_on()
        else:
            self._ctx.note("warning", f"stepping down: {deposed.reason}")
            self._step_back(deposed.reason)

    def _step_back(self, reason: str) -> Connecting:
        parts = self._parts
        self.end()
        connecting = Connecting(parts)
        connecting.awaits_successor = self._step_down.hands_over
        parts.become(connecting, Cause.DEMOTED, reason)
        self._step_down.ended(parts.answer)
        if self._step_down.shutdown is not None:
            self._step_down.shutdown.refuse("this broker stopped being primary: ask the next one")
        connecting.search()
        return connecting

    def end(self) -> None:
        """No longer primary. What its in-sync set has committed stays so."""
        self.primary.end()
        self._replica.committed_lsn = max(self._replica.committed_lsn, self.primary.in_sync.committed_lsn)
        self._parts.confirmed_record = self._recorder.confirmed

    def step_down_asked(self, link: int, question: fr.Question) -> Refusal | None:
        """A candidate wants to take over."""
        primary = self.primary
        if question.generation > primary.generation:
            self._go_on_unless(Deposed(f"{question.asker} knows generation {question.generation}"))
            return Refusal("this broker has just stepped down")
        if question.asker not in primary.in_sync:
            return Refusal(f"{question.asker} is not in sync: {', '.join(primary.in_sync.members)} are")
        if question.request == fr.IF_STALLED and not primary.in_sync.awaits_record:
            return Refusal("this broker leads, and confirms what comes: nobody has to take over from it")
        unread_s = self._ctx.unread_s()
        if unread_s > self._ctx.settings.ask_limit_s:  # nobody waits for the answer any more, nor for what it leads to
            return Refusal(f"this broker was stopped for {unread_s:.1f} s, and the question may be that old: ask again")
        return self._step_down.hand_over(link, question)

    def vote_asked(self, question: fr.Question) -> Refusal | None:
        """This broker leads: the candidate has to ask it to step down."""
        return Refusal(f"this broker is primary of generation {self.primary.generation}")

    def primary_announced(self, question: fr.Question) -> None:
        """Of two in one generation, which a coordinator would have prevented, one remains."""
        own = self.primary.generation, question.asker
        if own < (question.generation, self._ctx.settings.name):
            reason = f"{question.asker} is primary of generation {question.generation}"
            self._ctx.note("warning", f"stepping down: {reason}")
            self._step_back(reason).primary_announced(question)

    # --- requests

    def confirm_leading(self, asked: fx.PromoteAsked) -> None:
        """It leads already; with force an operator says so, to the coordinator too."""
        if asked.force:
            self._recorder.replace_record()
            self._recorder.go_on()
        self._ctx.answer(asked.request, True, f"already primary of generation {self._replica.history.generation}")

    def demote(self, asked: fx.DemoteAsked) -> None:
        """End clients, and lead no more."""
        self._step_down.demote(asked)

    def switch_over(self, asked: fx.SwitchoverAsked) -> None:
        """Have a backup take over."""
        self._step_down.switch_over(self.primary, asked)

    def clients_ended(self, _: fx.ClientsEnded) -> None:
        """The log's end is final: hand over, or shut the cluster down."""
        if self._step_down.shutdown is not None:
            self._step_down.shutdown.clients_ended()
            self._go_on()
        elif self._step_down.is_under_way:
            self._step_back(self._step_down.reason)

    def shut_down(self, asked: fx.ShutdownAsked) -> None:
        """End the whole cluster."""
        self._step_down.shut_down(asked)

    def _go_on_shutting_down(self, shutdown: ClusterShutdown) -> None:
        if shutdown.mark_stores(self.primary):
            # Whatever happens from now on, the log ends here: that is what the mark on the store says.
            self._parts.become(Stopped(self._parts), Cause.STOPPED, "the cluster is shut down")
        elif shutdown.is_late():
            names = ", ".join(self.primary.in_sync.members)
            backups = self._ctx.settings.keeper.backups
            shutdown.refuse(f"not all of {names} came level: see {backups}, then try again")
            self._step_down.shutdown = None
            self._ctx.is_status_stale = True

    def check_invariants(self) -> None:
        """And those of the in-sync set."""
        super().check_invariants()
        self.primary.check_invariants()


class StandaloneLeader(Leader):
    """The leader of a cluster of one: nobody to ask, to wait for or to hand over to."""

    def __init__(self, parts: MemberParts, primary: Primary) -> None:
        super().__init__(parts, primary)
        self._handlers = self._handlers | dict.fromkeys(NEEDS_CLUSTER, "refuse_alone")

    def refuse_alone(self, asked: Any) -> None:
        """There is nobody else."""
        self._ctx.answer(asked.request, False, STANDALONE_REFUSAL)

    def _go_on(self) -> None:
        """Nobody has to know of its epoch."""

    def end(self) -> None:
        """What it wrote to the end counts: nobody else can say otherwise."""
        super().end()
        self._ctx.effects.append(fx.CleanEnd(self._ctx.settings.instance))


class Stopped(Role):
    """The process ends: nothing follows from anything. So it has no column."""

    def handle(self, happened: fx.Input) -> None:
        """Nothing."""


def lead_alone(parts: MemberParts) -> None:
    """Of a standalone broker, which is the whole in-sync set: go on with the log as it is, and begin no generation.

    Nobody else has to know, and a generation is evidence. Where a coordinator has no record yet it would prove that the
    record was lost, and to other brokers that there was a cluster without them; so a standalone broker that is made a
    member of a cluster later would be refused with what is in its store.
    """
    ctx, replica = parts.ctx, parts.replica
    replica.apply_all()
    ctx.resource_set.state.marks.inherit(is_next=True)
    change = InSyncChange(ctx.resource_set.state.in_sync.epoch, (ctx.settings.name,))
    primary = Primary(ctx, replica, replica.history.generation, change, ctx.resource_set.log.last_lsn)
    _open_for_clients(ctx)
    if ctx.resource_set.state.marks.is_told:  # no generation says that this process has told nothing yet
        ctx.resource_set.begin_marks()
    ctx.want_turn()
    parts.machine.move(Cause.LOADED_ALONE)
    parts.role = StandaloneLeader(parts, primary)
    ctx.replication.read_only = ""


def _settle_clock(ctx: MemberContext) -> None:
    """From here on this broker says when messages expire."""
    change_ms = ctx.resource_set.catalog.clock.lead()
    if abs(change_ms) > CLOCKS_AGREE_MS:
        side = "behind" if change_ms > 0 else "ahead of"
        text = f"this broker's clock is {abs(change_ms) / 1000:.1f} s {side} those of the others"
        ctx.note("warning", f"{text}: messages expire by theirs; was it set while the broker was down?")


def start_generation(parts: MemberParts, promotion: Promotion, granted: Granted) -> None:
    """Apply what is held, and begin the generation: its first events say who leads, and who is in sync."""
    ctx, replica, accept = parts.ctx, parts.replica, granted.accept
    if parts.channel.link:
        ctx.close(parts.channel.link, "promoted")
    _settle_clock(ctx)
    parts.votes.lead()
    parts.unresolved.end()
    replica.abandon_catch_up()
    parts.channel.search()
    parts.channel.stream_problem = ""
    committed_lsn, lacks_transient = replica.committed_lsn, replica.lacks_transient
    replica.apply_all()
    is_next = accept.generation == replica.history.generation + 1 and not accept.is_forced
    ctx.resource_set.state.marks.inherit(is_next=is_next)
    resource_set, name = ctx.resource_set, ctx.settings.name
    change = InSyncChange(accept.epoch, accept.members)
    primary = Primary(ctx, replica, accept.generation, change, min(committed_lsn, resource_set.log.last_lsn))
    cluster = granted.cluster or ctx.settings.instance  # the first primary's UUID names the cluster
    started = GenerationStarted(accept.generation, name, cluster, ctx.wall_ms(), accept.is_forced, promotion.cause)
    start_lsn = resource_set.write(started)
    resource_set.write(InSyncChanged(accept.epoch, accept.members))
    primary.began(start_lsn, resource_set.log.last_lsn)
    if lacks_transient:  # who was not restarted still has them: from here on nobody does
        resource_set.write(TransientsLost(start_lsn))
    _open_for_clients(ctx)
    ctx.note("info", f"Promoted to primary: generation {accept.generation} from LSN {start_lsn}; {accept.text}")
    if accept.is_forced:
        ctx.note("warning", "promoted by force: messages that only other brokers hold are given up")
    recovering = [member for member in accept.members if member != name]
    if recovering:
        ctx.note("info", f"Recovering backups: {', '.join(recovering)}")
    ctx.want_turn()
    if granted.record is not None:
        parts.confirmed_record = granted.record
        primary.recorded(accept.epoch)
    parts.become(Leader(parts, primary), Cause.PROMOTED, promotion.cause)
    ctx.ask(fr.Topic.ANNOUNCE, parts.answer())
    for request in promotion.requests:
        ctx.answer(request, True, f"primary of generation {replica.history.generation}")


def _open_for_clients(ctx: MemberContext) -> None:
    """What each of them relies on is there, and what was theirs waits for them."""
    ctx.resource_set.declare_standard_exchanges()
    ctx.resource_set.take_over(ctx.message_time_ms(), int(ctx.settings.comeback_s * 1000))


class RoleRow(NamedTuple):
    """Who handles an input, or a frame, in each role: the name of a method."""

    connecting: str
    following: str
    candidate: str
    leader: str


TABLE: Final[dict[type, RoleRow]] = {
    # input                     connecting            following             candidate           leader
    fx.Started: RoleRow("start", "never", "never", "never"),
    fx.Ticked: RoleRow("tick", "tick", "tick", "tick"),
    fx.TurnEnded: RoleRow("ignore", "ignore", "ignore", "turn_ended"),
    fx.Persisted: RoleRow("persisted", "persisted", "as_standby", "persisted"),
    fx.CheckpointPersisted: RoleRow("persisted", "persisted", "as_standby", "persisted"),
    fx.StoreFailed: RoleRow("lose_store", "lose_store", "lose_store", "lose_store"),
    fx.StoreWritable: RoleRow("store_writable", "store_writable", "as_standby", "store_writable"),
    fx.LinkOpened: RoleRow("greet", "ignore", "as_standby", "ignore"),
    fx.LinkLost: RoleRow("link_lost", "link_lost", "link_lost", "link_lost"),
    fx.LinkWritable: RoleRow("ignore", "ignore", "ignore", "set_writable"),
    fx.FrameDamaged: RoleRow("frame_damaged", "frame_damaged", "frame_damaged", "frame_damaged"),
    fx.FrameReceived: RoleRow("dispatch", "dispatch", "dispatch", "dispatch"),
    fx.PromoteAsked: RoleRow("begin_promotion", "begin_promotion", "join_promotion", "confirm_leading"),
    fx.DemoteAsked: RoleRow("refuse_to_demote", "refuse_to_demote", "as_standby", "demote"),
    fx.SwitchoverAsked: RoleRow("refuse_ask_primary", "refuse_ask_primary", "as_standby", "switch_over"),
    fx.DropAsked: RoleRow("refuse_ask_primary", "refuse_ask_primary", "as_standby", "drop"),
    fx.ShutdownAsked: RoleRow("refuse_ask_primary", "refuse_ask_primary", "as_standby", "shut_down"),
    fx.ClientsEnded: RoleRow("ignore", "ignore", "ignore", "clients_ended"),
    fx.PeersAnswered: RoleRow("ignore", "ignore", "peers_answered", "peers_answered"),
    fx.RecordRead: RoleRow("record_read", "record_read", "record_read", "record_read"),
    fx.RecordWritten: RoleRow("ignore", "ignore", "record_written", "record_written"),
    fx.CoordinatorSeen: RoleRow("note_identity", "note_identity", "note_identity", "note_identity"),
    fx.Stopping: RoleRow("stop", "stop", "stop", "stop"),
    # frame
    fr.Hello: RoleRow("refuse_to_lead", "refuse_to_lead", "as_standby_frame", "greeted"),
    fr.Follow: RoleRow("refuse_to_lead", "refuse_to_lead", "as_standby_frame", "copy_asked"),
    fr.Question: RoleRow("reply", "reply", "reply", "reply"),
    fr.Welcome: RoleRow("welcomed", "ignore", "as_standby_frame", "ignore"),
    fr.Refused: RoleRow("refused", "refused", "as_standby_frame", "ignore"),
    fr.Batch: RoleRow("ignore", "take", "as_standby_frame", "ignore"),
    fr.Heartbeat: RoleRow("ignore", "take", "as_standby_frame", "ignore"),
    fr.ClockReading: RoleRow("ignore", "take", "as_standby_frame", "ignore"),
    fr.Objects: RoleRow("ignore", "take", "as_standby_frame", "ignore"),
    fr.Chunk: RoleRow("ignore", "take", "as_standby_frame", "ignore"),
    fr.CaughtUp: RoleRow("ignore", "take", "as_standby_frame", "ignore"),
    fr.Observe: RoleRow("ignore", "take", "as_standby_frame", "ignore"),
    fr.TakeOver: RoleRow("ignore", "take_over", "as_standby_frame", "ignore"),
    fr.Shutdown: RoleRow("ignore", "shut_down", "as_standby_frame", "ignore"),
    fr.Ack: RoleRow("ignore", "ignore", "ignore", "acknowledged"),
    fr.Holdings: RoleRow("ignore", "ignore", "ignore", "held_told"),
    fr.HoldingsDone: RoleRow("ignore", "ignore", "ignore", "held_told"),
    fr.Answer: RoleRow("reject", "reject", "reject", "reject"),
    fr.Followed: RoleRow("reject", "reject", "reject", "reject"),
}

HANDLERS: Final[dict[str, dict[type, str]]] = {
    column: {kind: row[at] for kind, row in TABLE.items()} for at, column in enumerate(RoleRow._fields)
}
"""The columns of `TABLE`. A role is made for each step of each set: hundreds at once when a broker fails."""


def table_in_markdown() -> str:
    """For docs/states.md."""
    lines = ["| | " + " | ".join(RoleRow._fields) + " |", "| --- |" + " --- |" * len(RoleRow._fields)]
    for kind, row in TABLE.items():
        cells = " | ".join(name.replace("_", " ") if name != "ignore" else "" for name in row)
        lines.append(f"| `{kind.__name__}` | {cells} |")
    return "\n".join(lines)
