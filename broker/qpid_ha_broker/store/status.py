"""STATUS: the one small file that says what a store is, before anybody reads the journal.

It is replaced as a whole (`Disk.replace`), so it is always one that somebody meant. People may read it; who edits it is
found out by its checksum, because a wrong promise or generation could cost messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from .errors import NewerFormat, StatusError, StoreError
from .files import Disk
from .layout import SEGMENTS

STATUS_FORMAT: Final = 3
"""Written by this release. It reads format 1, too, which lacks `store`, `revision` and `journal_synced`."""
STATUS_FILE: Final = "STATUS"


@dataclass(frozen=True, slots=True)
class Status:
    """What a broker knows of itself when it starts. `clean`: UUID of the shutdown; "": it did not end in order."""

    cluster: str
    broker: str
    set: str
    history: tuple[tuple[int, str, int], ...] = ()
    """Generation, primary and first LSN of each, oldest first."""
    role: str = ""
    """The last state, in the words of `ha.states.State`."""
    epoch: int = 0
    members: tuple[str, ...] = ()
    clean: str = ""
    journal_end: tuple[int, int] | None = None
    """When clean: number of the last segment, and how many bytes of it count."""
    last_lsn: int = 0
    """When clean: the end of the replicated log."""
    local_lsn: int = 0
    """When clean: the end of the broker's own log."""
    promised: int = 0
    """The highest generation that was promised to somebody, and to whom."""
    promised_to: str = ""
    chosen: tuple[int, int, str] | None = None
    """After a crash of all, this store was found to be the one to begin with: generation and LSN of its end, and by
    whom. It is permission to be promoted, for as long as the store still ends there."""
    store: str = ""
    """UUID of the store, from when it was made on; all its files bear it. Empty in format 1."""
    revision: int = 0
    """How many times it was written: a file made later tells that it was that many at least."""
    journal_synced: tuple[int, int] | None = None
    """How far the journal was on disk when this was written: a segment, and bytes of it. A recovery must find that
    much. What follows a copy of the primary's state is counted once the copy is whole."""
    claims: tuple[int, ...] = ()
    """The generations that the broker wanted for itself, with a coordinator to record them; empty before format 3."""

    @property
    def generation(self) -> int:
        """The newest generation that the history tells of; 0: none."""
        return self.history[-1][0] if self.history else 0

    @property
    def known_claims(self) -> tuple[int, ...]:
        """The generations that the broker wanted for itself; of an older format the newest one alone."""
        is_own = self.promised > 0 and self.promised_to == self.broker
        return self.claims or ((self.promised,) if is_own else ())

    def encode(self) -> bytes:
        """As JSON for people and programs; in the oldest format that has room for all of it."""
        return _encoded(self, STATUS_FORMAT if self.claims else 2)

    @classmethod
    def decode(cls, data: bytes) -> Status:
        """The inverse. Raises NewerFormat, or StatusError for whatever `encode` did not write just so."""
        version, fields = _fields_of(data)
        try:
            status = cls(**{name: _READERS[name](value) for name, value in fields.items()})
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StatusError(f"expected the fields of format {version}: {error!r}") from None
        if _encoded(status, version) != data:
            raise StatusError("its text is not the one that was written")
        return status


def _encoded(status: Status, version: int) -> bytes:
    fields: dict[str, Any] = {"format": version} | {name: getattr(status, name) for name in _READERS}
    if version == 1:
        for name in _SINCE_2:
            del fields[name]
    if version < 3:
        for name in _SINCE_3:
            del fields[name]
    return json.dumps({**fields, "crc32": _checksum(fields)}, indent=2, ensure_ascii=False).encode() + b"\n"


def _fields_of(data: bytes) -> tuple[int, dict[str, Any]]:
    """Format and fields. The checksum is made in the same way in all formats: damage never passes for a newer one."""
    try:
        fields = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StatusError(f"expected JSON: {error}") from None
    if not isinstance(fields, dict) or "format" not in fields or "crc32" not in fields:
        raise StatusError("expected a JSON object with format and crc32")
    sealed = fields.pop("crc32")
    try:
        computed = _checksum(fields)
    except ValueError as error:
        raise StatusError(f"expected JSON of text and numbers: {error}") from None
    if sealed != computed:
        raise StatusError(f"expected CRC-32 {sealed!r}, found {computed}")
    version = fields.pop("format")
    if type(version) is int and version > STATUS_FORMAT:
        raise NewerFormat(version, STATUS_FORMAT)
    if type(version) is not int or version < 1:
        raise StatusError(f"expected format 1 to {STATUS_FORMAT}, found {version!r}")
    return version, fields


def _checksum(fields: dict[str, Any]) -> int:
    return crc32(json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8"))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected text, found {value!r:.80}")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise TypeError(f"expected a number of 64 bits, found {value!r:.80}")
    return value


def _generation(value: Any) -> tuple[int, str, int]:
    generation, primary, first_lsn = value
    return _number(generation), _text(primary), _number(first_lsn)


def _end(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    number, length = value
    return _number(number), _number(length)


def _choice(value: Any) -> tuple[int, int, str] | None:
    if value is None:
        return None
    generation, lsn, reason = value
    return _number(generation), _number(lsn), _text(reason)


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "cluster": _text,
    "broker": _text,
    "set": _text,
    "history": lambda value: tuple(_generation(entry) for entry in value),
    "role": _text,
    "epoch": _number,
    "members": lambda value: tuple(_text(member) for member in value),
    "clean": _text,
    "journal_end": _end,
    "last_lsn": _number,
    "local_lsn": _number,
    "promised": _number,
    "promised_to": _text,
    "chosen": _choice,
    "store": _text,
    "revision": _number,
    "journal_synced": _end,
    "claims": lambda value: tuple(_number(generation) for generation in value),
}
_SINCE_2: Final = ("store", "revision", "journal_synced")
_SINCE_3: Final = ("claims",)


def read_status(disk: Disk) -> Status | None:
    """What STATUS says; None: there is none. Raises StatusError, NewerFormat, OSError."""
    if not disk.exists(STATUS_FILE):
        return None
    with closing(disk.open(STATUS_FILE)) as file:
        return Status.decode(file.read(0, file.size))


def holds_store_of(disk: Disk, set_name: str) -> bool:
    """Whether the disk has the store of that resource set, whole or not. A copy that an operator put beside it under
    another name is of another set. Raises OSError."""
    try:
        status = read_status(disk)
    except StoreError:
        return True
    return disk.exists(SEGMENTS) if status is None else status.set == set_name
