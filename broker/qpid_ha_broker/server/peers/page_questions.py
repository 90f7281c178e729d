"""What the page of one broker shows of another one: a request of that one's HTTP port, asked as the question QUERY.

The question's request is the JSON of `{"page": {"path", "given"}}`, and the answer has `{"page": {"status", "body"}}`
in the place of facts. A broker of an older release answers with its facts.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

PAGE: Final = "page"
NOT_THERE: Final = 404


class PageRequest(NamedTuple):
    """Which part of the page."""

    path: str
    """Of the HTTP port."""
    given: Mapping[str, str]
    """Parameters."""

    def text(self) -> str:
        """As it is asked."""
        return json.dumps({PAGE: self._asdict()})

    @classmethod
    def read(cls, text: str) -> PageRequest | None:
        """None: something else is asked for."""
        try:
            asked = json.loads(text)[PAGE]
            path, given = asked["path"], asked["given"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        is_whole = isinstance(path, str) and isinstance(given, dict) and all(map(_is_text, given.values()))
        return cls(path, given) if is_whole else None


class PageAnswer(NamedTuple):
    """As the HTTP port would answer."""

    status: int
    body: Mapping[str, Any]

    def facts(self) -> dict[str, object]:
        """As it is told."""
        return {PAGE: self._asdict()}

    @classmethod
    def read(cls, text: str) -> PageAnswer | None:
        """None: it cannot be understood, or is that of an older release."""
        try:
            answered = json.loads(text)[PAGE]
            status, body = answered["status"], answered["body"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return cls(status, body) if isinstance(status, int) and isinstance(body, dict) else None


PageAsked = Callable[[PageRequest], Awaitable[PageAnswer]]
"""What another broker shows of this one."""


async def nobody_shows(_asked: PageRequest) -> PageAnswer:
    """There is no HTTP port here."""
    return PageAnswer(NOT_THERE, {"error": "it keeps no figures: set admin.listen there"})


def _is_text(value: object) -> bool:
    return isinstance(value, str)
