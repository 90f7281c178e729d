"""Values that Proton has decoded."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from qpid_ha_broker.amqp.wire.values import listed

UNDESCRIBED: Any = proton.UNDESCRIBED


@pytest.mark.parametrize(
    ("sent", "elements"),
    [
        (None, []),
        (proton.symbol("one"), ["one"]),
        (proton.Array(UNDESCRIBED, proton.Data.SYMBOL, proton.symbol("a"), proton.symbol("b")), ["a", "b"]),
        ([proton.symbol("a")], ["a"]),
    ],
)
def test_a_field_of_several_values_may_come_as_none_as_one_or_as_an_array(sent: object, elements: list[object]) -> None:
    assert listed(sent) == elements
