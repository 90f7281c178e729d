"""The controller as coordinator of all sets but `default`: their records are events, replaced by compare-and-set.

What happens to a request, the first that applies:

| request | answer | why |
| --- | --- | --- |
| the set is unknown | nobody knows | it was deleted, or the asker's map is ahead of this controller's |
| it reads | what the map has | it is answered once that is committed |
| the map has what is wanted | written | the answer to the first try was lost |
| the map has something else than expected | what it has | somebody was faster |
| the asker has no replica | what the map has | it was removed, and must not lead, nor decide who is in sync |
| it is a group's, and of another log | what the map has | its log keeps the UUID that it was made with |
| else | written, once that is committed | |
"""

from __future__ import annotations

from collections.abc import Sequence

from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.messages import AnswerRecord, RecordRequested
from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.events.types import SetRecorded


class SetRecords:
    """The promise: a record changes by compare-and-set only, and what was answered is committed."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self.changed_s: dict[str, float] = {}
        """When the primary of a set changed under this controller."""
        self._doubtful: frozenset[str] = frozenset()
        """Sets of which the map may have lost a record."""

    def began(self, *, was_forced: bool) -> None:
        """A new controller. `was_forced`: see `ControllerBegan`."""
        self.changed_s.clear()
        self._doubtful = frozenset(self._ctx.map.sets if was_forced else ())

    def is_new(self, entry: SetEntry) -> bool:
        """Whether nobody has ever led, or served, a set, beyond doubt: its replicas hold nothing.

        A record without generation says so, as long as `default` has lost none: then a store that is away may be the
        last one that has the set's messages.
        """
        return not (entry.record.generation or entry.name in self._doubtful)

    def requested(self, asked: RecordRequested) -> None:
        """By the table above."""
        broker, number, name, expected, wanted = asked
        entry = self._ctx.draft.sets.get(name)
        if entry is None:
            self._ctx.answer(AnswerRecord(broker, number, False, None, f"there is no resource set {name}"))
            return
        record = entry.record if entry.record.name else entry.record._replace(name=name)
        if wanted is None or expected is None:
            self._ctx.answer(AnswerRecord(broker, number, False, record))
        elif record == wanted:
            self._ctx.answer(AnswerRecord(broker, number, True, wanted))
        elif record != expected:
            self._ctx.answer(AnswerRecord(broker, number, False, record))
        elif broker not in entry.replicas:
            text = f"{broker} has no replica of {name} any more"
            self._ctx.answer(AnswerRecord(broker, number, False, record, text))
        elif entry.is_group and record.cluster not in ("", wanted.cluster):
            text = f"the log of {name} is {record.cluster}, and not {wanted.cluster}"
            self._ctx.answer(AnswerRecord(broker, number, False, record, text))
        else:
            self._ctx.write(wanted)
            self._ctx.dirty.add(name)
            if (wanted.generation, wanted.primary) != (record.generation, record.primary):
                self.changed_s[name] = self._ctx.now_s
                self._ctx.remember(name, self._history_text(entry, wanted))
            self._ctx.answer(AnswerRecord(broker, number, True, wanted))

    def _history_text(self, entry: SetEntry, wanted: SetRecorded) -> str:
        if entry.is_group:
            return _group_text(entry.record.members, wanted)
        before = entry.record.primary
        was = f" instead of {before}" if before not in ("", wanted.primary) else ""
        return f"{wanted.primary} leads{was} from generation {wanted.generation}: {self._ctx.cause(entry.name)}"


def _group_text(before: Sequence[str], wanted: SetRecorded) -> str:
    """Who is in sync now, and what that changed. Of the first record of a group nobody came: they are its beginning."""
    came, left = set(wanted.members) - set(before or wanted.members), set(before) - set(wanted.members)
    changes = [f"{', '.join(sorted(names))} {word}" for names, word in ((left, "left"), (came, "came")) if names]
    text = f"the group is {', '.join(wanted.members)}" + (f" ({'; '.join(changes)})" if changes else "")
    return f"{text} from generation {wanted.generation}: {wanted.primary} had that recorded"
