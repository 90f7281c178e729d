"""The configuration of a cluster as one value: what a primary shows to a backup that cannot follow its stream.

Only what is of the set itself is in it. What is of a broker's own set, `local`, is nobody else's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple, get_args

from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, decode, encode
from qpid_ha_broker.events.layout import is_local_lsn
from qpid_ha_broker.ha.frames import Objects
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import Binding, Exchange, make_exchange
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, Replicate, replication_argument
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.replication import has_replicated_messages, is_local, is_local_binding
from qpid_ha_broker.model.sessions import SessionRegistry
from qpid_ha_broker.model.sets.catalog import Catalog
from qpid_ha_broker.model.sets.state import SetState

_MAP_EVENTS = get_args(ev.MapEvent)
_SESSION_EVENTS = get_args(ev.SessionEvent)


class ObjectsError(Exception):
    """Bytes that are no configuration: what was expected, and what was found."""


class Configured(NamedTuple):
    """A frame of objects, read and checked: ids are unique, names are, and bindings lead from and to what is there."""

    frame: Objects
    queues: dict[int, ev.QueueDeclared]
    exchanges: dict[int, ev.ExchangeDeclared]
    bindings: dict[int, list[Binding]]
    """By exchange, the oldest first."""
    producers: list[tuple[int, ev.ProducerAdvanced]]
    """In the order in which they advanced last."""
    refused: list[ev.NumbersRefused]
    map: ClusterMap
    sessions: SessionRegistry
    held: list[ev.SessionAcquired]
    """By consumers of sessions; the messages come later."""
    handed_out: list[tuple[int, ev.HandedOut]]


def objects_frame(state: SetState, generation: int, lsn: int, *, with_marks: bool = False) -> Objects:
    """Everything replicated but the messages, as of `lsn`, in an order in which it can be applied.

    `with_marks`: also how far queues were handed out, which an older release cannot read.
    """
    queues = state.queues()
    return Objects(
        generation,
        lsn,
        state.in_sync.epoch,
        state.in_sync.members,
        tuple((queue.id, queue.owner) for queue in queues if queue.used),
        tuple(queue.id for queue in queues if not has_replicated_messages(queue)),
        b"".join(_records(state, queues, lsn, with_marks=with_marks)),
    )


def _records(state: SetState, queues: list[Queue], lsn: int, *, with_marks: bool) -> Iterator[bytes]:
    exchanges = state.exchanges()
    for exchange in exchanges:
        yield encode(exchange.id, ev.ExchangeDeclared(exchange.name, exchange.kind, exchange.arguments))
    for queue in queues:
        yield encode(queue.id, ev.QueueDeclared(queue.name, queue.arguments.given))
    for map_lsn, map_event in state.map.events(lsn):
        yield encode(map_lsn, map_event)
    for exchange in exchanges:
        for binding in _replicated_bindings(state.catalog, exchange):
            yield encode(lsn, ev.Bound(exchange.id, binding.queue, binding.key, binding.arguments))
    for advanced_lsn, event in state.producers.events():
        yield encode(advanced_lsn, event)
    for session_lsn, session_event in state.sessions.events(lsn):
        yield encode(session_lsn, session_event)
    for _, acquired in state.catalog.holdings.events(is_local=False, lsn=lsn):
        yield encode(lsn, acquired)
    if with_marks:
        for mark_lsn, mark in state.marks.events(lsn, {queue.id: queue.mark for queue in queues}):
            yield encode(mark_lsn, mark)


def _replicated_bindings(catalog: Catalog, exchange: Exchange) -> list[Binding]:
    """Of a replicated exchange: one to a local queue, or one that was asked to be, is nobody else's business."""
    return [
        binding
        for binding in exchange.bindings()
        if not is_local_binding(exchange, catalog.bindable(binding.queue), binding.arguments)
    ]


def read_objects(frame: Objects) -> Configured:
    """Read and check. Raises ObjectsError."""
    records, _, problem = decode(frame.data)
    if problem is not None:
        raise ObjectsError(f"damaged at byte {problem.offset}: {problem.text}")
    objects = Configured(frame, {}, {}, {}, [], [], ClusterMap(), SessionRegistry(), [], [])
    for record in records:
        try:
            _read(objects, record)
        except (LookupError, ValueError, ModelError) as error:
            raise ObjectsError(f"LSN {record.lsn}: {error}") from error
    unknown = {queue_id for queue_id, _ in frame.used}.union(frame.unreplicated) - objects.queues.keys()
    if unknown:
        raise ObjectsError(f"no queue has the ids {sorted(unknown)[:5]}")
    if len(_names(objects)) < len(objects.queues) + len(objects.exchanges) + len(objects.map.queues):
        raise ObjectsError("two of them have the same name")
    _check_producers(objects.producers)
    strangers = {event.producer for event in objects.refused} - {event.producer for _, event in objects.producers}
    if strangers:
        raise ObjectsError(f"numbers of producers were refused that are not here: {sorted(strangers)[:5]}")
    return objects


def _check_producers(producers: list[tuple[int, ev.ProducerAdvanced]]) -> None:
    lsns = [lsn for lsn, _ in producers]
    if lsns != sorted(set(lsns)):
        raise ObjectsError("producers are not in the order in which they advanced")
    names = {event.producer for _, event in producers}
    if len(names) < len(producers) or any(event.kept < len(producers) for _, event in producers):
        raise ObjectsError(f"of {len(producers)} producers, some come twice or would not be kept")


def _names(objects: Configured) -> set[str]:
    declared = {event.name for kind in (objects.queues, objects.exchanges) for event in kind.values()}
    return declared.union(objects.map.queues)


def _read(objects: Configured, record: LogRecord) -> None:
    lsn, event, _ = record
    if not 0 < lsn <= objects.frame.lsn or is_local_lsn(lsn):
        raise ValueError(f"expected nothing after {objects.frame.lsn}, and nothing local")
    makes_object = isinstance(event, ev.QueueDeclared | ev.ExchangeDeclared | ev.QueuePlaced)
    if makes_object and (lsn in objects.queues or lsn in objects.exchanges or lsn in objects.map.queues_by_id):
        raise ValueError("expected the id of another object")
    if isinstance(event, ev.QueueDeclared):
        QueueArguments.parse(event.arguments)
        objects.queues[lsn] = event
    elif isinstance(event, ev.ExchangeDeclared):
        make_exchange(event.kind, 0, event.name, event.arguments)
        objects.exchanges[lsn] = event
    elif isinstance(event, ev.Bound):
        is_queue = event.queue in objects.queues or event.queue in objects.map.queues_by_id
        if not is_queue or event.exchange not in objects.exchanges:
            raise ValueError(f"a binding from {event.exchange} to {event.queue}, one of which is not here")
        if replication_argument(event.arguments) is Replicate.NONE:
            raise ValueError("a binding that is not replicated")
        binding = Binding(event.queue, event.key, event.arguments)
        make_exchange(objects.exchanges[event.exchange].kind, 0, "", {}).bind(binding)
        objects.bindings.setdefault(event.exchange, []).append(binding)
    elif isinstance(event, ev.ProducerAdvanced):
        objects.producers.append((lsn, event))
    elif isinstance(event, ev.NumbersRefused):
        objects.refused.append(event)
    elif isinstance(event, _MAP_EVENTS):
        objects.map.apply(lsn, event)
    elif isinstance(event, _SESSION_EVENTS):
        objects.sessions.apply(lsn, event)
    elif isinstance(event, ev.SessionAcquired):
        if event.queue not in objects.queues or event.queue in objects.frame.unreplicated:
            raise ValueError(f"messages of queue {event.queue}, which are not here, are held for {event.name}")
        objects.held.append(event)
    elif isinstance(event, ev.HandedOut):
        if event.queue and event.queue not in objects.queues:
            raise ValueError(f"a mark of queue {event.queue}, which is not here")
        objects.handed_out.append((lsn, event))
    else:
        raise ValueError(f"expected what is no message, found {type(event).__name__}")


def make_equal(state: SetState, objects: Configured) -> list[tuple[str, list[Entry]]]:
    """Let what is replicated be `objects` and nothing else; what stays keeps its messages.

    Returns messages that only this broker had, by queue: of queues that had to make way for a replicated object of the
    same name, or whose messages are replicated now.
    """
    catalog = state.catalog
    for queue in state.queues():
        if queue.id not in objects.queues:
            catalog.forget_queue(queue)
    for exchange in state.exchanges():
        if exchange.id not in objects.exchanges:
            catalog.forget_exchange(exchange)
    lost = [(queue.name, _messages(queue)) for queue in _displaced(state, objects)]
    state.replace_map(objects.map)
    for exchange_id, declared in objects.exchanges.items():
        if exchange_id not in catalog.exchanges_by_id:
            state.apply(exchange_id, declared)
    for queue_id, event in objects.queues.items():
        _make_queue(state, queue_id, event, queue_id not in objects.frame.unreplicated)
    for exchange_id in objects.exchanges:
        _make_bindings(catalog, catalog.exchanges_by_id[exchange_id], objects.bindings.get(exchange_id, []))
    _set_marks(state, objects)
    return lost


def _displaced(state: SetState, objects: Configured) -> Iterator[Queue]:
    names = _names(objects)
    for queue in state.catalog.queues.values():
        if is_local(queue):
            displaced = queue.name in names
        else:
            displaced = not has_replicated_messages(queue) and queue.id not in objects.frame.unreplicated
        if displaced:
            yield queue


def _messages(queue: Queue) -> list[Entry]:
    return sorted(queue.messages, key=attrgetter("id"))


def _make_queue(state: SetState, queue_id: int, event: ev.QueueDeclared, messages: bool) -> None:
    queue = state.catalog.queues_by_id.get(queue_id)
    if queue is None:
        state.apply(queue_id, event)
    elif dict(queue.arguments.given) != dict(event.arguments):
        state.apply(queue_id, ev.QueueUpdated(queue_id, event.arguments))
    queue = state.catalog.queues_by_id[queue_id]
    if has_replicated_messages(queue) != messages:
        state.apply(queue_id, ev.ReplicationChanged(queue_id, messages))


def _make_bindings(catalog: Catalog, exchange: Exchange, wanted: list[Binding]) -> None:
    here = _replicated_bindings(catalog, exchange)
    if here == wanted:
        return
    for binding in here:
        exchange.unbind(binding.queue, binding.key)
    for binding in wanted:
        exchange.bind(binding)


def _set_marks(state: SetState, objects: Configured) -> None:
    owners = dict(objects.frame.used)
    for queue_id in objects.queues:
        queue = state.catalog.queues_by_id[queue_id]
        queue.used, queue.owner = queue_id in owners, owners.get(queue_id, "")
    state.in_sync = ev.InSyncChanged(objects.frame.epoch, objects.frame.members)
    state.producers.clear()
    for lsn, event in objects.producers:
        state.producers.advanced(lsn, event)
    for refused in objects.refused:
        state.producers.were_refused(refused)
    state.sessions.replace(objects.sessions)
    state.marks.forget()
    for queue_id in objects.queues:
        state.catalog.queues_by_id[queue_id].mark.told(0, objects.frame.lsn)
    for lsn, mark in objects.handed_out:
        state.apply(lsn, mark)
