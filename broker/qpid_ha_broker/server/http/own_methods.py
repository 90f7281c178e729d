"""What the page's own answers are made of: the control methods of this broker, asked as an operator would ask them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from qpid_ha_broker.server.control.control import METHOD_NOT_FOUND, ControlError
from qpid_ha_broker.server.runtime.slices import in_slices

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker


async def ask_own(broker: Broker, method: str, **params: object) -> Any:
    """What it answers; a long list is made between the turns of the loop, in slices. Raises ControlError."""
    carry_out = broker.control.methods.get(method)
    if carry_out is None:
        raise ControlError(METHOD_NOT_FOUND, f"there is no method {method} here")
    result = carry_out(params)
    answer = await result if isawaitable(result) else result
    return await in_slices(_rows(answer)) if isinstance(answer, Iterator) else answer


def _rows(answer: Iterator[object]) -> Generator[None, None, list[object]]:
    rows = []
    for row in answer:
        if isinstance(row, dict):
            row = {name: list(value) if isinstance(value, Iterator) else value for name, value in row.items()}
        rows.append(row)
        yield
    return rows
