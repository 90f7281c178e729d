"""Passwords that clients say: computed one at a time, beside the loop."""

from __future__ import annotations

import asyncio
import threading

from limits import LIMIT_S
from qpid_ha_broker.access.scram import UserLogin
from qpid_ha_broker.amqp.wire.sasl_server import PasswordAsked
from qpid_ha_broker.server.runtime.password_checks import PasswordChecks

VERIFIER = UserLogin.of("olga", "geheim", bytes(16), 4096).verifiers[0]


class SlowVerifier:
    """Computes until it may go on, and says that it has begun, and how many do at once. Made in a loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.has_begun = asyncio.Event()
        self.may_go_on = threading.Event()
        self.running = self.most = 0

    def knows(self, password: str) -> bool:
        self.running += 1
        self.most = max(self.most, self.running)
        self._loop.call_soon_threadsafe(self.has_begun.set)
        self.may_go_on.wait(LIMIT_S)
        self.running -= 1
        return password == "geheim"


def test_a_password_is_right_or_wrong() -> None:
    async def run() -> list[bool]:
        checks, told = PasswordChecks(), asyncio.Queue[bool]()
        for password in ("geheim", "wrong"):
            checks.start(PasswordAsked(VERIFIER, password), lambda: True, told.put_nowait)
        return [await told.get(), await told.get()]

    assert asyncio.run(run()) == [True, False]


def test_one_is_computed_at_a_time_and_the_loop_goes_on_meanwhile() -> None:
    async def run() -> int:
        checks, told, slow = PasswordChecks(), asyncio.Queue[bool](), SlowVerifier()
        for _ in range(5):
            checks.start(PasswordAsked(slow, "geheim"), lambda: True, told.put_nowait)  # type: ignore[arg-type]
        await slow.has_begun.wait()
        slow.may_go_on.set()
        assert [await told.get() for _ in range(5)] == [True] * 5
        return slow.most

    assert asyncio.run(asyncio.wait_for(run(), LIMIT_S)) == 1


def test_who_has_gone_costs_nothing_any_more_and_is_told_nothing() -> None:
    async def run() -> list[str]:
        checks, slow, done = PasswordChecks(), SlowVerifier(), asyncio.Event()
        told: list[str] = []
        is_there = {"first": True, "second": False}
        for name in is_there:
            asked = PasswordAsked(slow, "geheim")  # type: ignore[arg-type]
            checks.start(asked, lambda name=name: is_there[name], lambda _, name=name: told.append(name))  # type: ignore[misc]
        checks.start(PasswordAsked(VERIFIER, "geheim"), lambda: True, lambda _: done.set())
        await slow.has_begun.wait()
        is_there["first"] = False
        slow.may_go_on.set()
        await done.wait()
        assert slow.most == 1
        return told

    assert asyncio.run(asyncio.wait_for(run(), LIMIT_S)) == []
