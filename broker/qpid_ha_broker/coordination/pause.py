"""A pause of all agents, as an operator wants it for maintenance: the note `pause`, and when it ends. Pure.

Its end is a time of day, and each machine judges it by its own clock, because agents come and go while it lasts. A
clock that is set back does not prolong it without end: `PauseView` also counts how long it has known the pause.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from qpid_ha_config.coordinator import CoordinatorUrl

PAUSE_NOTE: Final = "pause"
FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
"""Times of the note are UTC."""
LONGEST_TEXT: Final = 500
UNREADABLE: Final = "the coordinator's note `pause` cannot be understood; `qpid-ha resume` removes it"


def is_heeded_with(coordinator: CoordinatorUrl) -> bool:
    """Whether there are agents that heed it: not without a coordinator, and Pacemaker has a maintenance mode."""
    return not coordinator.is_none and coordinator.property_set is None


class Pause(NamedTuple):
    """While it lasts, no agent promotes, kills, restarts or hands over by itself."""

    by: str
    since: datetime
    until: datetime | None = None
    """None: until somebody ends it."""
    reason: str = ""

    def is_over(self, now: datetime) -> bool:
        """Whether its end has come, by the clock that `now` is of."""
        return self.until is not None and now >= self.until

    @property
    def text(self) -> str:
        """For people, on one line."""
        until = "resumed (`qpid-ha resume`)" if self.until is None else self.until.strftime(FORMAT)
        reason = f": {self.reason}" if self.reason else ""
        return f"paused by {self.by} since {self.since.strftime(FORMAT)} until {until}{reason}"

    def as_mapping(self) -> dict[str, str | None]:
        """As `status` tells it, and the note holds it."""
        until = None if self.until is None else self.until.strftime(FORMAT)
        return {"by": self.by, "since": self.since.strftime(FORMAT), "until": until, "reason": self.reason}


def encode_pause(pause: Pause) -> str:
    """The note. Raises ValueError for an end before the beginning, or a text that is too long."""
    if pause.until is not None and pause.until <= pause.since:
        raise ValueError(f"it would end at {pause.until.strftime(FORMAT)}, which is over")
    if max(len(pause.by), len(pause.reason)) > LONGEST_TEXT:
        raise ValueError(f"the reason may have {LONGEST_TEXT} characters")
    return json.dumps(pause.as_mapping())


def decode_pause(note: str) -> Pause | None:
    """The pause in a note; None: there is none. What cannot be understood is one without an end: somebody wanted it."""
    if not note:
        return None
    try:
        fields = json.loads(note)
        texts = [fields["by"], fields["since"], fields.get("reason", "")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError
        until = None if fields["until"] is None else _time(fields["until"])
        return Pause(texts[0], _time(texts[1]), until, texts[2])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Pause("somebody", datetime.fromtimestamp(0, UTC), None, UNREADABLE)


def _time(text: str) -> datetime:
    return datetime.strptime(text, FORMAT).replace(tzinfo=UTC)


class PauseView:
    """What one process knows of the pause. The promise: it lasts no longer than it was to last in all, from when this
    process heard of it, however the clock is set."""

    def __init__(self) -> None:
        self._note = ""
        self._pause: Pause | None = None
        self._heard_at_s = 0.0

    def note(self, note: str, now_s: float) -> None:
        """What the coordinator holds; `now_s` of the monotonic clock."""
        if note != self._note:
            self._note, self._pause, self._heard_at_s = note, decode_pause(note), now_s

    def at(self, now: datetime, now_s: float) -> Pause | None:
        """The pause that is in force; `now` of this machine's clock, `now_s` of the monotonic one."""
        pause = self._pause
        if pause is None or pause.is_over(now):
            return None
        known = timedelta(seconds=now_s - self._heard_at_s)
        return None if pause.until is not None and known >= pause.until - pause.since else pause
