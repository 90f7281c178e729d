"""Named tuples as bytes, by a table of their fields: the one form of records' bodies and of the frames of brokers.

A table names the fields in the order of the bytes and gives each its `FieldType`; the payload, where there is one,
follows as it is. What is added to a kind later needs another kind: a body ends where its last field does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from operator import itemgetter
from typing import Any, Final

from .fields import REFUSALS, UNREADABLE, FieldType
from .layout import Layout

Pieces = tuple[bytes, bytes]
"""The fields, and the payload, which is empty where there is none: so its bytes are copied once."""
_NO_PAYLOAD: Final = b""


def expect_end(body: memoryview, at: int) -> None:
    """Raise ValueError unless the body ends at `at`: a byte that nobody reads is a byte nobody understood."""
    if len(body) != at:
        raise ValueError(f"expected {at} bytes, found {len(body)}")


class Form:
    """A table of fields, made into a writer and a reader of `made`; `payload` names the field that is one, if any."""

    def __init__(self, made: type[Any], fields: Mapping[str, FieldType], payload: str = "") -> None:
        names = (*fields, payload) if payload else (*fields,)
        own: tuple[str, ...] = made._fields
        if sorted(names) != sorted(own):
            raise TypeError(f"{made.__name__}: expected the fields {', '.join(own)}, found {', '.join(names)}")
        self.made: Final = made
        self.fields: Final = fields
        self.payload: Final = payload
        is_plain = names == own and all(field.form and not field.convert for field in fields.values())
        make = self._plain if is_plain else self._general
        self.write, self.read = make()

    def refusal(self, value: Any) -> str:
        """Which field of a value that could not be written is to blame, and why."""
        for name, given in value._asdict().items():
            if name == self.payload and not isinstance(given, bytes):
                return f"{name}: expected bytes, found {type(given).__name__}"
            try:
                if name != self.payload:
                    self.fields[name].write(given)
            except REFUSALS as error:
                return f"{name}: {error}"
        return "fields: none is to blame alone"

    def _plain(self) -> tuple[Callable[[Any], Pieces], Callable[..., Any]]:
        """Numbers alone, in the order of the named tuple."""
        made = self.made
        numbers = Layout({name: field.form for name, field in self.fields.items()})
        pack, unpack = numbers.pack, numbers.unpack

        def write(value: Any) -> Pieces:
            return pack(*value), _NO_PAYLOAD

        def write_with_payload(value: Any) -> Pieces:
            return pack(*value[:-1]), value[-1]

        def read(body: memoryview, payload: memoryview | None = None) -> Any:
            return made(*unpack(body))

        def read_with_payload(body: memoryview, payload: memoryview) -> Any:
            return made(*unpack(body), bytes(payload))

        return (write_with_payload, read_with_payload) if self.payload else (write, read)

    def _general(self) -> tuple[Callable[[Any], Pieces], Callable[..., Any]]:
        """Numbers first, as many as there are, then the rest one by one."""
        made, fields, payload = self.made, self.fields, self.payload
        own: tuple[str, ...] = made._fields
        first = dict(takewhile(lambda item: item[1].form, fields.items()))
        numbers = Layout({name: field.form for name, field in first.items()})
        pack, unpack_from, size = numbers.pack, numbers.unpack_from, numbers.size
        converted = [(place, name, field.convert) for place, (name, field) in enumerate(first.items()) if field.convert]
        rest = [(name, field) for name, field in fields.items() if name not in first]
        writers = [(own.index(name), field.write) for name, field in rest]
        readers = [(name, field.read) for name, field in rest]
        first_of = _chosen([own.index(name) for name in first])
        names = [*fields, payload] if payload else [*fields]
        in_order = _chosen([names.index(name) for name in own])
        payload_place = own.index(payload) if payload else 0

        def write(value: Any) -> Pieces:
            body = pack(*first_of(value))
            for place, write_field in writers:
                body += write_field(value[place])
            return body, value[payload_place] if payload else _NO_PAYLOAD

        def read(body: memoryview, data: memoryview | None = None) -> Any:
            values, at = [*unpack_from(body)], size
            name = ""  # of the field that is read: ruff does not see that the refusal has it
            try:
                for place, name, convert in converted:  # noqa: B007
                    values[place] = convert(values[place])
                for name, read_field in readers:  # noqa: B007
                    value, at = read_field(body, at)
                    values.append(value)
            except UNREADABLE as error:
                raise ValueError(f"{name}: {error}") from error
            expect_end(body, at)
            if data is not None and payload:
                values.append(bytes(data))
            return made(*in_order(values))

        return write, read


def _chosen(places: list[int]) -> Callable[[Any], tuple[Any, ...]]:
    """What a sequence has at these places, as `operator.itemgetter` gives it for two or more."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple([values[place] for place in places])
