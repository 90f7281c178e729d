"""Whom a cluster keeps who may log in: users with passwords, and tokens of the HTTP port."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qpid_ha_broker.access.logins import Logins

if TYPE_CHECKING:  # who has no HTTP port does without
    from qpid_ha_config.tokens import TokenEntry


class KeptLogins:
    """As they are in force at this broker; empty in no cluster."""

    def __init__(self, is_complete: Callable[[], bool], never_kept: str = "") -> None:
        """See `Logins`."""
        self.users = Logins(is_complete, never_kept)
        self.tokens: dict[str, TokenEntry] = {}
        """By name."""
