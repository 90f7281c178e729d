"""A broker's replica of a set other than `default`: its member is in the broker's process, its queues in the container.

What `server.sets.set_member` is to these on a loop, `SetReplica` is on the virtual clock. Members of one set talk over
a network of their own and send heartbeats, as those of `default` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.nodes.directory import QueueDecision
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.errors import OtherSet
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.clients.set_clients import SetClients
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.controller.map_directory import MapDirectory
from simulation.node import Node, World
from simulation.process_loop import ProcessLoop
from simulation.virtual_time import Clock


class Directory(MapDirectory):
    """As a broker's, where queues are made and deleted by operators alone: see `amqp.nodes.directory`."""

    def locate(self, queue_name: str) -> NodeWait | None:
        """There is nobody to ask."""
        return None

    def place(self, queue_name: str, arguments: ev.Arguments) -> NodeWait:
        raise OtherSet(f"nobody places {queue_name}")

    def create_queue(self, queue_name: str, arguments: ev.Arguments) -> QueueDecision:
        raise OtherSet(f"nobody places {queue_name}")

    def delete_queue(self, queue_name: str, *, if_empty: bool, if_unused: bool) -> QueueDecision:
        raise OtherSet(f"nobody deletes {queue_name}")


class Owner(Protocol):
    """The broker."""

    index: int
    clock: Clock
    producers: int
    container: Container
    loop: ProcessLoop
    waiters: CommitWaiters

    def prove_lead(self, member: Member) -> LeadProof:
        """See `ProxyNode`."""

    def want_turn(self) -> None:
        """A turn, or another look at what is committed in this one."""


class SetReplica(Node):
    """See `Node` for its promise. It lives and dies with the process of its broker."""

    def __init__(
        self,
        world: World,
        owner: Owner,
        set_name: str,
        settings: Callable[[str], MemberSettings],
        ends_to_lead: Callable[[int], None],
    ) -> None:
        """`ends_to_lead`: told of the generation whose primary serves nobody any more, before its links end."""
        super().__init__(world, owner.index, owner.clock, settings)
        self.owner = owner
        self.set_name = set_name
        self.producers = owner.producers
        self._ends_to_lead = ends_to_lead
        self._led_generation = 0

    def prepare(self, resources: Resources) -> None:
        self.hosted = self.owner.container.host(self.set_name)
        super().prepare(self.hosted.resources)
        self.configuration = self.hosted.configuration

    def begin(self, settings: MemberSettings, draw: Callable[[], float], restored: Restored | None = None) -> None:
        super().begin(settings, draw, restored)
        self.hosted.prove_lead = lambda: self.owner.prove_lead(self.member)
        self.clients = SetClients(
            self.owner, self.hosted, lambda: self.member.status.serves_clients, self._handle, self._run_turn
        )
        self.clients.update()

    def begin_clock(self) -> None:
        """It has that of its broker."""

    def _pump(self) -> None:
        if not self._is_busy:
            self.owner.loop.run(super()._pump)

    @property
    def is_serving(self) -> bool:
        return self.clients.is_serving

    def want_turn(self) -> None:
        self.hosted.touch()
        self.owner.want_turn()

    def turn_ended(self, batch: LogBatch | None) -> None:
        """The container's turn has come to this set."""
        self._handle(fx.TurnEnded(batch))

    # --- what the member tells

    def note_state(self, change: fx.StateChanged) -> None:
        if change.after is State.PRIMARY:
            self._led_generation = self.member.status.generation
        elif change.before is State.PRIMARY:
            self._ends_to_lead(self._led_generation)
        self.clients.update()
        super().note_state(change)
        if change.before is State.PRIMARY:
            self.clients.end_now()
        self.want_turn()

    def _note_last_batch(self) -> None:
        """Nobody asks who has held what."""

    def note_status(self, status: fx.MemberStatus) -> None:
        self.clients.status_changed()

    def end_clients(self) -> None:
        self._ends_to_lead(self._led_generation)
        self.clients.end_soon(fx.EndClients())

    def _run_turn(self) -> None:
        self.turn_ended(self.hosted.turn())
        self.want_turn()
