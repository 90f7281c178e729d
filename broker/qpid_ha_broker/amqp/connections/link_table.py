"""The links of one connection by handle, from attach to detach (AMQP 1.0 sections 2.6.3 and 2.6.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import proton

from qpid_ha_broker.access.user_limits import UserUse
from qpid_ha_broker.amqp.connections.connection_log import ConnectionLog
from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.connections.late_answers import LateAnswers
from qpid_ha_broker.amqp.nodes.directory import SET_INFO
from qpid_ha_broker.amqp.nodes.ended_queues import ending
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.node_wait import WaitingAttach
from qpid_ha_broker.amqp.wire.conditions import (
    BUG,
    FRAME_TOO_SMALL,
    INTERNAL_ERROR,
    LINK_REDIRECT,
    LINK_STOLEN,
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    AmqpError,
    as_amqp,
)
from qpid_ha_broker.amqp.wire.endpoint_ending import ending_by_peer
from qpid_ha_broker.amqp.wire.engine import (
    ATTACH_BYTES,
    Engine,
    answer_bytes,
    clear_answer,
    has_unsent,
    is_in,
    session_of,
    unsettled_on,
)
from qpid_ha_broker.amqp.wire.relay import RETURN_MS
from qpid_ha_broker.model.commands.deletion import Deletion
from qpid_ha_broker.model.errors import InUse, NotPrimary
from qpid_ha_broker.model.logs.log import Commitment
from qpid_ha_broker.model.queues.queue import Queue

MOST_LINKS = 65_535
"""What AMQP's handles are given out for at most: two bytes of them."""
MOST_UNDECIDED: Final = 100_000
"""Deliveries that may stay on links that we have ended, in all that a connection has had: the end of a session takes
none off."""


class LinkTable:
    """The promise: each link that was added is told `closed` once, when it leaves, and the engine tells it no more."""

    def __init__(self, container: Container, engine: Engine, log: ConnectionLog) -> None:
        self._container = container
        self._engine = engine
        engine.end_failed = self._end_failed
        self._log = log
        self.is_limited = True
        """False: it is another broker's connection, with the links of all its clients."""
        self.use: UserUse = container.limits.unlimited
        """What the connection's user has; every link counts there."""
        self._attached: dict[Any, LinkEndpoint] = {}
        self._named: dict[tuple[Any, bool, str], LinkEndpoint] = {}
        """The same by AMQP session, whether we send, and name."""
        self._waiting: dict[Any, WaitingAttach] = {}
        """Links whose attach is to be answered later, and of which nothing is there yet."""
        self.late = LateAnswers(container)
        self._unspeakable: AmqpError | None = None
        """Why the connection has to end: see `check_refused`."""
        self._awaiting_detach: dict[Any, proton.Link] = {}
        """Links that we have closed and the peer has not."""
        self._undecided = 0
        """Deliveries on links that we have ended, of which nothing will be said: see `_let_go`."""

    def __len__(self) -> int:
        return len(self._attached)

    def __iter__(self) -> Iterator[LinkEndpoint]:
        """All that were attached when it began."""
        return iter(list(self._attached.values()))

    def __contains__(self, endpoint: LinkEndpoint) -> bool:
        return endpoint.link._impl in self._attached

    def check_room(self, link: proton.Link, *, is_new: bool) -> None:
        """Raises AmqpError or ModelError when no more may be attached. `is_new`: the attach has not waited before."""
        most = self._engine.peer_frame_bytes
        if ATTACH_BYTES + len(link.name.encode("utf-8", "replace")) > most:
            self._unspeakable = AmqpError(FRAME_TOO_SMALL, "the name of a link does not fit into a frame of this peer")
            raise self._unspeakable
        limit = self._limit
        if len(self._attached) + len(self._waiting) >= limit:
            raise AmqpError(RESOURCE_LIMIT, f"{limit} links are attached to this connection: detach some first")
        if is_new:
            self._container.limits.check_link(self.use)

    def check_refused(self) -> None:
        """Raises AmqpError when more were closed by us than a peer may leave half detached; or one that cannot even be
        refused in a frame that the peer takes."""
        if self._unspeakable is not None:
            raise self._unspeakable
        limit = self._limit
        if len(self._awaiting_detach) > limit:
            raise AmqpError(RESOURCE_LIMIT, f"{limit} links were refused, and none of them has been detached")
        if self._undecided > MOST_UNDECIDED:
            text = f"{MOST_UNDECIDED} messages were not answered when their links ended: connect again"
            raise AmqpError(RESOURCE_LIMIT, text)

    @property
    def _limit(self) -> int:
        return self._container.settings.max_links_per_connection if self.is_limited else MOST_LINKS

    def add(self, endpoint: LinkEndpoint) -> None:
        """Both ends are attached. Raises AmqpError where our answer does not fit into a frame of the peer."""
        self._attached[endpoint.link._impl] = self._named[_name_key(endpoint.link)] = endpoint
        if endpoint.link.state & proton.Endpoint.LOCAL_ACTIVE:
            self._engine.input.answered(endpoint.link)
        self.use.links += 1
        most, size = self._engine.peer_frame_bytes, answer_bytes(endpoint.link)
        if size > most:
            self.remove(endpoint, lost=False, by_peer=False)
            raise AmqpError(
                FRAME_TOO_SMALL, f"an answer to this attach has {size} bytes, and the max-frame-size is {most}"
            )

    def remove(
        self, endpoint: LinkEndpoint, *, lost: bool, closed: bool = False, by_peer: bool = True
    ) -> Commitment | None:
        """It has ended, and with it what was made for it; nothing is said to the peer.

        Returns what is to be committed before a peer that unsubscribes is told so; None: it does not.

        `lost`: nobody wished that. `closed`: the peer will not come back to it, not even to a durable subscription.
        `by_peer` False: we have ended it.
        """
        del self._attached[endpoint.link._impl]
        if self._named.get(key := _name_key(endpoint.link)) is endpoint:
            del self._named[key]
        self.use.links -= 1
        self.late.forget(endpoint.link)
        self._engine.detach(endpoint.link)
        endpoint.was_closed = closed
        endpoint.closed(lost=lost)
        default, queue, may_return = self._container.default, endpoint.owned_queue, lost or not by_peer
        may_return = may_return and endpoint.is_relayed
        topic, others = self._container.nodes.topics.left(endpoint, may_return=may_return)
        if others:
            error = AmqpError(RESOURCE_DELETED, f"the temporary topic {topic} went with its link")
            self._container.work.add(ending(others, error))
            default.touch()
        if queue is not None and may_return:
            default.resources.timers.keep_for_return(queue, default.now_ms + RETURN_MS)
            return None
        if queue is None or (endpoint.keep_on_detach and not closed):
            return None
        if endpoint.shares_queue and queue.dispatcher.has_takers:
            return _left_to_others(queue) if endpoint.unsubscribes else None
        deletion = self._delete_owned_queue(queue)
        return deletion if endpoint.keep_on_detach else None

    def _delete_owned_queue(self, queue: Queue) -> Commitment:
        """Delete a queue that was made for a link: a temporary one always, a durable subscription if it was closed."""
        default = self._container.default  # such queues are in no other set
        if not default.is_there(queue):  # by hand, or by its auto-delete; another one may have its name by now
            return default.resources.written
        try:
            return default.configuration.delete_queue(queue.name)
        except NotPrimary as error:  # it has become the new primary's to delete
            given_up = Deletion(queue)
            given_up.failure = error
            return given_up

    def end_older(self, link: proton.Link) -> None:
        """End the link that has the name of `link`, a new one, in its session: the newer one wins (section 2.6.1)."""
        older = self._named.get(_name_key(link))
        if older is not None:
            self.end(older, AmqpError(LINK_STOLEN, f"the link {link.name} was attached again"))
            self._engine.encode()  # before the answer to the newer one: its name would be there twice

    # --- attaches that are answered later

    def wait(self, waiting: WaitingAttach) -> None:
        """Answer an attach when what it waits for has ended."""
        self._waiting[waiting.link._impl] = waiting
        self.use.links += 1
        self._container.waiting[waiting] = None
        waiting.wait.add(waiting.callback)

    def end_wait(self, waiting: WaitingAttach) -> None:
        """It is answered now, or nobody wants an answer any more."""
        if self._waiting.pop(waiting.link._impl, None) is not None:
            self.use.links -= 1
        self._container.waiting.pop(waiting, None)
        waiting.wait.forget(waiting.callback)

    def end_wait_of(self, link: proton.Link) -> None:
        """The same, by the link that waits."""
        waiting = self._waiting.get(link._impl)
        if waiting is not None:
            self.end_wait(waiting)

    def end_waits(self, session: proton.Session | None = None) -> None:
        """Forget the attaches and detaches of `session`, or all, that were not answered yet."""
        self.late.end(session)
        for waiting in list(self._waiting.values()):
            if session is None or is_in(waiting.link, session):
                self.end_wait(waiting)

    # --- a detach of ours

    def refuse(self, link: proton.Link, error: AmqpError) -> None:
        """Answer an attach with one that leads nowhere, and a detach with the reason (section 2.6.3)."""
        self._note(link, "refused", error)
        if self._unspeakable is not None:
            return  # the connection ends with it
        clear_answer(link)
        link.open()
        self._close(link, error)

    def end(self, endpoint: LinkEndpoint, error: AmqpError) -> None:
        """Detach with an error."""
        self.remove(endpoint, lost=False, by_peer=False)
        if endpoint.link.state & proton.Endpoint.LOCAL_UNINIT:  # its attach is not answered yet
            _open_to_nowhere(endpoint.link)
        self._note(endpoint.link, "ended", error)
        self._close(endpoint.link, error)

    def _end_failed(self, key: Any) -> bool:
        """A bug came up on the link with that key: it ends, and the others go on. False: it is none of these."""
        endpoint = self._attached.get(key)
        if endpoint is not None:
            self.end(endpoint, AmqpError(INTERNAL_ERROR, BUG))
        return endpoint is not None

    def _note(self, link: proton.Link, outcome: str, error: AmqpError) -> None:
        """To be sent elsewhere is how clients of many sets find theirs: nothing that an operator has to look at."""
        text = f"link {link.name} {outcome}: {error}"
        if error.name == LINK_REDIRECT:
            self._log.write_elsewhere("info", text)
        elif SET_INFO in (error.info or ()):
            self._log.write_elsewhere("warning", text)
        else:
            self._log.note("warning", text)

    def _close(self, link: proton.Link, error: AmqpError) -> None:
        link.condition = error.as_condition(self._engine.peer_frame_bytes)
        link.close()
        self._awaiting_detach[link._impl] = link

    # --- what the peer did

    def detached(self, link: proton.Link, answered: Callable[[], None], *, closed: bool) -> None:
        """The peer has detached, first or in answer to us: answer it, if that is still to be done, and say `answered`.

        That is later where it unsubscribes: what is said to be gone does not come back with a failover.
        """
        endpoint, change = self._attached.get(link._impl), None
        if endpoint is not None:
            ending = ending_by_peer(link, closed=closed)
            change = self.remove(endpoint, lost=ending.is_failure, closed=ending.is_farewell)
        self.end_wait_of(link)
        if link.state & proton.Endpoint.LOCAL_UNINIT:  # its attach is not answered yet
            _open_to_nowhere(link)
        self._awaiting_detach.pop(link._impl, None)
        is_decided = endpoint is not None or not closed or not self.is_limited

        def answer(error: AmqpError | None) -> None:
            if error is not None:
                link.condition = error.as_condition(self._engine.peer_frame_bytes)
            if closed:
                link.close()
            else:
                link.detach()
            self._let_go(link, is_decided=is_decided)
            answered()

        if change is None or change.is_committed:
            answer(None)
        elif change.failure is not None:
            answer(as_amqp(change.failure))
        else:
            wait = self._container.default.await_commit(change, "the end of the subscription is being replicated")
            self.late.answer_detach(link, wait, answer)

    def _let_go(self, link: proton.Link, *, is_decided: bool) -> None:
        """Both ends have ended it. `is_decided`: the peer takes nothing on it for an answer any more, as brokers do.

        To free a link is to settle what is left on it, and some clients take that for an answer: for a commit that
        counts, a message that is queued, an accepted one that is gone. Where we have ended it nobody knows that; it
        stays until its session or connection goes. One that was only detached Proton would find again by its name.
        """
        if is_decided or not (unsettled := unsettled_on(link)):
            link.free()
        else:
            self._undecided += unsettled

    def of_session(self, session: proton.Session) -> list[LinkEndpoint]:
        """Those that end with `session`."""
        return [endpoint for endpoint in self._attached.values() if is_in(endpoint.link, session)]

    def have_unsent(self, session: Any) -> bool:
        """Whether messages on a link of the session with that key wait for the peer's window, and may still go out."""
        links = [*[endpoint.link for endpoint in self._attached.values()], *self._awaiting_detach.values()]
        return any(has_unsent(link) and session_of(link) == session for link in links)

    def session_ended(self, session: proton.Session) -> None:
        """None of its links will be detached any more."""
        waiting = self._awaiting_detach
        self._awaiting_detach = {key: link for key, link in waiting.items() if not is_in(link, session)}


def _left_to_others(queue: Queue) -> Commitment:
    """The deletion of a shared subscription, when others have come to consume from it."""
    given_up = Deletion(queue)
    given_up.failure = InUse(f"the subscription of queue {queue.name} has consumers: close them first")
    return given_up


def _name_key(link: proton.Link) -> tuple[Any, bool, str]:
    return session_of(link), bool(link.is_sender), link.name


def _open_to_nowhere(link: proton.Link) -> None:
    link.source.type = proton.Terminus.UNSPECIFIED
    link.target.type = proton.Terminus.UNSPECIFIED
    link.open()
