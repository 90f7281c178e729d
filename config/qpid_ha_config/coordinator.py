"""Who keeps the record of generations and in-sync sets: what the setting `ha.coordinator` may say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from qpid_ha_config.scalars import parse_path

DEFAULT_PROPERTY_SET = "qpid-ha"
EXPECTED = (
    "none, or file:DIRECTORY with the absolute path of a directory that all brokers share, "
    "or pacemaker, or pacemaker:NAME with the name of a property set"
)
_PROPERTY_SET = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}", re.ASCII)
"""A subset of what XML takes as an identifier."""


class CoordinatorUrl(NamedTuple):
    """At most one of the two is set; with neither it is `none`."""

    directory: Path | None = None
    """Of `file:DIRECTORY`: absolute."""
    property_set: str | None = None
    """Of `pacemaker:NAME`, in Pacemaker's configuration."""

    @property
    def is_none(self) -> bool:
        """Whether there is nobody who keeps a record."""
        return self.directory is None and self.property_set is None

    @classmethod
    def parse(cls, value: object) -> CoordinatorUrl:
        """Raises ValueError, with the reason or with none."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise ValueError
        kind, colon, rest = value.strip().partition(":")
        match kind:
            case "pacemaker":
                return cls(property_set=check_property_set(rest) if colon else DEFAULT_PROPERTY_SET)
            case "file" if colon:
                if not rest.removeprefix("//").startswith(("/", "~")):
                    raise ValueError("the path is not absolute; it has to mean the same to each broker")
                return cls(directory=parse_path(rest.removeprefix("//")))
            case _ if value.strip().lower() == "none":
                return cls()
        raise ValueError

    def __str__(self) -> str:
        if self.directory is not None:
            return f"file:{self.directory}"
        return "none" if self.property_set is None else f"pacemaker:{self.property_set}"


def check_property_set(name: str) -> str:
    """`name` if it may be the id of a property set. Raises ValueError."""
    if not _PROPERTY_SET.fullmatch(name):
        raise ValueError(f"{name!r:.80} is no name for a property set; use letters, digits, dots, dashes, underscores")
    return name
