"""Which of the messages that come together are plain: about each of these there is nothing to decide.

A plain message is whole, within the limit, in no transaction, and has no annotations that ask the broker for something,
no time when it expires but what its header says, and no group that its queue would have to know of. Nearly all are,
and most of a publisher begin alike, with the same header and the same annotations. So they come to their queue in runs,
at a fraction of what each by itself would cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Protocol

from qpid_ha_broker.amqp.connections.nodes import Target
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.annotations import asks_for_something
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.engine import Transfer
from qpid_ha_broker.amqp.wire.group_ids import (
    MANY,
    PROPERTIES_CODE,
    SHORT_PROPERTIES,
    UPTO_EXPIRY,
    UPTO_GROUP,
    WITHOUT_GROUP,
)
from qpid_ha_broker.amqp.wire.sections import NO_ANNOTATIONS, Header, MessageSections, annotations_end
from qpid_ha_broker.model.commands.publishing import ExchangePublisher
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import Exchange
from qpid_ha_broker.model.queues.queue import Queue

Run = tuple[list[Transfer], Header | None]
"""Transfers behind each other: plain messages with one header, or, without it, those that are not."""
Routed = tuple[Sequence[Queue], list[Transfer]]
"""Plain messages behind each other that come to the same queues of one log; no queues: each has to be looked at."""


class RoutingContainer(Protocol):
    """What is needed of the container."""

    @property
    def sections(self) -> MessageSections:
        """Its reader of messages."""

    @property
    def publisher(self) -> ExchangePublisher:
        """Who knows where exchanges lead."""


def runs_of(batch: Sequence[Transfer], sections: MessageSections, limit: int, *, detects_groups: bool) -> Iterator[Run]:
    """All of `batch`, in order. `limit`: bytes of a message. `detects_groups`: none that is of a group is plain.

    The parts of a message that came before, if there are any, are for the caller to know of.
    """
    read_header, transactional = sections.header, engine.TRANSACTIONAL
    run: list[Transfer] = []
    header: Header | None = None
    of_run: Header | None = None
    # What the message before begins with, in front of its properties. No message begins with one of no beginnings.
    head: bytes | tuple[()] = ()
    length = 0
    for transfer in batch:
        _, payload, _, state = transfer
        if not payload.startswith(head):
            try:
                header = read_header(payload)
                length, head = _beginning(payload, header.length)
            except AmqpError:
                header, head = None, ()  # whoever looks at it by itself refuses it
        is_plain = (
            header is not None
            and len(payload) <= limit
            and state != transactional
            and (
                (start := payload[length + 2 : length + 4]) in WITHOUT_GROUP
                or _has_plain_properties(sections, payload, length, start, detects_groups)
            )
        )
        its_header = header if is_plain else None
        if its_header is not of_run:
            if run:
                yield run, of_run
                run = []
            of_run = its_header
        run.append(transfer)
    if run:
        yield run, of_run


def _beginning(payload: bytes, start: int) -> tuple[int, bytes | tuple[()]]:
    """Where the header, which ends at `start`, and annotations end, if these ask for nothing; and what another message
    begins with of which the same is true. (): it is said of this one alone."""
    following = payload[start + 2 : start + 3]
    if following in NO_ANNOTATIONS:
        return start, payload[: start + 3]
    end = annotations_end(payload, start)
    if not 0 < end <= len(payload) or asks_for_something(payload, start, end):
        return start, ()
    return end, payload[:end]


def _has_plain_properties(
    sections: MessageSections, payload: bytes, length: int, start: bytes, detects_groups: bool
) -> bool:
    """Whether properties come behind the header of `length` bytes, of which none makes a message other than plain.
    `start`: how they begin, behind two bytes."""
    fields = payload[length + 5 : length + 6] if start == SHORT_PROPERTIES else MANY
    return (
        start[:1] == PROPERTIES_CODE
        and (fields <= UPTO_GROUP or not detects_groups)
        and (fields <= UPTO_EXPIRY or not sections.absolute_expiry(payload, length))
    )


def by_route(run: list[Transfer], target: Target, container: RoutingContainer) -> Iterator[Routed]:
    """All of a run of plain messages for an exchange, in order, by where they go."""
    exchange, publisher = target.node, container.publisher
    if not (isinstance(exchange, Exchange) and target.hosted.is_there(exchange)):
        yield (), run
        return
    if target.key is not None:
        yield publisher.plain_route(exchange, target.key), run
        return
    read_key = container.sections.routing_key
    routes: dict[str, Sequence[Queue]] = {}

    def route(transfer: Transfer) -> Sequence[Queue]:
        try:
            key = read_key(transfer[1])
        except (ModelError, AmqpError):  # whoever looks at it by itself refuses it
            return ()
        queues = routes.get(key)
        if queues is None:
            queues = routes[key] = publisher.plain_route(exchange, key)
        return queues

    for queues, routed in groupby(run, route):
        yield queues, list(routed)
