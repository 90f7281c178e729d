"""A cluster in a test's hands whose disks fill when the test says so: with stores that answer at once until then."""

from __future__ import annotations

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from small_cluster import Node, SmallCluster

NO_ROOM = "No space left on device"


class FillingCluster(SmallCluster):
    """The promise: of a full disk a broker hears with the first write that has no room, as from a real store."""

    def __init__(self, *names: str, **settings: object) -> None:
        self.unwritten: dict[str, list[int]] = {}
        """By name of a broker whose disk is full: the numbers of what its store was given since."""
        self._silent: set[str] = set()
        """Whose store does not say so: their disks are slow."""
        super().__init__(*names, has_store=True, **settings)

    def carry_out(self, node: Node, effect: fx.Effect) -> None:
        """Do what a driver would, with a store."""
        if isinstance(effect, fx.Persist):
            self._persist(node, effect.number)
        elif isinstance(effect, fx.PersistVote) and node.name in self.unwritten:
            node.end_for_good("cannot write STATUS")
        elif isinstance(effect, fx.WriteCheckpoint):
            node.feed(fx.CheckpointPersisted(effect.number))
        super().carry_out(node, effect)

    def _persist(self, node: Node, number: int) -> None:
        unwritten = self.unwritten.get(node.name)
        if unwritten is None:
            node.feed(fx.Persisted(number))
            return
        if not unwritten and node.name not in self._silent:
            node.feed(fx.StoreWritable(NO_ROOM))
        unwritten.append(number)

    def fill(self, *names: str) -> None:
        """From now on these disks have no room."""
        for name in names:
            self.unwritten.setdefault(name, [])

    def hold(self, name: str) -> None:
        """From now on that disk takes its time."""
        self._silent.add(name)
        self.fill(name)

    def make_room(self, name: str) -> None:
        """What could not be written is, and all that comes."""
        unwritten = self.unwritten.pop(name)
        node = self.nodes[name]
        if unwritten and node.running:
            if name not in self._silent:
                node.feed(fx.StoreWritable(""))
            node.feed(fx.Persisted(unwritten[-1]))
        self.run()

    def in_sync(self, primary: str) -> tuple[str, ...]:
        """As that primary sees it."""
        leading = self.nodes[primary].member.primary
        return () if leading is None else leading.in_sync.members


def three_with_disks(**settings: object) -> FillingCluster:
    """Three brokers with a queue `q`, the first of them primary, the others ready."""
    cluster = FillingCluster("a", "b", "c", **settings)
    cluster.run()
    answer = cluster.promote("a")
    assert answer.done, answer
    cluster["a"].declare("q")
    cluster.settle()
    assert [cluster[name].state for name in "abc"] == [State.PRIMARY, State.READY, State.READY]
    return cluster
