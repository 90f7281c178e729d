"""Who drives the far ends of links that are relayed: what those ask of it, and what it asks of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import proton

from qpid_ha_broker.amqp.nodes.directory import SET_INFO
from qpid_ha_broker.amqp.relaying.upstream import Upstream, UpstreamLink
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, LINK_REDIRECT, AmqpError
from qpid_ha_broker.amqp.wire.relay import RelayRequest
from qpid_ha_broker.model.logs.log import DEFAULT_SET


class Producer(NamedTuple):
    """Under which name and from which number on a relayed publisher numbers its messages."""

    name: bytes
    run: int = 0
    sent: int = 0


class PlacedLink(UpstreamLink, Protocol):
    """A link whose far end is attached wherever its set is led."""

    set_name: str
    path: tuple[str, ...]
    """The brokers that it comes by."""

    @property
    def is_attached(self) -> bool:
        """Its far end is."""

    def look_again(self) -> None:
        """Let the client's attach be looked at again."""

    def out_of_reach(self) -> None:
        """Its set is: another broker may reach who leads it, so have the client go there, if it can tell it that."""


class PrimaryEnd:
    """A far end at the primary of a set that is no link of the client's, but of use to its links: a `PlacedLink`, but
    for what it is attached for."""

    needed_capability = ""
    needs_sessions = False
    upstream: Upstream | None = None
    """Over which it is attached; None: it is not now."""

    def __init__(self, request: RelayRequest) -> None:
        """`request`: says whose it is, and of which set."""
        self.set_name = request.set_name or DEFAULT_SET
        self.path: tuple[str, ...] = request.path
        self._request = request

    @property
    def is_attached(self) -> bool:
        """The primary has answered."""
        return self.upstream is not None

    def look_again(self) -> None:
        """There is no attach of a client that would wait for this one."""

    def _opened(self, far: proton.Link, asked: Mapping[Any, Any] = MappingProxyType({})) -> proton.Link:
        """Open it with what the primary is told of it."""
        far.properties = {**self._request._replace(path=self.path).properties(), **asked}
        far.open()
        return far


class Relayer(Protocol):
    """Who drives relayed links."""

    name: str
    """Of this broker."""

    def place(self, link: PlacedLink) -> None:
        """Attach it where the set is led, now or as soon as somebody leads."""

    def try_again(self, link: PlacedLink) -> None:
        """The client's attach is to be looked at again, in a moment: the node may be elsewhere by then."""

    def attach_again(self, link: PlacedLink) -> None:
        """Its far end is gone: attach it wherever the set is led."""

    def forget(self, link: PlacedLink, *, closed: bool = True) -> None:
        """It has ended: its far end, too, if there is one. Not `closed`: a durable subscription stays."""

    def take_producer(self) -> Producer:
        """A name that no other publisher has now."""

    def give_producer_back(self, producer: Producer) -> None:
        """All that was sent under it is answered."""


def unreachable(broker: str, set_name: str) -> AmqpError:
    """For the connection of a client of `broker`, which gets nothing there."""
    text = f"broker {broker} does not reach the one that leads the resource set {set_name}: try another broker"
    return AmqpError(CONNECTION_FORCED, text)


def is_elsewhere(error: AmqpError) -> bool:
    """Whether a far link ended because another broker leads the set, or will."""
    return error.name in (LINK_REDIRECT, CONNECTION_FORCED) or SET_INFO in (error.info or ())
