"""Named tuples as JSON, by a table of their fields: the form of what brokers seldom say, so that a trace can be read.

A `Check` makes a field's value out of what JSON gives, or raises ValueError without the field's name, which the form
puts before it. Every text, list and number is bounded.

There are two forms. A `JsonForm` is an object with exactly the fields of its table, each checked in both directions, so
that nothing is sent that would not be taken in; a field that is `Later` came with a later release than its frame. A
`listed` named tuple is a list of its fields in their order, as they are annotated: what a later release adds comes
last, fields that are missing have their defaults, and what follows those that are known is ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from .fields import MAX_TEXT_BYTES, Check, write_arguments
from .forms import Pieces

MAX_INTEGER: Final = 2**64 - 1


def parse(data: bytes | memoryview, most: int) -> Any:
    """The value that is written there, in UTF-8 and at most so many bytes. Raises ValueError."""
    if len(data) > most:
        raise ValueError(f"expected at most {most} bytes of JSON, found {len(data)}")
    try:
        return json.loads(str(data, "utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON, found {error!s:.200}") from None


def dump(value: Any) -> bytes:
    """JSON in as few bytes as it takes, in UTF-8. Raises ValueError, TypeError."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no number")


def _shown(value: object) -> str:
    """Never a whole integer: one of thousands of digits cannot be printed."""
    return type(value).__name__ if isinstance(value, int | list | dict) else f"{value!r:.80}"


def in_field(name: str, check: Check, value: Any) -> Any:
    """The value of that field. Raises ValueError that begins with its name."""
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


# --- what a field may hold


def text(most: int, unit: str = "characters") -> Check:
    """At most so many characters, or bytes."""

    def check(value: Any) -> str:
        try:
            if isinstance(value, str):
                encoded = value.encode()
                if len(encoded if unit == "bytes" else value) <= most:
                    return value
        except UnicodeEncodeError:
            raise ValueError("expected text, found half of a character") from None
        raise ValueError(f"expected text of at most {most} {unit}, found {_shown(value)}")

    return check


def integer(most: int = MAX_INTEGER) -> Check:
    """From 0 to `most`."""

    def check(value: Any) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise ValueError(f"expected an integer from 0 to {most}, found {_shown(value)}")
        return value

    return check


def truth(value: Any) -> bool:
    """True or false, and no number."""
    if type(value) is not bool:
        raise ValueError(f"expected true or false, found {_shown(value)}")
    return value


def seconds(most: float) -> Check:
    """A number of seconds from 0 to `most`."""

    def check(value: Any) -> float:
        # Compared as it is: an integer may be too large to be made a double.
        if type(value) not in (int, float) or not 0 <= value <= most or not math.isfinite(value):
            raise ValueError(f"expected seconds from 0 to {most:g}, found {_shown(value)}")
        return float(value)

    return check


def choice(values: type[StrEnum]) -> Check:
    """One of these words."""

    def check(value: Any) -> StrEnum:
        try:
            return values(value)
        except (ValueError, TypeError):
            raise ValueError(f"expected one of {', '.join(values)}; found {_shown(value)}") from None

    return check


def sequence(element: Check, most: int | None = None) -> Check:
    """A list of such values, `most` at most."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list, found {_shown(value)}")
        if most is not None and len(value) > most:
            raise ValueError(f"expected at most {most} lines, found {len(value)}")
        return tuple([element(inner) for inner in value])

    return check


def line(*elements: Check, made: Callable[..., Any] | None = None) -> Check:
    """A list of exactly these values: a tuple, or what `made` makes of them."""

    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(elements):
            raise ValueError(f"expected a list of {len(elements)}, found {_shown(value)}")
        values = [element(inner) for element, inner in zip(elements, value, strict=True)]
        return tuple(values) if made is None else made(*values)

    return check


def mapping(value: Any) -> Mapping[str, Any]:
    """Names and values, of any kind."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected names and values, found {_shown(value)}")
    return value


def arguments(value: Any) -> dict[str, Any]:
    """Of a queue, as the log can hold them."""
    given = mapping(value)
    try:
        write_arguments(given)
    except TypeError as error:
        raise ValueError(f"{error!s:.200}") from None
    return dict(given)


# --- objects, by a table


class Later(NamedTuple):
    """A field that came with a later release than its frame: it is not sent where it has its default, and has that
    where it is not sent. So an older broker is understood, and understands, as long as there is nothing else to say."""

    check: Check


class JsonForm:
    """A table of fields, as an object. `made` gives the default of those that are `Later`."""

    payload: Final = ""

    def __init__(self, made: type[Any], fields: Mapping[str, Check | Later], most: int) -> None:
        defaults: dict[str, Any] = made._field_defaults
        self.made: Final = made
        self._most = most
        self._later = {name: defaults[name] for name, field in fields.items() if isinstance(field, Later)}
        self._checks = {name: field.check if isinstance(field, Later) else field for name, field in fields.items()}

    def write(self, value: Any) -> Pieces:
        """Raises ValueError, TypeError."""
        given = {name: in_field(name, check, getattr(value, name)) for name, check in self._checks.items()}
        unsaid = [name for name, default in self._later.items() if given[name] == default]
        return dump({name: given[name] for name in given if name not in unsaid}), b""

    def read(self, body: memoryview, _: memoryview | None = None) -> Any:
        """Raises ValueError."""
        given = parse(body, self._most)
        if not isinstance(given, dict) or (self._later | given).keys() != self._checks.keys():
            names = ", ".join(sorted(given)) if isinstance(given, dict) else type(given).__name__
            raise ValueError(f"expected an object with {', '.join(self._checks)}; found {names:.200}")
        given = self._later | given
        return self.made(**{name: in_field(name, check, given[name]) for name, check in self._checks.items()})


# --- lists, by what is annotated


def checks_of(made: type[Any]) -> Mapping[str, Check]:
    """The checks of a named tuple's fields. Raises TypeError, KeyError for a type that no list can have."""
    return {name: _check_of(hint) for name, hint in get_type_hints(made).items()}


def listed(made: type[Any]) -> Check:
    """A named tuple."""
    checks = checks_of(made)
    needed = len(checks) - len(made._field_defaults)

    def check(value: Any) -> Any:
        if not isinstance(value, list) or len(value) < needed:
            raise ValueError(f"expected a list of {', '.join(checks)}; found {_shown(value)}")
        pairs = zip(checks.items(), value, strict=False)
        return made(*[in_field(name, field, given) for (name, field), given in pairs])

    return check


def optional(inner: Check) -> Check:
    """Such a value, or null."""
    return lambda value: None if value is None else inner(value)


def _check_of(hint: Any) -> Check:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return sequence(_check_of(inner[0]))
    if origin is tuple:
        return line(*[_check_of(element) for element in inner])
    if origin in (Union, UnionType) and NoneType in inner:
        (some,) = [element for element in inner if element is not NoneType]
        return optional(_check_of(some))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return mapping if inner[1] is Any or inner[1] is object else arguments
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return choice(hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return listed(hint)
    return _SCALARS[hint]


_SCALARS: Final[Mapping[Any, Check]] = {str: text(MAX_TEXT_BYTES, "bytes"), int: integer(), bool: truth}
