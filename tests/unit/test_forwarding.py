"""Messages for queues that another broker leads: once each, or refused, whatever becomes of connections and leaders."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handed_on import a_receiver, a_sender, deliver, frames_of
from little_group import LittleGroup
from model_support import NOW_MS, WITNESS, Core, TextReader, bodies, body, message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha import forwarding
from qpid_ha_broker.ha.forward_frames import (
    ForwardBegin,
    ForwardCode,
    ForwardDone,
    ForwardFrame,
    ForwardMessage,
    ForwardRefused,
    ForwardSkip,
)
from qpid_ha_broker.ha.forwarding import (
    ForwardedMessage,
    ForwardLimits,
    ForwardReceiver,
)
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.model.errors import NotFound, QueueFull
from qpid_ha_broker.model.sets.message_clock import MessageClock
from qpid_ha_broker.model.sets.resources import Resources


def a_primary(**queues: int) -> Core:
    core = Core(Resources(TextReader(), "red"))
    for name, most in queues.items():
        core.queue(name, max_count=most)
    return core


def test_a_message_is_committed_here_when_the_primary_has_committed_it() -> None:
    core, sender = a_primary(q=0, r=0), a_sender()
    receiver = a_receiver(core.resources)
    token = sender.forward(("q", "r"), message("1"))
    deliver(sender, receiver)
    assert [bodies(core.catalog.queues[name].messages) for name in "qr"] == [["1"], ["1"]]
    assert not sender.is_idle
    core.commit()
    deliver(sender, receiver)
    assert token.is_committed
    assert sender.is_idle


def test_what_is_not_known_to_be_committed_is_sent_again_and_makes_no_copy() -> None:
    core, sender = a_primary(q=0), a_sender()
    tokens = [sender.forward(("q",), message(text)) for text in "123"]
    first = a_receiver(core.resources)
    for frame in frames_of(sender)[:3]:  # the last one is lost, and all answers
        first.received(frame, NOW_MS)
    first.write(NOW_MS)
    sender.disconnected()
    tokens.append(sender.forward(("q",), message("4")))
    sender.connected()
    second = a_receiver(core.resources)
    deliver(sender, second)
    core.commit()
    deliver(sender, second)
    assert bodies(core.catalog.queues["q"].messages) == ["1", "2", "3", "4"]
    assert all(token.is_committed for token in tokens)


def test_a_refused_message_fails_and_those_behind_it_are_taken_once() -> None:
    core, sender = a_primary(full=1, q=0), a_sender()
    receiver = a_receiver(core.resources)
    tokens = [sender.forward((name,), message(name)) for name in ("full", "full", "q", "q")]
    deliver(sender, receiver)
    core.commit()
    deliver(sender, receiver)
    assert [token.is_committed for token in tokens] == [True, False, True, True]
    assert isinstance(tokens[1].failure, QueueFull)
    assert core.catalog.queues["q"].messages.count == 2


def test_a_refusal_that_was_lost_on_the_way_does_not_make_a_duplicate_of_the_message() -> None:
    """Were anything taken behind it, the refused message would count as accepted when it comes again."""
    core, sender = a_primary(full=1, q=0), a_sender()
    tokens = [sender.forward((name,), message(name)) for name in ("full", "full", "q")]
    lost = a_receiver(core.resources)
    for frame in frames_of(sender):
        lost.received(frame, NOW_MS)
    lost.write(NOW_MS)
    assert core.catalog.queues["q"].messages.count == 0
    sender.disconnected()
    core.purge(core.catalog.queues["full"])
    sender.connected()
    receiver = a_receiver(core.resources)
    deliver(sender, receiver)
    core.commit()
    deliver(sender, receiver)
    assert [token.is_committed for token in tokens] == [True, True, True]
    assert core.catalog.queues["full"].messages.count == 1


def test_a_queue_that_is_gone_is_left_out_and_one_that_is_missing_is_told_of() -> None:
    core, sender = a_primary(q=0), a_sender(gone={"old"})
    receiver = a_receiver(core.resources)
    tokens = [sender.forward(names, message("m")) for names in (("old",), ("old", "q"), ("new", "q"))]
    deliver(sender, receiver)
    core.commit()
    deliver(sender, receiver)
    assert [token.is_committed for token in tokens] == [True, True, False]
    assert isinstance(tokens[2].failure, NotFound)
    assert core.catalog.queues["q"].messages.count == 1


def test_who_does_not_lead_takes_nothing_and_nothing_fails() -> None:
    core, sender = a_primary(q=0), a_sender()
    core.resources.replication.read_only = "gamma leads"
    token = sender.forward(("q",), message("m"))
    deliver(sender, a_receiver(core.resources))
    assert (sender.is_connected, token.failure, sender.is_idle) == (False, None, False)


def test_a_message_with_a_number_of_its_own_keeps_it() -> None:
    core, sender = a_primary(q=0), a_sender()
    receiver = a_receiver(core.resources)
    numbered = message("m")._replace(producer=b"app", sequence=7)
    core.publish(core.catalog.queues["q"], numbered)
    token = sender.forward(("q",), numbered)
    deliver(sender, receiver)
    core.commit()
    deliver(sender, receiver)
    assert token.is_committed
    assert core.catalog.queues["q"].messages.count == 1


def test_a_number_that_was_refused_is_refused_again_though_a_later_one_was_taken() -> None:
    """Its publisher's broker may be lost before the publisher hears of it, and hand it on once more at another one."""
    core, sender = a_primary(q=1), a_sender()
    receiver = a_receiver(core.resources)
    first, second, third = [message(text)._replace(producer=b"app", sequence=int(text)) for text in "123"]
    tokens = [sender.forward(("q",), each) for each in (first, second)]
    deliver(sender, receiver)
    core.purge(core.catalog.queues["q"])
    tokens += [sender.forward(("q",), each) for each in (third, second)]
    deliver(sender, receiver)
    core.commit()
    deliver(sender, receiver)
    assert [token.is_committed for token in tokens] == [True, False, True, False]
    assert "under a new number" in str(tokens[3].failure)
    assert bodies(core.catalog.queues["q"].messages) == ["3"]


def test_publishers_are_to_wait_when_too_much_is_kept() -> None:
    sender = a_sender(limits=ForwardLimits(messages=3, bytes=100))
    sender.forward(("q",), message("x"))
    was_full = [sender.is_full]
    sender.forward(("q",), message("x" * 100))
    was_full.append(sender.is_full)
    sender.received(ForwardDone(2))
    was_full.append(sender.is_full)
    for _ in range(3):
        sender.forward(("q",), message(""))
    assert [*was_full, sender.is_full] == [False, True, False, True]


# --- what is written together


def messages_by_unit(core: Core) -> list[int]:
    """In what was written since it was read: with them is how far the sender has come."""
    return [event.parts - 1 for event in core.read() if isinstance(event, ev.TransactionCommitted)]


def test_what_comes_for_one_queue_without_a_limit_is_one_unit_of_the_log() -> None:
    core, sender = a_primary(q=0, r=0), a_sender()
    core.read()
    for queue in ("q", "q", "r", "q"):
        sender.forward((queue,), message(queue))
    deliver(sender, a_receiver(core.resources))
    assert messages_by_unit(core) == [2, 1, 1]


def test_what_waits_to_be_written_is_written_before_what_comes_for_a_queue_with_a_limit() -> None:
    core, sender, order = a_primary(q=0, full=1), a_sender(), list[str]()
    receiver = ForwardReceiver(core.resources, MessageClock(), lambda: order.append("room is made"))
    for queue in ("q", "full"):
        sender.forward((queue,), message(queue))
    begin, first, second = frames_of(sender)
    for frame in (begin, first):
        receiver.received(frame, NOW_MS)
    assert (core.catalog.queues["q"].messages.count, receiver.written, order) == (0, 0, [])
    receiver.received(second, NOW_MS)
    assert [core.catalog.queues[name].messages.count for name in ("q", "full")] == [1, 1]
    assert (receiver.written, order) == (2, ["room is made"])


def test_of_what_is_written_together_nothing_is_taken_behind_the_one_that_is_refused() -> None:
    """As all of it is refused together, it is looked at one by one."""
    core, sender = a_primary(q=0), a_sender()
    queue = core.catalog.queues["q"]
    receiver = a_receiver(core.resources)
    tokens = [sender.forward(("q",), message(text)) for text in "123"]
    for frame in frames_of(sender):
        receiver.received(frame, NOW_MS)
    core.configuration.update_queue("q", {"qpid.max_count": 1})
    (refused,) = receiver.write(NOW_MS)
    assert isinstance(refused, ForwardRefused)
    assert (refused.number, receiver.written, bodies(queue.messages)) == (2, 1, ["1"])
    sender.received(refused)
    core.purge(queue)
    deliver(sender, receiver)
    core.commit()
    deliver(sender, receiver)
    assert [token.is_committed for token in tokens] == [True, False, True]


@pytest.mark.parametrize("most", ["UNIT_MESSAGES", "UNIT_BYTES"])
def test_a_unit_of_the_log_has_a_limit(monkeypatch: pytest.MonkeyPatch, most: str) -> None:
    size = 1 if most == "UNIT_MESSAGES" else len(message("m").payload)
    monkeypatch.setattr(forwarding, most, 3 * size)
    core, sender = a_primary(q=0), a_sender()
    core.read()
    for _ in range(7):
        sender.forward(("q",), message("m"))
    deliver(sender, a_receiver(core.resources))
    assert messages_by_unit(core) == [3, 3, 1]


@pytest.mark.parametrize(
    "frame",
    [ForwardBegin(b"x"), ForwardDone(2), ForwardRefused(9, ForwardCode.FULL, ""), ForwardSkip(1)],
)
def test_what_is_no_answer_ends_the_sub_channel(frame: ForwardFrame) -> None:
    sender = a_sender()
    sender.forward(("q",), message("m"))
    with pytest.raises(FrameError):
        sender.received(frame)


@pytest.mark.parametrize(
    "frames",
    [
        [ForwardMessage(1, ("q",), False, 4, 0, b"", 0, b"")],
        [ForwardBegin(b"x"), ForwardBegin(b"x")],
        [ForwardBegin(b"x"), ForwardSkip(1)],
        [ForwardBegin(b"x"), ForwardDone(1)],
        [ForwardBegin(b"x"), *[ForwardMessage(1, ("q",), False, 4, 0, b"", 0, b";;false")] * 2],
    ],
)
def test_what_a_sender_cannot_say_ends_the_sub_channel(frames: list[ForwardFrame]) -> None:
    receiver = a_receiver(a_primary(q=0).resources)
    for frame in frames[:-1]:
        receiver.received(frame, NOW_MS)
    with pytest.raises(FrameError):
        receiver.received(frames[-1], NOW_MS)


# --- everything at once


class ManyDeaths:
    """One sender, and primaries one after the other: each has what the last one had committed, and perhaps more."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.core = a_primary(full=2, q=0)
        self.core.commit()
        self.sender = a_sender()
        self.receiver: ForwardReceiver | None = a_receiver(self.core.resources)
        self.there: deque[ForwardFrame] = deque()
        self.back: deque[ForwardFrame] = deque()
        self.tokens: dict[str, ForwardedMessage] = {}
        self.consumed: Counter[str] = Counter()

    def publish(self) -> None:
        text = f"m{len(self.tokens)}"
        queue = self.random.choice(["full", "q", "q"])
        each = message(text)
        if self.random.random() < 0.3:
            each = each._replace(producer=b"app", sequence=len(self.tokens))
        self.tokens[text] = self.sender.forward((queue,), each)

    def carry(self) -> None:
        """A part of what is on its way, both ways."""
        self.there += frames_of(self.sender)
        if self.receiver is None:
            return
        for _ in range(self.random.randint(0, len(self.there))):
            self.back += self.receiver.received(self.there.popleft(), NOW_MS)
        if self.random.random() < 0.8:
            self.back += self.receiver.write(NOW_MS)
        self.back += self.receiver.committed()
        for _ in range(self.random.randint(0, len(self.back))):
            self.sender.received(self.back.popleft())
        self.sender.check_invariants()

    def commit(self) -> None:
        log = self.core.log
        log.acknowledge(WITNESS, self.random.randint(log.committed_lsn, log.last_lsn))

    def consume(self) -> None:
        """What is committed, from the bounded queue."""
        queue = self.core.catalog.queues["full"]
        entries = [entry for entry in queue.messages if entry.id <= self.core.log.whole_lsn()]
        for entry in entries[:1]:
            self.consumed[body(entry.resident_body())] += 1
            self.core.resources.accept(queue, [entry])
            self.core.commit()

    def disconnect(self) -> None:
        self.there.clear()
        self.back.clear()
        self.sender.disconnected()
        self.receiver = None

    def connect(self) -> None:
        if self.receiver is None:
            self.sender.connected()
            self.receiver = a_receiver(self.core.resources)

    def fail_over(self) -> None:
        self.disconnect()
        self.core.read()
        kept = self.random.randint(self.core.log.whole_lsn(), self.core.log.last_lsn)
        new = Core(Resources(TextReader(), "red"))
        for record in self.core.records:
            if record.lsn <= kept:
                new.resources.replicated.follow([record])
        new.resources.replicated.take_over(NOW_MS, 0)
        new.log.reset(new.log.last_lsn)
        new.records = [record for record in self.core.records if record.lsn <= new.log.last_lsn]
        self.core = new

    def settle(self) -> None:
        self.connect()
        for _ in range(400):
            self.carry()
            self.core.commit()
            if self.sender.is_idle:
                return
        raise AssertionError("it does not come to an end")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_each_message_is_there_once_or_its_publisher_was_told_that_it_is_not(seed: int) -> None:
    world = ManyDeaths(seed)
    common: list[Callable[[], None]] = [world.publish, world.carry, world.carry, world.commit, world.connect]
    steps = [*common, *common, world.consume, world.disconnect, world.fail_over]
    for _ in range(150):
        world.random.choice(steps)()
    world.settle()
    there = Counter(world.consumed)
    for queue in world.core.catalog.queues.values():
        there.update(bodies(queue.messages))
    wrong = {
        text: (there[text], token.is_committed)
        for text, token in world.tokens.items()
        if there[text] != (1 if token.is_committed else 0) or token.is_committed is (token.failure is not None)
    }
    assert not wrong


def test_what_others_of_a_group_were_faster_about_is_sent_once_more_and_then_shows_why() -> None:
    group = LittleGroup()
    name = group.a.queue().name
    receiver = ForwardReceiver(group.a.resources, MessageClock(), lambda: None)
    receiver.received(ForwardBegin(b"far"), NOW_MS)
    receiver.received(ForwardMessage(1, (name,), True, 4, 0, b"", 0, message("x").payload), NOW_MS)
    group.b.write(ev.QueueDeleted(group.b.queue().id))
    group.b.turn()
    receiver.write(NOW_MS)
    group.settle()
    (refused,) = receiver.committed()
    assert isinstance(refused, ForwardRefused)
    assert (refused.number, refused.code, receiver.is_idle) == (0, ForwardCode.NOT_PRIMARY, True)
    assert receiver.received(ForwardMessage(2, (name,), True, 4, 0, b"", 0, b"y"), NOW_MS) == [], "before it is there"

    again = ForwardReceiver(group.a.resources, MessageClock(), lambda: None)
    again.received(ForwardBegin(b"far"), NOW_MS)
    told = again.received(ForwardMessage(1, (name,), True, 4, 0, b"", 0, message("x").payload), NOW_MS)
    assert [frame.code for frame in told if isinstance(frame, ForwardRefused)] == [ForwardCode.NOT_FOUND]
