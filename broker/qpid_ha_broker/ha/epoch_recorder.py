"""Having changes of the in-sync set recorded where a candidate will look: with the coordinator, or else with the peers.

A member that left still counts until then. Without a coordinator the peers are asked instead: a primary that was away
learns so, before it confirms anything alone, that another one has taken its place. What that cannot show is a primary
that no peer can reach; docs/decisions/0004-coordinators.md says what follows from it.

The cases of a coordinator's record, as it is read or comes back from a compare-and-set (`_compare`):

1. It is ours, and no older: it took a change whose answer was lost.
2. It is of another cluster: a wrong setting, or left by one that is no more; nothing is recorded until an operator has
   corrected that.
3. It names another primary of this generation, or a newer one: this primary was deposed.
4. It is older than what was confirmed to us: it was lost, or put back from a copy. Another broker may have been
   recorded in between, so it is replaced only when all who could have been promoted say that they follow this primary
   still; otherwise no departure counts, until they do or an operator has decided.

One that was put back just as this primary wrote it cannot be told from the record that it knows, and a compare-and-set
would succeed. So whoever can be reached is asked before a departure is recorded: one that was promoted meanwhile says
so.

A promotion has its generation recorded as claimed. Once its first events are committed the record says that it has
begun (`has_begun`): nobody waits for that, so it gives way to every change of the in-sync set, which says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.effects import PeersAnswered, ReadRecord, RecordRead, RecordWritten, WriteRecord
from qpid_ha_broker.ha.frames import Answer, Topic
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.rival_watch import RivalWatch
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import shown_record

_PAUSE_S = 0.2
"""Between two attempts."""
_PATROL_S = 2.0
"""How often a primary without a coordinator, or without anybody in sync, looks for a rival."""
_RECORD_PATROL_S = 10.0
"""How often a primary with one looks whether the record is still there; one that is alone looks more often, because
nobody else would tell it that another one was recorded."""
_OUTDATED_PAUSE_S = 1.0
"""Between two looks at a record that cannot be replaced yet."""
_NOTE_AGAIN_S = 30.0
"""Between two lines of the log about the same reason."""
_BEGIN_PAUSE_S = 2.0
"""Between two attempts to record that the generation has begun."""


class Deposed(NamedTuple):
    """Another broker leads; this one must not confirm anything more."""

    reason: str


class EpochRecorder:
    """One for each generation that this broker leads. One request at a time; the newest change counts."""

    def __init__(
        self, ctx: MemberContext, primary: Primary, own: Callable[[], Answer], confirmed: ClusterRecord | None
    ) -> None:
        self._ctx = ctx
        self._primary = primary
        self._own = own
        """What this broker would answer itself."""
        self.confirmed = confirmed
        """The last record that the coordinator has confirmed to this process."""
        self._expected = confirmed
        """What it holds, as far as is known: `confirmed`, or a later change of ours whose answer was lost."""
        self._record_problem: str | None = None
        """Why changes of the in-sync set cannot be recorded, with what to do."""
        self._rivals = RivalWatch(ctx, primary)
        self._unwritten_since_s: float | None = None
        self._note_not_before_s = 0.0
        self._number = 0
        """Of the request whose answer is awaited; 0: none is."""
        self._wanted: ClusterRecord | None = None
        self._outdated: ClusterRecord | None = None
        """What the coordinator holds in place of `confirmed`, and what is older than that."""
        self._blocked: ClusterRecord | None = None
        """One that could not be replaced, because somebody else may have been recorded in between."""
        self._permitted: ClusterRecord | None = None
        """One of which an operator has said that it may be replaced: nobody else leads."""
        self._asked_epoch = 0
        self._answered_epoch = 0
        """The epoch that this broker had when its peers last answered, with a coordinator; none was ahead of it."""
        self._sent_s = self._looked_s = ctx.clock_s
        self._not_before_s = 0.0
        self._begin_not_before_s = 0.0
        self._is_begin_awaited = False
        """The request whose answer is awaited only says that the generation has begun."""

    @property
    def problem(self) -> str | None:
        """What an operator has to decide, with what to do; None: nothing."""
        return "; ".join(filter(None, (self._rivals.problem, self._record_problem))) or None

    @property
    def has_work(self) -> bool:
        """Whether something is to be recorded, or the peers are to be asked before a backup may join."""
        confirmed = self.confirmed  # asked after each input: most do not get further
        return self._is_urgent or (confirmed is not None and confirmed.claimed and self._is_begin_due)

    @property
    def _is_urgent(self) -> bool:
        return self._primary.unrecorded is not None or self._primary.needs_peer_check or self._outdated is not None

    @property
    def _is_begin_due(self) -> bool:
        """Whether the record still says that this generation is only claimed."""
        is_claimed = self.confirmed is not None and self.confirmed.claimed
        return is_claimed and self._primary.in_sync.has_begun and self._ctx.clock_s >= self._begin_not_before_s

    def go_on(self) -> None:
        """Ask for what is due, unless an answer is on its way."""
        clock_s, settings, primary = self._ctx.clock_s, self._ctx.settings, self._primary
        is_told = settings.has_coordinator and len(primary.in_sync.members) > 1
        is_calm = is_told and not (self._rivals.has_rival or self._ctx.was_asked_by_stranger)
        patrol_s = _RECORD_PATROL_S if is_calm else _PATROL_S
        is_patrol_due = clock_s - self._sent_s > patrol_s
        if not self.has_work and not is_patrol_due:
            return
        if self._number and clock_s - self._sent_s > 5 * settings.ask_limit_s:
            self._number = 0  # the driver owes an answer; better twice than never
        if self._is_begin_awaited and self._is_urgent:
            self._number = 0  # if the record has changed by that, it says so to the next change, which goes on from it
        if self._number or clock_s < self._not_before_s:
            return
        change = primary.unrecorded
        if settings.has_coordinator:
            if self.confirmed is not None:
                self._go_on_with_record(self.confirmed, is_patrol_due)
        elif change is not None and not primary.in_sync.awaits_record:
            primary.recorded(change.epoch)
        elif change is not None or primary.needs_peer_check or is_patrol_due:
            self._ask()

    def _go_on_with_record(self, confirmed: ClusterRecord, is_patrol_due: bool) -> None:
        primary = self._primary
        is_unasked = primary.in_sync.awaits_record and self._answered_epoch != primary.in_sync.epoch
        if self._outdated is not None or is_unasked:
            self._ask()
        elif primary.unrecorded is not None and primary.is_unrecorded_durable:
            self._write(confirmed, self._expected or confirmed)
        elif primary.unrecorded is None and self._is_begin_due:
            self._begin_not_before_s = self._ctx.clock_s + _BEGIN_PAUSE_S
            self._write(confirmed, self._expected or confirmed)
            self._is_begin_awaited = True
        elif is_patrol_due:
            self._number, self._sent_s = self._ctx.number(), self._ctx.clock_s
            self._is_begin_awaited = False
            self._ctx.effects.append(ReadRecord(self._number))
            self._look_around()

    def _look_around(self) -> None:
        """Who has another coordinator is not in this record, and may lead."""
        self._looked_s = self._ctx.clock_s
        self._ctx.was_asked_by_stranger = False
        if not self._ctx.settings.cluster:
            self._ctx.ask(Topic.STATUS, self._own())

    def _write(self, confirmed: ClusterRecord, expected: ClusterRecord) -> None:
        primary, change = self._primary, self._primary.in_sync.change
        claimed = confirmed.claimed and not primary.in_sync.has_begun and primary.unrecorded is None
        wanted = ClusterRecord(confirmed.cluster, primary.generation, self._ctx.settings.name, *change, claimed)
        self._number, self._wanted, self._sent_s = self._ctx.number(), wanted, self._ctx.clock_s
        self._is_begin_awaited = False
        self._ctx.effects.append(WriteRecord(self._number, expected, wanted))

    def _ask(self) -> None:
        own = self._own()
        self._sent_s, self._asked_epoch, self._is_begin_awaited = self._ctx.clock_s, own.epoch, False
        self._number = self._ctx.ask(Topic.STATUS, own)

    # --- answers

    def peers_answered(self, answered: PeersAnswered) -> Deposed | None:
        """The peers have spoken."""
        own, primary = self._ctx.settings, self._primary
        others = [answer for answer in answered.answers if answer.instance != own.instance]
        cluster = self._own().cluster
        answers = [answer for answer in others if answer.cluster in ("", cluster)]
        self._rivals.heard(others, cluster, are_all_here=not answered.unreachable)
        for answer in answers:
            is_rival = answer.state == State.PRIMARY and answer.name < own.name
            if answer.generation > primary.generation or (answer.generation == primary.generation and is_rival):
                return Deposed(f"{answer.name} is at generation {answer.generation}")
        if answered.number != self._number:
            return None
        self._number = 0
        if self._outdated is not None and self.confirmed is not None:
            self._replace(answers, self.confirmed, self._outdated)
            return None
        if own.has_coordinator:
            self._answered_epoch = self._asked_epoch
            return None
        if any(answer.promised > primary.generation and answer.promised_to for answer in answers):
            # Somebody is being promoted: wait for what comes of it.
            self._not_before_s = self._ctx.clock_s + _PAUSE_S
            return None
        if primary.unrecorded is not None:
            primary.recorded(self._asked_epoch)
        primary.peers_heard(answers)
        if primary.needs_peer_check:
            self._not_before_s = self._ctx.clock_s + _PAUSE_S
        return None

    def record_read(self, read: RecordRead) -> Deposed | None:
        """What the coordinator holds."""
        if read.number != self._number:
            return None
        self._number = 0
        if read.record is None or self.confirmed is None:
            return None
        return self._compare(self.confirmed, read.record)

    def record_written(self, written: RecordWritten) -> Deposed | None:
        """The coordinator has spoken."""
        if written.number != self._number or self._wanted is None or self.confirmed is None:
            return None
        self._number = 0
        if written.written or written.record == self._wanted:
            if self._outdated is not None:
                keeper = self._ctx.settings.keeper.name
                self._ctx.note("warning", f"{keeper}'s record was lost, or an old one: it is written anew")
            self.confirmed = self._wanted
            self._note_recorded()
            self._holds(self._wanted)
            self._primary.recorded(self._wanted.epoch)
            return None
        self._outdated = None
        if written.record is None and self._is_begin_awaited:
            return None
        if written.record is None:
            self._not_before_s = self._ctx.clock_s + _PAUSE_S
            self._note_write_problem(written.problem)
            if self._ctx.clock_s - self._looked_s > _RECORD_PATROL_S:  # it is tried again at once, so no patrol comes
                self._look_around()
            return None
        return self._compare(self.confirmed, written.record)

    def _note_write_problem(self, problem: str) -> None:
        """It is tried again several times a second: the reason is logged when it is another one, and now and then."""
        clock_s = self._ctx.clock_s
        if self._unwritten_since_s is None:
            self._unwritten_since_s = clock_s
        commits = self._primary.commits
        if problem == commits.write_problem and clock_s < self._note_not_before_s:
            return
        commits.write_problem, self._note_not_before_s = problem, clock_s + _NOTE_AGAIN_S
        since_s = clock_s - self._unwritten_since_s
        for_long = f" for {since_s:.0f} s" if since_s >= 1 else ""
        self._ctx.note("warning", f"the in-sync set cannot be recorded{for_long}, confirmations wait: {problem}")

    def _note_recorded(self) -> None:
        if self._unwritten_since_s is not None:
            since_s = self._ctx.clock_s - self._unwritten_since_s
            self._ctx.note("info", f"the in-sync set is recorded, after {since_s:.1f} s: confirmations go on")
        self._primary.commits.write_problem, self._unwritten_since_s = "", None

    def _holds(self, record: ClusterRecord) -> None:
        self._expected = record
        self._show(None)
        self._outdated = self._blocked = self._permitted = None

    def _compare(self, confirmed: ClusterRecord, record: ClusterRecord) -> Deposed | None:
        """`record` with what the coordinator should hold; the cases are at the top of this module."""
        generation, keeper = self._primary.generation, self._ctx.settings.keeper
        is_own = record[:3] == confirmed[:3]
        if is_own and record.position >= confirmed.position:
            self._holds(record)
        elif record.cluster not in ("", confirmed.cluster):
            self._blocked = None
            self._complain(keeper.foreign_record.format(theirs=record.cluster, ours=confirmed.cluster))
        elif record.generation > generation or (record.generation == generation and not is_own):
            return Deposed(f"{keeper.name} names {record.primary} primary of generation {record.generation}")
        else:
            self._outdated = record
        return None

    def _replace(self, answers: Sequence[Answer], confirmed: ClusterRecord, outdated: ClusterRecord) -> None:
        may_replace = outdated == self._permitted or self._primary.holds_all_of(confirmed.members, answers)
        if may_replace and self._primary.is_unrecorded_durable:
            self._write(confirmed, outdated)
            return
        self._outdated = None
        if may_replace:
            self._not_before_s = self._ctx.clock_s + _PAUSE_S
            return
        self._blocked = outdated
        keeper, name = self._ctx.settings.keeper, self._ctx.settings.name
        self._complain(
            f"{keeper.name}'s record {shown_record(outdated)}, and was generation {confirmed.generation}, epoch"
            f" {confirmed.epoch}: it was lost, or put back from a copy. Bring back who was in sync"
            f" ({', '.join(confirmed.members)}); if none of them leads, {keeper.rewrite_leading.format(broker=name)}"
        )

    def _complain(self, problem: str) -> None:
        self._not_before_s = self._ctx.clock_s + _OUTDATED_PAUSE_S
        if problem != self._record_problem:
            self._show(problem)
            self._ctx.note("error", f"{problem}; nobody's departure from the in-sync set counts until then")

    def _show(self, problem: str | None) -> None:
        if problem != self._record_problem:
            self._record_problem = problem
            self._ctx.is_status_stale = True

    def replace_record(self) -> None:
        """An operator says that this broker leads: the record that could not be replaced may be."""
        self._permitted, self._not_before_s = self._blocked, 0.0
        self._rivals.forget(self._own().cluster)
