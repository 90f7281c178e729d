"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from limits import LIMIT_S

Arguments = ParamSpec("Arguments")


def in_event_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """The test, run in an event loop of its own; one that waits for what never comes fails."""

    @wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(3 * LIMIT_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run
