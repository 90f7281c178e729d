"""Which broker is meant: what `-b` may say, and where to look when it says nothing.

The places are those where the broker puts its control socket by default (`server/defaults.py`), in the same order.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from qpid_ha_agent.control import Unreachable

DEFAULT_CONFIG_FILE = "/etc/qpid-ha/qpid-ha.yaml"


_URL = re.compile(r"(?:(amqps?)://)?(?:([^@/\s]*)@)?(\[[^\[\]/\s]+\]|[^\[\]:/@?#\s]+)(?::([0-9]{1,5}))?/?", re.ASCII)


class RemoteBroker(NamedTuple):
    """A broker that is asked through AMQP. `host` carries no brackets; `user` is empty for nobody in particular."""

    scheme: str
    host: str
    port: int
    user: str = ""

    @property
    def is_tls(self) -> bool:
        """Whether TLS is spoken there from the first byte."""
        return self.scheme == "amqps"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class AddressError(Exception):
    """What was said does not name one broker whose control socket can be used; the text says what does."""


def find_broker(broker: str | None, environment: Mapping[str, str] = os.environ) -> Path | RemoteBroker:
    """The control socket as `find_socket` finds it, or the broker at `amqp[s]://[USER@]HOST[:PORT]` or `HOST:PORT`.

    Raises AddressError, or Unreachable when there is none.
    """
    if broker and not broker.startswith("unix:") and ":" in broker:
        return read_remote(broker)
    return find_socket(broker, environment)


def read_remote(text: str) -> RemoteBroker:
    """The broker at `amqp[s]://[USER@]HOST[:PORT]`; without a scheme it is amqp. Raises AddressError."""
    found = _URL.fullmatch(text)
    if found is None:
        raise AddressError(f"{text.rpartition('@')[2]}: a remote broker is amqp://[USER@]HOST[:PORT], or amqps")
    user, port = found[2] or "", int(found[4]) if found[4] else {"amqps": 5671}.get(found[1], 5672)
    if ":" in user:
        problem = "the command line is no place for a password; use --password-file or QPID_HA_PASSWORD"
        raise AddressError(f"{user.partition(':')[0]}@{found[3]}: {problem}")
    if not 0 < port < 65536:
        raise AddressError(f"{text}: there is no port {port}")
    return RemoteBroker(found[1] or "amqp", found[3].strip("[]"), port, user)


def find_socket(broker: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The control socket of `broker`: a path, `unix:PATH` or a broker's name.

    Without one: `QPID_HA_SOCKET`, else what the configuration file says, else the only broker of this machine.
    Raises AddressError, or Unreachable when there is none.
    """
    broker = broker or environment.get("QPID_HA_SOCKET")
    if broker:
        return _from_text(broker, environment)
    return _from_config(environment) or _only_one(environment)


def socket_directories(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Where brokers put their control sockets unless told otherwise."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    directories = [Path("/run/qpid-ha")]
    if runtime.startswith("/"):
        directories.append(Path(runtime) / "qpid-ha")
    return [*directories, Path(f"/tmp/qpid-ha-{os.getuid()}")]


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
    raise Unreachable(f"no broker named {name} in {_listed(socket_directories(environment))}")


def read_config(environment: Mapping[str, str]) -> dict[str, object]:
    """The configuration of this machine's broker, as it is written; empty if there is none, or not for our eyes.

    Raises AddressError.
    """
    path = environment.get("QPID_HA_CONFIG") or DEFAULT_CONFIG_FILE
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return {}
    import yaml  # takes longer to import than a ping takes

    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError:
        raise AddressError(f"{path} is not YAML: correct it, or say which broker with -b") from None
    return config if isinstance(config, dict) else {}


def _from_config(environment: Mapping[str, str]) -> Path | None:
    """The broker that this machine is configured for."""
    config = read_config(environment)
    socket, name = config.get("control-socket"), config.get("name")
    if isinstance(socket, str):
        return Path(socket).expanduser()
    return _by_name(name, environment) if isinstance(name, str) else None


def _only_one(environment: Mapping[str, str]) -> Path:
    found = [path for directory in _safe_directories(environment) for path in sorted(directory.glob("*.sock"))]
    if len(found) == 1:
        return found[0]
    if found:
        raise AddressError(f"there is more than one broker here: say which with -b ({_listed(found)})")
    raise Unreachable(f"no broker found: no control socket in {_listed(socket_directories(environment))}")


def _safe_directories(environment: Mapping[str, str]) -> list[Path]:
    """Those that exist, without any under /tmp that somebody else made: what listens there is not ours."""
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
