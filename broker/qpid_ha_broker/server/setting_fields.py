"""What a field of the settings says about itself: its key in the configuration file, and what it accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qpid_ha_broker.server.setting_kinds import Kind

HIDDEN = "********"
"""What is shown for a secret."""


class SettingsError(Exception):
    """A setting that cannot be: `key` (dotted, as in the configuration file) and what to do about it."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field's metadata says: its key, what it accepts, whether `set` may change it in a running broker."""

    key: str
    kind: Kind
    changeable: bool = False
    secret: bool = False
    """Neither shown nor quoted."""

    def read(self, value: object) -> Any:
        """The field's value from what YAML or a command line gave. Raises SettingsError."""
        if value is None:
            raise SettingsError(self.key, f"it has no value; give {self.kind.expected}, or leave the line out")
        try:
            return self.kind.parse(value)
        except ValueError as error:
            reason = f": {error}" if str(error) else ""
            given = "what is given" if self.secret else shown(value)
            raise SettingsError(self.key, f"{given} is not {self.kind.expected}{reason}") from None

    def show(self, value: Any) -> object:
        """The field's value as JSON can carry it; None is unset."""
        if value is None:
            return None
        return HIDDEN if self.secret else self.kind.show(value)


def described(key: str, kind: Kind, *, changeable: bool = False, secret: bool = False) -> dict[str, Setting]:
    """The metadata of a field that the configuration file calls `key`."""
    return {"setting": Setting(key, kind, changeable, secret)}


def shown(value: object) -> str:
    """A value as an error quotes it, never long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
