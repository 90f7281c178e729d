"""The cluster map: what its events make of it, who hears of a change, and that it comes back as it was."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchup_support import Pair
from kept_core import KeptCore, durable_picture, recovered
from map_events import PLACED, map_event
from model_support import Core, picture, replicated_picture
from qpid_ha_broker.cluster_map import Changes, ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.events.layout import is_local_lsn
from qpid_ha_broker.ha.objects import ObjectsError, objects_frame, read_objects
from qpid_ha_broker.model.errors import AlreadyExists, InUse, InvalidArgument, NotFound, OtherSet
from qpid_ha_broker.model.sets.state import ReplayError

seeds = st.integers(0, 1 << 32)


def random_map(seed: int, length: int) -> ClusterMap:
    random, there = Random(seed), ClusterMap()
    for lsn in range(1, length + 1):
        there.apply(lsn, map_event(random, there))
    return there


def copy_of(there: ClusterMap, lsn: int = 1000) -> ClusterMap:
    copy = ClusterMap()
    for event_lsn, event in there.events(lsn):
        copy.apply(event_lsn, event)
    return copy


def contents(there: ClusterMap) -> tuple[object, ...]:
    queues_of = {name: dict(there.queues_of(name)) for name in there.sets}
    return there.brokers, there.sets, there.queues, there.queues_by_id, there.policies, queues_of


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(0, 60))
def test_the_events_of_a_map_make_an_equal_one_of_an_empty_one(seed: int, length: int) -> None:
    there = random_map(seed, length)
    copy = copy_of(there)
    assert contents(copy) == contents(there)
    assert list(copy.events(7)) == list(there.events(7))
    assert there.is_empty is not any(contents(there)[:5])


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 60))
def test_who_listens_hears_of_each_thing_that_changes(seed: int, length: int) -> None:
    """A reader that looks up only what it was told of has the whole map."""
    random, there = Random(seed), ClusterMap()
    seen: dict[str, dict[object, object]] = {"brokers": {}, "sets": {}, "queues": {}, "policies": {}}

    def hear(changes: Changes) -> None:
        seen["brokers"] |= {name: there.brokers.get(name) for name in changes.brokers}
        seen["sets"] |= {name: there.sets.get(name) for name in changes.sets}
        seen["queues"] |= {queue_id: there.queues_by_id.get(queue_id) for queue_id in changes.queues}
        if changes.policies:
            seen["policies"] = {"": there.policies}

    there.listeners.append(hear)
    for lsn in range(1, length + 1):
        there.apply(lsn, map_event(random, there))
    there.replace(random_map(seed + 1, length))
    known = [{key: value for key, value in each.items() if value is not None} for each in seen.values()]
    assert known == [there.brokers, there.sets, there.queues_by_id, {"": there.policies}]


@settings(max_examples=50, deadline=None)
@given(seeds, seeds, st.integers(0, 40))
def test_a_map_that_was_replaced_is_equal_and_goes_its_own_way(seed: int, other_seed: int, length: int) -> None:
    there, other = random_map(seed, 40), random_map(other_seed, length)
    there.replace(other)
    assert (contents(there), there.changed_lsn) == (contents(other), other.changed_lsn)
    before = list(other.events(0))
    random = Random(seed)
    for lsn in range(100, 130):
        there.apply(lsn, map_event(random, there))
    assert list(other.events(0)) == before


def test_a_group_stays_one_when_its_replicas_move_and_when_its_record_changes() -> None:
    there = ClusterMap()
    for event in (
        ev.SetPlaced("s", ("alpha",), (), "", 0, 0),
        ev.SetGrouped("s"),
        ev.SetRecorded("s", "c", 0, "", 0, (), False),
        ev.SetPlaced("s", ("alpha", "beta"), ("alpha",), "", 0, 0),
        ev.SetRecorded("s", "c", 1, "beta", 1, ("beta",), False),
        ev.SetPlaced("t", ("alpha",), (), "", 0, 0),
    ):
        there.apply(1, event)
    assert {name: entry.is_group for name, entry in there.sets.items()} == {"s": True, "t": False}
    assert [type(event).__name__ for _, event in there.events(1)] == [
        "SetPlaced",
        "SetGrouped",
        "SetRecorded",
        "SetPlaced",
    ]
    there.apply(2, ev.SetDeleted("s"))
    there.apply(3, ev.SetPlaced("s", ("alpha",), (), "", 0, 0))
    assert not there.sets["s"].is_group, "another set of that name is another set"


def core_with_placed(*names: str) -> Core:
    """A core whose map has the set `s` with queues of these names."""
    core = Core()
    place(core, *names)
    return core


def place(core: Core, *names: str) -> list[int]:
    if "s" not in core.state.map.sets:
        core.resources.replicated.write(ev.SetPlaced("s", ("alpha",), (), "", 0, 0))
    return [core.resources.replicated.write(ev.QueuePlaced(name, "s", {}, False)) for name in names]


# --- as state of `default`


def test_a_store_brings_the_map_back_with_bindings_to_its_queues() -> None:
    core = KeptCore()
    (placed,) = place(core, "p1")
    core.configuration.declare_exchange("x", "fanout", {})
    core.configuration.bind("x", "p1", "", {})
    core.configuration.declare_exchange("mine", "fanout", {"qpid.replicate": "none"})
    core.configuration.bind("mine", "p1", "k", {})
    core.keep()
    resources, _ = recovered(core.disk)
    assert durable_picture(resources.sets) == durable_picture(core.sets)
    dump, number = core.begin_dump()
    pieces = []
    while (piece := dump.next(1 << 20)) is not None:
        pieces.append(piece)
    core.write_dump(dump, number, pieces)
    resources, _ = recovered(core.disk)
    assert durable_picture(resources.sets) == durable_picture(core.sets)
    assert [binding.queue for binding in resources.catalog.exchanges["mine"].bindings()] == [placed]


def test_a_backup_that_compares_gets_the_map_and_frees_names_and_bindings_of_what_is_gone() -> None:
    pair = Pair()
    place(pair.primary, "p1", "p2")
    pair.primary.configuration.declare_exchange("x", "fanout", {})
    pair.primary.configuration.bind("x", "p1", "", {})
    pair.primary.configuration.bind("x", "p2", "", {})
    pair.part()
    pair.backup.queue("p3", replicate="none")
    pair.backup.configuration.declare_exchange("mine", "fanout", {"qpid.replicate": "none"})
    pair.backup.configuration.bind("mine", "p1", "", {})
    pair.primary.resources.replicated.write(ev.QueueRemoved(pair.primary.state.map.queues["p1"].id))
    place(pair.primary, "p3")
    pair.primary.queue("p1")
    pair.meet()
    pair.finish()
    assert "p3" not in pair.backup.catalog.queues
    assert pair.backup.catalog.exchanges["mine"].bindings() == []
    pair.primary.configuration.bind("x", "p3", "", {})
    pair.follow_on()


def test_a_map_that_cannot_be_is_refused_with_the_objects() -> None:
    core = core_with_placed("p1")
    queue = core.queue("q")
    lsn = core.log.last_lsn
    frame = objects_frame(core.state, 1, lsn)
    assert contents(read_objects(frame).map) == contents(core.state.map)
    added: dict[str, ev.MapEvent] = {
        "a broker that nobody knows": ev.BrokerChanged("nobody", True, False, 0),
        "a queue of no set": ev.QueuePlaced("p9", "nowhere", {}, False),
        "the name of a queue": ev.QueuePlaced("q", "s", {}, False),
        "a set that nobody knows": ev.SetDeleted("nowhere"),
        "a group that nobody knows": ev.SetGrouped("nowhere"),
    }
    for event in added.values():
        with pytest.raises(ObjectsError):
            read_objects(frame._replace(data=frame.data + encode(1, event)))
    with pytest.raises(ObjectsError):
        read_objects(frame._replace(data=frame.data + encode(queue.id, ev.QueuePlaced("p9", "s", {}, False))))


# --- names, bindings and routes


def test_a_name_is_that_of_one_queue_in_the_cluster() -> None:
    core = core_with_placed("p1")
    with pytest.raises(AlreadyExists, match="set s"):
        core.queue("p1")
    with pytest.raises(AlreadyExists, match="set s"):
        core.exchange("p1")
    with pytest.raises(NotFound, match="it is in s"):
        core.configuration.queue("p1")
    core.queue("q")
    with pytest.raises(ReplayError, match="taken"):
        place(core, "q")
    core.queue("mine", replicate="none")
    place(core, "mine")
    assert "mine" not in core.catalog.queues


def test_an_exchange_leads_to_queues_of_other_sets_until_they_are_removed() -> None:
    core = core_with_placed("p1", "p2")
    queue = core.queue("q")
    exchange = core.exchange("x", "direct")
    for name in ("q", "p1", "p2"):
        core.configuration.bind("x", name, "k", {})
    core.configuration.bind("x", "p2", "other", {})
    core.configuration.unbind("x", "p2", "k")
    there = core.catalog.destinations(exchange, "k", b"")
    assert there.queues == (queue,)
    assert [placed.name for placed in there.placed] == ["p1"]
    core.resources.replicated.write(ev.QueueRemoved(core.state.map.queues["p1"].id))
    assert core.catalog.destinations(exchange, "k", b"") == ((queue,), ())
    assert [binding.key for binding in exchange.bindings()] == ["k", "other"]
    core.check()


def test_what_stays_within_one_set_is_refused_where_an_exchange_leads_to_another() -> None:
    core = core_with_placed("p1")
    exchange = core.exchange("x", "fanout", core.queue("q"))
    core.configuration.bind("x", "p1", "", {})
    before = core.log.last_lsn
    with pytest.raises(OtherSet, match="queue p1 of resource set s"):
        core.publish(exchange, "m")
    assert core.log.last_lsn == before


def test_a_queue_that_is_being_deleted_cannot_be_bound() -> None:
    core = core_with_placed("p1")
    core.exchange("x")
    core.resources.replicated.write(ev.QueuePlaced("p1", "s", {}, True))
    with pytest.raises(InUse, match="p1 is being deleted"):
        core.configuration.bind("x", "p1", "", {})


def test_dead_letters_do_not_lead_to_another_set() -> None:
    """Whichever comes first: the binding, the queue with the alternate exchange, or that one's own alternate."""
    core = core_with_placed("p1")
    core.exchange("far")
    core.exchange("near", alternate_exchange="far")
    core.configuration.bind("far", "p1", "", {})
    for name in ("far", "near"):
        with pytest.raises(InvalidArgument, match="dead letters cannot go"):
            core.queue("q", alternate_exchange=name)
    core.queue("q")
    with pytest.raises(InvalidArgument, match="dead letters cannot go"):
        core.configuration.update_queue("q", {"qpid.alternate_exchange": "near"})
    core.configuration.unbind("far", "p1", "")
    core.configuration.update_queue("q", {"qpid.alternate_exchange": "near"})
    for name in ("far", "near"):
        with pytest.raises(InvalidArgument, match="cannot go from one resource set"):
            core.configuration.bind(name, "p1", "", {})
    core.check()


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_whatever_happens_to_the_map_who_follows_or_compares_has_the_same(seed: int) -> None:
    random, pair = Random(seed), Pair()
    pair.primary.exchange("x")
    for step in range(40):
        core = pair.primary
        core.resources.replicated.write(map_event(random, core.state.map, core.catalog.queues))
        bindable = [name for name in PLACED if name in core.state.map.queues]
        if bindable and random.random() < 0.5:
            placed = core.state.map.queues[random.choice(bindable)]
            if not placed.deleting:
                core.configuration.bind("x", placed.name, random.choice("ab"), {})
        if step == 20:
            pair.part()
    core = pair.primary
    assert picture(core.replayed()) == replicated_picture(core.sets)
    assert not any(is_local_lsn(queue_id) for queue_id in core.state.map.queues_by_id)
    pair.meet()
    pair.finish()
