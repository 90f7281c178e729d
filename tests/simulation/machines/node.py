"""A machine with a real broker: `server.broker` as it ships, on a virtual loop, with sockets and disks in memory.

What is replaced has to do with the machine alone: clocks and disks (`machine`), the sockets on which it
listens, and the file of the control socket, whose methods are called straight. What is added only looks.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import proton

from qpid_ha_broker.access.audit import AuditChannel, Caller
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.links.attach import attach
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Batch, Chunk, Topic
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.roles import Candidate
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.sessions import Session
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.clients.admission import Admission
from qpid_ha_broker.server.clients.client_protocol import ClientProtocol
from qpid_ha_broker.server.clients.listeners import Listeners
from qpid_ha_broker.server.control.control import ControlError, ControlServer, Stream
from qpid_ha_broker.server.proxies.proxying import Proxying
from qpid_ha_broker.server.runtime.descriptors import Descriptors
from qpid_ha_broker.server.runtime.steady_clock import SteadyClock
from qpid_ha_broker.server.sets.set_member import SetMember
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_config.addresses import Address
from qpid_ha_config.settings import ActivationSettings, BrokerSettings
from simulation.custody import Custody
from simulation.machines.agent import SimulatedAgent
from simulation.machines.coordinator import Leases
from simulation.machines.machine import MachineDisks, Surroundings
from simulation.machines.process import MachineProcess
from simulation.machines.streams import Post, StreamEnd, Streams
from simulation.trace import Trace
from simulation.virtual_time import Clock, Schedule

PORT: Final = 5672
OF_MACHINE: Final = Caller(AuditChannel.CONTROL_SOCKET)
EVENTS: Final = b'{"jsonrpc": "2.0", "id": 1, "method": "events", "params": {}}\n'


def host_of(index: int) -> str:
    """The address of a machine."""
    return f"127.0.0.{index + 1}"


def name_at(host: str) -> str:
    """The name of the broker there."""
    return f"n{int(host.rpartition('.')[2]) - 1}"


class BrokersWatcher(Protocol):
    """Who looks at all brokers of a run."""

    def joined(self, node: BrokerNode, broker: SimulatedBroker) -> None:
        """Its process is about to be a member of its cluster."""

    def member_changed(self, node: BrokerNode, set_name: str, change: fx.StateChanged, led_generation: int) -> None:
        """Its member of that set is in another state; it led last in `led_generation`, or leads in it now."""

    def asks_to_step_down(self, node: BrokerNode, set_name: str, cause: str) -> None:
        """It was promoted, for that cause, and asks whoever leads the set to leave it the command."""

    def ends_to_lead(self, set_name: str, led_generation: int) -> None:
        """Clients are told next that who led the set in that generation does so no more."""

    def broke(self, node: BrokerNode, reason: str) -> None:
        """It has ended by itself. Raises Violation."""

    def store_refused(self, node: BrokerNode, problem: str) -> None:
        """It cannot use its store, and has ended. Raises Violation."""

    def agent_asks(self, node: BrokerNode, method: str) -> None:
        """Its agent asks the broker something."""

    def agent_starts_again(self, node: BrokerNode) -> None:
        """Its agent starts the broker, which has died."""

    def agent_signals(self, node: BrokerNode, number: signal.Signals) -> None:
        """Its agent wants the broker to end."""

    def attached(self, node: BrokerNode, connection: Connection, link: proton.Link, endpoint: LinkEndpoint) -> None:
        """A link was attached there."""

    def session_ends(self, node: BrokerNode, session: Session) -> None:
        """It is about to end a client's session."""


@dataclass(frozen=True)
class Site:
    """What all machines of a run have in common."""

    seed: int
    schedule: Schedule
    streams: Streams
    trace: Trace
    surroundings: Surroundings
    watcher: BrokersWatcher
    directory: Path
    """For what no store has on its own disk."""
    turn_within_s: float
    """So long after something has come a broker has its turn, at most."""
    leases: Leases
    has_agents: bool
    activation: Callable[[int], ActivationSettings]
    """Of the agent of a machine, by its number."""
    custody: Custody


class SimulatedListeners(Listeners):
    """Takes streams instead of sockets."""

    def __init__(self, admission: Admission[ClientProtocol], descriptors: Descriptors, refusals: Any) -> None:
        super().__init__(admission, descriptors, refusals)
        self._makers: list[Callable[[], ClientProtocol]] = []

    async def listen(
        self, address: Address, make_protocol: Callable[[], ClientProtocol], *, is_shared: bool = False
    ) -> None:
        self._makers.append(make_protocol)
        self.addresses.append(str(address))

    @property
    def is_open(self) -> bool:
        """Whether anybody is taken."""
        return bool(self._makers)

    def take(self, end: StreamEnd, now_s: float) -> None:
        """Somebody has connected."""
        if not self._makers:
            end.abort()
            return
        protocol = self._makers[0]()
        self._admission.accepted(protocol, end.other.place, now_s)
        end.have_read_by(protocol)

    def close(self) -> None:
        self._makers.clear()


class DirectControl(ControlServer):
    """Its methods, and no socket."""

    is_open = False

    async def start(self) -> None:
        """Whoever asks from now on is answered."""
        self.is_open = True

    async def restore_socket(self) -> None:
        """There is no file."""

    async def close(self) -> None:
        """Nobody is answered any more."""
        self.is_open = False


class SimulatedBroker(Broker):
    """The broker as it ships; see the header of this module."""

    def __init__(
        self, node: BrokerNode, settings: BrokerSettings, disks: MachineDisks, process: MachineProcess
    ) -> None:
        super().__init__(settings, storage=disks.storage(node.site.schedule, process.post))
        clock = node.clock
        self.container.steady = SteadyClock(lambda: clock.wall_ms() / 1000, clock.monotonic_s)
        self.set_time()
        self._node = node
        self.listeners = self.simulated = SimulatedListeners(
            self.admission, self.listeners.descriptors, self.notices.refusals
        )
        self.control = self.direct = DirectControl(settings.control_socket, self.control.methods)
        self.connections.attach = self._attach_seen
        end = self.container.sessions.end

        def seen_end(session: Session, *, failed: bool) -> None:
            node.site.watcher.session_ends(node, session)
            end(session, failed=failed)

        setattr(self.container.sessions, "end", seen_end)  # noqa: B010 - a method, which mypy lets nobody replace

    def _attach_seen(self, connection: Connection, link: proton.Link) -> LinkEndpoint:
        endpoint = attach(connection, link)
        self._node.site.watcher.attached(self._node, connection, link, endpoint)
        return endpoint

    def _join(self, restored: Restored | None) -> None:
        super()._join(restored)
        self._see(self.membership.default)
        if self.sets is None:
            return
        members, begin = self.sets.hosts.members, self.sets.hosts._begin

        def seen_begin(settings: MemberSettings, hosted: HostedSet, *restored: Any) -> None:
            begin(settings, hosted, *restored)
            member = members[hosted.name]
            if isinstance(member, SetMember):  # those of a group have no primary
                self._see(member)

        setattr(self.sets.hosts, "_begin", seen_begin)  # noqa: B010 - a method, which mypy lets nobody replace
        self._node.site.watcher.joined(self._node, self)

    def _see(self, driver: SetMember) -> None:
        """Let the watcher know what becomes of that member."""
        actions, name = driver._make_actions(), driver.name
        driver._loop.actions = actions
        change, end_clients = actions[fx.StateChanged], actions[fx.EndClients]

        def seen_change(effect: fx.StateChanged) -> None:
            if effect.after is State.PRIMARY:
                self._node.led_generations[name] = driver.member.status.generation
            self._node.member_changed(name, effect)
            change(effect)

        def seen_end_clients(effect: fx.EndClients) -> None:
            self._node.ends_to_lead(name)
            end_clients(effect)

        ask = actions[fx.Ask]

        def seen_ask(effect: fx.Ask) -> None:
            role = driver.member.role
            if effect.question.topic is Topic.STEP_DOWN and isinstance(role, Candidate):
                self._node.site.watcher.asks_to_step_down(self._node, name, role.promotion.cause)
            ask(effect)

        actions |= {fx.StateChanged: seen_change, fx.EndClients: seen_end_clients, fx.Ask: seen_ask}
        handle = driver._loop._handle

        def seen_handle(happened: fx.Input, now_s: float) -> Iterable[Any]:
            effects = handle(happened, now_s)
            self._node.note_receipt(driver.member, happened)
            return effects

        driver._loop._handle = seen_handle

    def end(self, clean: str) -> None:
        was_told = self.ended.is_set()
        super().end(clean)
        if not was_told:
            self._node.ends(self)

    def fail(self, reason: str) -> None:
        was_told = bool(self.failure)
        super().fail(reason)
        if not was_told:
            self._node.site.watcher.broke(self._node, reason)
            self._node.fails()

    @property
    def protocols(self) -> list[ClientProtocol]:
        """Of all sockets on which something was said."""
        return list(self._protocols.values())

    def close_engines(self) -> None:
        """Nothing happens in this process any more: let go of what C holds."""
        engines: dict[Engine, None] = {connection.engine: None for connection in self._protocols}
        if self.sets is not None and self.sets.proxying is not None:
            pool = self.sets.proxying.pool
            upstreams = [socket.upstream for socket in pool.connections]
            engines |= {upstream.engine: None for upstream in upstreams if upstream is not None}
            pool.connections.clear()
        self._protocols = {}
        for engine in engines:
            engine.close()


class BrokerNode:
    """A machine. Its processes come and go, and its disks stay."""

    def __init__(self, site: Site, index: int, clock: Clock, settings: Callable[[int, Path], BrokerSettings]) -> None:
        self.site = site
        self.index = index
        self.name = f"n{index}"
        self.clock = clock
        self.process = 0
        self.is_paused = False
        self.paused_s = 0.0
        """Since when it is, or was the last time."""
        self.led_generations: dict[str, int] = {}
        """By set: in which this machine led it last."""
        self._settings = settings
        self._callers: dict[Callable[[], None], None] = {}
        """Who waits for something of the broker's process is told when that dies."""
        self.at_death: list[Callable[[bool], None]] = []
        """Who carries something for the process is told, too, and whether its machine goes on."""
        self.agent = SimulatedAgent(self, site.activation(index)) if site.has_agents else None
        self.processes = (self.name,) if self.agent is None else (self.name, self.agent.name)
        """Names of those that ask the coordinator."""
        self.disks = MachineDisks(random.Random(f"{site.seed}/disks {index}"), partial(site.custody.synced, self.name))
        self._directory = site.directory / self.name
        self._directory.mkdir()
        self._running: MachineProcess | None = None
        self._broker: SimulatedBroker | None = None
        self._ended: list[MachineProcess] = []

    # --- the process

    def start(self) -> None:
        """A new process, which finds what is on the disks."""
        self.process += 1
        self.site.custody.started((self.name, self.process))
        self.clock.begin()
        self.is_paused = False
        self._broker = None
        self._running = self._new_process()
        self._running.run(self._begin)

    def _new_process(self) -> MachineProcess:
        return MachineProcess(self, self.name, self.process, lambda: self.is_paused)

    def start_after(self, delay_s: float) -> None:
        """As above; until the program has begun, which takes that long, the process is there and says nothing."""
        self.process += 1
        self.site.custody.started((self.name, self.process))
        self.clock.begin()
        self.is_paused = False
        self._broker = None
        running = self._running = self._new_process()
        self.site.schedule.after(delay_s, lambda: running.post(self._begin))

    def start_machine(self) -> None:
        """With its agent, which starts the broker, if there are agents."""
        if self.agent is not None:
            self.agent.start()
        elif self._running is None:
            self.start()

    def _begin(self) -> None:
        running = self._running
        if running is not None:
            broker = self._broker = SimulatedBroker(
                self, self._settings(self.index, self._directory), self.disks, running
            )
            running.loop.create_task(self._start(broker, running))

    async def _start(self, broker: SimulatedBroker, running: MachineProcess) -> None:
        """As the program does, which ends with a store that it cannot use."""
        try:
            await broker.start()
        except StoreError as error:
            self.note_line("REFUSES ITS STORE")
            problem = str(error)
            self.site.schedule.after(0.0, lambda: self._end(running))
            self.site.schedule.after(0.0, lambda: self.site.watcher.store_refused(self, problem))

    def note_receipt(self, member: Member, happened: fx.Input) -> None:
        """What its process has taken into its memory, or written there; a frame that came too late is none of it."""
        taken: bytes | None = None
        if isinstance(happened, fx.TurnEnded):
            is_written = happened.batch is not None and member.status.state is State.PRIMARY
            taken = happened.batch.data if happened.batch is not None and is_written else None
        elif isinstance(happened, fx.FrameReceived) and isinstance(happened.frame, Batch | Chunk):
            frame = happened.frame
            is_behind = isinstance(frame, Batch) and frame.last_lsn > member.position.lsn
            taken = frame.data if frame.generation >= member.status.generation and not is_behind else None
        if taken:
            self.site.custody.received((self.name, self.process), taken)

    def ends(self, broker: SimulatedBroker) -> None:
        """It was told to, or has ended the whole cluster."""
        running = self._running
        if running is not None and broker is self._broker and broker.is_loaded:
            running.loop.create_task(self._stop(broker, running))

    def fails(self) -> None:
        """As the program does that gives up."""
        running = self._running
        if running is not None:
            self.site.schedule.after(0.0, partial(self._end, running))

    async def _stop(self, broker: SimulatedBroker, running: MachineProcess) -> None:
        """As the program does at its end."""
        await broker.stop()
        self.site.schedule.after(0.0, partial(self._end, running))

    def _end(self, running: MachineProcess) -> None:
        if self._running is running:
            self.kill(is_silent=False)

    def signalled(self, process: int, number: signal.Signals) -> None:
        """Its agent wants the process of that number to end."""
        running, broker = self._running, self._broker
        if process != self.process or running is None:
            return
        self.site.watcher.agent_signals(self, number)
        if number is signal.SIGTERM and broker is not None and broker.is_loaded:
            running.post(lambda: broker.end(""))
        else:
            self.kill(is_silent=False)

    def kill(self, is_silent: bool) -> None:
        """The process dies, with its memory; `is_silent`: with its machine, which loses its power, and with that what
        was not synced."""
        running = self._running
        if running is None:
            return
        for set_name in self.led_generations:
            self.ends_to_lead(set_name)
        running.is_dead = True
        self.site.custody.died((self.name, self.process), "it lost its power" if is_silent else "it died")
        self.is_paused = False
        self.note_line("LOSES ITS POWER" if is_silent else "DIES")
        self._ended.append(running)
        self._running = None
        self.site.streams.died(self.name, is_silent)
        carriers, self.at_death = self.at_death, []
        for carrier in carriers:
            carrier(not is_silent)
        self.disks.process_ended(has_power=not is_silent)
        if self._broker is not None:
            self._broker.close_engines()
        callers, self._callers = self._callers, {}
        for gone in callers:
            gone()
        if self.agent is not None and is_silent:
            self.agent.kill()
        elif self.agent is not None:
            self.agent.broker_died(self.process)

    def loses_power(self) -> None:
        """At a write, as its disk was to."""
        self.kill(is_silent=True)

    def pause(self) -> None:
        self.is_paused, self.paused_s = True, self.site.schedule.now_s
        self.note_line("PAUSED")

    def resume(self) -> None:
        self.is_paused = False
        self.note_line("RESUMED")
        if self._running is not None:
            self._running.go_on()

    def empty_disks(self) -> None:
        """They were replaced, while no process ran."""
        self.disks.replace()
        shutil.rmtree(self._directory)
        self._directory.mkdir()

    def let_go(self) -> None:
        """The run is over."""
        for process in [*self._ended, *([] if self._running is None else [self._running])]:
            process.let_go()
        if self.agent is not None:
            self.agent.let_go()
        if self._broker is not None and self._running is not None:
            self._broker.close_engines()
        self._running = self._broker = None
        self._ended.clear()

    # --- what can be seen of it

    @property
    def broker(self) -> SimulatedBroker:
        """Of the process that runs, or ran last."""
        if self._broker is None:
            raise AttributeError(f"{self.name} never ran")
        return self._broker

    @property
    def is_up(self) -> bool:
        """It is a member of its cluster."""
        return self._running is not None and self._broker is not None and self._broker.is_loaded

    @property
    def member(self) -> Member:
        return self.broker.membership.member

    @property
    def resources(self) -> Resources:
        return self.broker.container.default.resources

    @property
    def configuration(self) -> Any:
        return self.broker.container.default.configuration

    @property
    def container(self) -> Container:
        return self.broker.container

    @property
    def proxying(self) -> Proxying:
        sets = self.broker.sets
        if sets is None or sets.proxying is None:
            raise AttributeError(f"{self.name} relays nothing")
        return sets.proxying

    @property
    def open_connections(self) -> list[Connection]:
        """Those of clients and of other brokers."""
        return list(self.broker._protocols)

    @property
    def is_in_turn(self) -> bool:
        return self.broker.is_in_turn

    @property
    def is_primary(self) -> bool:
        """Whether clients would be served: a paused process cannot tell that it should not."""
        return self.is_up and self.member.status.state is State.PRIMARY

    @property
    def is_serving(self) -> bool:
        return self.is_up and self.broker.membership.clients.is_serving

    def note_line(self, text: str) -> None:
        """For the trace."""
        if self.site.trace.wanted:
            self.site.trace.add(self.name, text)

    # --- what is wanted of it

    def do(self, command: Callable[[], None]) -> None:
        """An operator's command."""
        if self._running is not None:
            self._running.post(command)

    def ask_for(self, make: Callable[[int], fx.Input], answered: Callable[[bool, str], None]) -> None:
        """An operator's request."""

        def ask() -> None:
            if self.is_up:
                requests = self.broker.membership.default.requests
                requests.begin(make, lambda answer: answered(answer.done, answer.text))

        self.do(ask)

    def ask(self, method: str, params: dict[str, object], answered: Callable[[str], None]) -> None:
        """Call a method of the control socket; `answered` hears what went wrong, empty: nothing did."""

        async def call() -> None:
            try:
                answer = self.broker.control.methods[method](params)
                if isinstance(answer, Awaitable):
                    await answer
            except (ControlError, ModelError) as error:
                answered(str(error))
            else:
                answered("")

        def begin() -> None:
            if self.is_up and self._running is not None:
                self._running.loop.create_task(call())
            else:
                answered("it is not up")

        self.do(begin)

    def written(self) -> None:
        """A command has written something."""
        self.broker.schedule_turn()

    # --- what its agent asks

    @property
    def settings(self) -> BrokerSettings:
        """As its next process would have them."""
        return self._settings(self.index, self._directory)

    @property
    def has_process(self) -> bool:
        """Whether there is one, be it stopped."""
        return self._running is not None

    def connect(self, post: Post, host: str, opened: Callable[[StreamEnd | None, str], None]) -> None:
        """From here to the broker at `host`."""
        self.site.streams.connect(self.name, post, name_at(host), opened)

    def control(self, line: bytes, answered: Callable[[bytes | None], None]) -> None:
        """A request at the control socket; `answered` hears None when nobody answers any more."""

        def gone() -> None:
            answered(None)

        async def call(control: DirectControl) -> None:
            answer = await control.answer(line, OF_MACHINE)
            if self._callers.pop(gone, self) is None:
                answered(answer.reply)

        self._at_control(call, gone)

    def subscribe(self, heard: Callable[[object], None], over: Callable[[], None]) -> Callable[[], None]:
        """`heard` is told of all events, until `over` is, or the function is called that is returned."""
        running, streams = self._running, list[Stream]()

        async def tell(control: DirectControl) -> None:
            stream = (await control.answer(EVENTS, OF_MACHINE)).stream
            if stream is not None:
                streams.append(stream)
                async for note in stream.notes:
                    heard(note)
            if self._callers.pop(over, self) is None:
                over()

        def end() -> None:
            for stream in streams:
                stream.close()

        def close() -> None:
            self._callers.pop(over, None)
            if running is not None:
                running.post(end)

        self._at_control(tell, over)
        return close

    def _at_control(self, work: Callable[[DirectControl], Coroutine[Any, Any, None]], gone: Callable[[], None]) -> None:
        """`gone` is called when nobody listens, or when its process dies before `work` has ended."""
        running, broker = self._running, self._broker
        if running is None or broker is None or not broker.direct.is_open:
            gone()
            return
        self._callers[gone] = None

        def begin() -> None:
            running.loop.create_task(work(broker.direct))

        running.post(begin)

    # --- what its broker tells

    def member_changed(self, set_name: str, change: fx.StateChanged) -> None:
        """Of that set."""
        self.site.watcher.member_changed(self, set_name, change, self.led_generations.get(set_name, 0))

    def ends_to_lead(self, set_name: str) -> None:
        """Its clients are told so next, if it led."""
        self.site.watcher.ends_to_lead(set_name, self.led_generations.get(set_name, 0))

    # --- see `streams.Listener`

    @property
    def is_listening(self) -> bool:
        """Somebody can connect."""
        return self._running is not None and self._broker is not None and self._broker.simulated.is_open

    def post_here(self) -> Post:
        running = self._running
        return _nobody if running is None else running.post

    def accept(self, end: StreamEnd) -> None:
        def take() -> None:
            self.broker.simulated.take(end, self.clock.monotonic_s())

        self.post_here()(take)


def _nobody(command: Callable[[], None]) -> None:
    """The process is dead."""


class BrokerReplica:
    """A broker's replica of a set beside `default`."""

    def __init__(self, node: BrokerNode, set_name: str) -> None:
        self.node = node
        self.name, self.index = node.name, node.index
        self.set_name = set_name

    @property
    def is_up(self) -> bool:
        """The broker hosts it."""
        sets = self.node.broker.sets if self.node.is_up else None
        return sets is not None and self.set_name in sets.hosts.members

    @property
    def is_paused(self) -> bool:
        return self.node.is_paused

    @property
    def paused_s(self) -> float:
        return self.node.paused_s

    @property
    def member(self) -> Member:
        sets = self.node.broker.sets
        if sets is None:
            raise AttributeError(f"{self.name} hosts nothing")
        member = sets.hosts.members[self.set_name]
        assert isinstance(member, SetMember)
        return member.member

    @property
    def resources(self) -> Resources:
        return self.node.container.sets[self.set_name].resources

    @property
    def is_primary(self) -> bool:
        """Whether clients would be served."""
        return self.is_up and self.member.status.state is State.PRIMARY

    @property
    def is_serving(self) -> bool:
        sets = self.node.broker.sets if self.node.is_up else None
        return sets is not None and sets.leads(self.set_name)

    def ask_for(self, make: Callable[[int], fx.Input], answered: Callable[[bool, str], None]) -> None:
        """An operator wants another broker to lead."""
        wanted = make(0)
        if isinstance(wanted, fx.SwitchoverAsked):
            params: dict[str, object] = {"action": "transfer", "name": self.set_name, "to": wanted.to}
            self.node.ask("sets", params, lambda problem: answered(not problem, problem))


class NodeListener:
    """What `streams` knows of a node: see `streams.Listener`."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self.name = node.name
        self.post_here = node.post_here
        self.accept = node.accept

    @property
    def is_up(self) -> bool:
        """Whether it takes connections."""
        return self._node.is_listening


ReplicaNode = BrokerNode | BrokerReplica
"""A replica of a set: of `default` each broker is one."""
