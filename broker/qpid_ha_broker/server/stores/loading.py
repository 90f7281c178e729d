"""While a broker loads its store: a thread that loads, and what the broker answers meanwhile.

A store of some gigabytes takes a minute to load, and on a slow disk longer. Whoever started the broker has others to
care for, and an operator wants to know how far it is: so the broker listens before it loads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.control.administration import Params, check_parameters
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError, Method
from qpid_ha_broker.server.runtime.daemon_threads import DAEMON_THREADS
from qpid_ha_config.scalars import format_progress

ABANDON_S: Final = 0.5
"""How long the thread has to notice that its work is not wanted any more. One that waits for a disk does not."""
Result = TypeVar("Result")


class LoadingAbandoned(Exception):
    """The broker was told to stop; what was loaded so far is of no use."""


class StoreReading:
    """One store that is read on a thread, which nobody has to wait for once the broker ends.

    Not by `asyncio.to_thread`: at its end a program waits for what runs there, and a store of some gigabytes takes a
    minute.
    """

    def __init__(self) -> None:
        self.done_bytes = 0
        self.total_bytes = 0
        """Of all files that count; 0 until they have been looked through."""
        self._is_abandoned = False

    # --- on the thread

    def show(self, done_bytes: int, total_bytes: int) -> None:
        """So far it is. Raises LoadingAbandoned."""
        if self._is_abandoned:
            raise LoadingAbandoned
        self.done_bytes, self.total_bytes = done_bytes, total_bytes

    # --- on the loop

    async def run(self, load: Callable[[], Result]) -> Result:
        """What `load` returns or raises, which calls `show` now and then. When this is cancelled, `load` is left alone:
        its thread ends with the process, wherever it is; a store is safe from that as from a power cut."""
        loaded = asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, load)
        try:
            await asyncio.wait({loaded})
        except asyncio.CancelledError:
            self._is_abandoned = True
            done, _ = await asyncio.wait({loaded}, timeout=ABANDON_S)
            for each in done:
                each.exception()  # whatever it is, nobody asks for it any more
            raise
        return loaded.result()

    @property
    def progress(self) -> str:
        """For people."""
        return format_progress(self.done_bytes, self.total_bytes)


class StoreLoading(StoreReading):
    """The promise: until `run` has returned, nobody but its thread touches what is loaded, and the loop is not blocked.

    `listening`: where the broker listens by now. `end`: called for the control method `shutdown`.
    """

    def __init__(self, name: str, listening: Callable[[], list[str]], end: Callable[[], None]) -> None:
        super().__init__()
        self._name = name
        self._listening = listening
        self._end = end
        self._began_s = time.monotonic()

    def refusal(self) -> AmqpError:
        """What clients and other brokers are told."""
        return AmqpError(CONNECTION_FORCED, f"{self._text()}: try another broker, or this one again later")

    def methods(self, ping: Method) -> dict[str, Method]:
        """Those of the control socket."""
        return {"ping": ping, "status": self._status, "query": self._query, "shutdown": self._shutdown}

    def refuse(self, method: str) -> ControlError:
        """Why `method` has to wait."""
        text = f"{self._text()}, and {method} has to wait for that: ask again once `qpid-ha status` tells another state"
        return ControlError(REFUSED, text, {"reason": State.LOADING.value, **self._facts()})

    def _text(self) -> str:
        return f"{self._name} is loading its store ({self.progress})"

    def _facts(self) -> dict[str, object]:
        """The beginning of what `status` and `query` tell."""
        return {
            "name": self._name,
            "state": State.LOADING.value,
            "loaded_bytes": self.done_bytes,
            "store_bytes": self.total_bytes,
        }

    def _status(self, params: Params) -> object:
        """Of the cluster nothing is known yet, so `all` is this broker alone."""
        check_parameters("status", params)
        status = {
            **self._facts(), "phase": None, "generation": 0, "lsn": 0, "epoch": 0, "members": [], "restored": None,
            "chosen": False, "primary": None, "primary_address": None,
        }  # fmt: skip
        return [{**status, "in_sync": False, "in_sync_known": "unknown"}] if params.get("all") else status

    def _query(self, params: Params) -> object:
        check_parameters("query", params)
        listening, uptime_s = ", ".join(self._listening()), round(time.monotonic() - self._began_s, 1)
        facts = {**self._facts(), "listening": listening, "uptime_s": uptime_s}
        return [facts] if params.get("all") else facts

    def _shutdown(self, params: Params) -> object:
        check_parameters("shutdown", params)
        if params.get("cluster"):
            text = f"{self._text()}: ask the primary to shut the cluster down, or leave --cluster out"
            raise ControlError(INVALID_PARAMS, text)
        self._end()
        return {"name": self._name, "text": f"{self._name} ends"}
