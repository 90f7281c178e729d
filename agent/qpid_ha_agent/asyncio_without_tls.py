"""asyncio, as it is where Python was built without TLS: `ssl` and what it loads take 4.3 MiB of an agent's 29.

An agent has asyncio talk through pipes and the control socket alone. Who does use TLS (a client of a coordinator)
imports `ssl` by itself, and has it. To be imported before all that imports asyncio; behind that it changes nothing.
"""

from __future__ import annotations

import sys
from typing import Any, cast

_HIDDEN = "ssl"

if _HIDDEN in sys.modules:
    import asyncio
else:
    cast("dict[str, Any]", sys.modules)[_HIDDEN] = None  # an import of it raises ImportError
    try:
        import asyncio
    finally:
        del sys.modules[_HIDDEN]

__all__ = ["asyncio"]
