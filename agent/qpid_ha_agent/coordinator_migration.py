"""Moving a cluster's record and notes from one coordinator to another while its brokers run.

Each step leaves a state from which the same call goes on. `coordination/moved.py` has the order, and why no write is
confirmed at the old place once the new one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.moved import Pointer, decode_pointer, encode_pointer
from qpid_ha_broker.ha.cluster_record import ClusterRecord

ATTEMPTS = 50
"""Of exchanging a record that changes all the time."""


class CannotMigrate(Exception):
    """Nothing was changed that has to be undone; the text says what is in the way, and what to do."""


class Place:
    """A coordinator, opened where it is itself, and its URL."""

    def __init__(self, url: str, coordinator: Coordinator) -> None:
        self.url = url
        self.coordinator = coordinator

    def look(self) -> tuple[ClusterRecord, Pointer | None]:
        """What is there, and what that means. Raises CoordinatorError."""
        record = self.coordinator.read()
        return record, decode_pointer(record)


def migrate(source: Place, target: Place, notes: Sequence[str]) -> Iterator[str]:
    """Do it, and say what was done after each step. Raises CannotMigrate, CoordinatorError."""
    _, pointer = source.look()
    if pointer is None:
        yield from _prepare(source, target)
        pointer = Pointer(target.url, _exchange(source, target))
        yield f"{source.url} leads to {target.url}"
    elif pointer.url != target.url:
        raise CannotMigrate(f"{source.url} has moved to {pointer.url}: that is where to migrate from")
    if _is_finished(source, target, pointer.record):
        yield f"{target.url} holds the record already"
        return
    for name in notes:  # nobody writes any now, here or there: whoever wants to waits for the record
        note, there = source.coordinator.read_note(name), target.coordinator.read_note(name)
        if note != there:
            target.coordinator.replace_note(name, there, note)
    yield "the notes are copied"
    target.coordinator.compare_and_set(encode_pointer(source.url, ClusterRecord()), pointer.record)
    yield f"{target.url} holds the record"


def _prepare(source: Place, target: Place) -> Iterator[str]:
    """The target leads to the source, so that whoever is told of it too early finds the record."""
    record, _ = source.look()
    if record == ClusterRecord():
        raise CannotMigrate(
            f"{source.url} holds no record, so there is nothing to move: set ha.coordinator on all machines, and start"
            " the agents again"
        )
    there, pointer = target.look()
    if pointer is not None and pointer.url == source.url:
        prepared = encode_pointer(source.url, ClusterRecord())
        if there != prepared:  # it moved from there to here once
            target.coordinator.compare_and_set(there, prepared)
        yield f"{target.url} was prepared before"
        return
    if there != ClusterRecord():
        why = f"leads to {pointer.url}" if pointer is not None else f"holds the record of the cluster {there.cluster}"
        raise CannotMigrate(f"{target.url} {why} (this cluster is {record.cluster}): give it a namespace of its own")
    done, _ = target.coordinator.compare_and_set(there, encode_pointer(source.url, ClusterRecord()))
    if not done:
        raise CannotMigrate(f"somebody else has written to {target.url} just now: look at it, and try again")
    yield f"{target.url} is prepared"


def _exchange(source: Place, target: Place) -> ClusterRecord:
    """The last record of the source, which from now on leads to the target."""
    record, _ = source.look()
    for _ in range(ATTEMPTS):
        if decode_pointer(record) is not None:
            raise CannotMigrate(f"somebody else moves {source.url} at the same time: see `qpid-ha coordinator show`")
        done, there = source.coordinator.compare_and_set(record, encode_pointer(target.url, record))
        if done:
            return record
        record = there
    raise CannotMigrate(f"the record in {source.url} changes all the time: see `qpid-ha status`, and try again")


def _is_finished(source: Place, target: Place, record: ClusterRecord) -> bool:
    """Raises CannotMigrate where it can never be."""
    there, pointer = target.look()
    if pointer is not None and pointer.url == source.url:
        return False
    if pointer is None and there.cluster == record.cluster:
        return True
    raise CannotMigrate(
        f"{source.url} leads to {target.url}, which has lost what was written there: it holds "
        f"{there.cluster or 'nothing'}. The last record was {record}"
    )
