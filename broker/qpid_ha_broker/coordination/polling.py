"""A watch of what says nothing by itself: looked at again and again, by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable


def watch_by_polling(look: Callable[[], object], interval_s: float, changed: Callable[[], None]) -> Callable[[], None]:
    """Call `changed` when `look` returns something else than before, until the returned function is called. The first
    look is over when this returns, so no change after it is missed."""
    ended = threading.Event()
    known = look()

    def poll() -> None:
        nonlocal known
        while not ended.wait(interval_s):
            seen = look()
            if seen != known:
                known = seen
                changed()

    threading.Thread(target=poll, name="record-watch", daemon=True).start()
    return ended.set
