"""Several names in one text, from which each can be told: what separates them is written as in a URL within a name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SEPARATOR: Final = "/"
_PERCENT: Final = "%"


def percent_encoded(characters: str, errors: str = "surrogatepass") -> str:
    """All of `characters` as in a URL: `%` and two hexadecimal digits for each byte of their UTF-8. `errors`: what
    becomes of halves of characters, see `str.encode`."""
    return "".join(f"{_PERCENT}{byte:02X}" for byte in characters.encode("utf-8", errors))


def joined(names: Iterable[str]) -> str:
    """`a/b`; a `/` or `%` inside a name is `%2F` or `%25`."""
    return SEPARATOR.join(_with_each(name, _PERCENT, SEPARATOR) for name in names)


def names_of(text: str) -> list[str]:
    """The names that `joined` has made into `text`. What it would not have escaped is left as it is."""
    return [
        name.replace(percent_encoded(SEPARATOR), SEPARATOR).replace(percent_encoded(_PERCENT), _PERCENT)
        for name in text.split(SEPARATOR)
    ]


def _with_each(name: str, *escaped: str) -> str:
    for character in escaped:
        name = name.replace(character, percent_encoded(character))
    return name
