"""Lines in the log about one resource set of several."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from qpid_ha_broker.model.logs.log import DEFAULT_SET


class SetLog(logging.LoggerAdapter[logging.Logger]):
    """A logger of which each line begins with the name of a set; those of `default`, which may be alone, do not."""

    def __init__(self, logger: logging.Logger, set_name: str) -> None:
        super().__init__(logger)
        self._prefix = "" if set_name == DEFAULT_SET else f"set {set_name}: ".replace("%", "%%")

    def process(self, msg: str, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        """See `logging.LoggerAdapter`."""
        return self._prefix + msg, kwargs
