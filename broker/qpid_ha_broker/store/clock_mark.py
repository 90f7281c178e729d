"""CLOCK: what a set's message clock said, beside the machine's own clocks, so that the next process can go on.

Nothing depends on it but when messages expire: a store without it, as of an older release, or with one that is damaged,
goes on from the time of day. It is replaced as a whole, and has a checksum.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Final, NamedTuple
from zlib import crc32

from .files import Disk

CLOCK_FILE: Final = "CLOCK"
CLOCK_FORMAT: Final = 1
_MOST: Final = 1 << 63
_MOST_BYTES: Final = 4096


class MachineTime(NamedTuple):
    """What a machine's clocks say at one moment, in milliseconds."""

    wall_ms: int
    """The time of day, since 1970. Somebody may set it."""
    boot_ms: int
    """Since it was booted, with what it slept. Nobody can set it."""
    boot: str
    """Which time it was booted: another text after each. Empty: not known."""


class ClockMark(NamedTuple):
    """`reading_ms` of the message clock, and the other clocks of the machine at that moment."""

    reading_ms: int
    machine: MachineTime

    def reading(self, now: MachineTime) -> int:
        """What the message clock says now, in milliseconds. It never goes back.

        1. The machine was not booted since: it has counted what has passed.
        2. It was, or this is another machine: what has passed by the time of day. Whether somebody has set that
           meanwhile, nobody can tell.
        """
        then = self.machine
        if then.boot and then.boot == now.boot:
            return self.reading_ms + max(now.boot_ms - then.boot_ms, 0)
        return self.reading_ms + max(now.wall_ms - then.wall_ms, 0)

    def is_off_by_ms(self, reading_ms: int, now: MachineTime) -> int:
        """By how much the next process would be wrong that goes by this mark, if it began now, and the clock says
        `reading_ms`: whether or not the machine is booted in between."""
        then = self.machine
        ahead_ms = [reading_ms - now.wall_ms - (self.reading_ms - then.wall_ms)]
        if then.boot == now.boot:
            ahead_ms.append(reading_ms - now.boot_ms - (self.reading_ms - then.boot_ms))
        return max(map(abs, ahead_ms))

    def encode(self) -> bytes:
        """As JSON for people and programs."""
        fields = {"format": CLOCK_FORMAT, "reading_ms": self.reading_ms, **self.machine._asdict()}
        return json.dumps({**fields, "crc32": _checksum(fields)}, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> ClockMark:
        """The inverse. Raises ValueError for whatever `encode` did not write."""
        try:
            fields = json.loads(data.decode("ascii"))
            sealed = fields.pop("crc32")
            if fields.pop("format") != CLOCK_FORMAT:
                raise ValueError(f"expected format {CLOCK_FORMAT}")
            mark = cls(_number(fields.pop("reading_ms")), MachineTime(**fields))
            _number(mark.machine.wall_ms)
            _number(mark.machine.boot_ms)
            if not isinstance(mark.machine.boot, str) or sealed != json.loads(mark.encode())["crc32"]:
                raise ValueError("its checksum is another one")
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"expected the fields of format {CLOCK_FORMAT}: {error!r}") from None
        return mark


def read_clock_mark(disk: Disk) -> ClockMark | None:
    """What the store has; None: nothing. Raises OSError, or ValueError where it is damaged or of a newer release."""
    if not disk.exists(CLOCK_FILE):
        return None
    with closing(disk.open(CLOCK_FILE)) as file:
        return ClockMark.decode(file.read(0, _MOST_BYTES))


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"expected milliseconds, found {value!r:.80}")
    return value


def _checksum(fields: dict[str, object]) -> int:
    return crc32(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
