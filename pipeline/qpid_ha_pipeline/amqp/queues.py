"""What a broker says of its queues, asked at `$management`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import proton

from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import RESOURCE_SETS
from qpid_ha_broker.amqp.wire.engine import Delivery, EachDisposition, EachTransfer, Sender
from qpid_ha_broker.events.layout import is_local_lsn
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_pipeline.amqp.connection import BrokerConnection, BrokerLost, LedElsewhere, LinkRefused, broker_in
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from qpid_ha_pipeline.errors import PipelineError

_NODE: Final = "$management"
_OK, _ELSEWHERE, _NOT_FOUND, _CONFLICT, _NOT_IMPLEMENTED = 200, 307, 404, 409, 501
_CREDIT: Final = 10
_ATTRIBUTES: Final = ("name", "id", "newest_message", "log_position", "messages")

Result = TypeVar("Result")


class QueueFacts(NamedTuple):
    """`newest_message`: 0 when there is none. `log_position`: all up to there is committed. `broker`: its name.

    `messages`: how many there are, those included that consumers hold.
    """

    name: str
    queue_id: int
    newest_message: int
    log_position: int
    broker: str
    messages: int = 0
    set: str = ""
    """Its resource set; empty for `default`."""

    @property
    def is_local(self) -> bool:
        """Its messages' ids are those of this one broker."""
        return is_local_lsn(self.log_position)


class Measured(NamedTuple):
    """Committed messages behind a position: how many, their bytes, the last one's id, and whether that is all."""

    messages: int
    size: int
    last: int
    is_whole: bool


class MessageTimes(NamedTuple):
    """When messages had come: one at the time of the first position that is not below its id. Both ascend."""

    positions: list[int]
    times_ms: list[int]


class NoSuchQueue(Exception):
    """There is none of that name, now."""


class ManagementClient(EachTransfer, EachDisposition):
    """Asks, and gets the answers on a link of its own."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self._answers: list[proton.Message] = []
        self._part = b""
        self._name = f"replies-{uuid.uuid4().hex}"
        self._replies = connection.receiver(_NODE, self, name=self._name)
        engine.give_credit(self._replies, _CREDIT)
        self._requests = connection.sender(_NODE, self)
        self._sender = Sender(self._requests)

    def queue(self, name: str) -> QueueFacts:
        """Raises NoSuchQueue, BrokerLost, PipelineError."""
        body = self._ask_of("READ", name)
        try:
            facts = self._facts([body[key] for key in _ATTRIBUTES])
        except KeyError:
            raise self._is_older() from None
        of_set = str(body.get("set", DEFAULT_SET))  # a broker of an older release has but one
        return facts if of_set == DEFAULT_SET else facts._replace(set=of_set)

    @property
    def has_many_sets(self) -> bool:
        """Whether there may be queues that this broker has not, or of which it has but a replica."""
        return RESOURCE_SETS in self.connection.offered

    def queues(self) -> Iterator[QueueFacts]:
        """All that this broker has, where there is one set. Raises BrokerLost, PipelineError."""
        return map(self._facts, self._query(_ATTRIBUTES))

    def names(self) -> Iterator[str]:
        """Of all queues that this broker knows of, in whatever set. Raises BrokerLost, PipelineError."""
        return (str(name) for (name,) in self._query(("name",)))

    def _query(self, attributes: tuple[str, ...]) -> Iterator[list[Any]]:
        offset, total = 0, 1
        while offset < total:
            pages = {"entityType": "queue", "offset": offset}
            answer = self._ask({"operation": "QUERY", **pages}, {"attributeNames": list(attributes)})
            rows: list[list[Any]] = answer.body["results"]
            yield from rows
            offset, total = offset + len(rows), int(answer.properties["total"]) if rows else 0

    def position_before(self, name: str, time_ms: int) -> int:
        """Behind which message there is all that came at that time or later. Raises as `queue`."""
        return int(self._ask_of("LOCATE", name, timestamp=proton.ulong(time_ms))["position"])

    def write_times(self, name: str, after: int, up_to: int) -> MessageTimes:
        """Of messages behind `after` and up to `up_to`. Raises as `queue`."""
        times = MessageTimes([], [])
        while after < up_to:
            body = self._ask_of("TIMES", name, after=proton.ulong(after), up_to=proton.ulong(up_to))
            if not body["positions"]:
                break
            times.positions.extend(map(int, body["positions"]))
            times.times_ms.extend(map(int, body["times"]))
            after = times.positions[-1]
        return times

    def measure(self, name: str, after: int, messages: int, size: int) -> Measured:
        """What lies behind `after`, of so many messages and bytes at most; not always as many. Raises as `queue`."""
        limits = {"after": after, "messages": messages, "bytes": size}
        body = self._ask_of("MEASURE", name, **{key: proton.ulong(value) for key, value in limits.items()})
        return Measured(int(body["messages"]), int(body["bytes"]), int(body["last"]), bool(body["whole"]))

    def accept(self, name: str, queue_id: int, up_to: int) -> int:
        """Consume what nobody else has acquired; how many messages that were. Raises as `queue`."""
        limits = {"id": proton.ulong(queue_id), "up_to": proton.ulong(up_to)}
        return int(self._ask_of("ACCEPT", name, **limits)["accepted"])

    def _facts(self, values: list[Any]) -> QueueFacts:
        try:
            queue_id, newest, position, messages = map(int, values[1:])
        except (TypeError, ValueError):
            raise self._is_older() from None
        broker = self.connection.engine.connection.remote_container or ""
        return QueueFacts(str(values[0]), queue_id, newest, position, broker, messages)

    def _is_older(self) -> PipelineError:
        return PipelineError(f"{self.connection.broker} cannot tell positions of queues: it is an older release")

    def _ask_of(self, operation: str, name: str, **properties: Any) -> dict[str, Any]:
        answer = self._ask({"operation": operation, "type": "queue", "name": name, **properties})
        if not isinstance(answer.body, dict):
            raise self._is_older()
        return answer.body

    def _ask(self, properties: dict[str, Any], body: Any = None) -> Any:
        request: Any = proton.Message(properties=properties, body=body, reply_to=self._name, id=uuid.uuid4().hex)
        self.connection.wait(lambda: self._sender.credit > 0)
        self._sender.send_settled(bytes(request.encode()))
        self._answers.clear()
        self.connection.wait(lambda: self._answers)
        engine.give_credit(self._replies, 1)
        answer: Any = self._answers.pop()
        status = (answer.properties or {}).get("statusCode")
        if status == _OK:
            return answer
        reason = (answer.properties or {}).get("statusDescription", "it says not why")
        if status == _ELSEWHERE:
            broker = self.connection.broker
            raise LedElsewhere(f"{broker}: {reason}", broker_in(answer.body, broker))
        if status == _NOT_FOUND:
            raise NoSuchQueue(properties.get("name", ""))
        if status == _CONFLICT:  # it was primary until a moment ago
            raise BrokerLost(f"{self.connection.broker}: {reason}")
        if status == _NOT_IMPLEMENTED:
            raise self._is_older()
        raise PipelineError(f"{self.connection.broker} refuses: {reason}")

    # --- see engine.Receiving and engine.Sending

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        message: Any = proton.Message()
        message.decode(self._part + payload)
        self._part = b""
        self._answers.append(message)
        engine.forget(delivery) if settled else engine.accept_all([delivery])

    def partial(self, delivery: Delivery, data: bytes) -> None:
        self._part += data

    def aborted(self, delivery: Delivery) -> None:
        self._part = b""

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """Requests are sent settled."""

    def flow(self) -> None:
        """The credit is looked at when it is needed."""


class PrimaryManagement:
    """Asks whoever is primary, on the connection that is there."""

    def __init__(
        self, primary: PrimaryConnection, clients: dict[BrokerConnection, ManagementClient] | None = None
    ) -> None:
        """`clients`: those that others have for the connections that they share."""
        self._primary = primary
        self._clients = {} if clients is None else clients

    def of(self, queue: str) -> PrimaryManagement:
        """Asks whoever leads the set of that queue."""
        return PrimaryManagement(self._primary.of(queue), self._clients)

    def ask(self, question: Callable[[ManagementClient], Result]) -> Result:
        """Again at the next primary when the broker is lost meanwhile. Raises as `question`, and PipelineError."""
        return self._primary.run(lambda connection: self._asked(connection, question))

    def queues(self, is_wanted: Callable[[str], bool]) -> dict[str, QueueFacts]:
        """Of all queues those with such names. Raises PipelineError.

        Where there are many resource sets a broker lists those that it has heard of: all brokers are asked then that
        the option names and that answer, and of each queue whoever leads it.
        """

        def listed(client: ManagementClient) -> dict[str, QueueFacts] | None:
            if client.has_many_sets:
                return None
            return {queue.name: queue for queue in client.queues() if is_wanted(queue.name)}

        there = self.ask(listed)
        if there is not None:
            return there
        names: dict[str, None] = {}
        for broker in self._primary.cluster.brokers:
            with suppress(BrokerLost):  # others know of what it knows
                known = self._asked(self._primary.at(broker), lambda client: list(client.names()))
                names |= dict.fromkeys(filter(is_wanted, known))
        return self.facts(list(names))

    def facts(self, names: Sequence[str]) -> dict[str, QueueFacts]:
        """Of those of these queues that there are. Raises PipelineError."""
        there = {}
        for name in names:
            with suppress(NoSuchQueue):
                there[name] = self.of(name).ask(partial(ManagementClient.queue, name=name))
        return there

    def _asked(self, connection: BrokerConnection, question: Callable[[ManagementClient], Result]) -> Result:
        try:
            return question(self._client(connection))
        except LinkRefused as error:
            raise PipelineError(f"{connection.broker} does not tell of its queues: {error}") from None

    def _client(self, connection: BrokerConnection) -> ManagementClient:
        client = self._clients.get(connection)
        if client is None:
            for closed in [known for known in self._clients if not self._primary.is_open(known)]:
                del self._clients[closed]
            client = self._clients[connection] = ManagementClient(connection)
        return client
