"""qpidd with a planted bug: the controller raises whatever it hears of, as long as there is a file `bug` beside the
configuration. Nothing in the product knows of this.
"""

from __future__ import annotations

import sys
from pathlib import Path

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.controller import Controller
from qpid_ha_broker.server.main import main

BUG = "bug"
"""The file's name."""

_handle = Controller.handle
_file = Path(sys.argv[-1]).parent / BUG


def _raise_sometimes(core: Controller, happened: ms.ControllerInput, now_s: float) -> list[ms.ControllerEffect]:
    if _file.exists():
        raise ZeroDivisionError(type(happened).__name__)
    return _handle(core, happened, now_s)


if __name__ == "__main__":
    Controller.handle = _raise_sometimes  # type: ignore[assignment, method-assign]
    main()
