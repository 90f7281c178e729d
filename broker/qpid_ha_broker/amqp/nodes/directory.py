"""Which resource set a queue belongs to, and which broker leads that set: what the container asks of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.amqp.nodes.node_wait import NodeWait
from qpid_ha_broker.amqp.wire.conditions import LINK_REDIRECT, RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.model.errors import ModelError, NotPrimary, OtherSet
from qpid_ha_broker.model.logs.log import COMMITTED, CommitToken

SET_INFO: Final = "resource-set"
"""In the info of a refusal that names no primary: which set it is about."""


class QueueDecision:
    """What others decide about a queue that is to be made or deleted: see `administration.Work`.

    Whoever asks them ends it, once: by `decide` or `fail`. Nothing is left to be committed then.
    """

    def __init__(self) -> None:
        self.written: CommitToken | None = None
        self.failure: ModelError | None = None
        self.result: Mapping[str, object] = {}
        """What the controller has said: `set`; of a creation `created`; `pending` and `text` where it is recorded, and
        the set's primary is not known to have done it."""

    def decide(self, result: Mapping[str, object]) -> None:
        """The controller has done what was asked, or will."""
        self.result, self.written = result, COMMITTED

    def fail(self, error: ModelError) -> None:
        """The controller has not done what was asked, or nobody knows."""
        self.failure = error


class ServerAddress(NamedTuple):
    """Where clients find a broker."""

    broker: str
    """Its name, which is its container id."""
    host: str
    port: int


class SetDirectory(Protocol):
    """What is known of all sets of the cluster, whether they are hosted here or not."""

    @property
    def has_many_sets(self) -> bool:
        """There are sets beside `default`: every broker lets clients in, and tells them where what it has not is."""

    def set_of(self, queue_name: str) -> str | None:
        """The set of a queue that does not belong to `default`; None: there is no such queue."""

    def primary_of(self, set_name: str) -> ServerAddress | None:
        """The broker that leads a set; None: nobody is known to."""

    def locate(self, queue_name: str) -> NodeWait | None:
        """What to wait for, where another broker may know of a queue that is not known here; None: nobody does."""

    def place(self, queue_name: str, arguments: Arguments) -> NodeWait:
        """Have a new queue put into the set to which it belongs; what an attach waits for. Raises OtherSet."""

    def create_queue(self, queue_name: str, arguments: Arguments) -> QueueDecision:
        """Have a queue in the set to which it belongs, or find it there. Raises OtherSet."""

    def delete_queue(self, queue_name: str, *, if_empty: bool, if_unused: bool) -> QueueDecision:
        """Have it deleted by whoever leads its set. Raises OtherSet."""


class OneSet:
    """The directory of a broker that knows of no set but `default`."""

    @property
    def has_many_sets(self) -> bool:
        """No."""
        return False

    def set_of(self, queue_name: str) -> str | None:
        """No other set has any queue."""
        return None

    def primary_of(self, set_name: str) -> ServerAddress | None:
        """Not known here: clients are sent away before they could ask."""
        return None

    def locate(self, queue_name: str) -> NodeWait | None:
        """There is nobody to ask."""
        return None

    def place(self, queue_name: str, arguments: Arguments) -> NodeWait:
        """There is nobody to ask."""
        raise _only_one(queue_name)

    def create_queue(self, queue_name: str, arguments: Arguments) -> QueueDecision:
        """There is nobody to ask."""
        raise _only_one(queue_name)

    def delete_queue(self, queue_name: str, *, if_empty: bool, if_unused: bool) -> QueueDecision:
        """There is nobody to ask."""
        raise _only_one(queue_name)


def _only_one(queue_name: str) -> OtherSet:
    return OtherSet(f"queue {queue_name} belongs to another resource set, and this broker has but one")


class ServedElsewhere(AmqpError, NotPrimary):
    """What is asked for belongs to a set that another broker leads, or nobody does just now.

    Where the primary is known this is a redirect, with what a client needs to go there (AMQP 1.0 section 2.8.17). Where
    it is not, the condition is `amqp:resource-locked`: a client that knows it tries again, as it does for a queue that
    somebody has alone, while `amqp:not-found` would tell it that the address is wrong.
    """

    def __init__(self, directory: SetDirectory, set_name: str, address: str = "") -> None:
        self.set_name = set_name
        primary = directory.primary_of(set_name)
        node = f"{address or 'it'} belongs to the resource set {set_name}"
        if primary is None:
            text = f"{node}, which has no primary that is known here: try again"
            super().__init__(RESOURCE_LOCKED, text, {SET_INFO: set_name})
            return
        info: dict[str, object] = {"hostname": primary.broker, "network-host": primary.host, "port": primary.port}
        where = f"{primary.broker} at {primary.host}:{primary.port}"
        super().__init__(
            LINK_REDIRECT, f"{node}, whose primary is {where}", info | ({"address": address} if address else {})
        )
