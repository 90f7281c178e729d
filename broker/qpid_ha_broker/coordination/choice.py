"""What the setting `ha.coordinator` may say."""

from __future__ import annotations

from pathlib import Path

from qpid_ha_broker.coordination.cib_record import DEFAULT_NAME, check_name
from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.coordination.none import NoCoordinator
from qpid_ha_broker.coordination.pacemaker import PacemakerCoordinator

PACEMAKER = "pacemaker"
EXPECTED = (
    "none, or file:DIRECTORY with the absolute path of a directory that all brokers share, "
    "or pacemaker, or pacemaker:NAME with the name of a property set"
)


def make_coordinator(text: str) -> Coordinator:
    """The coordinator that `text` means; nothing is opened yet. Raises ValueError."""
    name = property_set(text)
    if name is not None:
        return PacemakerCoordinator(name)
    directory = shared_directory(text)
    return NoCoordinator() if directory is None else FileCoordinator(directory)


def property_set(text: str) -> str | None:
    """The property set that `pacemaker` or `pacemaker:NAME` means; None for another coordinator. Raises ValueError."""
    kind, colon, name = text.partition(":")
    if kind != PACEMAKER:
        return None
    return check_name(name) if colon else DEFAULT_NAME


def shared_directory(text: str) -> Path | None:
    """The directory of `file:/DIRECTORY`; None for a coordinator without one. Raises ValueError."""
    kind, _colon, place = text.partition(":")
    if text == "none" or property_set(text) is not None:
        return None
    if kind != "file":
        raise ValueError(f"{text!r} is not {EXPECTED}")
    path = Path(place.removeprefix("//")).expanduser()
    if not path.is_absolute() or "\0" in place:
        raise ValueError(f"{text!r}: the path is not absolute; write file:/DIRECTORY")
    return path
