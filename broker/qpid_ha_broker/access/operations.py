"""The operations of management, a row for each: what it takes, who may ask, what the audit log has of it, what is done.

Operators ask by JSON-RPC: through the control socket, by HTTP, or by AMQP on a connection that is marked for
administration. Applications ask `$management`. All of these doors read the rows here, and so do the audit log and the
guard of a backup. An operation without a row is for administrators alone, and nothing of its parameters is in the audit
log. `OperationTable` refuses rows in which something is missing or does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.access.audit import AuditedParameters
from qpid_ha_broker.access.rules import Permission
from qpid_ha_broker.access.token_roles import TokenRole
from qpid_ha_broker.model.commands.administration import (
    Administration,
    Done,
    Facts,
    Outcome,
    Pending,
    once_all_is_shown,
)
from qpid_ha_broker.model.commands.browsing_requests import BrowsingRequests
from qpid_ha_broker.model.exchanges.topic_trie import ANY_WORDS
from qpid_ha_broker.model.queues.sequence import NO_LIMIT

ALL: Final = ""
"""The action of a method that has none."""


class ParameterKind(Enum):
    """Kinds of values that a parameter may have; whoever carries the operation out refuses all others."""

    NAME = "name"
    """Of an object. Left out it is None, and the refusal says that it is missing."""
    TEXT = "text"
    FLAG = "flag"
    """True or false; left out it is false."""
    NUMBER = "number"
    """An id also as a text: JSON has no integers of 64 bits everywhere."""
    LIST = "list"
    ARGUMENTS = "arguments"
    """Names with values; the audit log has those that the broker gives a meaning."""
    SETTING = "setting"
    """The value of the setting that the parameter `key` names; the audit log has it unless that is a secret."""


class Effect(Enum):
    """Whether an operation changes something."""

    READS = "reads"
    """It may be ended when its caller goes, and the audit log has no line for it."""
    WRITES = "writes"
    """It goes on when nobody waits for it any more, and the audit log has it, also where it is refused."""


class AnswerTime(Enum):
    """The moment at which an operation is answered."""

    AT_ONCE = "at once"
    """With what this broker has and knows."""
    ALL_SHOWN = "once all is shown"
    """When a new primary has committed what it took over: all of that may have been confirmed before."""
    COMMITTED = "once it is committed"
    """When what it wrote to the log of a set is; only the broker that leads the set takes it."""
    OUTCOME = "once others have answered"
    """Another broker, the controller, the coordinator, or the core of this broker's member: the server waits for it."""


class MessageRequests(Protocol):
    """Operations on what is in queues, which know what a message looks like."""

    @property
    def peek(self) -> Callable[..., object]:
        """What messages are about."""

    @property
    def publish(self) -> Callable[..., object]:
        """One more message."""

    @property
    def payload(self) -> Callable[..., object]:
        """The bytes of messages."""

    @property
    def move(self) -> Callable[..., object]:
        """To another queue."""

    @property
    def copy(self) -> Callable[..., object]:
        """The same, and they stay where they are."""

    @property
    def retry(self) -> Callable[..., object]:
        """Dead letters, back to where they died."""

    @property
    def redirect(self) -> Callable[..., object]:
        """To the queues to which an exchange leads."""


class ManagedObjects(NamedTuple):
    """Where the methods are that `Operation.call` names."""

    administration: Administration
    messages: MessageRequests

    def leading(self, name: object) -> Administration:
        """The administration of the set that has the queue `name`; where this broker does not lead the set, it raises
        ServedElsewhere."""
        return self.administration.of_queue(name, leads=True)

    def browsing(self, name: object) -> BrowsingRequests:
        """What readers of the queue `name` ask who browse it, and come back."""
        return BrowsingRequests(self.leading(name))


class Listing(NamedTuple):
    """All objects of a kind; the control socket can also list them page by page, in the order of their names."""

    rows: Callable[[], Iterator[object]]
    names: Callable[[], list[str]]
    facts_of: Callable[[str], object]


class NodePermission(NamedTuple):
    """What is needed through AMQP of a node that a request of JSON-RPC names."""

    permission: Permission
    node: str
    """The parameter that names the queue or exchange."""
    topic: str = ""
    """The parameter with the routing key, of an exchange. Empty: it is about a queue."""

    def topic_of(self, params: Mapping[str, object]) -> str | None:
        """The topic of the node that a request is about; where it leaves the key out, all of them."""
        key = params.get(self.topic)
        return (ANY_WORDS if key is None else str(key)) if self.topic else None


class ControlForm(NamedTuple):
    """An operation as JSON-RPC has it, and who may ask for it there."""

    method: str
    action: str
    """The parameter `action`, of a method that has several; ALL: it has none."""
    role: TokenRole
    """The least role of a token of the HTTP port. With `force` something may be lost: that takes ADMIN in any case."""
    audited: AuditedParameters | None = None
    """What the audit log has of the parameters. None: there is no line, as it changes nothing."""
    nodes: tuple[NodePermission, ...] = ()
    """About messages: which permissions are needed through AMQP beside ADMINISTER. So there may be administrators who
    do not see what clients send."""
    instead: Permission | None = None
    """A permission with which ADMINISTER is not needed through AMQP; None: it always is."""
    reads_with: Callable[[Mapping[str, object]], bool] | None = None
    """Whether it changes nothing with these parameters, though it does with others."""


class ManagementForm(NamedTuple):
    """An operation as `$management` has it.

    CREATE, READ, UPDATE and DELETE mean there what the draft says: see `EntityType`. All others are `Operation.call`.
    """

    type: str
    """Short name of the type of object."""
    operation: str
    permission: Permission
    """What is needed, on the object or on those that a binding joins."""
    audited: AuditedParameters | None
    """What the audit log has of properties and body; the same for all types. None: no administrative act."""
    properties: tuple[str, ...] = ()
    """Its parameters that are application properties, beside those that all have."""
    done: str = "OK"
    """The description with its success."""


class ControllerForm(NamedTuple):
    """How the controller of the cluster is asked for an operation, by the broker that was asked.

    It gets all parameters but the cause, which the log of that broker has.
    """

    method: str
    names: Mapping[str, str]
    """Parameters that are called otherwise there."""

    def params(self, given: Mapping[str, object], parameters: Mapping[str, ParameterKind]) -> Facts:
        """What the controller gets of the parameters `given`."""
        passed_on = (name for name in parameters if name != "cause" and given.get(name) is not None)
        return {self.names.get(name, name): given[name] for name in passed_on}


class Operation(NamedTuple):
    """One row; `control` and `management` are the ways in which it can be asked for."""

    control: ControlForm | None
    management: ManagementForm | None
    parameters: Mapping[str, ParameterKind]
    effect: Effect
    answered: AnswerTime
    call: Callable[[ManagedObjects], Callable[..., object] | Listing] | None = None
    """The method that takes the parameters by name. None: the server has methods of its own for it, about this broker
    and its cluster."""
    controller: ControllerForm | None = None
    """The request of the controller that it is, of an operation on sets, brokers or replicas. None: it is no such."""
    of_leader: bool = False
    """It looks at what only the primary of `default` knows."""
    counts: str = ""
    """How a number is called in the answer that the method comes to; empty: it comes to a whole answer."""

    @property
    def is_for_primary(self) -> bool:
        """Whether a backup refuses it: it may not write, and what it has of messages may never have been confirmed."""
        return self.answered is AnswerTime.COMMITTED or (self.control is not None and bool(self.control.nodes))

    @property
    def is_passed_on(self) -> bool:
        """Whether a broker that cannot carry it out passes it on to the one that leads."""
        return self.is_for_primary or self.of_leader

    @property
    def known(self) -> tuple[str, ...]:
        """The parameters that a request of JSON-RPC may have."""
        has_action = self.control is not None and self.control.action != ALL
        return ("action", *self.parameters) if has_action else tuple(self.parameters)

    @property
    def text(self) -> str:
        """The name of the operation, for whoever mends its row."""
        if self.control is not None:
            return f"{self.control.method} {self.control.action}".rstrip()
        return "an operation" if self.management is None else f"{self.management.type} {self.management.operation}"

    def carry_out(self, administration: Administration, call: Callable[..., object], given: Facts) -> object:
        """What `call` comes to with the parameters `given`: an Outcome where something is waited for.

        Raises what `call` does, and TypeError where `answered` says something else than what was done.
        """
        if self.answered is AnswerTime.ALL_SHOWN:
            queues_set = administration.of_queue(given["name"], leads=True).resources.replicated
            return once_all_is_shown(queues_set, lambda: call(**given))
        outcome = call(**given)
        if isinstance(outcome, Done | Pending) is not (self.answered is AnswerTime.COMMITTED):
            raise TypeError(f"{self.text} is answered {self.answered.value}, says its row, but came to {outcome!r:.80}")
        if isinstance(outcome, Done | Pending) and self.counts:
            return outcome.then(lambda number: {self.counts: number})
        return outcome


class OperationTable:
    """The promise: no two rows have one name, and each says all that the doors need. Raises ValueError for others.

    Of a method that has actions the first row is that of a request that names none; it changes nothing.
    """

    def __init__(self, rows: Sequence[Operation]) -> None:
        problems = [f"{row.text}: {problem}" for row in rows for problem in _problems(row)]
        methods: dict[str, dict[str, Operation]] = {}
        types: dict[str, dict[str, Operation]] = {}
        acts: dict[str, AuditedParameters | None] = {}
        for row in rows:
            if (control := row.control) is not None:
                if control.action in methods.setdefault(control.method, {}):
                    problems.append(f"{row.text}: it has two rows")
                methods[control.method][control.action] = row
            if (management := row.management) is not None:
                if management.operation in types.setdefault(management.type, {}):
                    problems.append(f"{row.text}: {management.type} {management.operation} has two rows")
                types[management.type][management.operation] = row
                if acts.setdefault(management.operation, management.audited) != management.audited:
                    problems.append(f"{row.text}: {management.operation} is audited otherwise for another type")
        for method, actions in methods.items():
            if ALL in actions and len(actions) > 1:
                problems.append(f"{method}: it has actions, and a row without one")
            if ALL not in actions and next(iter(actions.values())).effect is not Effect.READS:
                problems.append(f"{method}: its first action changes something")
        if problems:
            raise ValueError("; ".join(problems))
        self.by_method: Final[Mapping[str, Mapping[str, Operation]]] = methods
        """By method of JSON-RPC, then by action."""
        self.by_type: Final[Mapping[str, Mapping[str, Operation]]] = types
        """By short name of the type of `$management`, then by operation."""
        self.acts: Final[Mapping[str, AuditedParameters]] = {
            operation: audited for operation, audited in acts.items() if audited is not None
        }
        """The operations of `$management` that are administrative acts, of whatever type, and what is audited."""

    def find(self, method: str, params: Mapping[str, object]) -> Operation | None:
        """The row of a request of JSON-RPC; None: there is none."""
        actions = self.by_method.get(method)
        if actions is None or ALL in actions:
            return None if actions is None else actions[ALL]
        action = params.get("action", next(iter(actions)))
        return actions.get(action) if isinstance(action, str) else None

    def has_of_primary(self, method: str) -> bool:
        """Whether some of what the method of JSON-RPC stands for is for a primary alone."""
        return any(row.is_for_primary for row in self.by_method.get(method, {}).values())

    def reads(self, method: str, params: Mapping[str, object]) -> bool:
        """Whether a request of JSON-RPC changes nothing. One without a row is taken to change something."""
        row = self.find(method, params)
        if row is None or row.control is None:
            return False
        return row.effect is Effect.READS or (row.control.reads_with is not None and row.control.reads_with(params))


def _problems(row: Operation) -> Iterator[str]:
    """What is missing in a row, or does not fit."""
    control, management = row.control, row.management
    reads = row.effect is Effect.READS
    if control is None and management is None:
        yield "there is no way to ask for it"
    if reads and row.answered is AnswerTime.COMMITTED:
        yield "it reads, and nothing of it is ever committed"
    if row.answered is AnswerTime.ALL_SHOWN and "name" not in row.parameters:
        yield "it waits for all messages of a queue, and no parameter `name` says of which"
    if row.call is not None and row.answered is AnswerTime.OUTCOME:
        yield "a method of the administration waits for nobody else"
    if row.counts and row.answered is not AnswerTime.COMMITTED:
        yield "it counts, and is not answered with a number"
    if row.controller is not None and (unknown := {*row.controller.names} - {*row.parameters}):
        yield f"it has no parameters {', '.join(sorted(unknown))}, which the controller calls otherwise"
    if control is not None:
        if reads is not (control.audited is None):
            yield "it reads, and has audited parameters" if reads else "it writes: which parameters are audited?"
        if unknown := {*(control.audited or ())} - {*row.parameters}:
            yield f"it has no parameters {', '.join(sorted(unknown))}, which are audited"
        if any(row.parameters.get(needed.node) is not ParameterKind.NAME for needed in control.nodes):
            yield "it needs a permission on a queue that no parameter names"
        if any(needed.topic and needed.topic not in row.parameters for needed in control.nodes):
            yield "it needs a permission on a topic that no parameter names"
        if control.action != ALL and "action" in row.parameters:
            yield "its action is no parameter of its own"
    if management is not None:
        if reads and management.audited is not None:
            yield "it reads, and is an administrative act"
        if unknown := {*management.properties} - {*row.parameters}:
            yield f"it has no parameters {', '.join(sorted(unknown))}, which are properties"
        if management.type not in MANAGED_TYPES:
            yield f"there is no type {management.type}"
        if management.operation not in OF_THE_DRAFT and row.call is None:
            yield "nothing says what is done"


MANAGED_TYPES: Final = ("queue", "exchange", "binding")
"""Short names of the types of `$management`."""
OF_THE_DRAFT: Final = ("CREATE", "READ", "UPDATE", "DELETE")
"""Operations that have a form of their own in `$management`."""

_V, _O, _A = TokenRole.VIEWER, TokenRole.OPERATOR, TokenRole.ADMIN
_NAME, _TEXT, _FLAG, _NUMBER = ParameterKind.NAME, ParameterKind.TEXT, ParameterKind.FLAG, ParameterKind.NUMBER
_LIST, _ARGUMENTS, _SETTING = ParameterKind.LIST, ParameterKind.ARGUMENTS, ParameterKind.SETTING
_READS, _WRITES = Effect.READS, Effect.WRITES
_AT_ONCE, _SHOWN = AnswerTime.AT_ONCE, AnswerTime.ALL_SHOWN
_COMMITTED, _OUTCOME = AnswerTime.COMMITTED, AnswerTime.OUTCOME

_MADE: Final = ("name", "kind", "arguments", "exchange", "queue", "key")
_DELETED: Final = ("name", "identity", "if_empty", "if_unused")
_PAGE: Final = {"limit": _NUMBER, "after": _TEXT}
_SELECTION: Final = {"count": _NUMBER, "id": _NUMBER, "selector": _TEXT}
_LOGIN_KIND: Final = {"is_new": _FLAG, "replaces": _FLAG}
_CAUSED: Final = {"name": _NAME, "cause": _TEXT}
_OF_SET: Final = {"name": _NAME, "broker": _NAME, "cause": _TEXT}


def _make_queue(on: ManagedObjects) -> Callable[..., object]:
    def create(name: object, arguments: object = None) -> Outcome[Facts]:
        is_new = not on.administration.has_queue(name)
        return on.administration.create_queue(name, arguments).then(lambda made: {"created": is_new, **made})

    return create


def _make_exchange(on: ManagedObjects) -> Callable[..., object]:
    def create(name: object, kind: object, arguments: object = None) -> Done[Facts]:
        is_new = name not in on.administration.exchange_names()
        made = on.administration.create_exchange(name, kind, arguments)
        return Done({**on.administration.exchange(name), "created": is_new}, made.written)

    return create


def _bind(on: ManagedObjects) -> Callable[..., object]:
    def bind(name: object, queue: object, key: object = "", arguments: object = None) -> Done[Facts]:
        return on.administration.bind(name, queue, key, arguments)

    return bind


def _unbind(on: ManagedObjects) -> Callable[..., object]:
    def unbind(name: object, queue: object, key: object = "") -> Done[Facts]:
        return on.administration.unbind(name, queue, key)

    return unbind


def _accept(on: ManagedObjects) -> Callable[..., object]:
    def accept(name: object, id: object = None, up_to: object = None) -> Pending[int]:
        return on.browsing(name).accept(name, id, up_to)

    return accept


def _measure(on: ManagedObjects) -> Callable[..., object]:
    def measure(
        name: object,
        after: object = None,
        messages: object = NO_LIMIT - 1,
        bytes: object = NO_LIMIT - 1,  # as the request calls it
    ) -> Facts:
        return on.browsing(name).measure(name, after, messages, bytes)

    return measure


def _locate(on: ManagedObjects) -> Callable[..., object]:
    def locate(name: object, timestamp: object = None) -> Facts:
        return on.browsing(name).position_before(name, timestamp)

    return locate


def _times(on: ManagedObjects) -> Callable[..., object]:
    def times(name: object, after: object = None, up_to: object = None) -> Facts:
        return on.browsing(name).write_times(name, after, up_to)

    return times


# fmt: off
ROWS: Final[tuple[Operation, ...]] = (
    # --- this broker
    Operation(ControlForm("ping", ALL, _V, instead=Permission.REPLICATE), None, {}, _READS, _AT_ONCE),
    Operation(
        ControlForm("status", ALL, _V, instead=Permission.REPLICATE), None, {"all": _FLAG, "agent": _FLAG}, _READS,
        _OUTCOME,
    ),
    Operation(ControlForm("query", ALL, _V, instead=Permission.REPLICATE), None, {"all": _FLAG}, _READS, _OUTCOME),
    Operation(ControlForm("get", ALL, _V), None, {"key": _TEXT}, _READS, _AT_ONCE),
    Operation(
        ControlForm("set", ALL, _A, ("key", "value")), None, {"key": _TEXT, "value": _SETTING}, _WRITES, _AT_ONCE
    ),
    Operation(ControlForm("settings", "list", _V), None, {}, _READS, _OUTCOME),
    Operation(ControlForm("settings", "history", _V), None, {}, _READS, _OUTCOME),
    Operation(
        ControlForm("settings", "set", _A, ("key", "value")), None, {"key": _TEXT, "value": _SETTING}, _WRITES, _OUTCOME
    ),
    Operation(ControlForm("settings", "unset", _A, ("key",)), None, {"key": _TEXT}, _WRITES, _OUTCOME),
    # Users with passwords and tokens that the cluster keeps; whoever asks has made the secrets' verifiers.
    Operation(ControlForm("users", "list", _O), None, {}, _READS, _OUTCOME),
    Operation(ControlForm("users", "export", _A), None, {}, _READS, _OUTCOME),
    Operation(
        ControlForm("users", "set", _A, ("name", "is_new", "replaces")), None,
        {"name": _NAME, "verifiers": _TEXT, **_LOGIN_KIND}, _WRITES, _OUTCOME,
    ),
    Operation(ControlForm("users", "remove", _A, ("name",)), None, {"name": _NAME}, _WRITES, _OUTCOME),
    Operation(ControlForm("tokens", "list", _O), None, {}, _READS, _OUTCOME),
    Operation(ControlForm("tokens", "export", _A), None, {}, _READS, _OUTCOME),
    Operation(
        ControlForm("tokens", "set", _A, ("name", "role", "is_new", "replaces")), None,
        {"name": _NAME, "role": _TEXT, "digest": _TEXT, **_LOGIN_KIND}, _WRITES, _OUTCOME,
    ),
    Operation(ControlForm("tokens", "remove", _A, ("name",)), None, {"name": _NAME}, _WRITES, _OUTCOME),
    Operation(ControlForm("reload-tls", ALL, _O, ()), None, {}, _WRITES, _AT_ONCE),
    Operation(ControlForm("reload-acl", ALL, _A, ()), None, {}, _WRITES, _AT_ONCE),
    Operation(ControlForm("list-acl", ALL, _O), None, {}, _READS, _AT_ONCE),
    Operation(
        ControlForm("check-acl", ALL, _A), None,
        {"user": _TEXT, "action": _TEXT, "node": _TEXT, "local": _FLAG}, _READS, _AT_ONCE,
    ),
    Operation(ControlForm("user-limits", ALL, _A), None, {"user": _TEXT}, _READS, _AT_ONCE),
    Operation(ControlForm("shutdown", ALL, _A, ("cluster",)), None, {"cluster": _FLAG}, _WRITES, _OUTCOME),
    Operation(ControlForm("remote-nodes", ALL, _V), None, {}, _READS, _AT_ONCE),
    Operation(
        ControlForm("replicate", ALL, _O, ("queue", "address", "stop"), reads_with=lambda params: not params), None,
        {"queue": _TEXT, "address": _TEXT, "stop": _FLAG}, _WRITES, _OUTCOME,
    ),
    # --- connections and sessions of clients
    Operation(ControlForm("connections", "list", _V), None, {"all": _FLAG, "broker": _TEXT}, _READS, _OUTCOME),
    Operation(
        ControlForm("connections", "close", _O, ("id", "broker", "reason")), None,
        {"broker": _TEXT, "id": _NUMBER, "reason": _TEXT}, _WRITES, _OUTCOME,
    ),
    Operation(ControlForm("sessions", "list", _V), None, {}, _READS, _AT_ONCE),
    Operation(ControlForm("sessions", "end", _O, ("name",)), None, {"name": _NAME}, _WRITES, _COMMITTED),
    # --- queues
    Operation(
        ControlForm("queues", "list", _V), None, _PAGE, _READS, _AT_ONCE,
        lambda on: Listing(on.administration.queues, on.administration.queue_names, on.administration.queue),
    ),
    Operation(
        ControlForm("queues", "create", _O, ("name", "arguments")),
        ManagementForm("queue", "CREATE", Permission.CREATE, _MADE),
        {"name": _NAME, "arguments": _ARGUMENTS}, _WRITES, _COMMITTED, _make_queue,
    ),
    Operation(
        ControlForm("queues", "check", _V), None, {"name": _NAME, "arguments": _ARGUMENTS}, _READS, _AT_ONCE,
        lambda on: on.administration.check_queue,
    ),
    Operation(
        ControlForm("queues", "read", _V), ManagementForm("queue", "READ", Permission.MANAGE, None),
        {"name": _NAME}, _READS, _AT_ONCE, lambda on: on.administration.queue,
    ),
    Operation(
        ControlForm("queues", "delete", _O, ("name", "if_empty", "if_unused")),
        ManagementForm("queue", "DELETE", Permission.DELETE, _DELETED, ("if_empty", "if_unused")),
        {"name": _NAME, "if_empty": _FLAG, "if_unused": _FLAG}, _WRITES, _COMMITTED,
        lambda on: on.administration.delete_queue,
    ),
    Operation(
        ControlForm("queues", "update", _O, ("name", "arguments")),
        ManagementForm("queue", "UPDATE", Permission.MANAGE, ("name", "identity", "arguments")),
        {"name": _NAME, "arguments": _ARGUMENTS}, _WRITES, _COMMITTED, lambda on: on.administration.update_queue,
    ),
    Operation(
        ControlForm("queues", "purge", _O, ("name",), (NodePermission(Permission.PURGE, "name"),)),
        ManagementForm("queue", "PURGE", Permission.PURGE, ("name", "identity"), done="Purged"),
        {"name": _NAME}, _WRITES, _COMMITTED, lambda on: on.administration.purge_queue, counts="purged",
    ),
    # What consumers do is no administrative act.
    Operation(
        None, ManagementForm("queue", "ACCEPT", Permission.CONSUME, None, ("id", "up_to"), "Accepted"),
        {"name": _NAME, "id": _NUMBER, "up_to": _NUMBER}, _WRITES, _COMMITTED, _accept, counts="accepted",
    ),
    Operation(
        None, ManagementForm("queue", "MEASURE", Permission.BROWSE, None, ("after", "messages", "bytes")),
        {"name": _NAME, "after": _NUMBER, "messages": _NUMBER, "bytes": _NUMBER}, _READS, _SHOWN, _measure,
    ),
    Operation(
        None, ManagementForm("queue", "LOCATE", Permission.BROWSE, None, ("timestamp",)),
        {"name": _NAME, "timestamp": _NUMBER}, _READS, _SHOWN, _locate,
    ),
    Operation(
        None, ManagementForm("queue", "TIMES", Permission.BROWSE, None, ("after", "up_to")),
        {"name": _NAME, "after": _NUMBER, "up_to": _NUMBER}, _READS, _AT_ONCE, _times,
    ),
    # A viewer sees figures; what is in messages is their owners' business.
    Operation(
        ControlForm("queues", "peek", _O, nodes=(NodePermission(Permission.BROWSE, "name"),)), None,
        {"name": _NAME, "after": _NUMBER, "count": _NUMBER, "bytes": _NUMBER, "body_bytes": _NUMBER, "id": _NUMBER},
        _READS, _AT_ONCE, lambda on: on.messages.peek,
    ),
    Operation(
        ControlForm("queues", "payload", _O, nodes=(NodePermission(Permission.BROWSE, "name"),)), None,
        {"name": _NAME, "after": _NUMBER, "offset": _NUMBER, "bytes": _NUMBER},
        _READS, _AT_ONCE, lambda on: on.messages.payload,
    ),
    Operation(
        ControlForm("queues", "publish", _O, ("name",), (NodePermission(Permission.PUBLISH, "name"),)), None,
        {"name": _NAME, "body": _TEXT, "subject": _TEXT, "properties": _ARGUMENTS, "transient": _FLAG},
        _WRITES, _COMMITTED, lambda on: on.messages.publish,
    ),
    Operation(
        ControlForm(
            "queues", "move", _O, ("name", "to", "count", "id", "selector"),
            (NodePermission(Permission.CONSUME, "name"), NodePermission(Permission.PUBLISH, "to")),
        ), None,
        {"name": _NAME, "to": _NAME, **_SELECTION}, _WRITES, _COMMITTED, lambda on: on.messages.move,
    ),
    Operation(
        ControlForm(
            "queues", "copy", _O, ("name", "to", "count", "id", "selector"),
            (NodePermission(Permission.BROWSE, "name"), NodePermission(Permission.PUBLISH, "to")),
        ), None,
        {"name": _NAME, "to": _NAME, **_SELECTION}, _WRITES, _COMMITTED, lambda on: on.messages.copy,
    ),
    # Without `to` messages come into any queue: who may publish only to some has to say to which.
    Operation(
        ControlForm(
            "queues", "retry", _O, ("name", "to", "count", "id", "selector"),
            (NodePermission(Permission.CONSUME, "name"), NodePermission(Permission.PUBLISH, "to")),
        ), None,
        {"name": _NAME, "to": _NAME, **_SELECTION}, _WRITES, _COMMITTED, lambda on: on.messages.retry,
    ),
    Operation(
        ControlForm(
            "queues", "redirect", _O, ("name", "exchange", "key", "count", "id", "selector"),
            (NodePermission(Permission.CONSUME, "name"), NodePermission(Permission.PUBLISH, "exchange", "key")),
        ), None,
        {"name": _NAME, "exchange": _NAME, "key": _TEXT, **_SELECTION}, _WRITES, _COMMITTED,
        lambda on: on.messages.redirect,
    ),
    # --- exchanges and bindings
    Operation(
        ControlForm("exchanges", "list", _V), None, _PAGE, _READS, _AT_ONCE,
        lambda on: Listing(on.administration.exchanges, on.administration.exchange_names, on.administration.exchange),
    ),
    Operation(
        ControlForm("exchanges", "create", _O, ("name", "kind", "arguments")),
        ManagementForm("exchange", "CREATE", Permission.CREATE, _MADE),
        {"name": _NAME, "kind": _NAME, "arguments": _ARGUMENTS}, _WRITES, _COMMITTED, _make_exchange,
    ),
    Operation(
        ControlForm("exchanges", "read", _V), ManagementForm("exchange", "READ", Permission.MANAGE, None),
        {"name": _NAME}, _READS, _AT_ONCE, lambda on: on.administration.exchange,
    ),
    Operation(
        ControlForm("exchanges", "delete", _O, ("name", "if_unused")),
        ManagementForm("exchange", "DELETE", Permission.DELETE, _DELETED, ("if_unused",)),
        {"name": _NAME, "if_unused": _FLAG}, _WRITES, _COMMITTED, lambda on: on.administration.delete_exchange,
    ),
    Operation(
        ControlForm("exchanges", "bind", _O, ("name", "queue", "key")),
        ManagementForm("binding", "CREATE", Permission.BIND, _MADE),
        {"name": _NAME, "queue": _NAME, "key": _TEXT, "arguments": _ARGUMENTS}, _WRITES, _COMMITTED, _bind,
    ),
    Operation(None, ManagementForm("binding", "READ", Permission.MANAGE, None), {"name": _NAME}, _READS, _AT_ONCE),
    Operation(
        ControlForm("exchanges", "unbind", _O, ("name", "queue", "key")),
        ManagementForm("binding", "DELETE", Permission.BIND, _DELETED),
        {"name": _NAME, "queue": _NAME, "key": _TEXT}, _WRITES, _COMMITTED, _unbind,
    ),
    # --- the member of `default`
    Operation(ControlForm("backups", ALL, _V), None, {}, _READS, _AT_ONCE, of_leader=True),
    Operation(ControlForm("history", ALL, _V), None, {"sets": _FLAG, "about": _TEXT}, _READS, _OUTCOME),
    Operation(
        ControlForm("events", ALL, _V), None, {"match": _TEXT, "count": _NUMBER, "follow": _FLAG}, _READS, _AT_ONCE
    ),
    Operation(
        ControlForm("promote", ALL, _O, ("force", "failover", "cause")), None,
        {"force": _FLAG, "failover": _FLAG, "cause": _TEXT}, _WRITES, _OUTCOME,
    ),
    Operation(ControlForm("demote", ALL, _O, ("cause",)), None, {"cause": _TEXT}, _WRITES, _OUTCOME),
    Operation(
        ControlForm("switchover", ALL, _O, ("to", "cause", "within_s")), None,
        {"to": _TEXT, "cause": _TEXT, "within_s": _NUMBER}, _WRITES, _OUTCOME,
    ),
    Operation(
        ControlForm("drop", ALL, _A, ("backup", "reason")), None,
        {"backup": _NAME, "reason": _TEXT}, _WRITES, _OUTCOME,
    ),
    Operation(ControlForm("pause", "show", _V), None, {}, _READS, _AT_ONCE),
    Operation(
        ControlForm("pause", "begin", _O, ("for_s", "reason", "by")), None,
        {"for_s": _NUMBER, "reason": _TEXT, "by": _TEXT}, _WRITES, _OUTCOME,
    ),
    Operation(ControlForm("pause", "end", _O, ("by",)), None, {"by": _TEXT}, _WRITES, _OUTCOME),
    # --- sets, brokers and replicas: what the controller is asked
    Operation(ControlForm("map", ALL, _V), None, {}, _READS, _OUTCOME),
    Operation(ControlForm("sets", "list", _V), None, {}, _READS, _OUTCOME),
    Operation(ControlForm("sets", "show", _V), None, {"name": _NAME}, _READS, _OUTCOME),
    Operation(
        ControlForm(
            "sets", "create", _O,
            ("name", "replicas", "preferred", "min_replicas", "min_in_sync", "strategy", "cause"),
        ),
        None,
        {
            "name": _NAME, "replicas": _LIST, "preferred": _TEXT, "min_replicas": _NUMBER, "min_in_sync": _NUMBER,
            "strategy": _TEXT, "cause": _TEXT,
        }, _WRITES, _OUTCOME,
        controller=ControllerForm("set-create", {}),
    ),
    Operation(
        ControlForm("sets", "delete", _A, ("name", "lost", "cause")), None, {**_CAUSED, "lost": _FLAG},
        _WRITES, _OUTCOME,
        controller=ControllerForm("set-delete", {}),
    ),
    Operation(
        ControlForm("sets", "transfer", _O, ("name", "to", "cause")), None, {**_CAUSED, "to": _TEXT},
        _WRITES, _OUTCOME,
        controller=ControllerForm("set-transfer", {"name": "set"}),
    ),
    Operation(
        ControlForm("sets", "promote", _A, ("name", "broker", "force", "cause")), None, {**_OF_SET, "force": _FLAG},
        _WRITES, _OUTCOME,
        controller=ControllerForm("set-promote", {"name": "set"}),
    ),
    Operation(
        ControlForm("sets", "add-replica", _O, ("name", "broker", "cause")), None, _OF_SET, _WRITES, _OUTCOME,
        controller=ControllerForm("set-add-replica", {"name": "set"}),
    ),
    Operation(
        ControlForm("sets", "remove-replica", _O, ("name", "broker", "force", "cause")), None,
        {**_OF_SET, "force": _FLAG}, _WRITES, _OUTCOME,
        controller=ControllerForm("set-remove-replica", {"name": "set"}),
    ),
    Operation(ControlForm("brokers", "list", _V), None, {}, _READS, _OUTCOME),
    Operation(
        ControlForm("brokers", "drain", _O, ("name", "force", "cause")), None, {**_CAUSED, "force": _FLAG},
        _WRITES, _OUTCOME,
        controller=ControllerForm("drain", {"name": "broker"}),
    ),
    Operation(ControlForm("brokers", "undrain", _O, ("name", "cause")), None, _CAUSED, _WRITES, _OUTCOME,
        controller=ControllerForm("undrain", {"name": "broker"}),
    ),
    Operation(ControlForm("brokers", "leave", _A, ("name", "cause")), None, _CAUSED, _WRITES, _OUTCOME,
        controller=ControllerForm("brokers-leave", {"name": "broker"}),
    ),
    Operation(
        ControlForm("brokers", "fail", _A, ("name", "reason", "cause")), None, {**_CAUSED, "reason": _TEXT},
        _WRITES, _OUTCOME,
        controller=ControllerForm("brokers-fail", {"name": "broker", "reason": "why"}),
    ),
    Operation(ControlForm("brokers", "forget", _A, ("name", "cause")), None, _CAUSED, _WRITES, _OUTCOME,
        controller=ControllerForm("brokers-forget", {"name": "broker"}),
    ),
    Operation(ControlForm("replicas", "plan", _V), None, {}, _READS, _OUTCOME),
    Operation(ControlForm("replicas", "list-policies", _V), None, {}, _READS, _OUTCOME),
    Operation(ControlForm("replicas", "trim", _O, ("name", "cause")), None, _CAUSED, _WRITES, _OUTCOME,
        controller=ControllerForm("replicas-trim", {"name": "set"}),
    ),
    Operation(
        ControlForm("replicas", "policies", _O, ("policies", "cause")), None, {"policies": _LIST, "cause": _TEXT},
        _WRITES, _OUTCOME,
        controller=ControllerForm("replica-policies", {}),
    ),
    Operation(
        ControlForm(
            "rebalance", ALL, _O, ("begin", "cause"),
            reads_with=lambda params: params.get("plan") is True or params.get("left") is True,
        ), None,
        {"plan": _FLAG, "begin": _FLAG, "left": _FLAG, "cause": _TEXT}, _WRITES, _OUTCOME,
    ),
)
# fmt: on
OPERATIONS: Final = OperationTable(ROWS)
"""All that there are."""
