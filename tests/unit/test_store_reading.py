"""A store that is read while the broker is told to stop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from qpid_ha_broker.server.stores import loading
from qpid_ha_broker.server.stores.loading import LoadingAbandoned, StoreReading


def test_an_event_loop_ends_without_waiting_for_a_store_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ABANDON_S", 0.0)
    began, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    reading = StoreReading()

    def read() -> None:
        began.set()
        goes_on.wait()
        try:
            reading.show(1, 2)
        except LoadingAbandoned:
            ended.set()
            raise

    async def story() -> None:
        task = asyncio.create_task(reading.run(read))
        await asyncio.to_thread(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert not ended.is_set()
    goes_on.set()
    assert ended.wait(10.0)  # and the thread sees that nobody wants it
