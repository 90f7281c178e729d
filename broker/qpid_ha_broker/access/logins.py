"""The users with passwords whom a cluster keeps, and who of them a client is."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from qpid_ha_broker.access.scram import UserLogin

PROVED_MOST: Final = 10_000


class Logins:
    """The promise: who is not in `by_name` now, with that password, does not get in by it."""

    def __init__(self, is_complete: Callable[[], bool] = lambda: True, never_kept: str = "") -> None:
        """`is_complete`: whether this broker has what its cluster keeps. Until then nobody is told to be wrong, but for
        `never_kept`: who the brokers are to each other, whom each knows by itself."""
        self.never_kept = never_kept
        self.by_name: Mapping[str, UserLogin] = MappingProxyType({})
        self.is_complete = is_complete
        self._proved: dict[str, tuple[UserLogin, bytes]] = {}
        """Of who has said the right password: a digest of it, under this process's secret. After a failover many
        clients of a user come at once, and each check of a password takes some milliseconds."""

    @property
    def is_used(self) -> bool:
        """Whether a client may be one of these, as far as is known."""
        return bool(self.by_name) or not self.is_complete()

    def remembers(self, login: UserLogin, password: str, secret: bytes) -> bool:
        """Whether it was found to be the password before. `secret`: of this process."""
        proved = self._proved.get(login.name)
        return proved is not None and proved[0] == login and hmac.compare_digest(proved[1], _digest(password, secret))

    def remember(self, login: UserLogin, password: str, secret: bytes) -> None:
        """It is the password."""
        if len(self._proved) >= PROVED_MOST:
            self._proved.clear()
        self._proved[login.name] = login, _digest(password, secret)

    def is_current(self, login: UserLogin) -> bool:
        """Whether who has logged in so may stay: nobody has removed the user or changed the password since."""
        return self.by_name.get(login.name) == login


def _digest(password: str, secret: bytes) -> bytes:
    return hmac.digest(secret, password.encode("utf-8", "surrogatepass"), "sha256")
