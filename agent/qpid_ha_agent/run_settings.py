"""What `qpid-ha-agent run` reads from the broker's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qpid_ha_agent.broker_config import BrokerConfigError, read_broker_config
from qpid_ha_agent.runner import RunSettings
from qpid_ha_broker.coordination.choice import property_set, shared_directory


def read_run_settings(config: Path, changes: Sequence[str], qpidd: Sequence[str]) -> RunSettings:
    """Settings from the file and `KEY=VALUE` texts, which beat it. Raises BrokerConfigError."""
    broker = read_broker_config(config, dict(change.split("=", 1) for change in changes))
    command = [*qpidd, "--config", str(config), "--control-socket", str(broker.control_socket)]
    for change in changes:
        command += ["--set", change]
    directory = _directory(config, broker.coordinator)
    return RunSettings(broker.name, tuple(command), broker.control_socket, directory)


def _directory(config: Path, coordinator: str) -> Path:
    try:
        directory = shared_directory(coordinator)
        is_pacemaker = property_set(coordinator) is not None
    except ValueError as error:
        raise BrokerConfigError(f"{config}: ha.coordinator: {error}") from None
    if is_pacemaker:
        reason = "with pacemaker it is Pacemaker that starts and promotes brokers; there is nothing to run here"
        raise BrokerConfigError(f"{config}: ha.coordinator: {reason}; docs/pacemaker.md, or set it to file:DIRECTORY")
    if directory is None:
        advice = "set it to file:DIRECTORY, a directory that all agents share; on one machine any directory will do"
        raise BrokerConfigError(f"{config}: ha.coordinator: without one agents have no lock to agree by; {advice}")
    return directory
