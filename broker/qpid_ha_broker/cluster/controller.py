"""The controller: the primary of `default` decides about the brokers and the resource sets of its cluster.

It compares what the map says with what brokers report, and orders what is missing. Nothing that it remembers has to
survive: a new controller goes on from the map and the next reports. The parts have their tables: `liveness` who has
failed, `leadership` who leads, `moves` who should, `replicas` where copies are, `records` what counts.
"""

from __future__ import annotations

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.keeper import ReplicaKeeper
from qpid_ha_broker.cluster.leadership import Leadership
from qpid_ha_broker.cluster.liveness import ASK_SHARE, BrokerLife
from qpid_ha_broker.cluster.messages import OrderKind
from qpid_ha_broker.cluster.moves import Moves
from qpid_ha_broker.cluster.operators import Operators
from qpid_ha_broker.cluster.overview import ClusterOverview
from qpid_ha_broker.cluster.placement import Placement, spread
from qpid_ha_broker.cluster.queue_placement import QueueDirectory
from qpid_ha_broker.cluster.records import SetRecords
from qpid_ha_broker.cluster.reports import DEFAULT
from qpid_ha_broker.cluster.shutdown import SetsShutdown
from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.counted import counted

PASSES = 3
"""So often what an input changes is followed up at once; the rest is when the next one comes."""
LOOK_INTERVAL_S = 1.0
"""Between two looks at what nobody reports."""
ASKED_ABOUT = 3
"""Sets about which a broker in doubt is asked at once. One that it leads is enough; one alone may be led by nobody."""


class Controller:
    """The promise: the map changes only as operators, the records' compare-and-set and the tables of the parts say.

    A cluster that has one set, and in which nobody has asked for another one, has nothing in its map.
    """

    def __init__(self, settings: ms.ControllerSettings, placement: Placement = spread) -> None:
        self._ctx = ctx = ControllerContext(settings, placement)
        self._records = SetRecords(ctx)
        self._leadership = Leadership(ctx, self._records)
        self._moves = Moves(ctx, self._leadership)
        self._keeper = ReplicaKeeper(ctx, self._records)
        self._queues = QueueDirectory(ctx, self._keeper)
        self._shutdown = SetsShutdown(ctx, self._leadership)
        self._operators = Operators(
            ctx, self._leadership, self._moves, self._keeper, self._queues, self._shutdown, self._lost
        )
        self._overview = ClusterOverview(ctx, self._leadership, self._moves, self._keeper)
        self._is_on = False
        self._look_s = 0.0
        self._drained: set[str] = set()
        self._refused: set[str] = set()
        """Processes that were told that they are not of the cluster."""

    @property
    def facts(self) -> dict[str, object]:
        """What it has done since it began, in numbers; nothing in a cluster that has one set."""
        return {} if self._ctx.map.is_empty else self._ctx.figures.facts()

    def change_settings(self, settings: ms.ControllerSettings, placement: Placement) -> None:
        """They count from the next input on."""
        self._ctx.settings, self._ctx.placement = settings, placement
        self._keeper.trigger()

    def handle(self, happened: ms.ControllerInput, now_s: float) -> list[ms.ControllerEffect]:
        """One input; `now_s` is a clock that never goes back. While it is not the controller nothing counts."""
        ctx = self._ctx
        if not self._is_on and not isinstance(happened, ms.ControllerBegan):
            return []
        if isinstance(happened, ms.ControllerEnded):
            self._is_on = False
            return []
        ctx.begin(now_s)
        self._leadership.begin_pass()
        match happened:
            case ms.ControllerBegan():
                self._began(happened)
            case ms.ReportReceived(report):
                self._reported(report)
            case ms.BrokerDisconnected(name, instance):
                if instance in ("", ctx.reports.instance(name)):
                    ctx.liveness.disconnected(name, now_s)
                    self._ask_leaders()
            case ms.BrokerRefuses(name, instance):
                if instance == ctx.reports.instance(name):
                    ctx.liveness.refuses(name, now_s)
            case ms.BrokerAnswered(name, set_name, generation):
                ctx.liveness.question_ended(name)
                record = ctx.draft.sets[set_name].record if set_name in ctx.draft.sets else None
                if record is not None and record.primary == name and generation >= record.generation > 0:
                    ctx.liveness.answered(name, now_s)
            case ms.TimePassed():
                self._tick()
            case ms.RecordRequested() | ms.OrderAnswered():
                self._heard(happened)
            case ms.HeardTogether(inputs):
                for each in inputs:
                    self._heard(each)
            case ms.RequestReceived():
                self._operators.requested(happened)
            case ms.MapWritten(number, lsn):
                ctx.commits.map_written(number, lsn)
            case ms.MapCommitted(lsn):
                ctx.commits.map_committed(lsn)
        self._follow_up()
        return ctx.end()

    def _follow_up(self) -> None:
        """Look at the sets of which something changed."""
        if self._shutdown.is_under_way:
            return
        self._leadership.begin_review()
        for _ in range(PASSES):
            names, self._ctx.dirty = self._ctx.dirty, set()
            if not names:
                return
            for name in sorted(names):
                if name in self._moves.under_way:
                    self._moves.review(name)
                if name in self._ctx.draft.sets:
                    self._leadership.review(name)
                    self._keeper.review(name)

    # --- beginning and time

    def _began(self, began: ms.ControllerBegan) -> None:
        ctx = self._ctx
        ctx.began(began)
        ctx.begin(ctx.now_s)
        ctx.liveness.began(began.name, tuple(ctx.draft.brokers), ctx.now_s)
        self._records.began(was_forced=began.was_forced)
        for part in (
            self._leadership, self._moves, self._keeper, self._operators, self._queues, self._shutdown,
        ):  # fmt: skip
            part.began()
        self._drained.clear()
        self._refused.clear()
        self._is_on, self._look_s = True, ctx.now_s
        ctx.dirty = set(ctx.draft.sets)
        self._look_for_brokers()

    def _look_for_brokers(self) -> None:
        """Most often the one before has failed, with all that it led: who leads most is looked for first."""
        ctx = self._ctx
        led = ctx.primaries()
        awaited = [entry for entry in ctx.draft.brokers.values() if ctx.liveness.life(entry.name) is BrokerLife.AWAITED]
        for entry in sorted(awaited, key=lambda each: (-led[each.name], each.name)):
            ctx.send(ms.LookForBroker(entry.name, entry.address))

    def _ask_leaders(self) -> None:
        """Who is in doubt is asked about some of the sets that it leads by their records, first about what it has said
        that it leads: of others it says nothing. Who is to lead in its place asks again."""
        ctx = self._ctx
        names = ctx.liveness.to_ask(ctx.now_s, ctx.settings.failure_timeout_s)
        if not names:
            return
        led: dict[str, list[SetEntry]] = {name: [] for name in names if name in ctx.draft.brokers}
        for entry in ctx.draft.sets.values():
            if entry.record.generation and entry.record.primary in led and not entry.is_group:
                led[entry.record.primary].append(entry)
        limit_s = ASK_SHARE * ctx.settings.failure_timeout_s
        for name, entries in led.items():
            entries.sort(key=lambda entry: ctx.reports.leads(name, entry.name, entry.record.generation) is None)
            for entry in entries[:ASKED_ABOUT]:
                _, cluster, generation, *_ = entry.record
                ctx.liveness.asked(name)
                ctx.send(ms.AskBroker(name, ctx.draft.brokers[name].address, entry.name, cluster, generation, limit_s))

    def _tick(self) -> None:
        ctx = self._ctx
        settings = ctx.settings
        self._ask_leaders()
        for loss in ctx.liveness.losses(ctx.now_s, settings.gone_after_s, settings.failure_timeout_s):
            self._lost(loss.name, loss.why, loss.since_s)
        self._queues.tick()
        self._leadership.tick()
        self._shutdown.tick()
        if self._shutdown.is_under_way:
            return
        ctx.dirty.update(self._moves.under_way)
        self._operators.try_early_one()
        if ctx.now_s < self._look_s:
            return
        self._look_s = ctx.now_s + LOOK_INTERVAL_S
        ctx.dirty.update(self._leadership.problems)
        self._keeper.tick()
        self._moves.clear_out()
        lost = {name for name in ctx.draft.brokers if ctx.liveness.lost_since_s(name) is not None}
        for name, entry in ctx.draft.sets.items():
            if entry.leaving or not lost.isdisjoint(entry.record.members):
                ctx.dirty.add(name)
        self._note_drained()

    def _note_drained(self) -> None:
        draining = {name for name, broker in self._ctx.draft.brokers.items() if broker.draining}
        drained = {name for name in draining if not self._overview.why_not_to_stop(name)}
        for name in sorted(drained - self._drained):
            self._ctx.note("info", f"broker {name} is drained: it is safe to stop it", name)
        self._drained = drained

    # --- brokers

    def _lost(self, name: str, why: str, since_s: float) -> None:
        """A broker has failed: its sets get other primaries, all at once. `since_s`: when it was still there."""
        ctx = self._ctx
        ctx.reports.forget(name)
        ctx.orders.forget_broker(name)
        self._leadership.broker_lost(name)
        entry = ctx.draft.brokers.get(name)
        if entry is None:
            return
        led = [each.name for each in ctx.draft.sets.values() if each.record.primary == name and not each.is_group]
        ctx.figures.failed(name, since_s, ctx.now_s, led)
        ctx.note("warning", f"broker {name} has failed: {why}; it leads {counted(len(led), 'set')}", name)
        if entry.up:
            ctx.write(ev.BrokerChanged(name, False, entry.draining, ctx.message_time_ms))
        # First of all: as long as `default` waits for it no record of any set is committed.
        ctx.order(ctx.name, DEFAULT, OrderKind.DROP, name, f"{name} has failed")
        # That it is missing where nothing waits for it is looked at within LOOK_INTERVAL_S.
        sets = ctx.draft.sets
        ctx.dirty.update(each for each in self._sets_of(name) if self._leadership.minds_loss(sets[each], name))

    def _sets_of(self, name: str) -> list[str]:
        sets = self._ctx.draft.sets.values()
        return [entry.name for entry in sets if name in entry.replicas or name in entry.record.members]

    def _reported(self, report: ms.BrokerReport) -> None:
        ctx, identity = self._ctx, report.broker
        name = identity.name
        if ctx.reports.is_replaced(identity):
            return
        refusal = self._why_refused(identity)
        if refusal and ctx.liveness.is_in_doubt(name):
            return
        if refusal:
            if identity.instance not in self._refused:
                ctx.note("error", refusal)
            self._refused.add(identity.instance)
            ctx.send(ms.RefuseBroker(name, identity.instance, refusal))
            return
        self._refused.discard(identity.instance)
        is_other = ctx.reports.instance(name) not in ("", identity.instance)
        is_new = ctx.liveness.heard(name, ctx.now_s)
        if is_other:
            ctx.orders.forget_broker(name)
        elif report.full:
            ctx.orders.reconnected(name)
        if is_new or is_other:
            ctx.leaving_until_s.pop(name, None)  # it has stopped, and is back
            self._leadership.broker_came(name)
            ctx.dirty.update(self._sets_of(name))
        changed = ctx.reports.take(report)
        if changed is None:
            ctx.send(ms.AskReport(name))
            return
        ctx.dirty.update(each for each in changed if each in ctx.draft.sets)
        self._keeper.trigger(each for each in changed if each in ctx.draft.sets and ctx.reports.failed(each, (name,)))
        if any(replica.unwritable for replica in report.replicas):
            self._moves.clear_out()
        if ctx.draft.brokers:
            self._register(identity)
        self._queues.reported(report)

    def _why_refused(self, identity: ms.BrokerIdentity) -> str:
        """Of two processes with one name the first stays.

        | the name has | reports | is it taken in | why |
        | --- | --- | --- | --- |
        | nobody | anybody | yes | it is new |
        | the same UUID | another process | yes | it was restarted |
        | another UUID, and is the controller itself | the first | yes | it leads `default`, so the map is its own |
        | another UUID, and that one lives | | no | two brokers have one name, and one of them has its data |
        | another UUID, and that one is in doubt | | not yet | it reports again, and by then it is known |
        | another UUID, and that one is lost | | yes | its data is gone, and it catches up from nothing |
        """
        ctx, name = self._ctx, identity.name
        entry = ctx.draft.brokers.get(name)
        there = ctx.reports.brokers.get(name)
        uuid = there.identity.uuid if there is not None else entry.uuid if entry is not None else identity.uuid
        is_own = name == ctx.name and there is None
        if uuid == identity.uuid or is_own or ctx.liveness.lost_since_s(name) is not None:
            return ""
        return (
            f"a broker {name} with the UUID {uuid} is of this cluster, and {identity.address} reports as {name} with"
            f" {identity.uuid}: give one of them another `name`; if the first one is gone for good, try again once it"
            " counts as failed"
        )

    def _register(self, identity: ms.BrokerIdentity) -> None:
        """Have the map say of a broker what it says itself."""
        ctx = self._ctx
        name, uuid, _, address, clients_url, zone, version = identity
        entry = ctx.draft.brokers.get(name)
        if entry is not None and entry.uuid != uuid:
            ctx.note(
                "warning", f"broker {name} is back with another UUID: what it held is gone, and is copied again", name
            )
        if entry is None or entry[:6] != (name, uuid, address, clients_url, zone, version):
            ctx.write(ev.BrokerRegistered(name, uuid, address, clients_url, zone, version))
        if entry is None:
            ctx.note("info", f"broker {name} joins the cluster", name)
            ctx.write(ev.BrokerChanged(name, True, False, ctx.message_time_ms))
            self._keeper.trigger()
            self._keeper.close_ring(list(ctx.draft.sets))
        elif not entry.up:
            ctx.note("info", f"broker {name} is back", name)
            ctx.write(ev.BrokerChanged(name, True, entry.draining, ctx.message_time_ms))
            self._keeper.trigger(self._sets_of(name))

    def _heard(self, heard: ms.RecordRequested | ms.OrderAnswered) -> None:
        if isinstance(heard, ms.RecordRequested):
            self._records.requested(heard)
        else:
            self._order_answered(heard.number, heard.done, heard.text)

    def _order_answered(self, number: int, done: bool, text: str) -> None:
        self._queues.deletion_answered(number, done, text)
        self._leadership.promotion_ended(number, done, text)
        order = self._ctx.orders.answered(number)
        if order is None:
            return
        self._ctx.dirty.add(order.set)
        if order.kind is OrderKind.SWITCH_OVER:
            self._moves.answered(order, done, text)
            if done and order.set in self._ctx.draft.sets:
                self._leadership.handed_over(order)
        elif order.kind is OrderKind.SHUT_DOWN:
            self._shutdown.answered(order.set, done, text)
        else:
            self._leadership.answered(order, done, text)
