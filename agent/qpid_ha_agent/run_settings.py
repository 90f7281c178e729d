"""What `qpid-ha-agent run` reads from the broker's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qpid_ha_agent.decision import Limits
from qpid_ha_agent.runner import RunSettings
from qpid_ha_agent.service import read_configured
from qpid_ha_agent.vip_keeper import in_words_of_settings
from qpid_ha_agent.virtual_address import read_address
from qpid_ha_config.configuration import WrittenSettings
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.errors import ConfigError


def read_run_settings(config: Path, changes: Sequence[str], qpidd: Sequence[str]) -> RunSettings:
    """Settings from the file and `KEY=VALUE` texts, which beat it; of the worker that they name. Raises ConfigError."""
    flags = dict(change.split("=", 1) for change in changes)
    broker = read_configured(config, flags)
    written = WrittenSettings.of_flags(flags).over(WrittenSettings.read(config)).of_worker()
    problem = _why_no_lock(broker.coordinator.url)
    if problem:
        raise ConfigError(config, "ha.coordinator", problem)
    command = [*qpidd, "--config", str(config), "--control-socket", str(broker.control_socket)]
    for key, value in flags.items():
        of_broker = str(broker.control_socket) if key == "control-socket" else value  # of a worker it is another one
        command += ["--set", f"{key}={of_broker}"]
    activation = written.activation_settings()
    limits = Limits(serves_recordless=activation.coordinator_loss == "continue")
    if activation.virtual_ip is not None:
        try:
            read_address(*activation.virtual_ip)
        except ValueError as error:
            raise ConfigError(config, "ha.virtual-ip", in_words_of_settings(str(error))) from None
    settings = broker.name, tuple(command), broker.control_socket, broker.coordinator, activation
    workers = written.worker_settings()
    own = written.get("listen") if workers.own_listener is None else (workers.own_listener,)  # others answer elsewhere
    listening = tuple(str(address) for address in own)
    return RunSettings(*settings, listening, _hook_environment(written), limits=limits)


def count_agents(config: Path, changes: Sequence[str]) -> int:
    """How many brokers of this machine take an agent each; 0: it is for one that is alone, or is one of those. Raises
    ConfigError."""
    flags = dict(change.split("=", 1) for change in changes)
    workers = WrittenSettings.of_flags(flags).over(WrittenSettings.read(config)).worker_settings()
    return workers.there_are if workers.are_several and not workers.number else 0


def _hook_environment(written: WrittenSettings) -> dict[str, str]:
    """What ha.on-promoted and ha.on-demoted are told beside the change. Raises ConfigError."""
    virtual_ip = written.get("ha.virtual-ip")
    return {
        "QPID_HA_NAME": written.get("name"),
        "QPID_HA_ADDRESS": ",".join(str(address) for address in written.get("listen")),
        "QPID_HA_VIRTUAL_IP": virtual_ip[0].partition("/")[0] if virtual_ip is not None else "",
    }


def _why_no_lock(coordinator: CoordinatorUrl) -> str:
    if coordinator.property_set is not None:
        return (
            "with pacemaker it is Pacemaker that starts and promotes brokers; there is nothing to run here;"
            " docs/pacemaker.md, or set it to zookeeper://..., etcd://... or file:DIRECTORY"
        )
    if coordinator.is_none:
        return (
            "without one agents have no lock to agree by; set it to zookeeper://..., etcd://..., or file:DIRECTORY, a"
            " directory that all agents share; on one machine any directory will do"
        )
    if coordinator.directory is not None and not coordinator.directory.is_dir():
        return f"the shared directory {coordinator.directory} is not there: mount it, or make it"
    return ""
