"""Passwords that clients say: computed one at a time, beside the loop."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import cast

from event_loops import in_event_loop
from limits import LIMIT_S
from qpid_ha_broker.access.scram import UserLogin, Verifier
from qpid_ha_broker.amqp.wire.sasl_server import PasswordAsked
from qpid_ha_broker.server.runtime.password_checks import PasswordChecks

OLGA = UserLogin.of("olga", "geheim", bytes(16), 4096).verifiers[0]


class SlowVerifier:
    """Computes until `may_go_on`, and counts how many do at once."""

    def __init__(self) -> None:
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        self.running = self.most = 0

    def knows(self, password: str) -> bool:
        self.running += 1
        self.most = max(self.most, self.running)
        self.has_begun.set()
        self.may_go_on.wait(LIMIT_S)
        self.running -= 1
        return password == "geheim"

    @property
    def asked(self) -> PasswordAsked:
        return PasswordAsked(cast(Verifier, self), "geheim")


@in_event_loop
async def test_a_password_is_right_or_wrong() -> None:
    checks, told = PasswordChecks(), asyncio.Queue[bool]()
    for password in ("geheim", "wrong"):
        checks.start(PasswordAsked(OLGA, password), lambda: True, told.put_nowait)
    assert [await told.get(), await told.get()] == [True, False]


@in_event_loop
async def test_one_is_computed_at_a_time_and_the_loop_goes_on_meanwhile() -> None:
    checks, told, slow = PasswordChecks(), asyncio.Queue[bool](), SlowVerifier()
    for _ in range(5):
        checks.start(slow.asked, lambda: True, told.put_nowait)
    assert await asyncio.to_thread(slow.has_begun.wait, LIMIT_S)
    slow.may_go_on.set()
    assert [await told.get() for _ in range(5)] == [True] * 5
    assert slow.most == 1


@in_event_loop
async def test_who_has_gone_costs_nothing_any_more_and_is_told_nothing() -> None:
    checks, slow, done = PasswordChecks(), SlowVerifier(), asyncio.Event()
    told: list[str] = []
    there = {"first", "last"}
    for name in ("first", "second"):
        checks.start(slow.asked, partial(there.__contains__, name), lambda _, name=name: told.append(name))  # type: ignore[misc]
    checks.start(PasswordAsked(OLGA, "geheim"), partial(there.__contains__, "last"), lambda _: done.set())
    assert await asyncio.to_thread(slow.has_begun.wait, LIMIT_S)
    there.remove("first")
    slow.may_go_on.set()
    await done.wait()
    assert (told, slow.most) == ([], 1)
