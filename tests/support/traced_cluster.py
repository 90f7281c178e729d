"""A cluster in a test's hands that says, line by line, what its brokers do: frames, records, the store, states.

Brokers have a store if the settings say so: the real one, on a simulated disk. Everything is delivered in rounds: in
each, every broker handles what had arrived when the round began, in the order of the names, and then has a turn if one
is due. So a turn more or less, without effects, moves no line.

While it runs, the cluster checks what was promised to clients (`Promises`); a broken promise raises.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import NamedTuple

from ha_words import batch_words, count, frame_words, lsns, names, question_words, record_words, store_words
from member_harness import StoreRequest
from model_support import NOW_MS, message
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.link_ends import LinkEnd, end_of
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import Phase, State
from qpid_ha_broker.model.errors import ModelError
from simulated_disk import SimulatedDisk
from simulation.core.node_store import Machine, NodeStore, Process
from simulation.virtual_time import Callback, Schedule
from small_cluster import TICK_S, Node, SmallCluster

ROUNDS_MAX = 10_000
ANSWER_LIMIT_S = 20.0
SEGMENT_BYTES = 1 << 20


class BrokenPromise(AssertionError):
    """What no story may show, however often it is rewritten."""


class Even(random.Random):
    """Always the middle."""

    def random(self) -> float:
        return 0.5


class AtOnce(Schedule):
    """Without delays: what is asked for happens when the brokers have come to rest."""

    def after(self, delay_s: float, callback: Callback) -> None:
        """As soon as possible."""
        self.at(self.now_s, callback)


class Published(NamedTuple):
    """A message that a client waits for, or has seen confirmed."""

    queue: str
    body: str
    lsn: int


class TracedNode(Node):
    """One process. The machine below it outlives it."""

    def __init__(self, cluster: TracedCluster, name: str, settings: MemberSettings) -> None:
        self.traced = cluster
        self.work = AtOnce()
        """Of the store."""
        self.store: NodeStore | None = None
        self.waiting: list[Published] = []
        """What clients of this broker wait for."""
        self.taken: list[tuple[int, list[Published]]] = []
        """What consumers have accepted, with the LSN that settles it."""
        super().__init__(cluster, name, settings)

    def open_store(self, settings: MemberSettings) -> Restored | None:
        """Recover what the disk has."""
        if not settings.has_store:
            return None
        machine = self.traced.machine(self.name)
        process = Process(
            self.work, self.resources, self._in_process, self.feed, settings.tail_bytes, lambda text: None
        )
        self.store = NodeStore(machine, process, self.name)
        return self.store.open()

    def give_to_store(self, request: StoreRequest) -> None:
        """If there is one."""
        if self.store is not None:
            self.store.carry_out(request)

    def note_status(self, status: fx.MemberStatus) -> None:
        """The store says it too."""
        if self.store is not None:
            self.store.describe(status)

    def end_in_order(self, uuid: str) -> None:
        """With a store that says so."""
        if self.store is not None:
            self.store.clean_end(uuid)
        self.traced.kill(self.name)

    def end_for_good(self, reason: str) -> None:
        """The others notice."""
        super().end_for_good(reason)
        self.traced.kill(self.name)

    def _in_process(self, command: Callable[[], None]) -> None:
        if self.running:
            command()

    @property
    def serves(self) -> bool:
        """Whether clients are let in."""
        return self.running and not self.paused and self.is_in(State.PRIMARY) and not self.member.status.is_closing

    def handle(self, what: fx.Input) -> None:
        """One input, its effects, and what clients hear because of it."""
        self.traced.happened(self, what)
        super().handle(what)
        if not self.running:
            return
        self.traced.promises.look(self)

    def status(self) -> tuple[str, str]:
        """As an operator sees it, and what is wrong (empty: nothing that is known)."""
        if not self.running:
            return "down", ""
        member, status = self.member, self.member.status
        phase = f" ({status.phase})" if status.phase is not None else ""
        follows = f", follows {status.primary}" if status.primary not in ("", self.name) else ""
        text = (
            f"{status.state}{phase}{follows}, generation {status.generation}, epoch {status.epoch}, in sync"
            f" {names(status.members)}, log up to {member.position.lsn}, committed {member.committed_lsn}"
        )
        return text, status.problem


class Promises:
    """What must hold in every story:

    1. Of each generation of a cluster there is one primary.
    2. When a message is confirmed, every other member of the in-sync set that runs holds it.
    3. Who is promoted without force has every message that was confirmed and not consumed.

    Without a coordinator the product gives 3 only within limits (docs/decisions/0004-coordinators.md): a story that
    goes beyond them cannot be told here.
    """

    def __init__(self, cluster: TracedCluster) -> None:
        self._cluster = cluster
        self._primaries: dict[tuple[str, int], str] = {}
        self.confirmed: list[Published] = []
        """And not consumed, nor given up by force."""
        self.ever_confirmed: set[str] = set()
        self.settled: set[str] = set()
        """Of whose consumers it is known that they are done with them."""
        self._primary_since: dict[str, str] = {}
        """By name of the broker, the process that was found to be primary already."""

    def look(self, node: TracedNode) -> None:
        """After each input of `node`."""
        if not node.is_in(State.PRIMARY):
            self._primary_since.pop(node.name, None)
            self.hear_nothing(node)
            return
        if node.name not in self._primary_since:
            self._primary_since[node.name] = node.member.settings.instance
            self._promoted(node)
        committed = node.committed
        told = [each for each in node.waiting if each.lsn <= committed]
        if told:
            self.check_held(node, told[-1].lsn)
            self.confirmed += told
            self.ever_confirmed |= {each.body for each in told}
            node.waiting = [each for each in node.waiting if each.lsn > committed]
            self._cluster.tell(f"{node.name} confirms {_quoted(told)}")
        for lsn, taken in list(node.taken):
            if lsn <= committed:
                node.taken.remove((lsn, taken))
                self.settled |= {each.body for each in taken}
                self._cluster.tell(f"{node.name} settles {_quoted(taken)}")

    def hear_nothing(self, node: TracedNode) -> None:
        """The clients of `node` are gone."""
        waiting, node.waiting = node.waiting, []
        node.taken.clear()
        if waiting:
            self._cluster.tell(f"{node.name} never confirms {_quoted(waiting)}")

    def note_primary(self, name: str, cluster: str, generation: int) -> None:
        """`name` leads that generation. Raises BrokenPromise if another one does."""
        first = self._primaries.setdefault((cluster, generation), name)
        if first != name:
            raise BrokenPromise(f"{first} and {name} are both primary of generation {generation}")

    def _promoted(self, node: TracedNode) -> None:
        member = node.member
        self.note_primary(node.name, member.status.cluster, member.status.generation)
        forced = bool(member.history()[-1]["forced"])
        lost = [each for each in self.confirmed if each.body not in node.bodies(each.queue)]
        if lost and not forced:
            raise BrokenPromise(f"{node.name} is promoted, and lacks what was confirmed: {_quoted(lost)}")
        if lost:
            self._cluster.tell(f"given up by force: {_quoted(lost)}")
            self.confirmed = [each for each in self.confirmed if each not in lost]

    def check_held(self, primary: TracedNode, lsn: int) -> None:
        """Clients of `primary` hear that all up to `lsn` is committed. Raises BrokenPromise if a member lacks it."""
        for name in primary.member.status.members:
            other = self._cluster.nodes.get(name)
            if other is None or not other.running or other is primary:
                continue
            position = other.member.position
            if position.lsn < lsn:
                raise BrokenPromise(
                    f"{primary.name} confirms LSN {lsn}, but {name}, which is in sync, holds {position.lsn} only"
                )

    def consumed(self, queue: str, bodies: list[str]) -> list[Published]:
        """A consumer has accepted them: from now on nobody has to have them."""
        gone = [each for each in self.confirmed if each.queue == queue and each.body in bodies]
        self.confirmed = [each for each in self.confirmed if each not in gone]
        return gone


def _quoted(messages: list[Published]) -> str:
    bodies = [f'"{each.body}"' for each in messages]
    return ", ".join(bodies) if len(bodies) <= 5 else f"{bodies[0]} to {bodies[-1]}, {count(len(bodies), 'message')}"


class TracedCluster(SmallCluster):
    """Brokers by name; none is started at first. `lines`: what happened since somebody took them."""

    def __init__(self, brokers: tuple[str, ...], **settings: float) -> None:
        super().__init__(**settings)
        self._names = brokers
        self.lines: list[str] = []
        self.promises = Promises(self)
        self.off: set[str] = set()
        """Machines without power."""
        self.stopped_disks: set[str] = set()
        self._late: dict[tuple[str, str], list[tuple[str, fx.Input]]] = {}
        """What is on its way from one broker to another, on channels that are slow just now; with the receiver."""
        self.answers_get_lost = False
        """Of the coordinator: it takes what is written, and nobody hears that."""
        self.triggers: list[tuple[str, Callable[[], None]]] = []
        """What happens as soon as a line contains a text."""
        self._due: list[Callable[[], None]] = []
        self._machines: dict[str, Machine] = {}
        self._copies: dict[str, SimulatedDisk] = {}
        self._peers: dict[tuple[str, int], str] = {}
        """At the other end of a channel."""
        self._beats: dict[tuple[str, int], fr.Frame] = {}
        self._phases: dict[str, Phase | None] = {}
        self._refusals: set[tuple[str, str, str]] = set()
        """A refusal ends a channel, and is told once: who closes the channel to whom with these words."""

    def tell(self, line: str) -> None:
        """Something happened."""
        self.lines.append(line)
        for trigger in [each for each in self.triggers if each[0] in line]:
            self.triggers.remove(trigger)
            self._due.append(trigger[1])

    def machine(self, name: str) -> Machine:
        """The one below `name`."""
        if name not in self._machines:
            self._machines[name] = Machine(SimulatedDisk(Even(0)), Even(0), SEGMENT_BYTES, has_stalls=False)
        return self._machines[name]

    def make_node(self, name: str, settings: MemberSettings) -> Node:
        """A process that tells what it does."""
        return TracedNode(self, name, settings)

    def traced(self, name: str) -> TracedNode:
        """The newest process of that broker."""
        node = self.nodes[name]
        if not isinstance(node, TracedNode):
            raise TypeError(name)
        return node

    def all_traced(self) -> list[TracedNode]:
        """By name."""
        return [self.traced(name) for name in sorted(self.nodes)]

    # --- time

    def run(self) -> None:
        """Round after round, and the disks when nothing else is to do, until all is at rest."""
        for _ in range(ROUNDS_MAX):
            had_work = self._round()
            due, self._due = self._due, []
            for command in due:
                command()
            if not (had_work or due or self._let_disks_work()):
                return
        raise AssertionError("the cluster does not come to rest")

    def _round(self) -> bool:
        had_work = False
        arrived = [(node, len(node.inbox)) for node in self.all_traced()]
        for node, number in arrived:
            for _ in range(number):
                if node.running and not node.paused and node.inbox:
                    node.handle(node.inbox.popleft())
                    had_work = True
            if node.running and not node.paused and (node.turn_due or _has_work(node)):
                node.turn()
                had_work = True
        return had_work

    def _let_disks_work(self) -> bool:
        before = sum(node.work.count for node in self.all_traced())
        for node in self.all_traced():
            if node.running and node.name not in self.stopped_disks:
                node.work.run_until(0.0)
        return sum(node.work.count for node in self.all_traced()) > before

    def _tick(self) -> None:
        for node in self.nodes.values():
            if node.running and not node.paused:
                node.feed(fx.Ticked())

    def request(self, name: str, make: Callable[[int], fx.Input]) -> int:
        """Ask for something, and do not wait; the number under which the answer comes."""
        number = next(self._numbers)
        self.nodes[name].feed(make(number))
        return number

    def await_answers(self, requests: list[tuple[str, int]]) -> None:
        """Let time go on until all are answered; a broker that dies, or hangs, answers nothing."""
        self.run()
        for _ in range(round(ANSWER_LIMIT_S / TICK_S)):
            if all(number in self.nodes[name].answers or not self.nodes[name].running for name, number in requests):
                return
            self.wait(TICK_S)

    # --- machines

    def start(self, name: str) -> Node:
        """A new process; what others still believe to be a channel to the one before breaks."""
        self.off.discard(name)
        for end in [end for end in self._links if end[0] == name]:
            self.break_link(end, "connection reset")
        return super().start(name)

    def kill(self, name: str) -> None:
        """The process dies; the disk keeps what was written."""
        self.traced(name).waiting.clear()
        super().kill(name)
        self._leave_disk(name, has_power=True)

    def power_off(self, name: str) -> None:
        """The machine is silent, and what was not synced is gone."""
        self.off.add(name)
        node = self.traced(name)
        node.waiting.clear()
        node.running = False
        self._leave_disk(name, has_power=False)

    def _leave_disk(self, name: str, has_power: bool) -> None:
        store = self.traced(name).store
        if store is not None:
            self.machine(name).replace_disk(store.died(has_power))

    def copy_store(self, name: str) -> None:
        """As a backup tool does, while the broker is down."""
        self._copies[name] = copy.deepcopy(self.machine(name).disk)

    def put_store_back(self, name: str) -> None:
        """The copy takes the place of what is there."""
        self.machine(name).disk = copy.deepcopy(self._copies[name])

    def _refuses(self, name: str) -> bool:
        return name not in self.off and super()._refuses(name)

    def _is_cut(self, one: str, other: str) -> bool:
        return one in self.off or other in self.off or super()._is_cut(one, other)

    # --- slow channels

    def delay(self, one: str, other: str) -> None:
        """What `one` sends to `other` from now on stays on its way; answers to questions do not."""
        self._late[one, other] = []

    def deliver(self, one: str, other: str) -> None:
        """All of it arrives."""
        for name, what in self._late.pop((one, other)):
            self.nodes[name].feed(what)

    def send(self, node: Node, link: int, frame: fr.Frame) -> None:
        """At once, unless the channel is slow."""
        far = self._links.get((node.name, link))
        if far is not None and (node.name, far[0]) in self._late:
            self._late[node.name, far[0]].append((far[0], fx.FrameReceived(far[1], frame)))
        else:
            super().send(node, link, frame)

    def break_link(self, end: tuple[str, int], reason: str) -> None:
        """After all that is on its way."""
        far = self._links.get(end)
        if far is not None and (end[0], far[0]) in self._late:
            del self._links[end], self._links[far]
            self._late[end[0], far[0]].append((far[0], fx.LinkLost(far[1], reason, end_of(reason))))
        else:
            super().break_link(end, reason)

    # --- clients

    def publish(self, name: str, queue: str, bodies: list[str]) -> list[str]:
        """What became of each: `waits`, or why it was refused."""
        node, results = self.traced(name), []
        for text in bodies:
            try:
                if not (node.serves or (node.paused and node.is_in(State.PRIMARY))):
                    raise ModelError(f"no clients are served: this broker is {node.state if node.running else 'down'}")
                found = node.resources.catalog.queues[queue]
                lsn = node.resources.publish(found, message(text, durable=True), NOW_MS).lsn
            except ModelError as error:
                self.tell(f'{name} refuses "{text}": {error}')
                results.append("refused")
            else:
                node.waiting.append(Published(queue, text, lsn))
                results.append("waits")
        return results

    def consume_messages(self, name: str, queue: str, number: int) -> None:
        """A consumer takes and accepts so many."""
        node = self.traced(name)
        entries = node.take(queue, number)
        bodies = [entry.resident_body().decode().split(";", 2)[2] for entry in entries]
        self.tell(f"{name} hands out {', '.join(bodies) or 'nothing'}")
        if entries:
            lsn = node.resources.accept(node.resources.catalog.queues[queue], entries).lsn
            node.taken.append((lsn, self.promises.consumed(queue, bodies)))

    # --- what is told

    def happened(self, node: TracedNode, what: fx.Input) -> None:
        """An input that is a result of what the broker asked for, or comes from outside."""
        name = node.name
        match what:
            case fx.LinkLost(link, reason, end) if (name, link) in self._peers:
                peer = self._peers.pop((name, link))
                if (name, peer, reason) in self._refusals:
                    return
                how = "may not log in at" if end is LinkEnd.NOT_LET_IN else "has no channel to"
                self.tell(f"{name} {how} {peer}: {reason}")
            case fx.PeersAnswered(_, _, unreachable) if unreachable:
                self.tell(f"{name} hears nothing of {names(each.split(':')[0] for each in unreachable)}")
            case fx.RecordRead(_, record):
                self.tell(f"{name} reads the record: {record_words(record)}")
            case fx.RecordWritten(_, written, record):
                found = "recorded" if written else f"not known to be recorded; the record: {record_words(record)}"
                self.tell(f"{name} hears from the coordinator: {found}")
            case fx.TurnEnded(batch) if batch is not None:
                self.tell(f"{name} writes {lsns(batch.first_lsn, batch.last_lsn)}: {batch_words(batch.data)}")

    def carry_out(self, node: Node, effect: fx.Effect) -> None:
        """Tell it, and do it."""
        name = node.name
        match effect:
            case fx.Send(link, frame):
                self._tell_frame(name, link, frame)
            case fx.Connect(link, address):
                self._peers[name, link] = address.split(":")[0]
            case fx.Close(link, reason):
                peer = self._peers.pop((name, link), "")
                if peer and (name, peer, reason) not in self._refusals:
                    self.tell(f"{name} closes its channel to {peer}: {reason}")
            case fx.Ask(question, addresses):
                asked = names(each.split(":")[0] for each in addresses)
                self.tell(f"{name} asks {asked}: {question_words(question)}")
            case fx.WriteRecord(_, expected, wanted):
                self.tell(f"{name} wants the record: {record_words(wanted)}")
                self.tell(f"{' ' * len(name)} in place of:    {record_words(expected)}")
            case _:
                self._tell_rest(name, effect)
        super().carry_out(node, effect)

    def _tell_phase(self, name: str, phase: Phase | None) -> None:
        if phase is not None and phase is not self._phases.get(name):
            self.tell(f"{name} is {phase}")
        self._phases[name] = phase

    def _tell_rest(self, name: str, effect: fx.Effect) -> None:
        match effect:
            case fx.StateChanged(before, after, reason):
                self.tell(f"{name}: {before} -> {after} ({reason})")
            case fx.StatusChanged(status):
                self._tell_phase(name, status.phase)
            case fx.EndClients():
                self.tell(f"{name} sends its clients away")
                self.promises.hear_nothing(self.traced(name))
            case fx.Answered(_, done, text):
                self.tell(f"{name} answers: {'done' if done else 'refused'}: {text}")
            case fx.Discarded(queue, _, payloads):
                bodies = ", ".join(payload.decode().split(";", 2)[2] for payload in payloads)
                self.tell(f"{name} takes out of {queue}, for an operator to look at: {bodies}")
            case fx.Notice(level, text) if level != "info":
                self.tell(f"{name} logs ({level}): {text}")
            case fx.Stop(reason):
                self.tell(f"{name} ends for good: {reason}")
            case _:
                words = store_words(effect)
                if words:
                    self.tell(f"{name} to its store: {words}")

    def _tell_frame(self, name: str, link: int, frame: fr.Frame) -> None:
        """What repeats the last acknowledgement or heartbeat on a channel is not told, nor is what time it is."""
        if isinstance(frame, fr.ClockReading):
            return
        if isinstance(frame, fr.Answer) and link in self._asked:
            asker = self._asked[link][0].name
            self.tell(f"{name} -> {asker}  {frame_words(frame)}{self._loss(name, asker)}")
            return
        far = self._links.get((name, link))
        if far is None:
            return
        if isinstance(frame, fr.Ack | fr.Heartbeat):
            if self._beats.get((name, link)) == frame:
                return
            self._beats[name, link] = frame
        if isinstance(frame, fr.Refused):
            self._refusals |= {(name, far[0], frame.text), (far[0], name, frame.text)}
        self.tell(f"{name} -> {far[0]}  {frame_words(frame)}{self._loss(name, far[0])}")

    def _loss(self, one: str, other: str) -> str:
        return "  (is lost)" if self._is_cut(one, other) or not self.nodes[other].running else ""

    def connect(self, node: Node, link: int, address: str) -> None:
        """Nothing may come of it."""
        super().connect(node, link, address)
        far = self._links.get((node.name, link))
        if far is not None:
            self._peers[far] = node.name
        elif not any(isinstance(each, fx.LinkLost) and each.link == link for each in node.inbox):
            self.tell(f"{node.name} calls {address.split(':')[0]}, and hears nothing")

    # --- the coordinator

    def write_record(self, node: Node, number: int, expected: ClusterRecord, wanted: ClusterRecord) -> None:
        """Its answer may get lost."""
        if self.answers_get_lost and self.record_is_reachable:
            if self.record == expected:
                self.record = wanted
            node.feed(fx.RecordWritten(number, False, None, "no answer"))
        else:
            super().write_record(node, number, expected, wanted)


def _has_work(node: TracedNode) -> bool:
    return bool(node.resources.replicated.log.pending) or node.has_catch_up_work
