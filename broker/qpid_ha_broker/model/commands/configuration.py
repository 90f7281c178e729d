"""Commands that make, change and delete queues, exchanges and bindings, in the resource set that their level says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from qpid_ha_broker.cluster_map import TOMBSTONE_OF, PlacedQueue
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.model.commands.deletion import MOVED_LENGTH, Deletion
from qpid_ha_broker.model.commands.naming import Naming, NamingRules, NewQueue, choose_set
from qpid_ha_broker.model.commands.unplaced import UnplacedNames
from qpid_ha_broker.model.errors import (
    AlreadyExists,
    InUse,
    InvalidArgument,
    NotFound,
    NotPrimary,
    NotSupported,
    OtherSet,
)
from qpid_ha_broker.model.exchanges.broker_events import EVENTS_ADDRESS, EventSubject, Fact, is_for_events
from qpid_ha_broker.model.exchanges.exchange import (
    NO_LOCAL_ARGUMENT,
    SELECTOR_ARGUMENT,
    Binding,
    Exchange,
    make_exchange,
    selector_of,
)
from qpid_ha_broker.model.exchanges.notices import DURABLE_SUBSCRIPTION, NOTICE_EXCHANGE, is_for_notices
from qpid_ha_broker.model.logs.log import DEFAULT_SET, CommitToken
from qpid_ha_broker.model.message_reader import DeathReason, MessageReader
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, Replicate, check_in_group
from qpid_ha_broker.model.replication import (
    STANDARD_EXCHANGES,
    Rules,
    exchange_level,
    is_local,
    is_local_binding,
    level_by_rule,
    queue_level,
)
from qpid_ha_broker.model.sets.catalog import Catalog
from qpid_ha_broker.model.sets.level_change import LevelChange
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.work import Task

MAX_NAME_BYTES = 1024


class ConfigurationChange(NamedTuple):
    """What was done, in an operator's words. `transient`: to something that deletes itself."""

    text: str
    transient: bool
    subject: EventSubject
    facts: Mapping[str, Fact]
    """For who watches: see `exchanges.broker_events`."""


class RemoteNames:
    """What the broker's own configuration says of nodes of other brokers; without, nothing."""

    names: frozenset[str] = frozenset()
    """Under which it has some: no queue or exchange may be called so."""

    def check(self, argument: str, url: str) -> None:
        """Whether a queue may have that argument, for a node there. Raises InvalidArgument."""


class Configuration:
    """Commands on the objects of `resources`: each is refused with a reason, or written and done.

    In a group it is submitted, and counts or is skipped when it is delivered: `written` has the outcome.
    """

    def __init__(self, resources: Resources) -> None:
        self._is_default = resources.name == DEFAULT_SET
        self._resources = resources
        self._catalog = resources.catalog
        self._replication, self._sets = resources.replication, resources.sets
        self.changed: Callable[[], None] = lambda: None
        """Called when `take_changes` has something more."""
        self._changes: list[ConfigurationChange] = []
        self._submitted: list[tuple[CommitToken, ConfigurationChange]] = []
        """To a group: those that may not count, yet or ever."""
        self._deletions: dict[Queue, Deletion] = {}
        """Those that go on."""
        self._unplaced = UnplacedNames()
        self._unit: CommitToken | None = None
        self._levels = LevelChange(resources.sets, log_acquisitions=resources.log_acquisitions)
        self.rules: Rules = ()
        self.default_replication = Replicate.MESSAGES
        self.naming = NamingRules()
        self.remote = RemoteNames()
        self.check_creator: Callable[[str], None] = lambda created_by: None
        """Whether one more queue, of whichever set, may be made for that user. Raises LimitReached."""

    def replication_for(self, name: str) -> Replicate:
        """The level of a queue or exchange of that name that does not ask for one itself."""
        return level_by_rule(name, self.rules, self.default_replication)

    def set_replication(self, rules: Rules, default: Replicate) -> list[str]:
        """Change the rules, and the level of what they are about; returns what that came to, in an operator's words.

        What asked for its level itself keeps it. Nobody who publishes or consumes is disturbed.
        """
        self.rules, self.default_replication = tuple(rules), default
        if self._replication.read_only:
            return [f"nothing is moved here: {self._replication.read_only}"]
        notes = [self._revise_exchange(exchange) for exchange in self._catalog.exchanges.values()]
        notes += [self._revise_queue(queue) for queue in self._catalog.queues.values()]
        return [note for note in notes if note] or ["no queue or exchange has another level now"]

    def _revise_exchange(self, exchange: Exchange) -> str:
        level = exchange_level(exchange.name, exchange.arguments, self.replication_for(exchange.name))
        local = level is Replicate.NONE
        if local is is_local(exchange):
            return ""
        self._levels.move_exchange(exchange, local=local)
        return f"exchange {exchange.name} is {'no longer replicated' if local else 'replicated now'}"

    def _revise_queue(self, queue: Queue) -> str:
        before, level = queue.replication, queue_level(queue.arguments, self.replication_for(queue.name))
        if queue.arguments.replicate is not None or level is before:
            return ""
        obstacle = self._levels.obstacle(queue, level)
        if obstacle:
            return obstacle
        self._move_queue(queue, level)
        return f"queue {queue.name} went from {before} to {level}; messages in it: {queue.messages.count}"

    def _move_queue(self, queue: Queue, level: Replicate) -> None:
        self._resources.purges.finish(queue)
        self._levels.move_queue(queue, level)

    def take_changes(self) -> list[ConfigurationChange]:
        """What was done since the last call, for the operator's log."""
        if self._submitted:
            waiting, self._submitted = self._submitted, []
            for written, change in waiting:
                if written.is_committed:
                    self._changes.append(change)
                elif written.failure is None:
                    self._submitted.append((written, change))
        if self._deletions and self._replication.counts_later:
            self._deletions = {queue: deletion for queue, deletion in self._deletions.items() if not deletion.is_over}
        changes, self._changes = self._changes, []
        return changes

    @property
    def written(self) -> CommitToken:
        """What to wait for so that what the last command came to, or has found, is committed. In a group it may fail:
        others were faster."""
        return self._resources.written if self._unit is None else self._unit

    def _begin(self) -> None:
        """Raises NotPrimary."""
        self._replication.check_writable()
        self._unit = None

    def queue(self, name: str) -> Queue:
        """Raises NotFound, also for a tombstone."""
        if name not in self._catalog.queues or self._catalog.queues[name].arguments.tombstone_of:
            placed = self._catalog.map.queues.get(name)
            where = "" if placed is None else f" in this resource set: it is in {placed.set}"
            raise NotFound(f"there is no queue {name}{where}")
        return self._catalog.queues[name]

    def exchange(self, name: str) -> Exchange:
        """Raises NotFound."""
        if name not in self._catalog.exchanges:
            raise NotFound(f"there is no exchange {name}")
        return self._catalog.exchanges[name]

    def set_of(self, name: str, arguments: Arguments) -> Naming:
        """In which resource set a new queue of that name is to be declared. Raises InvalidArgument."""
        parsed = QueueArguments.parse(arguments)
        _check_outside(self.remote, parsed)
        return choose_set(NewQueue(name, parsed, self._level_of(name, parsed)), self.naming, self._catalog.map)

    def _level_of(self, name: str, arguments: QueueArguments) -> Replicate:
        if self._is_default:
            return queue_level(arguments, self.replication_for(name))
        if arguments.replicate not in (None, Replicate.MESSAGES):
            text = f"queues of other resource sets than {DEFAULT_SET} are replicated with their messages"
            raise InvalidArgument(f"qpid.replicate={arguments.replicate}: {text}")
        return Replicate.MESSAGES

    def declare_queue(self, name: str, arguments: Arguments, *, by_rule: bool = True) -> Queue:
        """Make a queue, or find it there with the same arguments.

        `by_rule`: it belongs to the set that the rules say; else here, whatever they say. Raises AlreadyExists,
        InvalidArgument, LimitReached, NotFound, OtherSet; in a group BeingMade.
        """
        self._begin()
        parsed = QueueArguments.parse(arguments)
        if name in self._catalog.queues:
            there = self._catalog.queues[name]
            if self.deletion_of(there) is not None and there.locked:
                raise InUse(there.locked)
            if there.deleted or there in self._deletions:
                raise InUse(f"queue {name} is being deleted: try again")
            if not parsed.means_the_same_as(there.arguments):
                raise AlreadyExists(f"queue {name} exists with other arguments: {dict(there.arguments.given)}")
            return there
        self._unplaced.check(name)
        self._check_new_name(name, is_subscription=bool(parsed.subscription))
        self._check_set(parsed)
        if parsed.created_by:
            self.check_creator(parsed.created_by)
        if by_rule and self._is_default:
            naming = self.set_of(name, arguments)
            if naming.set != DEFAULT_SET:
                raise OtherSet(f"queue {name} belongs to resource set {naming.set}, not to {DEFAULT_SET}: {naming.why}")
        if parsed.alternate_exchange:
            self._check_dead_letters(self.exchange(_alternate(parsed.alternate_exchange)))
        _check_outside(self.remote, parsed)
        level = self._level_of(name, parsed)
        written = self._write_declared(ev.QueueDeclared(name, dict(arguments)), level)
        self._note(parsed, f"queue {name} created{_shown(arguments)}", EventSubject.QUEUE_CREATED, name=name)
        if self._replication.counts_later:
            raise self._unplaced.submitted(name, written)
        return self._catalog.queues[name]

    def update_queue(self, name: str, changes: Arguments, most_moved: int | None = None) -> Queue:
        """Change the given arguments; a None takes one away. What fixes the order of messages cannot change.

        `most_moved`: messages and bindings that may get another level; None: all. Raises NotFound, InvalidArgument,
        InUse.
        """
        self._begin()
        queue = self.queue(name)
        merged = {**queue.arguments.given, **changes}
        arguments = {key: value for key, value in merged.items() if value is not None}
        after = QueueArguments.parse(arguments)
        self._check_set(after)
        before = queue.arguments
        if (after.shares, after.last_value_queue_key) != (before.shares, before.last_value_queue_key):
            raise InvalidArgument(f"the order of {name} is fixed: delete the queue and create it with other arguments")
        if after.alternate_exchange:
            self._check_dead_letters(self.exchange(_alternate(after.alternate_exchange)))
        if (after.resource_set, after.cluster_primary, after.min_replicas) != (
            before.resource_set,
            before.cluster_primary,
            before.min_replicas,
        ):
            raise InvalidArgument(f"queue {name} stays in its resource set: what names it cannot change")
        if after.cluster_proxy != before.cluster_proxy:
            raise InvalidArgument(f"what {name} stands for is fixed: delete it and create it with another URL")
        if after.cluster_source != before.cluster_source:
            _check_takes_others(self._catalog, queue)
            _check_outside(self.remote, after)
        level = self._level_of(name, after) if "qpid.replicate" in changes else queue.replication
        if obstacle := self._levels.obstacle(queue, level, most_moved):
            raise InUse(obstacle)
        _check_record(ev.QueueUpdated(queue.id, arguments))
        if level is not queue.replication:
            self._move_queue(queue, level)
        self._write(ev.QueueUpdated(queue.id, arguments), local=is_local(queue))
        self._note(queue.arguments, f"queue {name} changed:{_shown(arguments)}", EventSubject.QUEUE_CHANGED, name=name)
        if after.auto_delete:
            self._resources.timers.watch(queue)
        return queue

    def delete_queue(
        self, name: str, *, if_empty: bool = False, if_unused: bool = False, tombstone_of: int = 0
    ) -> Deletion:
        """Delete a queue; its messages go to the alternate exchange if it has one. Raises NotFound, InUse.

        If these are more than a portion, its consumers lose it at once, nobody publishes to it, and the queue goes with
        the last message. `tombstone_of`: of that entry of the directory it is a tombstone from now on.
        """
        self._begin()
        queue = self.queue(name)
        if if_empty and queue.messages.count:
            raise InUse(
                f"queue {name} holds {counted(queue.messages.count, 'message')}: purge it first, or do not ask for"
                " if-empty"
            )
        if if_unused and queue.dispatcher.consumers:
            raise InUse(
                f"queue {name} has {counted(len(queue.dispatcher.consumers), 'consumer')}: stop them, or do not ask for"
                " if-unused"
            )
        if if_unused and self._replication.is_used_elsewhere(queue):
            text = "stop its consumers, or do not ask for if-unused"
            raise InUse(f"queue {name} has consumers at another member of the group: {text}")
        going_on = self.deletion_of(queue)
        if going_on is not None:
            return going_on
        messages = queue.messages.count
        queue.use_strategy(None)  # whose copy it was, who deletes it here decides about its messages
        deletion = Deletion(queue)
        alternate = queue.arguments.alternate_exchange
        moves = self._catalog.alternate(alternate) is not None
        if tombstone_of:
            self._write(ev.QueueUpdated(queue.id, {**queue.arguments.given, TOMBSTONE_OF: tombstone_of}))
            if not self._replication.counts_later:
                self._catalog.deleted_queues.append(queue)
            self._written(deletion)
        elif not moves or queue.messages.count <= MOVED_LENGTH:
            self._resources.reject(queue, list(queue.messages) if moves else [], DeathReason.QUEUE_DELETED)
            self._finish(deletion)
        else:
            queue.lock(f"queue {name} is being deleted: its messages are on their way to exchange {alternate}")
            self._catalog.deleted_queues.append(queue)
            self._deletions[queue] = deletion
            self._resources.work.add(self._move_and_delete(deletion))
        note = f"queue {name} deleted; messages in it: {messages}"
        self._note(queue.arguments, note, EventSubject.QUEUE_DELETED, name=name, messages=messages)
        return deletion

    def _move_and_delete(self, deletion: Deletion) -> Task:
        queue, resources = deletion.queue, self._resources
        for entries in deletion.portions():
            if queue.deleted or resources.replication.read_only:
                break
            resources.reject(queue, entries, DeathReason.QUEUE_DELETED)
            yield
        del self._deletions[queue]
        if queue.deleted:
            deletion.written = resources.written
        elif resources.replication.read_only:
            queue.lock("")
            text = f"queue {queue.name} is there with what has not been moved: {resources.replication.read_only}"
            deletion.failure = NotPrimary(text)
        else:
            self._finish(deletion)

    def _finish(self, deletion: Deletion) -> None:
        queue = deletion.queue
        self._write(ev.QueueDeleted(queue.id), local=is_local(queue))
        self._written(deletion)

    def _written(self, deletion: Deletion) -> None:
        deletion.written = self.written
        if self._replication.counts_later:
            self._deletions[deletion.queue] = deletion

    def deletion_of(self, queue: Queue) -> Deletion | None:
        """What was asked here and goes on; what has come to its end in a group is forgotten."""
        deletion = self._deletions.get(queue)
        if deletion is not None and deletion.is_over:
            del self._deletions[queue]
            return None
        return deletion

    def declare_exchange(self, name: str, kind: str, arguments: Arguments) -> Exchange:
        """Make an exchange, or find the same one there. Raises AlreadyExists, InvalidArgument, NotFound; in a group
        BeingMade."""
        self._begin()
        there = self._catalog.exchanges.get(name)
        if there is not None:
            if (there.kind, dict(there.arguments)) != (kind, dict(arguments)):
                raise AlreadyExists(f"exchange {name} exists as {there.kind} with {dict(there.arguments)}")
            return there
        self._unplaced.check(name)
        self._check_new_name(name)
        if arguments.get("qpid.alternate_exchange"):
            alternate = self.exchange(_alternate(str(arguments["qpid.alternate_exchange"])))
            if _is_for_dead_letters(self._catalog, {name}):
                self._check_dead_letters(alternate)
        try:
            make_exchange(kind, 0, name, arguments)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
        local = exchange_level(name, arguments, self.replication_for(name)) is Replicate.NONE
        written = self._write(ev.ExchangeDeclared(name, kind, dict(arguments)), local=local)
        note = f"{kind} exchange {name} created{_shown(arguments)}"
        self._note(None, note, EventSubject.EXCHANGE_CREATED, name=name, kind=kind)
        if self._replication.counts_later:
            raise self._unplaced.submitted(name, written)
        return self._catalog.exchanges[name]

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Raises NotFound, InUse (standard exchanges, alternates in use, bindings where it had to be unused)."""
        self._begin()
        exchange = self.exchange(name)
        if name in STANDARD_EXCHANGES:
            raise InUse(f"{name} is a standard exchange: it stays")
        users = [queue.name for queue in self._catalog.queues.values() if queue.arguments.alternate_exchange == name]
        users += [
            e.name for e in self._catalog.exchanges.values() if e.arguments.get("qpid.alternate_exchange") == name
        ]
        if users:
            raise InUse(f"exchange {name} is the alternate exchange of {', '.join(users[:5])}")
        if if_unused and exchange.bindings():
            raise InUse(f"exchange {name} has {counted(len(exchange.bindings()), 'binding')}")
        self._write(ev.ExchangeDeleted(exchange.id), local=is_local(exchange))
        self._note(None, f"exchange {name} deleted", EventSubject.EXCHANGE_DELETED, name=name)

    def bind(self, exchange: str, queue: str, key: str, arguments: Arguments) -> None:
        """Raises NotFound, InvalidArgument, LimitReached, InUse."""
        self._begin()
        target, source = self._catalog.bindable_named(queue), self.exchange(exchange)
        if isinstance(target, PlacedQueue):
            _check_placed(self._catalog, source, target)
        if exchange != NOTICE_EXCHANGE:
            _check_takes_others(self._catalog, target)
        local = is_local_binding(source, target, arguments)
        try:
            make_exchange(source.kind, 0, exchange, {}).bind(Binding(target.id, key, arguments))
            _check_conditions(self._catalog.reader, arguments)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
        bound = ev.Bound(source.id, target.id, key, dict(arguments))
        _check_record(bound)
        there = source.binding(target.id, key)
        if there is None or there.arguments != arguments:
            source.check_room(Binding(target.id, key, arguments))
        # The other way round it is replaced: were it to go first, it might be in neither log.
        if there is not None and local and not is_local_binding(source, target, there.arguments):
            self._sets.local_log.join()
            self._write(ev.Unbound(source.id, target.id, key))
        self._write(bound, local=local)
        note = f"queue {queue} bound to {exchange} with the key {key!r}{_shown(arguments)}"
        self._note(_here(target), note, EventSubject.BINDING_CREATED, exchange=exchange, queue=queue, key=key)

    def unbind(self, exchange: str, queue: str, key: str) -> None:
        """Raises NotFound."""
        self._begin()
        source, target = self.exchange(exchange), self._catalog.bindable_named(queue)
        there = source.binding(target.id, key)
        if there is None:
            raise NotFound(f"{queue} is not bound to {exchange} with the key {key!r}")
        local = is_local_binding(source, target, there.arguments)
        self._write(ev.Unbound(source.id, target.id, key), local=local)
        note = f"queue {queue} unbound from {exchange} with the key {key!r}"
        self._note(_here(target), note, EventSubject.BINDING_DELETED, exchange=exchange, queue=queue, key=key)

    def _check_dead_letters(self, exchange: Exchange) -> None:
        """Raises InvalidArgument for an alternate exchange of a queue that leads, itself or by its own, elsewhere."""
        placed = self._catalog.map.queues_by_id
        if not placed:
            return
        further = self._catalog.exchanges.get(str(exchange.arguments.get("qpid.alternate_exchange", "")))
        for source in (exchange, further):
            for binding in source.bindings() if source is not None else ():
                if binding.queue in placed:
                    name, set_name = placed[binding.queue].name, placed[binding.queue].set
                    raise InvalidArgument(
                        f"dead letters cannot go from one resource set to another, and exchange {exchange.name} leads"
                        f" to queue {name} of set {set_name}: use another alternate exchange"
                    )

    def _check_set(self, arguments: QueueArguments) -> None:
        """Refuse what queues of a group cannot have, and what only those of `default` can: exchanges are there, and
        others are replicated whole."""
        set_name = self._resources.name
        why_no_delay = self._resources.replicated.state.marks.why_no_delay
        if arguments.redelivery.first_ms and why_no_delay:
            raise NotSupported(f"qpid.redelivery_delay_ms is not known everywhere: {why_no_delay}")
        if self._replication.counts_later:
            check_in_group(arguments)
        if set_name == DEFAULT_SET:
            return
        if arguments.replicate not in (None, Replicate.MESSAGES):
            text = f"qpid.replicate={arguments.replicate} is for queues of the set {DEFAULT_SET}"
            raise InvalidArgument(f"{text}: those of {set_name} are replicated with their messages, leave it out")
        if arguments.alternate_exchange:
            text = f"qpid.alternate_exchange is for queues of the set {DEFAULT_SET}, which has the exchanges"
            raise InvalidArgument(f"{text}: declare the queue there, not in {set_name}, or leave it out")

    def _check_new_name(self, name: str, *, is_subscription: bool = False) -> None:
        if not name or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES or not name.isprintable():
            raise InvalidArgument(f"a name is 1 to {MAX_NAME_BYTES} bytes of printable text, not {name[:80]!r}")
        if name.startswith("$"):
            raise InvalidArgument(f"{name}: names with $ belong to the broker")
        if is_for_events(name):
            raise InvalidArgument(f"{name}: at {EVENTS_ADDRESS} the broker tells what happens at it; use another name")
        if name.startswith(DURABLE_SUBSCRIPTION) and not is_subscription:
            text = f"{name} is a name for durable subscriptions, and whose it is could not have its own any more"
            raise InvalidArgument(f"{text}: use another name, or subscribe to the exchange")
        exchange, slash, key = name.partition("/")
        if (slash and exchange in self._catalog.exchanges) or is_for_notices(name):
            text = f"{name} is the address of the key {key!r} of exchange {exchange}, and links to it go there"
            raise InvalidArgument(f"{text}: use another name")
        if name in self.remote.names:
            raise AlreadyExists(f"the name {name} is taken: remote-nodes of the configuration has it")
        if name in self._catalog.queues or name in self._catalog.exchanges:
            raise AlreadyExists(f"the name {name} is taken: queues and exchanges share their names")
        if name in self._catalog.map.queues:
            set_name = self._catalog.map.queues[name].set
            raise AlreadyExists(f"the name {name} is taken: a queue of resource set {set_name} has it")

    def _note(self, arguments: QueueArguments | None, text: str, subject: EventSubject, **facts: Fact) -> None:
        """`arguments`: of the queue that it is about."""
        transient = arguments is not None and arguments.auto_delete
        of_queue = {} if arguments is None else {"temporary": transient}
        change = ConfigurationChange(text, transient, subject, {**facts, "set": self._resources.name, **of_queue})
        if self._unit is None:
            self._changes.append(change)
        else:
            self._submitted.append((self._unit, change))
        self.changed()

    def _write_declared(self, event: ev.QueueDeclared, level: Replicate) -> CommitToken:
        if level is not Replicate.CONFIGURATION:
            return self._write(event, local=level is Replicate.NONE)
        _check_record(event)
        replicated = self._sets.replicated
        return replicated.submit((event, ev.ReplicationChanged(replicated.log.last_lsn + 1, False)))

    def _write(self, event: ev.Event, *, local: bool = False) -> CommitToken:
        _check_record(event)
        written = (self._sets.local if local else self._sets.replicated).submit((event,))
        if self._replication.counts_later:
            self._unit = written
        return written


def _check_conditions(reader: MessageReader, arguments: Arguments) -> None:
    """Raises ValueError for what is no selector, or nobody's name."""
    name = arguments.get(NO_LOCAL_ARGUMENT, "")
    if not isinstance(name, str):
        raise ValueError(f"{NO_LOCAL_ARGUMENT} is {name!r}: give the name of a publisher, as a text")
    text = arguments.get(SELECTOR_ARGUMENT, "")
    if not isinstance(text, str):
        raise ValueError(f"{SELECTOR_ARGUMENT} is {text!r}: give a selector, as a text")
    if text := selector_of(arguments):
        reader.selector(text)


def _check_placed(catalog: Catalog, source: Exchange, target: PlacedQueue) -> None:
    """Whether a queue of another set can be bound to `source`."""
    if target.deleting:
        raise InUse(f"queue {target.name} is being deleted")
    names = {source.name}
    for exchange in catalog.exchanges.values():
        if exchange.arguments.get("qpid.alternate_exchange") == source.name:
            names.add(exchange.name)
    if _is_for_dead_letters(catalog, names):
        raise InvalidArgument(
            f"dead letters go to exchange {source.name}, and cannot go from one resource set to another: queue"
            f" {target.name} is in {target.set}; bind a queue of the set default, or use another exchange"
        )


def _is_for_dead_letters(catalog: Catalog, exchanges: set[str]) -> bool:
    return any(queue.arguments.alternate_exchange in exchanges for queue in catalog.queues.values())


def _check_record(event: ev.Event) -> None:
    try:
        encode(0, event)
    except ValueError as error:
        # Once it is in the log it is too late: every witness would be sent what cannot be written down.
        raise InvalidArgument(str(error)) from error


def _alternate(name: str) -> str:
    """The name of what is to be an alternate exchange. Raises InvalidArgument for the broker's own."""
    if is_for_notices(name):
        raise InvalidArgument(f"the broker alone publishes to {name}: use another alternate exchange")
    return name


def _check_takes_others(catalog: Catalog, queue: Queue | PlacedQueue) -> None:
    """Raises InUse where something else than notices would come to who listens to those."""
    if catalog.takes_notices_alone(queue):
        raise InUse(f"{queue.name} is for notices of {NOTICE_EXCHANGE}, and nothing else comes into it: use another")


def _check_outside(remote: RemoteNames, arguments: QueueArguments) -> None:
    """Whether the queue may have to do with those nodes of other brokers. Raises InvalidArgument."""
    if arguments.bridge is not None:
        remote.check(*arguments.bridge)


def _here(target: Queue | PlacedQueue) -> QueueArguments | None:
    return target.arguments if isinstance(target, Queue) else None


def _shown(arguments: Arguments) -> str:
    return "".join(f" {name}={value}" for name, value in arguments.items())
