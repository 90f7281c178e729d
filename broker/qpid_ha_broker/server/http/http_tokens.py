"""Who asks over HTTP: the tokens of `admin.tokens`, read anew when the file changes, and those of the cluster, which
count above those of the same name; and what a wrong one costs.

A right token is never kept waiting. A wrong one is answered late, and later each time for the same address; what waits
for that is bounded, and beyond it the answer is 429 at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from qpid_ha_config.errors import ConfigError
from qpid_ha_config.tokens import TokenEntry, find_entry, read_tokens

log = logging.getLogger("http")

FIRST_DELAY_S: Final = 0.25
LONGEST_DELAY_S: Final = 4.0
FORGIVEN_S: Final = 60.0
"""So long after its last wrong token an address begins anew."""
DELAYED_MAX: Final = 32
ADDRESSES_MAX: Final = 1000
TOKEN_LENGTH_MAX: Final = 512
LOOK_S: Final = 1.0
"""Between two looks at whether the file has changed."""


class TokenFile:
    """The promise: who is let in is in the file as it was a second ago, or as it was when it could be used last."""

    def __init__(
        self,
        path: Path | None,
        clock: Callable[[], float],
        of_cluster: Callable[[], Mapping[str, TokenEntry]] = dict,
    ) -> None:
        """Raises ConfigError when the file cannot be used. None: nobody is in it. `of_cluster`: by name."""
        self._of_cluster = of_cluster
        self._path = path
        self._clock = clock
        self._entries: tuple[TokenEntry, ...] = ()
        self._version: object = None
        """Of the file that was read last, whether it could be used or not."""
        self._look_s = clock() + LOOK_S
        if path is not None:
            self._version = _version(path)
            self._entries = read_tokens(path)

    def find(self, token: str) -> TokenEntry | None:
        """Whose it is."""
        self._read_again()
        if len(token) > TOKEN_LENGTH_MAX:
            return None
        above = self._of_cluster()
        return find_entry([*above.values(), *(entry for entry in self._entries if entry.name not in above)], token)

    def _read_again(self) -> None:
        if self._path is None or self._clock() < self._look_s:
            return
        self._look_s = self._clock() + LOOK_S
        version = _version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self._entries = read_tokens(self._path)
        except ConfigError as error:
            log.error("the tokens were not read again, and those in use stay: %s", error)
        else:
            log.info("the tokens were read again: %d", len(self._entries))


class WrongTokens:
    """The promise: at most DELAYED_MAX requests with wrong tokens are kept waiting, and a right one never is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._recent: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """By address: how many in a row, and when the last came. The one that has been quiet longest is first."""
        self.delayed = 0
        """Requests that wait now."""
        self.total = 0

    async def punish(self, address: str) -> bool:
        """Wait as long as that address deserves. False: too many wait already."""
        self.total += 1
        delay_s = self.note(address)
        if self.delayed >= DELAYED_MAX:
            return False
        self.delayed += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self.delayed -= 1
        return True

    def note(self, address: str) -> float:
        """One more came from there: how many seconds it is to wait."""
        now_s = self._clock()
        times, last_s = self._recent.pop(address, (0, now_s))
        times = 1 if now_s - last_s > FORGIVEN_S else min(times + 1, 30)
        self._recent[address] = times, now_s
        if len(self._recent) > ADDRESSES_MAX:
            self._recent.popitem(last=False)
        return float(min(FIRST_DELAY_S * 2 ** (times - 1), LONGEST_DELAY_S))


def _version(path: Path) -> object:
    """What is another one when the file is; None: there is none, or it cannot be seen."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
