"""The AMQP container: the nodes that clients attach to, and the turn that joins their links with the model.

While sockets are read, messages and answers come in. At the end of that round of the event loop there is one turn: it
hands out messages, takes what was written to the log for the witnesses, and confirms what was committed. So the cost of
a confirmation is shared by all that happened in the round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from qpid_ha_broker.amqp.conditions import RESOURCE_DELETED, RESOURCE_LIMIT, AmqpError
from qpid_ha_broker.amqp.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.management import Management
from qpid_ha_broker.amqp.nodes import Nodes, NodeSettings
from qpid_ha_broker.amqp.peer_frames import PeerListener
from qpid_ha_broker.amqp.sections import MessageSections
from qpid_ha_broker.model.administration import Administration
from qpid_ha_broker.model.budget import Budget, Clock
from qpid_ha_broker.model.configuration import Configuration
from qpid_ha_broker.model.dispatcher import Consumer, Handout
from qpid_ha_broker.model.exchanges import Exchange
from qpid_ha_broker.model.log import LogBatch
from qpid_ha_broker.model.queue import Queue
from qpid_ha_broker.model.resources import Resources
from qpid_ha_broker.model.work import Task, used_up

HANDOUT_LIMIT = 256
"""Messages for one consumer in one turn: enough to fill frames, few enough that nobody waits for long."""

HANDOUT_S = 0.004
"""For looking for them, in one turn, whatever selectors ask of how many messages."""
EXPIRY_S = 0.004
"""For dropping what has expired, in one turn, however much it is."""
PORTIONS_S = 0.004
"""For all work that is done in portions, in one turn."""


@dataclass(frozen=True)
class ContainerSettings:
    """What the container needs to know; credit counts messages."""

    name: str
    version: str
    nodes: NodeSettings = field(default_factory=NodeSettings)
    max_message_bytes: int = 100 * 1024 * 1024
    max_partial_bytes: int = 16 * 1024 * 1024
    """What one connection may have in unfinished messages, beyond one of the largest size."""
    max_transaction_bytes: int = 256 * 1024 * 1024
    max_transaction_messages: int = 2000
    max_links_per_connection: int = 1000
    max_sessions_per_connection: int = 256
    max_unsettled_per_connection: int = 30_000
    """Messages that a client may have and not have answered: credit beyond it waits until some are."""
    publisher_credit: int = 1000
    memory_limit_bytes: int = 1 << 40
    confirm_dequeue: bool = True
    """Settle a consumer's answer only when what it led to is committed."""
    peer_user: str = ""
    """Who other brokers of the cluster log in as; empty: anybody may say to be one."""

    @property
    def max_unfinished_bytes(self) -> int:
        """What all connections together may have in unfinished messages: a quarter of the memory, but one at least."""
        return max(self.memory_limit_bytes // 4, self.max_message_bytes + self.max_partial_bytes)


class LogNotice(NamedTuple):
    """Something an operator may want to read; the driver logs it. `source`: connection, configuration or memory.

    Or handshake: of a connection that was not let in (yet), so that whoever can reach the port can cause it at will.
    """

    level: str
    source: str
    text: str


class Container:
    """The promise: nobody hears of an event, and no message goes out on its acquisition, before that is committed."""

    def __init__(
        self,
        settings: ContainerSettings,
        unique_name: Callable[[], str],
        *,
        log_acquisitions: bool = False,
    ) -> None:
        self.settings = settings
        self.sections = MessageSections()
        self.resources = Resources(self.sections, log_acquisitions=log_acquisitions)
        self.configuration = Configuration(self.resources)
        self.administration = Administration(self.resources, self.configuration)
        self.management = Management(self.administration, settings.name)
        self.nodes = Nodes(self.resources.catalog, self.configuration, settings.nodes, unique_name)
        self.peers: PeerListener | None = None
        """Who talks to the other brokers of a cluster; None: this broker is in none."""
        self.client_refusal: AmqpError | None = None
        """Why ordinary clients are not served, which each is told once it has opened."""
        self.read_only = False
        """What is here belongs to another broker, the primary: it may be browsed, and nothing else."""
        self.failover_servers: list[dict[str, object]] = []
        """Where clients find the cluster: network-host, port, scheme of each broker."""
        self.clock: Clock = lambda: 0.0
        """What a turn's work is measured by; the driver sets it. Without, a turn does all that there is to do."""
        self.now_ms = 0
        """The time of the current turn, milliseconds since the epoch; the driver sets it."""
        self.partial_bytes = 0
        """In unfinished messages, of all connections."""
        self.overrun_queues_total = 0
        """Queues that were deleted because they were full, as their policy says."""
        self.unsettled_bytes = 0
        """Sent and not settled: Proton keeps a copy of each message for its link."""
        # Dictionaries, not sets: who is served first must follow from who asked first, so that a run can be repeated.
        self.unconfirmed: dict[LinkEndpoint, None] = {}
        """Links with something to tell once the log has committed it."""
        self.accepting: dict[LinkEndpoint, None] = {}
        """Links whose peer has answered messages in this turn."""
        self.draining: dict[LinkEndpoint, None] = {}
        """Links whose peer wants its credit used or given up now."""
        self.starved: dict[LinkEndpoint, None] = {}
        """Publishers that wait for memory."""
        self.notices: list[LogNotice] = []
        self.garbage = self.resources.catalog.garbage
        self._withheld: deque[Handout] = deque()

    def take_notices(self) -> list[LogNotice]:
        """What there is to log."""
        for text, transient in self.configuration.take_changes():
            self.notices.append(LogNotice("debug" if transient else "info", "configuration", text))
        notices, self.notices = self.notices, []
        return notices

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What every connection is offered."""
        deduplicates = self.resources.deduplication.producers > 0
        return ("ANONYMOUS-RELAY", "qpid.producer-deduplication") if deduplicates else ("ANONYMOUS-RELAY",)

    @property
    def has_work(self) -> bool:
        """Whether another turn is due at once."""
        resources = self.resources
        has_pending = any(each.log.has_pending for each in resources.sets)
        goes_on = bool(resources.timers.is_behind or resources.work or self.garbage)
        return resources.has_work or has_pending or goes_on or bool(resources.catalog.deleted_queues)

    def turn(self) -> LogBatch | None:
        """End a round; returns what witnesses must see. Call again when one has acknowledged."""
        if self.resources.timers.is_behind:
            self.tick()
        self.flush_accepted()
        self._delete_overrun_queues()
        self._end_links_of_deleted_queues()
        budget = Budget(self.clock, PORTIONS_S)
        self.resources.work.run(budget)
        self.garbage.run(budget)
        # On a replica no time passes: what has expired there, the primary decides.
        budget = Budget(self.clock, HANDOUT_S)
        self._withheld += self.resources.hand_out(0 if self.read_only else self.now_ms, HANDOUT_LIMIT, budget)
        while self._withheld and self._withheld[0].written.is_committed:
            consumer, entries, _ = self._withheld.popleft()
            consumer.deliver(entries)
        for each in self.resources.sets:
            each.log.note_time(self.now_ms)
        batch = self.resources.default.log.take_batch()
        self.tell_what_is_committed()
        return batch

    def tell_what_is_committed(self) -> None:
        """Tell those who wait; at the end of a turn, and after it when its last steps have committed something."""
        unconfirmed, self.unconfirmed = self.unconfirmed, {}
        self.unconfirmed |= {link: None for link in unconfirmed if link.confirm()}
        if self.draining and not (self.resources.has_work or self._withheld):
            self.draining = {link: None for link in self.draining if not link.finish_drain()}
        if self.starved and self._is_roomy():
            starved, self.starved = self.starved, {}
            for link in starved:
                link.replenish()

    def flush_accepted(self) -> None:
        """Carry out what consumers have accepted in this turn: due before anything that asks how full a queue is."""
        accepting, self.accepting = self.accepting, {}
        for link in accepting:
            link.flush_accepted()

    def tick(self) -> None:
        """Expire messages and delete queues whose time has come; that is the primary's to do."""
        if self.read_only:
            return
        for queue in self.resources.timers.tick(self.now_ms, Budget(self.clock, EXPIRY_S)):
            self.configuration.delete_queue(queue.name)

    def is_there(self, node: Queue | Exchange) -> bool:
        """Whether a node still exists."""
        catalog = self.resources.catalog
        return (catalog.queues_by_id if isinstance(node, Queue) else catalog.exchanges_by_id).get(node.id) is node

    def has_room(self, link: LinkEndpoint) -> bool:
        """Whether `link` may have more credit; if not, it gets some when there is room again."""
        if self._used_bytes < self.settings.memory_limit_bytes:
            return True
        if not self.starved:
            text = f"{self._used_bytes} bytes are held, memory-limit is reached: publishers wait"
            self.notices.append(LogNotice("warning", "memory", text))
        self.starved[link] = None
        return False

    def _is_roomy(self) -> bool:
        return self._used_bytes < self.settings.memory_limit_bytes * 0.9

    @property
    def _used_bytes(self) -> int:
        return self.resources.catalog.memory_bytes + self.partial_bytes + self.unsettled_bytes

    def _delete_overrun_queues(self) -> None:
        """Who did not read what came is told so; publishers and other readers go on."""
        for queue, error in self.resources.take_overrun().items():
            if self.is_there(queue):
                self.configuration.delete_queue(queue.name)
                self._end_links(queue, AmqpError(RESOURCE_LIMIT, f"{error}; it is deleted: read faster"))
                self.overrun_queues_total += 1

    def _end_links_of_deleted_queues(self) -> None:
        while self.resources.catalog.deleted_queues:
            queue = self.resources.catalog.deleted_queues.pop()
            self._end_links(queue, AmqpError(RESOURCE_DELETED, f"queue {queue.name} was deleted"))

    def _end_links(self, queue: Queue, error: AmqpError) -> None:
        links = [_endpoint(consumer) for consumer in queue.dispatcher.consumers]
        for link in links:
            link.stop()
        self.resources.begin(_ending(links, error), Budget(self.clock, PORTIONS_S))


def _ending(links: list[LinkEndpoint], error: AmqpError) -> Task:
    for link in used_up(links):
        link.end(error)
        yield


def _endpoint(consumer: Consumer) -> LinkEndpoint:
    if not isinstance(consumer, LinkEndpoint):
        raise TypeError(f"{consumer} is no link: it cannot be detached")
    return consumer
