"""A queue or an exchange changes its level, and the broker dies: what was confirmed before is there, in one place."""

from __future__ import annotations

import pytest

from kept_core import KeptCore, copied, durable_picture, recovered
from model_support import NOW_MS, bodies, message
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.frames import Resync, Welcome
from qpid_ha_broker.ha.replica import Replica
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.model.queue_arguments import Replicate
from qpid_ha_broker.model.resources import Resources
from qpid_ha_broker.server.stores.restored import restored_from
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.layout import segment_path
from simulated_disk import SimulatedDisk

LEVELS = list(Replicate)
CHANGES = [(before, after) for before in LEVELS for after in LEVELS if before is not after]


class Changed:
    """A queue with three confirmed messages and a binding, before its level was changed, and with the change kept."""

    def __init__(self, before: Replicate, after: Replicate, *, is_committed: bool = True) -> None:
        self.core = core = KeptCore()
        core.configuration.default_replication = before
        queue = core.queue("q")
        exchange = core.exchange("e", "fanout", queue)
        core.publish(exchange, *(message(text, durable=True) for text in "abc"))
        core.keep()
        self.kept_bytes = core.journal.position
        self.common_lsn = core.log.last_lsn
        if not is_committed:
            core.committed_lsn = core.log.last_lsn
        core.configuration.set_replication([], after)
        core.keep()
        self.changed_bytes = core.journal.position

    def cut(self, length: int) -> Disk:
        """The disk, had it taken no more than so many bytes of the journal."""
        path = segment_path(self.core.journal.number)
        file = self.core.disk.open(path)
        data = file.read(0, file.size)
        file.close()
        disk: SimulatedDisk = copied(self.core.disk)
        disk.put(path, data[:length] + bytes(len(data) - length))
        return disk


def contents(resources: Resources) -> dict[str, list[str]]:
    """Bodies by queue, in their order."""
    return {queue.name: bodies(list(queue.messages)) for queue in resources.catalog.queues.values()}


def replica(core: KeptCore) -> tuple[Resources, Replica]:
    """A broker of three that starts with what was kept, of which it does not know whether it counts."""
    resources, facts = recovered(core.disk, apply_all=False)
    settings = MemberSettings("alpha", "alpha-2", ("alpha:1", "b:1", "c:1"), "alpha:1", has_store=True)
    ctx = MemberContext(settings, resources.replicated, lambda: 0.5, lambda: NOW_MS)
    return resources, Replica(ctx, restored_from(core.disk, facts, 1 << 20))


def test_a_power_cut_leaves_what_comes_into_the_replicated_log_where_it_was_or_there() -> None:
    changed = Changed(Replicate.NONE, Replicate.MESSAGES)
    for length in range(changed.kept_bytes, changed.changed_bytes + 1):
        resources, facts = recovered(changed.cut(length))
        assert contents(resources) == {"q": ["a", "b", "c"]}
        assert [note for note in facts.notes if "things that are not here" in note] == []
    (binding,) = resources.catalog.exchanges["e"].bindings()
    assert binding.queue == resources.catalog.queues["q"].id


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_change_of_which_nobody_knows_whether_it_counts_is_whole_when_it_does(
    before: Replicate, after: Replicate
) -> None:
    changed = Changed(before, after, is_committed=False)
    resources, held = replica(changed.core)
    held.apply_all()
    assert durable_picture(resources.sets)["queues"] == durable_picture(changed.core.sets)["queues"]
    assert resources.catalog.queues["q"].replication is after
    assert len(resources.catalog.exchanges["e"].bindings()) == 1


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_change_that_does_not_count_leaves_the_queue_as_it_was(before: Replicate, after: Replicate) -> None:
    changed = Changed(before, after, is_committed=False)
    resources, held = replica(changed.core)
    held.follow(Welcome("b", "uuid", 1, (), changed.common_lsn, Resync.TAIL, "", 10.0))
    held.apply_all()
    assert contents(resources) == {"q": ["a", "b", "c"]}
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
