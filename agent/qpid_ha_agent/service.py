"""One broker of this machine, as whoever starts and stops it has to know it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from qpid_ha_config.settings import CoordinatorSettings

DEFAULT_LOG_DIRECTORY = Path("/var/log/qpid-ha")


class ConfiguredBroker(NamedTuple):
    """What an agent reads of a broker's configuration: as little as it needs; the broker checks the rest."""

    name: str
    control_socket: Path
    coordinator: CoordinatorSettings


def read_configured(config: Path, changes: Mapping[str, object]) -> ConfiguredBroker:
    """From the file, and from `changes` by dotted key, which beat it. Raises ConfigError."""
    from qpid_ha_config.configuration import WrittenSettings  # a monitor needs this module, and seldom that one
    from qpid_ha_config.defaults import control_socket
    from qpid_ha_config.errors import SettingsError

    written = WrittenSettings.of_flags(changes).over(WrittenSettings.read(config)).of_worker()
    if not written.get("ha.cluster"):
        written.check_each()  # it may be there, with a slip of the pen
        with written.blamed():
            raise SettingsError("ha.cluster", "it is not true: there is nothing to elect, start qpidd itself")
    name = written.get("name")
    socket = written.get("control-socket") if written.has("control-socket") else control_socket(name)
    return ConfiguredBroker(name, socket, written.coordinator_settings())


class Service(NamedTuple):
    """What it takes to start a broker, to find it again, and to talk with it."""

    config: Path
    control_socket: Path
    log_file: Path
    """Where its output goes; a broker whose configuration has a log-file writes only its last words there."""
    binary: tuple[str, ...]
    user: str = ""
    """Who the broker runs as; empty: whoever starts it."""
    data_dir: str = ""
    """Empty: as the configuration says."""

    @property
    def command(self) -> tuple[str, ...]:
        """The control socket is always named, because it is what a process is recognised by."""
        command = (*self.binary, "--config", str(self.config), "--control-socket", str(self.control_socket))
        return (*command, "--data-dir", self.data_dir) if self.data_dir else command


def read_service(
    config: Path, control_socket: str = "", log_file: str = "", binary: str = "", user: str = "", data_dir: str = ""
) -> Service:
    """What is not given is read from the configuration, or is the default. Raises ConfigError."""
    broker = read_configured(config, {"control-socket": control_socket} if control_socket else {})
    return Service(
        config,
        broker.control_socket,
        Path(log_file) if log_file else DEFAULT_LOG_DIRECTORY / f"{broker.name}.log",
        (binary,) if binary else default_binary(),
        user,
        data_dir,
    )


def default_binary() -> tuple[str, ...]:
    """The broker of this installation."""
    beside = Path(sys.executable).with_name("qpidd")
    return (str(beside),) if beside.exists() else (sys.executable, "-m", "qpid_ha_broker.server.main")
