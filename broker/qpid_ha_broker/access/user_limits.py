"""What each user may have of a broker: lines of the access control list, and who has how much.

1. For each kind of limit the first line counts that is for the user and has that kind; without one there is no limit.
2. The user of the cluster's brokers (`ha.username`) has none, nor has a connection marked for administration.
3. A change of the lines is in force for what comes next: nothing is ended that is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from qpid_ha_broker.access.rate_limit import RateLimit
from qpid_ha_broker.access.rules import ANONYMOUS_LOGIN, AccessLog, Who, is_for
from qpid_ha_broker.model.errors import LimitReached


class LimitKind(Enum):
    """What is limited; the value is its name in a line."""

    CONNECTIONS = "connections"
    LINKS = "links"
    QUEUES = "queues"
    """That were made for the user."""
    SESSIONS = "sessions"
    """Of clients, with those that wait for their client."""
    MESSAGE_SIZE = "message-size"
    """Bytes."""
    RATE = "rate"
    """Messages that come from the user, a second."""


class LimitRule(NamedTuple):
    """One line."""

    users: frozenset[str] | Who
    values: Mapping[LimitKind, float | None]
    """None: there is no limit of that kind."""
    text: str
    """As it is written."""
    place: str
    """Where: a file with the line, or a setting with the number of the entry."""


class UserLimit(NamedTuple):
    """What holds for one user."""

    value: float | None
    """None: there is no limit."""
    reason: str
    """The line, with its place."""


class UserUse:
    """What a user has of this broker now, and what holds for it. `user` empty: who has not logged in."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.connections = 0
        self.links = 0
        """Attached, or with an attach that waits."""
        self.max_message_bytes = 0
        """The user's limit or the broker's, whichever is less."""
        self.is_size_limited = False
        """It is the user's."""
        self.rate: RateLimit | None = None

    @property
    def is_idle(self) -> bool:
        """There is nothing to be remembered of it."""
        return not (self.connections or self.links) and (self.rate is None or self.rate.is_idle)


class UserLimits:
    """The promise: who is at a limit gets no more of that kind, and what others have does not matter.

    `log`: takes a level and a line for the operator. `now_ms`: tells the time, milliseconds since the epoch; `clock`:
    seconds of a clock that never goes back.
    """

    def __init__(
        self,
        log: Callable[[str, str], None],
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        max_message_bytes: int,
    ) -> None:
        self.rules: tuple[LimitRule, ...] = ()
        self.refused: Counter[str] = Counter()
        """How often something was refused since the start, by the kind of limit."""
        self.held: dict[RateLimit, None] = {}
        """Those for which links wait."""
        self.turn_after: Callable[[float], None] = lambda wait_s: None
        """Has `wake` called after so many seconds; the driver sets it."""
        self._cluster_user = ""
        self._max_message_bytes = max_message_bytes
        self._log = log
        self._lines = AccessLog()
        self._now_ms = now_ms
        self._clock = clock
        self._users: dict[str, UserUse] = {}
        self._left: dict[UserUse, None] = {}
        """Those who had no connection any more when one ended."""
        self.unlimited = UserUse("")
        """Of all connections to which no limits apply."""
        self._apply(self.unlimited)

    def change(self, rules: tuple[LimitRule, ...], cluster_user: str) -> None:
        """Put other lines in force."""
        self.rules, self._cluster_user = rules, cluster_user
        for use in self._users.values():
            self._apply(use)
        for rate in list(self.held):  # they may have no limit, or another one
            rate.wake(all_of_them=True)

    def change_max_message_bytes(self, most: int) -> None:
        """The broker's own limit is another one."""
        self._max_message_bytes = most
        for use in (self.unlimited, *self._users.values()):
            self._apply(use)

    def limit(self, user: str, kind: LimitKind) -> UserLimit | None:
        """What holds for the user, and where it is written; None: no line says anything."""
        if not user or user != self._cluster_user:
            for rule in self.rules:
                if kind in rule.values and is_for(rule.users, user):
                    return UserLimit(rule.values[kind], f"{rule.place}: {rule.text}")
        return None

    def use_of(self, user: str) -> UserUse:
        """What the user has; empty: who has not logged in."""
        use = self._users.get(user)
        if use is None:
            use = self._users[user] = UserUse(user)
            self._apply(use)
        return use

    def used(self, user: str) -> UserUse:
        """As `use_of`, to look at it only."""
        return self._users.get(user) or UserUse(user)

    def _value(self, user: str, kind: LimitKind) -> float | None:
        limit = self.limit(user, kind) if self.rules else None
        return None if limit is None else limit.value

    def _apply(self, use: UserUse) -> None:
        if use is self.unlimited:
            use.max_message_bytes = self._max_message_bytes
            return
        size, rate = self._value(use.user, LimitKind.MESSAGE_SIZE), self._value(use.user, LimitKind.RATE)
        use.is_size_limited = size is not None and size < self._max_message_bytes
        use.max_message_bytes = int(size) if size is not None and use.is_size_limited else self._max_message_bytes
        if rate is None:
            use.rate = None
        elif use.rate is None:
            use.rate = RateLimit(rate, self._clock, self.held, self._turn_after)
        else:
            use.rate.change(rate)

    # --- who asks for more

    def check_connection(self, use: UserUse) -> None:
        """Raises LimitReached where the user may not have another connection."""
        if use is not self.unlimited:
            self._check(use.user, LimitKind.CONNECTIONS, use.connections, "connected to this broker")

    def connected(self, use: UserUse) -> None:
        """The user has one connection more."""
        use.connections += 1

    def disconnected(self, use: UserUse) -> None:
        """One of the user's connections is over. Its links may end later."""
        use.connections -= 1
        if not use.connections:
            self._left[use] = None

    def check_link(self, use: UserUse) -> None:
        """Raises LimitReached where the user may not have another link."""
        if use is not self.unlimited:
            self._check(use.user, LimitKind.LINKS, use.links, "attached at this broker")

    def check_queue(self, creator: str, count: int) -> None:
        """Raises LimitReached where who `creator` says, for whom there are `count` queues, may have no more."""
        self._check("" if creator == ANONYMOUS_LOGIN else creator, LimitKind.QUEUES, count, "made for that user")

    def check_session(self, user: str, count: Callable[[], int]) -> None:
        """Raises LimitReached where the user may not begin another session. `count`: how many the user has; asked for
        where there is a limit."""
        if self._value(user, LimitKind.SESSIONS) is not None:
            self._check(user, LimitKind.SESSIONS, count(), "kept for that user")

    def creator(self, user: str) -> str:
        """As whose a queue counts that is made for the user; empty: nobody's, for the user has no limit of them."""
        return user or ANONYMOUS_LOGIN if self._value(user, LimitKind.QUEUES) is not None else ""

    def _check(self, user: str, kind: LimitKind, count: int, how: str) -> None:
        limit = self.limit(user, kind) if self.rules else None
        if limit is None or limit.value is None or count < limit.value:
            return
        text = f"{count} {kind.value} are {how}, and {limit.value:g} are allowed: {limit.reason}"
        raise LimitReached(self._refused(user, kind, text))

    def size_refusal(self, use: UserUse, size: int) -> str:
        """What is said of a message that is larger than the user's limit, which is counted and logged."""
        limit = self.limit(use.user, LimitKind.MESSAGE_SIZE)
        self._refused(use.user, LimitKind.MESSAGE_SIZE, "" if limit is None else limit.reason)
        reason = "" if limit is None else f": {limit.reason}"
        most = use.max_message_bytes
        return f"{_name(use.user)}: a message of {size} bytes or more; max-message-size is {most}{reason}"

    def _refused(self, user: str, kind: LimitKind, text: str) -> str:
        """Count and log it."""
        self.refused[kind.value] += 1
        text = f"{_name(user)}: {kind.value} limit: {text}"
        line = self._lines.add(text, self._now_ms())
        if line is not None:
            self._log("warning", line)
        return text

    def facts(self) -> Mapping[str, object]:
        """For an operator: how many lines there are, and what was refused."""
        return {"acl_limits": len(self.rules), "limits_refused": self.refused.total()}

    # --- time

    def wake(self) -> None:
        """Tell links that wait for the rate of their user, where there is credit again."""
        for rate in list(self.held):
            rate.wake()

    def _turn_after(self, wait_s: float) -> None:
        self.turn_after(wait_s)

    def tick(self) -> None:
        """Log what is due, and forget users who have nothing. Several times a second."""
        for line in self._lines.due(self._now_ms()):
            self._log("warning", line)
        if self._left:
            for use in [use for use in self._left if use.is_idle and use is not self.unlimited]:
                del self._users[use.user]
            self._left = {use: None for use in self._left if not (use.is_idle or use.connections)}


def _name(user: str) -> str:
    return user or "who has not logged in"
