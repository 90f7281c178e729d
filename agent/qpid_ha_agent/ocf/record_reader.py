"""What the coordinator's record says, as the agent asks for it: who confirmed what, and who is primary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from qpid_ha_agent.service import read_configured
from qpid_ha_agent.sight import Sight

if TYPE_CHECKING:
    from qpid_ha_broker.ha.cluster_record import ClusterRecord


class RecordReader:
    """Of the coordinator that a broker's configuration names. `inform` hears why it cannot be read."""

    def __init__(self, config: Path, inform: Callable[[str], None]) -> None:
        self._config = config
        self._inform = inform

    def is_first_start(self) -> bool:
        """Nobody ever confirmed anything, as far as the cluster's record goes."""
        record = self._read(of_none=True)
        return record is not None and record.generation == 0

    def names(self, sight: Sight) -> bool | None:
        """Whether the record names this broker as primary; None when it cannot be read."""
        record = self.read()
        return None if record is None else record.primary == sight.status.get("name")

    def read(self) -> ClusterRecord | None:
        """None when it cannot be read, or there is no coordinator to keep one."""
        return self._read(of_none=False)

    def _read(self, *, of_none: bool) -> ClusterRecord | None:
        """`of_none`: an empty one where there is no coordinator."""
        from qpid_ha_broker.coordination.coordinator import CoordinatorError
        from qpid_ha_broker.coordination.registry import open_coordinator
        from qpid_ha_config.errors import SettingsError

        try:
            settings = read_configured(self._config, {}).coordinator
            if settings.url.is_none and not of_none:
                return None
            with contextlib.closing(open_coordinator(settings)) as coordinator:
                return coordinator.read()
        except (SettingsError, CoordinatorError) as error:
            self._inform(f"cannot tell what was confirmed, and by whom: {error}")
            return None
