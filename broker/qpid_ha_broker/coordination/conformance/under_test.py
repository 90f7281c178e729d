"""The coordinator that the suite was started for: how it is opened, here and in other processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Protocol

from qpid_ha_broker.coordination.conformance.worker import Worker
from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.registry import KEY, open_coordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.configuration import WrittenSettings
from qpid_ha_config.settings import CoordinatorSettings

CLUSTER: Final = "conformance"
"""Of the records that the suite writes; what else it finds is not its own."""
NOTES: Final = ("conformance", "conformance-other")
CLEANING_ATTEMPTS: Final = 20


class Faults(Protocol):
    """What whoever checks a coordinator brings along."""

    def cut(self) -> None:
        """From now on nobody reaches the coordinator."""

    def restore(self) -> None:
        """From now on everybody does; nothing if it was not cut."""


@dataclass
class UnderTest:
    """Opens the coordinator as often as a test asks for it; `close` closes all of them."""

    flags: Mapping[str, str]
    """By dotted key, as on a command line."""
    faults: Faults | None
    _opened: ExitStack = field(default_factory=ExitStack)

    @property
    def settings(self) -> CoordinatorSettings:
        """Raises ConfigError."""
        return WrittenSettings.of_flags(self.flags).coordinator_settings()

    def connect(self) -> Coordinator:
        """Another one, in this process."""
        coordinator = open_coordinator(self.settings)
        self._opened.callback(coordinator.close)
        return coordinator

    def worker(self) -> Worker:
        """Another process that has one."""
        return self._opened.enter_context(Worker(self.flags))

    def on_close(self, call: Callable[[], object]) -> None:
        """`call` before what was opened so far is closed."""
        self._opened.callback(call)

    def close(self) -> None:
        """Of all that this test opened."""
        self._opened.close()

    def clean(self) -> ClusterRecord | None:
        """Make the record and the suite's notes empty. None, or a record that is not the suite's, which is left alone.

        Raises CoordinatorError.
        """
        coordinator = open_coordinator(self.settings)
        try:
            record = _empty_record(coordinator)
            if record == ClusterRecord():
                _empty_notes(coordinator)
                return None
            return record
        finally:
            coordinator.close()


def flags_of(url: str, changes: Sequence[str]) -> dict[str, str]:
    """Raises ValueError for what is not KEY=VALUE."""
    flags = {KEY: url}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"{change!r} is not KEY=VALUE")
        flags[key] = value
    return flags


def _empty_record(coordinator: Coordinator) -> ClusterRecord:
    record = coordinator.read()
    for _ in range(CLEANING_ATTEMPTS):
        if record == ClusterRecord() or not record.cluster.startswith(CLUSTER):
            break
        _, record = coordinator.compare_and_set(record, ClusterRecord())
    return record


def _empty_notes(coordinator: Coordinator) -> None:
    for name in NOTES:
        for _ in range(CLEANING_ATTEMPTS):
            text = coordinator.read_note(name)
            if text == "" or coordinator.replace_note(name, text, ""):
                break
