"""An expected no: a value, not an exception, for whoever asked."""

from __future__ import annotations

from typing import NamedTuple


class Refusal(NamedTuple):
    """Why not, in a sentence that says what to do where there is something."""

    text: str
