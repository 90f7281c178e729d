"""An etcd ensemble that many clusters may share: a record, notes and leases below a namespace.

NAMESPACE/record, NAMESPACE/notes/NAME and NAMESPACE/leases/NAME. Reads are linearizable: who reads knows all that was
written before. A change is a transaction on the revision at which the key changed last.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from qpid_ha_broker.coordination.coordinator import CALL_LIMIT_S, PRIMARY_LEASE, CoordinatorError
from qpid_ha_broker.coordination.deadline import Deadline
from qpid_ha_broker.coordination.etcd_gateway import Change, EtcdGateway, KeyValue
from qpid_ha_broker.coordination.etcd_watch import PrefixView, PrefixWatch
from qpid_ha_broker.coordination.record import decode_record, encode_record
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.settings import CoordinatorSettings

log = logging.getLogger("coordinator")

RENEWED_AFTER: Final = 0.4
"""Of a lease's time. Whoever looks twice a second renews one of 4 s every 2 s; there is time for a second attempt."""
RELEASED_AT_ONCE_S: Final = 0.1
"""So long a release waits for etcd's answer, which takes some milliseconds; then it goes on without. Whoever gives a
lease back has others to care for: its broker may just have died."""
RELEASE_LIMIT_S: Final = 1.0
"""So long the end of a program waits for that. A lease that is not given back ends by itself."""
RELEASE_AGAIN_S: Final = 0.1
RELEASE_FOR_S: Final = 60.0
"""So long it is tried. A new leader of etcd gives all leases their whole time anew: nobody knows when one is over."""
_CANCEL_S: Final = 0.2
"""How often a wait for a lease looks whether it is still wanted."""


def open_etcd(settings: CoordinatorSettings) -> EtcdCoordinator:
    """The factory for `etcd://HOST:PORT,.../NAMESPACE`."""
    return EtcdCoordinator(settings)


class EtcdCoordinator:
    """The promise: a confirmed record is on a majority of the servers' disks, and every later read shows it or a newer
    one, whichever server answers."""

    look_interval_s = 20.0
    """A watch tells of changes at once. That its server hangs, it does not tell: then a read is not answered in time,
    and the stream goes on at another server."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.url = settings.url
        self._session_timeout_s = settings.session_timeout_s
        self._gateway = EtcdGateway(settings)
        self._watch = PrefixWatch(self._gateway, f"{settings.url.namespace}/")
        self._record_key = f"{settings.url.namespace}/record"
        self._known: KeyValue | None = None
        """The record as it was last read or written: what a change may go by."""
        self._leases: weakref.WeakSet[EtcdLease] = weakref.WeakSet()
        self._callers: set[_Caller] = set()
        self._returned = _ReturnedLeases(self._gateway)

    def read(self) -> ClusterRecord:
        """What a majority has; an empty record when there is none yet. Raises CoordinatorError."""
        return self._noted(self._gateway.read(self._record_key, Deadline.after(CALL_LIMIT_S)))

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        """Write `wanted` by a transaction if `expected` is there. Raises CoordinatorError, and then nobody knows."""
        deadline, known = Deadline.after(CALL_LIMIT_S), self._known
        if self._decoded(known) != expected:
            known = self._gateway.read(self._record_key, deadline)
        while (recorded := self._noted(known)) == expected:
            outcome = self._gateway.commit(Change(self._record_key, known, encode_record(wanted)), deadline)
            if outcome.succeeded:
                self._known = KeyValue(self._record_key, encode_record(wanted), outcome.revision, 0)
                return True, wanted
            known = outcome.entry
            if outcome.may_be_second and self._decoded(known) != wanted:
                raise self._unknown(self._record_key)
            if outcome.may_be_second:  # the first attempt wrote it
                return True, self._noted(known)
        return False, recorded

    def read_note(self, name: str) -> str:
        """The text at NAMESPACE/notes/NAME. Raises CoordinatorError."""
        return self._text(self._gateway.read(self._note_key(name), Deadline.after(CALL_LIMIT_S)))

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        """Write `wanted` by a transaction if `expected` is there. Raises CoordinatorError."""
        deadline, key = Deadline.after(CALL_LIMIT_S), self._note_key(name)
        known = self._gateway.read(key, deadline)
        if self._text(known) != expected:
            return False
        if not wanted and known is None:
            return True
        outcome = self._gateway.commit(Change(key, known, wanted.encode() or None), deadline)
        if outcome.may_be_second and not outcome.succeeded and self._text(outcome.entry) != wanted:
            raise self._unknown(key)
        return outcome.succeeded or outcome.may_be_second

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """One stream for all who watch; `changed` is called once soon, because of what happened before it began."""
        caller = _Caller(changed)
        self._callers.add(caller)
        caller.start()
        seen: object = None

        def look(view: PrefixView) -> None:
            nonlocal seen
            here = {key: entry for key, entry in view.keys.items() if not key.startswith(self._lease_key(""))}
            if seen != (here, view.is_connected):
                seen = (here, view.is_connected)
                caller.wake()

        remove = self._watch.add(look)

        def end() -> None:
            remove()
            caller.stop()
            self._callers.discard(caller)

        return end

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> EtcdLease:
        """The key NAMESPACE/leases/NAME, which ends with an etcd lease."""
        ttl_s = math.ceil(self._session_timeout_s)
        lease = EtcdLease(self._gateway, self._watch, self._returned, self._lease_key(name), holder, ttl_s)
        self._leases.add(lease)
        return lease

    def close(self) -> None:
        """Give leases back, and end the stream."""
        for lease in list(self._leases):
            lease.release()
        self._returned.close(RELEASE_LIMIT_S)
        self._watch.close()
        for caller in list(self._callers):
            caller.stop()
        self._gateway.close()

    def _note_key(self, name: str) -> str:
        return f"{self.url.namespace}/notes/{name}"

    def _lease_key(self, name: str) -> str:
        return f"{self.url.namespace}/leases/{name}"

    def _name(self, key: str) -> str:
        return f"{self.url.scheme}://{','.join(map(str, self.url.servers))}/{key}"

    def _unknown(self, key: str) -> CoordinatorError:
        """A first attempt got no answer, a second one finds something else: the first may have been carried out."""
        return CoordinatorError(f"an answer of etcd was lost, and {self._name(key)} has changed since: read it")

    def _noted(self, entry: KeyValue | None) -> ClusterRecord:
        """Raises CoordinatorError, and then nothing is known."""
        self._known = None
        record = self._decoded(entry)
        self._known = entry
        return record

    def _decoded(self, entry: KeyValue | None) -> ClusterRecord:
        """Raises CoordinatorError."""
        if entry is None:
            return ClusterRecord()
        try:
            return decode_record(entry.value)
        except (ValueError, RecursionError) as error:
            raise CoordinatorError(
                f"{self._name(entry.key)} is damaged ({error}): `etcdctl del {entry.key}`; a primary writes it anew. If"
                " there is none, use `qpid-ha promote --force` on the broker that `qpid-ha status --all` shows furthest"
            ) from None

    def _text(self, entry: KeyValue | None) -> str:
        """Raises CoordinatorError."""
        if entry is None:
            return ""
        try:
            return entry.value.decode()
        except UnicodeDecodeError:
            raise CoordinatorError(f"{self._name(entry.key)} is not UTF-8: `etcdctl del {entry.key}`") from None


class _ReturnedLeases:
    """The promise: a lease that is given back is revoked as soon as etcd answers, for as long as this process runs.

    When etcd's leader dies together with the holder of a lease, nobody answers for a second; a lease that was left to
    its own time then would be in everybody's way for all of that, and the new leader begins it anew.
    """

    def __init__(self, gateway: EtcdGateway) -> None:
        self._gateway = gateway
        self._mutex = threading.Lock()
        self._under_way: set[threading.Event] = set()
        self._is_closed = threading.Event()

    def give_back(self, lease: int) -> threading.Event:
        """Set once it is revoked, or nobody tries any more."""
        ended = threading.Event()
        with self._mutex:
            self._under_way.add(ended)
        threading.Thread(target=self._revoke, args=(lease, ended), name="etcd-lease", daemon=True).start()
        return ended

    def close(self, limit_s: float) -> None:
        """Wait for all of them so long, and try no more."""
        deadline = Deadline.after(limit_s)
        with self._mutex:
            under_way = list(self._under_way)
        for ended in under_way:
            ended.wait(deadline.left_s())
        self._is_closed.set()

    def _revoke(self, lease: int, ended: threading.Event) -> None:
        until = Deadline.after(RELEASE_FOR_S)
        problem = ""
        while True:
            try:
                self._gateway.revoke(lease, Deadline.after(RELEASE_LIMIT_S))
                break
            except CoordinatorError as error:
                if not problem:
                    log.warning("a lease is not given back yet (tried again): %s", error)
                problem = str(error)
            if self._is_closed.wait(RELEASE_AGAIN_S) or not until.left_s():
                log.warning("a lease could not be given back, and is in others' way until etcd ends it: %s", problem)
                break
        with self._mutex:
            self._under_way.discard(ended)
        ended.set()


class _Grant(NamedTuple):
    """What was given to us, and until when it is surely ours; times by `_boot_s`."""

    lease: int
    ttl_s: int
    revision: int
    """At which the key was put."""
    renewed_s: float
    until_s: float


class EtcdLease:
    """The promise: `is_held` is False before etcd may give it to another one, whether this process was awake or not.

    etcd counts from when it carries out a grant or a keep-alive; we count from before we asked for it. A lease that is
    lost stays lost: who wants it again takes it again.
    """

    def __init__(
        self, gateway: EtcdGateway, watch: PrefixWatch, returned: _ReturnedLeases, key: str, holder: str, ttl_s: int
    ) -> None:
        self._gateway = gateway
        self._watch = watch
        self._returned = returned
        self._key = key
        self._holder = holder
        self._ttl_s = ttl_s
        self._mutex = threading.Lock()
        self._grant: _Grant | None = None
        self._is_lost = False
        self._stop_listening: Callable[[], None] = _nothing

    def try_lock(self) -> bool:
        """Take it if it is free. Raises CoordinatorError."""
        deadline = Deadline.after(CALL_LIMIT_S)
        return self.is_held() or (self._gateway.read(self._key, deadline) is None and self._take(deadline))

    def acquire(self, cancel: threading.Event) -> bool:
        """Wait until the key is gone, and be faster than others; False soon after `cancel`. Raises CoordinatorError."""
        may_be_free = threading.Event()

        def look(view: PrefixView) -> None:
            if view.is_connected and self._key not in view.keys:
                may_be_free.set()

        stop_listening = self._watch.add(look)
        try:
            is_ours = not cancel.is_set() and self.try_lock()
            while not is_ours and not cancel.is_set():
                if may_be_free.wait(_CANCEL_S):
                    may_be_free.clear()
                    is_ours = self._take(Deadline.after(CALL_LIMIT_S))
        finally:
            stop_listening()
        if cancel.is_set():
            self.release()
        return self.is_held()

    def is_held(self) -> bool:
        """Whether its time has not passed, and nobody was seen to take the key away."""
        with self._mutex:
            if self._grant is not None and _boot_s() >= self._grant.until_s:
                self._is_lost = True
            return self._grant is not None and not self._is_lost

    def renew(self) -> None:
        """Keep it alive, now and then. Raises CoordinatorError."""
        with self._mutex:
            grant = self._grant
        asked_s = _boot_s()
        if grant is None or not self.is_held() or asked_s < grant.renewed_s + RENEWED_AFTER * grant.ttl_s:
            return
        ttl_s = self._gateway.keep_alive(grant.lease, Deadline.after(min(CALL_LIMIT_S, grant.until_s - asked_s)))
        with self._mutex:
            if self._grant is grant and not ttl_s:
                self._is_lost = True
            elif self._grant is grant and not self._is_lost:
                self._grant = grant._replace(ttl_s=ttl_s, renewed_s=asked_s, until_s=asked_s + ttl_s)

    def last_renewal(self) -> str:
        """Nobody else needs to look: etcd takes it from who does not renew it."""
        return ""

    def holder(self) -> str:
        """Who signed the key. Raises CoordinatorError."""
        lease_key = self._gateway.read(self._key, Deadline.after(CALL_LIMIT_S))
        return "" if lease_key is None else _signed_by(lease_key.value)

    def release(self) -> None:
        """Delete the key with its lease: at once, or as soon as etcd does it, which is not waited for."""
        with self._mutex:
            grant, self._grant, self._is_lost = self._grant, None, False
            stop_listening, self._stop_listening = self._stop_listening, _nothing
        stop_listening()
        if grant is not None:
            self._returned.give_back(grant.lease).wait(RELEASED_AT_ONCE_S)

    def _take(self, deadline: Deadline) -> bool:
        """Raises CoordinatorError; if the key was put nevertheless, it is deleted again."""
        self.release()
        lease, asked_s = secrets.randbits(62) + 1, _boot_s()
        since = datetime.now(UTC).isoformat(timespec="milliseconds")
        signature = json.dumps({"name": self._holder, "pid": os.getpid(), "since": since}).encode()
        try:
            ttl_s = self._gateway.grant(lease, self._ttl_s, deadline)
            outcome = self._gateway.commit(Change(self._key, None, signature, lease), deadline)
        except CoordinatorError:  # both may have been carried out: nobody shall wait for the end of such a lease
            self._returned.give_back(lease)
            raise
        # After a lost answer the second attempt finds what the first has put.
        if not outcome.succeeded and (outcome.entry is None or outcome.entry.lease != lease):
            self._returned.give_back(lease)
            return False
        grant = _Grant(lease, ttl_s, outcome.revision, asked_s, asked_s + ttl_s)
        with self._mutex:
            self._grant = grant
        stop_listening = self._watch.add(self._look)
        with self._mutex:
            is_released = self._grant is not grant
            if not is_released:
                self._stop_listening = stop_listening
        if is_released:
            stop_listening()
        return self.is_held()

    def _look(self, view: PrefixView) -> None:
        """Somebody may have deleted our key; what was seen before it was put says nothing."""
        with self._mutex:
            if self._grant is None or not view.is_connected or view.revision < self._grant.revision:
                return
            entry = view.keys.get(self._key)
            if entry is None or entry.lease != self._grant.lease:
                self._is_lost = True


class _Caller(threading.Thread):
    """Calls `changed` after each `wake`, once for several that come meanwhile."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(name="record-changed", daemon=True)
        self._changed = changed
        self._woken = threading.Event()
        self._is_stopped = False

    def wake(self) -> None:
        """There is something to say."""
        self._woken.set()

    def stop(self) -> None:
        """Call it no more."""
        self._is_stopped = True
        self._woken.set()

    def run(self) -> None:
        """The thread."""
        while True:
            self._woken.wait()
            self._woken.clear()
            if self._is_stopped:
                return
            self._changed()


def _signed_by(value: bytes) -> str:
    """For people."""
    try:
        signed = json.loads(value)
        return f"{signed['name'] or 'a broker'} (pid {signed['pid']}, since {signed['since']})"
    except (ValueError, TypeError, KeyError, RecursionError):
        return "somebody"


def _boot_s() -> float:
    """A clock that nobody sets, and that does not stop while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _nothing() -> None:
    """Nobody listens."""
