"""What is written in a YAML file or on a command line, by dotted key, and where. A value is checked when it is read.

The broker reads every setting (`loading`), an agent only what it needs: a broker that runs can be stopped, whatever the
rest of the file says by now. Both read the same file by the same rules, and each setting by its one parser.
A section may be written nested (`tls: {key: K}`) or dotted (`tls.key: K`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from qpid_ha_config.errors import ConfigError, ForbiddenConfig, SettingsError, UnreadableConfig
from qpid_ha_config.settings import (
    TABLE,
    ActivationSettings,
    CoordinatorSettings,
    WorkerSettings,
    canonical_key,
    find,
)
from qpid_ha_config.workers import values_of_worker

COMMAND_LINE = "command line"
_LARGEST_FILE_BYTES = 1024 * 1024


class _Written(NamedTuple):
    value: object
    source: Path | str
    """The file with the line, or the command line."""


class WrittenSettings:
    """Settings as they were written. What is wrong with one is a ConfigError that says where it stands."""

    def __init__(self, source: Path | str, written: Mapping[str, _Written]) -> None:
        self.source = source
        self._written = written

    @classmethod
    def of_flags(cls, flags: Mapping[str, object]) -> WrittenSettings:
        """What a command line says, by dotted key."""
        written = {canonical_key(key): _Written(value, COMMAND_LINE) for key, value in flags.items()}
        return cls(COMMAND_LINE, written)

    @classmethod
    def read(cls, path: Path) -> WrittenSettings:
        """What a file says. Raises ConfigError for what is not YAML, and for a key that is there twice."""
        from qpid_ha_config.yaml_file import settings_in  # 10 ms of a start, of 250, and many brokers have no file

        written: dict[str, _Written] = {}
        for key, value, line in settings_in(path, _read_text(path)):
            if canonical_key(key) in written:
                raise ConfigError(f"{path}:{line}", canonical_key(key), "it is there twice; take one out")
            written[canonical_key(key)] = _Written(value, f"{path}:{line}")
        return cls(path, written)

    def over(self, other: WrittenSettings) -> WrittenSettings:
        """Both; what is in this one counts."""
        return WrittenSettings(other.source, {**other._written, **self._written})

    @property
    def values(self) -> dict[str, object]:
        """By canonical key."""
        return {key: written.value for key, written in self._written.items()}

    def has(self, key: str) -> bool:
        """Whether `key` is written."""
        return key in self._written

    def get(self, key: str) -> Any:
        """The setting `key` as `BrokerSettings` would have it, whatever the others say. Raises ConfigError."""
        row = find(key)
        if key not in self._written:
            return row.default() if callable(row.default) else row.default
        with self.blamed():
            return row.setting.read(self._written[key].value)

    def of_worker(self) -> WrittenSettings:
        """As it is for this broker, if it is one of several of its machine: see `workers`. Raises ConfigError."""
        number = self.worker_settings().number
        if not number:
            return self
        own = values_of_worker(self.get, self.has, number, self.worker_settings().there_are)
        source = {key: self._written[key].source if key in self._written else self.source for key in own}
        written = {key: _Written(value, source[key]) for key, value in own.items()}
        return WrittenSettings(self.source, {**self._written, **written})

    def coordinator_settings(self) -> CoordinatorSettings:
        """As `BrokerSettings.coordinator`, whatever the others say. Raises ConfigError."""
        return CoordinatorSettings(**self._section("coordinator"))

    def activation_settings(self) -> ActivationSettings:
        """As `BrokerSettings.activation`, whatever the others say. Raises ConfigError."""
        return ActivationSettings(**self._section("activation"))

    def worker_settings(self) -> WorkerSettings:
        """As `BrokerSettings.workers`, whatever the others say. Raises ConfigError."""
        return WorkerSettings(**self._section("workers"))

    def _section(self, section: str) -> dict[str, Any]:
        return {row.name: self.get(key) for key, row in TABLE.items() if row.section == section}

    def check_each(self) -> None:
        """Raise ConfigError for a key that is not known, or a value that is not of its kind."""
        for key, written in self._written.items():
            with self.blamed():
                find(key).setting.read(written.value)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """A SettingsError becomes a ConfigError that says where the key is written; the file if it is missing."""
        try:
            yield
        except SettingsError as error:
            written = self._written.get(error.key)
            source = self.source if written is None else written.source
            raise ConfigError(source, error.key, error.problem) from None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            content = opened.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        kind = ForbiddenConfig if isinstance(error, PermissionError) else UnreadableConfig
        raise kind(path, "", f"cannot read it: {error.strerror}") from None
    if len(content) > _LARGEST_FILE_BYTES:
        raise ConfigError(path, "", "it is over 1 MiB, which no configuration of a broker is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}", "", "it is not UTF-8 text") from None
