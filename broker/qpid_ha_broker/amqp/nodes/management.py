"""`$management`: the broker's objects through AMQP itself (OASIS AMQP Management 1.0, working draft).

A request is a message whose application properties say what to do with which object; the answer goes to its reply-to
with a status code. No sockets and no links: whoever has those passes the request's bytes in, waits until the log is
committed as far as the reply says, and sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from qpid_ha_broker.access.audit import (
    AuditChannel,
    AuditedAct,
    AuditResult,
    Caller,
    RecordAct,
    audited,
)
from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.access.rules import AccessControl, Denied, Permission, Subject
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.management_control import Control
from qpid_ha_broker.amqp.nodes.management_entities import (
    BindingType,
    EntityType,
    ExchangeType,
    QueueType,
    RequestHandler,
)
from qpid_ha_broker.amqp.nodes.management_messages import (
    BAD_REQUEST,
    CONFLICT,
    MANAGEMENT,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    OK,
    PRECONDITION_FAILED,
    TEMPORARY_REDIRECT,
    UNAUTHORIZED,
    UNAVAILABLE,
    ManagementAnswer,
    Request,
    RequestRefusal,
    read_request,
    write_answer,
)
from qpid_ha_broker.amqp.wire.conditions import LINK_REDIRECT, RESOURCE_LIMIT, UNAUTHORIZED_ACCESS
from qpid_ha_broker.model import errors
from qpid_ha_broker.model.commands.administration import Administration, Facts, Outcome, Pending, TakingOver
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.sets.resource_set import ResourceSet

NODE_TYPE = "org.amqp.management"
NODE_NAME = "self"
NODE_ATTRIBUTES = ("name", "identity", "type", "broker")

MAX_ROWS = 10_000
"""Of one QUERY's answer, whatever `count` asks for."""
MAX_ATTRIBUTE_NAMES = 100
MAX_WEIGHT = 2_500
"""Of the rows of one answer, in values: while they are written, everybody else waits."""
ROW_WEIGHT = 5
"""Of a row, beside its values."""
TEXT_PER_WEIGHT = 64
"""Characters that weigh as much as one value."""

ENTITY_TYPES: Final[tuple[type[EntityType], ...]] = (QueueType, ExchangeType, BindingType)
_AUDIT_RESULTS: Final[Mapping[int, AuditResult]] = {0: AuditResult.UNKNOWN, UNAUTHORIZED: AuditResult.DENIED}
NOBODY: Final = Caller(AuditChannel.MANAGEMENT)

_STATUS = {
    errors.InvalidArgument: BAD_REQUEST,
    errors.NotFound: NOT_FOUND,
    errors.AlreadyExists: CONFLICT,
    errors.InUse: PRECONDITION_FAILED,
    errors.NotSupported: PRECONDITION_FAILED,
    errors.Unavailable: UNAVAILABLE,
}

AskElsewhere = Callable[[Request, ServedElsewhere], Outcome[ManagementAnswer]]
CheckWaits = Callable[[Request], None]
"""Raises RequestRefusal where whoever has asked waits for no reply any more."""


def _waits(_: Request) -> None:
    """Whoever asks is there."""


class Reply(NamedTuple):
    """`payload` goes to `reply_to` (None: nobody wants it) once `written` is committed."""

    reply_to: str | None
    payload: bytes
    written: CommitToken

    def ready(self) -> Reply:
        """Itself: see `LaterReply`."""
        return self


class LaterReply:
    """The reply to a command whose work goes on in the turns to come: ask at the end of each turn."""

    def __init__(self, request: Request, outcome: Outcome[ManagementAnswer], report: Callable[[int], None]) -> None:
        """`report`: takes the status, or 0 where nobody waits for it any more."""
        self._report: Callable[[int], None] | None = report
        self._request = request
        self._outcome = outcome
        self.is_elsewhere = isinstance(outcome, Pending) and outcome.is_elsewhere
        """It is for other brokers to do, which may take seconds: the replies to later requests do not wait for it."""

    def ready(self) -> Reply | None:
        """The reply; None while the work goes on."""
        try:
            done = self._outcome.done()
        except errors.ModelError as error:
            answer = _refused(error)
        else:
            if done is None:
                return None
            answer = done.result._replace(written=done.written)
        self._tell(answer.status)
        return _reply(self._request, answer)

    def abandon(self) -> None:
        """Nobody asks any more."""
        self._tell(0)

    def _tell(self, status: int) -> None:
        report, self._report = self._report, None
        if report is not None:
            report(status)


class Management:
    """The promise: any bytes get a reply, or None where they do not say to whom; nothing is raised."""

    def __init__(self, administration: Administration, name: str, access: AccessControl) -> None:
        self.administration = administration
        self.control: Control | None = None
        """Carries out the control socket's methods; the driver sets it. None: not to be had through AMQP."""
        self.record: RecordAct | None = None
        """Who keeps the audit log; the driver sets it. None: nobody."""
        self.created_by: Callable[[Subject], str] = lambda subject: ""
        """As whose a queue counts that is made for somebody; the container sets it."""
        self.taking_over: Callable[[], list[ResourceSet]] = list
        """Sets led here that have messages which may have been confirmed and are not shown yet; the container sets
        it."""
        self._name = name
        self.access = access
        self.administration = administration
        entity_types = [type_(administration, OPERATIONS.by_type[type_.short_name]) for type_ in ENTITY_TYPES]
        self._types: dict[str, EntityType] = {type_.name: type_ for type_ in entity_types}
        self._short_names = {type_.short_name: type_.name for type_ in entity_types}
        self._node_operations: dict[str, RequestHandler] = {
            "QUERY": self._query,
            "GET-TYPES": self._get_types,
            "GET-ATTRIBUTES": self._get_attributes,
            "GET-OPERATIONS": self._get_operations,
            "GET-MGMT-NODES": lambda request: ManagementAnswer(OK, "OK", []),
        }

    def handle(
        self,
        request_bytes: bytes,
        subject: Subject,
        elsewhere: AskElsewhere | None = None,
        caller: Caller = NOBODY,
        check_waits: CheckWaits = _waits,
    ) -> Reply | LaterReply | None:
        """Carry out one request of `subject`, or begin to; `elsewhere`: has the broker that is needed for it do so.

        `caller`: who that is, for the audit log. `check_waits`: asked before it is begun.
        """
        request = read_request(request_bytes)
        if request is None:
            return None
        answer: ManagementAnswer | Outcome[ManagementAnswer]
        try:
            check_waits(request)
            answer = self._carry_out(request, subject)
        except ServedElsewhere as error:
            answer = _refused(error) if elsewhere is None else elsewhere(request, error)
        except RequestRefusal as refusal:
            answer = ManagementAnswer(refusal.status, refusal.description, {})
        except errors.ModelError as error:
            answer = _refused(error)
        if isinstance(answer, ManagementAnswer):
            self._audit(request, caller, answer.status)
            return _reply(request, answer)
        later = LaterReply(request, answer, partial(self._audit, request, caller))
        return later.ready() or later

    def _audit(self, request: Request, caller: Caller, status: int) -> None:
        """`status` 0: it is not known what came of it."""
        operation = request.properties.get("operation")
        names = OPERATIONS.acts.get(operation) if isinstance(operation, str) else None
        if self.record is None or names is None:
            return
        given = request.properties.get("type")
        kind = self._types.get(self._short_names.get(given, given) if isinstance(given, str) else "")
        body = request.body if isinstance(request.body, dict) else {}
        act = f"{'unknown type' if kind is None else kind.short_name} {operation}"
        result = _AUDIT_RESULTS.get(status, AuditResult.DONE if 200 <= status < 300 else AuditResult.REFUSED)
        reason = "" if result in (AuditResult.DONE, AuditResult.UNKNOWN) else str(status)
        self.record(AuditedAct(caller, act, audited({**body, **request.properties}, names), result, reason))

    def _carry_out(self, request: Request, subject: Subject) -> ManagementAnswer | Outcome[ManagementAnswer]:
        if request.problem:
            raise RequestRefusal(BAD_REQUEST, request.problem)
        operation = request.properties.get("operation")
        if not isinstance(operation, str):
            raise RequestRefusal(
                BAD_REQUEST, "what to do? Give the application property operation, a text such as READ"
            )
        if operation == "QUERY":
            self.access.check(subject, Permission.MANAGE, MANAGEMENT)
        if operation in self._node_operations:
            return self._node_operations[operation](request)
        everything = {*self._node_operations, *(name for known in self._types.values() for name in known.operations)}
        if operation not in everything:
            raise RequestRefusal(NOT_IMPLEMENTED, f"unknown operation {operation!r:.80}; {_known(everything)}")
        given = request.properties.get("type")
        if given == NODE_TYPE:
            return self._on_node(operation, request)
        entity_type = self._type(given, "type")
        if operation not in entity_type.operations:
            known = _known(entity_type.operations)
            raise RequestRefusal(NOT_IMPLEMENTED, f"{entity_type.name} has no operation {operation}; {known}")
        for action, node in entity_type.needs(operation, request):
            self.access.check(subject, action, node)
        return entity_type.operations[operation](request._replace(created_by=self.created_by(subject)))

    def _on_node(self, operation: str, request: Request) -> ManagementAnswer:
        if operation != "READ":
            known = _known([*self._node_operations, "READ"])
            raise RequestRefusal(NOT_IMPLEMENTED, f"{NODE_TYPE} has no operation {operation}; {known}")
        return ManagementAnswer(OK, "OK", self._node())

    def _node(self) -> Facts:
        return {"name": NODE_NAME, "identity": NODE_NAME, "type": NODE_TYPE, "broker": self._name}

    def _type(self, given: object, where: str) -> EntityType:
        name = self._short_names.get(given, given) if isinstance(given, str) else ""
        type_ = self._types.get(name)
        if type_ is None:
            problem = "is missing" if given is None else f"is {given!r:.80}"
            raise RequestRefusal(
                BAD_REQUEST, f"the application property {where} {problem}; {_known(self._types, name)}"
            )
        return type_

    def _wanted_types(self, request: Request) -> list[EntityType]:
        """What `entityType` asks for: all without it, none where it is the node itself."""
        given = request.properties.get("entityType")
        if given is None:
            return list(self._types.values())
        return [] if given == NODE_TYPE else [self._type(given, "entityType")]

    def _includes_node(self, request: Request) -> bool:
        return request.properties.get("entityType") in (None, NODE_TYPE)

    # --- what the draft asks of the node itself

    def _get_types(self, request: Request) -> ManagementAnswer:
        """Each type with the types that it extends: none."""
        node: Facts = {NODE_TYPE: []} if self._includes_node(request) else {}
        return ManagementAnswer(OK, "OK", {**node, **{type_.name: [] for type_ in self._wanted_types(request)}})

    def _get_attributes(self, request: Request) -> ManagementAnswer:
        node: Facts = {NODE_TYPE: list(NODE_ATTRIBUTES)} if self._includes_node(request) else {}
        return ManagementAnswer(
            OK, "OK", {**node, **{type_.name: list(type_.attributes) for type_ in self._wanted_types(request)}}
        )

    def _get_operations(self, request: Request) -> ManagementAnswer:
        """For each type its operations, with the application properties that they take."""
        operations: Facts = {}
        if self._includes_node(request):
            pages = ["entityType", "offset", "count"]
            takes = {"QUERY": pages, "GET-MGMT-NODES": [], "READ": []}
            operations[NODE_TYPE] = {name: takes.get(name, ["entityType"]) for name in (*self._node_operations, "READ")}
        for type_ in self._wanted_types(request):
            operations[type_.name] = {name: list(type_.parameters.get(name, ())) for name in type_.operations}
        return ManagementAnswer(OK, "OK", operations)

    # --- QUERY

    def _query(self, request: Request) -> ManagementAnswer | Outcome[ManagementAnswer]:
        """A page of rows; `total` says how many there are, so that a client knows whether to ask for the next.

        Where they say what the newest message is, they wait until all can be seen that was confirmed.
        """
        names = self._attribute_names(request)
        if "newest_message" in names and (sets := self.taking_over()):
            return Pending(TakingOver(sets), None, lambda: self._queried(request, names))
        return self._queried(request, names)

    def _queried(self, request: Request, names: list[str]) -> ManagementAnswer:
        offset = _whole_number(request, "offset", 0)
        count = min(_whole_number(request, "count", MAX_ROWS), MAX_ROWS)
        node = [self._node()] if self._includes_node(request) else []
        types = self._wanted_types(request)
        total = len(node) + sum(type_.count for type_ in types)
        rows = _page(islice(_rows(node, types, offset), count), names)
        pages = {"count": len(rows), "offset": offset, "total": total}
        return ManagementAnswer(OK, "OK", {"attributeNames": names, "results": rows}, pages)

    def _attribute_names(self, request: Request) -> list[str]:
        """The columns: those that the body asks for, else all that the types in question have."""
        possible = list(NODE_ATTRIBUTES) if self._includes_node(request) else []
        for entity_type in self._wanted_types(request):
            possible += [name for name in entity_type.attributes if name not in possible]
        body = {} if request.body is None else request.body
        wanted = body.get("attributeNames") if isinstance(body, dict) else ""
        if wanted is None or wanted == []:
            return possible
        if not isinstance(wanted, list) or len(wanted) > MAX_ATTRIBUTE_NAMES:
            problem = f"the body is a map with attributeNames, a list of at most {MAX_ATTRIBUTE_NAMES} names"
            raise RequestRefusal(BAD_REQUEST, problem)
        for name in wanted:
            if not isinstance(name, str) or name not in possible:
                raise RequestRefusal(BAD_REQUEST, f"unknown attribute {name!r:.80}; {_known(possible)}")
        return wanted


def _refused(error: errors.ModelError) -> ManagementAnswer:
    if isinstance(error, ServedElsewhere):
        is_known = error.name == LINK_REDIRECT
        status, body = (TEMPORARY_REDIRECT, dict(error.info or {})) if is_known else (UNAVAILABLE, {})
        return ManagementAnswer(status, error.description, body)
    if isinstance(error, Denied):
        return ManagementAnswer(UNAUTHORIZED, str(error), {}, {"errorCondition": UNAUTHORIZED_ACCESS})
    if isinstance(error, errors.LimitReached):
        return ManagementAnswer(CONFLICT, str(error), {}, {"errorCondition": RESOURCE_LIMIT})
    return ManagementAnswer(_STATUS.get(type(error), CONFLICT), str(error), {})


def _reply(request: Request, answer: ManagementAnswer) -> Reply:
    return Reply(request.reply_to, write_answer(request, answer), answer.written)


def _rows(node: list[Facts], types: list[EntityType], offset: int) -> Iterator[Facts]:
    """From number `offset` on, each made when it is asked for."""
    yield from node[offset:]
    offset = max(offset - len(node), 0)
    for type_ in types:
        yield from type_.rows_from(offset)
        offset = max(offset - type_.count, 0)


def _page(entities: Iterable[Mapping[str, object]], names: list[str]) -> list[list[object]]:
    """As many rows as one answer may hold: the client sees from their number where to go on."""
    rows: list[list[object]] = []
    weight = 0
    for facts in entities:
        row = [facts.get(name) for name in names]
        weight += ROW_WEIGHT + _weight(row)
        if rows and weight > MAX_WEIGHT:
            break
        rows.append(row)
    return rows


def _weight(value: object) -> int:
    if isinstance(value, list):
        return 1 + sum(map(_weight, value))
    if isinstance(value, dict):
        return 1 + sum(_weight(name) + _weight(element) for name, element in value.items())
    return 1 + len(value) // TEXT_PER_WEIGHT if isinstance(value, str) else 1


def _whole_number(request: Request, name: str, default: int) -> int:
    value = request.properties.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestRefusal(
            BAD_REQUEST, f"the application property {name} is {value!r:.80}: give a whole number, 0 or more"
        )
    return int(value)


def _known(names: Iterable[str], given: str = "") -> str:
    import difflib  # only who has made a mistake waits for it

    known = sorted(names)
    close = difflib.get_close_matches(given[:80], known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
