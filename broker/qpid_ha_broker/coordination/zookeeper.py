"""A namespace of an ensemble of ZooKeeper servers: record and notes in nodes of their own, and leases.

What is read is read along with a write that changes nothing (a transaction with nothing but a check of the version):
ZooKeeper's reads, and its sync, too, can be answered by servers that have been cut off from the others for seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from qpid_ha_broker.coordination.coordinator import PRIMARY_LEASE, CoordinatorError
from qpid_ha_broker.coordination.record import decode_record, encode_record
from qpid_ha_broker.coordination.zookeeper_lease import ZooKeeperLease
from qpid_ha_broker.coordination.zookeeper_session import (
    ANY_VERSION,
    LostAnswer,
    ZooKeeperSession,
    children_of,
    create_of,
    deadline,
    exists_of,
    get_of,
    set_of,
)
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.settings import CoordinatorSettings

READING_TIMEOUT_S: Final = 30.0
"""Of the session for the record and the notes, which owns nothing: it costs a ping each 10 s."""
READING_PATIENCE_S: Final = 1.0
_RETRY_S = 2.0
"""After which nodes are watched that could not be."""


def open_zookeeper(settings: CoordinatorSettings) -> ZooKeeperCoordinator:
    """The factory for `zookeeper://HOST:PORT,.../NAMESPACE`. Raises SettingsError."""
    return ZooKeeperCoordinator(settings)


class _Tripwire:
    """Set off by the first change of what it was set on, or by the loss of the connection."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self.is_off = False

    def __call__(self, event: object) -> None:
        self.is_off = True
        self._notify()


class _Names:
    """The nodes below another one, as one who watches them knows them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tripwire: _Tripwire | None = None


class _Seen(NamedTuple):
    """A node as a server had it."""

    content: bytes | None
    """None: there is no such node."""
    version: int
    tripwire: _Tripwire

    @property
    def check(self) -> int:
        """The version to compare with: what is not there has none."""
        return ANY_VERSION if self.content is None else self.version


class ZooKeeperCoordinator:
    """The promise: what `read` returns was the record at a moment after the call began, on a majority of the servers.

    It has two sessions: one for the record and the notes, and, where a lease is asked for, one that ends
    `session_timeout_s` after its process does.
    """

    look_interval_s = 60.0
    """A watch tells what changes, and when either connection is lost: what it cannot miss need not be looked for."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._root = f"/{settings.url.namespace}"
        self._record_path = f"{self._root}/record"
        self._notes_path = f"{self._root}/notes"
        self._session = ZooKeeperSession(settings, READING_TIMEOUT_S, READING_PATIENCE_S)
        self._mutex = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        self._wakers: list[threading.Event] = []
        """Of those who watch."""
        self._lease_session: ZooKeeperSession | None = None

    def read(self) -> ClusterRecord:
        """The record; an empty one when there is no node yet. Raises CoordinatorError."""
        return self._decode(self._read(self._record_path, deadline()).content)

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        """By the version of the node. Raises CoordinatorError."""
        content = encode_record(wanted)
        written, stored = self._swap(self._record_path, content, lambda stored: self._decode(stored) == expected)
        return written, self._decode(stored)

    def read_note(self, name: str) -> str:
        """The text of the node `notes/NAME`. Raises CoordinatorError."""
        return self._decode_note(name, self._read(self._note_path(name), deadline()).content)

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        """By the version of the node. Raises CoordinatorError."""
        return self._swap(
            self._note_path(name), wanted.encode(), lambda stored: self._decode_note(name, stored) == expected
        )[0]

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Watches are set again before `changed` is called: what changes in between sets them off at once."""
        ended, wake = threading.Event(), threading.Event()
        notes = _Names()

        def follow() -> None:
            while not ended.is_set():
                wake.clear()
                pause_s = None
                try:
                    self._set_tripwires(notes, wake)
                except CoordinatorError:  # whoever reads is told
                    pause_s = _RETRY_S
                if not ended.is_set():
                    changed()
                    wake.wait(pause_s)

        with self._mutex:
            self._wakers.append(wake)
        stop_listening = self._session.listen(wake.set)
        threading.Thread(target=follow, name="zookeeper-watch", daemon=True).start()

        def end() -> None:
            ended.set()
            wake.set()
            stop_listening()
            with self._mutex:
                if wake in self._wakers:
                    self._wakers.remove(wake)

        return end

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> ZooKeeperLease:
        """The one in `leases/NAME`."""
        with self._mutex:
            if self._lease_session is None:
                timeout_s = self._settings.session_timeout_s
                self._lease_session = ZooKeeperSession(self._settings, timeout_s, timeout_s, speaks=False)
                self._lease_session.listen(self._wake_all)  # that one notices sooner that nobody answers
            session = self._lease_session
        return ZooKeeperLease(session, f"{self._root}/leases/{name}", holder, self._acl(), self._make_parents)

    def close(self) -> None:
        """End both sessions."""
        with self._mutex:
            leases = self._lease_session
        for session in (leases, self._session):
            if session is not None:
                session.close()

    # --- nodes

    def _read(self, path: str, deadline_s: float) -> _Seen:
        """The node at `path` as it is. Raises CoordinatorError."""
        while True:
            seen = self._known(path) or self._look(path, deadline_s)
            if self._is_still(path, seen, deadline_s):
                return seen
            self._forget(path)

    def _swap(self, path: str, wanted: bytes, is_expected: Callable[[bytes | None], bool]) -> tuple[bool, bytes | None]:
        """True and `wanted`, or False and what is there instead. Raises CoordinatorError.

        A write whose answer was lost is sent again: of both, one at most finds the version. If it was the first, the
        second is refused, and what is there is what it wrote.
        """
        deadline_s, may_be_written, is_sure = deadline(), False, False
        seen = self._known(path) or self._look(path, deadline_s)
        while True:
            if not self._fits(seen, is_expected, is_sure):
                if is_sure:
                    return may_be_written and seen.content == wanted, seen.content
                seen, is_sure = self._read(path, deadline_s), True
                continue
            try:
                if self._write(path, wanted, seen, deadline_s):
                    return True, wanted
            except LostAnswer:
                may_be_written = True
                if time.monotonic() >= deadline_s:
                    raise
            else:
                seen, is_sure = self._read(path, deadline_s), True
                if may_be_written and seen.content == wanted:
                    return True, wanted

    def _fits(self, seen: _Seen, is_expected: Callable[[bytes | None], bool], is_sure: bool) -> bool:
        """Raises CoordinatorError for what no coordinator wrote, if that is there for sure."""
        try:
            return is_expected(seen.content)
        except CoordinatorError:
            if is_sure:
                raise
            return False

    def _write(self, path: str, wanted: bytes, seen: _Seen, deadline_s: float) -> bool:
        """Whether the node was still as seen. Raises LostAnswer, CoordinatorError."""
        tripwire, is_new = _Tripwire(self._wake_all), seen.content is None

        write = create_of(path, wanted, self._acl()) if is_new else set_of(path, wanted, seen.version)
        written, stored = self._session.ask(deadline_s, write, get_of(path, tripwire))
        if isinstance(written, NoNodeError) and is_new:
            self._make_parents(self._session, path, deadline_s)
            return self._write(path, wanted, seen, deadline_s)
        if isinstance(written, (NoNodeError, NodeExistsError, BadVersionError)):
            self._forget(path)
            return False
        if not isinstance(stored, NoNodeError):
            self._keep(path, _Seen(stored[0], stored[1].version, tripwire))
        return True

    def _look(self, path: str, deadline_s: float) -> _Seen:
        """As some server has it. Raises CoordinatorError."""
        while True:
            tripwire = _Tripwire(self._wake_all)
            (stored,) = self._session.ask_again(deadline_s, get_of(path, tripwire))
            if not isinstance(stored, NoNodeError):
                seen = _Seen(stored[0], stored[1].version, tripwire)
                break
            (stat,) = self._session.ask_again(deadline_s, exists_of(path, tripwire))
            if stat is None:
                seen = _Seen(None, ANY_VERSION, tripwire)
                break
        self._keep(path, seen)
        return seen

    def _is_still(self, path: str, seen: _Seen, deadline_s: float) -> bool:
        """Whether a majority of the servers has it so now. Raises CoordinatorError."""
        error = self._session.check(path, deadline_s, seen.check)
        return isinstance(error, NoNodeError) if seen.content is None else error is None

    def _known(self, path: str) -> _Seen | None:
        """What was seen there, if nothing has changed that we would have heard of."""
        with self._mutex:
            seen = self._seen.get(path)
        return None if seen is None or seen.tripwire.is_off else seen

    def _keep(self, path: str, seen: _Seen) -> None:
        with self._mutex:
            self._seen[path] = seen

    def _forget(self, path: str) -> None:
        with self._mutex:
            self._seen.pop(path, None)

    # --- watching

    def _set_tripwires(self, notes: _Names, wake: threading.Event) -> None:
        """Where there is none. Raises CoordinatorError."""
        deadline_s = deadline()
        if notes.tripwire is None or notes.tripwire.is_off:
            tripwire = _Tripwire(wake.set)
            (names,) = self._session.ask_again(deadline_s, children_of(self._notes_path, tripwire))
            if isinstance(names, NoNodeError):
                (stat,) = self._session.ask_again(deadline_s, exists_of(self._notes_path, tripwire))
                names = []
                if stat is not None:
                    wake.set()
            notes.names, notes.tripwire = names, tripwire
        for path in [self._record_path, *map(self._note_path, notes.names)]:
            if self._known(path) is None:
                self._look(path, deadline_s)

    def _wake_all(self) -> None:
        """In kazoo's thread."""
        with self._mutex:
            wakers = list(self._wakers)
        for wake in wakers:
            wake.set()

    # --- what is in nodes, and around them

    def _decode(self, content: bytes | None) -> ClusterRecord:
        """Raises CoordinatorError."""
        try:
            return ClusterRecord() if content is None else decode_record(content)
        except (ValueError, RecursionError) as error:
            raise CoordinatorError(
                f"the record {self._record_path} of {self._session.place} is damaged ({error}): see what wrote it, and "
                f"remove it (`zkCli.sh delete {self._record_path}`); a primary writes it anew. If there is none, use "
                "`qpid-ha promote --force` on the broker that `qpid-ha status --all` shows furthest"
            ) from None

    def _decode_note(self, name: str, content: bytes | None) -> str:
        """Raises CoordinatorError."""
        try:
            return "" if content is None else content.decode()
        except UnicodeDecodeError:
            path = self._note_path(name)
            raise CoordinatorError(
                f"the note {path} of {self._session.place} is no text: see what wrote it, and remove it (`zkCli.sh "
                f"delete {path}`)"
            ) from None

    def _note_path(self, name: str) -> str:
        return f"{self._notes_path}/{name}"

    def _acl(self) -> list[ACL]:
        """With a name and a password, only whoever has both; without, everybody who reaches the servers."""
        return list(CREATOR_ALL_ACL if self._session.credentials.username else OPEN_ACL_UNSAFE)

    def _make_parents(self, session: ZooKeeperSession, path: str, deadline_s: float) -> None:
        """Of `path`. What is above the namespace belongs to other clusters as well, so it is open to all. Raises
        CoordinatorError."""
        parts = path.strip("/").split("/")[:-1]
        for length in range(1, len(parts) + 1):
            parent = f"/{'/'.join(parts[:length])}"
            is_ours = parent == self._root or parent.startswith(f"{self._root}/")
            acl = self._acl() if is_ours else list(OPEN_ACL_UNSAFE)
            (stat,) = session.ask_again(deadline_s, exists_of(parent))
            if stat is None:  # to be told that it exists takes the right to make it
                session.ask_again(deadline_s, create_of(parent, b"", acl))
