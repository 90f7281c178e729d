"""What a relayed consumer asks for at the other end, and when its client hears that a drain is over."""

from __future__ import annotations

from bisect import insort
from collections import deque

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paired_proxy import PairedProxy
from paired_remote import PairedRemote
from qpid_ha_broker.amqp.connections.relayed_memory import FIRST_MESSAGES, LINK_BYTES
from qpid_ha_broker.amqp.links.consumer_credit import (
    CLIENT_DRAINED,
    HELD_S,
    NOTHING_TO_DO,
    ConsumerCredit,
    CreditStep,
    Room,
)
from qpid_ha_broker.amqp.nodes.terminus import AFTER

DRAIN = CreditStep(drains=True)


@pytest.mark.parametrize(
    ("wanted", "asked", "room", "client_drains", "step"),
    [
        (10, 0, Room.THERE_IS, False, CreditStep(credit=10)),
        (10, 9, Room.THERE_IS, False, NOTHING_TO_DO),  # not worth a frame
        (10, 10, Room.THERE_IS, False, NOTHING_TO_DO),
        (FIRST_MESSAGES + 1, 0, Room.THERE_IS, False, CreditStep(credit=FIRST_MESSAGES)),
        (2, 10, Room.THERE_IS, False, DRAIN),
        (2, 10, Room.NONE, False, DRAIN),
        (10, 0, Room.NONE, False, NOTHING_TO_DO),
        (10, 0, Room.NONE, True, NOTHING_TO_DO),
        (10, 0, Room.ANSWERS_FIRST, False, NOTHING_TO_DO),
        (10, 0, Room.NO_MEMORY, False, NOTHING_TO_DO),
        (10, 0, Room.NO_MEMORY, True, CLIENT_DRAINED),
        (10, 0, Room.ANSWERS_FIRST, True, CLIENT_DRAINED),
        (10, 4, Room.ANSWERS_FIRST, True, CreditStep(client_drained=True, drains=True)),
        (10, 4, Room.THERE_IS, True, CreditStep(drains=True, credit=6)),
        (0, 0, Room.THERE_IS, True, CLIENT_DRAINED),
        (0, 0, Room.NONE, True, CLIENT_DRAINED),
        (0, 0, Room.THERE_IS, False, NOTHING_TO_DO),
    ],
)
def test_each_case(wanted: int, asked: int, room: Room, client_drains: bool, step: CreditStep) -> None:
    credit = ConsumerCredit()
    credit.client_drains = client_drains
    assert credit.next_step(wanted, asked, room) == step
    assert credit.is_draining is step.drains
    if step.drains:
        assert credit.next_step(wanted, asked, room) == NOTHING_TO_DO


def test_a_drain_that_used_all_credit_may_have_left_messages_and_is_asked_for_again() -> None:
    credit = ConsumerCredit()
    credit.client_drains = True
    most = FIRST_MESSAGES
    assert credit.next_step(most + 5, 0, Room.THERE_IS) == CreditStep(drains=True, credit=most)
    assert credit.far_drained(given_up=0) == NOTHING_TO_DO
    assert credit.next_step(5, 0, Room.THERE_IS) == CreditStep(drains=True, credit=5)
    assert credit.far_drained(given_up=5) == CLIENT_DRAINED
    assert not credit.client_drains


def test_large_messages_are_asked_for_few_at_a_time() -> None:
    credit = ConsumerCredit()
    credit.note_size(LINK_BYTES // 4, LINK_BYTES)
    assert credit.next_step(100, 0, Room.THERE_IS) == CreditStep(credit=4)
    credit.note_size(2 * LINK_BYTES, LINK_BYTES)
    assert credit.next_step(100, 0, Room.THERE_IS) == CreditStep(credit=1)
    credit.note_size(10, LINK_BYTES)
    assert credit.next_step(100, 0, Room.THERE_IS) == CreditStep(credit=100)


# --- the promise, for two ends of which each hears late of the other


class FarEnd:
    """A queue, and the one link that takes from it. What it says, and what it hears, is on its way for a while."""

    def __init__(self, messages: int) -> None:
        self.queue = list(range(messages))
        self.held: set[int] = set()
        self.said: deque[tuple[str, int]] = deque()
        """To the proxy: messages, or at which delivery-count a drain has ended."""
        self.heard: deque[tuple[str, int, bool]] = deque()
        """From the proxy: up to which delivery-count it takes messages, and whether it drains; or what goes back."""
        self._count = self._limit = 0
        self._drains = False

    def hear(self) -> None:
        """One thing more."""
        if not self.heard:
            return
        kind, value, drains = self.heard.popleft()
        if kind == "flow":
            self._limit, self._drains = value, drains
        else:
            self.held.discard(value)
            insort(self.queue, value)

    def send(self) -> None:
        """One message, or that the drain is over."""
        if self._count < self._limit and self.queue:
            self._count += 1
            self.held.add(self.queue[0])
            self.said.append(("message", self.queue.pop(0)))
        elif self._drains and self._count < self._limit:
            self._count = self._limit
            self.said.append(("drained", self._count))

    def give_to_another(self) -> None:
        """Somebody else takes the first message, for good."""
        del self.queue[:1]


class Between:
    """As `CreditedConsumer`, with a client of numbers."""

    def __init__(self, far: FarEnd, *, releases: bool) -> None:
        """`releases`: what comes without credit goes back at once."""
        self.core = ConsumerCredit()
        self.core.most = 1000
        self.far = far
        self.backlog: deque[int] = deque()
        self.received: list[int] = []
        """By the client."""
        self.limit = 0
        """Up to which delivery-count the client takes messages."""
        self.drains_ended = 0
        self.is_window_open = True
        self.now_s = 0.0
        self.most_asked = 0
        self._releases = releases
        self._count = self._came = self._asked_to = 0

    @property
    def credit(self) -> int:
        return self.limit - self._count

    def flow(self, more: int, *, drains: bool) -> None:
        self.limit += more
        self.core.client_drains = drains
        if self.credit > 0:
            self.core.gives_back = False
        self.go_on()

    def go_on(self) -> None:
        """The client, or its window, or the time has changed."""
        if self.backlog and self.credit > 0:
            self.core.note_held(None)
        while self.backlog and self.credit > 0 and self.is_window_open:
            self._count += 1
            self.received.append(self.backlog.popleft())
        self.core.note_held(self.now_s if self.backlog and self.credit <= 0 else None)
        self.core.is_due(self.now_s)
        self._ask()

    def _ask(self) -> None:
        room = Room.THERE_IS if self.is_window_open and not self.backlog else Room.NONE
        wanted, asked = max(self.credit, 0), self._asked_to - self._came
        step = self.core.next_step(wanted, asked, room, held=len(self.backlog))
        if step.client_drained:
            self._end_drain()
        if step.gives_back:
            assert asked == 0
            while self.backlog:
                self.far.heard.append(("return", self.backlog.popleft(), False))
            self.core.note_held(None)
        if step.drains or step.credit:
            self._asked_to += step.credit
            self.most_asked = max(self.most_asked, self._asked_to - self._came)
            self.far.heard.append(("flow", self._asked_to, step.drains))
        if step.drains:
            self._look_whether_drained(0)

    def _end_drain(self) -> None:
        self.drains_ended += 1
        if not (self.backlog and self.credit > 0):  # else it ends behind these
            self._count = max(self._count, self.limit)

    def hear(self) -> None:
        """One thing more of what the far end has said."""
        if not self.far.said:
            return
        kind, value = self.far.said.popleft()
        if kind == "message":
            self._came += 1
            if self._releases and self.credit <= 0:
                self.far.heard.append(("return", value, False))
            else:
                self.backlog.append(value)
            self.go_on()
            self._look_whether_drained(0)
        else:
            given_up, self._came = value - self._came, value
            self._look_whether_drained(given_up)

    def _look_whether_drained(self, given_up: int) -> None:
        if self.core.is_draining and self._asked_to <= self._came:
            if self.core.far_drained(given_up).client_drained:
                self._end_drain()
            self._ask()


OFTEN = ("gives", "takes back", "hears", "sends", "far hears")
STEPS = (*OFTEN, *OFTEN, "drains", "window", "another", "time")


def run_story(story: list[tuple[str, int]], *, releases: bool = False) -> tuple[FarEnd, Between]:
    far = FarEnd(30)
    between = Between(far, releases=releases)
    for step, amount in story:
        if step == "gives":
            between.flow(amount, drains=False)
        elif step == "takes back":
            between.flow(-min(amount, max(between.credit, 0)), drains=False)
        elif step == "drains":
            between.flow(amount - 1, drains=True)
        elif step == "window":
            between.is_window_open = not between.is_window_open
            between.go_on()
        elif step == "another":
            far.give_to_another()
        elif step == "time":
            between.now_s += HELD_S
            between.go_on()
        else:
            move = {"hears": between.hear, "sends": far.send, "far hears": far.hear}[step]
            for _ in range(amount):
                move()
        assert len(between.backlog) <= between.most_asked
    return far, between


def settle(far: FarEnd, between: Between) -> None:
    """All that is on its way arrives."""
    for _ in range(200):
        far.hear()
        far.send()
        between.hear()


stories = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 6)), min_size=20, max_size=80)


@given(stories)
@settings(max_examples=200, deadline=None)
def test_a_client_gets_all_in_order_whatever_credit_it_takes_back_and_whoever_hears_late(
    story: list[tuple[str, int]],
) -> None:
    far, between = run_story(story)
    left = len(far.queue) + len(far.held)
    between.is_window_open = True
    between.flow(40, drains=False)
    settle(far, between)
    assert between.received == sorted(between.received)
    assert len(between.received) == len(set(between.received))
    assert (len(far.held), far.queue) == (len(between.received), [])
    assert left <= 30


@given(stories)
@settings(max_examples=100, deadline=None)
def test_what_a_client_takes_no_more_is_had_by_others_and_each_drain_is_answered(story: list[tuple[str, int]]) -> None:
    far, between = run_story(story)
    between.is_window_open = True
    ended = between.drains_ended
    between.flow(1, drains=True)
    settle(far, between)
    assert between.drains_ended > ended
    assert between.backlog == deque()
    assert len(far.held) == len(between.received)
    between.flow(3 - max(between.credit, 0), drains=False)
    settle(far, between)
    between.flow(-max(between.credit, 0), drains=False)
    settle(far, between)
    between.now_s += HELD_S
    between.go_on()
    settle(far, between)
    assert between.backlog == deque()
    assert len(far.held) == len(between.received)


def test_what_is_released_without_credit_is_overtaken() -> None:
    """So it was; the model of the two ends shows it."""
    story = [("gives", 4), ("far hears", 1), ("sends", 4), ("takes back", 2), ("hears", 3), ("gives", 2), ("hears", 1)]
    far, between = run_story(story, releases=True)
    settle(far, between)
    between.flow(40, drains=False)
    settle(far, between)
    assert between.received != sorted(between.received)
    assert run_story(story)[1].received == [0, 1, 2, 3]


# --- with real ends


@pytest.mark.parametrize("browses", [False, True])
def test_a_drained_consumer_whose_batch_came_with_the_drain_misses_no_message_of_the_primary(browses: bool) -> None:
    proxied = PairedProxy()
    client = proxied.client()
    link = client.sender("q")
    for number in range(5):
        client.send(link, proton.Message(str(number)))
    proxied.settle_down()
    taken = client.session.receiver("taken")
    taken.source.address = "q"
    if browses:  # with ids, and so one by one
        taken.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
        after = proton.Described(proton.symbol(AFTER), proton.ulong(0))
        taken.source.filter.put_object({proton.symbol("qpid.after"): after})
    taken.open()
    proxied.settle_down()
    with proxied.held_up():  # the messages and the end of the drain come in one read
        taken.drain(10)
        proxied.settle_down()
    assert [message.body for _, message in client.received(taken)] == list("01234")
    assert taken.credit == 0
    assert proxied.primary.queue("q").messages.acquired == (0 if browses else 5)


def test_a_drained_consumer_whose_batch_came_with_the_drain_misses_no_message_of_others() -> None:
    paired = PairedRemote()
    client = paired.client()
    near = client.receiver("orders")
    far = paired.answer()
    near.drain(10)
    paired.settle_down()
    for number in range(5):
        far.delivery(str(number))
        far.stream(proton.Message(str(number)).encode())
        far.advance()
    far.drained()
    paired.settle_down()
    assert [message.body for _, message in client.received(near)] == list("01234")
    assert near.credit == 0
