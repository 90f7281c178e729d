"""What goes wrong between clients, proxies and the primary, and what operators want of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Protocol

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from simulation.brokers.agents import AgentsTrouble
from simulation.brokers.amqp_client import AmqpClient
from simulation.brokers.clients import DELETED
from simulation.brokers.disks import DisksTrouble
from simulation.brokers.operator import OperatorOnCall
from simulation.brokers.placed_sets import DefaultSet, PlacedSet
from simulation.brokers.plan import BrokersFault, BrokersKind
from simulation.brokers.sessions import SessionClient
from simulation.machines.coordinator import Leases
from simulation.machines.node import BrokerNode
from simulation.machines.streams import Streams
from simulation.virtual_time import Schedule

MOVES_WITHIN_S = 4.0
ALONE_S = 3.5
"""So long brokers are stopped with which the primary is not in sync any more then."""
ALONE_DIES_S = 0.1
"""So soon before they go on it dies."""
GIVES_UP_S = 0.9
"""So long clients that were cut off wait for an answer to their next open."""


class WithClients(Protocol):
    """Who has the clients."""

    @property
    def clients(self) -> Sequence[AmqpClient]:
        """All of them."""

    def session_may_end(self, name: str) -> None:
        """An operator wants it, from now on."""


class BrokersTrouble:
    """Strikes where a fault is possible now; what takes a while ends by itself, or with `end`."""

    def __init__(
        self,
        schedule: Schedule,
        streams: Streams,
        nodes: Sequence[BrokerNode],
        default: DefaultSet,
        sets: Sequence[PlacedSet],
        leases: Leases,
        operator: OperatorOnCall,
    ) -> None:
        """`sets`: with `default`."""
        self._operator = operator
        self._schedule = schedule
        self._streams = streams
        self._nodes = nodes
        self._default = default
        self._sets = sets
        self._leases = leases
        self._moves_to: dict[str, tuple[str, float]] = {}
        """By set: who was to lead last, and until when that may go on."""
        self._undo: dict[Callable[[], None], None] = {}
        """What is to be made good at the end, if not before."""
        self.disks = DisksTrouble(nodes, default, self._may_go, self._later, operator)
        self._strikes: dict[StrEnum, Callable[[BrokersFault, random.Random], None]] = {
            BrokersKind.CLIENT_CUT: self._cut_client,
            BrokersKind.CLIENT_SLEEPS: self._have_client_sleep,
            BrokersKind.PROXY_CUT: self._cut_proxy,
            BrokersKind.BLOCK: self._block,
            BrokersKind.ONE_WAY: self._block_one_way,
            BrokersKind.CRASH_PRIMARY: self._crash_primary,
            BrokersKind.CRASH_PROXY: self._crash_proxy,
            BrokersKind.MOVE: self._move,
            BrokersKind.PAUSE: self._pause_any,
            BrokersKind.PAUSE_PRIMARY: self._pause_primary,
            BrokersKind.PAUSE_ALL: self._pause_all,
            BrokersKind.SPLIT: self._split,
            BrokersKind.CUT_OFF: self._cut_off,
            BrokersKind.DELETE_QUEUE: self._delete,
            BrokersKind.END_SESSION: self._end_session,
            BrokersKind.RECORD_LOST: lambda fault, draw: operator.lose_record(),
            BrokersKind.PRIMARY_ALONE: self._leave_primary_alone,
            **AgentsTrouble(leases, nodes, default, self._may_go, self._ended, self._later, operator).strikes,
            **self.disks.strikes,
        }

    def strike(self, fault: BrokersFault, clients: WithClients) -> None:
        """It happens now."""
        self._clients, self._session_may_end = clients.clients, clients.session_may_end
        self._strikes[fault.kind](fault, random.Random(fault.draw))

    def end(self) -> None:
        """Nothing goes wrong any more."""
        for undo in list(self._undo):
            undo()

    def _later(self, for_s: float, undo: Callable[[], object]) -> None:
        def once() -> None:
            if self._undo.pop(once, self) is None:
                undo()

        self._undo[once] = None
        self._schedule.after(for_s, once)

    # --- who it may strike

    def _any_set(self, draw: random.Random) -> PlacedSet:
        return draw.choice(self._sets) if len(self._sets) > 1 else self._default

    def _primary_of(self, placed: PlacedSet) -> BrokerNode | None:
        primary = placed.primary
        return None if primary is None else self._nodes[primary.index]

    def _may_go(self, node: BrokerNode) -> bool:
        """Whether somebody else could lead, of each set, who has all that was confirmed."""
        is_whole = not self._default.cut_off_s and all(each.is_up and not each.is_paused for each in self._nodes)
        if any(each.agent is not None and each.agent.is_stopping for each in self._nodes):
            return False  # with its broker, and what that one alone may have by then
        if any(each.disks.is_full for each in self._nodes):
            return False  # it holds nothing of what is durable, and whoever starts there cannot
        return is_whole and all(self._can_spare(placed, node.name) for placed in self._sets)

    def _ended(self, node: BrokerNode) -> None:
        """In good order. It could go when that was asked for; a primary that hands over first takes its time."""
        for placed in self._sets:
            if set(placed.register.record.members) == {node.name}:
                placed.ledger.lose_what_is_not_durable()

    def _can_spare(self, placed: PlacedSet, name: str) -> bool:
        primary = placed.primary
        if primary is None:
            return False
        in_sync, record = primary.member.status.members, placed.register.record
        if (record.primary, set(record.members)) != (primary.name, set(in_sync)):
            return False  # somebody else is about to lead, and may be all that there is then
        to, until_s = self._moves_to.get(placed.name, ("", 0.0))
        if name == to and self._schedule.now_s < until_s:
            return False
        rest = [
            each
            for each in placed.nodes
            if each.name != name
            and each.name in in_sync
            and each.is_up
            and (each is primary or each.member.status.state is State.READY)
        ]
        return len(rest) == len(set(in_sync) - {name}) and bool(rest)

    def _others(self, node: BrokerNode) -> list[BrokerNode]:
        return [each for each in self._nodes if each is not node]

    # --- clients

    def _cut_client(self, fault: BrokersFault, draw: random.Random) -> None:
        client = draw.choice(self._clients)
        if client.talk is not None and client.talk.end is not None:
            client.note("IS CUT")
            self._streams.cut(client.talk.end)

    def _have_client_sleep(self, fault: BrokersFault, draw: random.Random) -> None:
        draw.choice(self._clients).sleep(fault.for_s)

    # --- between brokers

    def _cut_proxy(self, fault: BrokersFault, draw: random.Random) -> None:
        """All streams that one broker has to another one."""
        primary = self._primary_of(self._any_set(draw))
        if primary is not None:
            proxy = draw.choice(self._others(primary))
            proxy.note_line(f"IS CUT from {primary.name}")
            self._streams.cut_between(proxy.name, primary.name)

    def _block(self, fault: BrokersFault, draw: random.Random) -> None:
        one, other = draw.sample(self._nodes, 2)
        for ends in ((one, other), (other, one)):
            self._stop_bytes(*ends, fault.for_s)

    def _block_one_way(self, fault: BrokersFault, draw: random.Random) -> None:
        one, other = draw.sample(self._nodes, 2)
        self._stop_bytes(one, other, fault.for_s)

    def _stop_bytes(self, one: BrokerNode, other: BrokerNode, for_s: float) -> None:
        self._streams.block(one.name, other.name)
        self._later(for_s, partial(self._streams.unblock, one.name, other.name))

    def _split(self, fault: BrokersFault, draw: random.Random) -> None:
        """Each two of those that do not hear of each other do so again at another time."""
        primary = self._primary_of(self._any_set(draw))
        if primary is None or not self._may_go(primary):
            return
        alone = [primary]
        if len(self._nodes) > 2 and draw.random() < 0.5:
            alone.append(draw.choice(self._others(primary)))
        ends_s = {}
        for one in alone:
            for other in self._others(one):
                if (other, one) not in ends_s:
                    ends_s[one, other] = for_s = fault.for_s * draw.uniform(0.4, 1.0)
                    for ends in ((one, other), (other, one)):
                        self._stop_bytes(*ends, for_s)
        for node in alone if primary.agent is not None and draw.random() < 0.5 else ():
            self._leases.cut(*node.processes)
            self._later(fault.for_s, partial(self._leases.mend, *node.processes))
        for placed in self._sets:
            for node in alone:
                last_s = max(for_s for ends, for_s in ends_s.items() if node in ends)
                placed.cut_off_s[node.name] = self._schedule.now_s
                self._later(last_s, partial(placed.is_heard_of, node.name))

    def _cut_off(self, fault: BrokersFault, draw: random.Random) -> None:
        """What clients with sessions ask there they give up; it is under way until nothing is blocked any more."""
        primary = self._default.primary
        if primary is None:
            return
        proxy = draw.choice(self._others(primary))
        proxy.note_line(f"IS CUT OFF from {primary.name}")
        for ends in ((primary, proxy), (proxy, primary)):
            self._stop_bytes(*ends, fault.for_s)
        for client in self._clients:
            if isinstance(client, SessionClient) and client.talk is not None:
                client.next_brokers = [proxy.name, primary.name]
                client.talk.drop("its network is gone for a moment")
                self._schedule.after(GIVES_UP_S, client.give_up)

    # --- brokers

    def _crash_primary(self, fault: BrokersFault, draw: random.Random) -> None:
        primary = self._primary_of(self._any_set(draw))
        if primary is not None:
            self._crash(primary, fault.for_s, draw)

    def _crash_proxy(self, fault: BrokersFault, draw: random.Random) -> None:
        self._crash(draw.choice(self._nodes), fault.for_s, draw)

    def _crash(self, node: BrokerNode, for_s: float, draw: random.Random) -> None:
        if self._may_go(node):
            node.kill(is_silent=draw.random() < 0.3)
            self._later(for_s, node.start_machine)

    def _move(self, fault: BrokersFault, draw: random.Random) -> None:
        placed = self._any_set(draw)
        primary = placed.primary
        if primary is not None:
            to = draw.choice([each for each in placed.nodes if each is not primary]).name
            self._moves_to[placed.name] = to, self._schedule.now_s + MOVES_WITHIN_S
            primary.ask_for(lambda request: fx.SwitchoverAsked(request, to, "asked for"), _nobody_listens)

    def _pause_any(self, fault: BrokersFault, draw: random.Random) -> None:
        self._pause(draw.choice(self._nodes), fault.for_s)

    def _pause_primary(self, fault: BrokersFault, draw: random.Random) -> None:
        primary = self._primary_of(self._any_set(draw))
        if primary is not None:
            self._pause(primary, fault.for_s)

    def _pause(self, node: BrokerNode, for_s: float) -> None:
        if node.is_up and not node.is_paused and self._may_go(node):
            self._stop(node, for_s, with_agent=for_s > 1.0)

    def _pause_all(self, fault: BrokersFault, draw: random.Random) -> None:
        """As machines whose host stops, or sleeps: they go on at once, or one after the other."""
        if all(self._may_go(node) for node in self._nodes):
            apart_s = draw.choice((0.0, 0.0, 0.01, 0.3))
            for node in self._nodes:
                self._stop(node, fault.for_s + apart_s * draw.random(), with_agent=True)

    def _stop(self, node: BrokerNode, for_s: float, *, with_agent: bool) -> None:
        """The process of the broker, or all of its machine."""
        node.pause()
        process, agent = node.process, node.agent
        of_agent = agent.process if agent is not None and agent.is_well and with_agent else None
        if agent is not None and of_agent is not None:
            agent.pause()

        def resume() -> None:
            if agent is not None and of_agent is not None and agent.process is of_agent:
                agent.resume()
            if node.process == process and node.is_paused:
                node.resume()

        self._later(for_s, resume)

    def _leave_primary_alone(self, fault: BrokersFault, draw: random.Random) -> None:
        primary, is_record_lost = self._default.primary, draw.random() < 0.5
        if primary is None or not self._may_go(primary):
            return
        for node in self._others(primary):
            self._stop(node, ALONE_S, with_agent=True)

        def end() -> None:
            if not primary.is_primary or primary.is_paused:
                return
            if is_record_lost:
                primary.note_line("THE RECORD IS LOST")
                self._operator.lose_record()
            primary.kill(is_silent=True)
            self._later(2 * fault.for_s, primary.start_machine)

        self._schedule.after(ALONE_S - ALONE_DIES_S, end)

    def _delete(self, fault: BrokersFault, draw: random.Random) -> None:
        default = self._default
        primary = default.primary
        if primary is not None:
            primary.do(partial(default.delete_queue, primary, DELETED, fault.for_s))

    def _end_session(self, fault: BrokersFault, draw: random.Random) -> None:
        """Of a client that is connected, or away."""
        primary = self._default.primary
        if primary is None:
            return
        names = sorted(primary.resources.replicated.state.sessions.by_name)
        if names:
            name = draw.choice(names)
            self._session_may_end(name)
            primary.do(partial(_end_by_hand, primary, name))


def _end_by_hand(node: BrokerNode, name: str) -> None:
    if not node.resources.replication.read_only:
        node.note_line(f"ENDS session {name}")
        node.container.sessions.end_by_hand(name)


def _nobody_listens(done: bool, text: str) -> None:
    """Whether it moved, the rest of the run shows."""
