"""What a broker asks the others of its cluster: for the core, for an operator, and so that channels are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Answer, Question, Topic
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.server.peers.peer_asker import PeerAsker, Unanswered
from qpid_ha_broker.server.peers.peer_channels import Dialler
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks

log = logging.getLogger("cluster")

GREETING_S = 20.0
"""Between two questions to all peers that are asked for no other reason than to keep their channels."""


class PeerQuestions:
    """The promise: each question of the core is answered by one input, within the limit that it sets.

    A broker that is asked at its own address answers as the very process that asks: so it learns which one that is.
    """

    def __init__(self, member: Member, dialler: Dialler) -> None:
        self.asker = PeerAsker(dialler)
        self._member = member
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        """Ask all peers now and then."""
        self._tasks.start(self._greet_forever())

    def close(self) -> None:
        """Wait for no answer any more, and let go of all channels."""
        self._tasks.cancel()
        self.asker.close()

    def tick(self, now_s: float) -> None:
        """Several times in a heartbeat."""
        self.asker.tick(now_s)

    def ask_for(self, effect: fx.Ask, feed: Callable[[fx.Input], None]) -> None:
        """`PeersAnswered` follows, to `feed`."""
        self._tasks.start(self._ask_for(effect, feed))

    async def _ask_for(self, effect: fx.Ask, feed: Callable[[fx.Input], None]) -> None:
        outcome = await self.ask(*effect)
        answers = tuple(answer for answer in outcome.values() if isinstance(answer, Answer))
        unanswered = {address: answer for address, answer in outcome.items() if isinstance(answer, Unanswered)}
        silent = tuple(fx.SilentPeer(address, each.why) for address, each in unanswered.items() if each.is_there)
        feed(fx.PeersAnswered(effect.question.number, answers, tuple(unanswered), silent))

    async def ask(self, question: Question, addresses: Sequence[str], limit_s: float) -> dict[str, Answer | Unanswered]:
        """What each address answered in time, or why not. Whoever answers as this very process shows its address."""
        outcome = await self.asker.ask(question, addresses, limit_s)
        settings = self._member.settings
        for address, answer in outcome.items():
            if isinstance(answer, Answer) and answer.instance == settings.instance != "" and not settings.own_address:
                log.info("%s is this broker's own address", address)
                self._member.settings = replace(settings, own_address=address)
        return outcome

    async def ask_others(self, topic: Topic, request: str = "") -> dict[str, Answer | Unanswered]:
        """What each address of the settings answered, but this broker's own, as far as that is known."""
        settings = self._member.settings
        addresses = [address for address in settings.addresses if address != settings.own_address]
        return await self.ask(self.question(topic, request), addresses, settings.ask_limit_s)

    def question(self, topic: Topic, request: str = "") -> Question:
        """A question of the driver's own, under a number that no other one has."""
        member, settings = self._member, self._member.settings
        return Question(
            self.asker.number(),
            topic,
            settings.name,
            settings.instance,
            member.status.cluster,
            member.status.generation,
            member.position.lsn,
            settings.own_address,
            member.set,
            request,
        )

    async def _greet_forever(self) -> None:
        """So that channels are there when a promotion has to ask, and this broker learns its own address."""
        while True:
            await self.ask_others(Topic.STATUS)
            await asyncio.sleep(GREETING_S)
