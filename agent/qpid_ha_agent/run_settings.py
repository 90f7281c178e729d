"""What `qpid-ha-agent run` reads from the broker's configuration: as little as it needs; the broker checks the rest."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from qpid_ha_agent.broker_address import socket_directories
from qpid_ha_agent.runner import RunSettings
from qpid_ha_broker.coordination.choice import EXPECTED, shared_directory

_TRUE = ("true", "yes", "on", "1")


class RunSettingsError(Exception):
    """The configuration cannot be used by an agent; the text says what to set."""


def read_run_settings(config: Path, changes: Sequence[str], qpidd: Sequence[str]) -> RunSettings:
    """Settings from the file and `KEY=VALUE` texts, which beat it. Raises RunSettingsError."""
    given = dict(change.split("=", 1) for change in changes)
    document = _read(config)

    def look_up(key: str) -> str:
        found = given.get(key, _find(document, key))
        return "" if found is None else str(found)

    if look_up("ha.cluster").lower() not in _TRUE:
        raise RunSettingsError(f"{config}: ha.cluster is not true: there is nothing to elect, start qpidd itself")
    name = look_up("name") or socket.gethostname()
    control_socket = Path(look_up("control-socket") or _default_socket(name)).expanduser().absolute()
    command = [*qpidd, "--config", str(config), "--control-socket", str(control_socket)]
    for change in changes:
        command += ["--set", change]
    return RunSettings(name, tuple(command), control_socket, _directory(config, look_up("ha.coordinator")))


def _directory(config: Path, coordinator: str) -> Path:
    try:
        directory = shared_directory(coordinator or "none")
    except ValueError as error:
        raise RunSettingsError(f"{config}: ha.coordinator: {error}") from None
    if directory is None:
        advice = "set it to file:DIRECTORY, a directory that all agents share; on one machine any directory will do"
        raise RunSettingsError(f"{config}: ha.coordinator: without one agents have no lock to agree by; {advice}")
    return directory


def _read(config: Path) -> Mapping[str, object]:
    import yaml

    try:
        document = yaml.safe_load(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunSettingsError(f"{config}: cannot read it: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise RunSettingsError(f"{config}: it is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise RunSettingsError(f"{config}: expected keys and values, such as `ha.coordinator: {EXPECTED}`")
    return document


def _find(document: Mapping[str, object], key: str) -> object:
    """The value of a dotted key, whether it is written dotted or nested."""
    if key in document:
        return document[key]
    section, _dot, rest = key.partition(".")
    inner = document.get(section)
    return _find(inner, rest) if rest and isinstance(inner, dict) else None


def _default_socket(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """In the first place where we may write; the broker is told, so that both mean the same."""
    directories = socket_directories(environment)
    for directory in directories:
        if os.access(directory if directory.exists() else directory.parent, os.W_OK | os.X_OK):
            return directory / f"{name}.sock"
    return directories[-1] / f"{name}.sock"
