"""Something is said in both logs of a broker, which dies: what was confirmed before is there, in one of them."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from kept_core import KeptCore, durable_picture, recovered
from model_support import NOW_MS, bodies, message, transaction_of
from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.frames import Resync, Welcome
from qpid_ha_broker.ha.replica import Replica
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.model.exchanges.exchange import SELECTOR_ARGUMENT
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.stores.restored import restored_from
from simulated_disk import PowerCut, SimulatedDisk

LEVELS = list(Replicate)
TEXTS = [text * 600 for text in "abc"]
"""So long that a power cut may keep a part of them: a sector has 512 bytes."""
CHANGES = [(before, after) for before in LEVELS for after in LEVELS if before is not after]


def kept_queue(level: Replicate, disk: SimulatedDisk | None = None) -> KeptCore:
    """A broker with a queue of three confirmed messages, and a binding."""
    core = KeptCore(disk)
    core.configuration.default_replication = level
    exchange = core.exchange("e", "fanout", core.queue("q"))
    core.publish(exchange, *(message(text, durable=True) for text in TEXTS))
    core.keep()
    return core


def changed_before_it_counts(before: Replicate, after: Replicate) -> tuple[KeptCore, int]:
    """Such a queue, which has another level since: nobody has said that this is committed. And the last LSN before."""
    core = kept_queue(before)
    core.committed_lsn = common_lsn = core.log.last_lsn
    core.configuration.set_replication([], after)
    core.keep()
    return core, common_lsn


def contents(resources: Resources) -> dict[str, list[str]]:
    """Bodies by queue, in their order."""
    return {queue.name: bodies(list(queue.messages)) for queue in resources.catalog.queues.values()}


def replica(core: KeptCore) -> tuple[Resources, Replica]:
    """A broker of three that starts with what was kept, of which it does not know whether it counts."""
    resources, facts = recovered(core.disk, apply_all=False)
    settings = MemberSettings("alpha", "alpha-2", ("alpha:1", "b:1", "c:1"), "alpha:1", has_store=True)
    ctx = MemberContext(settings, resources.replicated, lambda: 0.5, lambda: NOW_MS)
    return resources, Replica(ctx, restored_from(core.disk, facts, 1 << 20))


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_power_cut_leaves_the_queue_as_it_was_or_as_it_was_to_be(before: Replicate, after: Replicate) -> None:
    """Both logs tell of it, and of what they tell either all is on disk or nothing."""
    levels = set()
    for seed in range(30):
        disk = SimulatedDisk(Random(seed))
        core = kept_queue(before, disk)
        core.configuration.set_replication([], after)
        disk.crash_at(1 + seed % 5)
        with suppress(PowerCut):
            core.keep()
        resources, facts = recovered(disk.after_power_cut())
        assert contents(resources) == {"q": TEXTS}
        (binding,) = resources.catalog.exchanges["e"].bindings()
        assert binding.queue == resources.catalog.queues["q"].id
        assert [note for note in facts.notes if "things that are not here" in note] == []
        levels.add(resources.catalog.queues["q"].replication)
    assert levels == {before, after}


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_change_of_which_nobody_knows_whether_it_counts_is_whole_when_it_does(
    before: Replicate, after: Replicate
) -> None:
    core, _ = changed_before_it_counts(before, after)
    resources, held = replica(core)
    held.apply_all()
    assert durable_picture(resources.sets)["queues"] == durable_picture(core.sets)["queues"]
    assert resources.catalog.queues["q"].replication is after
    assert len(resources.catalog.exchanges["e"].bindings()) == 1


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_change_that_does_not_count_leaves_the_queue_as_it_was(before: Replicate, after: Replicate) -> None:
    core, common_lsn = changed_before_it_counts(before, after)
    resources, held = replica(core)
    held.follow(Welcome("b", "uuid", 1, (), common_lsn, Resync.TAIL, "", 10.0))
    held.apply_all()
    assert contents(resources) == {"q": TEXTS}
    assert resources.catalog.queues["q"].replication is before
    assert len(resources.catalog.exchanges["e"].bindings()) == 1


@pytest.mark.parametrize("counts", [True, False])
def test_a_message_behind_the_declaration_of_its_queue_comes_back_with_it_or_not_at_all(counts: bool) -> None:
    """Of a queue of which only the configuration is replicated: its messages are in the broker's own log."""
    core = KeptCore()
    core.committed_lsn = common_lsn = core.log.last_lsn
    core.publish(core.queue("c", replicate="configuration"), message("a", durable=True))
    core.keep()
    core.publish(core.queue("d", replicate="configuration"), message("b", durable=True))
    core.consume(core.catalog.queues["c"])
    core.keep()
    resources, held = replica(core)
    if not counts:
        held.follow(Welcome("b", "uuid", 1, (), common_lsn, Resync.TAIL, "", 10.0))
    held.apply_all()
    assert contents(resources) == ({"c": [], "d": ["b"]} if counts else {})
    assert resources.sets.log_ends == (core.log.last_lsn if counts else common_lsn, core.sets.log_ends[1])


def test_a_power_cut_leaves_all_of_a_transaction_or_nothing_of_it() -> None:
    """Its message is in one log, and what it has accepted in the other: so many that they take more than a sector."""
    seen = set()
    for seed in range(40):
        disk = SimulatedDisk(Random(seed))
        core = KeptCore(disk)
        shared, own = core.queue("shared"), core.queue("own", replicate="none")
        source, target = (shared, own) if seed % 2 else (own, shared)
        core.publish(source, *[message("old", durable=True)] * 200)
        core.keep()
        transaction = transaction_of((target, message("new", durable=True)))
        for entry in core.take(source, core.consumer(source), 200):
            transaction.accept(source, entry, None)
        core.resources.commit(transaction, core.now_ms)
        disk.crash_at(1 + seed // 2 % 5)
        with suppress(PowerCut):
            core.keep()
        found = contents(recovered(disk.after_power_cut())[0])
        seen.add((len(found[source.name]), len(found[target.name])))
    assert seen == {(200, 0), (0, 1)}


@pytest.mark.parametrize(("before", "after"), [({}, {"qpid.replicate": "none"}), ({"qpid.replicate": "none"}, {})])
def test_a_binding_that_becomes_private_or_is_so_no_longer_is_never_gone(before: Arguments, after: Arguments) -> None:
    selector = {SELECTOR_ARGUMENT: f"x = '{'1' * 600}'"}
    seen = set()
    for seed in range(30):
        disk = SimulatedDisk(Random(seed))
        core = KeptCore(disk)
        core.exchange("e", "fanout")
        core.queue("q")
        core.configuration.bind("e", "q", "", {**selector, **before})
        core.keep()
        core.configuration.bind("e", "q", "", {**selector, **after})
        disk.crash_at(1 + seed % 5)
        with suppress(PowerCut):
            core.keep()
        resources, _ = recovered(disk.after_power_cut())
        (binding,) = resources.catalog.exchanges["e"].bindings()
        seen.add(binding.arguments.get("qpid.replicate"))
    assert seen == {None, "none"}


def test_a_binding_that_is_private_stays_when_its_exchange_is_replicated() -> None:
    core = KeptCore()
    core.configuration.default_replication = Replicate.NONE
    exchange = core.exchange("e", "fanout", core.queue("own", replicate="none"), core.queue("shared", replicate="all"))
    core.configuration.set_replication([], Replicate.MESSAGES)
    core.publish(exchange, message("a", durable=True))
    core.keep()
    resources, _ = recovered(core.disk)
    assert {binding.queue for binding in resources.catalog.exchanges["e"].bindings()} == {
        queue.id for queue in core.catalog.queues.values()
    }
    assert contents(resources) == {"own": ["a"], "shared": ["a"]}
