"""Who leads each set: the controller sees that everyone has a primary, and chooses the next one when it has failed.

What is done about one set (`Leadership.review`), the first that applies:

| what is | what is done | why |
| --- | --- | --- |
| it is a group, and serves, by the report of the recorded primary | nothing | its members have themselves recorded |
| it is another group | say who is missing | nobody is told to lead it |
| a broker out of the list is in the record, and nobody leads | it is put back | it may hold what nobody else does |
| the recorded primary leads, by its own report | who is lost, or has no replica, is dropped | nobody waits for it |
| the recorded primary says that it cannot lead any more | as below, without waiting for it | nothing comes of that |
| a new controller has not heard of the recorded primary yet | wait | it may lead |
| somebody was named a moment ago, and is alive | wait | he begins |
| its primary hands over, or said so a moment ago | wait | the other one begins |
| somebody was told to lead, and has not answered | wait | he asks the others first |
| all in sync were asked and have refused, and another has data | that one is told to | see `_others` |
| all who could were asked, and have refused | wait a second | what they wait for may come |
| nobody has ever led it, and one of its list is missing or not ready | wait | he may hold what the record lacks |
| one in sync of whom a new controller has not heard yet rather should, as follows | wait a moment | it may live |
| who is to lead it, as follows, begins with others | wait | see `promotion_turns` |
| nobody has ever led it | the preferred, else who leads fewest is told to | |
| some in sync are alive | the furthest is told to, then the preferred, then who leads fewest | it has all |
| none is | wait, and say who is missing | an operator knows whether they come back |

A primary of which nothing was heard, though nobody knows that it is gone (`liveness`), may live. If it answers whoever
is told to lead, it stays as long as it can confirm what comes, and else hands over. If it does not answer him because
he has no channel to it, he leaves that to another one who has.
"""

from __future__ import annotations

from typing import NamedTuple

from qpid_ha_broker.cluster.context import ORDER_LIMIT_S, ControllerContext
from qpid_ha_broker.cluster.group_standing import why_not_served
from qpid_ha_broker.cluster.leader_choice import LeaderChoice
from qpid_ha_broker.cluster.liveness import BrokerLife
from qpid_ha_broker.cluster.messages import FAILED, AnswerRequest, GiveOrder, OrderKind, ReplicaReport
from qpid_ha_broker.cluster.promotion_turns import PromotionTurns
from qpid_ha_broker.cluster.records import SetRecords
from qpid_ha_broker.cluster.reports import ACTIVE, FOLLOWING, MAY_LEAD, RECOVERING
from qpid_ha_broker.cluster_map import SetEntry

PROMOTION_LIMIT_S = 20.0
"""So long an operator waits at most for what comes of a promotion that he wants."""
NOTICED_S = 2.0
"""Within that a primary at rest notices by itself that a backup's process is gone: see `server.peers.sub_channels`."""
RETRY_S = 1.0
RETRY_MOST_S = 10.0
"""After all who could lead have refused: the first pause and the longest; it doubles, and begins anew with a broker."""


class _Wanted(NamedTuple):
    """A promotion that an operator waits for."""

    request: int
    set: str
    broker: str
    since_s: float
    gives_up: str
    """What, with force; empty: nothing."""


class Leadership:
    """The promise: of a set that could have a primary somebody is told to lead, and never two at a time."""

    def __init__(self, ctx: ControllerContext, records: SetRecords) -> None:
        self._ctx, self._records = ctx, records
        self.problems: dict[str, str] = {}
        """Why a set has no primary; those that have one are not in it."""
        self._refused: dict[str, dict[str, str]] = {}
        """Of a set without primary, who would not lead, and why."""
        self._retry_s: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}
        self._handed: dict[tuple[str, int], tuple[str, float]] = {}
        """Of (set, generation): to whom its primary has handed over, and when."""
        self._dropped: set[tuple[str, int, str]] = set()
        """(set, generation, backup): its primary has confirmed that it does not wait for it."""
        self._noted: dict[tuple[str, str], str] = {}
        """Of (set, broker) the last refusal that was logged."""
        self._wanted: dict[int, _Wanted] = {}
        """By the number of the order."""
        self._choice = LeaderChoice(ctx)
        self._turns = PromotionTurns(ctx)

    def began(self) -> None:
        """A new controller does not know what the old one has tried."""
        for table in (self.problems, self._refused, self._retry_s, self._pause_s):
            table.clear()
        self._dropped.clear()
        self._handed.clear()
        self._wanted.clear()
        self._turns.began()

    def forget_set(self, name: str) -> None:
        """It was deleted, or is led."""
        self._ctx.figures.settled(name, self._ctx.now_s)
        self._turns.forget_set(name)
        for table in (self.problems, self._refused, self._retry_s, self._pause_s):
            table.pop(name, None)

    def broker_came(self, broker: str) -> None:
        """It is there or back: when it is lost again, that is another loss; and who refused may have waited for it."""
        self._dropped = {key for key in self._dropped if key[2] != broker}
        self._retry_s.clear()
        self._pause_s.clear()

    def begin_pass(self) -> None:
        """What is counted is counted once for many sets."""
        self._choice.begin_pass()
        self._turns.begin_pass()

    def begin_review(self) -> None:
        """Sets are about to be looked at; some may have waited for others."""
        self._turns.go_on()

    def leads(self, entry: SetEntry) -> bool:
        """Whether the set's primary leads it, by its own report."""
        record, ctx = entry.record, self._ctx
        return (
            record.generation > 0
            and ctx.liveness.is_alive(record.primary)
            and ctx.reports.leads(record.primary, entry.name, record.generation) is not None
        )

    def review(self, name: str) -> None:
        """By the table above."""
        entry = self._ctx.draft.sets[name]
        if self.leads(entry):
            self.forget_set(name)
            if not entry.is_group:
                self._drop_lost(entry)
            return
        if entry.is_group:
            self.problems[name] = why_not_served(self._ctx, entry)
            return
        wait = self._why_wait(entry)
        if wait:
            self.problems[name] = wait
            return
        lacking = self._why_not_first(entry) if not entry.record.generation else ""
        candidates = [] if lacking else self._candidates(entry)
        if lacking or not candidates:
            self._put_back(entry)
            self.problems[name] = lacking or self._why_nobody(entry)
            return
        refused = self._refused.setdefault(name, {})
        left = [each for each in candidates if each not in refused]
        left = left or [each for each in self._others(entry, candidates) if each not in refused]
        if not left:
            self.problems[name] = "; ".join(f"{who}: {why}" for who, why in refused.items())
            self._pause_s[name] = min(RETRY_MOST_S, 2 * self._pause_s.get(name, RETRY_S / 2))
            self._retry_s[name] = self._ctx.now_s + self._pause_s[name]
            refused.clear()
            self._put_back(entry)
            return
        chosen = self._choice.best(entry, left)
        expected = self._choice.expected(entry, chosen)
        self._choice.count(expected or chosen)
        if expected:
            self.problems[name] = f"{expected} is to lead it rather than {chosen}, and has not been heard of yet"
            return
        if not self._turns.has_turn(chosen, name):
            self.problems[name] = f"{chosen} is to lead it, and begins with others first"
            return
        self.problems[name] = f"{chosen} is told to lead"
        cause = f"{entry.record.primary} has failed" if entry.record.generation else "the set is new"
        self._ctx.order(chosen, name, OrderKind.PROMOTE, self._predecessor(entry, chosen), cause)

    def _predecessor(self, entry: SetEntry, chosen: str) -> str:
        """The primary that may live, for who is to lead in its place; empty: there is none, or it need not be minded.

        Once all have refused, who has no channel to it leaves it to nobody else any more: another one that has may be
        out of our reach. And what that primary confirms it confirms with him, who is in sync.
        """
        replica = self._ctx.reports.replica(chosen, entry.name)
        is_cut_off = replica is not None and replica.state != FOLLOWING
        return "" if is_cut_off and entry.name in self._pause_s else self._ctx.predecessor(entry.record, chosen)

    def _why_wait(self, entry: SetEntry) -> str:
        begins = self._who_begins(entry)
        if not begins and self._ctx.now_s < self._retry_s.get(entry.name, 0.0):
            return self.problems.get(entry.name, "")
        return begins

    def _who_begins(self, entry: SetEntry) -> str:
        """Who may lead in a moment; empty: nobody."""
        ctx, record = self._ctx, entry.record
        if ctx.reports.failed(entry.name, (record.primary,)):
            return self._who_was_told(entry)
        if record.primary and ctx.liveness.life(record.primary) is BrokerLife.AWAITED:
            return f"{record.primary} has not been heard of yet"
        changed_s = self._records.changed_s.get(entry.name, -ORDER_LIMIT_S)
        if ctx.now_s - changed_s < ORDER_LIMIT_S and ctx.liveness.is_alive(record.primary):
            return f"{record.primary} begins generation {record.generation}"
        return self._who_was_told(entry)

    def _who_was_told(self, entry: SetEntry) -> str:
        ctx = self._ctx
        to = self._hands_over_to(entry)
        if to and ctx.liveness.is_alive(to):
            return f"{entry.record.primary} hands over to {to}"
        pending = ctx.orders.pending(entry.name, OrderKind.PROMOTE, ctx.now_s)
        if pending is not None and ctx.liveness.is_alive(pending.broker):
            return f"{pending.broker} is told to lead"
        return ""

    def _hands_over_to(self, entry: SetEntry) -> str:
        """Empty: nobody that is known."""
        now_s = self._ctx.now_s
        pending = self._ctx.orders.pending(entry.name, OrderKind.SWITCH_OVER, now_s)
        if pending is not None:
            return pending.to
        to, handed_s = self._handed.get((entry.name, entry.record.generation), ("", 0.0))
        return to if now_s - handed_s < ORDER_LIMIT_S else ""

    def _why_not_first(self, entry: SetEntry) -> str:
        """All of its list must be there and empty. Who cannot be does not stay in it (`replicas`), unless it is not
        known whether anybody has data."""
        for name in entry.replicas:
            replica = self._ctx.reports.replica(name, entry.name) if self._ctx.liveness.is_alive(name) else None
            if replica is not None and replica.state in MAY_LEAD:
                continue
            why = "" if replica is None or not replica.problem else f": {replica.problem}"
            if self._records.is_new(entry):
                return f"it is new, and {name} does not host it yet{why}"
            others = [each for each in entry.replicas if each != name]
            force = f"`qpid-ha set promote {entry.name} {others[0] if others else 'BROKER'} --force`"
            return (
                f"nobody has led it, by its record, but `default` was once promoted by force, and may have lost a newer"
                f" one; {name} does not host it yet{why}: start that, or, if it never had data of {entry.name}, {force}"
            )
        return ""

    def _candidates(self, entry: SetEntry) -> list[str]:
        record = entry.record
        may_be_empty = record.claimed or not record.generation
        return [
            name
            for name in (record.members if record.generation else entry.replicas)
            if self._may_lead(entry, name) and (may_be_empty or self._choice.position(entry, name) > (0, 0))
        ]

    def _others(self, entry: SetEntry, candidates: list[str]) -> list[str]:
        """Who is not in the record and has data: it may go further than those who are, or was not restarted, unlike
        those; all may have died before it was recorded.

        Its own log knows, and so the broker decides whether it may lead; those of the record refuse for its sake.
        """
        if not entry.record.generation:
            return []
        return [
            name
            for name in entry.replicas
            if name not in candidates and self._may_lead(entry, name) and self._choice.position(entry, name) > (0, 0)
        ]

    def _may_lead(self, entry: SetEntry, name: str) -> bool:
        replica = self._ctx.reports.replica(name, entry.name) if self._ctx.liveness.is_alive(name) else None
        return replica is not None and replica.state in MAY_LEAD and name in entry.replicas

    def _why_nobody(self, entry: SetEntry) -> str:
        record = entry.record
        missing = [name for name in record.members if not self._ctx.liveness.is_alive(name)]
        others = [name for name in record.members if name not in missing]
        whys = "".join(f"; {name} {self._why_not_now(entry, name)}" for name in others)
        start = f": start {', '.join(missing)}" if missing else ""
        return f"in sync were {', '.join(record.members)}{start}{whys}"

    def _why_not_now(self, entry: SetEntry, name: str) -> str:
        """Of one in sync who is there."""
        failed = self._ctx.reports.failed(entry.name, (name,))
        if name in failed:
            return f"cannot lead now ({failed[name]})"
        if self._may_lead(entry, name):
            return "holds nothing of it any more: put its data directory back"
        return "cannot lead now"

    def _put_back(self, entry: SetEntry) -> None:
        """Who is in the record has its data still, and answers no longer because it is out of the list."""
        alive = [name for name in self._ctx.draft.brokers if self._ctx.liveness.is_alive(name)]
        lacking = [name for name in entry.record.members if name not in entry.replicas and name in alive]
        if lacking:
            replicas = (*entry.replicas, *lacking)
            self._ctx.place(entry._replace(replicas=replicas, leaving=(*entry.leaving, *lacking)))

    def _drop_lost(self, entry: SetEntry) -> None:
        """A primary that has just begun waits for all that were in sync; who is lost holds up every confirmation.

        So does who has no replica any more: it was taken away, and its primary failed before that was in the record.
        """
        ctx, record = self._ctx, entry.record
        leading = ctx.reports.leads(record.primary, entry.name, record.generation)
        for name in record.members:
            key = (entry.name, record.generation, name)
            is_failed = bool(ctx.reports.failed(entry.name, (name,))) or ctx.liveness.life(name) is BrokerLife.LOST
            is_away = name not in entry.replicas and leading is not None and leading.phase == RECOVERING
            if name == record.primary or not (is_failed or is_away) or key in self._dropped:
                continue
            if leading is not None and not (_may_wait_for(leading, name) and self.minds_loss(entry, name)):
                continue  # by itself, and its record says so or will: hundreds need not be told one by one
            if ctx.orders.pending(entry.name, OrderKind.DROP, ctx.now_s, name) is None:
                cause = f"{name} has failed" if is_failed else f"{name} has no replica any more"
                ctx.order(record.primary, entry.name, OrderKind.DROP, name, cause)

    def minds_loss(self, entry: SetEntry, broker: str) -> bool:
        """Whether something is to be done at once about a set because that broker is lost.

        Its primary may wait for nothing from there, and knows of the loss itself in a moment: hundreds of those would
        keep the sets waiting that nobody leads.
        """
        ctx, record = self._ctx, entry.record
        leading = ctx.reports.leads(record.primary, entry.name, record.generation)
        if leading is None or leading.phase != ACTIVE or not ctx.liveness.is_gone(broker):
            return True
        lost_since_s = ctx.liveness.lost_since_s(broker)
        is_new = lost_since_s is not None and ctx.now_s - lost_since_s < NOTICED_S
        return not is_new or any(backup.name == broker and backup.lag for backup in leading.backups)

    # --- what an operator wants

    def promote(self, entry: SetEntry, broker: str, request: int, *, force: bool) -> str:
        """Tell `broker` to lead a set that nobody leads; why not, and then nothing has changed. Empty: it is told to.

        `request` is answered with what comes of it. Who is in the record needs no force for the record's sake; that its
        own log, or the stores of others, say otherwise, the broker finds out, and force overrides that as well.
        """
        ctx, name, record = self._ctx, entry.name, entry.record
        replica = ctx.reports.replica(broker, name) if ctx.liveness.is_alive(broker) else None
        begins = self._who_begins(entry)
        if begins:
            return f"{begins}: see what comes of that, and try again (`qpid-ha set show {name}`)"
        reason = self._why_not_promoted(entry, broker, replica)
        if reason or replica is None:
            return reason
        held = f"LSN {replica.lsn} of generation {replica.generation}"
        others = ", ".join(each for each in record.members if each != broker)
        if record.generation and broker not in record.members and not force:
            return (
                f"{broker} is not in sync, and holds {name} up to {held}: in sync were {others} (generation"
                f" {record.generation}, epoch {record.epoch}), and what they have confirmed after that would be lost."
                f" Start them; if their data is lost for good: `qpid-ha set promote {name} {broker} --force`"
            )
        gives_up = f"what only {others or 'others'} confirmed after {held} is given up" if force else ""
        cause = f"an operator forces it, and {gives_up}" if force else "an operator says so"
        if force:
            ctx.note("warning", f"set {name}: {broker} is to lead by force of an operator: {gives_up}", name)
        number = ctx.order_promotion(broker, name, cause, force=force)
        self._wanted[number] = _Wanted(request, name, broker, ctx.now_s, gives_up)
        self.problems[name] = f"{broker} is told to lead"
        return ""

    def confirm(self, entry: SetEntry, request: int) -> None:
        """Tell the set's primary by force that it leads: it may write a record anew that `default` has lost."""
        ctx, primary = self._ctx, entry.record.primary
        number = ctx.order_promotion(primary, entry.name, "an operator says so", force=True)
        self._wanted[number] = _Wanted(request, entry.name, primary, ctx.now_s, "")

    def _why_not_promoted(self, entry: SetEntry, broker: str, replica: ReplicaReport | None) -> str:
        if broker not in entry.replicas:
            return f"{broker} has no replica of {entry.name}: {', '.join(entry.replicas)} have"
        if replica is None:
            return f"{broker} has not told what it holds of {entry.name}: start it first, then try again"
        if replica.state == FAILED:
            return f"{broker} cannot have its replica: {replica.problem}"
        return ""

    def promotion_ended(self, number: int, done: bool, text: str) -> None:
        """A member has answered an order; somebody may wait for that."""
        wanted = self._wanted.pop(number, None)
        if wanted is None:
            return
        name, broker = wanted.set, wanted.broker
        self._ctx.cause(name)  # it is in the history; whoever leads next does so for another reason
        if done:
            told = f"{broker} leads {name}: {text}" + (f"; {wanted.gives_up}" if wanted.gives_up else "")
        elif wanted.gives_up:
            told = f"{broker} does not lead {name}, not even by force: {text}"
        else:
            force = f"`qpid-ha set promote {name} {broker} --force`"
            told = f"{broker} does not lead {name}: {text}. Or, whatever that costs: {force}"
        self._ctx.answer(AnswerRequest(wanted.request, done, told))

    def broker_lost(self, broker: str) -> None:
        """Nothing comes of what it was told."""
        for number, wanted in list(self._wanted.items()):
            if wanted.broker == broker:
                self.promotion_ended(number, False, "it has failed meanwhile")

    def tick(self) -> None:
        """Time has passed: of some promotions nobody will hear any more, and some sets may be led now."""
        self._turns.time_passed()
        self._ctx.dirty.update(self.problems.keys() - self._turns.held)
        for number, wanted in list(self._wanted.items()):
            if self._ctx.now_s - wanted.since_s >= PROMOTION_LIMIT_S:
                text = f"nothing was heard of it within {PROMOTION_LIMIT_S:g} s; see `qpid-ha set show {wanted.set}`"
                self.promotion_ended(number, False, text)

    # --- what comes of orders

    def handed_over(self, order: GiveOrder) -> None:
        """The primary of its set has said that `order.to` takes over."""
        now_s = self._ctx.now_s
        self._handed = {key: each for key, each in self._handed.items() if now_s - each[1] < ORDER_LIMIT_S}
        self._handed[order.set, self._ctx.draft.sets[order.set].record.generation] = order.to, now_s

    def answered(self, order: GiveOrder, done: bool, text: str) -> None:
        """What the member said."""
        name = order.set
        entry = self._ctx.draft.sets.get(name)
        if entry is None:
            return
        if order.kind is OrderKind.DROP and done:
            self._dropped.add((name, entry.record.generation, order.to))
        elif order.kind is OrderKind.PROMOTE and not done and not self.leads(entry):
            self._refused.setdefault(name, {})[order.broker] = text
            if self._noted.get((name, order.broker)) != text:  # it is asked again and again
                self._noted[name, order.broker] = text
                self._ctx.note("warning", f"set {name}: {order.broker} does not lead: {text}", name)
        if order.kind is OrderKind.PROMOTE:
            self._turns.went_on(order.broker)
        self._ctx.dirty.add(name)


def _may_wait_for(leading: ReplicaReport, backup: str) -> bool:
    """Whether a primary may need a backup to confirm anything: of those that are not connected to it, it waits only for
    those that were in sync before it began, and only until it is active."""
    return leading.phase != ACTIVE or any(each.name == backup for each in leading.backups)
