"""Links of clients' sessions to nodes of sets that this broker leads: whose they are now.

A client's connection may be at another broker, and the registry of sessions may be led by a third one. What a link may
do follows from this broker's copy of `default`:

1. A link names the connection of its session that it belongs to (the *epoch*). Where the copy has not come to that yet,
   the attach waits for it.
2. Where the copy is further, the session was resumed on another connection, and the link is refused, or ended.
3. A link of the same name that is attached anew ends the one before. What that has said counts, and no more of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits, NodeWait
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, LINK_STOLEN, AmqpError
from qpid_ha_broker.model.errors import InUse, NotPrimary
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import SessionOwner
from qpid_ha_broker.model.sessions import SessionPart
from qpid_ha_broker.model.sets.resources import Resources

TAKEN: Final = "the session was resumed on another connection"
_ENDED: Final = "the session has ended"


def _token_of_link(resources: Resources, queue: Queue | None, part: SessionPart) -> CommitToken:
    """What to wait for so that a link of a session may be told what the session has."""
    taken = None
    if queue is not None:
        taken = resources.replication.take_link(queue, part.owner, part.epoch)
    return taken or resources.written


class LinksContainer(Protocol):
    """What is needed of the container."""

    default: HostedSet


class _AttachedLink(NamedTuple):
    part: SessionPart
    endpoint: LinkEndpoint
    connection: object


_Key = tuple[SessionOwner, str, bool]
"""The link, the set of its node, and whether it consumes."""


class SessionLinks:
    """The promise: of the links of one name and direction of a session one at most says anything in a set."""

    def __init__(self, container: LinksContainer) -> None:
        self._container = container
        self._attached: dict[_Key, _AttachedLink] = {}
        self._keys: dict[LinkEndpoint, _Key] = {}
        self._tokens: dict[tuple[SessionPart, str, bool], CommitToken] = {}
        """Of links whose attach waits until all is committed that was written before."""
        self._lagging: list[tuple[SessionPart, NodeWait]] = []
        """Of attaches that wait for what the registry here has not heard of."""
        self._seen = -1
        """How many changes the registry had had when links were looked at last."""

    def __len__(self) -> int:
        return len(self._attached)

    # --- an attach

    def check(self, part: SessionPart) -> None:
        """Raises AttachWaits where this broker has not heard of the link's connection yet, and AmqpError where it has
        heard that it is over."""
        if self._has_heard_of(part):
            return
        wait = NodeWait("the session is not known yet at the broker that leads the set")
        self._lagging.append((part, wait))
        raise AttachWaits(wait)

    def _has_heard_of(self, part: SessionPart) -> bool:
        """Raises AmqpError where another connection has the session, or nobody."""
        default = self._container.default.resources.replicated
        session = default.state.sessions.by_id.get(part.id)
        if session is None:
            if part.id > default.log.last_lsn:
                return False
            raise AmqpError(CONNECTION_FORCED, _ENDED)
        if session.name != part.name:
            raise AmqpError(CONNECTION_FORCED, _ENDED)
        if session.epoch > part.epoch:
            raise AmqpError(CONNECTION_FORCED, TAKEN)
        return session.epoch == part.epoch

    def commit_wait(
        self, part: SessionPart, hosted: HostedSet, queue: Queue | None = None, connection: object = None
    ) -> None:
        """Raises AttachWaits until all is committed that was written before the attach, which tells of it.

        What is told must not be taken back by a failover: the client forgets what it had for that. `queue`: which the
        link consumes from, on `connection`; what the session holds on it is answered by this broker alone then. In a
        group what the link before has said counts only once it has its place, so that one ends first. Raises AmqpError
        where a later connection has the session.
        """
        resources, key = hosted.resources, (part, hosted.name, queue is not None)
        token = self._tokens.pop(key, None)
        if token is not None and isinstance(token.failure, NotPrimary):
            token = None  # of an attach before, which the group has gone on without
        if token is None or (queue is not None and not resources.replication.has_link(queue, part.owner)):
            if queue is not None and resources.replication.counts_later:
                self._end_older((part.owner, hosted.name, True), part, connection)
            token = _token_of_link(resources, queue, part)
        if token.failure is not None:
            raise AmqpError(CONNECTION_FORCED, TAKEN if isinstance(token.failure, InUse) else str(token.failure))
        if not token.is_committed:
            self._tokens[key] = token
            text = "what was written before the session was resumed is being replicated"
            raise AttachWaits(hosted.await_commit(token, text))

    def attached(
        self, part: SessionPart, hosted: HostedSet, endpoint: LinkEndpoint, connection: object, *, consumes: bool
    ) -> None:
        """A link; one of that name before is no more."""
        key = part.owner, hosted.name, consumes
        older = self._attached.pop(key, None)
        self._attached[key] = _AttachedLink(part, endpoint, connection)
        self._keys[endpoint] = key
        self._end(older, part, connection)

    def _end_older(self, key: _Key, part: SessionPart, connection: object) -> None:
        self._end(self._attached.pop(key, None), part, connection)

    def _end(self, older: _AttachedLink | None, part: SessionPart, connection: object) -> None:
        if older is not None:
            del self._keys[older.endpoint]
            text = f"the link {part.link} was attached again"
            # By its broker, on another connection: which of the two that has given up it knows, and attaches once more.
            is_its_brokers = older.connection is not connection
            again = AmqpError(CONNECTION_FORCED if is_its_brokers else LINK_STOLEN, text)
            older.endpoint.end(again if older.part.epoch == part.epoch else AmqpError(CONNECTION_FORCED, TAKEN))

    def forget(self, endpoint: LinkEndpoint) -> bool:
        """The link has ended; whether no other one is in its place, or will be soon."""
        key = self._keys.pop(endpoint, None)
        if key is None:
            return False
        del self._attached[key]
        return not self._is_used(key)

    def has_consumer(self, owner: SessionOwner, set_name: str) -> bool:
        """Whether a consumer's link of that name is attached to a queue of that set, or will be soon."""
        return self._is_used((owner, set_name, True))

    def _is_used(self, key: _Key) -> bool:
        return key in self._attached or any(
            (part.owner, name, consumes) == key for part, name, consumes in self._tokens
        )

    # --- what becomes of sessions

    @property
    def awaits_registry(self) -> bool:
        """Whether an attach waits for what the registry here has not heard of."""
        return bool(self._lagging)

    def end_those_of(self, session: int) -> None:
        """The session has ended: end its links."""
        for part, endpoint, _ in list(self._attached.values()):
            if part.id == session and endpoint in self._keys:
                endpoint.end(AmqpError(CONNECTION_FORCED, _ENDED))

    def look(self) -> None:
        """Let those attach whose session is known by now, and end links of connections that have it no more."""
        registry = self._container.default.resources.replicated.state.sessions
        if self._lagging:
            self._look_at_lagging()
        if self._seen == registry.changes_total:
            return
        self._seen = registry.changes_total
        tokens = self._tokens.items()
        self._tokens = {key: token for key, token in tokens if not (token.is_committed or token.failure)}
        for part, endpoint, _ in list(self._attached.values()):
            if endpoint in self._keys:
                try:
                    self._has_heard_of(part)
                except AmqpError as error:
                    endpoint.end(error)

    def _look_at_lagging(self) -> None:
        lagging, self._lagging = self._lagging, []
        for part, wait in lagging:
            try:
                is_known = self._has_heard_of(part)
            except AmqpError:  # the attach is refused with that
                is_known = True
            if is_known:
                wait.ready()
            elif len(wait):  # else its client has gone, or has waited too long
                self._lagging.append((part, wait))
