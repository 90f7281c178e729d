"""Messages for queues that another broker leads: once each, or refused, whatever becomes of connections and leaders."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_support import NOW_MS, WITNESS, Core, TextReader, bodies, body, message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.forward_frames import (
    ForwardBegin,
    ForwardCode,
    ForwardDone,
    ForwardFrame,
    ForwardMessage,
    ForwardRefused,
    ForwardSkip,
    decode,
    encode,
)
from qpid_ha_broker.ha.forwarding import (
    ForwardedMessage,
    ForwardingHere,
    ForwardLimits,
    ForwardReceiver,
    ForwardSender,
    SetForwarder,
)
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.model.budget import UNLIMITED, Budget
from qpid_ha_broker.model.errors import NotFound, QueueFull
from qpid_ha_broker.model.sets.message_clock import MessageClock
from qpid_ha_broker.model.sets.resources import Resources


def a_sender(gone: set[str] | None = None, limits: ForwardLimits | None = None) -> ForwardSender:
    sender = ForwardSender("red", b"beta/red", lambda name: name in (gone or set()), limits or ForwardLimits())
    sender.connected()
    return sender


def a_primary(**queues: int) -> Core:
    core = Core(Resources(TextReader(), "red"))
    for name, most in queues.items():
        core.queue(name, max_count=most)
    return core


def deliver(sender: ForwardSender, receiver: ForwardReceiver) -> None:
    """All that there is, both ways, until nobody has anything to say."""
    while frames := sender.take_frames():
        for frame in frames:
            for answer in receiver.received(decode(encode(frame)), NOW_MS):
                sender.received(decode(encode(answer)))
        sender.check_invariants()
    for answer in receiver.committed():
        sender.received(answer)


def test_a_message_is_committed_here_when_the_primary_has_committed_it() -> None:
    core, sender = a_primary(q=0, r=0), a_sender()
    receiver = ForwardReceiver(core.resources, MessageClock())
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
    first = ForwardReceiver(core.resources, MessageClock())
    for frame in sender.take_frames()[:3]:  # the last one is lost, and all answers
        first.received(frame, NOW_MS)
    sender.disconnected()
    tokens.append(sender.forward(("q",), message("4")))
    sender.connected()
    second = ForwardReceiver(core.resources, MessageClock())
    deliver(sender, second)
    core.commit()
    deliver(sender, second)
    assert bodies(core.catalog.queues["q"].messages) == ["1", "2", "3", "4"]
    assert all(token.is_committed for token in tokens)


def test_a_refused_message_fails_and_those_behind_it_are_taken_once() -> None:
    core, sender = a_primary(full=1, q=0), a_sender()
    receiver = ForwardReceiver(core.resources, MessageClock())
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
    lost = ForwardReceiver(core.resources, MessageClock())
    for frame in sender.take_frames():
        lost.received(frame, NOW_MS)
    assert core.catalog.queues["q"].messages.count == 0
    sender.disconnected()
    core.purge(core.catalog.queues["full"])
    sender.connected()
    receiver = ForwardReceiver(core.resources, MessageClock())
    deliver(sender, receiver)
    core.commit()
    deliver(sender, receiver)
    assert [token.is_committed for token in tokens] == [True, True, True]
    assert core.catalog.queues["full"].messages.count == 1


def test_a_queue_that_is_gone_is_left_out_and_one_that_is_missing_is_told_of() -> None:
    core, sender = a_primary(q=0), a_sender(gone={"old"})
    receiver = ForwardReceiver(core.resources, MessageClock())
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
    deliver(sender, ForwardReceiver(core.resources, MessageClock()))
    assert (sender.is_connected, token.failure, sender.is_idle) == (False, None, False)


def test_a_message_with_a_number_of_its_own_keeps_it() -> None:
    core, sender = a_primary(q=0), a_sender()
    receiver = ForwardReceiver(core.resources, MessageClock())
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
    receiver = ForwardReceiver(core.resources, MessageClock())
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
    forwarder = SetForwarder(lambda name: a_sender(limits=ForwardLimits(messages=3, bytes=100)))
    forwarder.forward("red", ("q",), message("x"))
    was_full = [forwarder.is_full]
    forwarder.forward("red", ("q",), message("x" * 100))
    was_full.append(forwarder.is_full)
    forwarder.senders["red"].received(ForwardDone(2))
    was_full.append(forwarder.is_full)
    for _ in range(3):
        forwarder.forward("red", ("q",), message(""))
    assert [*was_full, forwarder.is_full] == [False, True, False, True]


# --- a primary that is one no more


def led_by_another(core: Core, *texts: str) -> None:
    """Another broker leads, which has nothing of what was not committed here, and others' messages instead."""
    core.resources.replication.read_only = "gamma leads"
    core.log.reset(core.log.committed_lsn)
    start = ev.GenerationStarted(2, "gamma", "", 0, False, "")
    queue_id = core.catalog.queues["q"].id
    events: list[ev.Event] = [start]
    events += [ev.Enqueued((queue_id,), message(text).payload, False, 4, 0, "") for text in texts]
    for event in events:
        core.log.last_lsn += 1
        core.resources.replicated.state.apply(core.log.last_lsn, event)
    core.log.reset(core.log.last_lsn)


def test_a_primary_that_was_replaced_confirms_nothing_of_what_it_took() -> None:
    """Its log has come as far as what it had taken, with the messages of others in their place."""
    core, sender = a_primary(q=0), a_sender()
    core.commit()
    receiver = ForwardReceiver(core.resources, MessageClock())
    token = sender.forward(("q",), message("1"))
    deliver(sender, receiver)
    led_by_another(core, "a", "b", "c", "d")
    assert receiver.committed() == []
    assert receiver.is_outdated
    core.resources.replication.read_only = ""  # it leads again
    assert receiver.committed() == []
    assert receiver.is_outdated
    assert not token.is_committed


# --- a sender whose set is led at its own broker


def test_at_its_own_broker_a_refused_message_fails_and_those_behind_it_are_taken_once() -> None:
    core, sender = a_primary(full=1, q=0), a_sender()
    tokens = [sender.forward((name,), message(name)) for name in ("full", "full", "q", "full", "q")]
    here = ForwardingHere(sender, ForwardReceiver(core.resources, MessageClock()))
    assert not here.deliver(NOW_MS, UNLIMITED)
    sender.check_invariants()
    assert not sender.has_unwritten
    core.commit()
    assert here.tell_committed()
    assert [token.is_committed for token in tokens] == [True, False, True, False, True]
    assert core.catalog.queues["q"].messages.count == 2


def test_at_its_own_broker_much_is_taken_in_portions() -> None:
    core, sender = a_primary(q=0), a_sender()
    for number in range(10):
        sender.forward(("q",), message(str(number)))
    here = ForwardingHere(sender, ForwardReceiver(core.resources, MessageClock()))
    portions = 0
    while here.deliver(NOW_MS, Budget(iter(range(100)).__next__, 4)):
        portions += 1
        assert sender.has_unwritten
        assert core.catalog.queues["q"].messages.count < 10
    assert portions == 3
    assert not sender.has_unwritten
    assert bodies(core.catalog.queues["q"].messages) == [str(number) for number in range(10)]


def test_at_its_own_broker_nothing_fails_when_that_ceases_to_lead() -> None:
    core, sender = a_primary(q=0), a_sender()
    token = sender.forward(("q",), message("m"))
    here = ForwardingHere(sender, ForwardReceiver(core.resources, MessageClock()))
    core.resources.replication.read_only = "gamma leads"
    assert not here.deliver(NOW_MS, UNLIMITED)
    assert here.is_over
    assert (sender.is_connected, sender.has_unwritten, token.failure) == (False, True, None)


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
    receiver = ForwardReceiver(a_primary(q=0).resources, MessageClock())
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
        self.receiver: ForwardReceiver | None = ForwardReceiver(self.core.resources, MessageClock())
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
        self.there += self.sender.take_frames()
        if self.receiver is None:
            return
        for _ in range(self.random.randint(0, len(self.there))):
            self.back += self.receiver.received(self.there.popleft(), NOW_MS)
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
            self.receiver = ForwardReceiver(self.core.resources, MessageClock())

    def fail_over(self) -> None:
        self.disconnect()
        self.core.read()
        kept = self.random.randint(self.core.log.whole_lsn(), self.core.log.last_lsn)
        new = Core(Resources(TextReader(), "red"))
        for record in self.core.records:
            if record.lsn <= kept:
                new.resources.replicated.follow(record)
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
