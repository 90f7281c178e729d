"""What a broker says of its queues, asked at `$management`."""

from __future__ import annotations

import uuid
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp import engine
from qpid_ha_broker.amqp.engine import Delivery, Sender
from qpid_ha_broker.events.layout import is_local_lsn
from qpid_ha_pipeline.amqp.connection import BrokerConnection
from qpid_ha_pipeline.errors import PipelineError

_NODE: Final = "$management"
_OK, _NOT_FOUND = 200, 404
_CREDIT: Final = 10


class QueueFacts(NamedTuple):
    """`newest_message`: 0 when there is none. `log_position`: all up to there is committed. `broker`: its name."""

    name: str
    queue_id: int
    newest_message: int
    log_position: int
    broker: str

    @property
    def is_local(self) -> bool:
        """Its messages' ids are those of this one broker."""
        return is_local_lsn(self.log_position)


class NoSuchQueue(Exception):
    """There is none of that name, now."""


class ManagementClient:
    """Asks, and gets the answers on a link of its own."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._answers: list[proton.Message] = []
        self._name = f"replies-{uuid.uuid4().hex}"
        self._replies = connection.receiver(_NODE, self, name=self._name)
        engine.give_credit(self._replies, _CREDIT)
        self._requests = connection.sender(_NODE, self)
        self._sender = Sender(self._requests)

    def queue(self, name: str) -> QueueFacts:
        """Raises NoSuchQueue, BrokerLost, PipelineError."""
        body = self._ask({"operation": "READ", "type": "queue", "name": name})
        if body is None:
            raise NoSuchQueue(name)
        try:
            queue_id, newest, position = (int(body[key]) for key in ("id", "newest_message", "log_position"))
        except (KeyError, TypeError, ValueError):
            raise PipelineError(
                f"{self._connection.broker} does not tell positions of queues: it is an older release"
            ) from None
        broker = self._connection.engine.connection.remote_container or ""
        return QueueFacts(name, queue_id, newest, position, broker)

    def _ask(self, properties: dict[str, Any]) -> dict[str, Any] | None:
        request: Any = proton.Message(properties=properties, reply_to=self._name, id=uuid.uuid4().hex)
        self._connection.wait(lambda: self._sender.credit > 0)
        self._sender.send_settled(bytes(request.encode()))
        self._answers.clear()
        self._connection.wait(lambda: self._answers)
        engine.give_credit(self._replies, 1)
        answer: Any = self._answers.pop()
        found: dict[str, Any] = answer.properties or {}
        if found.get("statusCode") == _NOT_FOUND:
            return None
        if found.get("statusCode") != _OK or not isinstance(answer.body, dict):
            raise PipelineError(
                f"{self._connection.broker} refuses: {found.get('statusDescription', 'it says not why')}"
            )
        return answer.body

    # --- see engine.Receiving and engine.Sending

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        message: Any = proton.Message()
        message.decode(payload)
        self._answers.append(message)
        engine.forget(delivery) if settled else engine.accept_all([delivery])

    def partial(self, delivery: Delivery, data: bytes) -> None:
        """The answers that are asked for are small."""

    def aborted(self, delivery: Delivery) -> None:
        """Nothing was kept."""

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """Requests are sent settled."""

    def flow(self) -> None:
        """The credit is looked at when it is needed."""
