"""Sessions of who has logged in over HTTP by user and password, and has got a token of his own for it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from qpid_ha_broker.access.scram import UserLogin
from qpid_ha_config.tokens import token_digest

IDLE_S: Final = 1800.0
"""A page that is open asks every few seconds."""
LONGEST_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 256
PREFIX: Final = "session."
"""Of their tokens: who has one that counts no more is told so."""


class PageSession(NamedTuple):
    """One. `login`: by what the cluster keeps; None: by a file of this broker."""

    user: str
    login: UserLogin | None
    began_s: float


class PageSessions:
    """The promise: a session lets in until it was unused for IDLE_S, for LONGEST_S in all, and as long as that user has
    that password, where the cluster keeps it. There are no more than SESSIONS_MAX: the one that was unused longest
    goes first. No token is kept."""

    def __init__(self, clock: Callable[[], float], make_secret: Callable[[], str]) -> None:
        self._clock = clock
        self._make_secret = make_secret
        self._sessions: OrderedDict[str, tuple[PageSession, float]] = OrderedDict()
        """By the digest of its token: the session, and when it was used last, the longest ago first."""

    def begin(self, user: str, login: UserLogin | None) -> str:
        """The token of a new one."""
        token, now_s = PREFIX + self._make_secret(), self._clock()
        self._sessions[token_digest(token)] = PageSession(user, login, now_s), now_s
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return token

    def find(self, token: str, is_current: Callable[[PageSession], bool]) -> PageSession | None:
        """Whose token it is, who is in use again. `is_current`: whether he may still log in so."""
        digest, now_s = token_digest(token), self._clock()
        session, used_s = self._sessions.get(digest, (None, 0.0))
        if session is None:
            return None
        is_over = now_s - used_s >= IDLE_S or now_s - session.began_s >= LONGEST_S
        if is_over or not is_current(session):
            del self._sessions[digest]
            return None
        self._sessions[digest] = session, now_s
        self._sessions.move_to_end(digest)
        return session

    def end(self, token: str) -> None:
        """He logs out."""
        self._sessions.pop(token_digest(token), None)
