"""How long an action may take: what its parameter says, unless Pacemaker's own time-out ends before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from qpid_ha_agent.ocf.codes import OcfCode
from qpid_ha_agent.ocf.validation import Invalid

TIMEOUT = "OCF_RESKEY_CRM_meta_timeout"
RESERVE_S = 1.0
"""What an action needs to say that it was too slow, before Pacemaker kills it for being too slow."""
LOOK_SHARE = 0.5
"""A look at the broker is only a part of an action."""


class Limit(NamedTuple):
    """`shortened_by` is Pacemaker's time-out in seconds when that is what decides, else 0."""

    limit_s: float
    shortened_by_s: float = 0.0


class Patience:
    """Of one action, by its environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        timeout_ms = environment.get(TIMEOUT, "")
        self._timeout_s = int(timeout_ms) / 1000 if timeout_ms.isdigit() else 0.0

    def limit(self, wanted_s: float) -> Limit:
        """For an action that takes its time. Raises Invalid when there is none."""
        limit = self.hasty_limit(wanted_s)
        if limit.limit_s <= 0:
            text = f"the action's timeout of {self._timeout_s * 1000:.0f} ms is too short: give it 10s or more"
            raise Invalid(OcfCode.ERR_GENERIC, text)
        return limit

    def hasty_limit(self, wanted_s: float) -> Limit:
        """For an action that can be done in no time, if it must be: it kills rather than fail."""
        if not self._timeout_s:
            return Limit(wanted_s)
        allowed_s = max(0.0, self._timeout_s - RESERVE_S)
        return Limit(wanted_s) if wanted_s <= allowed_s else Limit(allowed_s, self._timeout_s)

    def look_s(self, wanted_s: float) -> float:
        """For one question to the broker."""
        return min(wanted_s, self._timeout_s * LOOK_SHARE) if self._timeout_s else wanted_s
