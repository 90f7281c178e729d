"""Looking at messages without taking them."""

from __future__ import annotations

from collections.abc import Callable

import proton
from proton.reactor import Copy, Filter

from blocking_client import BlockingClient, Management, bodies

Connect = Callable[..., BlockingClient]


def test_a_browser_takes_nothing(client: BlockingClient, connect: Connect, address: str) -> None:
    client.send(address, *"abc")
    assert bodies(client.browse(address)) == bodies(connect().browse(address)) == ["a", "b", "c"]
    assert [(m.delivery_count, m.first_acquirer) for m in client.consume(address)] == [(0, True)] * 3


def test_a_browser_sees_what_comes_later(client: BlockingClient, connect: Connect, address: str) -> None:
    client.send(address, "early")
    browser = client.receiver(address, 10, Copy())
    assert bodies(client.fetch(browser, 1)) == ["early"]
    connect().send(address, "late")
    assert bodies(client.fetch(browser, 1)) == ["late"]


def test_browsers_do_not_count_as_users_of_an_exclusive_queue(
    client: BlockingClient, connect: Connect, management: Management, address: str
) -> None:
    management.create_queue(address, {"qpid.exclusive": True})
    client.send(address, "a")
    owner = client.receiver(address, 0)
    assert bodies(connect().browse(address)) == ["a"]
    assert bodies(client.drain(owner)) == ["a"]


def test_a_browser_comes_back_to_where_it_was(
    client: BlockingClient, connect: Connect, management: Management, address: str
) -> None:
    client.send(address, *"ab")
    second = management.queue(address)
    client.send(address, *"cd")
    facts = management.queue(address)
    assert facts is not None
    assert second is not None
    assert facts["log_position"] >= facts["newest_message"] > second["newest_message"] > facts["id"]

    def after(message_id: int) -> list[object]:
        place = proton.Described(proton.symbol("qpid-ha.org:after:ulong"), proton.ulong(message_id))
        return bodies(connect().browse(address, Filter({proton.symbol("qpid.after"): place})))

    assert after(second["newest_message"]) == ["c", "d"]
    holder = connect()
    holder.fetch(holder.receiver(address, 3), 3, None)
    assert after(0) == ["a", "b", "c", "d"]
    assert after(facts["newest_message"]) == []
