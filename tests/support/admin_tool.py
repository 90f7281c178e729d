"""`qpid-ha` in the process of the test: to start Python takes longer than most of its commands."""

from __future__ import annotations

import os
import time
from unittest.mock import patch

from click.testing import CliRunner, Result

from qpid_ha_agent.cli.admin import admin


def qpid_ha(*words: object, answer: str = "", **environment: str) -> Result:
    """Run it with nothing of ours in its environment but what is given; `answer`: its standard input. A bug raises."""
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("QPID_HA_") and name not in ("XDG_RUNTIME_DIR", "TZ")
    }
    with patch.dict(os.environ, {**others, "COLUMNS": "80", **environment}, clear=True):
        time.tzset()
        result = CliRunner().invoke(admin, [*map(str, words)], input=answer, catch_exceptions=False)
    time.tzset()
    return result
