"""The control method `connections` of a broker in a cluster: also about the connections of the other brokers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from qpid_ha_broker.amqp.connections.connection_facts import ConnectionPlace
from qpid_ha_broker.ha.frames import Answer, Question, Topic
from qpid_ha_broker.model.commands.administration import Facts
from qpid_ha_broker.server.clients.connection_methods import ConnectionMethods, checked_action, checked_reason
from qpid_ha_broker.server.control.administration import Params, check_known
from qpid_ha_broker.server.control.control import CALLER, INVALID_PARAMS, REFUSED, ControlError
from qpid_ha_broker.server.peers.peer_asker import Unanswered
from qpid_ha_broker.server.peers.peer_questions import PeerQuestions
from qpid_ha_broker.server.sets.membership import Membership

UNANSWERED: Final = "it gave no answer in time, or is of an older release"


class TheirConnections(NamedTuple):
    """Of the broker at `address`. `problem`: why they are not known, or not all of them; empty: they are."""

    name: str
    address: str
    rows: list[dict[str, Any]]
    problem: str = ""


class ClusterConnections:
    """The promise: a connection is closed in the process that was named, however often that is asked, or nowhere.

    `own`: of this broker.
    """

    def __init__(self, own: ConnectionMethods, membership: Membership) -> None:
        self._own = own
        self._membership = membership
        membership.default.links.connections_asked = self.asked

    @property
    def _questions(self) -> PeerQuestions:
        return self._membership.questions

    def asked(self, question: Question) -> tuple[bool, str]:
        """What another broker wants of the connections here: see `peer_links.ConnectionsAsked`."""
        return self._own.asked(question, self._membership.member.settings.instance)

    async def connections(self, params: Params) -> object:
        """As without a cluster; `broker`: those of another one, or of this one.

        With `all` it answers with `connections`, rows that have the name of their `broker`, and with `silent`: the
        `address` of each broker whose connections are not all among them, and the `problem`.
        """
        if "all" in params:
            check_known(params, ("action", "all"))
            if params["all"] is not True or params.get("action", "list") != "list":
                raise ControlError(INVALID_PARAMS, "all is true, and goes with the action list")
            return await self._of_all()
        name = params.get("broker", self._name)
        if not isinstance(name, str):
            raise ControlError(INVALID_PARAMS, "broker is the name of a broker: see `qpid-ha status --all`")
        others = {key: value for key, value in params.items() if key != "broker"}
        if "broker" not in params:
            return self._own.connections(others)
        if checked_action(others) == "list":
            check_known(others, ("action",))
            return _named(name, self._own.rows()) if name == self._name else await self._of_one(name)
        check_known(others, ("action", "id", "reason"))
        return {**self._own.close(others), "broker": name} if name == self._name else await self._close(name, others)

    @property
    def _name(self) -> str:
        return self._membership.member.settings.name

    # --- looking

    async def _of_all(self) -> object:
        found = [] if self._membership.is_standalone else await self._of_others()
        own: tuple[str, Iterable[Facts]] = (self._name, self._own.rows())
        of_each = sorted([own, *((each.name, each.rows) for each in found)], key=lambda each: each[0])
        silent = [{"address": each.address, "problem": each.problem} for each in found if each.problem]
        return {"connections": chain.from_iterable(_named(*each) for each in of_each), "silent": silent}

    async def _of_others(self) -> list[TheirConnections]:
        """By address, the same broker once."""
        found = await self._questions.ask_others(Topic.CONNECTIONS, _page_request(ConnectionPlace()))
        instances = {self._membership.member.settings.instance}
        told = []
        for address, answer in found.items():
            if isinstance(answer, Unanswered):
                told.append(TheirConnections("", address, [], UNANSWERED))
            elif answer.instance not in instances:
                instances.add(answer.instance)
                told.append(await self._all_pages(address, answer))
        return told

    async def _of_one(self, name: str) -> Iterator[Facts]:
        address, _ = await self._find(name)
        first = await self._ask(address, _page_request(ConnectionPlace()))
        if first is None:
            raise ControlError(REFUSED, f"{name} at {address}: {UNANSWERED}", {"reason": "unreachable"})
        told = await self._all_pages(address, first)
        if told.problem:
            raise ControlError(REFUSED, f"{name} at {address}: {told.problem}", {"reason": "unreachable"})
        return _named(name, told.rows)

    async def _all_pages(self, address: str, first: Answer) -> TheirConnections:
        rows: list[dict[str, Any]] = []
        answer: Answer | None = first
        place = ConnectionPlace()
        while answer is not None:
            if not answer.granted:
                return TheirConnections(first.name, address, rows, answer.text)
            page = _page(answer.text)
            if page is None or not (page[1] is None or page[1] > place):
                return TheirConnections(first.name, address, rows, "its answer cannot be understood")
            _append(rows, page[0])
            if page[1] is None:
                return TheirConnections(first.name, address, rows)
            place = page[1]
            answer = await self._ask(address, _page_request(place))
        return TheirConnections(first.name, address, rows, UNANSWERED)

    # --- closing

    async def _close(self, name: str, params: Params) -> object:
        checked_reason(params)
        address, instance = await self._find(name)
        caller = CALLER.get()
        close = {"id": params.get("id"), **({"reason": params["reason"]} if "reason" in params else {})}
        request = {"close": close, "instance": instance, "caller": {} if caller is None else caller.facts()}
        answer = await self._ask(address, json.dumps(request, ensure_ascii=False))
        if answer is None:
            text = f"{name} at {address}: {UNANSWERED}; whether connection {params.get('id')} is closed is not known"
            raise ControlError(REFUSED, text, {"reason": "unreachable"})
        if not answer.granted:
            raise ControlError(REFUSED, f"{name}: {answer.text}", {"reason": "refused"})
        return {**json.loads(answer.text), "broker": name}

    # --- asking

    async def _find(self, name: str) -> tuple[str, str]:
        """Where the broker of this name is, and which process that is. Raises ControlError."""
        found = {} if self._membership.is_standalone else await self._questions.ask_others(Topic.STATUS)
        for address, answer in found.items():
            if isinstance(answer, Answer) and answer.name == name:
                return address, answer.instance
        names = sorted({self._name, *(answer.name for answer in found.values() if isinstance(answer, Answer))})
        silent = [address for address, answer in found.items() if isinstance(answer, Unanswered)]
        text = f"no broker {name:.80} answers; there are {', '.join(names)}"
        text += f", and nobody answers at {', '.join(silent)}" if silent else ""
        raise ControlError(REFUSED, text, {"reason": "not-found"})

    async def _ask(self, address: str, request: str) -> Answer | None:
        limit_s = self._membership.member.settings.ask_limit_s
        question = self._questions.question(Topic.CONNECTIONS, request)
        answer = (await self._questions.ask(question, [address], limit_s))[address]
        return answer if isinstance(answer, Answer) else None


def _named(name: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Facts]:
    for row in rows:
        yield {"broker": name, **row}


def _page_request(place: ConnectionPlace) -> str:
    return json.dumps({"from": place})


def _page(text: str) -> tuple[list[dict[str, Any]], ConnectionPlace | None] | None:
    """The rows, and where those behind them begin; None: it is no page."""
    try:
        found = json.loads(text)
        rows, following = found["rows"], found["next"]
        place = None if following is None else ConnectionPlace(*map(int, following))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_whole = isinstance(rows, list) and all(isinstance(row, dict) and "id" in row and "links" in row for row in rows)
    return (rows, place) if is_whole else None


def _append(rows: list[dict[str, Any]], page: list[dict[str, Any]]) -> None:
    """The first connection of a page may be the last one of the page before, with more of its links."""
    if rows and page and rows[-1]["id"] == page[0]["id"]:
        rows[-1]["links"] += page[0]["links"]
        page = page[1:]
    rows += page
