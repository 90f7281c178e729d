"""What the page shows of brokers, each asked through the one that was opened: lists of queues, and charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from qpid_ha_broker.ha.frame_codec import MAX_TEXT
from qpid_ha_broker.ha.frames import Answer, Topic
from qpid_ha_broker.metrics.broker_charts import ChartError, ChartRequest
from qpid_ha_broker.metrics.queue_listing import ListingError, QueueListing
from qpid_ha_broker.server.http.figure_looks import FigureLooks, QueueNotHere
from qpid_ha_broker.server.http.queue_lists import QueueLists
from qpid_ha_broker.server.http.refusals import RETRY, HttpRefusal
from qpid_ha_broker.server.peers.page_questions import PageAnswer, PageRequest

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker

OTHER_LIMIT_S: Final = 1.5
"""For another broker to answer: whoever looks is told within two seconds that it does not."""
OF_BROKER: Final = "broker"
"""The parameter with the address of the broker that is meant; without it, it is this one."""


class FigurePages:
    """The promise: another broker is told what a token of the role `viewer` is told here, and nothing else."""

    def __init__(self, broker: Broker, looks: FigureLooks) -> None:
        self._broker = broker
        self._looks = looks
        self._queue_lists = QueueLists(broker, looks)
        self._own = {"/queues": self._queues, "/charts": self._chart}

    async def answer(self, path: str, given: Mapping[str, str]) -> Mapping[str, object]:
        """Of this broker, or of the one at the address `broker`. Raises HttpRefusal."""
        rest = {name: value for name, value in given.items() if name != OF_BROKER}
        if OF_BROKER in given:
            return await self._of_other(given[OF_BROKER], PageRequest(path, rest))
        return await self._own[path](rest)

    async def asked(self, request: PageRequest) -> PageAnswer:
        """By another broker; see `PageAsked`."""
        try:
            if request.path not in self._own:
                raise HttpRefusal(404, f"there are {', '.join(self._own)}")
            return PageAnswer(200, await self._own[request.path](request.given))
        except HttpRefusal as refusal:
            return PageAnswer(refusal.status, {"error": refusal.problem})

    # --- of this broker

    async def _queues(self, given: Mapping[str, str]) -> dict[str, object]:
        try:
            return await self._queue_lists.page(QueueListing.read(given))
        except ListingError as error:
            raise HttpRefusal(400, str(error)) from None

    async def _chart(self, given: Mapping[str, str]) -> dict[str, object]:
        try:
            asked = ChartRequest.read(given)
            if not self._broker.is_loaded:
                raise HttpRefusal(503, "the broker loads its store yet: try again", RETRY)
            return await self._looks.chart(asked)
        except ChartError as error:
            raise HttpRefusal(400, str(error)) from None
        except QueueNotHere as error:
            raise HttpRefusal(404, str(error)) from None

    # --- of another one

    async def _of_other(self, address: str, request: PageRequest) -> Mapping[str, object]:
        if not self._broker.is_loaded:
            raise HttpRefusal(503, "the broker loads its store yet: try again", RETRY)
        membership = self._broker.membership
        settings = membership.member.settings
        if address == settings.own_address:
            return await self._own[request.path](request.given)
        if membership.is_standalone or address not in settings.addresses:
            there = "" if membership.is_standalone else f": there are {', '.join(settings.addresses)}"
            raise HttpRefusal(404, f"no broker of this cluster is at {address[:200]!r}{there}")
        if len(request.text()) > MAX_TEXT:
            raise HttpRefusal(400, f"parameters about another broker have at most {MAX_TEXT} characters")
        question = membership.questions.question(Topic.QUERY, request.text())
        outcome = (await membership.questions.ask(question, [address], OTHER_LIMIT_S))[address]
        if not isinstance(outcome, Answer):
            raise HttpRefusal(504, f"the broker at {address} does not answer: {outcome.why}")
        answer = PageAnswer.read(outcome.text)
        if answer is None:
            raise HttpRefusal(504, f"{outcome.name} tells no figures: it is of another release")
        if answer.status != 200:
            raise HttpRefusal(answer.status, f"{outcome.name}: {str(answer.body.get('error', ''))[:MAX_TEXT]}")
        return answer.body
