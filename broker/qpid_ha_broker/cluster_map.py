"""The cluster map: which brokers there are, which resource sets and where their replicas, and which queue is in which.

It is state of the set `default`: events in its log, applied here like all others to all else. Whoever has a replica of
`default` has it from there; everybody else gets it from the controller, as events.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from qpid_ha_broker.events import types as ev

CREATED_BY: Final = "qpid.created_by"
"""The argument of a queue that says for which user it was made, where that is counted: see `model.user_limits`. Only
the broker itself sets it."""


class BrokerPlace(NamedTuple):
    """What a broker fails together with. Two that are on one machine are workers of it (`workers`).

    A broker says both in one text, ZONE/MACHINE, which is its zone for a release that knows no machines: there a
    machine is a zone of its own. No zone has a slash in its name. A broker that is alone on its machine says its zone.
    """

    zone: str = ""
    """What fails together, such as a rack; empty: not known."""
    machine: str = ""
    """The name of its first worker, which is that of a broker that is alone there."""

    @classmethod
    def read(cls, name: str, text: str) -> BrokerPlace:
        """Where broker `name` is that has said `text` of it."""
        zone, is_worker, machine = text.partition("/")
        return cls(zone, machine if is_worker else name)

    @property
    def text(self) -> str:
        """What a worker says of it; `read` reads it back."""
        return f"{self.zone}/{self.machine}"


class BrokerEntry(NamedTuple):
    """A broker of the cluster; the fields are those of BrokerRegistered and BrokerChanged."""

    name: str
    uuid: str = ""
    address: str = ""
    clients_url: str = ""
    zone: str = ""
    """As it says: see `BrokerPlace`."""
    version: str = ""
    up: bool = True
    draining: bool = False
    since_ms: int = 0

    @property
    def place(self) -> BrokerPlace:
        """What it fails together with."""
        return BrokerPlace.read(self.name, self.zone)


class SetEntry(NamedTuple):
    """A resource set other than `default`; the fields are those of SetPlaced, its record, and its strategy."""

    name: str
    replicas: tuple[str, ...]
    leaving: tuple[str, ...] = ()
    preferred: str = ""
    min_replicas: int = 0
    min_in_sync: int = 0
    record: ev.SetRecorded = ev.SetRecorded("", "", 0, "", 0, (), False)
    is_group: bool = False
    """Each broker that has a replica writes it; the record's `primary` is who wrote that last."""

    @property
    def strategy(self) -> str:
        """One of `STRATEGIES`."""
        return ev.STRATEGIES[self.is_group]

    @property
    def placed(self) -> ev.SetPlaced:
        """What the map says of where its replicas are, and what is wanted of it."""
        return ev.SetPlaced(*self[:6])

    @property
    def staying(self) -> tuple[str, ...]:
        """The replicas that are not leaving."""
        return tuple([name for name in self.replicas if name not in self.leaving])


DELETION: Final = "qpid.deletion"
_CONDITIONS: Final = ("qpid.if-empty", "qpid.if-unused", DELETION)
"""Arguments with which a controller of the release before has a queue deleted on conditions: those, and an id."""
TOMBSTONE_OF: Final = "$tombstone-of"
"""The argument of a queue that was deleted, for its entry in the directory, whose id it is: see `cluster.directory`.
Without the prefix of our own arguments, for the release before reads it as one of the application's."""


class PlacedQueue(NamedTuple):
    """A queue of a set other than `default`, as the directory has it; the fields are those of QueuePlaced."""

    id: int
    name: str
    set: str
    arguments: ev.Arguments
    deleting: bool = False

    @property
    def created_by(self) -> str:
        """The user for whom it was made; empty: nobody in particular."""
        return str(self.arguments.get(CREATED_BY, ""))

    @property
    def declared(self) -> ev.Arguments:
        """Those arguments with which it was declared."""
        return {name: value for name, value in self.arguments.items() if name not in _CONDITIONS}

    @property
    def deletion(self) -> str:
        """The id of the deletion on conditions that a controller of the release before wants; empty: none."""
        return str(self.arguments.get(DELETION, "")) if self.deleting else ""


class Changes(NamedTuple):
    """What the map has changed, by name; of a queue its id. Something that is gone is among them, too."""

    brokers: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    queues: tuple[int, ...] = ()
    policies: bool = False
    settings: tuple[str, ...] = ()
    """Keys."""


USERS: Final = "user/"
TOKENS: Final = "token/"
"""How the keys begin under which users with passwords are kept, and tokens. No setting has a slash in its key."""
WITHHELD: Final = '"********"'
"""What the history has for a secret that is not in force any more."""


def is_secret(key: str) -> bool:
    """Whether what is kept under that key is nobody's to see: of a password or token, what it can be tried out on."""
    return key.startswith((USERS, TOKENS))


SETTING_CHANGES_KEPT: Final = 200
Listener = Callable[[Changes], None]


class ClusterMap:
    """The promise: two maps to which the same events were applied are equal, and `events` makes an equal one.

    `apply` raises LookupError or ValueError for an event that does not fit.
    """

    def __init__(self) -> None:
        self.brokers: dict[str, BrokerEntry] = {}
        self.sets: dict[str, SetEntry] = {}
        self.queues: dict[str, PlacedQueue] = {}
        self.queues_by_id: dict[int, PlacedQueue] = {}
        self.created_by: Counter[str] = Counter()
        """How many queues were made for each user, of those that have the argument."""
        self.policies: tuple[tuple[str, int], ...] = ()
        """Patterns of names of sets, and how many replicas those want that do not say so themselves."""
        self.settings: dict[str, str] = {}
        """Values of settings that count for all brokers, as JSON; and those of users and tokens: see `is_secret`."""
        self.setting_changes: deque[ev.SettingChanged] = deque(maxlen=SETTING_CHANGES_KEPT)
        """The last of them, the oldest first."""
        self.changed_lsn = 0
        """Of the last event that was applied; where nobody has a second set, 0. `replace` takes the other map's."""
        self.listeners: list[Listener] = []
        """Called after each change; after `replace` with all that was there before, or is now."""
        self._queues_of: dict[str, dict[str, PlacedQueue]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the cluster has one set, and nobody has said anything about others."""
        return not (self.brokers or self.sets or self.queues or self.policies)

    @property
    def plain_settings(self) -> dict[str, str]:
        """Those of the settings that are no secrets."""
        return {key: value for key, value in self.settings.items() if not is_secret(key)}

    def secrets(self, prefix: str) -> dict[str, str]:
        """USERS or TOKENS, by name."""
        there = self.settings.items()
        return {key.removeprefix(prefix): value for key, value in there if key.startswith(prefix)}

    def queues_of(self, set_name: str) -> Mapping[str, PlacedQueue]:
        """Those of one set, by name."""
        return self._queues_of.get(set_name, {})

    def apply(self, lsn: int, event: ev.MapEvent) -> None:
        """Let `event`, which has that LSN in the log of `default`, count."""
        changes = _APPLY[type(event)](self, lsn, event)
        self.changed_lsn = lsn
        self._tell(changes)

    def events(self, lsn: int) -> Iterator[tuple[int, ev.MapEvent]]:
        """What makes this map of an empty one, as of `lsn`, in an order in which it can be applied; with the LSNs."""
        yield from ((lsn, change) for change in self._setting_changes())
        if self.policies:
            patterns, counts = zip(*self.policies, strict=True)
            yield lsn, ev.ReplicaPoliciesChanged(patterns, counts)
        for broker in self.brokers.values():
            name, uuid, address, clients_url, zone, version, up, draining, since_ms = broker
            yield lsn, ev.BrokerRegistered(name, uuid, address, clients_url, zone, version)
            yield lsn, ev.BrokerChanged(name, up, draining, since_ms)
        for entry in self.sets.values():
            yield lsn, entry.placed
            if entry.is_group:
                yield lsn, ev.SetGrouped(entry.name)
            if entry.record.name:
                yield lsn, entry.record
        for queue_id in sorted(self.queues_by_id):
            queue = self.queues_by_id[queue_id]
            yield queue_id, ev.QueuePlaced(queue.name, queue.set, queue.arguments, queue.deleting)

    def _setting_changes(self) -> Iterator[ev.SettingChanged]:
        """What is kept of them, and before it those values that were set earlier. In a map that these make the later
        ones take the place of the earlier ones, of which so many are there only where as many as are kept follow."""
        changed = {change.key for change in self.setting_changes}
        yield from (ev.SettingChanged(key, value, "", 0) for key, value in self.settings.items() if key not in changed)
        yield from self.setting_changes

    def replace(self, other: ClusterMap) -> None:
        """Be equal to `other`: what no single events tell."""
        changes = Changes(
            tuple(self.brokers | other.brokers),
            tuple(self.sets | other.sets),
            tuple(self.queues_by_id | other.queues_by_id),
            policies=True,
            settings=tuple(self.settings | other.settings),
        )
        self.brokers, self.sets, self.policies = dict(other.brokers), dict(other.sets), other.policies
        self.queues, self.queues_by_id = dict(other.queues), dict(other.queues_by_id)
        self._queues_of = {name: dict(queues) for name, queues in other._queues_of.items()}
        self.created_by = Counter(other.created_by)
        self.settings, self.setting_changes = dict(other.settings), other.setting_changes.copy()
        self.changed_lsn = other.changed_lsn
        self._tell(changes)

    def _tell(self, changes: Changes) -> None:
        for listener in self.listeners:
            listener(changes)

    # --- what each event comes to

    def _broker_registered(self, _: int, event: ev.BrokerRegistered) -> Changes:
        before = self.brokers.get(event.name, BrokerEntry(event.name))
        self.brokers[event.name] = BrokerEntry(*event, before.up, before.draining, before.since_ms)
        return Changes(brokers=(event.name,))

    def _broker_changed(self, _: int, event: ev.BrokerChanged) -> Changes:
        name, up, draining, since_ms = event
        self.brokers[name] = self.brokers[name]._replace(up=up, draining=draining, since_ms=since_ms)
        return Changes(brokers=(name,))

    def _broker_removed(self, _: int, event: ev.BrokerRemoved) -> Changes:
        del self.brokers[event.name]
        return Changes(brokers=(event.name,))

    def _set_placed(self, _: int, event: ev.SetPlaced) -> Changes:
        there = self.sets.get(event.name)
        placed = SetEntry(*event)
        if there is not None:
            placed = placed._replace(record=there.record, is_group=there.is_group)
        self.sets[event.name] = placed
        return Changes(sets=(event.name,))

    def _set_deleted(self, _: int, event: ev.SetDeleted) -> Changes:
        if self._queues_of.get(event.name):
            raise ValueError(f"set {event.name} has queues")
        del self.sets[event.name]
        return Changes(sets=(event.name,))

    def _set_grouped(self, _: int, event: ev.SetGrouped) -> Changes:
        self.sets[event.name] = self.sets[event.name]._replace(is_group=True)
        return Changes(sets=(event.name,))

    def _set_recorded(self, _: int, event: ev.SetRecorded) -> Changes:
        self.sets[event.name] = self.sets[event.name]._replace(record=event)
        return Changes(sets=(event.name,))

    def _queue_placed(self, lsn: int, event: ev.QueuePlaced) -> Changes:
        name, set_name, arguments, deleting = event
        if set_name not in self.sets:
            raise LookupError(f"there is no set {set_name}")
        there = self.queues.get(name)
        if there is not None and there.set != set_name:
            raise ValueError(f"queue {name} is in set {there.set}")
        queue = PlacedQueue(lsn if there is None else there.id, name, set_name, arguments, deleting)
        if there is not None:
            self._uncount(there)
        if queue.created_by:
            self.created_by[queue.created_by] += 1
        self.queues[name] = self.queues_by_id[queue.id] = queue
        self._queues_of.setdefault(set_name, {})[name] = queue
        return Changes(queues=(queue.id,))

    def _queue_removed(self, _: int, event: ev.QueueRemoved) -> Changes:
        queue = self.queues_by_id.pop(event.queue)
        self._uncount(queue)
        del self.queues[queue.name]
        del self._queues_of[queue.set][queue.name]
        return Changes(queues=(queue.id,))

    def _uncount(self, queue: PlacedQueue) -> None:
        if queue.created_by:
            self.created_by[queue.created_by] -= 1

    def _policies_changed(self, _: int, event: ev.ReplicaPoliciesChanged) -> Changes:
        self.policies = tuple(zip(event.patterns, event.counts, strict=True))
        return Changes(policies=True)

    def _setting_changed(self, _: int, event: ev.SettingChanged) -> Changes:
        if event.value:
            self.settings[event.key] = event.value
        else:
            self.settings.pop(event.key, None)
        if is_secret(event.key):
            self._forget_value(event.key)
        self.setting_changes.append(event)
        return Changes(settings=(event.key,))

    def _forget_value(self, key: str) -> None:
        """That it was changed stays, and to what does not."""
        for number, change in enumerate(self.setting_changes):
            if change.key == key and change.value:
                self.setting_changes[number] = change._replace(value=WITHHELD)


_APPLY: Final[dict[type, Callable[[ClusterMap, int, Any], Changes]]] = {
    ev.BrokerRegistered: ClusterMap._broker_registered,
    ev.BrokerChanged: ClusterMap._broker_changed,
    ev.BrokerRemoved: ClusterMap._broker_removed,
    ev.SetPlaced: ClusterMap._set_placed,
    ev.SetDeleted: ClusterMap._set_deleted,
    ev.SetGrouped: ClusterMap._set_grouped,
    ev.SetRecorded: ClusterMap._set_recorded,
    ev.QueuePlaced: ClusterMap._queue_placed,
    ev.QueueRemoved: ClusterMap._queue_removed,
    ev.ReplicaPoliciesChanged: ClusterMap._policies_changed,
    ev.SettingChanged: ClusterMap._setting_changed,
}
"""Of the class and not of each map: a controller makes a draft with every input, and would leave garbage each time."""
