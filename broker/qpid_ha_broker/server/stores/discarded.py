"""Messages that this broker held and the cluster does not: kept in files, because nothing may vanish silently.

A broker that was cut off while it was primary, or that was ahead of the one that is promoted, may hold messages that
nobody else has. When it follows the next primary it has to drop them: they were never confirmed, or an operator chose
to go on without this broker, which often cannot tell the one from the other. Each file is a small log of its own, in
the one format of events: a `QueueDeclared` with LSN 0, then the messages under their old ids. Those of the resource set
`default` lie in `discarded/`, those of another one in `discarded/SET/`.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from urllib.parse import quote

from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.types import Enqueued, QueueDeclared
from qpid_ha_broker.model.logs.log import DEFAULT_SET

log = logging.getLogger("discarded")

DIRECTORY = "discarded"
_NAME_LENGTH = 150
"""Characters of a queue's name in a file's name, which may have 255 bytes."""


class DiscardedMessages:
    """The promise: what is dropped is in a file, or the log says how many messages of which queue are in none."""

    def __init__(self, data_directory: Path | None, set_name: str = DEFAULT_SET) -> None:
        within = DIRECTORY if set_name == DEFAULT_SET else f"{DIRECTORY}/{set_name}"
        self._directory = None if data_directory is None else data_directory / within
        self._paths: dict[str, Path] = {}
        self.total = 0
        """Messages since the start of the process."""

    def begin(self) -> None:
        """Another catch-up begins: it has files of its own."""
        self._paths.clear()

    def keep(self, queue: str, ids: tuple[int, ...], payloads: tuple[bytes, ...]) -> None:
        """Append messages of `queue`."""
        self.total += len(ids)
        of_queue = f"of queue {queue}"
        number = counted(len(ids), f"message {of_queue} is", f"messages {of_queue} are")
        strangers = f"{number} not in the cluster's log"
        if self._directory is None:
            log.warning("%s: dropped (with data-dir they would be kept)", strangers)
            return
        try:
            path = self._append(self._directory, queue, ids, payloads)
        except OSError as error:
            text = "%s: dropped, and could not be kept: %s: %s"
            log.error(text, strangers, self._directory, error.strerror or error)
        else:
            log.warning("%s: kept in %s", strangers, path)

    def _append(self, directory: Path, queue: str, ids: tuple[int, ...], payloads: tuple[bytes, ...]) -> Path:
        path = self._paths.get(queue)
        if path is None:
            _make_private(directory)
            path = self._paths[queue] = directory / _file_name(queue, time.gmtime())
        with open(path, "ab", opener=_open_private) as file:
            if not file.tell():
                file.write(encode(0, QueueDeclared(queue, {})))
            for message_id, payload in zip(ids, payloads, strict=True):  # one by one: there may be gigabytes of them
                file.write(encode(message_id, Enqueued((0,), payload, False, 4, 0, "")))
        return path


def _file_name(queue: str, now: time.struct_time) -> str:
    name = quote(queue, safe="")[:_NAME_LENGTH]
    return f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', now)}.log"


def _make_private(directory: Path) -> None:
    if directory.parent.name == DIRECTORY:  # what `mkdir` makes on the way has no mode of ours
        directory.parent.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
