"""How soon another password may be tried over HTTP, by who has said wrong ones. Pure.

A password can be guessed, as a token cannot: so one that comes too soon is not even looked at, right or wrong. Who
knows it is hindered where somebody guesses from the same address, and for LONGEST_WAIT_S after that; nowhere else.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

FREE_OF_USER: Final = 3
"""So many wrong passwords in a row for one user, from one address, cost nothing: slips."""
FREE_OF_ADDRESS: Final = 12
"""The same from one address for whichever users."""
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 30.0
FORGIVEN_S: Final = 900.0
"""So long after the last wrong password all is forgotten."""
ENTRIES_MAX: Final = 4000
_ALL: Final = ""
"""In place of a user: whichever, of an address."""


class PasswordGuesses:
    """The promise: after a few wrong passwords the next for that user from that address, and the next from there for
    any user, is looked at no sooner than after a wait that doubles; and no more than ENTRIES_MAX are remembered."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """By address and user: how many in a row, and when the last came. The one that is quiet longest is first."""

    def begin(self, user: str, address: str) -> float:
        """Somebody says a password: after how many seconds he may. 0: now, and it counts as wrong until `forgive`."""
        place = _place(address)
        keys = (place, user), (place, _ALL)
        now_s = self._clock()
        wait_s = max(self._wait_s(keys[0], FREE_OF_USER, now_s), self._wait_s(keys[1], FREE_OF_ADDRESS, now_s))
        if wait_s > 0:
            return wait_s
        for key in keys:
            times, last_s = self._wrong.pop(key, (0, now_s))
            self._wrong[key] = (1 if now_s - last_s > FORGIVEN_S else times + 1), now_s
        while len(self._wrong) > ENTRIES_MAX:
            self._wrong.popitem(last=False)
        return 0.0

    def forgive(self, user: str, address: str) -> None:
        """It was right, or could not be judged. What came from there for other users stays."""
        place = _place(address)
        self._wrong.pop((place, user), None)
        times, last_s = self._wrong.pop((place, _ALL), (0, 0.0))
        if times > 1:
            self._wrong[place, _ALL] = times - 1, last_s

    def _wait_s(self, key: tuple[str, str], free: int, now_s: float) -> float:
        times, last_s = self._wrong.get(key, (0, now_s))
        if times < free or now_s - last_s > FORGIVEN_S:
            return 0.0
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(times - free, 10), LONGEST_WAIT_S)
        return max(0.0, last_s + wait_s - now_s)


def _place(address: str) -> str:
    """Of IPv6 the network, of which one machine may have all addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address
