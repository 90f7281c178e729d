"""One container with several resource sets, and a directory of queues that says what the test says."""

from __future__ import annotations

from paired_engines import PairedBroker
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.directory import QueueDecision, ServerAddress
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait
from qpid_ha_broker.events import types as ev

WITNESS = "store"
BETA = ServerAddress("beta", "beta.example", 5673)


class ClusterDirectory:
    """What the map would say: queues by set, and who leads."""

    has_many_sets = True

    def __init__(self) -> None:
        self.queues: dict[str, str] = {}
        self.primaries: dict[str, ServerAddress] = {}
        self.locating: NodeWait | None = None
        self.decisions: list[tuple[str, dict[str, object], QueueDecision]] = []
        """Of each request for the controller the queue, what was asked, and what becomes of it."""

    def set_of(self, queue_name: str) -> str | None:
        """As the test says."""
        return self.queues.get(queue_name)

    def primary_of(self, set_name: str) -> ServerAddress | None:
        """As the test says."""
        return self.primaries.get(set_name)

    def locate(self, queue_name: str) -> NodeWait | None:
        """As the test says."""
        return self.locating

    def place(self, queue_name: str, arguments: ev.Arguments) -> NodeWait:
        """Nobody asks for that here."""
        raise NotImplementedError(queue_name)

    def create_queue(self, queue_name: str, arguments: ev.Arguments) -> QueueDecision:
        """For the test to decide."""
        return self._asked(queue_name, dict(arguments))

    def delete_queue(self, queue_name: str, *, if_empty: bool, if_unused: bool) -> QueueDecision:
        """For the test to decide."""
        return self._asked(queue_name, {"if_empty": if_empty, "if_unused": if_unused})

    def _asked(self, queue_name: str, asked: dict[str, object]) -> QueueDecision:
        decision = QueueDecision()
        self.decisions.append((queue_name, asked, decision))
        return decision


class SeveralSets(PairedBroker):
    """A broker that leads `default`, `red` and `blue`; each of the others has a queue with its name."""

    def __init__(self, settings: ContainerSettings | None = None) -> None:
        super().__init__(settings)
        self.directory = self.container.directory = ClusterDirectory()
        for name in ("red", "blue"):
            self.container.host(name)
            self.declare(name, name)
        self.container.default.configuration.declare_queue("plain", {})
        self.settle_down()

    def declare(self, set_name: str, queue_name: str) -> None:
        """A queue that the directory knows."""
        self.set(set_name).configuration.declare_queue(queue_name, {})
        self.set(set_name).touch()
        self.directory.queues[queue_name] = set_name

    def set(self, name: str) -> HostedSet:
        """By name."""
        return self.container.sets[name]

    def count(self, name: str) -> int:
        """Messages in the queue of that name of the set of that name."""
        return self.set(name).resources.catalog.queues[name].messages.count

    def lead_elsewhere(self, name: str, address: ServerAddress | None = BETA) -> None:
        """This broker is a backup for that set from now on."""
        hosted = self.set(name)
        hosted.read_only, hosted.resources.replication.read_only = True, f"another broker leads {name}"
        if address is not None:
            self.directory.primaries[name] = address

    def acknowledge(self, name: str) -> None:
        """The witness of that set has all of its log."""
        log = self.set(name).resources.replicated.log
        log.acknowledge(WITNESS, log.last_lsn)
        self.set(name).touch()
        self.settle_down()


def fan_out(broker: SeveralSets) -> None:
    """An exchange that leads to a queue of each set."""
    default = broker.container.default
    for name in ("red", "blue"):
        default.resources.replicated.write(ev.SetPlaced(name, ("alpha",), (), "", 0, 0))
        default.resources.replicated.write(ev.QueuePlaced(name, name, {}, False))
    default.configuration.declare_exchange("fan", "fanout", {})
    for name in ("red", "plain", "blue"):
        default.configuration.bind("fan", name, "", {})
    broker.settle_down()
