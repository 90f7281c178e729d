"""What a connection says of links as soon as it is committed: that they are attached to what was made for them, and
that a subscription is gone."""

from __future__ import annotations

from typing import Any, Protocol

import proton

from qpid_ha_broker.amqp.nodes.node_wait import NodeWait, Told, WaitingAttach, WaitingDetach
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.engine import is_in


class LateContainer(Protocol):
    """What is needed of the container."""

    waiting: dict[WaitingAttach, None]


class LateAnswers:
    """The promise: nothing is said of a link that has been forgotten, or whose session has ended."""

    def __init__(self, container: LateContainer) -> None:
        self._container = container
        self._attaches: dict[Any, WaitingAttach] = {}
        """Of links that are there, and what was made for them."""
        self._detaches: dict[Any, WaitingDetach] = {}
        """Of links that are no more."""

    def answer_attach(self, waiting: WaitingAttach) -> None:
        """Answer it when what it waits for has ended, or `until_s`; its link may end meanwhile."""
        self._attaches[waiting.link._impl] = waiting
        self._container.waiting[waiting] = None
        waiting.wait.add(waiting.callback)

    def answer_detach(self, link: proton.Link, wait: NodeWait, answer: Told) -> None:
        """Answer it when `wait` has ended."""
        key = link._impl

        def told(error: AmqpError | None) -> None:
            del self._detaches[key]
            answer(error)

        self._detaches[key] = WaitingDetach(link, wait, told)
        wait.add(told)

    def forget(self, link: proton.Link) -> None:
        """Its attach is answered now, or the link has ended."""
        waiting = self._attaches.pop(link._impl, None)
        if waiting is not None:
            self._container.waiting.pop(waiting, None)
            waiting.wait.forget(waiting.callback)

    def end(self, session: proton.Session | None) -> None:
        """Nobody hears of the detaches of `session`, or of all, any more. Attaches end with their links."""
        for key, waiting in list(self._detaches.items()):
            if session is None or is_in(waiting.link, session):
                waiting.wait.forget(waiting.callback)
                del self._detaches[key]
