"""What load balancers ask: yes or no, from a broker's status, with the reason."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from qpid_ha_broker.ha.states import LEADING, State

HELD: Final = (*LEADING, State.READY)
"""The states of a broker that holds all that the primary has confirmed."""


class BrokerHealth(NamedTuple):
    """What is known of a broker for its set `default`. Times are in seconds."""

    name: str
    state: State
    serves: bool = False
    """Clients are served here: as primary, or standalone."""
    relays: bool = False
    """Clients of a primary elsewhere are relayed to it."""
    members: tuple[str, ...] = ()
    """The in-sync set, as far as this broker knows."""
    lag_s: float | None = None
    """Since the primary was heard last; 0 where this broker leads, None where it is not level with one."""
    failure: str = ""
    """Why the broker ends; empty: it does not."""
    store_problem: str = ""
    """Why its store takes nothing, as on a full disk; empty: it does, or did a moment ago (`UNWRITABLE_S`)."""


class HealthAnswer(NamedTuple):
    """`reason`: why not; empty for yes."""

    yes: bool
    reason: str = ""


def is_live(health: BrokerHealth) -> HealthAnswer:
    """The process answers. No: it has failed and ends, so it should be started again."""
    return _answer(not health.failure, health.failure)


def is_ready(health: BrokerHealth) -> HealthAnswer:
    """Clients that connect here are served: by this broker, or by the primary through it."""
    if health.failure or health.state is State.STOPPING:
        return HealthAnswer(False, health.failure or "it is stopping")
    if health.serves and health.store_problem:
        return _unwritable(health)
    relays = health.relays and health.state in (State.READY, State.OBSERVER)
    return _answer(health.serves or relays, f"it is {health.state} and serves no clients")


def is_primary(health: BrokerHealth) -> HealthAnswer:
    """The broker leads `default`, and serves clients; so does a standalone one. Not while it could confirm nothing."""
    if health.serves and health.store_problem and not health.failure:
        return _unwritable(health)
    return _answer(health.serves and health.state in LEADING and not health.failure, f"it is {health.state}")


def is_replica(health: BrokerHealth, max_lag_s: float = math.inf) -> HealthAnswer:
    """The broker is a backup that is level with a primary, which it has heard within `max_lag_s`."""
    if health.failure or health.state is not State.READY or health.lag_s is None:
        return HealthAnswer(False, health.failure or f"it is {health.state}")
    return _answer(health.lag_s <= max_lag_s, f"the primary was heard {health.lag_s:.3f} s ago")


def is_in_sync(health: BrokerHealth) -> HealthAnswer:
    """The broker holds all that is confirmed, and is in sync: it could be promoted and nothing would be lost."""
    if health.failure or health.state not in HELD:
        return HealthAnswer(False, health.failure or f"it is {health.state}")
    is_member = health.state is State.STANDALONE or health.name in health.members
    return _answer(is_member, "it is level, but not in the in-sync set")


def _unwritable(health: BrokerHealth) -> HealthAnswer:
    return HealthAnswer(False, f"its store cannot be written, so nothing is confirmed: {health.store_problem}")


def _answer(yes: bool, otherwise: str) -> HealthAnswer:
    return HealthAnswer(yes, "" if yes else otherwise)
