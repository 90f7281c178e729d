"""One machine: a `Member`, its resource set, and a driver that does what the real one does, turn by turn."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import NamedTuple, Protocol

from member_harness import MemberHarness, StoreRequest
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Batch, CaughtUp, Chunk, Frame, Resync, Welcome
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.roles import Following
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.message_reader import NoReader
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.store.clock_mark import MachineTime
from qpid_ha_broker.store.errors import StoreError
from simulated_disk import PowerCut
from simulation.copies import copies_in
from simulation.core.channel import Delivery
from simulation.core.network import Network
from simulation.core.node_store import Machine, NodeStore, Process, ProcessEnds
from simulation.custody import Custody, Generation
from simulation.trace import Trace, shown, shown_effects
from simulation.virtual_time import Clock, Schedule

TICKS_IN_A_HEARTBEAT = 3
HAND_OUT_LIMIT = 8
TURN_WITHIN_S = 0.0006


class PlainReader(NoReader):
    """Messages here have neither subject nor properties."""


class Client(Protocol):
    """Whoever has a session."""

    def handed_out(self, taker: Taker, entry: Entry) -> None:
        """A message came."""

    def ended(self, session: Session) -> None:
        """The broker has ended the session, or died."""


class Session:
    """A client's connection to one process."""

    def __init__(self, node: Node, client: Client) -> None:
        self.node = node
        self.process = node.process
        self.client = client
        self.is_open = True


class Taker(Consumer):
    """A model consumer that knows whose it is."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.window_bytes = 1 << 40


class Waiting(NamedTuple):
    """Something that is told to a client once `written` is committed."""

    written: CommitToken
    session: Session
    tell: Callable[[], None]


class Watcher(Protocol):
    """Who looks at a node after each thing that happened to it."""

    def state_changed(self, node: Node, change: fx.StateChanged) -> None:
        """Another state."""

    def handled(self, node: Node) -> None:
        """An input had effects."""

    def process_ended(self, node: Node, in_order: bool) -> None:
        """The process has ended by itself: its store or its power failed, or (`in_order`) the cluster is shut down."""

    def store_refused(self, node: Node, problem: StoreError) -> None:
        """The process has ended, because it cannot use its store."""

    def ended_for_good(self, node: Node, reason: str) -> None:
        """The process has ended, because it has no place in this cluster."""


class Records(Protocol):
    """Who has the cluster's record."""

    def read(self, number: int, reply: Callable[[fx.RecordRead], None], *, is_backup: bool = False) -> None:
        """`reply` is called once."""

    def write(
        self,
        number: int,
        expected: ClusterRecord,
        wanted: ClusterRecord,
        reply: Callable[[fx.RecordWritten], None],
    ) -> None:
        """The same; replace it if it is as expected."""


class World(NamedTuple):
    """What all nodes share."""

    schedule: Schedule
    network: Network
    register: Records
    trace: Trace
    watcher: Watcher
    custody: Custody
    check_every: int
    """After so many inputs a member's invariants are checked: that takes longer than all the rest."""


class Node(MemberHarness):
    """The promise: inputs are handled one by one, in the order in which they came, and only by a live process."""

    turn_within_s = TURN_WITHIN_S
    """After something has happened."""

    def __init__(
        self,
        world: World,
        index: int,
        clock: Clock,
        settings: Callable[[str], MemberSettings],
        machine: Machine | None = None,
    ) -> None:
        self._world = world
        self.machine = machine
        """With a disk: the broker has a store."""
        self.store: NodeStore | None = None
        self.was_level = False
        """This process was in sync once: what it did not bring from its store it has been sent."""
        self.index = index
        self.clock = clock
        self._settings = settings
        self.name = settings("").name
        self.process = 0
        self.producers = 0
        """So many that number their messages are kept in mind."""
        self.is_up = False
        self.is_paused = False
        self.paused_s = 0.0
        """Since when it is, or was the last time."""
        self.slow_s = 0.0
        self.answers: dict[int, Callable[[bool, str], None]] = {}
        self.sessions: list[Session] = []
        self.stopped_because = ""
        self.could_not_ask: frozenset[str] = frozenset()
        """Who did not answer when it asked everybody last."""
        self._inbox: deque[tuple[fx.Input | Callable[[], None], Delivery | None]] = deque()
        self._last_link = 0
        self._last_request = 0
        self._is_busy = False
        self._handled = 0
        self._is_catching_up = False
        self.keeps_clock = False
        """Its store keeps by what clock messages expire."""
        self.time_goes_on: Callable[[Node], None] | None = None
        """Lets expire what does, where clients are served; None: nothing has a time to live."""

    # --- the process

    def start(self) -> None:
        """A new process with an empty memory, but for what the store brings back."""
        self.process += 1
        self.begin_clock()
        self.is_up, self.is_paused, self._is_busy, self.was_level = True, False, False, False
        self._world.custody.started((self.name, self.process))
        instance = f"{self.name}#{self.process}"
        draw = random.Random(f"{self._world.schedule.now_s}/{instance}")
        self._draw = draw.random
        self.prepare(Resources(PlainReader()))
        self.resources.deduplication.producers = self.producers
        self.sessions = []
        self.waiting: deque[Waiting] = deque()
        self._inbox.clear()
        self._tick_waits = self._turn_waits = self._is_ending = self._is_catching_up = False
        self._tick_s = self.member_settings.heartbeat_interval_s / TICKS_IN_A_HEARTBEAT
        restored = None
        if self.machine is not None:
            try:
                restored = self._open_store(self.machine)
            except (PowerCut, ProcessEnds, OSError) as error:
                self._fall(error)
                return
            except StoreError as error:
                self.kill(is_silent=False, cause="its store was refused")
                self._world.watcher.store_refused(self, error)
                return
        self.begin(self._settings(instance), draw.random, restored)
        self.feed(fx.Started())
        self._tick_later(self.process)

    def begin_clock(self) -> None:
        """Of a process: it counts time from now on."""
        self.clock.begin()

    @property
    def member_settings(self) -> MemberSettings:
        return self._settings("")

    @property
    def memory(self) -> int:
        """What is remembered goes with the process; with a store, it stays with the machine."""
        return self.process if self.machine is None else 0

    def _open_store(self, machine: Machine) -> Restored:
        process, world = self.process, self._world

        def note(text: str) -> None:
            if world.trace.wanted:
                world.trace.add(self.name, text)

        around = Process(
            world.schedule, self.resources, partial(self._in_process, process), self._reply(),
            self.member_settings.tail_bytes, note,
        )  # fmt: skip
        self.store = NodeStore(machine, around, self.name)
        restored = self.store.open()
        if self.keeps_clock:
            self.store.keep_clock(self._machine_time, self.clock.steady_ms)
        return restored

    def _machine_time(self) -> MachineTime:
        boot = "" if self.machine is None else f"boot {self.machine.boots}"
        return MachineTime(self.clock.wall_ms(), int(self.clock.monotonic_s() * 1000), boot)

    def kill(self, is_silent: bool, has_power: bool = True, cause: str = "killed") -> None:
        """The process dies, with its memory; without power, with what was not synced."""
        self._world.custody.died((self.name, self.process), cause)
        self.is_up = self.is_paused = False
        self._world.network.died(self, is_silent)
        self._inbox.clear()
        self._drop_sessions()
        if self._world.trace.wanted:
            self._world.trace.add(self.name, "DIES" if has_power else "LOSES ITS POWER")
        if self.machine is not None and not has_power:
            self.machine.boots += 1
        if self.machine is not None and self.store is not None:
            self.machine.replace_disk(self.store.died(has_power))

    def _fall(self, error: BaseException) -> None:
        """The disk has failed, or the power."""
        if self._world.trace.wanted:
            self._world.trace.add(self.name, f"FALLS: {type(error).__name__}: {error}")
        has_power = not isinstance(error, PowerCut)
        self.kill(not has_power, has_power, str(error))
        self._world.watcher.process_ended(self, False)

    def pause(self) -> None:
        self.is_paused, self.paused_s = True, self._world.schedule.now_s
        if self._world.trace.wanted:
            self._world.trace.add(self.name, "PAUSED")

    def resume(self) -> None:
        self.is_paused = False
        if self._world.trace.wanted:
            self._world.trace.add(self.name, "RESUMED")
        self._pump()

    @property
    def is_primary(self) -> bool:
        """Whether clients would be served: a paused process cannot tell that it should not."""
        return self.is_up and self.member.status.state is State.PRIMARY

    def next_link(self) -> int:
        self._last_link += 1
        return self._last_link

    def _tick_later(self, process: int) -> None:
        def tick() -> None:
            if not self.is_up or self.process != process:
                return
            if not self._tick_waits:
                self._tick_waits = True
                self.feed(fx.Ticked())
            self._tick_later(process)

        jitter = 0.9 + 0.2 * self._draw()
        self._world.schedule.after(self.clock.real_delay_s(self._tick_s * jitter), tick)

    # --- what happens

    def feed(self, happening: fx.Input, delivery: Delivery | None = None) -> None:
        """Something for the member."""
        if self.is_up:
            self._inbox.append((happening, delivery))
            self._pump()

    def do(self, command: Callable[[], None]) -> None:
        """Something for the broker around it: a client's command."""
        if self.is_up:
            self._inbox.append((command, None))
            self._pump()

    def ask_for(self, make: Callable[[int], fx.Input], answered: Callable[[bool, str], None]) -> None:
        """An operator's request."""
        self._last_request += 1
        self.answers[self._last_request] = answered
        self.feed(make(self._last_request))

    def _pump(self) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        process, inbox = self.process, self._inbox
        while inbox and self.is_up and not self.is_paused and self.process == process:
            happening, delivery = inbox.popleft()
            try:
                if callable(happening):
                    happening()
                else:
                    self._handle(happening)
            except (PowerCut, ProcessEnds) as error:
                self._fall(error)
            if delivery is not None:
                self._world.network.settle(delivery)
            if self.slow_s:
                self._world.schedule.after(self.slow_s, partial(self._pump_again, process))
                return
        if self.process == process:
            self._is_busy = False

    def _pump_again(self, process: int) -> None:
        if self.is_up and self.process == process:
            self._is_busy = False
            self._pump()

    def _handle(self, happening: fx.Input) -> None:
        kind = type(happening)
        if kind is fx.Ticked:
            self._tick_waits = False
        elif isinstance(happening, fx.PeersAnswered):
            self.could_not_ask = frozenset(address.partition(":")[0] for address in happening.unreachable)
        effects = self.apply(happening)
        if effects is None:
            return
        member = self.member
        if isinstance(happening, fx.FrameReceived):
            self._note_receipt(happening.frame)
        elif kind is fx.Ticked and self.store is not None:
            self.store.note_committed(member.committed_lsn)
            self.store.tick_clock()
        if kind is fx.Ticked and self._serves and self.time_goes_on is not None:
            self.time_goes_on(self)
        self._after()
        self._handled += 1
        if self._handled % self._world.check_every == 0:
            member.check_invariants()
        if effects:
            self._world.watcher.handled(self)

    def _note_receipt(self, frame: Frame) -> None:
        """What this process has taken into its memory; a frame that came too late for that is none of it."""
        process, member = (self.name, self.process), self.member
        if isinstance(frame, Batch):
            if frame.generation >= member.status.generation and frame.last_lsn <= member.position.lsn:
                self._world.custody.received(process, frame.data)
                if not self._is_catching_up:
                    self._note_log(frame.last_lsn)
        elif isinstance(frame, Chunk) and frame.generation >= member.status.generation:
            self._world.custody.received(process, frame.data)
        elif isinstance(frame, Welcome):
            self._is_catching_up = frame.resync is Resync.DIFF
        elif isinstance(frame, CaughtUp) and member.answer().complete:
            self._is_catching_up = False
            self._note_log(member.position.lsn)

    def _note_log(self, lsn: int) -> None:
        generation = Generation(self.member.status.cluster, self.member.status.generation)
        self._world.custody.reached((self.name, self.process), generation, lsn)

    def _after(self) -> None:
        """Tell what was committed, and see to it that what was written goes out."""
        if self.waiting:
            while self.waiting and self.waiting[0].written.is_committed:
                waiting = self.waiting.popleft()
                if waiting.session.is_open:
                    waiting.tell()
        if (
            self.resources.replicated.log.pending
            or self.has_catch_up_work
            or (self._serves and self.resources.has_work)
        ):
            self.want_turn()

    @property
    def is_serving(self) -> bool:
        """Whether clients would be served."""
        return self._serves

    @property
    def _serves(self) -> bool:
        return self.member.status.state is State.PRIMARY and not self._is_ending and not self.member.status.is_closing

    # --- effects

    def monotonic_s(self) -> float:
        return self.clock.monotonic_s()

    def wall_ms(self) -> int:
        return self.clock.wall_ms()

    def steady_ms(self) -> int:
        return self.clock.steady_ms()

    def message_ms(self) -> int:
        """By that messages expire here."""
        return self.resources.catalog.clock.now_ms(self.clock.steady_ms())

    @property
    def goes_on(self) -> bool:
        return self.is_up

    def note_handled(self, what: fx.Input, effects: list[fx.Effect]) -> None:
        if self._world.trace.wanted and (effects or type(what) is not fx.Ticked):
            self._world.trace.add(self.name, f"{shown(what)} -> {shown_effects(effects)}")

    def note_line(self, text: str) -> None:
        """As a whole: among the effects long values are cut."""
        if self._world.trace.wanted:
            self._world.trace.add(self.name, text)

    def send_frame(self, link: int, frame: Frame) -> None:
        self._world.network.send(self, link, frame)

    def want_turn(self) -> None:
        if not self._turn_waits:
            self._turn_waits = True
            delay_s = self.turn_within_s * self._draw()
            self._world.schedule.after(delay_s, partial(self._in_process, self.process, self.turn))

    def open_link(self, link: int, address: str) -> None:
        self._world.network.connect(self, link, address)

    def close_link(self, link: int, reason: str) -> None:
        self._world.network.close(self, link, reason)

    def ask_peers(self, asked: fx.Ask) -> None:
        self._world.network.ask(self, asked)

    def read_record(self, number: int) -> None:
        is_backup = isinstance(self.member.role, Following)
        self._world.register.read(number, self._reply(), is_backup=is_backup)

    def write_record(self, number: int, expected: ClusterRecord, wanted: ClusterRecord) -> None:
        self._world.register.write(number, expected, wanted, self._reply())

    def give_to_store(self, request: StoreRequest) -> None:
        if self.store is not None:
            self.store.carry_out(request)

    def note_state(self, change: fx.StateChanged) -> None:
        if change.before is State.PRIMARY:
            self._drop_sessions()
            self._note_last_batch()
        self.was_level |= change.after in (State.PRIMARY, State.READY)
        self._world.watcher.state_changed(self, change)

    def _note_last_batch(self) -> None:
        """What a primary wrote since its last turn is taken by no turn any more, and is in its memory still."""
        for copy in copies_in(self.resources.catalog):
            self._world.custody.received((self.name, self.process), copy.payload())
        self._note_log(self.resources.replicated.log.last_lsn)

    def note_status(self, status: fx.MemberStatus) -> None:
        if self.store is not None:
            self.store.describe(status)

    def end_clients(self) -> None:
        self._is_ending = True
        delay_s = 0.02 * self._draw()
        self._world.schedule.after(delay_s, partial(self._in_process, self.process, self._end_clients))

    def note_answer(self, answer: fx.Answered) -> None:
        self.answers.pop(answer.request)(answer.done, answer.text)

    def end_in_order(self, uuid: str) -> None:
        if self.store is not None:
            self.store.clean_end(uuid)
        self.kill(is_silent=False, cause="shut down")
        self._world.watcher.process_ended(self, True)

    def end_for_good(self, reason: str) -> None:
        self.kill(is_silent=False, cause=reason)
        self._world.watcher.ended_for_good(self, reason)

    def _reply(self) -> Callable[[fx.Input], None]:
        process = self.process

        def reply(happening: fx.Input) -> None:
            if self.process == process:
                self.feed(happening)

        return reply

    def _in_process(self, process: int, command: Callable[[], None]) -> None:
        if self.process == process:
            self.do(command)

    def _end_clients(self) -> None:
        self._drop_sessions()
        self.turn()
        self._handle(fx.ClientsEnded())
        self._is_ending = False

    # --- turns

    def turn(self) -> None:
        """Hand out, then give the batch to the member."""
        self._turn_waits = False
        if self._serves and self.resources.catalog.timed.next_due_ms <= self.message_ms():
            self.resources.timers.tick(self.message_ms())
        if self._serves and self.resources.has_work:
            self._hand_out()
        log, store = self.resources.replicated.log, self.store
        if store is not None:
            store.persist_local()
        batch = log.take_batch() if log.pending else None
        if batch is not None and self.member.status.state is State.PRIMARY:
            self._world.custody.received((self.name, self.process), batch.data)
            self._note_log(batch.last_lsn)
        self._handle(fx.TurnEnded(batch))

    def _hand_out(self) -> None:
        """What is handed out in one turn is handed out at once: consumers get it in the order of the queue."""
        self._look_at_lead()
        handouts = self.resources.hand_out(self.message_ms(), HAND_OUT_LIMIT)
        given = [(entry.id, handout.consumer, entry) for handout in handouts for entry in handout.entries]
        for _, consumer, entry in sorted(given, key=itemgetter(0)):
            if isinstance(consumer, Taker):
                consumer.session.client.handed_out(consumer, entry)

    def _look_at_lead(self) -> None:
        """As `HostedSet` does."""
        replication, now_s = self.resources.replication, self.clock.monotonic_s()
        before, replication.lead_proof = replication.lead_proof, self.member.lead_proof(now_s, 0.0)
        if before is LeadProof.MISSING and replication.lead_proof is not before:
            self.resources.catalog.wake_consumers()

    # --- clients

    def open_session(self, client: Client) -> Session | None:
        """Let a client in, if clients are served here now."""
        if not self.is_up or not self._serves:
            return None
        session = Session(self, client)
        self.sessions.append(session)
        return session

    def end_session(self, session: Session) -> None:
        """A client goes, or is told to go."""
        if session.is_open:
            session.is_open = False
            if session in self.sessions:
                self.sessions.remove(session)
            session.client.ended(session)

    def _drop_sessions(self) -> None:
        for session in list(self.sessions):
            self.end_session(session)
        self.waiting.clear()
        if self.is_up and self.member.status.state is not State.PRIMARY:
            self._is_ending = False

    def wait(self, written: CommitToken, session: Session, tell: Callable[[], None]) -> None:
        """Call `tell` once `written` is committed, if the session is open then."""
        self.waiting.append(Waiting(written, session, tell))

    def written(self) -> None:
        """A client's command has written something."""
        self._after()
        self.want_turn()
