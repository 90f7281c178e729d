"""Reads and commands on all sets of a cluster: what is not led here others decide, or the answer says where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Protocol

from qpid_ha_broker.amqp.nodes.directory import QueueDecision, ServedElsewhere, SetDirectory
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.model.commands.administration import (
    Administration,
    Done,
    Facts,
    Outcome,
    Pending,
    checked_arguments,
    checked_flag,
    checked_name,
)
from qpid_ha_broker.model.errors import OtherSet
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.queues.queue_arguments import with_creator


class HostedSets(Protocol):
    """The sets of a broker."""

    @property
    def sets(self) -> Mapping[str, HostedSet]:
        """By name, `default` first."""

    @property
    def default(self) -> HostedSet:
        """The one that has all exchanges and bindings, and the queues that are made without saying where."""

    @property
    def directory(self) -> SetDirectory:
        """Where queues of other sets are."""


class ListedQueues:
    """The queues of all sets of a cluster: what the replica here has, or the directory, where that knows more."""

    def __init__(self, hosted: HostedSets) -> None:
        self._hosted = hosted
        self._map = hosted.default.resources.catalog.map

    def rows(self, start: int) -> Iterator[Facts]:
        """The queues from number `start` on, set by set; of one that another broker leads those of the directory."""
        listings = list[Iterator[Facts]]()
        for set_name, hosted in self._sets():
            count = self._count(set_name, hosted)
            if hosted is not None and not self.is_elsewhere(set_name) and start < count:
                listings.append(hosted.administration.queues(start))
            elif start < count:
                listings.append(self._all_known(set_name, start))
            start = max(start - count, 0)
        return chain.from_iterable(listings)

    def names(self) -> list[str]:
        """The name of each, set by set."""
        names: list[str] = []
        for set_name, hosted in self._sets():
            if hosted is None or self.is_elsewhere(set_name):
                names += self._map.queues_of(set_name)
            else:
                names += hosted.administration.queue_names()
        return names

    @property
    def count(self) -> int:
        """How many queues there are."""
        return sum(self._count(*named_set) for named_set in self._sets())

    def is_elsewhere(self, set_name: str) -> bool:
        """Whether the directory knows more than the replica here: that hears of new queues when more happens there."""
        hosted = self._hosted.sets.get(set_name)
        return hosted is None or (hosted.read_only and set_name in self._map.sets)

    def facts_known(self, name: str, set_name: str, arguments: Arguments) -> Facts:
        """What the replica here has of one queue, else what the directory says: its `arguments`."""
        hosted = self._hosted.sets.get(set_name)
        if hosted is not None and hosted.administration.has_queue(name):
            return hosted.administration.queue(name)
        return {"name": name, "set": set_name, "arguments": dict(arguments)}

    def _all_known(self, set_name: str, start: int) -> Iterator[Facts]:
        """The queues of a set that another broker leads, of which the first `start` are left out. A change of the map
        while they are told is not seen."""
        queues = list(islice(self._map.queues_of(set_name).values(), start, None))
        return (self.facts_known(queue.name, set_name, queue.declared) for queue in queues)

    def _sets(self) -> Iterator[tuple[str, HostedSet | None]]:
        """All that there are, with the replica here; those without one last."""
        yield from self._hosted.sets.items()
        for name in self._map.sets:
            if name not in self._hosted.sets:
                yield name, None

    def _count(self, set_name: str, hosted: HostedSet | None) -> int:
        if hosted is None or self.is_elsewhere(set_name):
            return len(self._map.queues_of(set_name))
        return hosted.administration.queue_count


class SetsAdministration(Administration):
    """As `Administration`, of all sets; all exchanges and bindings are of `default`.

    A queue is made and deleted wherever it belongs: what this broker does not decide the directory has decided. Other
    commands on a queue that another broker leads raise ServedElsewhere. Reads tell of such a queue what the replica
    here has; where there is none, what the directory has: `name`, `set`, and the `arguments` of its declaration.
    """

    def __init__(self, hosted: HostedSets) -> None:
        super().__init__(hosted.default.resources, hosted.default.configuration)
        self._hosted = hosted
        self._listed = ListedQueues(hosted)

    def of_queue(self, name: object, *, leads: bool = False) -> Administration:
        """The administration of the queue's set, of `default` where there is none of that name. Raises ServedElsewhere.

        See `Administration`.
        """
        set_name = self._set_of(name)
        hosted = self._hosted.sets.get(set_name)
        directory = self._hosted.directory
        if hosted is None or (leads and hosted.read_only and directory.has_many_sets):
            raise ServedElsewhere(directory, set_name, str(name))
        if hosted is not self._hosted.default:
            hosted.touch()  # what is asked for may change something
        return hosted.administration

    def _set_of(self, name: object) -> str:
        """The set of a queue, or the one that knows whether there is such a queue."""
        if not isinstance(name, str) or self._hosted.default.administration.has_queue(name):
            return DEFAULT_SET
        return self._hosted.directory.set_of(name) or DEFAULT_SET

    # --- reads

    def queues(self, start: int = 0) -> Iterator[Facts]:
        """As `Administration.queues`, set by set; of one that another broker leads those that the directory has."""
        return self._listed.rows(start)

    def queue_names(self) -> list[str]:
        """As `Administration.queue_names`."""
        return self._listed.names()

    @property
    def queue_count(self) -> int:
        """How many queues there are."""
        return self._listed.count

    def queue(self, name: object) -> Facts:
        """As `Administration.queue`."""
        set_name = self._set_of(name)
        placed = self._catalog.map.queues.get(name) if isinstance(name, str) else None
        if placed is not None and self._listed.is_elsewhere(set_name):
            return self._listed.facts_known(placed.name, set_name, placed.declared)
        return self.of_queue(name).queue(name)

    def has_queue(self, name: object) -> bool:
        """As `Administration.has_queue`."""
        return super().has_queue(name) or (isinstance(name, str) and self._hosted.directory.set_of(name) is not None)

    # --- commands

    def create_queue(self, name: object, arguments: object = None, created_by: str = "") -> Outcome[Facts]:
        """As `Administration.create_queue`, in whatever set it belongs to. Raises OtherSet where there is but one.

        The result may have `pending`: it is recorded that the queue is to be made, and its set's primary, which is not
        known to have it yet, will; `text` says so.
        """
        checked, given = checked_name(name, "name"), checked_arguments(arguments)
        directory, default = self._hosted.directory, self._hosted.default
        if checked in self._catalog.map.queues:
            hosted = self._hosted.sets.get(directory.set_of(checked) or DEFAULT_SET)
            if hosted is not None and not hosted.read_only and hosted.administration.has_queue(checked):
                hosted.touch()
                # Its arguments may be other ones by now.
                return hosted.administration.create_queue(checked, given, created_by)
        elif not (default.read_only and directory.has_many_sets):
            try:
                return super().create_queue(checked, given, created_by)
            except OtherSet:
                pass  # that was chosen for it just now
        marked = with_creator(given, created_by)
        decision = directory.create_queue(checked, marked)
        return Pending(decision, None, lambda: self._created(checked, marked, decision))

    def _created(self, name: str, arguments: Arguments, decision: QueueDecision) -> Facts:
        return {**self._listed.facts_known(name, str(decision.result.get("set", "")), arguments), **decision.result}

    def delete_queue(self, name: object, if_empty: object = False, if_unused: object = False) -> Pending[Facts]:
        """As `Administration.delete_queue`; the result may have `pending` and `text` as that of `create_queue`."""
        checked = checked_name(name, "name")
        directory = self._hosted.directory
        is_of_default = checked not in self._catalog.map.queues
        if is_of_default and not (self._hosted.default.read_only and directory.has_many_sets):
            return super().delete_queue(checked, if_empty, if_unused)
        conditions = {
            "if_empty": checked_flag(if_empty, "if_empty"),
            "if_unused": checked_flag(if_unused, "if_unused"),
        }
        decision = directory.delete_queue(checked, **conditions)
        return Pending(decision, None, lambda: {"name": checked, **decision.result})

    def update_queue(self, name: object, arguments: object = None, most_moved: int | None = None) -> Done[Facts]:
        """As `Administration.update_queue`. Raises ServedElsewhere."""
        return self.of_queue(name).update_queue(name, arguments, most_moved)

    def purge_queue(self, name: object) -> Pending[int]:
        """As `Administration.purge_queue`. Raises ServedElsewhere."""
        return self.of_queue(name).purge_queue(name)
