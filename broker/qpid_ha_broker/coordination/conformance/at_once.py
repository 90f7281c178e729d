"""Calls in threads of their own, begun at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

JOIN_S: Final = 30.0
Result = TypeVar("Result")


class _ThreadedCall(threading.Thread, Generic[Result]):
    def __init__(self, call: Callable[[], Result], start: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._start = start
        self.results: list[Result] = []
        self.error: Exception | None = None

    def run(self) -> None:
        self._start.wait(JOIN_S)
        try:
            self.results.append(self._call())
        except Exception as error:  # noqa: BLE001  # whatever it is, it is raised where the call is waited for
            self.error = error


def at_once(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Their results in that order. The first error is raised; TimeoutError for a call that does not end."""
    start = threading.Barrier(len(calls))
    threads = [_ThreadedCall(call, start) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    for thread in threads:
        if thread.error is not None:
            raise thread.error
        if thread.is_alive():
            raise TimeoutError(f"a call did not end within {JOIN_S:g} s")
    return [result for thread in threads for result in thread.results]
