"""Reads and commands on all sets that a broker hosts: queues are looked for in all of them, exchanges are in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Protocol

from qpid_ha_broker.amqp.directory import ServedElsewhere, SetDirectory
from qpid_ha_broker.amqp.hosted_set import HostedSet
from qpid_ha_broker.model.administration import Administration, Done, Facts, Pending
from qpid_ha_broker.model.errors import OtherSet
from qpid_ha_broker.model.log import DEFAULT_SET


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


class SetsAdministration(Administration):
    """As `Administration`, of all hosted sets; what is new, and all exchanges and bindings, is of `default`."""

    def __init__(self, hosted: HostedSets) -> None:
        super().__init__(hosted.default.resources, hosted.default.configuration)
        self._hosted = hosted

    def of_queue(self, name: object, *, leads: bool = False) -> Administration:
        """That of the set with a queue of that name; that of `default` where there is none. See `Administration`."""
        if leads:
            self._check_leads(name)
        default = self._hosted.default
        if not default.administration.has_queue(name):
            for hosted in self._hosted.sets.values():
                if hosted.administration.has_queue(name):
                    hosted.touch()  # what is asked for may change something
                    return hosted.administration
        return default.administration

    def _check_leads(self, name: object) -> None:
        """Raises ServedElsewhere where another broker leads the queue's set, or would if there were such a queue."""
        directory = self._hosted.directory
        if directory.has_many_sets and isinstance(name, str):
            set_name = directory.set_of(name) or DEFAULT_SET
            hosted = self._hosted.sets.get(set_name)
            if hosted is None or hosted.read_only:
                raise ServedElsewhere(directory, set_name, name)

    def queues(self, start: int = 0) -> Iterator[Facts]:
        """As `Administration.queues`, set by set."""
        found = []
        for hosted in self._hosted.sets.values():
            count = hosted.administration.queue_count
            if start < count:
                found.append(hosted.administration.queues(start))
            start = max(start - count, 0)
        return chain.from_iterable(found)

    @property
    def queue_count(self) -> int:
        """How many queues there are."""
        return sum(hosted.administration.queue_count for hosted in self._hosted.sets.values())

    def queue(self, name: object) -> Facts:
        """As `Administration.queue`."""
        return self.of_queue(name).queue(name)

    def has_queue(self, name: object) -> bool:
        """As `Administration.has_queue`."""
        return self.of_queue(name).has_queue(name)

    def update_queue(self, name: object, arguments: object = None, most_moved: int | None = None) -> Done[Facts]:
        """As `Administration.update_queue`."""
        return self.of_queue(name).update_queue(name, arguments, most_moved)

    def delete_queue(self, name: object, if_empty: object = False, if_unused: object = False) -> Pending[Facts]:
        """As `Administration.delete_queue`. Raises OtherSet: what is not of `default` the directory has to let go."""
        there = self.of_queue(name)
        if there is not self._hosted.default.administration:
            raise OtherSet(f"queue {name} is of another resource set: delete it with `qpid-ha queue delete`")
        return there.delete_queue(name, if_empty, if_unused)

    def purge_queue(self, name: object) -> Pending[int]:
        """As `Administration.purge_queue`."""
        return self.of_queue(name).purge_queue(name)
