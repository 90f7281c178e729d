"""Our end of a link, whatever it carries: what its connection, and the turn, ask of it (AMQP 1.0 section 2.6.1)."""

from __future__ import annotations

from collections.abc import Sequence

import proton

from qpid_ha_broker.access.rules import Access
from qpid_ha_broker.amqp.nodes.link_state import LinkState
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry


class LinkEndpoint:
    """What every link is asked; a kind of link overrides what it has an answer to.

    `flush_accepted`, `confirm`, `finish_drain` and `replenish` are asked near the end of a turn, of those links that
    have put themselves on the container's list for it.
    """

    link: proton.Link
    owned_queue: Queue | None = None
    """A queue that exists for this link alone."""
    keep_on_detach = False
    """A subscription that waits for it: detaching leaves its queue, closing deletes it."""
    shares_queue = False
    """Other links may consume from `owned_queue`, too: closing the last of them deletes it."""
    unsubscribes = False
    """It is attached to delete `owned_queue`, and is told if that was not done."""

    is_relayed = False
    """It is a link of another broker's client: that broker may attach it again when it is lost here."""

    access: Access | None = None
    """What its peer had to be allowed when it attached; asked again when the rules change. None: nothing."""

    was_closed = False
    """Its peer has closed it in order, and will not come back to it."""

    @property
    def needs_primary(self) -> bool:
        """Whether the link ends when this broker leads its set no more: it does more than a replica allows, or another
        broker relays it, whose client is to see what the primary has."""
        return False

    @property
    def must_end_at_once(self) -> bool:
        """Whether the link may hold what others write: then it must not be told `closed` some turns later."""
        return False

    def state(self) -> LinkState:
        """What it does and waits for now, for operators."""
        link = self.link
        address = (link.remote_source if link.is_sender else link.remote_target).address
        return LinkState(address or "", engine.credit(link), int(link.unsettled))

    @property
    def client_text(self) -> str:
        """Whose it is, for operators; empty: nobody's in particular."""
        return ""

    def waits_for(self, log: Log) -> bool:
        """Whether the peer is to be told something as soon as `log` has committed it."""
        return False

    # --- its connection's calls

    def update_window(self) -> None:
        """How much the connection takes has changed."""

    def stop(self) -> None:
        """The link ends: take nothing more. What it holds comes back with `closed`, which may be some turns later."""

    def closed(self, *, lost: bool) -> None:
        """The link has ended: give back what it holds. `lost`: nobody wished that, see `EndpointEnding.is_failure`."""
        raise NotImplementedError

    # --- the turn's calls

    def end(self, error: AmqpError) -> None:
        """Detach with an error, if it has not ended yet; the connection and its other links go on."""
        raise NotImplementedError

    def flush_accepted(self) -> None:
        """Carry out what the peer has accepted in this turn."""

    def confirm(self) -> bool:
        """Tell what is committed by now; whether more still waits."""
        return False

    def finish_drain(self) -> bool:
        """Give up credit that there are no messages for; False while there may be some."""
        return True

    def replenish(self) -> None:
        """Give the peer credit that is due."""

    def bug(self, error: Exception, handed_out: Sequence[Entry] = ()) -> None:
        """A bug came up at one of these calls: the link ends, and all others have their turn.

        `handed_out`: what it was to send. Raises `error` where nobody counts bugs: see `Engine.on_fault`.
        """
        raise error


class NumberedPublishers(dict[bytes, LinkEndpoint]):
    """Links on which other brokers number the messages of a set, by producer. The promise: each producer has one.

    What its broker believes to be lost with an earlier link must not come in beside what it sends again.
    """

    def began(self, producer: bytes, link: LinkEndpoint) -> None:
        """`link` numbers by it; one that did before ends."""
        older = self.get(producer)
        self[producer] = link
        if older is not None:
            older.end(AmqpError(CONNECTION_FORCED, "the same publisher has another link"))
            self[producer] = link

    def ended(self, producer: bytes, link: LinkEndpoint) -> None:
        """It does no more."""
        if self.get(producer) is link:
            del self[producer]


def endpoint_of(consumer: Consumer) -> LinkEndpoint:
    """The link that takes messages of a queue. Raises TypeError: it is none."""
    if not isinstance(consumer, LinkEndpoint):
        raise TypeError(f"{consumer} is no link: it cannot be detached")
    return consumer
