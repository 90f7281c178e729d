"""The record in Pacemaker's configuration (the CIB), which each node of the cluster has a copy of.

A change is sent to all nodes of the partition in one order, and each carries it out on its own copy: that makes a
change with a condition a compare-and-set. What Pacemaker does not promise is that a change survives. A node that is
cut off and has not found out changes its own copy only, reports success, and later all copies are replaced by one of
them. So a write counts only when nodes enough have shown that they have it; docs/decisions/0004-coordinators.md.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from qpid_ha_broker.coordination import cib_record, cluster_tools
from qpid_ha_broker.coordination.cib_record import CibAnswer, DamagedRecord
from qpid_ha_broker.coordination.coordinator import PRIMARY_LEASE, CoordinatorError, Lease
from qpid_ha_broker.coordination.deadline import Deadline
from qpid_ha_broker.coordination.polling import watch_by_polling
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import DEFAULT_PROPERTY_SET, check_property_set
from qpid_ha_config.settings import CoordinatorSettings

LIMIT_S = 4.5
"""Of one call; the broker waits 5 s for it."""
WATCH_INTERVAL_S = 1.0
_ROUND_S = 0.25
"""How long other nodes are waited for before it is looked up who is still there."""
_SETTLED_S = 0.25
"""Between the loss of a node and that of the quorum, as the configuration tells them: milliseconds."""


def open_pacemaker(settings: CoordinatorSettings) -> PacemakerCoordinator:
    """The factory for `pacemaker` and `pacemaker:NAME`."""
    return PacemakerCoordinator(settings.url.property_set or DEFAULT_PROPERTY_SET)


class PacemakerCoordinator:
    """The promise: a confirmed record is on more than half of the nodes, or on all that are there while none is lost.

    Lost is who vanished and was not fenced; without fencing, nobody is ever sure. So every later partition with quorum
    has a node that knows the record, whatever becomes of this one.
    """

    look_interval_s = 1.0

    def __init__(self, name: str = DEFAULT_PROPERTY_SET) -> None:
        self.name = check_property_set(name)
        self._newest = ClusterRecord()
        """That was confirmed here."""

    def read(self) -> ClusterRecord:
        """What this node's copy says; an empty record when there is none yet. Raises CoordinatorError."""
        return self._read(Deadline.after(LIMIT_S))

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        """Replace `expected`, and outrank what could take its place when partitions meet. Raises CoordinatorError.

        An older record than the last that was confirmed is not replaced unasked: another primary may have been
        recorded in between, so that is for the broker to decide.
        """
        deadline = Deadline.after(LIMIT_S)
        nodes = _Look(self, deadline)  # who they are is asked while the change is on its way
        written, recorded = self._write(expected, wanted, deadline), wanted
        if not written:
            recorded = self._read(deadline)
        if recorded != wanted:
            return False, recorded
        # Ours too when we did not write it now: an earlier attempt did, whose outcome was not certain.
        recorded = _Confirmation(self, wanted, deadline).wait(nodes.get())
        if recorded == wanted:
            self._newest = wanted
        return recorded == wanted, recorded

    def read_note(self, name: str) -> str:
        """What this node's copy says. Raises CoordinatorError."""
        value = self._look_with_quorum(Deadline.after(LIMIT_S)).notes.get(name)
        try:
            return "" if value is None else cib_record.decode_note(value)
        except DamagedRecord as error:
            attribute = cib_record.note_attribute(name)
            raise CoordinatorError(
                f"{error}; in the property set {self.name}: "
                f"`crm_attribute --set-name {self.name} --name {attribute} --delete`"
            ) from None

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        """Replaced on all nodes of the partition; unlike the record, nobody has shown to have it. Raises
        CoordinatorError."""
        deadline, attribute = Deadline.after(LIMIT_S), cib_record.note_attribute(name)
        change = cib_record.update_xml(self.name, cib_record.encode_note(wanted), outranks=False, attribute=attribute)
        held = [expected] if expected else [None, ""]
        conditions = [cib_record.note_condition_path(self.name, name, text) for text in held]
        if any(cluster_tools.modify(condition, change, deadline) for condition in conditions):
            return True
        self._look_with_quorum(deadline)  # without quorum nothing fits, whatever the note is
        return False

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Look every `WATCH_INTERVAL_S`."""
        return watch_by_polling(self._seen, WATCH_INTERVAL_S, changed)

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> Lease:
        """Raises CoordinatorError: it is Pacemaker that chooses who is promoted."""
        raise CoordinatorError("pacemaker: has no lock to give: Pacemaker itself starts and promotes brokers")

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _seen(self) -> tuple[str | None, Mapping[str, str]] | None:
        """What a change is told by; None while the configuration cannot be read."""
        try:
            answer = self._look_with_quorum(Deadline.after(LIMIT_S))
        except CoordinatorError:
            return None
        return answer.value, answer.notes

    def look(self, deadline: Deadline, node: str = "") -> CibAnswer:
        """What this node's copy says, or that of `node`. Raises CoordinatorError."""
        try:
            return cib_record.read_answer(cluster_tools.query(cib_record.query_path(self.name), deadline, node))
        except DamagedRecord as error:
            raise self._damaged(error) from None

    def record_in(self, answer: CibAnswer) -> ClusterRecord:
        """The record of a copy. Raises CoordinatorError."""
        try:
            return ClusterRecord() if answer.value is None else cib_record.decode(answer.value)
        except DamagedRecord as error:
            raise self._damaged(error) from None

    def _read(self, deadline: Deadline) -> ClusterRecord:
        return self.record_in(self._look_with_quorum(deadline))

    def _look_with_quorum(self, deadline: Deadline) -> CibAnswer:
        answer = self.look(deadline)
        if not answer.has_quorum:
            raise CoordinatorError("this node's partition has no quorum: see `crm_mon`, and bring back other nodes")
        return answer

    def _damaged(self, error: DamagedRecord) -> CoordinatorError:
        return CoordinatorError(
            f"the record in the property set {self.name} is damaged ({error}): "
            f"`crm_attribute --set-name {self.name} --name record --delete`; a primary writes it anew. If there is "
            "none, use `qpid-ha-agent force-promote` on the node that `qpid-ha status --all` shows furthest"
        )

    def _write(self, expected: ClusterRecord, wanted: ClusterRecord, deadline: Deadline) -> bool:
        """A generation's begin outranks the configuration of whoever was cut off from it; so does whatever replaces an
        older copy that came back."""
        try:
            value, known = cib_record.encode(wanted), cib_record.encode(expected)
        except ValueError as error:
            raise CoordinatorError(f"this record cannot be written: {error}") from None
        outranks = wanted.generation > expected.generation or _is_older(expected, self._newest)
        change = cib_record.update_xml(self.name, value, outranks=outranks)
        held = [None, known] if expected == ClusterRecord() else [known]  # one that became empty again is there, too
        conditions = [cib_record.condition_path(self.name, value) for value in held]
        return any(cluster_tools.modify(condition, change, deadline) for condition in conditions)


def _is_older(record: ClusterRecord, than: ClusterRecord) -> bool:
    return record.position < than.position and record.cluster in ("", than.cluster)


def _holds(record: ClusterRecord, wanted: ClusterRecord) -> bool:
    """Whether `record` is `wanted`, or a later change of the same primary.

    A newer generation does not show that `wanted` was ever there: it may have begun on the other side of a cut.
    """
    is_later = record[:3] == wanted[:3] and record.position > wanted.position
    return record == wanted or is_later


class _Look:
    """This node's copy, looked at by a thread of its own."""

    def __init__(self, coordinator: PacemakerCoordinator, deadline: Deadline) -> None:
        self._answer: queue.SimpleQueue[CibAnswer | CoordinatorError] = queue.SimpleQueue()

        def look() -> None:
            try:
                self._answer.put(coordinator.look(deadline))
            except CoordinatorError as error:
                self._answer.put(error)

        threading.Thread(target=look, name="record-look", daemon=True).start()

    def get(self) -> CibAnswer:
        """Raises CoordinatorError."""
        answer = self._answer.get()
        if isinstance(answer, CoordinatorError):
            raise answer
        return answer


class _Confirmation:
    """Asks nodes whether they have a record, until enough have said so."""

    def __init__(self, coordinator: PacemakerCoordinator, wanted: ClusterRecord, deadline: Deadline) -> None:
        self._coordinator = coordinator
        self._wanted = wanted
        self._deadline = deadline
        self._holders: set[str] = set()
        self._asked: set[str] = set()
        self._answers: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()

    def wait(self, seen: CibAnswer) -> ClusterRecord:
        """The record once it will survive, or the one that took its place when partitions met.

        Raises CoordinatorError when neither is certain in time.
        """
        while not self._has_majority(seen):
            is_everywhere = self._collect(seen)
            if self._has_majority(seen):
                break
            # Nobody else is there, as far as was known: that must hold after the write, too. Or somebody is silent who
            # counts as present, or is not fenced yet: until he is given up, or we are cut off, nothing is certain.
            if is_everywhere and not seen.has_fencing:
                time.sleep(min(_SETTLED_S, self._deadline.left_s()))
            seen = self._look_again(seen)
            if not seen.has_quorum:
                raise CoordinatorError("this node was cut off from the cluster: whether the record holds is not known")
            record = self._coordinator.record_in(seen)
            if record.position > self._wanted.position and not _holds(record, self._wanted):
                return record
            if is_everywhere and self._is_everywhere(seen):
                break
        return self._wanted

    def _look_again(self, seen: CibAnswer) -> CibAnswer:
        """Raises CoordinatorError. When the time ends in the middle of it, what was seen before says more."""
        try:
            return self._coordinator.look(self._deadline)
        except CoordinatorError:
            self._check_time(seen)
            raise

    def _has_majority(self, seen: CibAnswer) -> bool:
        return 2 * len(self._holders & seen.nodes) > len(seen.nodes)

    def _is_everywhere(self, seen: CibAnswer) -> bool:
        is_certain = not seen.has_fencing or seen.nodes - seen.present <= seen.down
        return is_certain and bool(seen.present) and seen.present <= self._holders

    def _collect(self, seen: CibAnswer) -> bool:
        """Ask who is there; whether all of them have it. Ends sooner when a majority has."""
        self._ask(seen.present - self._holders - self._asked)
        round_end = Deadline.after(min(_ROUND_S, self._deadline.left_s()))
        while not self._has_majority(seen) and not self._is_everywhere(seen):
            try:
                node, holds = self._answers.get(timeout=round_end.left_s())
            except queue.Empty:
                self._check_time(seen)
                return False
            self._asked.discard(node)
            if holds:
                self._holders.add(node)
        return self._is_everywhere(seen)

    def _check_time(self, seen: CibAnswer) -> None:
        if not self._deadline.left_s():
            silent = ", ".join(sorted(seen.present - self._holders))
            lost = ", ".join(sorted(seen.nodes - seen.present - seen.down))
            why = f"no answer from {silent}" if silent else f"{lost or 'no node'} is lost, and not fenced"
            raise CoordinatorError(f"whether the record holds is not known: {why}; see `crm_mon`")

    def _ask(self, nodes: Iterable[str]) -> None:
        def ask(node: str) -> None:
            holds = False
            with contextlib.suppress(CoordinatorError):
                answer = self._coordinator.look(self._deadline, node)
                holds = _holds(self._coordinator.record_in(answer), self._wanted)
            self._answers.put((node, holds))

        for node in nodes:
            self._asked.add(node)
            threading.Thread(target=ask, args=(node,), name="record-confirmation", daemon=True).start()
