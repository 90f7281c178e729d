"""A file of messages: the bytes of each as its publisher sent them, with what tells that none is missing or changed.

Lines of JSON, each of which begins with the checksum of what follows it in the line:

    {"crc32": "0f2a6c31", "format": "qpid-ha-messages", "version": 1, "export": UUID, "queue": "orders", ...}
    {"crc32": "a6c310f2", "number": 1, "id": "17", "enqueued_ms": 1700000000000, "amqp": "AFNw..."}
    {"crc32": "6c310f2a", "end": 1}

Messages are numbered from 1 on; the last line has how many there are. A line is as long as its message, so a reader
needs memory for one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple
from zlib import crc32

FORMAT: Final = "qpid-ha-messages"
VERSION: Final = 1
LINE_BYTES_MAX: Final = 400 * 1024 * 1024
"""Of a message of 256 MiB and more: what is longer is no line."""
_PREFIX: Final = b'{"crc32": "%08x", '
_PREFIX_LENGTH: Final = len(_PREFIX % 0)


class FileDamaged(Exception):
    """What is read is no whole file of messages; the text says where, and what is wrong."""


class SavedMessage(NamedTuple):
    """One message."""

    number: int
    payload: bytes


def line_of(fields: dict[str, object]) -> bytes:
    """One line of the file."""
    rest = json.dumps(fields).encode("ascii")[1:] + b"\n"
    return _PREFIX % crc32(rest) + rest


def header_line(export: str, queue: str, **others: object) -> bytes:
    """The first line. `export`: a UUID, by which an import is known again."""
    return line_of({"format": FORMAT, "version": VERSION, "export": export, "queue": queue, **others})


def message_line(number: int, message_id: str, enqueued_ms: int | None, payload: bytes) -> bytes:
    """A message."""
    amqp = base64.b64encode(payload).decode("ascii")
    return line_of({"number": number, "id": message_id, "enqueued_ms": enqueued_ms, "amqp": amqp})


def end_line(count: int) -> bytes:
    """The last line."""
    return line_of({"end": count})


class MessageFile:
    """Reads a file. Raises FileDamaged with the line at the first thing that is wrong."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._line = 0
        header = self._next()
        if header.get("format") != FORMAT or not isinstance(header.get("export"), str):
            raise self._damaged("this is no export of `qpid-ha queue export`")
        if header.get("version") != VERSION:
            raise self._damaged(
                f"version {header.get('version')!s:.20} of the format is not known: this reads {VERSION}"
            )
        self.export, self.queue = str(header["export"]), str(header.get("queue"))

    def messages(self) -> Iterator[SavedMessage]:
        """All of them; when the iterator has come to its end, the file was whole."""
        number = 0
        while "end" not in (fields := self._next()):
            number += 1
            text = fields.get("amqp")
            if fields.get("number") != number or not isinstance(text, str):
                raise self._damaged(f"message {number} belongs here")
            try:
                payload = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise self._damaged(f"the bytes of message {number} are no base64") from None
            yield SavedMessage(number, payload)
        if fields["end"] != number:
            raise self._damaged(f"there should be {fields['end']!s:.20} messages, and there are {number}")
        if self._file.readline(1):
            raise self._damaged("something comes after the end")

    def _next(self) -> dict[str, object]:
        line = self._file.readline(LINE_BYTES_MAX)
        self._line += 1
        if not line.endswith(b"\n"):
            raise self._damaged(
                "the file ends here, and is not whole" if len(line) < LINE_BYTES_MAX else "it is too long"
            )
        rest = line[_PREFIX_LENGTH:]
        if line[:_PREFIX_LENGTH] != _PREFIX % crc32(rest):
            raise self._damaged("its checksum is not that of what it says" if self._line > 1 else "no checksum is here")
        try:
            fields = json.loads(b"{" + rest)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise self._damaged("it is no JSON object")
        return fields

    def _damaged(self, problem: str) -> FileDamaged:
        return FileDamaged(f"line {self._line}: {problem}")
