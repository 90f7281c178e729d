"""What an agent reads from a broker's configuration: as little as it needs; the broker checks the rest."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qpid_ha_agent.broker_address import socket_directories

_TRUE = ("true", "yes", "on", "1")


class BrokerConfigError(Exception):
    """The configuration cannot be used by an agent; the text says what to set."""


class UnreadableConfigError(BrokerConfigError):
    """There is no such file on this machine, or not for us."""


class ForbiddenConfigError(UnreadableConfigError):
    """It is there, and not for us."""


@dataclass(frozen=True)
class BrokerConfig:
    """What an agent has to know of a broker before it runs."""

    name: str
    control_socket: Path
    coordinator: str


def read_broker_config(config: Path, given: Mapping[str, str]) -> BrokerConfig:
    """From the file, and from `given` settings by their dotted keys, which beat it. Raises BrokerConfigError."""
    document = _read(config)

    def look_up(key: str) -> str:
        found = given.get(key, find_key(document, key))
        return "" if found is None else str(found)

    if look_up("ha.cluster").lower() not in _TRUE:
        raise BrokerConfigError(f"{config}: ha.cluster is not true: there is nothing to elect, start qpidd itself")
    name = look_up("name") or socket.gethostname()
    control_socket = Path(look_up("control-socket") or _default_socket(name)).expanduser().absolute()
    return BrokerConfig(name, control_socket, look_up("ha.coordinator") or "none")


def _read(config: Path) -> Mapping[str, object]:
    import yaml

    try:
        document = yaml.safe_load(config.read_text(encoding="utf-8"))
    except PermissionError:
        raise ForbiddenConfigError(f"{config}: we may not read it: run this as root") from None
    except OSError as error:
        raise UnreadableConfigError(f"{config}: cannot read it: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BrokerConfigError(f"{config}: it is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise BrokerConfigError(f"{config}: expected keys and values, such as `ha.brokers-url: amqp://node1,node2`")
    return document


def find_key(document: Mapping[str, object], key: str) -> object:
    """The value of a dotted key, whether it is written dotted or nested."""
    if key in document:
        return document[key]
    section, _dot, rest = key.partition(".")
    inner = document.get(section)
    return find_key(inner, rest) if rest and isinstance(inner, dict) else None


def _default_socket(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """In the first place where we may write; the broker is told, so that both mean the same."""
    directories = socket_directories(environment)
    for directory in directories:
        if os.access(directory if directory.exists() else directory.parent, os.W_OK | os.X_OK):
            return directory / f"{name}.sock"
    return directories[-1] / f"{name}.sock"
