"""Having changes of the in-sync set filed where whoever will be promoted looks: the coordinator, or else the peers.

A member that left still counts until then. Without a coordinator the peers are asked instead: a primary that was away
learns so, before it confirms anything alone, that another one has taken its place. What that cannot show is a primary
that no peer can reach; docs/decisions/0004-coordinators.md says what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.ha.effects import PeersAnswered, Record, RecordWritten, WriteRecord
from qpid_ha_broker.ha.frames import Answer, Topic
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.surroundings import Surroundings

_PAUSE_S = 0.2
"""Between two attempts."""
_PATROL_S = 2.0
"""How often a primary without a coordinator looks for a rival."""


class Filing:
    """One request at a time; the newest change counts."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.forget()

    def forget(self) -> None:
        """Primary no more."""
        self._number = 0
        self._record: Record | None = None
        self._wanted: Record | None = None
        self._asked_epoch = 0
        self._sent_s = 0.0
        self._not_before_s = 0.0

    def begin(self, record: Record | None) -> None:
        """A generation has begun; `record` is what the coordinator holds since."""
        self.forget()
        self._record = record
        self._sent_s = self._around.clock_s

    def go_on(self, primary: Primary, status: Callable[[], Answer]) -> None:
        """Ask for what is due, unless an answer is on its way."""
        clock_s, settings = self._around.clock_s, self._around.settings
        if primary.unfiled is None and not primary.has_doubts and clock_s - self._sent_s <= _PATROL_S:
            return
        if self._number and clock_s - self._sent_s > 5 * settings.ask_limit_s:
            self._number = 0  # the driver owes an answer; better twice than never
        if self._number or clock_s < self._not_before_s:
            return
        change = primary.unfiled
        if settings.has_coordinator:
            if change is not None and self._record is not None:
                wanted = Record(status().cluster, primary.generation, settings.name, *change)
                self._number, self._wanted, self._sent_s = self._around.number(), wanted, clock_s
                self._around.effects.append(WriteRecord(self._number, self._record, wanted))
        elif change is not None and not primary.in_sync.awaits_filing:
            primary.filed(change.epoch)
        elif change is not None or primary.has_doubts or clock_s - self._sent_s > _PATROL_S:
            self._ask(status())

    def _ask(self, own: Answer) -> None:
        self._sent_s, self._asked_epoch = self._around.clock_s, own.epoch
        self._number = self._around.ask(Topic.STATUS, own)

    def peers_answered(self, primary: Primary, what: PeersAnswered) -> str:
        """The peers have spoken; returns why this primary is none any more, if so."""
        own_instance = self._around.settings.instance
        answers = [answer for answer in what.answers if answer.instance != own_instance]
        for answer in answers:
            is_rival = answer.state == State.PRIMARY and answer.name < self._around.settings.name
            if answer.generation > primary.generation or (answer.generation == primary.generation and is_rival):
                return f"{answer.name} is at generation {answer.generation}"
        if what.number != self._number:
            return ""
        self._number = 0
        if any(answer.promised > primary.generation and answer.promised_to for answer in answers):
            # Somebody is being promoted: wait for what comes of it.
            self._not_before_s = self._around.clock_s + _PAUSE_S
            return ""
        if primary.unfiled is not None:
            primary.filed(self._asked_epoch)
        primary.peers_heard(answers)
        if primary.has_doubts:
            self._not_before_s = self._around.clock_s + _PAUSE_S
        return ""

    def record_written(self, primary: Primary, what: RecordWritten) -> str:
        """The coordinator has spoken; returns why this primary is none any more, if so."""
        if what.number != self._number or self._wanted is None:
            return ""
        self._number = 0
        if what.written or what.record == self._wanted:
            self._record = self._wanted
            primary.filed(self._wanted.epoch)
            return ""
        if what.record is None:
            self._not_before_s = self._around.clock_s + _PAUSE_S
            self._around.note("warning", f"the in-sync set cannot be recorded, confirmations wait: {what.problem}")
            return ""
        if (what.record.generation, what.record.primary) != (primary.generation, self._around.settings.name):
            return f"the coordinator names {what.record.primary} primary of generation {what.record.generation}"
        self._record = what.record
        return ""
