"""The primary of a set, its log and the map: what it declares, deletes and tells the controller, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lone_group_member import LoneGroupMember
from paired_engines import PairedClient
from qpid_ha_broker.cluster.messages import DeclaredQueues, OrderDeletion, UnplacedQueue
from qpid_ha_broker.cluster_map import TOMBSTONE_OF, PlacedQueue
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.errors import InUse, NotFound
from qpid_ha_broker.server.peers.replica_reports import QueueReport
from qpid_ha_broker.server.sets.placed_queues import PlacedQueues
from several_sets import WITNESS, SeveralSets

EARLIER = 1 << 40
"""The id of no entry here."""


class Primary:
    """A broker that leads `default` and `red`; the log of `red` is committed when the test says so."""

    def __init__(self) -> None:
        self.broker = SeveralSets()
        self.set = self.broker.set("red")
        self.set.configuration.delete_queue("red")
        self.log = self.set.resources.replicated.log
        self.default = self.broker.container.default.resources.replicated
        self.map = self.default.state.map
        self.refusals: list[str] = []
        facts = SimpleNamespace(generation=3, keeps_directory=True)
        member = SimpleNamespace(hosted=self.set, is_serving=True, facts=facts)
        self.committed = SimpleNamespace(committed_lsn=0, position=SimpleNamespace(lsn=0))
        members: dict[str, Any] = {"red": member}
        self.queues = PlacedQueues("alpha", self.map, cast("Any", self.committed), members, lambda: None)
        self.entries: dict[int, PlacedQueue] = {}
        self.map.listeners.append(self._map_changed)
        self.write(ev.SetPlaced("red", ("alpha",), (), "", 0, 0))
        self.write(ev.SetRecorded("red", "c", 3, "alpha", 1, ("alpha",), False))
        self.broker.settle_down()
        self.log.add_witness(WITNESS)

    def _map_changed(self, changes: Any) -> None:
        self.committed.position.lsn = self.default.log.last_lsn
        there = self.map.queues_by_id
        self.entries |= {entry: there[entry] for entry in changes.queues if entry in there}
        self.queues.map_changed(changes, [self.entries[entry] for entry in changes.queues])

    def write(self, event: ev.MapEvent, *, committed: bool = True) -> int:
        lsn = self.default.write(event)
        if committed:
            self.committed.committed_lsn = lsn
        return lsn

    def work(self) -> QueueReport:
        """It looks, and has its turns; what it would report."""
        for _ in range(5):
            self.queues.work()
        self.broker.settle_down()
        return self.queues.report(False)

    def commit(self) -> QueueReport:
        """The same, and all that it has written is committed."""
        self.work()
        self.broker.acknowledge("red")
        return self.work()

    def place(self, name: str = "q", **arguments: object) -> int:
        """The id of the entry, whose queue is there and committed."""
        entry = self.write(ev.QueuePlaced(name, "red", cast("ev.Arguments", arguments), False))
        self.work()
        self.commit()
        return entry

    def order(self, entry: int, *, if_empty: bool = False, if_unused: bool = False) -> None:
        order = OrderDeletion(len(self.refusals) + 1, "alpha", "red", entry, if_empty, if_unused)
        self.queues.have_deleted(order, lambda done, text: self.refusals.append(text))

    @property
    def there(self) -> dict[str, object]:
        """Queues by name, and of which entries they are tombstones."""
        queues = self.set.resources.catalog.queues.values()
        return {queue.name: queue.arguments.tombstone_of for queue in queues}


@pytest.fixture
def primary() -> Primary:
    return Primary()


def test_an_entry_has_its_queue_declared_and_that_is_told_once_it_is_committed(primary: Primary) -> None:
    entry = primary.write(ev.QueuePlaced("q", "red", {}, False), committed=False)
    assert (primary.work().declared, primary.there) == ((), {})
    primary.committed.committed_lsn = entry
    assert (primary.work().declared, primary.there) == ((), {"q": 0})
    assert primary.commit().declared == (DeclaredQueues("red", entry),)


def test_a_deletion_takes_three_steps_and_each_waits_for_the_one_before(primary: Primary) -> None:
    entry = primary.place()
    primary.order(entry)
    assert (primary.work().deleted, primary.there) == ((), {"q": entry})
    assert primary.commit().deleted == (entry,)
    removed = primary.write(ev.QueueRemoved(entry), committed=False)
    assert (primary.work().deleted, primary.there) == ((), {"q": entry}), "its entry may still be there"
    primary.committed.committed_lsn = removed
    assert (primary.work().deleted, primary.there) == ((), {})
    assert primary.commit()._replace(declared=()) == QueueReport()
    assert primary.refusals == []


def test_in_a_group_a_deletion_is_told_when_it_has_its_place_however_late_that_is() -> None:
    """Seed 11 of clusters with a group: the queue was gone, its entry stayed, and nobody could make it again."""
    broker, refusals = LoneGroupMember(), list[str]()
    default = broker.container.default.resources.replicated
    facts = SimpleNamespace(generation=3, keeps_directory=True)
    member: Any = SimpleNamespace(hosted=broker.hosted, is_serving=True, facts=facts)
    log: Any = SimpleNamespace(committed_lsn=EARLIER)
    queues = PlacedQueues("a", default.state.map, log, {"orders": member}, lambda: None)
    default.write(ev.SetPlaced("orders", ("a",), (), "", 0, 0))
    default.write(ev.SetRecorded("orders", "c", 3, "a", 1, ("a",), False))
    entry = default.write(ev.QueuePlaced("q", "orders", {}, False))

    def work() -> tuple[int, ...]:
        for _ in range(3):
            queues.work()
            broker.go_on()
        return queues.report(False).deleted

    broker.is_stalled = True
    queues.have_deleted(OrderDeletion(1, "a", "orders", entry, False, False), lambda done, text: refusals.append(text))
    assert work() == ()
    broker.is_stalled = False
    assert (work(), refusals) == ((entry,), [])


def test_a_queue_is_refused_that_is_in_use_and_deleted_for_who_asks_again(primary: Primary) -> None:
    entry = primary.place()
    client = primary.broker.connect()
    primary.broker.directory.queues["q"] = "red"
    receiver = client.receiver("q", 1)
    primary.order(entry, if_unused=True)
    primary.commit()
    assert primary.refusals == ["queue q has 1 consumer: stop them, or do not ask for if-unused"]
    receiver.close()
    primary.broker.settle_down()
    primary.commit()
    assert primary.there == {"q": 0}, "who has asked was told that it stays"
    primary.order(entry, if_unused=True)
    assert primary.commit().deleted == (entry,)


def test_a_queue_that_is_in_use_no_more_when_its_primary_hears_of_it_is_deleted(primary: Primary) -> None:
    """Before the entry is known here, and before its queue is declared, an order waits."""
    entry = primary.default.log.last_lsn + 1
    primary.order(entry, if_empty=True, if_unused=True)
    primary.work()
    primary.write(ev.QueuePlaced("q", "red", {}, False))
    primary.work()
    assert primary.commit().deleted == (entry,)


def test_the_order_for_an_entry_that_is_gone_does_nothing_to_the_next_queue_of_its_name(primary: Primary) -> None:
    entry = primary.place()
    for _ in range(2):
        primary.order(entry)
    primary.commit()
    primary.write(ev.QueueRemoved(entry))
    later = primary.place()
    primary.order(entry)
    assert primary.commit().deleted == ()
    assert (primary.there, primary.map.queues["q"].id) == ({"q": 0}, later)
    assert primary.queues._orders["red"] == {}


def test_a_queue_that_is_made_again_before_its_tombstone_is_gone_is_another_one(primary: Primary) -> None:
    entry = primary.place()
    primary.order(entry)
    primary.commit()
    before = primary.set.resources.catalog.queues["q"].id
    primary.write(ev.QueueRemoved(entry))
    later = primary.place()
    assert primary.there == {"q": 0}
    assert primary.set.resources.catalog.queues["q"].id > before
    assert (primary.commit().deleted, later > entry) == ((), True)


def test_a_tombstone_goes_also_where_its_name_is_that_of_a_queue_of_another_set_by_then(primary: Primary) -> None:
    entry = primary.place()  # found by the simulation
    primary.order(entry)
    primary.commit()
    primary.write(ev.SetPlaced("blue", ("beta",), (), "", 0, 0))
    primary.write(ev.QueueRemoved(entry), committed=False)
    primary.write(ev.QueuePlaced("q", "blue", {}, False))
    primary.commit()
    assert primary.there == {}


def test_nobody_but_the_log_sees_a_tombstone(primary: Primary) -> None:
    entry = primary.place()
    client = primary.broker.connect()
    primary.broker.directory.queues["q"] = "red"
    receiver, sender = client.receiver("q", 1), client.sender("q")
    primary.order(entry)
    primary.commit()

    assert receiver.remote_condition.name == "amqp:resource-deleted"
    delivery = sender.delivery("1")
    sender.send(b"\x00Sw\xa1\x01a")
    sender.advance()
    primary.commit()
    assert str(delivery.remote_state) != "ACCEPTED"
    assert refused(client) == "amqp:precondition-failed", "it cannot be made by attaching while its name is taken"
    administration = primary.set.administration
    assert [facts["name"] for facts in administration.queues()] == []
    for act in (administration.queue, administration.delete_queue, administration.purge_queue):
        with pytest.raises(NotFound):
            act("q")
    with pytest.raises(InUse, match="q is being deleted: try again"):
        administration.create_queue("q")
    with pytest.raises(NotFound):
        administration.update_queue("q", {"qpid.max_count": 1})


def refused(client: PairedClient) -> str:
    return str(client.receiver("q", 1).remote_condition.name)


def test_who_leads_next_goes_on_from_the_log_alone(primary: Primary) -> None:
    """The one before has died once the tombstone was in its log; a queue without a tombstone it declares."""
    entry, other = primary.place(), primary.place("other")
    primary.order(entry)
    primary.commit()
    queue = primary.set.resources.catalog.queues["q"]
    again = PlacedQueues("alpha", primary.map, cast("Any", primary.committed), primary.queues._members, lambda: None)
    primary.queues = again
    again.look_at("red")
    assert primary.work().deleted == (entry,)
    assert (primary.there, queue.deleted) == ({"q": entry, "other": 0}, True)
    assert primary.map.queues["other"].id == other


def test_a_queue_that_the_directory_has_lost_gets_an_entry_and_a_tombstone_none(primary: Primary) -> None:
    primary.set.configuration.declare_queue("q", {"qpid.max_count": 5})
    primary.set.configuration.declare_queue("gone", {})
    primary.set.configuration.delete_queue("gone", tombstone_of=EARLIER)
    primary.queues.look_at("red")
    primary.work()
    assert primary.commit().unplaced == (UnplacedQueue("red", "q", {"qpid.max_count": 5}),)
    assert primary.there == {"q": 0}


def test_what_a_controller_of_the_release_before_wants_deleted_goes_without_a_tombstone(primary: Primary) -> None:
    entry = primary.place()
    primary.write(ev.QueuePlaced("q", "red", {}, True))
    primary.work()
    assert primary.there == {}
    assert primary.commit().deleted == (entry,)


def test_what_it_wants_deleted_on_conditions_is_kept_at_once_and_whatever_comes_later(primary: Primary) -> None:
    entry = primary.place()
    primary.write(ev.QueuePlaced("q", "red", {"qpid.if-empty": True, "qpid.deletion": "c0ffee"}, True))
    for _ in range(2):
        (kept,) = primary.commit().kept
        assert kept[:3] == (entry, "c0ffee", 3)
    primary.write(ev.QueuePlaced("q", "red", {}, False))
    assert primary.commit() == QueueReport()
    assert primary.there == {"q": 0}


def test_a_replica_that_is_taken_away_has_what_it_still_holds_of_removed_entries_named(primary: Primary) -> None:
    entry = primary.place()
    primary.place("other")
    primary.write(ev.QueueRemoved(entry))
    assert primary.queues.take_unwanted("red") == {"q"}
    assert primary.queues.take_unwanted("red") == set()
    assert TOMBSTONE_OF.startswith("$"), "as no argument of our own does, which the release before would refuse"
