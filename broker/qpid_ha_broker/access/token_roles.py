"""The roles of tokens of the HTTP port: what who asks with a token may do."""

from __future__ import annotations

from enum import StrEnum


class TokenRole(StrEnum):
    """What a token lets its holder do; each may do all that those before it may."""

    METRICS = "metrics"
    """`GET /metrics`."""
    VIEWER = "viewer"
    """All that changes nothing."""
    OPERATOR = "operator"
    """What operators do every day: queues, switchovers, moves of sets."""
    ADMIN = "admin"
    """All: settings, what may lose something, the end of a broker."""

    def includes(self, other: TokenRole) -> bool:
        """Whether the role may do all that `other` may."""
        order = list(TokenRole)
        return order.index(self) >= order.index(other)
