"""Commands that another broker has to carry out: passed on to it, and carried out for the one who passes them on.

| who is asked | what becomes of the command |
| --- | --- |
| who can carry it out | it does |
| another one, by an operator | it is passed on to the primary of `default`, or of the queue's set, if that is known |
| another one, by a broker that passes it on | it is refused: who leads has changed, and nothing goes in circles |

Whether who asks may is checked by the broker that is asked, and again, with its own rules, by the one that carries it
out; each has a line of its own in its audit log. What is passed on has a number, and is carried out once, however often
it comes: a question on a channel that seems to be dead is put again. Where no answer comes, it is said that nobody
knows whether the command was carried out.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from qpid_ha_broker.access.audit import AuditChannel, Caller
from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.access.rules import AccessControl, Denied, Permission, Subject
from qpid_ha_broker.ha.frame_codec import MAX_FACTS, MAX_REQUEST
from qpid_ha_broker.ha.frames import Answer, Question, Topic
from qpid_ha_broker.server.control.control import CALLER, NOT_ALLOWED, REFUSED, ControlError, ControlServer
from qpid_ha_broker.server.peers.peer_asker import Outcome

LIMIT_S: Final = 25.0
"""After so long nobody waits for the other broker any more."""
LOOK_LIMIT_S: Final = 5.0
"""The same where it only looks: who asks many brokers is not to be held up by one that hangs."""
KEPT_MOST: Final = 1000
"""Answers that are kept, of what changes something, for questions that come again."""
_OF_LOGINS: Final = (AuditChannel.AMQP.value, AuditChannel.HTTP_USER.value)
"""Of who asks: his user is one whom the rules are about."""
COMMAND: Final = "command"
"""Of the request, what is to be done; of the answer, what came of it. An older release answers without it."""


class CommandPlace(NamedTuple):
    """Where a command can be carried out."""

    broker: str
    address: str


class Asker(Protocol):
    """See `peer_questions.PeerQuestions`."""

    def question(self, topic: Topic, request: str = "") -> Question:
        """A question of the driver's own."""

    async def ask(self, question: Question, addresses: list[str], limit_s: float) -> Outcome:
        """What came of it."""


class ForwardedCommands:
    """The promise: a command is passed on to one broker, and one that is passed on is carried out once at most."""

    def __init__(
        self, name: str, questions: Asker, control: Callable[[], ControlServer], access: AccessControl
    ) -> None:
        """`name`: this broker's."""
        self._name = name
        self._questions = questions
        self._control = control
        self._access = access
        self._answers: OrderedDict[str, asyncio.Task[str]] = OrderedDict()
        """By number, also of what is still carried out; but for what only looks."""

    # --- passing on

    async def pass_on(self, method: str, params: Mapping[str, object], place: CommandPlace) -> object:
        """What came of it there. Raises ControlError."""
        caller = CALLER.get()
        command = {"method": method, "params": params, "id": uuid.uuid4().hex, "from": self._name}
        facts = {} if caller is None else {**caller.facts(), "user": caller.user}
        request = json.dumps({COMMAND: {**command, "caller": facts}})
        if len(request) > MAX_REQUEST:
            raise ControlError(REFUSED, f"it is too long to be passed on: ask {_where(place)}", {"reason": "refused"})
        question = self._questions.question(Topic.QUERY, request)
        looks = OPERATIONS.reads(method, params)
        limit_s = LOOK_LIMIT_S if looks else LIMIT_S
        answer = (await self._questions.ask(question, [place.address], limit_s))[place.address]
        if not isinstance(answer, Answer):
            unknown = "" if looks else "; whether it was done is not known: look before you ask again"
            text = f"{_where(place)} gave no answer ({answer.why}){unknown}"
            raise ControlError(REFUSED, text, {"reason": "unreachable"})
        return _result(answer, place)

    # --- carrying out

    async def asked(self, request: str) -> Mapping[str, object] | None:
        """What is told another broker; None: it asks for something else."""
        command = read_command(request)
        if command is None:
            return None
        method, params = command.get("method"), command.get("params")
        if isinstance(params, dict) and OPERATIONS.reads(
            str(method), params
        ):  # its answer may be long, and is not kept
            return {"name": self._name, COMMAND: await self._carry_out(command)}
        number = str(command.get("id"))
        task = self._answers.get(number)
        if task is None:
            task = self._answers[number] = asyncio.create_task(self._carry_out(command))
            while len(self._answers) > KEPT_MOST:
                self._answers.popitem(last=False)
        return {"name": self._name, COMMAND: await asyncio.shield(task)}

    async def _carry_out(self, command: Mapping[str, Any]) -> str:
        method, params, facts = str(command.get("method")), command.get("params"), command.get("caller")
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        caller = Caller.through(str(command.get("from")), facts)

        def permit(method: str, params: Mapping[str, object]) -> None:
            problem = self._objection(method, params, facts if isinstance(facts, dict) else {})
            if problem:
                raise ControlError(NOT_ALLOWED, f"{self._name}: {problem}")

        reply, _, stream = await self._control().answer(line, caller, permit)
        if stream is not None:
            stream.close()
        text = (reply or b"").decode("ascii").rstrip()
        if len(text) > MAX_FACTS // 2:  # it is a text in a text
            return json.dumps({"error": {"code": REFUSED, "message": "the answer is too long to be passed on"}})
        return text

    def _objection(self, method: str, params: Mapping[str, object], caller: Mapping[str, object]) -> str:
        """Why the one who asks may not, by the rules here; empty: nothing is known against it."""
        row = OPERATIONS.find(method, params)
        if row is None or row.control is None or not row.is_passed_on:
            return "such commands are not passed on"
        if caller.get("channel") not in _OF_LOGINS or self._access.rules is None:
            return ""  # of its machine's users and of tokens the other broker knows, which is vouched for as a broker
        subject = Subject.logged_in(str(caller.get("user", "")), is_local=False)
        try:
            self._access.check(subject, Permission.ADMINISTER, "")
            for needed in row.control.nodes:
                node = str(params.get(needed.node) or "")
                self._access.check(subject, needed.permission, node, needed.topic_of(params))
        except Denied as error:
            return str(error)
        return ""


def is_passed_on() -> bool:
    """Whether the request that is carried out came from another broker."""
    caller = CALLER.get()
    return caller is not None and bool(caller.via)


def read_command(request: str) -> Mapping[str, Any] | None:
    """Of a question; None: it has none."""
    try:
        asked = json.loads(request) if request else None
    except ValueError:
        return None
    command = asked.get(COMMAND) if isinstance(asked, dict) else None
    return command if isinstance(command, dict) else None


def _where(place: CommandPlace) -> str:
    return f"{place.broker or 'the primary'} at {place.address}"


def _result(answer: Answer, place: CommandPlace) -> object:
    try:
        told = json.loads(answer.text)[COMMAND]
        reply = json.loads(told)
    except KeyError:
        text = f"{_where(place)} is of a release to which nothing is passed on: ask it"
        raise ControlError(REFUSED, text, {"reason": "not-primary"}) from None
    except (ValueError, TypeError):
        reply = None
    if not isinstance(reply, dict) or not {"result", "error"} & reply.keys():
        raise ControlError(REFUSED, f"what {_where(place)} answers cannot be understood", {"reason": "refused"})
    if "result" in reply:
        return reply["result"]
    error = reply["error"]
    raise ControlError(error.get("code", REFUSED), error.get("message", "refused"), error.get("data"))
