"""Which broker is meant: what `-b` may say, and where to look when it says nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qpid_ha_agent.control import NotConnected
from qpid_ha_config.addresses import ADMIN_PORTS, Address, parse_admin, parse_broker
from qpid_ha_config.defaults import find_file, socket_directories
from qpid_ha_config.errors import ConfigError, ForbiddenConfig, UnreadableConfig

if TYPE_CHECKING:
    from qpid_ha_config.configuration import WrittenSettings


class AddressError(Exception):
    """What was said does not name one broker whose control socket can be used; the text says what does."""


def find_broker(broker: str | None, environment: Mapping[str, str] = os.environ) -> Path | Address:
    """The control socket as `find_socket` finds it, or the broker at `amqp[s]://[USER@]HOST[:PORT]` or `HOST:PORT`,
    or at `http[s]://HOST[:PORT]`.

    Raises AddressError, or Unreachable when there is none.
    """
    if broker and not broker.startswith("unix:") and ":" in broker:
        return read_remote(broker)
    return find_socket(broker, environment)


def read_remote(text: str) -> Address:
    """The broker at `amqp[s]://[USER@]HOST[:PORT]`, without a scheme it is amqp; or at `http[s]://HOST[:PORT]`.

    Raises AddressError.
    """
    if is_http(text):
        return _read_admin(text)
    try:
        return parse_broker(text)
    except ValueError as error:
        advice = "a remote broker is amqp://[USER@]HOST[:PORT], or amqps; see --password-file, QPID_HA_PASSWORD"
        raise AddressError(f"{text.rpartition('@')[2]}: {error}; {advice}") from None


def is_http(text: str) -> bool:
    """Whether that is the port for administrators."""
    return text.partition("://")[0] in ADMIN_PORTS


def _read_admin(text: str) -> Address:
    try:
        address = parse_admin(text)
        if address.user:
            raise ValueError("it takes no user")
    except ValueError as error:
        advice = "the port for administrators is https://HOST[:PORT]; see --password-file, QPID_HA_TOKEN"
        raise AddressError(f"{text.rpartition('@')[2]}: {error}; {advice}") from None
    return address


def find_socket(broker: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The control socket of `broker`: a path, `unix:PATH` or a broker's name.

    Without one: `QPID_HA_SOCKET`, else what the configuration file says, else the only broker of this machine.
    Raises AddressError, or Unreachable when there is none.
    """
    broker = broker or environment.get("QPID_HA_SOCKET")
    if broker:
        return _from_text(broker, environment)
    return _from_config(environment) or _only_one(environment)


def _from_text(broker: str, environment: Mapping[str, str]) -> Path:
    if broker.startswith("unix:"):
        return Path(broker.removeprefix("unix:").removeprefix("//"))
    if ":" in broker:
        raise AddressError(f"{broker}: give the control socket of a broker of this machine, or its name")
    if "/" in broker:
        return Path(broker)
    return _by_name(broker, environment)


def _by_name(name: str, environment: Mapping[str, str]) -> Path:
    directories = _safe_directories(environment)
    for directory in directories:
        if (directory / f"{name}.sock").exists():
            return directory / f"{name}.sock"
    named = _configured(environment)
    if named is not None and named[0] == name:
        return named[1]
    raise NotConnected(f"no broker named {name} in {_listed(socket_directories(environment))}")


def read_config(environment: Mapping[str, str]) -> WrittenSettings | None:
    """The configuration of this machine's broker, as it is written; None if there is none, or not for our eyes.

    Raises ConfigError; one that QPID_HA_CONFIG names has to be there.
    """
    path = find_file(None, environment)
    if path is None:
        return None
    from qpid_ha_config.configuration import WrittenSettings  # takes longer to import than a ping takes

    try:
        return WrittenSettings.read(path)
    except UnreadableConfig as error:
        if environment.get("QPID_HA_CONFIG") and not isinstance(error, ForbiddenConfig):
            raise ConfigError(f"QPID_HA_CONFIG={path}", "", f"{error.problem}; correct it, or unset it") from None
    return None


def _from_config(environment: Mapping[str, str]) -> Path | None:
    """The broker that this machine is configured for."""
    try:
        config = read_config(environment)
        if config is None:
            return None
        if config.has("control-socket"):
            socket: Path = config.get("control-socket")
            return socket
        is_first = config.worker_settings().are_several  # of several, the one with the machine's name is meant
        return _by_name(config.get("name"), environment) if config.has("name") or is_first else None
    except ConfigError as error:
        raise AddressError(f"{error}: correct it, or say which broker with -b") from None


def _configured(environment: Mapping[str, str]) -> tuple[str, Path] | None:
    """The broker of the configuration here, where it says of a control socket elsewhere; None: it does not."""
    try:
        config = read_config(environment)
        return (
            None
            if config is None or not config.has("control-socket")
            else (config.get("name"), config.get("control-socket"))
        )
    except ConfigError:  # whoever goes by it is told
        return None


def _only_one(environment: Mapping[str, str]) -> Path:
    sockets = [path for directory in _safe_directories(environment) for path in sorted(directory.glob("*.sock"))]
    if len(sockets) == 1:
        return sockets[0]
    if sockets:
        raise AddressError(f"there is more than one broker here: say which with -b ({_listed(sockets)})")
    raise NotConnected(f"no broker found: no control socket in {_listed(socket_directories(environment))}")


def _safe_directories(environment: Mapping[str, str]) -> list[Path]:
    """The socket directories that exist, without any under /tmp that somebody else made: what listens there is not
    ours."""
    safe = []
    for directory in socket_directories(environment):
        try:
            status = directory.stat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and (directory.parent != Path("/tmp") or status.st_uid == os.getuid()):
            safe.append(directory)
    return safe


def _listed(paths: list[Path]) -> str:
    return ", ".join(str(path) for path in paths)
