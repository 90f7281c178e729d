"""Who gave no answer: nobody, somebody who said that this broker is not let in, or somebody who says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from event_loops import in_event_loop
from qpid_ha_broker.amqp.wire.peer_frames import PeerListener
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frame_codec import decode, encode
from qpid_ha_broker.ha.frames import Answer, Question, Topic
from qpid_ha_broker.server.peers.peer_asker import NO_ANSWER, Outcome, PeerAsker, Unanswered
from qpid_ha_broker.server.peers.peer_channels import Dialler, OutgoingChannel

QUESTION = Question(1, Topic.STATUS, "a", "a-1", "", 0, 0, "")
ANSWER = Answer(
    number=0, name="b", instance="b/1", cluster="uuid", state="primary", generation=3, epoch=1, members=("b",), lsn=7,
    complete=True, promised=0, promised_to="", granted=True, text="", newest_members=("b",), min_in_sync=1,
)  # fmt: skip
REFUSED = "amqp:unauthorized-access: Authentication failed"


class Scripted(OutgoingChannel):
    """What happens to it is said."""

    is_taken = False

    @property
    def was_connected(self) -> bool:
        return self.is_taken

    @property
    def is_open(self) -> bool:
        return False


class ScriptedDialler(Dialler):
    """Each channel goes as `script` says."""

    def __init__(self, script: Callable[[Scripted], Awaitable[None]]) -> None:
        self._script = script
        self.tasks: list[asyncio.Task[None]] = []

    def dial(self, address: str, listener: PeerListener, limit_s: float, capability: str = "") -> OutgoingChannel:
        channel = Scripted(address, listener)

        async def play() -> None:
            await self._script(channel)

        self.tasks.append(asyncio.get_running_loop().create_task(play()))
        return channel


async def nobody(channel: Scripted) -> None:
    channel.fail("Connection refused")


async def not_let_in(channel: Scripted) -> None:
    channel.is_taken = True
    channel.fail(REFUSED)


async def dies(channel: Scripted) -> None:
    channel.is_taken = True
    channel.fail("the connection was closed")


async def stopped(channel: Scripted) -> None:
    channel.is_taken = True


async def off(channel: Scripted) -> None:
    """Its machine says nothing at all."""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (nobody, Unanswered("Connection refused", False)),
        (not_let_in, Unanswered(REFUSED, True)),
        (dies, Unanswered("the connection was closed", False)),
        (stopped, Unanswered(NO_ANSWER, True)),
        (off, Unanswered("no answer within 0.05 s", False)),
    ],
)
@in_event_loop
async def test_who_gave_no_answer_is_there_or_is_not(
    script: Callable[[Scripted], Awaitable[None]], expected: Unanswered
) -> None:
    found = await PeerAsker(ScriptedDialler(script)).ask(QUESTION, ["amqp://b:5672"], 0.05)
    assert found == {"amqp://b:5672": expected}


class FakeChannel:
    """One that is open at once, and to which answers are put by hand."""

    peer = "b"
    is_open = was_connected = True
    unsent_bytes = 0

    def __init__(self, listener: PeerListener) -> None:
        self.listener = listener
        self.asked: list[int] = []
        self.may_read: Callable[[], bool] = lambda: True

    def send(self, data: bytes) -> None:
        question = decode(data)
        assert isinstance(question, Question)
        self.asked.append(question.number)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self, reason: str) -> None:
        self.is_open = False

    def answer(self, number: int, name: str) -> None:
        self.listener.received(self, encode(ANSWER._replace(number=number, name=name)))


class FakeOpener:
    def __init__(self) -> None:
        self.channels: list[FakeChannel] = []

    def dial(self, address: str, listener: PeerListener, limit_s: float) -> FakeChannel:
        self.channels.append(FakeChannel(listener))
        return self.channels[-1]


def names(outcome: Outcome) -> list[str]:
    return [answer.name if isinstance(answer, Answer) else answer.why for answer in outcome.values()]


@in_event_loop
async def test_members_of_several_sets_ask_on_one_channel_under_the_same_number_and_each_hears_its_answer() -> None:
    opener, heard = FakeOpener(), list[fx.Input]()
    asker = PeerAsker(opener, may_be_stale=False)
    for _ in range(2):
        asker.ask_for(fx.Ask(QUESTION, ("b",), 5.0), heard.append)
    (channel,) = opener.channels
    first, second = channel.asked
    channel.answer(second, "second")
    channel.answer(first, "first")
    answers = [happened.answers for happened in heard if isinstance(happened, fx.PeersAnswered)]
    expected = [(QUESTION.number, name) for name in ("second", "first")]
    assert [(answer.number, answer.name) for (answer,) in answers] == expected


@pytest.mark.parametrize("may_be_stale", [True, False])
@in_event_loop
async def test_a_kept_channel_that_is_lost_is_replaced_at_once_where_nobody_else_sees_to_it(may_be_stale: bool) -> None:
    opener = FakeOpener()
    asker, outcomes = PeerAsker(opener, may_be_stale=may_be_stale), list[Outcome]()
    asker.put(QUESTION, ["b"], 5.0, outcomes.append)
    opener.channels[0].answer(opener.channels[0].asked[0], "b")
    asker.put(QUESTION, ["b"], 5.0, outcomes.append)
    opener.channels[0].listener.closed(opener.channels[0], "it is gone")
    if may_be_stale:
        again = opener.channels[1]
        again.answer(again.asked[0], "b, anew")
    assert len(opener.channels) == 1 + may_be_stale
    assert [names(outcome) for outcome in outcomes] == [["b"], ["b, anew" if may_be_stale else "it is gone"]]


@in_event_loop
async def test_a_demand_to_hand_over_waits_on_its_channel_for_as_long_as_it_may_take() -> None:
    opener = FakeOpener()
    asker = PeerAsker(opener)
    for topic, channels in ((Topic.STATUS, 1), (Topic.STEP_DOWN, 1), (Topic.STATUS, 2)):
        outcome = await asker.ask(QUESTION._replace(topic=topic), ["b"], 0.05)
        assert names(outcome) == [NO_ANSWER]
        assert len(opener.channels) == channels


class NotingOpener(FakeOpener):
    """Knows whom it has dialled."""

    def __init__(self) -> None:
        super().__init__()
        self.dialled: list[str] = []

    def dial(self, address: str, listener: PeerListener, limit_s: float) -> FakeChannel:
        self.dialled.append(address)
        return super().dial(address, listener, limit_s)


@in_event_loop
async def test_those_who_are_silent_are_asked_again_in_the_order_in_which_they_were_asked() -> None:
    """Not in that of a set, which is another one in each process: a seed of a simulation tells one story."""
    opener, addresses = NotingOpener(), [f"b{number}" for number in range(9)]
    asker = PeerAsker(opener)
    for _ in range(2):
        await asker.ask(QUESTION, addresses, 0.05)
    assert opener.dialled == addresses * 2
