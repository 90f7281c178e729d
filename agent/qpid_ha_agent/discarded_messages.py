"""What a broker dropped because its cluster does not have it: the files in `discarded/` of its data directory.

Each is a small log in the one format of events: a `QueueDeclared` with LSN 0, then the messages under their old ids.
Those of another resource set than `default` lie in a directory of its name.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import proton
import proton.utils

from qpid_ha_agent.login import Login
from qpid_ha_agent.remote_control import open_connection
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.payloads import without_format
from qpid_ha_broker.events.set_names import set_name_problem
from qpid_ha_broker.events.types import Enqueued, QueueDeclared
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_config.addresses import Address

DIRECTORY = "discarded"
REPLAYED = ".replayed"
READS_REFUSALS = "sole-connection-for-container"
"""A client that desires it is told by a backup that it is one, and who is primary."""


class DiscardedError(Exception):
    """A file or a broker with which this cannot be done; the text says why."""


class DiscardedMessage(NamedTuple):
    """One message, as its publisher sent it."""

    queue: str
    id: int
    payload: bytes


class DiscardedFile(NamedTuple):
    """One file. `problem`: why there may have been more in it."""

    path: Path
    queue: str
    messages: tuple[DiscardedMessage, ...]
    problem: str

    @property
    def set(self) -> str:
        """The resource set whose they were, as far as its directory tells."""
        directory = self.path.absolute().parent
        is_of_set = directory.parent.name == DIRECTORY and set_name_problem(directory.name) is None
        return directory.name if is_of_set else DEFAULT_SET

    @property
    def bytes(self) -> int:
        """Of messages."""
        return sum(len(message.payload) for message in self.messages)

    @property
    def is_replayed(self) -> bool:
        """Its messages went back to a broker."""
        return self.path.name.endswith(REPLAYED)


def discarded_paths(data_directory: Path) -> list[Path]:
    """Oldest first, those that were replayed among them. Raises DiscardedError."""
    directory = data_directory / DIRECTORY
    try:
        of_sets = [path for path in directory.iterdir() if path.is_dir() and set_name_problem(path.name) is None]
        files = [path for place in (directory, *of_sets) for path in place.iterdir() if path.is_file()]
        paths = [path for path in files if path.suffix in (".log", REPLAYED)]
        return sorted(paths, key=lambda path: (path.stat().st_mtime, path.name))
    except FileNotFoundError:
        if data_directory.is_dir():
            return []
        raise DiscardedError(f"{data_directory}: there is no such directory") from None
    except OSError as error:
        raise DiscardedError(f"{directory}: {error.strerror}") from None


def read_discarded(path: Path) -> DiscardedFile:
    """All that can be read of it. Raises DiscardedError."""
    try:
        records, _, problem = decode(path.read_bytes())
    except OSError as error:
        raise DiscardedError(f"{path}: {error.strerror}") from None
    queue, messages = "", []
    for record in records:
        if isinstance(record.event, QueueDeclared):
            queue = record.event.name
        elif isinstance(record.event, Enqueued):
            messages.append(DiscardedMessage(queue, record.lsn, without_format(record.event.payload)))
    text = "" if problem is None else f"offset {problem.offset}: {problem.text}"
    return DiscardedFile(path, queue, tuple(messages), text)


def as_document(message: DiscardedMessage, *, raw: bool) -> dict[str, Any]:
    """For a line of JSON: the body, in base64 if it is no text; with `raw` the whole AMQP message, in base64."""
    document: dict[str, Any] = {"queue": message.queue, "id": message.id}
    if raw:
        return {**document, "payload_base64": base64.b64encode(message.payload).decode("ascii")}
    decoded = proton.Message()
    try:
        decoded.decode(message.payload)
    except proton.ProtonException:
        return as_document(message, raw=True)
    body: Any = decoded.body
    properties: Any = decoded.properties
    if isinstance(body, memoryview | bytearray):
        body = bytes(body)
    if isinstance(body, bytes):
        document["body_base64"] = base64.b64encode(body).decode("ascii")
    elif isinstance(body, str | int | float | bool | None):
        document["body"] = body
    else:
        return as_document(message, raw=True)
    if properties:
        document["properties"] = {str(name): _plain(value) for name, value in properties.items()}
    return document


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class Replay:
    """Publishes messages again; each counts only once the broker has accepted it."""

    def __init__(self, broker: Address, login: Login, timeout_s: float) -> None:
        self._broker = broker
        with self._explained():
            capabilities = [proton.symbol(READS_REFUSALS)]
            self._connection = open_connection(broker, login, timeout_s, desired_capabilities=capabilities)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._connection.close()

    def publish(self, file: DiscardedFile, to: str | None, done: Callable[[], None]) -> Path:
        """Send all of `file`, then rename it; returns its new path. Raises DiscardedError: some may have been sent."""
        with self._explained():
            sender: Any = self._connection.create_sender(to or file.queue)
            for discarded in file.messages:
                message = proton.Message()
                message.decode(discarded.payload)
                delivery = sender.send(message)
                if delivery.remote_state != proton.Delivery.ACCEPTED:
                    raise DiscardedError(f"{self._broker} did not accept message {discarded.id} of {file.path}")
                done()
            sender.close()
        target = file.path.with_name(file.path.name + REPLAYED)
        try:
            return file.path.rename(target)
        except OSError as error:
            raise DiscardedError(f"{file.path}: all was sent, and it cannot be renamed: {error.strerror}") from None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What Proton says, in our terms."""
        try:
            yield
        except (proton.ProtonException, proton.utils.LinkDetached, OSError) as error:
            raise DiscardedError(f"{self._broker}: {error}") from None


def read_all(paths: list[Path], queue: str | None) -> Iterator[DiscardedFile]:
    """The files of `queue`, or all. Raises DiscardedError."""
    for path in paths:
        file = read_discarded(path)
        if queue in (None, file.queue):
            yield file
