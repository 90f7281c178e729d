"""How long one call to a coordinator may take."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """Of one request to the coordinator, however many programs or servers it takes."""

    end_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """From now on."""
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        """Never below 0."""
        return max(0.0, self.end_s - time.monotonic())
