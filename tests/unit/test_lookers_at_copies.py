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
from qpid_ha_broker.model.commands.administration import taking_over
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


def test_who_has_passed_places_to_which_messages_come_is_told_to_browse_again() -> None:
    backup = Backup(common=3, missed=7)
    client = backup.broker.connect()
    link = browser(client)
    assert len(client.received(link)) == 3
    backup.meet()
    assert link.remote_condition.name == RESOURCE_LOCKED
    assert "browse again" in link.remote_condition.description
    while not backup.step():
        pass
    assert len(client.received(browser(client, 101))) == 10


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_copy_is_shown_to_nobody_before_it_is_level(pieces: int) -> None:
    """The newest messages come first: who noted how far it has read, would never go back for the others."""
    backup = Backup(common=3, missed=7)
    client = backup.broker.connect()
    backup.meet()
    for _ in range(pieces):
        backup.step()
    link = browser(client)
    assert (link.remote_condition.name, client.received(link)) == (RESOURCE_LOCKED, [])
    while not backup.step():
        pass
    assert len(client.received(browser(client, 101))) == 10


def test_what_was_set_aside_is_shown_again_when_the_primary_dies() -> None:
    backup = Backup(common=3, missed=7)
    client = backup.broker.connect()
    backup.meet()
    backup.abandon()
    assert len(client.received(browser(client))) == 3


def test_figures_of_a_copy_say_that_they_may_not_be_all_before_it_is_level() -> None:
    backup = Backup(common=3, missed=7)
    resources = backup.broker.container.default.resources
    assert taking_over(resources) == {}
    backup.meet()
    assert taking_over(resources) == {"taking_over": True}
    while not backup.step():
        pass
    assert taking_over(resources) == {}
