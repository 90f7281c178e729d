"""The three kinds of object that `$management` manages, each as the map of attributes that the draft asks for.

Queues and exchanges are known by their names. A binding has none, so it gets one from its three parts:
`exchange/queue/key`, where a `/` or `%` inside a part is written `%2F` or `%25`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar

from qpid_ha_broker.access.operations import Listing, Operation
from qpid_ha_broker.access.rules import Permission, permissions_of_arguments
from qpid_ha_broker.amqp.nodes.management_messages import (
    ACCEPTED,
    BAD_REQUEST,
    CREATED,
    NO_CONTENT,
    NOT_FOUND,
    OK,
    ManagementAnswer,
    Request,
    RequestRefusal,
)
from qpid_ha_broker.amqp.nodes.queue_messages import managed_objects
from qpid_ha_broker.events.joined_names import joined, names_of
from qpid_ha_broker.model.commands.administration import (
    Administration,
    Done,
    Facts,
    Outcome,
    Pending,
    once_all_is_shown,
)
from qpid_ha_broker.model.sets.level_change import MOVED_MOST

RequestHandler = Callable[[Request], ManagementAnswer | Outcome[ManagementAnswer]]


class EntityType(ABC):
    """One kind of object: its name, what it is known for, and what can be done to it."""

    name: ClassVar[str]
    short_name: ClassVar[str]
    attributes: ClassVar[tuple[str, ...]]
    settable: ClassVar[tuple[str, ...]]
    """What CREATE takes in its body, beside the name."""

    def __init__(self, administration: Administration, rows: Mapping[str, Operation]) -> None:
        """`rows`: of this type, by operation."""
        self._administration = administration
        self._managed = managed_objects(administration)
        forms = {operation: row.management for operation, row in rows.items() if row.management is not None}
        self.parameters = {operation: form.properties for operation, form in forms.items()}
        """Operation -> the application properties that it takes, beside the standard ones."""
        self.actions = {operation: form.permission for operation, form in forms.items()}
        """Operation -> what has to be allowed for it."""
        of_the_draft = self._of_the_draft()
        self.operations: dict[str, RequestHandler] = {
            operation: of_the_draft.get(operation, partial(self._carry_out, row)) for operation, row in rows.items()
        }

    def _of_the_draft(self) -> dict[str, RequestHandler]:
        """What has a form of its own there."""
        return {"CREATE": self._create, "READ": self._read_one, "DELETE": self._delete}

    def _carry_out(self, row: Operation, request: Request) -> ManagementAnswer | Outcome[ManagementAnswer]:
        """Any other operation on one object, with the application properties that its row names."""
        form, given = row.management, request.properties
        if row.call is None or form is None:
            raise TypeError(f"nothing says what is done for {row.text}")
        call = row.call(self._managed)
        if isinstance(call, Listing):
            raise TypeError(f"{row.text} lists, which is for QUERY")
        arguments = {"name": target_of(request), **{name: given[name] for name in form.properties if name in given}}

        def answered(facts: object) -> ManagementAnswer:
            return ManagementAnswer(OK, form.done, facts)

        outcome = row.carry_out(self._administration, call, arguments)
        return outcome.then(answered) if isinstance(outcome, Done | Pending) else answered(outcome)

    def needs(self, operation: str, request: Request) -> list[tuple[Permission, str]]:
        """What who asks for the operation has to be allowed, with which nodes. Raises RequestRefusal."""
        if operation == "CREATE":
            return [(self.actions[operation], str(_name_of_new(request, self._body(request, self.settable)) or ""))]
        return [(self.actions[operation], target_of(request))]

    def _of_arguments(self, operation: str, request: Request) -> list[tuple[Permission, str]]:
        """Of the nodes to which, or from which, it is to move messages by itself."""
        if operation not in ("CREATE", "UPDATE"):
            return []
        arguments = self._body(request, self.settable).get("arguments")
        return permissions_of_arguments(arguments) if isinstance(arguments, dict) else []

    @property
    @abstractmethod
    def count(self) -> int:
        """How many objects of this kind there are."""

    @abstractmethod
    def rows_from(self, start: int) -> Iterator[Facts]:
        """The objects of this kind from number `start` on with their attributes, in an order that stays."""

    @abstractmethod
    def _read(self, name: str) -> Facts: ...

    def _read_one(self, request: Request) -> ManagementAnswer | Outcome[ManagementAnswer]:
        return ManagementAnswer(OK, "OK", self._read(target_of(request)))

    @abstractmethod
    def _make(self, request: Request, body: Facts) -> Outcome[Facts]: ...

    @abstractmethod
    def _remove(self, name: str, request: Request) -> Outcome[Facts]: ...

    def _create(self, request: Request) -> Outcome[ManagementAnswer]:
        return self._make(request, self._body(request, self.settable)).then(self._created)

    def _created(self, made: Facts) -> ManagementAnswer:
        body = {name: value for name, value in self._entity(made).items() if name in self.attributes}
        return _pending(made, body) or ManagementAnswer(CREATED, "Created", body)

    def _delete(self, request: Request) -> Outcome[ManagementAnswer]:
        return self._remove(target_of(request), request).then(
            lambda gone: _pending(gone, {}) or ManagementAnswer(NO_CONTENT, "Deleted", {})
        )

    def _entity(self, facts: Facts) -> Facts:
        """With the attributes that every entity has; its name is its identity, too."""
        return {"name": facts["name"], "identity": facts["name"], "type": self.name, **facts}

    def _body(self, request: Request, known: tuple[str, ...]) -> Facts:
        """The attributes that the body sets. Raises Refusal for any that cannot be set."""
        body = {} if request.body is None else request.body
        if not isinstance(body, dict):
            raise RequestRefusal(BAD_REQUEST, f"the body is a map of attributes: {', '.join(known)}")
        for attribute in body:
            if attribute not in known and attribute not in ("name", "identity", "type"):
                raise RequestRefusal(
                    BAD_REQUEST,
                    f"{self.name} has no attribute {attribute!r:.80} that can be set: {', '.join(known)}"
                    " (arguments such as qpid.max_count go into the map `arguments`)",
                )
        return body


class QueueType(EntityType):
    """Queues."""

    name = "org.qpid_ha.queue"
    short_name = "queue"
    attributes = (
        *("name", "identity", "type", "messages", "bytes", "acquired", "consumers", "enqueued", "dequeued"),
        *("scheduled", "next_due_ms", "id", "newest_message", "log_position", "arguments", "set"),
    )
    settable = ("arguments",)

    def _of_the_draft(self) -> dict[str, RequestHandler]:
        return {**super()._of_the_draft(), "UPDATE": self._update}

    def needs(self, operation: str, request: Request) -> list[tuple[Permission, str]]:
        """Beside the queue itself also what it is to move messages to or from."""
        return super().needs(operation, request) + self._of_arguments(operation, request)

    @property
    def count(self) -> int:
        return self._administration.queue_count

    def rows_from(self, start: int) -> Iterator[Facts]:
        return map(self._entity, self._administration.queues(start))

    def _read(self, name: str) -> Facts:
        return self._entity(self._administration.of_queue(name, leads=True).queue(name))

    def _make(self, request: Request, body: Facts) -> Outcome[Facts]:
        name, arguments = _name_of_new(request, body), body.get("arguments")
        return self._administration.create_queue(name, arguments, request.created_by)

    def _remove(self, name: str, request: Request) -> Pending[Facts]:
        given = request.properties
        return self._administration.delete_queue(name, given.get("if_empty", False), given.get("if_unused", False))

    def _update(self, request: Request) -> ManagementAnswer:
        body = self._body(request, self.settable)
        done = self._administration.update_queue(target_of(request), body.get("arguments"), MOVED_MOST)
        return ManagementAnswer(OK, "Updated", self._entity(done.result), written=done.written)

    def _read_one(self, request: Request) -> Outcome[ManagementAnswer]:
        name = target_of(request)
        queues_set = self._administration.of_queue(name, leads=True).resources.replicated
        return once_all_is_shown(queues_set, lambda: ManagementAnswer(OK, "OK", self._read(name)))


class ExchangeType(EntityType):
    """Exchanges. `bindings` is only how many: they are objects of their own."""

    name = "org.qpid_ha.exchange"
    short_name = "exchange"
    attributes = ("name", "identity", "type", "kind", "bindings", "arguments")
    settable = ("kind", "arguments")

    def needs(self, operation: str, request: Request) -> list[tuple[Permission, str]]:
        """Beside the exchange itself also what it passes messages on to that it leads nowhere."""
        return super().needs(operation, request) + self._of_arguments(operation, request)

    @property
    def count(self) -> int:
        return len(self._administration.exchange_names())

    def rows_from(self, start: int) -> Iterator[Facts]:
        return map(self._entity, self._administration.exchange_outlines(start))

    def _read(self, name: str) -> Facts:
        return self._entity(self._administration.exchange_outline(name))

    def _make(self, request: Request, body: Facts) -> Done[Facts]:
        name = _name_of_new(request, body)
        return self._administration.create_exchange(name, body.get("kind"), body.get("arguments"))

    def _remove(self, name: str, request: Request) -> Done[Facts]:
        return self._administration.delete_exchange(name, request.properties.get("if_unused", False))


class BindingType(EntityType):
    """Bindings."""

    name = "org.qpid_ha.binding"
    short_name = "binding"
    attributes = ("name", "identity", "type", "exchange", "queue", "key", "arguments")
    settable = ("exchange", "queue", "key", "arguments")

    def needs(self, operation: str, request: Request) -> list[tuple[Permission, str]]:
        """For both ends of the binding."""
        if operation == "CREATE":
            body = self._body(request, self.settable)
            ends = [str(body.get("exchange") or ""), str(body.get("queue") or "")]
        else:
            ends = _binding_parts(target_of(request))[:2]
        return [(self.actions[operation], node) for node in ends]

    @property
    def count(self) -> int:
        return self._administration.binding_count

    def rows_from(self, start: int) -> Iterator[Facts]:
        return map(self._entity, self._administration.bindings(start))

    def _entity(self, facts: Facts) -> Facts:
        return super()._entity({"name": binding_name(facts), **facts})

    def _read(self, name: str) -> Facts:
        facts = self._administration.binding(*_binding_parts(name))
        if facts is None:
            raise RequestRefusal(NOT_FOUND, f"there is no binding {name}")
        return self._entity(facts)

    def _make(self, request: Request, body: Facts) -> Done[Facts]:
        parts = {"exchange": body.get("exchange"), "queue": body.get("queue"), "key": body.get("key", "")}
        given = request.properties.get("name", body.get("name"))
        if given is not None and given != binding_name(parts):
            raise RequestRefusal(
                BAD_REQUEST, f"the broker names bindings: leave out name, or give {binding_name(parts)!r}"
            )
        return self._administration.bind(parts["exchange"], parts["queue"], parts["key"], body.get("arguments"))

    def _remove(self, name: str, request: Request) -> Done[Facts]:
        return self._administration.unbind(*_binding_parts(name))


def _pending(outcome: Facts, body: Facts) -> ManagementAnswer | None:
    """What is recorded, and not known to be done by whoever leads the queue's set; None: it is done."""
    return ManagementAnswer(ACCEPTED, str(outcome.get("text", "")), body) if outcome.get("pending") else None


def binding_name(facts: Mapping[str, object]) -> str:
    """`exchange/queue/key`, escaped."""
    return joined(str(facts[part]) for part in ("exchange", "queue", "key"))


def _binding_parts(name: str) -> list[str]:
    parts = names_of(name)
    if len(parts) != 3:
        raise RequestRefusal(
            BAD_REQUEST, "a binding's name is exchange/queue/key, with %2F and %25 for / and % in a part"
        )
    return parts


def target_of(request: Request) -> str:
    """The entity that the request is about, by `name` or `identity`. Raises Refusal."""
    given = {request.properties[key] for key in ("name", "identity") if isinstance(request.properties.get(key), str)}
    if len(given) != 1:
        problem = "name and identity differ" if given else "which one is meant is missing"
        raise RequestRefusal(BAD_REQUEST, f"{problem}: give the application property name or identity, a text")
    return str(given.pop())


def _name_of_new(request: Request, body: Facts) -> object:
    """From the application properties or the body; both may have it if they agree."""
    names = [given["name"] for given in (request.properties, body) if given.get("name") is not None]
    if len(names) == 2 and names[0] != names[1]:
        raise RequestRefusal(BAD_REQUEST, "the name in the application properties differs from the one in the body")
    return names[0] if names else None
