"""Where queues are, by asking the controller where the cluster map here does not say: where a queue is, or is to be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from qpid_ha_broker.amqp.conditions import NOT_ALLOWED, RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.amqp.node_wait import NodeWait
from qpid_ha_broker.cluster.control_frames import Told
from qpid_ha_broker.cluster.map import ClusterMap
from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.ha.effects import MemberStatus
from qpid_ha_broker.model.naming import Naming
from qpid_ha_broker.server.background_tasks import BackgroundTasks
from qpid_ha_broker.server.controller_client import ControllerClient, ControllerGone
from qpid_ha_broker.server.host import Host
from qpid_ha_broker.server.map_directory import MapDirectory

PLACING_LIMIT_S: Final = 10.0
"""So long an attach waits for the controller to say where its queue is to be."""
LOCATING_LIMIT_S: Final = 1.0
"""So long an attach waits for the controller to say whether there is such a queue, and for the map to have it."""


class ControllerDirectory(MapDirectory):
    """The promise: what waits for an answer goes on when it comes, or when its limit is over."""

    def __init__(
        self, broker: Host, cluster_map: ClusterMap, default: Callable[[], MemberStatus], client: ControllerClient
    ) -> None:
        super().__init__(broker.current().name, cluster_map, default)
        self._broker = broker
        self._client = client
        self._placing: dict[str, NodeWait] = {}
        self._locating: dict[str, tuple[NodeWait, asyncio.Event]] = {}
        """By queue: who waits, and whether the map has it."""
        self._nowhere: dict[str, float] = {}
        """Names of which the controller said that the directory does not have them; and until when that counts."""
        self._tasks = BackgroundTasks()

    def stop(self) -> None:
        """The process will end."""
        self._tasks.cancel()

    # --- a queue that is to be made

    def place(self, queue_name: str, arguments: Arguments, naming: Naming) -> NodeWait:
        """Have the controller put a new queue into its set; what waits for that."""
        wait = self._placing.get(queue_name)
        if wait is None:
            wait = NodeWait(f"the queue {queue_name} is being put into the resource set {naming.set}")
            self._placing[queue_name] = wait
            self._tasks.start(self._place(queue_name, arguments, naming, wait))
        return wait

    async def _place(self, name: str, arguments: Arguments, naming: Naming, wait: NodeWait) -> None:
        error: AmqpError | None
        try:
            async with asyncio.timeout(PLACING_LIMIT_S):
                told = await self._settle(name, arguments, naming)
            error = None if told.done else AmqpError(NOT_ALLOWED, told.text)
        except (ControllerGone, TimeoutError) as gone:
            error = AmqpError(RESOURCE_LOCKED, f"queue {name}: {gone or 'the controller does not answer'}: try again")
        finally:
            del self._placing[name]
        if error is None:
            wait.ready()
        else:
            wait.fail(error)
        self._broker.schedule_turn()

    async def create_queue(self, name: str, arguments: Arguments) -> Told:
        """Have a queue in the set that is chosen for it. Raises ControllerGone."""
        configuration = self._broker.container.default.configuration
        return await self._settle(name, arguments, configuration.set_of(name, arguments), wait=True)

    async def _settle(self, name: str, arguments: Arguments, naming: Naming, *, wait: bool = False) -> Told:
        """Have the directory say where the queue is. Raises ControllerGone."""
        asked: dict[str, Any] = {"name": name, "arguments": dict(arguments), "wait": wait}
        if not naming.missing:
            asked["set"] = naming.set
        elif naming.preferred:
            asked["primary"] = naming.preferred
        else:
            asked["spread"] = self._broker.current().resource_sets.spread
        return await self._client.ask("queue-settle", asked)

    # --- a queue that may be there

    def locate(self, queue_name: str) -> NodeWait | None:
        """Have the controller say whether the directory has a queue that the map here has not; None: it has not."""
        now_s = time.monotonic()
        if not self.has_many_sets or self._nowhere.get(queue_name, 0.0) > now_s:
            return None
        there = self._locating.get(queue_name)
        if there is None:
            there = NodeWait(f"the controller is asked for the queue {queue_name}"), asyncio.Event()
            self._locating[queue_name] = there
            self._tasks.start(self._locate(queue_name, *there))
        return there[0]

    async def _locate(self, name: str, wait: NodeWait, is_in_map: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(LOCATING_LIMIT_S):
                if (await self._client.ask("queue-locate", {"name": name})).result.get("set"):
                    await is_in_map.wait()
        except (ControllerGone, TimeoutError):
            pass  # the client is sent to the controller, as far as that is known
        finally:
            del self._locating[name]
        if not is_in_map.is_set():
            now_s = time.monotonic()
            self._nowhere = {each: until_s for each, until_s in self._nowhere.items() if until_s > now_s}
            self._nowhere[name] = now_s + LOCATING_LIMIT_S
        wait.ready()
        self._broker.schedule_turn()

    def queue_changed(self, name: str) -> None:
        """The map has a queue of that name now, or something new about it."""
        if name in self._locating:
            self._locating[name][1].set()
