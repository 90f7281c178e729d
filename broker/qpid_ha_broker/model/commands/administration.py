"""What can be asked of queues, exchanges and bindings, and done to them: once, for every way in.

The control socket and `$management` both call this. Each value comes from the wire and may be anything: it is checked
before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from qpid_ha_broker.events.fields import write_arguments
from qpid_ha_broker.events.types import Arguments, Scalar
from qpid_ha_broker.model.commands.configuration import MAX_NAME_BYTES, Configuration
from qpid_ha_broker.model.errors import BeingMade, InvalidArgument, ModelError, fresh
from qpid_ha_broker.model.exchanges.exchange import Binding, Exchange, ExchangeKind
from qpid_ha_broker.model.logs.log import COMMITTED, CommitToken, Log
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import (
    QueueArguments,
    check_binding_arguments,
    check_exchange_arguments,
    check_settable,
    with_creator,
)
from qpid_ha_broker.model.sets.catalog import Catalog
from qpid_ha_broker.model.sets.resource_set import ResourceSet
from qpid_ha_broker.model.sets.resources import Resources

MAX_KEY_BYTES = 1024
"""Of a binding: a topic exchange keeps a node for each word of it."""

Facts = dict[str, object]
"""An object as JSON or an AMQP map can carry it; an iterator in it stands for a list that may be very long."""

Result = TypeVar("Result")
Other = TypeVar("Other")


class Done(NamedTuple, Generic[Result]):
    """What came of a command; to be told once `written` is committed."""

    result: Result
    written: CommitToken

    def done(self) -> Done[Result]:
        """Itself: see `Pending`. Raises the ModelError for which the others do not have it, in a group."""
        failure = self.written.failure
        if failure is not None:
            raise fresh(failure)
        return self

    def then(self, change: Callable[[Result], Other]) -> Done[Other]:
        """The command, done, with another form of its result."""
        return Done(change(self.result), self.written)

    def is_of(self, log: Log) -> bool:
        """Whether `log` has it."""
        return self.written.is_of(log)


class Work(Protocol):
    """What goes on over several turns."""

    @property
    def written(self) -> CommitToken | None:
        """None while it goes on; then what to wait for until all of it is committed."""

    @property
    def failure(self) -> ModelError | None:
        """Why it was given up."""


class TakingOver:
    """Work: a new primary commits what it has taken over. It ends as well when this broker may not write any more."""

    failure = None

    def __init__(self, sets: Sequence[ResourceSet]) -> None:
        self._sets = sets

    @property
    def written(self) -> CommitToken | None:
        """See `Work`."""
        return None if any(resource_set.is_taking_over for resource_set in self._sets) else COMMITTED


class Pending(Generic[Result]):
    """A command whose work goes on in the turns to come, whoever waits for it: ask at the end of each turn."""

    def __init__(self, work: Work, log: Log | None, result: Callable[[], Result]) -> None:
        """`log`: what it comes to is written there; None: others decide, and have it in theirs."""
        self._work = work
        self._log = log
        self._result = result

    def done(self) -> Done[Result] | None:
        """What came of it; None while it goes on. Raises the ModelError for which it was given up."""
        if self._work.failure is not None:
            raise fresh(self._work.failure)
        written = self._work.written
        if written is not None and written.failure is not None:
            raise fresh(written.failure)
        return None if written is None else Done(self._result(), written)

    def then(self, change: Callable[[Result], Other]) -> Pending[Other]:
        """The same command with another form of its result."""
        return Pending(self._work, self._log, lambda: change(self._result()))

    def is_of(self, log: Log) -> bool:
        """Whether `log` has it."""
        return self._log is log

    @property
    def is_elsewhere(self) -> bool:
        """Whether the command is for other brokers to do: what comes after it does not wait for it."""
        return self._log is None


class Making:
    """Work: `ask`, which raises BeingMade, until what it asks for is there. It is asked when it may have come."""

    def __init__(self, ask: Callable[[], CommitToken], being_made: BeingMade) -> None:
        self._ask = ask
        self._awaited = being_made.written
        self._written: CommitToken | None = None
        self._failure: ModelError | None = None

    @property
    def written(self) -> CommitToken | None:
        """See `Work`."""
        self._look()
        return self._written

    @property
    def failure(self) -> ModelError | None:
        """See `Work`."""
        self._look()
        return self._failure

    def _look(self) -> None:
        is_over = self._awaited.is_committed or self._awaited.failure is not None
        if not is_over or self._written is not None or self._failure is not None:
            return
        try:
            self._written = self._ask()
        except BeingMade as again:
            self._awaited = again.written
        except ModelError as error:
            self._failure = fresh(error)


Outcome = Done[Result] | Pending[Result]


def once_all_is_shown(resource_set: ResourceSet, look: Callable[[], Result]) -> Outcome[Result]:
    """What `look` sees of the set once all can be seen that an earlier primary may have confirmed."""
    if not resource_set.is_taking_over:
        return Done(look(), COMMITTED)
    return Pending(TakingOver([resource_set]), None, look)


class Administration:
    """Reads and commands on one resource set; refuses with a ModelError that says what to do, and changes nothing then.

    Also a command that found everything done already has to wait: what it found may not be committed yet.
    """

    def __init__(self, resources: Resources, configuration: Configuration) -> None:
        self._catalog = resources.catalog
        self.resources = resources
        self.configuration = configuration

    # --- queues

    def of_queue(self, name: object, *, leads: bool = False) -> Administration:
        """The administration of the set that has a queue of that name, if any has.

        `leads`: for a client, who is to hear of all that was confirmed. Raises NotPrimary where this is but a replica.
        """
        return self

    def queues(self, start: int = 0) -> Iterator[Facts]:
        """The queues from number `start` on, in the order in which they were made; each is made when it is asked for.

        What comes after this call is left out, and what goes before it is asked for.
        """
        there = list(islice(self._catalog.queues.values(), start, None))
        return (self._queue_facts(queue) for queue in there if not queue.deleted)

    def queue_names(self) -> list[str]:
        """Of all that `queues` has."""
        return list(self._catalog.queues)

    def exchange_names(self) -> list[str]:
        """Of all exchanges."""
        return list(self._catalog.exchanges)

    @property
    def queue_count(self) -> int:
        """How many queues there are."""
        return len(self._catalog.queues)

    def queue(self, name: object) -> Facts:
        """One queue. Raises NotFound."""
        return self._queue_facts(self.configuration.queue(checked_name(name, "name")))

    def has_queue(self, name: object) -> bool:
        """Whether there is one of that name, which may be anything."""
        return isinstance(name, str) and name in self._catalog.queues

    def check_queue(self, name: object, arguments: object = None) -> Facts:
        """Whether arguments and name of a new queue make sense; nothing is made. Raises InvalidArgument."""
        checked = checked_name(name, "name")
        QueueArguments.parse(checked_arguments(arguments))
        return {"name": checked, "is_there": self.has_queue(checked)}

    def create_queue(self, name: object, arguments: object = None, created_by: str = "") -> Outcome[Facts]:
        """Make a queue, or find it there with the same arguments. Raises AlreadyExists, InvalidArgument, LimitReached,
        NotFound.

        `created_by`: the user for whom it is made, if that is counted.
        """
        given, checked = with_creator(checked_arguments(arguments), created_by), checked_name(name, "name")

        def ask() -> CommitToken:
            self.configuration.declare_queue(checked, given)
            return self.configuration.written

        def look() -> Facts:
            return self._queue_facts(self.configuration.queue(checked))

        try:
            written = ask()
        except BeingMade as being_made:
            return Pending(Making(ask, being_made), self.resources.replicated.log, look)
        return Done(look(), written)

    def update_queue(self, name: object, arguments: object = None, most_moved: int | None = None) -> Done[Facts]:
        """Change these arguments; a None among them takes one away. Raises NotFound, InvalidArgument, InUse.

        `most_moved`: messages and bindings that may get another replication level; None: all.
        """
        if arguments is None:
            raise InvalidArgument("arguments are missing: give those that change, with nothing for one that goes away")
        given = checked_arguments(arguments)
        queue = self.configuration.update_queue(checked_name(name, "name"), given, most_moved)
        facts = self._queue_facts(queue)
        if self.resources.replication.counts_later:
            asked = {**queue.arguments.given, **given}
            facts["arguments"] = {key: value for key, value in asked.items() if value is not None}
        return self._done(facts)

    def delete_queue(self, name: object, if_empty: object = False, if_unused: object = False) -> Pending[Facts]:
        """Delete a queue; its messages go to its alternate exchange, or away. Raises NotFound, InUse."""
        conditions = {"if_empty": checked_flag(if_empty, "if_empty"), "if_unused": checked_flag(if_unused, "if_unused")}
        deletion = self.configuration.delete_queue(checked_name(name, "name"), **conditions)
        return Pending(deletion, self.resources.replicated.log, lambda: {"name": deletion.queue.name})

    def purge_queue(self, name: object) -> Pending[int]:
        """Drop what nobody has acquired; how many messages that were. Raises NotFound."""
        purge = self.resources.purges.begin(self.configuration.queue(checked_name(name, "name")))
        return Pending(purge, self.resources.replicated.log, lambda: purge.count)

    # --- exchanges

    def exchanges(self) -> Iterator[Facts]:
        """All exchanges with their bindings, in the order in which they were made: as `queues`."""
        return (_exchange_facts(self._catalog, exchange) for exchange in self._exchanges_from(0))

    def exchange_outlines(self, start: int) -> Iterator[Facts]:
        """The facts of `exchanges` from number `start` on, with the number of their bindings only."""
        return map(_exchange_outline, self._exchanges_from(start))

    def _exchanges_from(self, start: int) -> Iterator[Exchange]:
        there = list(islice(self._catalog.exchanges.values(), start, None))
        return (exchange for exchange in there if self._catalog.exchanges_by_id.get(exchange.id) is exchange)

    def exchange_outline(self, name: object) -> Facts:
        """One exchange with the number of its bindings, which there may be very many of. Raises NotFound."""
        return _exchange_outline(self.configuration.exchange(checked_name(name, "name")))

    def exchange(self, name: object) -> Facts:
        """One exchange with its bindings. Raises NotFound."""
        return _exchange_facts(self._catalog, self.configuration.exchange(checked_name(name, "name")))

    def create_exchange(self, name: object, kind: object, arguments: object = None) -> Done[Facts]:
        """Make an exchange, or find the same one there, with the number of its bindings.

        Raises AlreadyExists, InvalidArgument, NotFound.
        """
        given = checked_arguments(arguments, check_exchange_arguments)
        checked = checked_name(name, "name"), checked_name(kind, "kind"), given
        return self._done(_exchange_outline(self.configuration.declare_exchange(*checked)))

    def delete_exchange(self, name: object, if_unused: object = False) -> Done[Facts]:
        """Delete an exchange with its bindings. Raises NotFound, InUse."""
        checked = checked_name(name, "name")
        self.configuration.delete_exchange(checked, if_unused=checked_flag(if_unused, "if_unused"))
        return self._done({"name": checked})

    # --- bindings

    def bindings(self, start: int = 0) -> Iterator[Facts]:
        """Every binding of every exchange, from number `start` on: {"exchange", "queue", "key", "arguments"}."""
        for exchange in self._exchanges_from(0):
            for facts in _bindings_of(self._catalog, exchange, start):
                yield {"exchange": exchange.name, **facts}
            start = max(start - len(exchange), 0)

    @property
    def binding_count(self) -> int:
        """How many bindings there are."""
        return sum(map(len, self._catalog.exchanges.values()))

    def binding(self, exchange: object, queue: object, key: object) -> Facts | None:
        """One binding; None when there is none with that key. Raises NotFound when queue or exchange are missing."""
        source = self.configuration.exchange(checked_name(exchange, "exchange"))
        target = self._catalog.bindable_named(checked_name(queue, "queue"))
        wanted = (target.id, checked_routing_key(key))
        binding = source.binding(*wanted)
        return None if binding is None else {"exchange": source.name, **_binding_facts(self._catalog, binding)}

    def bind(self, exchange: object, queue: object, key: object = "", arguments: object = None) -> Done[Facts]:
        """Bind, or give the binding with that key other arguments. Raises NotFound, InvalidArgument."""
        source, target = checked_name(exchange, "exchange"), checked_name(queue, "queue")
        is_by_headers = self.configuration.exchange(source).kind is ExchangeKind.HEADERS
        check = take_any if is_by_headers else check_binding_arguments
        checked_key, checked = checked_routing_key(key), checked_arguments(arguments, check)
        self.configuration.bind(source, target, checked_key, checked)
        return self._done({"exchange": source, "queue": target, "key": checked_key, "arguments": dict(checked)})

    def unbind(self, exchange: object, queue: object, key: object = "") -> Done[Facts]:
        """Take a binding away. Raises NotFound."""
        source, target = checked_name(exchange, "exchange"), checked_name(queue, "queue")
        checked_key = checked_routing_key(key)
        self.configuration.unbind(source, target, checked_key)
        return self._done({"exchange": source, "queue": target, "key": checked_key})

    def _done(self, result: Result) -> Done[Result]:
        return Done(result, self.configuration.written)

    def _queue_facts(self, queue: Queue) -> Facts:
        readable_lsn, next_ms = committed_lsn(self.resources, queue), queue.messages.schedule.next_ms
        return {
            "name": queue.name,
            "set": self.resources.name,
            "messages": queue.messages.count,
            "bytes": queue.messages.size,
            "acquired": queue.messages.acquired,
            "scheduled": queue.messages.schedule.count,
            "next_due_ms": None if next_ms is None else self.resources.catalog.clock.steady_ms(next_ms),
            "consumers": len(queue.dispatcher.consumers),
            "enqueued": queue.messages.enqueued_total,
            "dequeued": queue.messages.dequeued_total,
            "id": queue.id,
            "newest_message": queue.messages.newest_id(readable_lsn),
            "log_position": readable_lsn,
            "arguments": dict(queue.arguments.given),
            **taking_over(self.resources),
            **self.resources.replication.facts_of(queue),
        }


def _exchange_outline(exchange: Exchange) -> Facts:
    arguments = dict(exchange.arguments)
    return {"name": exchange.name, "kind": exchange.kind.value, "arguments": arguments, "bindings": len(exchange)}


def _exchange_facts(catalog: Catalog, exchange: Exchange) -> Facts:
    return {**_exchange_outline(exchange), "bindings": _bindings_of(catalog, exchange)}


def _bindings_of(catalog: Catalog, exchange: Exchange, start: int = 0) -> Iterator[Facts]:
    """From number `start` on; one whose queue is gone is left out."""
    there, ids, placed = exchange.bindings()[start:], catalog.queues_by_id, catalog.map.queues_by_id
    return (_binding_facts(catalog, binding) for binding in there if binding.queue in ids or binding.queue in placed)


def _binding_facts(catalog: Catalog, binding: Binding) -> Facts:
    queue = catalog.bindable(binding.queue)
    return {"queue": queue.name, "key": binding.key, "arguments": dict(binding.arguments)}


def committed_lsn(resources: Resources, queue: Queue) -> int:
    """Up to where the log of its messages is committed, so that they may be browsed."""
    return min(queue.log.last_lsn, resources.sets.shown_lsn(queue))


def taking_over(resources: Resources) -> Facts:
    """What is said with figures of a queue: its messages up to `committed_lsn` may not be all that were confirmed."""
    return {"taking_over": True} if resources.replicated.may_lack_confirmed else {}


def checked_name(value: object, parameter: str) -> str:
    """Names end up in messages to others: nothing that is too long, or that a terminal would obey, gets that far."""
    text = _text(value, parameter, MAX_NAME_BYTES)
    if not text or not text.isprintable():
        raise InvalidArgument(f"{parameter} is {text!r:.80}: give 1 to {MAX_NAME_BYTES} bytes of printable text")
    return text


def checked_routing_key(value: object) -> str:
    """Of a binding or a message, as a request has it. Raises InvalidArgument."""
    return _text(value, "key", MAX_KEY_BYTES)


def _text(value: object, parameter: str, most: int) -> str:
    if not isinstance(value, str):
        given = "missing" if value is None else f"of type {type(value).__name__}"
        raise InvalidArgument(f"{parameter} is {given}: give a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{parameter} is {value!r:.80}: give a text that UTF-8 can hold") from None
    if size > most:
        raise InvalidArgument(f"{parameter} has {size} bytes: give at most {most}")
    return value


def checked_number(value: object, parameter: str) -> int:
    """As a request has it. Raises InvalidArgument."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise InvalidArgument(f"{parameter} is {value!r:.80}: give a whole number from 0 up, as a ulong")
    return int(value)


def checked_flag(value: object, parameter: str) -> bool:
    """As a request has it. Raises InvalidArgument."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{parameter} is of type {type(value).__name__}: give true or false")
    return value


def take_any(arguments: Mapping[str, object]) -> None:
    """The check of names where all are somebody's own."""


def checked_arguments(value: object, check: Callable[[Mapping[str, object]], None] = check_settable) -> Arguments:
    """None is no arguments. `check`: of the names, for what they are given to; a queue. Whether the values mean
    something is for the object to say.

    Raises InvalidArgument.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"arguments are of type {type(value).__name__}: give a map of names and values")
    try:
        write_arguments(value)
    except ValueError as error:
        raise InvalidArgument(f"arguments cannot be kept: {error!s:.200}") from None
    check(value)
    checked: dict[str, Scalar] = value
    return checked
