"""LIKE patterns, matched in time that nobody can blow up: a consumer's pattern meets every publisher's values.

The pattern is cut at each `%`. The first piece must stand at the beginning and the last at the end; each piece between
them is sought once, from where the one before it ended, since the leftmost find leaves the most room for the rest.
Nothing is ever tried again. A piece of plain characters is found by `str.find`, one with `_` by following all of its
beginnings at once, a bit for each (Baeza-Yates and Gonnet's *shift-and*): one step per character of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

ANY_STRING = "%"
ANY_CHARACTER = "_"
MAX_SOUGHT_CHARACTERS = 256
"""Of a piece with `_` between two `%`: its bits take memory by the square of its length."""
MAX_SOUGHT_PIECES = 4
"""Such pieces in one selector: each takes a step per character of the value."""
MAX_VALUE_CHARACTERS = 4096
"""A longer value is like no pattern in which such a piece is sought."""


def like_matcher(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """A test of strings against a pattern; `escape` makes the character after it stand for itself.

    Raises ValueError when the pattern ends with the escape character, or has too long a piece to seek.
    """
    pieces = cut(pattern, escape)
    first, last = _Piece(pieces[0]), _Piece(pieces[-1])
    middle = [_middle_piece(piece) for piece in pieces[1:-1] if piece]
    sought = count_sought(pieces)
    if len(pieces) == 1:
        return lambda text: len(text) == first.length and first.stands_at(text, 0)

    def matches(text: str) -> bool:
        if not first.stands_at(text, 0) or (sought and len(text) > MAX_VALUE_CHARACTERS):
            return False
        position = first.length
        for piece in middle:
            position = piece.find_end(text, position)
            if position < 0:
                return False
        last_start = len(text) - last.length
        return last_start >= position and last.stands_at(text, last_start)

    return matches


def count_sought(pieces: Sequence[Sequence[str | None]]) -> int:
    """How many of the pieces between two `%` are expensive: those of characters and `_`. See `cut`."""
    return sum(_is_sought(piece) for piece in pieces[1:-1])


def _is_sought(characters: Sequence[str | None]) -> bool:
    return None in characters and any(character is not None for character in characters)


def _middle_piece(characters: Sequence[str | None]) -> _Piece:
    """Of nothing but `_` only the length matters."""
    return _SoughtPiece(characters) if _is_sought(characters) else _Piece(characters)


class _Piece:
    """What stands between two `%`: a fixed number of characters, None for one that may be any."""

    __slots__ = ("_characters", "_literal", "length")

    def __init__(self, characters: Sequence[str | None]) -> None:
        self.length = len(characters)
        self._characters = characters
        literal = [character for character in characters if character is not None]
        self._literal = "".join(literal) if len(literal) == self.length else None

    def stands_at(self, text: str, start: int) -> bool:
        """Whether `text` has this piece at `start`."""
        if self._literal is not None:
            return text.startswith(self._literal, start)
        piece = text[start : start + self.length]
        return len(piece) == self.length and all(
            expected is None or expected == actual for expected, actual in zip(self._characters, piece, strict=True)
        )

    def find_end(self, text: str, start: int) -> int:
        """Where the leftmost occurrence from `start` on ends; -1 when there is none."""
        if self._literal is None:
            return start + self.length if start + self.length <= len(text) else -1
        piece_at = text.find(self._literal, start)
        return piece_at if piece_at < 0 else piece_at + self.length


class _SoughtPiece(_Piece):
    """A piece with `_` that may stand anywhere. Bit n of a mask: the character may be the nth of the piece."""

    __slots__ = ("_any_mask", "_masks")

    def __init__(self, characters: Sequence[str | None]) -> None:
        super().__init__(characters)
        if self.length > MAX_SOUGHT_CHARACTERS:
            raise ValueError(
                f"the pattern has {self.length} characters between two '%', and '_' among them; "
                f"{MAX_SOUGHT_CHARACTERS} are allowed"
            )
        self._masks: dict[str, int] = {}
        self._any_mask = sum(1 << at for at, character in enumerate(characters) if character is None)
        for at, character in enumerate(characters):
            if character is not None:
                self._masks[character] = self._masks.get(character, self._any_mask) | 1 << at

    def find_end(self, text: str, start: int) -> int:
        """The same; `begun` has a bit for each length of a beginning of the piece that ends here."""
        complete = 1 << (self.length - 1)
        begun = 0
        for position in range(start, len(text)):
            begun = (begun << 1 | 1) & self._masks.get(text[position], self._any_mask)
            if begun & complete:
                return position + 1
        return -1


def cut(pattern: str, escape: str | None) -> list[list[str | None]]:
    """At least one piece; None for `_`. Raises ValueError when the pattern ends with the escape character."""
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise ValueError("the pattern ends with its escape character")
            pieces[-1].append(literal)
        elif character == ANY_STRING:
            pieces.append([])
        else:
            pieces[-1].append(None if character == ANY_CHARACTER else character)
    return pieces
