"""Having changes of the in-sync set filed where whoever will be promoted looks: the coordinator, or else the peers.

A member that left still counts until then. Without a coordinator the peers are asked instead: a primary that was away
learns so, before it confirms anything alone, that another one has taken its place. What that cannot show is a primary
that no peer can reach; docs/decisions/0004-coordinators.md says what follows from it.

A coordinator's record that is older than the one it has confirmed was lost, or put back from a copy. Another broker
may have been recorded in between. So the primary looks at it now and then, and replaces it only when all who could have
been promoted say that they follow it still; otherwise no departure counts, until they do or an operator has decided.

One that was put back just as this primary wrote it cannot be told from the record that it knows, and a compare-and-set
would succeed. So whoever can be reached is asked before a departure is recorded: one that was promoted meanwhile says
so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qpid_ha_broker.ha.effects import PeersAnswered, ReadRecord, Record, RecordRead, RecordWritten, WriteRecord
from qpid_ha_broker.ha.frames import Answer, Topic
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.surroundings import Surroundings
from qpid_ha_broker.ha.verdict import shown_record

_PAUSE_S = 0.2
"""Between two attempts."""
_PATROL_S = 2.0
"""How often a primary without a coordinator looks for a rival."""
_RECORD_PATROL_S = 10.0
"""How often a primary with one looks whether the record is still there."""
_OUTDATED_PAUSE_S = 1.0
"""Between two looks at a record that cannot be replaced yet."""


class Filing:
    """One request at a time; the newest change counts."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.confirmed: Record | None = None
        """The last record that the coordinator has confirmed to this process; kept when it is primary no more."""
        self._expected: Record | None = None
        """What it holds, as far as is known: `confirmed`, or a later change of ours whose answer was lost."""
        self.forget()

    def forget(self) -> None:
        """Primary no more."""
        self._number = 0
        self._wanted: Record | None = None
        self._outdated: Record | None = None
        """What the coordinator holds in place of `confirmed`, and what is older than that."""
        self._blocked: Record | None = None
        """One that could not be replaced, because somebody else may have been recorded in between."""
        self._permitted: Record | None = None
        """One of which an operator has said that it may be replaced: nobody else leads."""
        self.problem = ""
        """Why changes of the in-sync set cannot be recorded, with what to do; empty: they can."""
        self._asked_epoch = 0
        self._answered_epoch = 0
        """The epoch that this broker had when its peers last answered, with a coordinator; none was ahead of it."""
        self._sent_s = 0.0
        self._not_before_s = 0.0

    def begin(self, record: Record | None) -> None:
        """A generation has begun; `record` is what the coordinator holds since."""
        self.forget()
        if record is not None:
            self.confirmed = self._expected = record
        self._sent_s = self._around.clock_s

    def go_on(self, primary: Primary, status: Callable[[], Answer]) -> None:
        """Ask for what is due, unless an answer is on its way."""
        clock_s, settings = self._around.clock_s, self._around.settings
        patrol_s = _RECORD_PATROL_S if settings.has_coordinator else _PATROL_S
        is_patrol_due = clock_s - self._sent_s > patrol_s
        if primary.unfiled is None and not primary.has_doubts and not is_patrol_due and self._outdated is None:
            return
        if self._number and clock_s - self._sent_s > 5 * settings.ask_limit_s:
            self._number = 0  # the driver owes an answer; better twice than never
        if self._number or clock_s < self._not_before_s:
            return
        change = primary.unfiled
        if settings.has_coordinator:
            if self.confirmed is not None:
                self._go_on_with_record(primary, self.confirmed, status, is_patrol_due)
        elif change is not None and not primary.in_sync.awaits_filing:
            primary.filed(change.epoch)
        elif change is not None or primary.has_doubts or is_patrol_due:
            self._ask(status())

    def _go_on_with_record(
        self, primary: Primary, confirmed: Record, status: Callable[[], Answer], is_patrol_due: bool
    ) -> None:
        is_unasked = primary.in_sync.awaits_filing and self._answered_epoch != primary.in_sync.epoch
        if self._outdated is not None or is_unasked:
            self._ask(status())
        elif primary.unfiled is not None and primary.is_unfiled_kept:
            self._write(primary, confirmed.cluster, self._expected or confirmed)
        elif is_patrol_due:
            self._number, self._sent_s = self._around.number(), self._around.clock_s
            self._around.effects.append(ReadRecord(self._number))

    def _write(self, primary: Primary, cluster: str, expected: Record) -> None:
        wanted = Record(cluster, primary.generation, self._around.settings.name, *primary.in_sync.change)
        self._number, self._wanted, self._sent_s = self._around.number(), wanted, self._around.clock_s
        self._around.effects.append(WriteRecord(self._number, expected, wanted))

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
        if self._outdated is not None and self.confirmed is not None:
            self._replace(primary, answers, self.confirmed, self._outdated)
            return ""
        if self._around.settings.has_coordinator:
            self._answered_epoch = self._asked_epoch
            return ""
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

    def record_read(self, primary: Primary, what: RecordRead) -> str:
        """What the coordinator holds; returns why this primary is none any more, if so."""
        if what.number != self._number:
            return ""
        self._number = 0
        if what.record is None or self.confirmed is None:
            return ""
        return self._compare(primary, self.confirmed, what.record)

    def record_written(self, primary: Primary, what: RecordWritten) -> str:
        """The coordinator has spoken; returns why this primary is none any more, if so."""
        if what.number != self._number or self._wanted is None or self.confirmed is None:
            return ""
        self._number = 0
        if what.written or what.record == self._wanted:
            if self._outdated is not None:
                self._around.note("warning", "the coordinator's record was lost, or an old one: it is written anew")
            self.confirmed = self._wanted
            self._holds(self._wanted)
            primary.filed(self._wanted.epoch)
            return ""
        self._outdated = None
        if what.record is None:
            self._not_before_s = self._around.clock_s + _PAUSE_S
            self._around.note("warning", f"the in-sync set cannot be recorded, confirmations wait: {what.problem}")
            return ""
        return self._compare(primary, self.confirmed, what.record)

    def _holds(self, record: Record) -> None:
        self._expected, self.problem = record, ""
        self._outdated = self._blocked = self._permitted = None

    def _compare(self, primary: Primary, confirmed: Record, found: Record) -> str:
        """With what it should hold; returns why this primary is none any more, if so."""
        is_own = found[:3] == confirmed[:3]
        if is_own and found.epoch >= confirmed.epoch:  # it took an earlier change, and its answer was lost
            self._holds(found)
        elif found.cluster not in ("", confirmed.cluster):
            self._blocked = None
            self._complain(f"the coordinator is of the cluster {found.cluster}: correct ha.coordinator")
        elif found.generation > primary.generation or (found.generation == primary.generation and not is_own):
            return f"the coordinator names {found.primary} primary of generation {found.generation}"
        else:
            self._outdated = found
        return ""

    def _replace(self, primary: Primary, answers: Sequence[Answer], confirmed: Record, outdated: Record) -> None:
        may_replace = outdated == self._permitted or primary.holds_all_of(confirmed.members, answers)
        if may_replace and primary.is_unfiled_kept:
            self._write(primary, confirmed.cluster, outdated)
            return
        self._outdated = None
        if may_replace:
            self._not_before_s = self._around.clock_s + _PAUSE_S
            return
        self._blocked = outdated
        self._complain(
            f"the coordinator's record {shown_record(outdated)}, and was generation {confirmed.generation}, epoch"
            f" {confirmed.epoch}: it was lost, or put back from a copy. Bring back who was in sync"
            f" ({', '.join(confirmed.members)}); if none of them leads, use `qpid-ha promote --force` on this one"
        )

    def _complain(self, problem: str) -> None:
        self._not_before_s = self._around.clock_s + _OUTDATED_PAUSE_S
        if problem != self.problem:
            self.problem = problem
            self._around.note("error", f"{problem}; nobody's departure from the in-sync set counts until then")

    def replace_record(self) -> None:
        """An operator says that this broker leads: the record that could not be replaced may be."""
        self._permitted, self._not_before_s = self._blocked, 0.0
