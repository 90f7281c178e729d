"""Who browses at a backup whose copy is made equal to its primary's, which puts messages behind what was shown."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from qpid_ha_broker.amqp.wire.conditions import RESOURCE_LOCKED
from qpid_ha_broker.ha.browser import Browsers, objects_frame
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.ha.frames import CaughtUp, Chunk
from qpid_ha_broker.model.sets.resource_set import ResourceSet

PIECE = 2
"""Messages of a chunk."""


class Backup:
    """A broker that follows another one; its copy was level up to `common` messages, and is made equal to it."""

    def __init__(self, common: int, missed: int) -> None:
        self.primary, self.broker = PairedBroker(), PairedBroker()
        self._publisher = self.primary.connect()
        self._publish(common)
        self.broker.container.default.resources.replication.read_only = "another one leads"
        self.broker.container.default.read_only = True
        self.meet()
        while not self.step():
            pass
        self._publish(missed)
        self.broker.settle_down()

    def _publish(self, count: int) -> None:
        sender = self._publisher.sender("q")
        for number in range(count):
            self._publisher.send(sender, proton.Message(body=number))
        self.primary.settle_down()

    @property
    def _theirs(self) -> ResourceSet:
        return self.primary.container.default.resources.replicated

    def meet(self) -> None:
        """Up to the primary's objects."""
        mine = self.broker.container.default.resources.replicated
        lsn = self._theirs.log.last_lsn
        self._catch_up = CatchUp(mine, mine.log.last_lsn)
        self._catch_up.discard_after_common()
        held: dict[int, tuple[tuple[int, int], ...]] = {}
        for frame in self._catch_up.holdings():
            held[frame.queue] = held.get(frame.queue, ()) + frame.ranges
        self._catch_up.objects(objects_frame(self._theirs.state, 1, lsn))
        self._browsers = Browsers(
            self._theirs.state, 1, lsn, held, max_messages=PIECE, max_bytes=1 << 20, window=1000
        )  # fmt: skip
        self._turn()

    def step(self) -> bool:
        """The next piece; whether that was the end."""
        frame = self._browsers.next(1 << 30)
        if isinstance(frame, Chunk):
            self._catch_up.chunk(frame)
        elif isinstance(frame, CaughtUp):
            self._catch_up.finish()
        self._turn()
        return isinstance(frame, CaughtUp)

    def abandon(self) -> None:
        """The primary dies."""
        self._catch_up.abandon()
        self._turn()

    def _turn(self) -> None:
        self.broker.container.default.touch()
        self.broker.settle_down()


def browser(client: PairedClient, credit: int = 100) -> Any:
    """A link that only looks at the queue."""
    link = client.session.receiver(f"browser-{credit}")
    link.source.address = "q"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    return client.attach(link, credit)


def test_who_has_passed_the_places_to_which_messages_come_is_told_to_browse_again() -> None:
    backup = Backup(common=3, missed=7)
    client = backup.broker.connect()
    link = browser(client)
    assert len(client.received(link)) == 3
    backup.meet()
    while not backup.step():
        pass
    assert link.remote_condition.name == RESOURCE_LOCKED
    assert "browse again" in link.remote_condition.description
    assert len(client.received(browser(client, 101))) == 10


def test_who_comes_in_the_middle_is_not_told_that_this_is_all() -> None:
    backup = Backup(common=3, missed=7)
    client = backup.broker.connect()
    backup.meet()
    link = browser(client, 0)
    link.drain(100)
    backup.broker.settle_down()
    assert link.credit == 100, "still drained"
    backup.step()
    assert link.remote_condition.name == RESOURCE_LOCKED


@pytest.mark.parametrize("ends", ["finished", "abandoned"])
def test_a_drain_of_an_empty_queue_is_answered_when_that_is_known_to_be_level(ends: str) -> None:
    backup = Backup(common=0, missed=0)
    client = backup.broker.connect()
    backup.meet()
    link = browser(client, 0)
    link.drain(100)
    backup.broker.settle_down()
    assert link.credit == 100
    if ends == "abandoned":
        backup.abandon()
    while ends == "finished" and not backup.step():
        pass
    assert (link.credit, link.remote_condition) == (0, None)


def test_what_was_set_aside_comes_back_behind_a_browser_when_the_primary_dies() -> None:
    backup = Backup(common=3, missed=7)
    backup.meet()
    client = backup.broker.connect()
    link = browser(client)
    assert client.received(link) == []
    backup.abandon()
    assert link.remote_condition.name == RESOURCE_LOCKED
    assert len(client.received(browser(client, 101))) == 3
