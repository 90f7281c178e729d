"""What is below a prefix in etcd, followed by one stream for all of this process who want to know."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from qpid_ha_broker.coordination.coordinator import CALL_LIMIT_S, CoordinatorError
from qpid_ha_broker.coordination.deadline import Deadline
from qpid_ha_broker.coordination.etcd_gateway import EtcdGateway, KeyValue, WatchStream

log = logging.getLogger("coordinator")

_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 1.0


class PrefixView(NamedTuple):
    """What a listener is told."""

    keys: Mapping[str, KeyValue]
    """All that is there, as it was at `revision`."""
    revision: int
    is_connected: bool
    """False: nobody answers, and `keys` are as they were."""


Listener = Callable[[PrefixView], None]


class PrefixWatch:
    """The promise: after each change its listeners have a view of it, or of a later one, as soon as a server answers.

    Each stream begins where a read of all keys ended. So it makes no difference whether revisions in between were
    compacted away, or the servers have lost everything. The thread runs while there are listeners, and calls them one
    after the other: they must not block.
    """

    def __init__(self, gateway: EtcdGateway, prefix: str) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._mutex = threading.Lock()
        self._listeners: dict[object, Listener] = {}
        self._follower: _Follower | None = None
        self._view: PrefixView | None = None
        """The last one; None: none yet."""

    def add(self, listener: Listener) -> Callable[[], None]:
        """Call it with the view there is, or the first one, and with all that follow, until the returned function is
        called."""
        mark = object()
        with self._mutex:
            self._listeners[mark] = listener
            view = self._view
            if self._follower is None:
                self._follower = _Follower(self._gateway, self._prefix, self._tell)
                self._follower.start()
        if view is not None:
            listener(view)

        def remove() -> None:
            with self._mutex:
                self._listeners.pop(mark, None)
                self._end_if_alone()

        return remove

    def close(self) -> None:
        """Call nobody any more."""
        with self._mutex:
            self._listeners.clear()
            self._end_if_alone()

    def _end_if_alone(self) -> None:
        if self._follower is not None and not self._listeners:
            self._follower.stop()
            self._follower = self._view = None

    def _tell(self, follower: threading.Thread, view: PrefixView) -> None:
        with self._mutex:
            if follower is not self._follower:
                return
            self._view = view
            listeners = list(self._listeners.values())
        for listener in listeners:
            listener(view)


class _Follower(threading.Thread):
    """Reads, follows the changes, and reads again when the stream ends."""

    def __init__(self, gateway: EtcdGateway, prefix: str, tell: Callable[[threading.Thread, PrefixView], None]) -> None:
        super().__init__(name="record-watch", daemon=True)
        self._gateway = gateway
        self._prefix = prefix
        self._tell = tell
        self._ended = threading.Event()
        self._mutex = threading.Lock()
        self._stream: WatchStream | None = None
        self._view = PrefixView({}, 0, is_connected=False)
        self._problem = ""

    def stop(self) -> None:
        """End the watch, soon."""
        self._ended.set()
        with self._mutex:
            if self._stream is not None:
                self._stream.shut_down()

    def run(self) -> None:
        """The thread."""
        pause_s = _FIRST_PAUSE_S
        while not self._ended.is_set():
            try:
                self._follow()
                pause_s = _FIRST_PAUSE_S
            except CoordinatorError as error:
                self._lost(error)
                self._ended.wait(pause_s)
                pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _follow(self) -> None:
        """Until the stream ends. Raises CoordinatorError."""
        read = self._gateway.read_prefix(self._prefix, Deadline.after(CALL_LIMIT_S))
        stream = self._gateway.open_watch(read.server, self._prefix, read.revision + 1)
        with self._mutex:
            self._stream = stream
        try:
            self._show(PrefixView({entry.key: entry for entry in read.entries}, read.revision, is_connected=True))
            if self._ended.is_set():
                return
            for answer in stream:
                if answer.is_compacted:
                    return
                if answer.changed:
                    keys = {**self._view.keys, **answer.changed}
                    there = {key: entry for key, entry in keys.items() if entry is not None}
                    self._show(PrefixView(there, answer.revision, is_connected=True))
        finally:
            with self._mutex:
                self._stream = None
            stream.close()

    def _show(self, view: PrefixView) -> None:
        self._view = view
        if view.is_connected:
            self._problem = ""
        self._tell(self, view)

    def _lost(self, error: CoordinatorError) -> None:
        if self._ended.is_set():
            return
        if str(error) != self._problem:
            self._problem = str(error)
            log.warning("changes of the record are not seen: %s", error)
        if self._view.is_connected:
            self._show(self._view._replace(is_connected=False))
