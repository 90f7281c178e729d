"""One broker of this machine, as whoever starts and stops it has to know it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from qpid_ha_agent.broker_config import read_broker_config

DEFAULT_LOG_DIRECTORY = Path("/var/log/qpid-ha")


@dataclass(frozen=True)
class Service:
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
    """What is not given is read from the configuration, or is the default. Raises BrokerConfigError."""
    broker = read_broker_config(config, {"control-socket": control_socket} if control_socket else {})
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
