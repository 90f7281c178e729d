"""When links that have lost their far end are attached again: what happens calls for it, and no tick is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from event_loops import in_event_loop
from qpid_ha_broker.server.proxies.far_links import TICK_S
from qpid_ha_broker.server.proxies.proxying import AGAIN_LINKS, Proxying
from qpid_ha_broker.server.runtime.logs import NoticeLog

PATIENCE_S = 10.0


class Addresses:
    """Nobody is known to lead; counts who asked."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    def of_primary(self, set_name: str) -> None:
        self.asked.put_nowait(set_name)

    async def next_asked(self) -> str:
        async with asyncio.timeout(PATIENCE_S):
            return await self.asked.get()


def without_ticks(addresses: Addresses) -> Proxying:
    """What is driven by what happens alone: ticks begin with the first client."""
    host: Any = SimpleNamespace(
        current=lambda: SimpleNamespace(name="proxy", remote=SimpleNamespace(proxy_idle_s=1.0)),
        schedule_turn=lambda: None,
        notices=NoticeLog(),
    )
    whatever: Any = addresses
    return Proxying(host, whatever, whatever)


class Lost:
    """A link, as far as this is concerned."""

    def __init__(self, set_name: str) -> None:
        self.set_name = set_name


@in_event_loop
async def test_a_lost_link_is_placed_before_the_next_tick_and_again_when_it_is_refused() -> None:
    addresses = Addresses()
    proxy, link = without_ticks(addresses), Lost(set_name="orders")
    pauses = 0
    while proxy._again_s < TICK_S:
        proxy.attach_again(link)  # type: ignore[arg-type]
        assert await addresses.next_asked() == "orders"
        pauses += 1
    assert pauses > 1
    proxy.attach_again(link)  # type: ignore[arg-type]
    assert not proxy._lost  # from here on, ticks do


@in_event_loop
async def test_a_primary_that_becomes_known_is_gone_to_at_once_and_short_pauses_begin_anew() -> None:
    addresses = Addresses()
    proxy, link = without_ticks(addresses), Lost(set_name="orders")
    proxy._again_s = TICK_S
    proxy.attach_again(link)  # type: ignore[arg-type]
    proxy.look_soon()
    proxy.look_soon()
    assert await addresses.next_asked() == "orders"
    assert addresses.asked.empty()
    proxy.attach_again(link)  # type: ignore[arg-type]
    assert await addresses.next_asked() == "orders"


@in_event_loop
async def test_a_bug_at_a_look_is_no_end_of_looks_and_heartbeats() -> None:
    class Broken(Addresses):
        def of_primary(self, set_name: str) -> None:
            super().of_primary(set_name)
            raise RuntimeError("planned")

    addresses, notices = Broken(), NoticeLog()
    host: Any = SimpleNamespace(
        current=lambda: SimpleNamespace(name="proxy"), schedule_turn=lambda: None, notices=notices
    )
    whatever: Any = addresses
    proxy = Proxying(host, whatever, whatever)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # of the first look, which is no tick
    proxy.place(Lost(set_name="orders"))  # type: ignore[arg-type]
    for _ in range(3):
        await addresses.next_asked()
    assert notices.bugs_total >= 1
    proxy.stop()


@in_event_loop
async def test_of_very_many_lost_links_most_wait_for_the_tick() -> None:
    addresses = Addresses()
    proxy = without_ticks(addresses)
    for number in range(AGAIN_LINKS + 50):
        proxy.attach_again(Lost(set_name=f"set{number}"))  # type: ignore[arg-type]
    found = [await addresses.next_asked() for _ in range(AGAIN_LINKS)]
    assert found == [f"set{number}" for number in range(AGAIN_LINKS)]
    assert addresses.asked.empty()


@in_event_loop
async def test_a_link_whose_clients_attach_is_looked_at_again_is_attached_nowhere_meanwhile() -> None:
    """It would have two far ends: that one, and the one that the second look leads to."""

    class Refused(Lost):
        def __init__(self) -> None:
            super().__init__("orders")
            self.looked_at = asyncio.Event()

        def look_again(self) -> None:
            self.looked_at.set()

    addresses = Addresses()
    proxy, link = without_ticks(addresses), Refused()
    proxy.try_again(link)  # type: ignore[arg-type]
    proxy._look()
    assert addresses.asked.empty()
    assert proxy.count == 1
    async with asyncio.timeout(PATIENCE_S):
        await link.looked_at.wait()
    forgotten = Refused()
    proxy.try_again(forgotten)  # type: ignore[arg-type]
    proxy.forget(forgotten)  # type: ignore[arg-type]
    assert proxy.count == 0


def beating(proxy: Proxying, *at_heartbeat: Callable[[Any], None]) -> list[str]:
    """Connections that nobody uses any more, and what happens at the heartbeat of each: the addresses that have one."""
    addresses = []

    class Unused:
        upstream, used_s = None, -PATIENCE_S

        def __init__(self, address: str) -> None:
            self.address = address

        def heartbeat(self, now_ms: int) -> None:
            addresses.append(self.address)
            at_heartbeat[int(self.address)](self)

        def close(self, reason: str) -> None:
            """It is idle."""

    proxy.pool._make = Unused  # type: ignore[assignment]
    for number in range(len(at_heartbeat)):
        proxy.pool._open(proxy._way_to(str(number)), now_s=1.0)  # type: ignore[arg-type]
    proxy._tick()
    return addresses


@in_event_loop
async def test_a_connection_that_is_given_up_at_its_heartbeat_keeps_no_other_one_from_its_own() -> None:
    """It was silent for too long."""
    proxy = without_ticks(Addresses())
    assert beating(proxy, lambda it: proxy.ended(it, "nothing was heard of it"), lambda it: None) == ["0", "1"]
    assert not proxy.pool.connections


@in_event_loop
async def test_a_bug_at_a_heartbeat_keeps_no_other_connection_from_its_own() -> None:
    def fail(it: object) -> None:
        raise RuntimeError("planned")

    proxy = without_ticks(Addresses())
    assert beating(proxy, fail, lambda it: None) == ["0", "1"]
    assert [it.address for it in proxy.pool.connections] == ["0"]
