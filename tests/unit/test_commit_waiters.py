"""Commands that wait until what they wrote is committed: each is told once, and a set that is lost concerns its own."""

from __future__ import annotations

import asyncio

import pytest

from event_loops import in_event_loop
from model_support import TextReader
from qpid_ha_broker.model.commands.administration import Done
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.control.control import ControlError


def written() -> Resources:
    """A set whose log has something that nobody has acknowledged."""
    resources = Resources(TextReader())
    resources.replicated.log.add_witness("backup")
    Configuration(resources).declare_queue("q", {})
    return resources


@in_event_loop
async def test_a_set_that_loses_its_primary_refuses_those_that_wait_in_it_and_no_others() -> None:
    lost, kept = written(), written()
    waiters = CommitWaiters(lambda: None)
    waits = [
        asyncio.create_task(waiters.wait_done(Done(name, each.written)))
        for name, each in (("lost", lost), ("kept", kept))
    ]
    await asyncio.sleep(0)

    waiters.refuse(lost)

    with pytest.raises(ControlError, match="stopped being primary"):
        await waits[0]
    kept.replicated.log.acknowledge("backup", kept.replicated.log.last_lsn)
    waiters.turn_ended()
    assert await waits[1] == "kept"
