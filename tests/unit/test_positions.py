"""How far a broker is, published ahead of the notification that asks for it: what is said once, and what again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from qpid_ha_agent.ocf.memory import MemoryFile
from qpid_ha_agent.pacemaker import positions as module
from qpid_ha_agent.pacemaker.attributes import ClusterAttributes
from qpid_ha_agent.pacemaker.positions import Positions
from qpid_ha_agent.sight import Life, Sight

LEVEL = {"name": "n1", "generation": 3, "epoch": 7, "lsn": 100, "members": ["n1", "n2"]}
READY = LEVEL | {"state": "ready", "primary": "n2"}
LOST = READY | {"state": "connecting", "primary": None}
AT_100 = "3:7:100:connecting:in-sync"
A_CHANCE_S = 0.2
"""For what must not happen."""


def seen(**status: object) -> Sight:
    return Sight(Life.ANSWERS, "the broker answered", status)


class Told(ClusterAttributes):
    """What is published of this node, and each word of it."""

    def __init__(self) -> None:
        super().__init__("broker", "n1")
        self.words: list[str] = []

    def publish(self, name: str, value: str) -> None:
        self.words.append(value)

    def take_back(self, name: str) -> None:
        self.words.append("")


class World:
    def __init__(self, directory: Path) -> None:
        self.told = Told()
        self.memory = MemoryFile("broker", directory)
        self.positions = Positions(lambda: self.told, self.memory)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_broker_that_has_lost_its_primary_is_published_before_pacemaker_asks(world: World) -> None:
    world.positions.expect(seen(**LOST), was_primary=False)
    assert world.told.words == [f"{AT_100} "]
    world.positions.tell(seen(**LOST))
    assert len(world.told.words) == 1, "the notification has nothing to add"


@pytest.mark.parametrize(
    "status", [READY, READY | {"state": "primary", "primary": "n1"}, LOST | {"primary": "n2"}, {"state": "loading"}]
)
def test_nothing_is_published_while_there_is_no_promotion_to_come(world: World, status: dict[str, object]) -> None:
    world.positions.expect(seen(**status), was_primary=False)
    assert world.told.words == []


def test_a_notification_publishes_what_has_changed_since(world: World) -> None:
    """What it applied late, or what it lost: the candidate compares with what is so."""
    world.positions.expect(seen(**LOST), was_primary=False)
    world.positions.tell(seen(**LOST | {"lsn": 102}))
    world.positions.tell(seen(**LOST | {"lsn": 102, "members": ["n2"]}))
    assert world.told.words[1:] == ["3:7:102:connecting:in-sync ", "3:7:102:connecting:behind "]


def test_what_was_published_a_while_ago_is_published_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pacemaker forgets it with a node that leaves."""
    world.positions.tell(seen(**LOST))
    monkeypatch.setattr(module, "HOLDS_S", 0.0)
    world.positions.tell(seen(**LOST))
    assert world.told.words == [f"{AT_100} "] * 2


def test_a_demoted_primary_is_expected_to_hand_over_where_it_ended(world: World) -> None:
    """The demotion notes it a moment later, in the same words."""
    world.memory.note(may_lead=True)
    world.positions.expect(seen(**LOST), was_primary=True)
    world.memory.note(may_lead=False, handed_over="3:100")
    world.positions.tell(seen(**LOST))
    assert world.told.words == [f"{AT_100} 3:100"]


def test_a_primary_that_was_deposed_hands_nothing_over(world: World) -> None:
    """What was expected of it is put right: nobody makes way for it."""
    world.memory.note(may_lead=True)
    world.positions.expect(seen(**LOST), was_primary=True)
    world.positions.tell(seen(**LOST))
    assert world.told.words[-1] == f"{AT_100} "


def test_what_was_taken_back_is_published_again_when_it_is_so_again(world: World) -> None:
    world.positions.tell(seen(**LOST))
    for _ in range(2):
        world.positions.take_back()
    world.positions.tell(seen(**LOST))
    assert world.told.words == [f"{AT_100} ", "", f"{AT_100} "]


def test_what_nobody_took_back_yet_is_taken_back(world: World) -> None:
    """By an agent that remembers nothing: an earlier release may have published it."""
    world.positions.take_back()
    assert world.told.words == [""]


def test_the_watch_does_not_replace_what_a_notification_is_about_to_read_back(world: World) -> None:
    """Its own words would never come: it waited for two seconds, in the middle of the failover."""
    watch = Positions(lambda: world.told, world.memory)
    publish, has_begun = world.told.publish, threading.Event()

    def publish_and_read_back(name: str, value: str) -> None:
        has_begun.set()
        publish(name, value)

    second = threading.Thread(target=watch.expect, args=(seen(**LOST), False))

    def publish_while_the_watch_has_news(name: str, value: str) -> None:
        world.told.publish = publish_and_read_back  # type: ignore[method-assign]
        publish(name, value)
        second.start()
        has_begun.wait(A_CHANCE_S)
        assert world.told.words == [value], "what is read back"

    world.told.publish = publish_while_the_watch_has_news  # type: ignore[method-assign]
    world.positions.tell(seen(**READY))
    second.join()
    assert world.told.words == ["3:7:100:ready:in-sync ", f"{AT_100} "]
    assert world.memory.read().position == f"{AT_100} ", "what is published, for the next that has something to tell"
