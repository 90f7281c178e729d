"""Where queues are, by asking the controller where the cluster map here does not say: where a queue is, or is to be.

Queues are made and deleted by asking it, too: it chooses the set of a new one, and hears from the set's primary.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from qpid_ha_broker.amqp.nodes.directory import QueueDecision
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait
from qpid_ha_broker.amqp.wire.conditions import as_amqp
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.ha.effects import MemberStatus
from qpid_ha_broker.model.errors import ModelError, Unavailable, error_of, fresh
from qpid_ha_broker.server.controller.controller_client import ControllerClient, ControllerGone
from qpid_ha_broker.server.controller.map_directory import MapDirectory
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.host import Host

DECIDING_LIMIT_S: Final = 10.0
"""So long whoever has a queue made or deleted waits for the controller, which waits half of that for another broker."""
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

    # --- a queue that is to be made, or deleted

    def create_queue(self, queue_name: str, arguments: Arguments) -> QueueDecision:
        """Have the controller have a queue in its set, and say so when its primary has it."""
        return self._ask("queue-declare", {"name": queue_name, "arguments": dict(arguments), "wait": True})

    def delete_queue(self, queue_name: str, *, if_empty: bool, if_unused: bool) -> QueueDecision:
        """Have the controller have it deleted, and say so when it is gone."""
        conditions = {"if_empty": if_empty, "if_unused": if_unused}
        return self._ask("queue-delete", {"name": queue_name, **conditions, "wait": True})

    def _ask(self, method: str, asked: Mapping[str, Any]) -> QueueDecision:
        decision = QueueDecision()
        self._tasks.start(self._decide(method, asked, decision))
        return decision

    async def _decide(self, method: str, asked: Mapping[str, Any], decision: QueueDecision) -> None:
        try:
            decision.decide(await self._told(method, asked))
        except ModelError as error:
            decision.fail(fresh(error))
        self._broker.schedule_turn()

    async def _told(self, method: str, asked: Mapping[str, Any]) -> Mapping[str, object]:
        """What came of it, with the controller's sentence where it is pending. Raises ModelError."""
        try:
            async with asyncio.timeout(DECIDING_LIMIT_S):
                told = await self._client.ask(method, asked)
        except (ControllerGone, TimeoutError) as gone:
            why = gone or f"the controller gave no answer within {DECIDING_LIMIT_S:g} s"
            raise Unavailable(f"queue {asked['name']}: {why}; it may go on all the same: try again") from None
        if not told.done:
            raise error_of(told.result.get("reason"), told.text)
        return {**told.result, "text": told.text} if told.result.get("pending") else told.result

    def place(self, queue_name: str, arguments: Arguments) -> NodeWait:
        """Have the controller put a new queue into its set; what waits for that."""
        wait = self._placing.get(queue_name)
        if wait is None:
            wait = NodeWait(f"the queue {queue_name} is being put into a resource set")
            self._placing[queue_name] = wait
            self._tasks.start(self._place(queue_name, arguments, wait))
        return wait

    async def _place(self, name: str, arguments: Arguments, wait: NodeWait) -> None:
        try:
            await self._told("queue-declare", {"name": name, "arguments": dict(arguments)})
        except ModelError as error:
            wait.fail(as_amqp(error))
        else:
            wait.ready()
        finally:
            self._placing.pop(name, None)
        self._broker.schedule_turn()

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
