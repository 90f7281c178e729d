"""The users with passwords whom a cluster keeps, and who of them a client is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from qpid_ha_broker.access.scram import UserLogin


class Logins:
    """The promise: who is not in `by_name` now, with that password, does not get in by it."""

    def __init__(self, is_complete: Callable[[], bool] = lambda: True) -> None:
        """`is_complete`: whether this broker has what its cluster keeps. Until then nobody is told that he is wrong."""
        self.by_name: Mapping[str, UserLogin] = MappingProxyType({})
        self.is_complete = is_complete

    @property
    def is_used(self) -> bool:
        """Whether a client may be one of these, as far as is known."""
        return bool(self.by_name) or not self.is_complete()

    def is_current(self, login: UserLogin) -> bool:
        """Whether who has logged in so may stay: nobody has removed the user or changed the password since."""
        return self.by_name.get(login.name) == login
