"""Where far links go, decided without sockets: the table of `far_pool.FarPool`, and pauses between rounds of a way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.server.proxies.far_pool import PAUSE_S, Assigned, FarPool, Way

PAUSE_MOST_S = 0.15


class Connection:
    def __init__(self, address: str) -> None:
        self.address = address
        self.room = 2


class World:
    """Links by name, and the way to each one's node."""

    def __init__(self) -> None:
        self.pool: FarPool[str, Connection, Way[Connection]] = FarPool(Connection)
        self.ways = {name: Way[Connection]((f"{name}1", f"{name}2"), PAUSE_MOST_S) for name in "ab"}
        self.belongs: dict[str, str] = {}
        self.now_s = 100.0

    def link(self, name: str, way: str = "") -> str:
        self.pool.links[name] = None
        self.belongs[name] = way
        return name

    def assign(self, links: Iterable[str]) -> Assigned[str, Connection]:
        assigned = self.pool.assign(links, lambda link: self.ways.get(self.belongs[link]), self.now_s)
        self.pool.check_invariants()
        return assigned

    def tried(self) -> list[str]:
        """The addresses of one more link, whose connections are lost at once: all that there are now."""
        addresses = []
        link = self.link("tries", "a")
        while opened := self.assign([link]).opened:
            addresses.append(opened[0].address)
            self.pool.links[link] = None
            self.pool.drop(opened[0])
        return addresses


def test_links_share_a_connection_as_far_as_it_has_room() -> None:
    world = World()
    links = [world.link(name, "a") for name in "123"]
    opened = world.assign(links).opened
    assert [connection.address for connection in opened] == ["a1", "a2"]
    assert [world.pool.links[link] for link in links] == [opened[0], opened[0], opened[1]]


def test_a_link_that_belongs_nowhere_stays_where_it_is() -> None:
    world = World()
    link = world.link("1")
    assert world.assign([link]) == ([], [], [])
    world.belongs[link] = "a"
    ((_, at),) = world.assign([link]).placed
    world.belongs[link] = ""
    assert world.assign([link]) == ([], [], [])
    assert world.pool.links[link] is at


def test_a_link_whose_node_is_elsewhere_now_leaves_first_and_is_placed_when_it_was_told() -> None:
    world = World()
    link = world.link("1", "a")
    ((_, before),) = world.assign([link]).placed
    world.belongs[link] = "b"
    assert world.assign([link]) == ([(link, before)], [], [])
    ((_, after),) = world.assign([link]).placed
    assert after.address == "b1"


def test_what_is_forgotten_is_not_placed() -> None:
    world = World()
    link = world.link("1", "a")
    del world.pool.links[link]
    assert world.assign([link]) == ([], [], [])


def test_all_brokers_are_tried_at_once_and_again_after_pauses_that_grow() -> None:
    world = World()
    pauses = []
    for _ in range(4):
        assert world.tried() == ["a1", "a2"]
        begun_s = world.now_s
        while not (tried := world.assign([world.link("next", "a")]).opened):
            world.now_s += PAUSE_S / 2
        pauses.append(round((world.now_s - begun_s) / PAUSE_S))
        world.pool.links.clear()
        world.pool.drop(tried[0])
        world.ways["a"]._next = 0
    assert pauses == [1, 2, 3, 3]


def test_after_a_connection_that_was_open_the_next_one_is_had_at_once() -> None:
    world = World()
    world.tried()
    assert world.tried() == []
    world.ways["a"].was_open()
    assert world.tried() == ["a1", "a2"]


STEPS = st.tuples(st.sampled_from(["assign", "move", "lose", "forget", "wait"]), st.integers(0, 4))


@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_a_link_is_over_a_connection_that_there_is_and_that_has_room(steps: list[Any]) -> None:
    world = World()
    for what, number in steps:
        link, connections = str(number), list(world.pool.connections)
        if what == "assign":
            world.assign([world.link(link, "ab"[number % 2]) if link not in world.pool.links else link])
        elif what == "move" and link in world.pool.links:
            world.belongs[link] = {"a": "b", "b": "", "": "a"}[world.belongs[link]]
        elif what == "lose" and connections:
            lost = connections[number % len(connections)]
            for told in world.pool.links_of(lost):
                world.pool.links[told] = None
            world.pool.drop(lost)
        elif what == "forget":
            world.pool.links.pop(link, None)
        world.now_s += PAUSE_S
        world.pool.check_invariants()
        for connection in world.pool.connections:
            connection.room = 2 - len(world.pool.links_of(connection))
            assert connection.room >= 0
