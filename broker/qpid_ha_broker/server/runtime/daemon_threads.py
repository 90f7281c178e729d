"""Threads for calls that may hang: an event loop waits for their results, and the end of the process for none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar

Result = TypeVar("Result")


class DaemonThreads(Executor):
    """Each call has a thread of its own. For `run_in_executor` of a loop, which may go by a virtual clock instead.

    Not a pool of `concurrent.futures`: at its end a program waits for what runs in those, and a file server may never
    answer.
    """

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """What `fn` will have returned or raised."""
        outcome: Future[Result] = Future()
        outcome.set_running_or_notify_cancel()

        def work() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whoever waits for it hears of it
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        threading.Thread(target=work, name=getattr(fn, "__name__", "call"), daemon=True).start()
        return outcome


DAEMON_THREADS: Final = DaemonThreads()
"""They have nothing in common, so there is one for all."""
