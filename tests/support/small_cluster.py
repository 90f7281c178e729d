"""A cluster in a test's hands: real cores, joined in memory, and a network that does what the test says and when.

Time stands still until `wait`. Frames are delivered at once and in order unless two brokers are `cut` from each other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from member_harness import MemberHarness
from model_support import NOW_MS, TextReader, message
from qpid_ha_broker.events.types import EVERYTHING
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Answer, Frame
from qpid_ha_broker.ha.link_ends import LinkEnd, end_of
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.resources import Resources

TICK_S = 0.1


class Node(MemberHarness):
    """One broker, and what it was asked to do."""

    def __init__(self, cluster: SmallCluster, name: str, settings: MemberSettings) -> None:
        self.cluster = cluster
        self.name = name
        self.prepare(Resources(TextReader()))
        self.inbox: deque[fx.Input] = deque()
        self.running = True
        self.paused = False
        self.notices: list[str] = []
        self.answers: dict[int, fx.Answered] = {}
        self.states: list[str] = []
        self.reasons: list[str] = []
        """Of each change of state."""
        self.not_let_in: set[str] = set()
        """Names of brokers that cannot log in here."""
        self.has_no_place_for: set[str] = set()
        """Names of brokers that are refused a connection here."""
        self.clean_end: str | None = None
        """The shutdown under which its store is whole; empty: it is not; None: no shutdown has reached it."""
        self.turn_due = False
        self.confirmed = 0
        """The last LSN that it told clients of, as primary."""
        self.begin(settings, lambda: 0.5, self.open_store(settings))

    def open_store(self, settings: MemberSettings) -> Restored | None:
        """What this broker brings with it from the process before; None: nothing."""
        return None

    @property
    def state(self) -> State:
        """As `qpid-ha status` would say."""
        return self.member.status.state

    def is_in(self, state: State) -> bool:
        """Whether it is in that state now."""
        return self.member.status.state is state

    def feed(self, what: fx.Input) -> None:
        """Let `what` happen; the cluster delivers it when it runs."""
        self.inbox.append(what)

    def step(self) -> bool:
        """Handle one input or have one turn; False when there is nothing to do."""
        if not self.running or self.paused:
            return False
        if self.inbox:
            self.handle(self.inbox.popleft())
            return True
        if self.turn_due or self.resources.replicated.log.pending or self.has_catch_up_work:
            self.turn()
            return True
        return False

    def monotonic_s(self) -> float:
        """All brokers have the same clock."""
        return self.cluster.now_s

    def wall_ms(self) -> int:
        """It stands still."""
        return NOW_MS

    def handle(self, what: fx.Input) -> None:
        """One input, and its effects."""
        self.apply(what)

    def note_handled(self, what: fx.Input, effects: list[fx.Effect]) -> None:
        """Every promise is checked each time."""
        self.member.check_invariants()
        if self.state is State.PRIMARY:
            self.confirmed = max(self.confirmed, self.committed)

    def carry_out(self, effect: fx.Effect) -> None:
        """As the cluster wants it: a test may put something in between."""
        self.cluster.carry_out(self, effect)

    def do(self, effect: fx.Effect) -> None:
        """What a driver would."""
        super().carry_out(effect)

    def turn(self) -> None:
        """What the driver does at the end of a round."""
        self.turn_due = False
        self.handle(fx.TurnEnded(self.resources.replicated.log.take_batch()))

    # --- what it asks for

    def send_frame(self, link: int, frame: Frame) -> None:
        self.cluster.send(self, link, frame)

    def want_turn(self) -> None:
        self.turn_due = True

    def open_link(self, link: int, address: str) -> None:
        self.cluster.connect(self, link, address)

    def close_link(self, link: int, reason: str) -> None:
        self.cluster.break_link((self.name, link), reason)

    def ask_peers(self, asked: fx.Ask) -> None:
        self.cluster.ask(self, asked)

    def read_record(self, number: int) -> None:
        record = self.cluster.record if self.cluster.record_is_reachable else None
        self.feed(fx.RecordRead(number, record, "" if record else "unreachable"))

    def write_record(self, number: int, expected: ClusterRecord, wanted: ClusterRecord) -> None:
        self.cluster.write_record(self, number, expected, wanted)

    def note_state(self, change: fx.StateChanged) -> None:
        self.states.append(f"{change.before} -> {change.after}")
        self.reasons.append(change.reason)

    def end_clients(self) -> None:
        self.turn()
        self.feed(fx.ClientsEnded())

    def note_answer(self, answer: fx.Answered) -> None:
        self.answers[answer.request] = answer

    def note_line(self, text: str) -> None:
        self.notices.append(text)

    def end_in_order(self, uuid: str) -> None:
        self.clean_end = uuid

    def end_for_good(self, reason: str) -> None:
        self.running = False

    # --- what clients do

    @property
    def committed(self) -> int:
        """What may be confirmed."""
        return self.resources.replicated.log.committed_lsn

    def declare(self, name: str, **arguments: str | int | bool) -> Queue:
        """Make a queue; arguments without their prefix."""
        return self.configuration.declare_queue(name, {f"qpid.{key}": value for key, value in arguments.items()})

    def publish(self, queue: str, *bodies: str, durable: bool = False) -> int:
        """Publish; returns the LSN that a confirmation has to wait for."""
        lsn = 0
        for body in bodies:
            whole = message(body, durable=durable)
            lsn = self.resources.publish(self.resources.catalog.queues[queue], whole, NOW_MS).lsn
        return lsn

    def consume(self, queue: str, count: int) -> int:
        """Take `count` messages and be done with them; returns the LSN to wait for."""
        found = self.resources.catalog.queues[queue]
        taken = self.take(queue, count)
        return self.resources.accept(found, taken).lsn

    def take(self, queue: str, count: int) -> list[Entry]:
        """What a consumer with that credit gets, as if a mark had covered it: see `model.handout_marks`."""
        found = self.resources.catalog.queues[queue]
        mark, before = found.mark, (found.mark.upto, found.mark.settled)
        mark.upto = mark.settled = EVERYTHING
        consumer = Consumer()
        consumer.credit, consumer.window_bytes = count, 1 << 30
        self.resources.subscribe(found, consumer, consumer)
        self.resources.catalog.wake(found)
        taken = [entry for handout in self.resources.hand_out(NOW_MS, count) for entry in handout.entries]
        mark.upto, mark.settled = before
        self.resources.unsubscribe(found, consumer, NOW_MS)
        return taken

    def bodies(self, queue: str) -> list[str]:
        """What the replica holds, in order."""
        found = self.resources.catalog.queues.get(queue)
        if found is None:
            return []
        return [entry.resident_body().decode().split(";", 2)[2] for entry in found.messages]


class SmallCluster:
    """Brokers by name. `running`: who was started."""

    def __init__(self, *names: str, **settings: object) -> None:
        self.now_s = 1000.0
        self.nodes: dict[str, Node] = {}
        self.record: ClusterRecord | None = ClusterRecord() if settings.get("has_coordinator") else None
        self.record_is_reachable = True
        self.record_answers: deque[tuple[Node, fx.RecordWritten]] | None = None
        """A queue in the way of the coordinator's answers to writes; None: they come at once."""
        self._names = names
        self._settings = settings
        self._links: dict[tuple[str, int], tuple[str, int]] = {}
        """Each end of a channel, and the other one."""
        self._cuts: set[frozenset[str]] = set()
        self._numbers = iter(range(1, 1_000_000))
        self._asked: dict[int, tuple[Node, int, str]] = {}
        self._rounds: dict[tuple[str, int], tuple[list[Answer], list[str], list[fx.SilentPeer]]] = {}
        self._deadlines: dict[tuple[str, int], float] = {}
        self._instances = iter(range(1, 1000))
        for name in names:
            self.start(name)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def start(self, name: str) -> Node:
        """Start a broker with an empty memory."""
        settings = MemberSettings(
            name, f"{name}-{next(self._instances)}", tuple(f"{each}:5672" for each in self._names), f"{name}:5672"
        )
        node = self.nodes[name] = self.make_node(name, replace(settings, **self._settings))  # type: ignore[arg-type]
        node.feed(fx.Started())
        return node

    def make_node(self, name: str, settings: MemberSettings) -> Node:
        """A process that has not begun."""
        return Node(self, name, settings)

    # --- what the test does to it

    def run(self) -> None:
        """Deliver everything that is on its way, without letting time go on."""
        for _ in range(100_000):
            if not [node for node in list(self.nodes.values()) if node.step()]:
                return
        raise AssertionError("the cluster does not come to rest")

    def wait(self, seconds: float) -> None:
        """Let time go on, tick by tick."""
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self._tick()
            self._expire_questions()
            self.run()

    def _tick(self) -> None:
        for node in self.nodes.values():
            if node.running:
                node.feed(fx.Ticked())

    def promote(self, name: str, force: bool = False, failover: bool = False, predecessor: str = "") -> fx.Answered:
        """Ask `name` to become primary, and wait for what comes of it."""
        asked = fx.PromoteAsked(next(self._numbers), force, failover=failover, predecessor=predecessor)
        return self._ask_for(name, asked)

    def demote(self, name: str) -> fx.Answered:
        """Ask `name` to be primary no more."""
        return self._ask_for(name, fx.DemoteAsked(next(self._numbers)))

    def switch_over(self, name: str, to: str = "") -> fx.Answered:
        """Ask the primary `name` to hand over."""
        return self._ask_for(name, fx.SwitchoverAsked(next(self._numbers), to))

    def drop(self, name: str, backup: str) -> fx.Answered:
        """Tell the primary `name` that the machine of `backup` is off."""
        return self._ask_for(name, fx.DropAsked(next(self._numbers), backup, "its machine is off"))

    def _ask_for(
        self, name: str, what: fx.PromoteAsked | fx.DemoteAsked | fx.SwitchoverAsked | fx.DropAsked
    ) -> fx.Answered:
        node = self.nodes[name]
        node.feed(what)
        self.run()
        for _ in range(100):
            if what.request in node.answers:
                return node.answers[what.request]
            self.wait(TICK_S)
        raise AssertionError(f"{name} does not answer {what}; notices: {node.notices[-5:]}")

    def kill(self, name: str) -> None:
        """SIGKILL: memory and channels are gone, and the others notice."""
        self.nodes[name].running = False
        for end in [end for end in self._links if end[0] == name]:
            self.break_link(end, "connection reset")

    def cut(self, one: str, *others: str) -> None:
        """No byte passes between `one` and the others; channels break when somebody's patience ends."""
        for other in others:
            self._cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        """Every byte passes again; what was lost stays lost, so channels that had lost some break."""
        cuts, self._cuts = self._cuts, set()
        for end, other in list(self._links.items()):
            if frozenset((end[0], other[0])) in cuts and end in self._links:
                self.break_link(end, "connection reset")
                self._break_far(other)

    def disconnect(self, one: str, other: str) -> None:
        """Both ends learn at once that their channels are gone."""
        for end, far in list(self._links.items()):
            if {end[0], far[0]} == {one, other} and end in self._links:
                self._links.pop(far, None)
                self._links.pop(end, None)
                self.nodes[end[0]].feed(fx.LinkLost(end[1], "connection reset"))
                self.nodes[far[0]].feed(fx.LinkLost(far[1], "connection reset"))

    def link(self, one: str, other: str) -> int:
        """The number that `one` has for its only channel to `other`."""
        (number,) = [end[1] for end, far in self._links.items() if (end[0], far[0]) == (one, other)]
        return number

    def let_record_answers_come(self) -> None:
        """Those that were held up, and all after them."""
        held, self.record_answers = self.record_answers or (), None
        for node, answer in held:
            node.feed(answer)
        self.run()

    def settle(self) -> None:
        """Run until backups had time to come back and to apply what is committed."""
        self.wait(3.0)

    # --- what brokers ask for

    def carry_out(self, node: Node, effect: fx.Effect) -> None:
        """Do what a driver would."""
        node.do(effect)

    def connect(self, node: Node, link: int, address: str) -> None:
        """`node` wants a channel."""
        name = address.split(":")[0]
        other = self.nodes.get(name)
        if other is None or self._refuses(name) or name == node.name:
            node.feed(fx.LinkLost(link, "connection refused"))
        elif node.name in other.not_let_in:
            node.feed(fx.LinkLost(link, "amqp:unauthorized-access: Authentication failed", LinkEnd.NOT_LET_IN))
        elif node.name in other.has_no_place_for:
            node.feed(fx.LinkLost(link, "amqp:resource-limit-exceeded: 90 connections of brokers", LinkEnd.NO_PLACE))
        elif not self._is_cut(node.name, name):
            far = next(self._numbers)
            self._links[node.name, link] = (name, far)
            self._links[name, far] = (node.name, link)
            node.feed(fx.LinkOpened(link))

    def _refuses(self, name: str) -> bool:
        """Nobody listens there, and the machine says so."""
        return name not in self.nodes or not self.nodes[name].running

    def _is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cuts

    def send(self, node: Node, link: int, frame: Frame) -> None:
        """A frame on a channel, or an answer to whoever asks `node`."""
        if isinstance(frame, Answer) and link in self._asked and (node.name, link) not in self._links:
            self._answered(node, link, frame)
            return
        other = self._links.get((node.name, link))
        if other is not None and not self._is_cut(node.name, other[0]):
            self.nodes[other[0]].feed(fx.FrameReceived(other[1], frame))

    def break_link(self, end: tuple[str, int], reason: str) -> None:
        """The other end of the channel learns of it."""
        other = self._links.pop(end, None)
        if other is not None and not self._is_cut(end[0], other[0]):
            self._links.pop(other, None)
            self.nodes[other[0]].feed(fx.LinkLost(other[1], reason, end_of(reason)))

    def _break_far(self, other: tuple[str, int]) -> None:
        if self._links.pop(other, None) is not None:
            self.nodes[other[0]].feed(fx.LinkLost(other[1], "connection reset"))

    def ask(self, node: Node, asked: fx.Ask) -> None:
        """Everybody is asked at once."""
        question, addresses, limit_s = asked
        deadline_s = self.now_s + limit_s
        waiting = 0
        answers: list[Answer] = []
        unreachable: list[str] = []
        silent: list[fx.SilentPeer] = []
        self._rounds[node.name, question.number] = answers, unreachable, silent
        for address in addresses:
            name = address.split(":")[0]
            other = self.nodes.get(name)
            if other is None or self._refuses(name):
                unreachable.append(address)
                continue
            if node.name in other.not_let_in and not self._is_cut(node.name, name):
                unreachable.append(address)
                silent.append(fx.SilentPeer(address, "amqp:unauthorized-access: Authentication failed"))
                continue
            waiting += 1
            link = next(self._numbers)
            self._asked[link] = node, question.number, address
            if not self._is_cut(node.name, name):
                other.feed(fx.FrameReceived(link, question))
        self._deadlines[node.name, question.number] = deadline_s
        if not waiting:
            self._close_round(node, question.number)

    def _answered(self, other: Node, link: int, frame: Answer) -> None:
        node, number, _ = self._asked[link]
        if self._is_cut(node.name, other.name) or (node.name, number) not in self._rounds:
            return
        del self._asked[link]
        self._rounds[node.name, number][0].append(frame)
        if not any(asker is node and asked == number for asker, asked, _ in self._asked.values()):
            self._close_round(node, number)

    def _close_round(self, node: Node, number: int) -> None:
        answers, unreachable, silent = self._rounds.pop((node.name, number))
        for link, (asker, asked, address) in list(self._asked.items()):
            if asker is node and asked == number:
                del self._asked[link]
                unreachable.append(address)
                name = address.split(":")[0]
                if not self._is_cut(node.name, name) and not self._refuses(name):
                    silent.append(fx.SilentPeer(address, "it took the connection, and gave no answer"))
        node.feed(fx.PeersAnswered(number, tuple(answers), tuple(unreachable), tuple(silent)))

    def _expire_questions(self) -> None:
        for (name, number), deadline_s in list(self._deadlines.items()):
            if (name, number) in self._rounds and self.now_s >= deadline_s:
                self._close_round(self.nodes[name], number)

    def write_record(self, node: Node, number: int, expected: ClusterRecord, wanted: ClusterRecord) -> None:
        """Compare and set."""
        if not self.record_is_reachable:
            node.feed(fx.RecordWritten(number, False, None, "unreachable"))
            return
        written = self.record == expected
        if written:
            self.record = wanted
        answer = fx.RecordWritten(number, written, self.record)
        if self.record_answers is None:
            node.feed(answer)
        else:
            self.record_answers.append((node, answer))


def three(**settings: object) -> SmallCluster:
    """Three brokers, the first of them primary, the others ready."""
    cluster = SmallCluster("a", "b", "c", **settings)
    cluster.run()
    answer = cluster.promote("a")
    assert answer.done, answer
    cluster.settle()
    assert [cluster[name].state for name in "abc"] == [State.PRIMARY, State.READY, State.READY], [
        cluster[name].notices for name in "abc"
    ]
    return cluster
