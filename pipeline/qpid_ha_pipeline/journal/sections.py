"""Where the sections of messages lie, and the fields of a section that is a list, for many messages at once.

Nothing is decoded but lengths: from the first byte of an encoded value follows where it ends (AMQP 1.0 section 1.2).
What is unusual, the broker's own reader of sections looks at, one message at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final, NamedTuple

import numpy as np

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import FOOTER, HEADER, section_at
from qpid_ha_broker.amqp.wire.values import value_end

from .records import Bytes, Ints, Mask

DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
_START: Final = 0x5300
"""The two bytes before a section's code, as a little-endian number."""
_ROUNDS: Final = 16
"""Of looking at a section of each message: who has more sections is looked at alone."""
NO_CODE: Final = 0
"""Of an encoded value: there is none. (It is that of a described type, which is no value by itself.)"""

LENGTH_BYTES: Final = np.zeros(256, np.int64)
"""By first byte: how many follow it that say how long the value is."""
_FIXED_BYTES: Final = np.zeros(256, np.int64)
for _code in range(0x40, 0x100):
    LENGTH_BYTES[_code] = {0xA: 1, 0xC: 1, 0xE: 1, 0xB: 4, 0xD: 4, 0xF: 4}.get(_code >> 4, 0)
    _FIXED_BYTES[_code] = {0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}.get(_code >> 4, 0)


class Values(NamedTuple):
    """Encoded values: their first bytes, and where what follows (behind its length) begins and ends."""

    codes: Bytes
    starts: Ints
    ends: Ints


class Section(NamedTuple):
    """For each message: where the section begins and ends, its value begins (of several: the first's), and how many
    there are; all are 0 where there is none."""

    begins: Ints
    ends: Ints
    values: Ints
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
        self.sections = {code: Section(*(zeros.copy() for _ in range(4))) for code in range(HEADER, FOOTER + 1)}
        self._locate()

    def _locate(self) -> None:
        rows = np.flatnonzero(self._starts < self._ends)
        at = self._starts.copy()
        for _ in range(_ROUNDS):
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
                self._note(int(code), rows[chosen], places[chosen], places[chosen] + 3, values.ends[chosen])
            at[rows[usual]] = values.ends[usual]
            for row in rows[~usual]:
                self._walk(int(row), int(at[row]))
                at[row] = self._ends[row]
            rows = rows[at[rows] < self._ends[rows]]
        for row in rows:
            self._walk(int(row), int(at[row]))

    def _walk(self, row: int, at: int) -> None:
        """All sections of one message from `at` on, up to what is none."""
        payload, offset = self.data[at : int(self._ends[row])], 0
        sections: dict[int, tuple[int, int, int, int]] = {}
        while offset < len(payload):
            try:
                code, end = section_at(payload, offset)
                value = value_end(payload, offset + 1)
            except DecodeError:
                break
            begin, first_value, _, number = sections.get(code, (at + offset, at + value, 0, 0))
            sections[code] = begin, first_value, at + end, number + 1
            offset = end
        for code, (begin, first_value, end, number) in sections.items():
            section = self.sections[code]
            if not section.counts[row]:
                section.begins[row], section.values[row] = begin, first_value
            section.ends[row] = end
            section.counts[row] += number

    def _note(self, code: int, rows: Ints, begins: Ints, values: Ints, ends: Ints) -> None:
        section = self.sections[code]
        first = section.counts[rows] == 0
        section.begins[rows[first]] = begins[first]
        section.values[rows[first]] = values[first]
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
        width = LENGTH_BYTES[codes]
        starts = places + 1 + width
        lengths = self._length(places + 1, width) + _FIXED_BYTES[codes]
        return Values(np.where(codes >= 0x40, codes, NO_CODE).astype(np.uint8), starts, starts + lengths)

    def fields(self, code: int) -> Iterator[Values]:
        """The fields of a section that is a list, one after the other; NO_CODE where a message has no more."""
        section = self.sections[code]
        present = section.present
        body = self.values(section.values)
        is_list = present & ((body.codes == 0xC0) | (body.codes == 0xD0))
        wide = body.codes == 0xD0
        numbers = self._length(np.where(is_list, body.starts, 0), np.where(wide, 4, 1))
        at = np.where(is_list, body.starts + np.where(wide, 4, 1), 0)
        for place in count():
            values = self.values(at)
            here = is_list & (numbers > place) & (values.ends <= section.ends)
            yield Values(np.where(here, values.codes, NO_CODE).astype(np.uint8), values.starts, values.ends)
            at = np.where(here, values.ends, at)

    def number(self, values: Values) -> Ints:
        """Of unsigned integers and timestamps: their value; 0 for all else."""
        numbers = np.zeros(len(values.codes), np.int64)
        lengths = values.ends - values.starts
        for width in (1, 4, 8):
            rows = np.flatnonzero(np.isin(values.codes, NUMBERS) & (lengths == width))
            for byte in range(width):
                numbers[rows] = numbers[rows] << 8 | self._at(values.starts[rows] + byte)
        return numbers


NUMBERS: Final = np.array([0x43, 0x44, 0x50, 0x52, 0x53, 0x70, 0x80, 0x83], np.uint8)
"""uint and ulong 0, ubyte, small uint, small ulong, uint, ulong, timestamp."""
