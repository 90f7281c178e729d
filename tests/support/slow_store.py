"""A store that takes as long to load as a test wants: while a file is there, whoever loads waits.

To be imported by a broker's process before anything else, as by a line `import slow_store` of a `.pth` file.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

HOLD_VARIABLE = "SLOW_STORE_HOLD"
DEFAULT_HOLD = "/run/slow-store"
LOOK_S = 0.01


def slow_down(hold: Path) -> None:
    """From now on a recovery in this process waits while `hold` is there, once it knows how much there is to load. It
    says again and again how far it is, as one does that reads from a slow disk."""
    from qpid_ha_broker.store.recovery import _Recovery

    original = _Recovery.run

    def run(this: Any) -> Any:
        while hold.exists():
            this._progress(0, this._survey.bytes)
            time.sleep(LOOK_S)
        return original(this)

    _Recovery.run = run  # type: ignore[method-assign, assignment]


if "qpidd" in (Path(word).name for word in sys.orig_argv[:2]) or HOLD_VARIABLE in os.environ:
    slow_down(Path(os.environ.get(HOLD_VARIABLE, DEFAULT_HOLD)))
