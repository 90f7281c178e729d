"""What is committed by an acknowledgement is told: there is no turn to be had for it."""

from __future__ import annotations

from qpid_ha_broker.ha import effects as fx
from small_cluster import Node, three


def test_only_what_is_written_wants_a_turn_and_what_is_committed_is_told_once() -> None:
    cluster = three()
    cluster["a"].declare("orders")
    cluster.run()
    wanted: list[type] = []
    carry_out = cluster.carry_out

    def note(node: Node, effect: fx.Effect) -> None:
        if node.name == "a" and isinstance(effect, fx.TurnDue | fx.Committed):
            wanted.append(type(effect))
        carry_out(node, effect)

    cluster.carry_out = note  # type: ignore[method-assign]
    for body in ("one", "two"):
        lsn = cluster["a"].publish("orders", body)
        cluster.run()
        assert cluster["a"].committed == lsn
    assert wanted == [fx.Committed, fx.Committed]
    cluster.kill("b")
    cluster.run()
    assert fx.TurnDue in wanted[2:]  # that it left is written
