"""Who gave no answer: nobody, somebody who said that this broker is not let in, or somebody who says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from event_loops import in_event_loop
from qpid_ha_broker.amqp.wire.peer_frames import PeerListener
from qpid_ha_broker.ha.frames import Question, Topic
from qpid_ha_broker.server.peers.peer_asker import NO_ANSWER, PeerAsker, Unanswered
from qpid_ha_broker.server.peers.peer_channels import Dialler, OutgoingChannel

QUESTION = Question(1, Topic.STATUS, "a", "a-1", "", 0, 0, "")
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
