"""What the setting `ha.coordinator` may say."""

from __future__ import annotations

from pathlib import Path

from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.coordination.none import NoCoordinator

EXPECTED = "none, or file:DIRECTORY with the absolute path of a directory that all brokers share"


def make_coordinator(text: str) -> Coordinator:
    """The coordinator that `none` or `file:/DIRECTORY` means; nothing is opened yet. Raises ValueError."""
    directory = shared_directory(text)
    return NoCoordinator() if directory is None else FileCoordinator(directory)


def shared_directory(text: str) -> Path | None:
    """The directory of `file:/DIRECTORY`; None for `none`. Raises ValueError."""
    kind, _colon, place = text.partition(":")
    if text == "none":
        return None
    if kind != "file":
        raise ValueError(f"{text!r} is not {EXPECTED}")
    path = Path(place.removeprefix("//")).expanduser()
    if not path.is_absolute() or "\0" in place:
        raise ValueError(f"{text!r}: the path is not absolute; write file:/DIRECTORY")
    return path
