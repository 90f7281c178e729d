"""What the parts of the controller share while it handles one input: the map, the reports, and what they want done."""

from __future__ import annotations

from collections import Counter, deque
from hashlib import sha256
from typing import NamedTuple

from qpid_ha_broker.cluster.figures import ControllerFigures
from qpid_ha_broker.cluster.history import ClusterHistory
from qpid_ha_broker.cluster.liveness import BrokerLife, Liveness
from qpid_ha_broker.cluster.messages import (
    AnswerRecord,
    AnswerRequest,
    ControllerBegan,
    ControllerEffect,
    ControllerNote,
    ControllerSettings,
    GiveOrder,
    OrderDeletion,
    OrderKind,
    WriteMap,
)
from qpid_ha_broker.cluster.placement import Placement, PlacementBroker
from qpid_ha_broker.cluster.reports import Reports
from qpid_ha_broker.cluster_map import BrokerEntry, ClusterMap, PlacedQueue, SetEntry
from qpid_ha_broker.events import types as ev

LEAVING_S = 5.0
"""So long a broker counts as one that is about to stop, after it said so last: it may have thought better of it."""
ORDER_LIMIT_S = 2.0
"""An order of which nothing came for so long may be given again, or to somebody else."""
ORDER_LIMIT_MOST_S = 8.0
"""The same for one that was given again and again: each time it is twice as long. Who is slow is not made busier."""

UNKNOWN_LSN = 2**64
"""Of what is not written yet: nothing is ever committed so far."""


class Draft:
    """The map's brokers, sets and policies as they are once what this input writes is in it; tables of others stay."""

    def __init__(self, applied: ClusterMap) -> None:
        self._view = ClusterMap()
        self._view.brokers, self._view.sets, self._view.policies = applied.brokers, applied.sets, applied.policies
        self._has_own_brokers = self._has_own_sets = False
        self.events: list[ev.MapEvent] = []

    @property
    def brokers(self) -> dict[str, BrokerEntry]:
        """By name."""
        return self._view.brokers

    @property
    def sets(self) -> dict[str, SetEntry]:
        """By name."""
        return self._view.sets

    @property
    def policies(self) -> tuple[tuple[str, int], ...]:
        """Patterns and counts."""
        return self._view.policies

    def write(self, event: ev.MapEvent) -> None:
        """Have it written. Of the directory and of settings the draft itself keeps nothing: no input asks twice
        about one of them."""
        self.events.append(event)
        match event:
            case ev.QueuePlaced() | ev.QueueRemoved() | ev.SettingChanged():
                return
            case ev.BrokerRegistered() | ev.BrokerChanged() | ev.BrokerRemoved() if not self._has_own_brokers:
                self._view.brokers, self._has_own_brokers = dict(self._view.brokers), True
            case ev.SetPlaced() | ev.SetDeleted() | ev.SetGrouped() | ev.SetRecorded() if not self._has_own_sets:
                self._view.sets, self._has_own_sets = dict(self._view.sets), True
        self._view.apply(0, event)


class PendingOrder(NamedTuple):
    """An order of which nothing is known yet."""

    order: GiveOrder
    given_s: float
    limit_s: float = ORDER_LIMIT_S
    """So long nobody gives it again."""


class Orders:
    """Which orders are under way: one for each set and kind, and DROP for each backup."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, OrderKind, str], PendingOrder] = {}
        self._keys: dict[int, tuple[str, OrderKind, str]] = {}

    @staticmethod
    def _key(set_name: str, kind: OrderKind, to: str) -> tuple[str, OrderKind, str]:
        return set_name, kind, to if kind is OrderKind.DROP else ""

    def clear(self) -> None:
        """A new controller does not know what the old one ordered."""
        self._by_key.clear()
        self._keys.clear()

    def given(self, order: GiveOrder, now_s: float) -> None:
        """It goes out now, in the place of an older one."""
        key = self._key(order.set, order.kind, order.to)
        older, limit_s = self._by_key.get(key), ORDER_LIMIT_S
        if older is not None:
            self._keys.pop(older.order.number, None)
            if older.order[1:5] == order[1:5]:
                limit_s = min(ORDER_LIMIT_MOST_S, 2 * older.limit_s)
        self._by_key[key] = PendingOrder(order, now_s, limit_s)
        self._keys[order.number] = key

    def pending(self, set_name: str, kind: OrderKind, now_s: float, to: str = "") -> GiveOrder | None:
        """The one that is under way, and not for too long."""
        there = self._by_key.get(self._key(set_name, kind, to))
        return there.order if there is not None and now_s - there.given_s < there.limit_s else None

    def answered(self, number: int) -> GiveOrder | None:
        """It is not under way any more; None: nobody waits for that answer."""
        key = self._keys.pop(number, None)
        return None if key is None else self._by_key.pop(key).order

    def forget(self, set_name: str, kind: OrderKind) -> None:
        """Nobody waits for what comes of it any more."""
        there = self._by_key.pop(self._key(set_name, kind, ""), None)
        if there is not None:
            self._keys.pop(there.order.number, None)

    def reconnected(self, name: str) -> None:
        """What that broker was told on its last channel may be lost, and so it was not slow."""
        for key, there in self._by_key.items():
            if there.order.broker == name:
                self._by_key[key] = there._replace(limit_s=ORDER_LIMIT_S)

    def forget_broker(self, name: str) -> None:
        """Nothing comes of what it was told."""
        for there in [each for each in self._by_key.values() if each.order.broker == name]:
            self.answered(there.order.number)

    def promoting(self) -> Counter[str]:
        """How many sets each broker was told to lead."""
        orders = [there.order for there in self._by_key.values() if there.order.kind is OrderKind.PROMOTE]
        return Counter(order.broker for order in orders)

    def beginning(self, now_s: float) -> Counter[str]:
        """How many sets each broker was told to lead a moment ago: of those, its answer is awaited."""
        return Counter(
            there.order.broker
            for there in self._by_key.values()
            if there.order.kind is OrderKind.PROMOTE and now_s - there.given_s < there.limit_s == ORDER_LIMIT_S
        )

    def was_told_to_lead(self, broker: str, set_name: str) -> bool:
        """Whether a broker was, and has not answered, however long ago that is."""
        there = self._by_key.get(self._key(set_name, OrderKind.PROMOTE, ""))
        return there is not None and there.order.broker == broker


Answer = AnswerRecord | AnswerRequest


class Commits:
    """The promise: what is answered is committed in the log of `default`, with all that was written before it."""

    def __init__(self) -> None:
        self._written = 0
        """The number of the last `WriteMap`."""
        self._lsn_of: dict[int, int] = {}
        """Of what is not committed, as far as is known, in order."""
        self._committed_lsn = 0
        self._waiting: deque[tuple[int, Answer]] = deque()

    def clear(self) -> None:
        """What waits is never answered."""
        self._lsn_of.clear()
        self._waiting.clear()

    def wait(self, number: int, answers: list[Answer]) -> None:
        """These wait for all up to that write."""
        self._written = number
        self._waiting.extend((number, answer) for answer in answers)

    @property
    def is_waiting(self) -> bool:
        """Whether something that was written is not known to be committed."""
        return bool(self._lsn_of)

    def map_written(self, number: int, lsn: int) -> None:
        """That write has this LSN."""
        self._lsn_of[number] = lsn

    def map_committed(self, lsn: int) -> None:
        """All up to there is committed."""
        self._committed_lsn = max(self._committed_lsn, lsn)

    def take(self) -> list[Answer]:
        """The answers that wait for nothing any more."""
        while self._lsn_of and self._lsn_of[next(iter(self._lsn_of))] <= self._committed_lsn:
            del self._lsn_of[next(iter(self._lsn_of))]
        first = next(iter(self._lsn_of), self._written + 1)
        ready: list[Answer] = []
        while self._waiting and self._waiting[0][0] < first:
            ready.append(self._waiting.popleft()[1])
        return ready


class ControllerContext:
    """Of one controller. `handle` of the controller begins and ends each input with it."""

    def __init__(self, settings: ControllerSettings, placement: Placement) -> None:
        self.settings, self.placement = settings, placement
        self.name = ""
        """Of the broker that is the controller."""
        self.now_s = 0.0
        self.map = ClusterMap()
        """As applied, before this input."""
        self.draft = Draft(self.map)
        self.reports = Reports()
        self.liveness = Liveness()
        self.orders = Orders()
        self.commits = Commits()
        self._message_time_offset_ms = 0
        self._unique = ""
        self._numbers = 0
        self._writes = 0
        self._made = 0
        """Ids."""
        self._effects: list[ControllerEffect] = []
        self._answers: list[Answer] = []
        self._placement_brokers: dict[str, PlacementBroker] | None = None
        self.leaving_until_s: dict[str, float] = {}
        """Brokers that are about to stop."""
        self.history = ClusterHistory()
        self.figures = ControllerFigures()
        self._causes: dict[str, str] = {}
        """Why a set was last told to have another primary."""
        self.dirty: set[str] = set()
        """Sets of which something is another than when they were looked at."""

    def began(self, began: ControllerBegan) -> None:
        """This broker is the controller now."""
        self.name, self.map = began.name, began.map
        self.draft = Draft(began.map)
        self._unique = f"{began.unique} {began.name} {began.generation} {began.message_time_ms}"
        self._message_time_offset_ms = began.message_time_ms - int(self.now_s * 1000)
        self.reports.clear()
        self.orders.clear()
        self.commits.clear()
        self.leaving_until_s.clear()
        self.history.clear()
        self.figures = ControllerFigures()
        self.remember(began.name, f"{began.name} is the controller: it leads default, generation {began.generation}")
        self._causes.clear()
        self._answers.clear()

    @property
    def message_time_ms(self) -> int:
        """In ms since 1970, as of the clock by which the messages of `default` expire."""
        return self._message_time_offset_ms + int(self.now_s * 1000)

    def begin(self, now_s: float) -> None:
        """An input comes."""
        self.now_s, self.draft, self._placement_brokers = now_s, Draft(self.map), None

    def end(self) -> list[ControllerEffect]:
        """All that it comes to."""
        effects: list[ControllerEffect] = []
        if self.draft.events:
            self._writes += 1
            self.figures.map_events += len(self.draft.events)
            effects.append(WriteMap(self._writes, tuple(self.draft.events)))
            self.commits.map_written(self._writes, UNKNOWN_LSN)
        self.commits.wait(self._writes, self._answers)
        effects += self._effects
        effects += self.commits.take()
        self._effects, self._answers = [], []
        return effects

    # --- what the parts want done

    def write(self, event: ev.MapEvent) -> None:
        """Into the map."""
        self.draft.write(event)

    def take_back(self) -> None:
        """Write nothing of what this request wanted: it is refused. Nothing else comes with a request."""
        self.draft = Draft(self.map)

    def place(self, entry: SetEntry) -> None:
        """Have the map say of a set what `entry` does, if it says something else; record and strategy stay."""
        there = self.draft.sets.get(entry.name)
        if there is None or there.placed != entry.placed:
            self.write(entry.placed)
            self.dirty.add(entry.name)

    def make_set(self, entry: SetEntry) -> None:
        """Have a new set, with a UUID of its own that its log gets: an earlier set of that name had another one."""
        self.place(entry)
        if entry.is_group:
            self.write(ev.SetGrouped(entry.name))
        self.write(ev.SetRecorded(entry.name, self.new_id(), 0, "", 0, (), False))

    def new_id(self) -> str:
        """An id that no controller has given to anything else: 32 hexadecimal digits."""
        self._made += 1
        return sha256(f"{self._unique} {self._made}".encode()).hexdigest()[:32]

    def send(self, effect: ControllerEffect) -> None:
        """At once."""
        self._effects.append(effect)

    def note(self, level: str, text: str, about: str = "") -> None:
        """For the operator's log, and the history. `about`: the set or the broker that the text begins with."""
        self._effects.append(ControllerNote(level, text))
        self.remember(about, text.partition(f"{about}: ")[2] or text if about else text)

    def remember(self, about: str, text: str) -> None:
        """For the history alone: a log has it in other words."""
        self.history.add(self.message_time_ms, about, text)

    def cause(self, set_name: str) -> str:
        """Why it has another primary now; told once."""
        return self._causes.pop(set_name, "its brokers agreed on it")

    def answer(self, answer: Answer) -> None:
        """Once all that was written is committed."""
        self._answers.append(answer)

    def tell(self, answer: AnswerRequest) -> None:
        """At once: it says what is there, and changes nothing. What of that is not committed yet, it says itself."""
        self._effects.append(answer)

    def order(self, broker: str, set_name: str, kind: OrderKind, to: str, cause: str) -> None:
        """Tell a member."""
        self._give(GiveOrder(self._next_number(), broker, set_name, kind, to, cause))
        if kind is OrderKind.SWITCH_OVER:
            self._causes[set_name] = cause
        elif kind is OrderKind.PROMOTE:  # who was handed over to may have to be told to lead: that is no other reason
            self._causes.setdefault(set_name, cause)

    def predecessor(self, record: ev.SetRecorded, successor: str) -> str:
        """Who has to hand over to `successor` first, if it lives after all; empty: nobody who led it may be alive."""
        return record.primary if record.primary != successor and self.liveness.may_live(record.primary) else ""

    def order_promotion(self, broker: str, set_name: str, cause: str, *, force: bool) -> int:
        """Tell a member to lead because an operator says so; the number of the order."""
        number, to = self._next_number(), self.predecessor(self.draft.sets[set_name].record, broker)
        self._give(GiveOrder(number, broker, set_name, OrderKind.PROMOTE, to, cause, force))
        self._causes[set_name] = cause
        return number

    def order_deletion(self, queue: PlacedQueue, conditions: tuple[bool, bool]) -> int:
        """Tell the primary of its set; the number of the order."""
        number, primary = self._next_number(), self.draft.sets[queue.set].record.primary
        self.send(OrderDeletion(number, primary, queue.set, queue.id, *conditions))
        return number

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _give(self, order: GiveOrder) -> None:
        self.orders.given(order, self.now_s)
        self.figures.orders += 1
        self._effects.append(order)

    # --- what the parts ask

    def is_up(self, name: str) -> bool:
        """Whether a broker is there; of one that a new controller has not heard of yet, what the old one said."""
        entry = self.draft.brokers.get(name)
        life = self.liveness.life(name)
        return life is BrokerLife.ALIVE or (life is BrokerLife.AWAITED and entry is not None and entry.up)

    def parting(self, set_name: str) -> set[str]:
        """The brokers that have not said yet that an earlier replica of that set, which the map has no more, is gone.

        None of them gets the next one: what it says of the earlier would be taken for that, and who hears at once that
        the one goes and the other comes would never begin anew.
        """
        entry = self.draft.sets.get(set_name)
        return self.reports.with_replica(set_name).difference(() if entry is None else entry.replicas)

    def may_lead(self, name: str) -> bool:
        """Whether primaries may go to a broker: nobody drains it, and it does not stop."""
        broker = self.draft.brokers.get(name)
        return broker is not None and not broker.draining and not self.is_leaving(name)

    def is_leaving(self, name: str) -> bool:
        """Whether it said of late that it is about to stop."""
        return self.now_s < self.leaving_until_s.get(name, 0.0)

    def primaries(self) -> Counter[str]:
        """How many sets each broker leads, or was told to."""
        counts = Counter(entry.record.primary for entry in self.draft.sets.values() if not entry.is_group)
        return counts + self.orders.promoting()

    def placement_brokers(self) -> dict[str, PlacementBroker]:
        """All that are in the map, counted once for each input; who adds replicas counts those himself."""
        if self._placement_brokers is None or self._placement_brokers.keys() != self.draft.brokers.keys():
            self._placement_brokers = self._count_brokers()
        return self._placement_brokers

    def _count_brokers(self) -> dict[str, PlacementBroker]:
        replicas: Counter[str] = Counter()
        catching_up: Counter[str] = Counter()
        primaries: Counter[str] = Counter()
        rates: Counter[str] = Counter()
        for entry in self.draft.sets.values():
            primaries[entry.record.primary] += not entry.is_group
            leading = self.reports.leads(entry.record.primary, entry.name, entry.record.generation)
            rates[entry.record.primary] += 0 if leading is None else leading.load.rate
            for name in entry.replicas:
                replicas[name] += name not in entry.leaving
                catching_up[name] += leading is not None and name not in entry.record.members
        lags = self.reports.lags()
        found = {}
        for name, broker in self.draft.brokers.items():
            reported = self.reports.brokers.get(name)
            up = self.is_up(name)
            found[name] = PlacementBroker(
                name,
                broker.place.zone,
                up,
                broker.draining,
                self.is_leaving(name),
                0.0 if up else self._away_s(broker),
                0 if reported is None else reported.room_bytes,
                replicas[name],
                primaries[name],
                rates[name],
                lags[name],
                catching_up[name],
                broker.place.machine,
            )
        return found

    def _away_s(self, broker: BrokerEntry) -> float:
        """What an older controller wrote is by the same clock, or by the time of day where its release is older."""
        lost_since_s = self.liveness.lost_since_s(broker.name)
        here_s = 0.0 if lost_since_s is None else self.now_s - lost_since_s
        recorded_s = 0.0 if broker.up else (self.message_time_ms - broker.since_ms) / 1000
        return max(here_s, recorded_s)
