"""Where the sections of messages lie, and the fields of a section that is a list, for many messages at once.

Nothing is decoded but lengths: from the first byte of an encoded value follows where it ends (AMQP 1.0 section 1.2).
What is unusual, the broker's own reader of sections looks at, one message at a time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from qpid_ha_broker.amqp.conditions import DecodeError
from qpid_ha_broker.amqp.sections import FOOTER, HEADER, section_at

from .records import Bytes, Ints, Mask

DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
_START: Final = 0x5300
"""The two bytes before a section's code, as a little-endian number."""
_MOST_SECTIONS: Final = 16
NO_CODE: Final = 0
"""Of an encoded value: there is none. (It is that of a described type, which is no value by itself.)"""

_LENGTH_BYTES: Final = np.zeros(256, np.int64)
_FIXED_BYTES: Final = np.zeros(256, np.int64)
for _code in range(0x40, 0x100):
    _LENGTH_BYTES[_code] = {0xA: 1, 0xC: 1, 0xE: 1, 0xB: 4, 0xD: 4, 0xF: 4}.get(_code >> 4, 0)
    _FIXED_BYTES[_code] = {0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}.get(_code >> 4, 0)


class Values(NamedTuple):
    """Encoded values: their first bytes, and where what follows (behind its length) begins and ends."""

    codes: Bytes
    starts: Ints
    ends: Ints


class Section(NamedTuple):
    """For each message: where the section begins and ends, 0 and 0 where there is none, and how many it has."""

    begins: Ints
    ends: Ints
    counts: Ints

    @property
    def present(self) -> Mask:
        """Which messages have it."""
        return self.counts > 0


class Payloads:
    """Messages that lie in `data`, each from its start to its end."""

    def __init__(self, data: bytes, starts: Ints, ends: Ints) -> None:
        self.data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._starts, self._ends = starts, ends
        self._last = max(len(data) - 1, 0)
        zeros = np.zeros(len(starts), np.int64)
        self.sections = {code: Section(zeros.copy(), zeros.copy(), zeros.copy()) for code in range(HEADER, FOOTER + 1)}
        self._locate()

    def _locate(self) -> None:
        rows = np.flatnonzero(self._starts < self._ends)
        at = self._starts.copy()
        for _ in range(_MOST_SECTIONS):
            if not len(rows):
                return
            places = at[rows]
            start = self._at(places).astype(np.int64) | self._at(places + 1).astype(np.int64) << 8
            codes = self._at(places + 2)
            values = self.values(places + 3)
            usual = (start == _START) & (codes >= HEADER) & (codes <= FOOTER)
            usual &= (values.codes != NO_CODE) & (values.ends <= self._ends[rows])
            for code in np.unique(codes[usual]):
                chosen = usual & (codes == code)
                self._note(int(code), rows[chosen], places[chosen], values.ends[chosen])
            at[rows[usual]] = values.ends[usual]
            for row in rows[~usual]:
                at[row] = self._unusual(int(row), int(at[row]))
            rows = rows[at[rows] < self._ends[rows]]

    def _unusual(self, row: int, at: int) -> int:
        """Past the section at `at`, or past the message where there is none."""
        begin, end = int(self._starts[row]), int(self._ends[row])
        try:
            code, stop = section_at(self.data[begin:end], at - begin)
        except DecodeError:
            return end
        self._note(code, np.array([row]), np.array([at]), np.array([begin + stop]))
        return begin + stop

    def _note(self, code: int, rows: Ints, begins: Ints, ends: Ints) -> None:
        section = self.sections[code]
        first = section.counts[rows] == 0
        section.begins[rows[first]] = begins[first]
        section.ends[rows] = ends
        section.counts[rows] += 1

    def _at(self, places: Ints) -> Bytes:
        return self._bytes[np.minimum(places, self._last)]

    def _length(self, places: Ints, width: Ints) -> Ints:
        """A big-endian number of one or four bytes."""
        wide = np.zeros(len(places), np.int64)
        for byte in range(4):
            wide = wide << 8 | self._at(places + byte)
        return np.where(width == 4, wide, np.where(width == 1, self._at(places), 0))

    def values(self, places: Ints) -> Values:
        """The encoded values that begin at these places."""
        codes = self._at(places)
        width = _LENGTH_BYTES[codes]
        starts = places + 1 + width
        lengths = self._length(places + 1, width) + _FIXED_BYTES[codes]
        return Values(np.where(codes >= 0x40, codes, NO_CODE).astype(np.uint8), starts, starts + lengths)

    def fields(self, code: int, count: int) -> list[Values]:
        """The first fields of a section that is a list; NO_CODE and null (0x40) where there are fewer."""
        section = self.sections[code]
        present = section.present
        body = self.values(np.where(present, section.begins + 3, 0))
        is_list = present & ((body.codes == 0xC0) | (body.codes == 0xD0))
        wide = body.codes == 0xD0
        numbers = self._length(np.where(is_list, body.starts, 0), np.where(wide, 4, 1))
        at = np.where(is_list, body.starts + np.where(wide, 4, 1), 0)
        fields = []
        for place in range(count):
            found = self.values(at)
            here = is_list & (numbers > place) & (found.ends <= section.ends)
            fields.append(Values(np.where(here, found.codes, NO_CODE).astype(np.uint8), found.starts, found.ends))
            at = np.where(here, found.ends, at)
        return fields

    def number(self, values: Values) -> Ints:
        """Of unsigned integers and timestamps: their value; 0 for all else."""
        found = np.zeros(len(values.codes), np.int64)
        lengths = values.ends - values.starts
        for width in (1, 4, 8):
            rows = np.flatnonzero(np.isin(values.codes, _NUMBERS) & (lengths == width))
            for byte in range(width):
                found[rows] = found[rows] << 8 | self._at(values.starts[rows] + byte)
        return found


_NUMBERS: Final = np.array([0x50, 0x52, 0x53, 0x70, 0x80, 0x83], np.uint8)
"""ubyte, small uint, small ulong, uint, ulong, timestamp."""
