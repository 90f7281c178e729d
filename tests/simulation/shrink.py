"""Finding out which of a failing plan's faults matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from simulation.brokers.plan import BrokersPlan
from simulation.core.plan import Plan

P = TypeVar("P", Plan, BrokersPlan)


def shrink(plan: P, fails: Callable[[P], bool], attempts: int = 200) -> P:
    """A plan with as few faults as can be found that `fails` as well; tried by leaving out halves, then single ones."""
    faults = plan.faults
    length = max(len(faults) // 2, 1)
    while faults and attempts > 0:
        for start in range(0, len(faults), length):
            fewer = faults[:start] + faults[start + length :]
            attempts -= 1
            if fails(replace(plan, faults=fewer)):
                faults = fewer
                break
        else:
            if length == 1:
                break
            length = max(length // 2, 1)
        length = min(length, max(len(faults), 1))
    return replace(plan, faults=faults)
