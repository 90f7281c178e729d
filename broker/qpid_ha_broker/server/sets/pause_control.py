"""The control socket's method `pause`: all agents of the cluster leave their brokers alone, as with `qpid-ha pause`."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Final

from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.pause import Pause
from qpid_ha_broker.coordination.pause_change import PauseContended
from qpid_ha_broker.server.control.administration import Params, check_parameters
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError
from qpid_ha_broker.server.runtime.pause_watch import PauseWatch
from qpid_ha_broker.server.sets.membership import Membership
from qpid_ha_config.errors import nearest

log = logging.getLogger("cluster")

LONGEST_S: Final = 366 * 86400
TEXT_LENGTH: Final = 200
NOT_HEEDED: Final = (
    "no agent heeds a pause here: without a coordinator no agent promotes or restarts brokers, and Pacemaker has a "
    "maintenance mode (crm_attribute --name maintenance-mode --update true)"
)


class PauseControl:
    """The coordinator keeps a pause; this broker only writes it there, whatever its own state is."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def pause(self, params: Params) -> object:
        """`show`, `begin` (`for_s`: so long, else until it is ended; `reason`, `by`) or `end`."""
        action = params.get("action", "show")
        if OPERATIONS.find("pause", params) is None:
            known = OPERATIONS.by_method["pause"]
            raise ControlError(INVALID_PARAMS, f"no action {action!r:.80}; {nearest(f'{action!s:.80}', known)}")
        check_parameters("pause", params)
        watch = self._membership.pause
        if action == "show":
            now = None if watch is None else watch.now()
            return {"heeded": watch is not None, "paused": None if now is None else now.as_mapping()}
        if watch is None:
            raise ControlError(REFUSED, NOT_HEEDED, {"reason": "refused"})
        by = _text(params, "by") or "an operator"
        if action == "begin":
            wanted = Pause(by, *_from_until(params), _text(params, "reason"))
            await _replace(watch, wanted)
            log.warning("agents are %s", wanted.text)
            return {"paused": wanted.as_mapping(), "text": f"agents are {wanted.text}"}
        before = await _replace(watch, None)
        log.warning("the pause of agents was ended by %s", by)
        text = "it was not paused" if before is None else f"agents go on; it was {before.text}"
        return {"paused": None, "text": text}


async def _replace(watch: PauseWatch, pause: Pause | None) -> Pause | None:
    try:
        return await asyncio.to_thread(watch.replace, pause)
    except (CoordinatorError, PauseContended) as error:
        raise ControlError(REFUSED, str(error), {"reason": "coordinator"}) from None


def _from_until(params: Params) -> tuple[datetime, datetime | None]:
    """Whole seconds, as the note has them."""
    since = datetime.now(UTC).replace(microsecond=0)
    for_s = params.get("for_s")
    if for_s is None:
        return since, None
    if isinstance(for_s, bool) or not isinstance(for_s, int | float) or not 1 <= for_s <= LONGEST_S:
        raise ControlError(
            INVALID_PARAMS, f"for_s is a number of seconds, from 1 to {LONGEST_S}; left out: without an end"
        )
    return since, since + timedelta(seconds=int(for_s))


def _text(params: Params, name: str) -> str:
    text = params.get(name, "")
    if not isinstance(text, str) or len(text) > TEXT_LENGTH or (text and not text.isprintable()):
        raise ControlError(INVALID_PARAMS, f"{name} is printable text of at most {TEXT_LENGTH} characters")
    return text
