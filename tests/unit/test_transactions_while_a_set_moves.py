"""A transaction while its set moves: what comes when, between the client, its broker and the one that leads, is drawn.

The promise: of a commit that is accepted everything counts; of one that is rejected nothing does, and what it had
accepted is there again; where neither is said, the client hears that its coordinator has ended, and all counts or
nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, push_into, take_from
from paired_proxy import PairedProxy
from paired_transactions import DECLARED, PairedCoordinator, answer, publish_message
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.relaying import relayed_transactions
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.model.logs.log import Log

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED
WALKS = 40
"""Of each way; each takes some milliseconds."""
STEPS = 40
"""For each pipe."""
MESSAGES = 4
WITNESS = "backup"
FANOUT = "amq.fanout"
HOW = ("two queues", "anonymous relay", "exchange", "one queue, with what it had accepted", "what it had accepted")


class Pipe:
    """Bytes from one to the other, which arrive when the walk says so, some frames or all of them."""

    def __init__(self, take: Callable[[], bytes], give: Callable[[bytes], None]) -> None:
        self._take = take
        self._give = give
        self._under_way = bytearray()

    def carry(self, draw: random.Random | None = None) -> bool:
        """Whether there was anything; without `draw` all of it arrives."""
        self._under_way += self._take()
        has_moved = bool(self._under_way)
        while self._under_way:
            size = int.from_bytes(self._under_way[:4], "big")
            frame = bytes(self._under_way[:size])
            del self._under_way[:size]
            self._give(frame)
            if draw is not None and draw.random() < 0.3:
                break
        return has_moved


class Walk:
    """One client with a transaction, and a set that moves away and comes back."""

    def __init__(self, way: str, how: str, seed: int) -> None:
        self.draw = random.Random(f"{way} {how} {seed}")
        self.proxied = PairedProxy() if way == "proxied" else None
        self.primary = PairedBroker() if self.proxied is None else self.proxied.primary
        self.broker = self.proxied or self.primary
        self.client = self.broker.connect()
        has_held = how in HOW[-2:]
        self.queues = ("q",) if has_held else ("q", "other")
        for name in self.queues:
            self.client.sender(name).close()
            if how == "exchange":
                self.primary.container.default.configuration.bind(FANOUT, name, "", {})
        self.held: Any = None
        self.settles = self.draw.random() < 0.5
        if has_held:
            self.client.publish("q", "held")
            (self.held, _), *_ = self.client.received(self.client.receiver("q", 1, answers_first=True))
        self.coordinator = PairedCoordinator(self.client)
        if how == "anonymous relay":
            relay = self.client.sender(None)
            self.ways = [(relay, name) for name in self.queues]
        else:
            self.ways = [(self.client.sender(name), name) for name in ((FANOUT,) if how == "exchange" else self.queues)]
        self.broker.settle_down()
        self.default = self.primary.container.default
        self.log: Log = self.default.resources.replicated.log
        self.log.add_witness(WITNESS)
        self.pipes = self._pipes()
        self.declare: Any = None
        self.commit: Any = None
        """The deliveries of both requests; None: not sent yet."""
        self.published: Counter[str] = Counter()
        messages = 0 if how == HOW[-1] else MESSAGES
        self.to_do = [*["publish"] * messages, *["accept"] * has_held, "commit"]
        self.steps = [self._acts, self._has_a_turn, *[self._carries] * len(self.pipes)]

    def _pipes(self) -> list[Pipe]:
        def receive(connection: Connection | Upstream, data: bytes) -> None:
            connection.receive(data)

        peer, transport = self.client.peer, self.client.transport
        pipes = [
            Pipe(lambda: take_from(transport), lambda data: receive(peer, data)),
            Pipe(peer.take_output, lambda data: push_into(transport, data)),
        ]
        upstream, accepted = (None, None) if self.proxied is None else (self.proxied.upstream, self.proxied.accepted)
        if upstream is not None and accepted is not None:
            pipes.append(Pipe(upstream.take_output, lambda data: receive(accepted, data)))
            pipes.append(Pipe(accepted.take_output, lambda data: receive(upstream, data)))
        return pipes

    # --- a step

    def _acts(self) -> None:
        """The client, which does not wait for the answers to its messages."""
        if self.declare is None:
            body = proton.Described(proton.symbol("amqp:declare:list"), [None])
            self.declare = self.client.send(self.coordinator.link, proton.Message(body=body))
        elif self.declare.remote_state == DECLARED and self.to_do and not self._has_lost_a_link:
            transaction_id = bytes(self.declare.remote.data[0])
            for _ in range(self.draw.randint(1, len(self.to_do))):
                self._does(self.to_do.pop(0), transaction_id)

    def _does(self, deed: str, transaction_id: bytes) -> None:
        if deed == "publish":
            sender, name = self.draw.choice(self.ways)
            for queue in self.queues if name == FANOUT else (name,):
                self.published[queue] += 1
            delivery = publish_message(self.client, sender, transaction_id, proton.Message("x", address=name))
            if self.settles:
                delivery.settle()
        elif deed == "accept":
            answer(self.held, transaction_id, settles=self.settles)
        else:
            body = proton.Described(proton.symbol("amqp:discharge:list"), [transaction_id, False])
            self.commit = self.client.send(self.coordinator.link, proton.Message(body=body))

    @property
    def _has_lost_a_link(self) -> bool:
        return any(link.state & proton.Endpoint.REMOTE_CLOSED for link in (self.coordinator.link, *dict(self.ways)))

    def _carries(self) -> None:
        self.draw.choice(self.pipes).carry(self.draw)

    def _has_a_turn(self) -> None:
        if self.draw.random() < 0.5:
            self.log.acknowledge(WITNESS, self.log.last_lsn)
        self.primary.turn()

    # --- the set moves

    def _begins_to_end(self) -> None:
        self.default.read_only = True
        self.default.resources.replication.read_only = "it hands over"

    def _ends_links(self) -> None:
        self.default.end_links(ServedElsewhere(self.primary.container.directory, "default"), browsers=False)

    def _leads_again(self) -> None:
        self.default.read_only = False
        self.default.resources.replication.read_only = ""
        proxied = self.proxied
        if proxied is not None and proxied.upstream is not None:
            again, proxied.again = proxied.again, []
            for link in again:
                if link in proxied.links:
                    proxied.upstream.attach(link)

    # --- all of it

    def run(self) -> None:
        steps = STEPS * len(self.pipes)
        begins = self.draw.randrange(steps)
        ends = begins + self.draw.randint(1, 3)
        moves = {
            begins: self._begins_to_end,
            ends: self._ends_links,
            ends + self.draw.randint(1, 20): self._leads_again,
        }
        for step in range(steps):
            self.draw.choice(self.steps)()
            if step in moves:
                moves[step]()
        for _ in range(3):
            while any(pipe.carry() for pipe in self.pipes):
                self.primary.turn()
            self.log.acknowledge(WITNESS, self.log.last_lsn)
            self.broker.settle_down()
            self._leads_again()
        self.broker.settle_down()

    def why_broken(self) -> str:
        """Empty: the promise was kept."""
        counts = {name: self.primary.queue(name).messages.count for name in self.queues}
        is_held = self.held is not None
        nothing = dict.fromkeys(self.queues, int(is_held))
        everything = {name: self.published[name] for name in self.queues}
        commit = self.commit
        if commit is None:
            return "" if counts == nothing else f"it was not committed, and there are {counts}"
        if commit.settled and commit.remote_state == ACCEPTED:
            return "" if counts == everything else f"it was committed, and there are {counts}, not {everything}"
        if commit.settled and commit.remote_state == REJECTED:
            return "" if counts == nothing else f"it was rolled back, and there are {counts}"
        if commit.settled:
            return f"a commit was answered with {int(commit.remote_state)}"
        if not self.coordinator.link.state & proton.Endpoint.REMOTE_CLOSED:
            return "a commit is not answered, and its coordinator is there"
        return "" if counts in (everything, nothing) else f"a part of it counts: {counts}"


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("way", ["direct", "proxied"])
def test_a_commit_says_what_has_become_of_its_transaction(way: str, how: str) -> None:
    answers: set[object] = set()
    for seed in range(WALKS):
        walk = Walk(way, how, seed)
        walk.run()
        assert walk.why_broken() == "", f"seed {seed}"
        walk.primary.check_invariants()
        answers.add(None if walk.commit is None else walk.commit.remote_state)
    assert {ACCEPTED, REJECTED} <= answers  # a test in which nothing happens would pass as well


def test_a_commit_that_is_released_when_its_coordinator_has_ended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpid_ha_broker.amqp.links.attach.answer_late", None)
    answers = (*relayed_transactions._ANSWERS, proton.Delivery.RELEASED)
    monkeypatch.setattr(relayed_transactions, "_ANSWERS", answers)

    problems = []
    for how in HOW:
        for seed in range(WALKS):
            walk = Walk("proxied", how, seed)
            walk.run()
            problems.append(walk.why_broken())

    assert set(problems) - {""} == {f"a commit was answered with {int(proton.Delivery.RELEASED)}"}
