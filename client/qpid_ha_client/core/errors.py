"""What can go wrong for a client of brokers, in one short tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ClientError(Exception):
    """Something that the application has to know of."""


class ClientClosed(ClientError):
    """The client was closed, or has failed before; then `__cause__` has why."""


class LoginRefused(ClientError):
    """A broker did not accept who we say that we are."""


class SessionsNotOffered(ClientError):
    """A session was demanded, and the broker keeps none."""


class SessionRefused(ClientError):
    """The broker does not let us have this session: it is somebody else's, or what we ask makes no sense."""


class SessionTaken(ClientError):
    """Another connection has resumed this session, so it is that one's now. Whoever reconnected would fight over it."""


class LinkUnusable(ClientError):
    """A queue or exchange cannot be used; `condition` is the broker's, such as `amqp:not-found`."""

    def __init__(self, link: str, condition: str, description: str) -> None:
        super().__init__(f"{link}: {condition}: {description}" if description else f"{link}: {condition}")
        self.link, self.condition, self.description = link, condition, description


class MessageRefused(ClientError):
    """The broker did not take a message, and says why. Sent again, it is a new one."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.condition, self.description = condition, description


class MessageWithdrawn(ClientError):
    """A received message is not this client's any more: the broker gave it to others, or nobody has it."""


class MessageAbandoned(ClientError):
    """A message was sent in a session that was lost, and is not sent again: nobody knows whether it is queued."""


class LinkDoubt(NamedTuple):
    """What is not certain of one link after its session was lost. All lists are tickets, in order."""

    unconfirmed: tuple[int, ...] = ()
    """Of a publisher: sent, perhaps queued. All before these are confirmed, or were refused."""
    accepted: tuple[int, ...] = ()
    """Of a consumer: processed, and perhaps delivered again to somebody."""
    unanswered: tuple[int, ...] = ()
    """Of a consumer: handed out, not answered; they are back in the queue, and will be delivered again."""


class SessionLost(ClientError):
    """The session is gone: it was away for longer than the brokers keep it. `doubts`: by link, what is not certain.

    All that is not named there is certain. `begin_anew` goes on with a new session.
    """

    def __init__(self, session: str, doubts: Mapping[str, LinkDoubt]) -> None:
        counts = [sum(len(part[at]) for part in doubts.values()) for at in range(3)]
        super().__init__(
            f"session {session} is gone: {counts[0]} messages that were sent may or may not be queued, {counts[1]} that"
            f" were processed may be delivered again, {counts[2]} that were not answered are back in their queues"
        )
        self.session, self.doubts = session, dict(doubts)
