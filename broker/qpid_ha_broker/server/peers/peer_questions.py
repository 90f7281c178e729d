"""What a broker asks the others of its cluster: for the core, for an operator, and so that channels are there."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from qpid_ha_broker.ha.frames import Answer, Question, Topic
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import LEADING
from qpid_ha_broker.server.peers.peer_asker import Outcome, PeerAsker, Unanswered
from qpid_ha_broker.server.peers.peer_channels import Dialler
from qpid_ha_broker.server.peers.reachability import SAY_AGAIN_S, Reachability
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.logs import RateLimitedLog

log = logging.getLogger("cluster")

GREETING_S = 20.0
"""Between two questions to all peers that are asked for no other reason than to keep their channels."""
FIRST_GREETING_S = 0.25
"""The first pause between two, as long as somebody does not answer, or this broker does not know its own address."""
REACH_LINES = 4
"""About who does not answer, that may be logged at once: addresses may come and go."""


class PeerQuestions(PeerAsker):
    """See `PeerAsker` for the promise.

    A broker that is asked at its own address answers as the very process that asks: so it learns which one that is.
    """

    def __init__(self, member: Member, dialler: Dialler) -> None:
        super().__init__(dialler)
        self._member = member
        self._tasks = BackgroundTasks()
        self._reach = Reachability()
        self._reach_log = RateLimitedLog(log, burst=REACH_LINES, every_s=SAY_AGAIN_S)
        self.names: dict[str, str] = {}
        """Of who has answered at an address last; of one that answers no more, too."""

    def start(self) -> None:
        """Ask all peers now and then."""
        self._tasks.start(self._greet_forever())

    def close(self) -> None:
        """Greet nobody any more, and let go of all channels."""
        self._tasks.cancel()
        super().close()

    def put(
        self, question: Question, addresses: Sequence[str], limit_s: float, done: Callable[[Outcome], None]
    ) -> None:
        """Whoever answers as this very process shows its address."""

        def answered(outcome: Outcome) -> None:
            self._look_for_own_address(outcome)
            done(outcome)

        super().put(question, addresses, limit_s, answered)

    def _look_for_own_address(self, outcome: Outcome) -> None:
        settings = self._member.settings
        for address, answer in outcome.items():
            if isinstance(answer, Answer):
                self.names[address] = answer.name
            if isinstance(answer, Answer) and answer.instance == settings.instance != "" and not settings.own_address:
                log.info("%s is this broker's own address", address)
                self._member.settings = replace(settings, own_address=address)

    async def ask_others(self, topic: Topic, request: str = "") -> Outcome:
        """What each address of the settings answered, but this broker's own, as far as that is known."""
        settings = self._member.settings
        addresses = [address for address in settings.addresses if address != settings.own_address]
        return await self.ask(self.question(topic, request), addresses, settings.ask_limit_s)

    def question(self, topic: Topic, request: str = "") -> Question:
        """A question of the driver's own."""
        member, settings = self._member, self._member.settings
        return Question(
            0,
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
        for greeted in itertools.count(1):
            self._look_who_answers(await self.ask_others(Topic.STATUS))
            await asyncio.sleep(greeting_pause_s(greeted, is_well=self._reach.is_well))

    def _look_who_answers(self, outcome: Outcome) -> None:
        settings, status = self._member.settings, self._member.status
        silent = {address: answer.why for address, answer in outcome.items() if isinstance(answer, Unanswered)}
        lines = self._reach.look(
            silent,
            frozenset(outcome),
            asyncio.get_running_loop().time(),
            knows_itself=bool(settings.own_address),
            is_served=status.state in LEADING or bool(status.primary),
        )
        for line in lines:
            self._reach_log.log(logging.INFO if self._reach.is_well else logging.WARNING, line)
        self._reach_log.flush()


def greeting_pause_s(greeted: int, *, is_well: bool) -> float:
    """Until the next greeting, after so many. Who does not know its own address cannot report to a controller, and what
    answers there may be loading its store for another moment; and who reaches nobody has to say so soon. So all are
    asked again soon, and then more rarely."""
    return GREETING_S if is_well else min(GREETING_S, FIRST_GREETING_S * 2 ** min(greeted - 1, 16))
