"""Where the pause of this machine's cluster is noted, and what is noted there."""

from __future__ import annotations

import os
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from qpid_ha_agent.cli.invocation import NO, USAGE, CliFailure

if TYPE_CHECKING:
    from qpid_ha_broker.coordination.pause import Pause
    from qpid_ha_config.settings import CoordinatorSettings


def written_coordinator(config: Path | None) -> CoordinatorSettings:
    """As the configuration of this machine has it. Raises CliFailure, ConfigError."""
    from qpid_ha_config.configuration import WrittenSettings
    from qpid_ha_config.defaults import find_file

    path = config or find_file(None, os.environ)
    if path is None:
        raise CliFailure(
            "this machine has no configuration of a broker: do it on a machine of the cluster, or give --config", USAGE
        )
    return WrittenSettings.read(path).coordinator_settings()


def find_coordinator(config: Path | None) -> CoordinatorSettings:
    """Of a cluster whose agents heed a pause. Raises CliFailure, ConfigError."""
    from qpid_ha_broker.coordination.pause import is_heeded_with

    settings = written_coordinator(config)
    if is_heeded_with(settings.url):
        return settings
    if settings.url.property_set is not None:
        raise CliFailure(
            "Pacemaker promotes and restarts brokers here, and has a maintenance mode: "
            "crm_attribute --name maintenance-mode --update true (then false); docs/pacemaker.md, Maintenance",
            NO,
        )
    raise CliFailure(
        "ha.coordinator is none: no agent promotes or restarts brokers here, so there is nothing to pause; whatever "
        "else starts brokers (systemd, a script) has to be told itself",
        NO,
    )


def pause_noted_here() -> Pause | None:
    """For whoever finds no broker to ask. None as well where nobody can tell: then that is not what he asked for."""
    from qpid_ha_broker.coordination.coordinator import CoordinatorError
    from qpid_ha_broker.coordination.pause import PAUSE_NOTE, PauseView
    from qpid_ha_broker.coordination.registry import open_coordinator
    from qpid_ha_config.errors import SettingsError

    try:
        with closing(open_coordinator(find_coordinator(None))) as coordinator:
            view, now_s = PauseView(), time.monotonic()
            view.note(coordinator.read_note(PAUSE_NOTE), now_s)
            return view.at(datetime.now(UTC), now_s)
    except (CliFailure, SettingsError, CoordinatorError):
        return None
