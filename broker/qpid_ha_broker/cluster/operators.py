"""What operators ask of the controller: each request is refused with a sentence that says what to do, or done.

Who is refused changes nothing. What takes long is answered once it is decided, and `ShowCluster` tells how far it is;
a transfer and a rebalancing are answered when they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from qpid_ha_broker.cluster.context import LEAVING_S, ControllerContext
from qpid_ha_broker.cluster.group_recovery import go_on_with
from qpid_ha_broker.cluster.group_standing import why_no_primary
from qpid_ha_broker.cluster.keeper import ReplicaKeeper
from qpid_ha_broker.cluster.leadership import Leadership
from qpid_ha_broker.cluster.messages import (
    AddReplica,
    AnswerRequest,
    ChangeLogin,
    ChangeSetting,
    ClusterRequest,
    CreateSet,
    DeleteQueue,
    DeleteSet,
    DrainBroker,
    FailBroker,
    ForgetBroker,
    LeaveBroker,
    LocateQueue,
    PlanReplicas,
    PromoteReplica,
    Rebalance,
    RemoveReplica,
    RequestReceived,
    SetPolicies,
    SettleQueue,
    ShowCluster,
    ShowHistory,
    ShutDownSets,
    TransferPrimary,
    TrimReplicas,
    UndrainBroker,
)
from qpid_ha_broker.cluster.moves import Moves
from qpid_ha_broker.cluster.overview import ClusterOverview
from qpid_ha_broker.cluster.queue_placement import ClusterRefusal, EarlyRefusal, QueueDirectory
from qpid_ha_broker.cluster.shared_settings import SharedSettings
from qpid_ha_broker.cluster.shutdown import SetsShutdown
from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.model.errors import REASONS

MOST_REPLICAS = 100
_MOVES_PRIMARIES: Final = (TransferPrimary, PromoteReplica, Rebalance)
"""Not done while the cluster is shut down: a set that has ended in order would be led again."""


class Operators:
    """The promise: a request that is refused changes nothing, and every request is answered once."""

    def __init__(
        self,
        ctx: ControllerContext,
        leadership: Leadership,
        moves: Moves,
        keeper: ReplicaKeeper,
        queues: QueueDirectory,
        shutdown: SetsShutdown,
        lose: Callable[[str, str, float], None],
    ) -> None:
        self._ctx, self._leadership, self._moves, self._keeper, self._queues = ctx, leadership, moves, keeper, queues
        self._shutdown = shutdown
        self._lose = lose
        self._overview = ClusterOverview(ctx, leadership, moves, keeper)
        settings = SharedSettings(ctx)
        self._early: dict[int, tuple[RequestReceived, float]] = {}
        """Requests that wait for reports of brokers, and until when, by number."""
        self._do: Final[dict[type[ClusterRequest], Callable[[int, Any], None]]] = {
            CreateSet: self._create_set,
            DeleteSet: self._delete_set,
            TransferPrimary: self._transfer,
            PromoteReplica: self._promote,
            AddReplica: self._add_replica,
            RemoveReplica: self._remove_replica,
            DrainBroker: self._drain,
            UndrainBroker: self._undrain,
            LeaveBroker: self._leave,
            FailBroker: self._fail,
            ForgetBroker: self._forget,
            SetPolicies: self._set_policies,
            Rebalance: self._rebalance,
            PlanReplicas: self._plan,
            TrimReplicas: self._trim,
            SettleQueue: self._settle_queue,
            DeleteQueue: self._queues.delete,
            LocateQueue: self._queues.locate,
            ShutDownSets: shutdown.begin,
            ShowCluster: self._show,
            ShowHistory: self._show_history,
            ChangeSetting: settings.change,
            ChangeLogin: settings.change_login,
        }

    def began(self) -> None:
        """A new controller has no requests."""
        self._early.clear()

    def requested(self, asked: RequestReceived) -> None:
        """Do it, or say why not."""
        self._try(asked, self._ctx.now_s + self._ctx.settings.failure_timeout_s)

    def try_early_one(self) -> None:
        """Time has passed. One at a time, and with nothing else: who is refused takes back what is to be written."""
        if self._early and not self._ctx.draft.events:
            self._try(*self._early.pop(next(iter(self._early))))

    def _try(self, asked: RequestReceived, until_s: float) -> None:
        try:
            if self._shutdown.is_under_way and isinstance(asked.request, _MOVES_PRIMARIES):
                raise ClusterRefusal("the cluster is being shut down: ask again if it is up in a minute all the same")
            self._do[type(asked.request)](asked.number, asked.request)
        except ClusterRefusal as refused:
            if isinstance(refused, EarlyRefusal) and self._ctx.now_s < until_s:
                self._early[asked.number] = asked, until_s
            else:
                reason = REASONS.get(refused.kind)
                result = {} if reason is None else {"reason": reason}
                self._ctx.answer(AnswerRequest(asked.number, False, str(refused), result))

    def _done(self, number: int, text: str, **result: object) -> None:
        self._ctx.answer(AnswerRequest(number, True, text, result))

    # --- the beginning of a cluster of many sets

    def _have_map(self) -> None:
        """Have the brokers in the map: from now on the cluster may have more than one set. Raises ClusterRefusal."""
        ctx = self._ctx
        if ctx.draft.brokers:
            return
        unknown = sorted(ctx.reports.backups_of_default() - ctx.reports.brokers.keys())
        if unknown:
            raise EarlyRefusal(
                f"{', '.join(unknown)} has a replica of `default` and does not report to the controller: it runs a"
                " release that knows no resource sets, so upgrade it first; it was started just now, so try again; or"
                " its address is not in ha.brokers-url of all the others: qpid-ha config set --brokers-url"
            )
        for name, reported in sorted(ctx.reports.brokers.items()):
            _, uuid, _, address, clients_url, zone, version = reported.identity
            ctx.write(ev.BrokerRegistered(name, uuid, address, clients_url, zone, version))
            ctx.write(ev.BrokerChanged(name, True, False, ctx.message_time_ms))

    def _entry(self, name: str, *, has_primary: bool = False) -> SetEntry:
        """Raises ClusterRefusal; with `has_primary` for a group, too."""
        entry = self._ctx.draft.sets.get(name)
        if entry is None:
            others = ", ".join(sorted(self._ctx.draft.sets)[:10]) or "none but `default`, which is driven from outside"
            raise ClusterRefusal(f"there is no resource set {name}; there are {others}")
        if has_primary and entry.is_group:
            raise ClusterRefusal(why_no_primary(self._ctx, entry, is_led=self._leadership.leads(entry)))
        return entry

    def _check_broker(self, name: str) -> None:
        brokers = self._ctx.draft.brokers
        if not brokers:
            raise ClusterRefusal("the cluster has one resource set, `default`: the map has no brokers yet")
        if name not in brokers:
            raise ClusterRefusal(f"there is no broker {name}; there are {', '.join(sorted(brokers))}")

    # --- sets

    def _create_set(self, number: int, asked: CreateSet) -> None:
        if asked.strategy not in ev.STRATEGIES:
            raise ClusterRefusal(f"there is no strategy {asked.strategy!r:.80}: a set has {' or '.join(ev.STRATEGIES)}")
        self._check_parted(asked.name, asked.replicas)
        self._have_map()
        name, replicas, preferred, min_replicas, min_in_sync, strategy = asked
        is_group = strategy == ev.GROUP
        entry = SetEntry(name, replicas, (), preferred, min_replicas, min_in_sync, is_group=is_group)
        try:
            self._queues.make(entry)
        except ClusterRefusal:
            self._ctx.take_back()
            raise
        replicas = self._ctx.draft.sets[asked.name].replicas
        self._done(number, f"set {asked.name} gets replicas on {', '.join(replicas)}", replicas=list(replicas))

    def _delete_set(self, number: int, asked: DeleteSet) -> None:
        entry = self._entry(asked.name)
        queues = sorted(self._ctx.map.queues_of(asked.name).values(), key=lambda queue: queue.name)
        if asked.lost and self._leadership.leads(entry):
            who = "its brokers serve" if entry.is_group else f"{entry.record.primary} leads"
            raise ClusterRefusal(f"set {asked.name} is not lost: {who} it; delete its queues")
        if queues and not asked.lost:
            some = ", ".join(queue.name for queue in queues[:3]) + (", ..." if len(queues) > 3 else "")
            lost = "" if self._leadership.leads(entry) else "; nobody leads it, so `--lost` gives them up with it"
            raise ClusterRefusal(
                f"set {asked.name} has {counted(len(queues), 'queue')} ({some}): delete them first{lost}"
            )
        for queue in queues:
            self._ctx.write(ev.QueueRemoved(queue.id))
        self._ctx.write(ev.SetDeleted(asked.name))
        self._leadership.forget_set(asked.name)
        self._keeper.forget_set(asked.name)
        self._ctx.dirty.add(asked.name)
        self._done(number, f"set {asked.name} is deleted")

    def _transfer(self, number: int, asked: TransferPrimary) -> None:
        entry = self._entry(asked.set, has_primary=True)
        primary = entry.record.primary
        if asked.to:
            self._check_broker(asked.to)
        if not self._leadership.leads(entry):
            raise ClusterRefusal(f"{asked.set} has no primary now: {self._leadership.problems.get(asked.set, '')}")
        ready = self._moves.targets(entry)
        if asked.to != primary and (asked.to not in ready if asked.to else not ready):
            who = f"{asked.to} has no replica of {asked.set} that is ready" if asked.to else "no other replica is ready"
            raise ClusterRefusal(f"{who}; ready are: {', '.join(ready) or 'none'}")
        if asked.to == primary:
            self._done(number, f"{primary} leads {asked.set} already")
        else:
            problem = self._moves.begin(asked.set, asked.to, "a transfer by an operator", number)
            if problem:
                raise ClusterRefusal(problem)
        if asked.to and asked.prefer:
            self._ctx.place(entry._replace(preferred=asked.to))

    def _promote(self, number: int, asked: PromoteReplica) -> None:
        entry = self._entry(asked.set)
        self._check_broker(asked.broker)
        if entry.is_group:
            self._done(number, go_on_with(self._ctx, entry, asked.broker, force=asked.force))
            return
        primary = entry.record.primary
        if self._leadership.leads(entry):
            if primary != asked.broker:
                to = f"`qpid-ha set transfer {asked.set} {asked.broker}` has it hand over, without loss"
                raise ClusterRefusal(f"{primary} leads {asked.set}: {to}")
            if asked.force:
                self._leadership.confirm(entry, number)
            else:
                self._done(number, f"{primary} leads {asked.set} already")
            return
        problem = self._leadership.promote(entry, asked.broker, number, force=asked.force)
        if problem:
            raise ClusterRefusal(problem)

    def _add_replica(self, number: int, asked: AddReplica) -> None:
        entry = self._entry(asked.set)
        broker = asked.broker or next(iter(self._keeper.choose(entry, 1)), "")
        if not broker:
            self._check_parted(asked.set, self._ctx.parting(asked.set))
            brokers = self._ctx.draft.brokers.values()
            machines = {each.place.machine for each in brokers}
            where = "each open broker" if len(machines) == len(brokers) else "each machine with an open broker"
            raise ClusterRefusal(f"{where} has a replica of {asked.set}; there are {len(machines)}")
        self._queues.check_open(broker, entry.staying)
        self._check_parted(asked.set, (broker,))
        if broker in entry.staying:
            raise ClusterRefusal(f"{broker} has a replica of {asked.set} already")
        replicas = tuple(dict.fromkeys([*entry.replicas, broker]))
        leaving = tuple(name for name in entry.leaving if name != broker)
        self._ctx.place(entry._replace(replicas=replicas, leaving=leaving))
        self._done(number, f"{broker} gets a replica of {asked.set}", broker=broker)

    def _check_parted(self, set_name: str, brokers: Iterable[str]) -> None:
        """Raises EarlyRefusal where one of these has an earlier replica of that set yet."""
        parting = sorted(self._ctx.parting(set_name).intersection(brokers))
        if parting:
            raise EarlyRefusal(
                f"{', '.join(parting)} has not given up its earlier replica of {set_name} yet: try again"
            )

    def _remove_replica(self, number: int, asked: RemoveReplica) -> None:
        entry = self._entry(asked.set)
        name = asked.broker
        if name not in entry.replicas:
            raise ClusterRefusal(f"{name} has no replica of {asked.set}: {', '.join(entry.replicas)} have")
        rest = [each for each in entry.staying if each != name and self._ctx.is_up(each)]
        in_sync = [each for each in rest if each in entry.record.members]
        wanted = self._keeper.wanted(entry)
        if len(rest) < wanted.number and not asked.force:
            raise ClusterRefusal(
                f"{asked.set} wants {wanted.number} replicas ({wanted.why}), and {len(rest)} would be left: add one"
                " first, or use --force"
            )
        if not in_sync and entry.is_group:
            raise ClusterRefusal(f"nobody else who is up is in sync in {asked.set}: start or add another one first")
        leads = not entry.is_group and name == entry.record.primary
        if not in_sync or (asked.force and len(rest) < wanted.number and leads):
            raise ClusterRefusal(f"{name} leads {asked.set}, or nobody else is in sync: transfer it first")
        if len(rest) < wanted.number:
            replicas = tuple(each for each in entry.replicas if each != name)
            placed = entry._replace(replicas=replicas, leaving=tuple(each for each in entry.leaving if each != name))
        else:
            placed = entry._replace(leaving=tuple(dict.fromkeys([*entry.leaving, name])))
        self._ctx.place(placed)
        self._keeper.trigger([asked.set])
        self._done(number, f"the replica of {asked.set} on {name} goes once {', '.join(rest)} are enough")

    # --- brokers

    def _sets_on(self, broker: str) -> list[SetEntry]:
        return [entry for entry in self._ctx.draft.sets.values() if broker in entry.replicas]

    def _drain(self, number: int, asked: DrainBroker) -> None:
        name, ctx = asked.broker, self._ctx
        self._check_broker(name)
        others = [each for each in ctx.draft.brokers.values() if each.name != name and not each.draining]
        ready = len({each.place.machine for each in others if ctx.is_up(each.name)})
        sets = self._sets_on(name)
        few = {entry.name: self._keeper.wanted(entry).number for entry in sets}
        few = {each: count for each, count in few.items() if count > ready}
        if few and (not asked.force or not ready):
            which = ", ".join(f"{each} wants {count}" for each, count in list(few.items())[:5])
            raise ClusterRefusal(
                f"without {name} {counted(ready, 'broker is', 'brokers are')} open, too few for"
                f" {counted(len(few), 'set')} ({which}): start or undrain"
                f" {max(few.values()) - ready} more{'' if not ready else ', or use --force'}"
            )
        entry = ctx.draft.brokers[name]
        if not entry.draining:
            ctx.write(ev.BrokerChanged(name, entry.up, True, entry.since_ms))
        self._keeper.trigger([each.name for each in sets])
        primaries = sum(each.record.primary == name and not each.is_group for each in sets)
        moves = counted(primaries, "primary moves", "primaries move")
        text = f"{name} is being drained: {moves}, {counted(len(sets), 'replica is', 'replicas are')} replaced"
        self._done(number, text, primaries=primaries, replicas=len(sets))

    def _undrain(self, number: int, asked: UndrainBroker) -> None:
        name, ctx = asked.broker, self._ctx
        self._check_broker(name)
        entry = ctx.draft.brokers[name]
        if entry.draining:
            ctx.write(ev.BrokerChanged(name, entry.up, False, entry.since_ms))
        for placed in self._sets_on(name):
            ctx.place(placed._replace(leaving=tuple(each for each in placed.leaving if each != name)))
        self._keeper.trigger()
        self._done(number, f"{name} may have replicas again")

    def _leave(self, number: int, asked: LeaveBroker) -> None:
        name, ctx = asked.broker, self._ctx
        self._check_broker(name)
        ctx.leaving_until_s[name] = ctx.now_s + LEAVING_S
        self._moves.clear_out()
        left = self._moves.movable(name)
        self._done(
            number,
            f"{name} is about to stop: {counted(left, 'set is', 'sets are')} to be led by others first",
            left=left,
        )

    def _fail(self, number: int, asked: FailBroker) -> None:
        self._check_broker(asked.broker)
        if asked.broker == self._ctx.name:
            raise ClusterRefusal(f"{asked.broker} is the controller, and answers this")
        is_news = self._ctx.liveness.lost_since_s(asked.broker) is None
        self._ctx.liveness.fail(asked.broker, self._ctx.now_s)
        if is_news:
            self._lose(asked.broker, asked.why or "an operator says so", self._ctx.now_s)
        self._done(number, f"{asked.broker} counts as failed until it reports again")

    def _forget(self, number: int, asked: ForgetBroker) -> None:
        name, ctx = asked.broker, self._ctx
        self._check_broker(name)
        if ctx.is_up(name):
            raise ClusterRefusal(f"{name} is up: drain it, and stop it first")
        sets = self._sets_on(name)
        for entry in sets:
            others = [each for each in entry.record.members if each != name and ctx.is_up(each)]
            if (entry.record.generation and not others) or entry.replicas == (name,):
                able = ", or ".join([name, *(each for each in entry.record.members if each != name)])
                some = f"`qpid-ha set promote {entry.name} BROKER --force` goes on with what BROKER has, "
                raise ClusterRefusal(
                    f"nobody else who is up holds all of {entry.name}: start {able}. If none of them will ever come"
                    f" back, what only they had is lost: {some}`qpid-ha set delete --lost"
                    f" {entry.name}` with nothing; then try again"
                )
        for entry in sets:
            replicas = tuple(each for each in entry.replicas if each != name)
            ctx.place(entry._replace(replicas=replicas, leaving=tuple(each for each in entry.leaving if each != name)))
        for entry in [each for each in ctx.draft.sets.values() if each.preferred == name]:
            ctx.place(entry._replace(preferred=""))
        ctx.write(ev.BrokerRemoved(name))
        ctx.reports.forget(name)
        ctx.liveness.forget(name)
        self._keeper.trigger([entry.name for entry in sets])
        self._done(
            number, f"{name} is of the cluster no more; {counted(len(sets), 'replica is', 'replicas are')} made up for"
        )

    # --- replicas and balance

    def _set_policies(self, number: int, asked: SetPolicies) -> None:
        for pattern, count in asked.policies:
            if not pattern or not 1 <= count <= MOST_REPLICAS:
                raise ClusterRefusal(
                    f"{pattern!r:.80}: {count} is no policy; a pattern, and 1 to {MOST_REPLICAS} replicas"
                )
        patterns = [pattern for pattern, _ in asked.policies]
        twice = next((pattern for pattern in patterns if patterns.count(pattern) > 1), None)
        if twice is not None:
            raise ClusterRefusal(f"there are two policies for {twice}: leave one of them out")
        self._have_map()
        self._ctx.write(ev.ReplicaPoliciesChanged(tuple(patterns), tuple(count for _, count in asked.policies)))
        self._keeper.trigger()
        self._done(number, f"{len(patterns)} policies")

    def _rebalance(self, number: int, asked: Rebalance) -> None:
        if asked.plan_only:
            moves = [move._asdict() for move in self._moves.plan()]
            self._done(number, f"{counted(len(moves), 'primary', 'primaries')} would move", moves=moves)
            return
        self._keeper.close_ring(list(self._ctx.draft.sets))
        problem = self._moves.balance(0 if asked.begin_only else number)
        if problem:
            raise ClusterRefusal(problem)
        if asked.begin_only:
            moves = [move._asdict() for move in self._moves.balancing]
            self._done(number, f"{counted(len(moves), 'primary is', 'primaries are')} being moved", moves=moves)

    def _names(self, name: str) -> list[str]:
        return [self._entry(name).name] if name else sorted(self._ctx.draft.sets)

    def _plan(self, number: int, asked: PlanReplicas) -> None:
        actions = [action._asdict() for action in self._keeper.plan(self._names(asked.set))]
        self._done(number, f"{len(actions)} things to do", actions=actions)

    def _trim(self, number: int, asked: TrimReplicas) -> None:
        trimmed = self._keeper.trim(self._names(asked.set))
        text = "; ".join(f"{name}: {', '.join(brokers)}" for name, brokers in trimmed.items())
        result = {name: list(brokers) for name, brokers in trimmed.items()}
        self._done(number, f"to leave: {text}" if text else "no set has more replicas than it wants", trimmed=result)

    # --- queues, and what there is

    def _settle_queue(self, number: int, asked: SettleQueue) -> None:
        self._have_map()
        try:
            self._queues.settle(number, asked)
        except ClusterRefusal:
            self._ctx.take_back()
            raise

    def _show(self, number: int, asked: ShowCluster) -> None:
        brokers, sets = self._ctx.draft.brokers, self._ctx.draft.sets
        text = f"{counted(len(brokers), 'broker')}, {counted(len(sets), 'set')} besides `default`"
        self._ctx.tell(AnswerRequest(number, True, text, self._overview.shown()))

    def _show_history(self, number: int, asked: ShowHistory) -> None:
        entries = [entry._asdict() for entry in self._ctx.history.entries(asked.about)]
        self._ctx.tell(AnswerRequest(number, True, counted(len(entries), "entry", "entries"), {"entries": entries}))
