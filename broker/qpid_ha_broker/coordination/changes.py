"""What operators have changed by hand in a coordinator's record: its note `history`, a line of JSON for each. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from qpid_ha_broker.coordination.coordinator import LONGEST_NOTE_BYTES
from qpid_ha_broker.coordination.record import decode_record, encode_record
from qpid_ha_broker.ha.cluster_record import ClusterRecord

HISTORY_NOTE: Final = "history"
MOST_CHANGES: Final = 100
LONGEST_REASON: Final = 200
"""In characters."""
LONGEST_BYTES: Final = LONGEST_NOTE_BYTES * 3 // 4
"""Of the note; less than may be, because a coordinator may write each quote in three characters."""


class RecordChange(NamedTuple):
    """One change: `before` was replaced by `after`."""

    at_ms: int
    """By the wall clock of the machine where it was typed."""
    operator: str
    before: ClusterRecord
    after: ClusterRecord
    is_forced: bool = False
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """The shape that `from_json` takes."""
        return {
            "at_ms": self.at_ms,
            "operator": self.operator,
            "forced": self.is_forced,
            "reason": self.reason,
            "from": json.loads(encode_record(self.before)),
            "to": json.loads(encode_record(self.after)),
        }

    @classmethod
    def from_json(cls, document: object) -> RecordChange:
        """The inverse. Raises ValueError with what is wrong."""
        if not isinstance(document, dict):
            raise ValueError("expected an object")
        at_ms, operator, reason = document.get("at_ms"), document.get("operator"), document.get("reason")
        if not isinstance(at_ms, int) or not isinstance(operator, str) or not isinstance(reason, str):
            raise ValueError("expected at_ms, operator and reason")
        before, after = (decode_record(json.dumps(document.get(name)).encode()) for name in ("from", "to"))
        return cls(at_ms, operator, before, after, document.get("forced") is True, reason)


def read_changes(note: str) -> list[RecordChange]:
    """Oldest first. Raises ValueError with the line that cannot be read."""
    changes = []
    for number, line in enumerate(note.splitlines(), start=1):
        try:
            changes.append(RecordChange.from_json(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} of the coordinator's note {HISTORY_NOTE}: {error}") from None
    return changes


def with_change(note: str, change: RecordChange) -> str:
    """The note with one more line; the oldest ones go when it gets too long."""
    change = change._replace(reason=change.reason[:LONGEST_REASON])
    lines = [*note.splitlines(), _compact(change)][-MOST_CHANGES:]
    while len(lines) > 1 and _size(lines) > LONGEST_BYTES:
        del lines[0]
    return "".join(f"{line}\n" for line in lines)


def _compact(change: RecordChange) -> str:
    return json.dumps(change.to_json(), ensure_ascii=False, separators=(",", ":"))


def _size(lines: Sequence[str]) -> int:
    """In bytes."""
    return sum(len(line.encode()) + 1 for line in lines)
