"""An anonymous relay at a broker that relays links: each message's `to` says which set it is for, and so which broker.

Of a set that this broker leads a message is published here, as by `IncomingLink`. For each other set there is a far
link: anonymous too, at the set's primary, with a producer of its own, and kept while the client's link is there, or
until there are many. So a client that publishes to thousands of addresses has few far links.

1. The client has the credit of a publisher here, and gets more when its messages are answered: what waits for a set
   whose primary is full or away, is never more than that.
2. Messages to one address go by one far link, in order, also when the set comes to be led here meanwhile: the rule is
   that of docs/cluster.md, "One way at a time".
3. Where it has to be asked first which set an address belongs to, all that comes behind waits, too.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import proton

from qpid_ha_broker.amqp.connections.connection import Connection, Relays
from qpid_ha_broker.amqp.connections.transactions import LINK_ENDED, SetTransaction
from qpid_ha_broker.amqp.links.incoming import IncomingLink
from qpid_ha_broker.amqp.links.relayed_links import RelayedPublisher
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits, NodeWait, WaitingAttach
from qpid_ha_broker.amqp.nodes.terminus import terminus_of_message
from qpid_ha_broker.amqp.relaying.relayer import is_elsewhere
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import (
    MESSAGE_SIZE,
    NOT_IMPLEMENTED,
    TRANSFER_LIMIT,
    AmqpError,
    as_amqp,
)
from qpid_ha_broker.amqp.wire.engine import Delivery, Sender, Transfer
from qpid_ha_broker.amqp.wire.relay import RelayRequest
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.logs.log import DEFAULT_SET

FAR_LINKS: Final = 16
"""Of one anonymous relay; beyond, those that wait for nothing are closed, the longest unused first."""


class SetPublisher(RelayedPublisher):
    """The far link of an anonymous relay to one set, with what the primary has not answered."""

    sends_settled = False
    """A message that the client has settled takes of the relay's credit until the primary has taken it."""

    def __init__(self, anonymous: AnonymousRelay, set_name: str, relays: Relays) -> None:
        super().__init__(anonymous.connection, anonymous.link, set_name, relays)
        self._anonymous = anonymous
        self.is_open = True
        relays.place(self)

    def request(self) -> RelayRequest:
        return super().request()._replace(set_name=self.set_name)

    @property
    def is_idle(self) -> bool:
        """All is answered."""
        return not self._kept and self._publishes.is_idle

    def _send(self, sender: Sender, number: int) -> None:
        self._numbers[sender.send(self._kept[number][1], number)[0]] = number

    def _dropped(self, count: int, size: int) -> None:
        super()._dropped(count, size)
        self._anonymous.answered(count)

    def transacted(self) -> None:
        self._anonymous.answered()

    def replenish(self) -> None:
        """The client's credit is its link's, for all sets."""

    def end(self, error: AmqpError) -> None:
        self._anonymous.end(error)

    def attached(self, upstream: Upstream, far: proton.Link) -> SetPublisher:
        if upstream.relays_sets:
            super().attached(upstream, far)
        else:
            text = f"the broker that leads the resource set {self.set_name} is of an older version, which takes no"
            self.detached(AmqpError(NOT_IMPLEMENTED, f"{text} anonymous relays from other brokers: upgrade it"))
        return self

    def detached(self, error: AmqpError) -> None:
        """The primary has refused or ended it: what waits is refused, or goes to who leads the set now."""
        self._left()
        if self.has_left:
            self.relayer.forget(self)
        elif is_elsewhere(error):
            self._paused(error.description)
        else:
            self.refuse(error)

    def refuse(self, error: AmqpError) -> None:
        """The client is told so of all that waits; the next message begins again."""
        for near in [self._drop(number) for number in list(self._kept)]:
            if near is not None:
                engine.reject(near, error.name, error.description)
        self.connection.touch()
        self._anonymous.drop(self)

    @property
    def most_bytes(self) -> int:
        """Of one message, as the primary says; 0: as here."""
        return 0 if self.far is None else int(self.far.remote_max_message_size)


class AnonymousRelay(IncomingLink):
    """The promise: each message is answered once, by who leads its set, and those to one address stay in order."""

    def __init__(self, connection: Connection, link: proton.Link, relays: Relays) -> None:
        self._relays = relays
        self._publishers: dict[str, SetPublisher] = {}
        """By set, the longest unused first."""
        self._held: deque[tuple[Transfer, SetTransaction | None]] = deque()
        """A message of which is asked where it goes, and what came behind it."""
        self._asking: WaitingAttach | None = None
        super().__init__(connection, link, None)
        del self.hosted.links[self]  # it goes on whoever leads, unless something waits to be committed here

    @property
    def must_end_at_once(self) -> bool:
        return False

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """Publish one message, here or where its set is led."""
        whole = self.whole(payload)
        if whole is None:
            return
        if engine.credit(self.link) < 0:
            self.end(AmqpError(TRANSFER_LIMIT, "more messages than there was credit for"))
            return
        if self._held:
            self._hold(delivery, whole, settled, state)
        else:
            self._take(delivery, whole, settled, state)

    def _hold(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        transaction = self.connection.transactions.find(delivery) if state == engine.TRANSACTIONAL else None
        if transaction is not None:
            transaction.undecided += 1
        self._held.append(((delivery, payload, settled, state), transaction))

    def _next_held(self) -> Transfer:
        transfer, transaction = self._held.popleft()
        if transaction is not None:
            transaction.undecided -= 1
        return transfer

    def _take(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        try:
            set_name = self._set_elsewhere(payload)
        except AttachWaits as waits:
            self._hold(delivery, payload, settled, state)
            self._ask(waits.wait)
        except ModelError as error:
            self.refuse(delivery, settled, state, as_amqp(error))
        except AmqpError as error:
            self.refuse(delivery, settled, state, error)
        else:
            if set_name is None:
                super().transfer(delivery, payload, settled, state)
                return
            publisher = self._publisher(set_name)
            if 0 < publisher.most_bytes < len(payload):
                text = f"a message of {len(payload)} bytes; max-message-size is {publisher.most_bytes}"
                self.refuse(delivery, settled, state, AmqpError(MESSAGE_SIZE, text))
            else:
                publisher.publish(delivery, payload, settled, state)

    def _set_elsewhere(self, payload: bytes) -> str | None:
        """The set to whose primary the message goes; None: it is published, or refused, here.

        Raises AmqpError or ModelError, and AttachWaits where that has to be asked.
        """
        container = self.connection.container
        address = container.sections.to(payload)
        if not address:
            return None
        terminus = terminus_of_message(container.sections, payload)
        meaning = self.meant_to_publish(address, terminus)
        if container.default.read_only and not container.directory.has_many_sets:
            return DEFAULT_SET
        try:
            target = container.nodes.find_meant(meaning, self._sent_by.subject, terminus)
        except ServedElsewhere as elsewhere:
            return elsewhere.set_name
        self.connection.log.note_made(target, self._sent_by.subject)
        name = target.hosted.name
        return name if name in self._publishers or self.connection.relay.is_relayed(name) else None

    def _publisher(self, set_name: str) -> SetPublisher:
        publisher = self._publishers.pop(set_name, None)
        if publisher is None:
            if len(self._publishers) >= FAR_LINKS:
                self._drop_unused()
            publisher = SetPublisher(self, set_name, self._relays)
        self._publishers[set_name] = publisher
        return publisher

    def _drop_unused(self) -> None:
        unused = next((each for each in self._publishers.values() if each.is_idle), None)
        if unused is not None:
            self.drop(unused)

    def drop(self, publisher: SetPublisher) -> None:
        """It is not needed, or is of no use, any more."""
        if self._publishers.get(publisher.set_name) is publisher:
            del self._publishers[publisher.set_name]
            publisher.closed(lost=False)

    # --- messages whose set has to be asked

    def _ask(self, wait: NodeWait) -> None:
        container = self.connection.container
        until_s = container.clock() + container.settings.attach_timeout_s
        asking = self._asking = WaitingAttach(self.link, wait, self._told, until_s)
        container.waiting[asking] = None
        wait.add(self._told)

    def _end_asking(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            self.connection.container.waiting.pop(asking, None)
            asking.wait.forget(self._told)

    def _told(self, error: AmqpError | None) -> None:
        """The answer, or that there is none."""
        self._end_asking()
        if error is not None:
            delivery, _, settled, state = self._next_held()
            self.refuse(delivery, settled, state, error)
        while self._held and self._asking is None and self in self.connection.links:
            first = self._next_held()
            later, self._held = self._held, deque()
            self._take(*first)
            self._held += later
        self.connection.touch()

    # --- the end

    def closed(self, *, lost: bool) -> None:
        self._end_asking()
        held, self._held = self._held, deque()
        for _, transaction in held:
            self.connection.transactions.fail(transaction, LINK_ENDED)
        publishers, self._publishers = self._publishers, {}
        for publisher in publishers.values():
            publisher.closed(lost=lost)
        super().closed(lost=lost)
