"""Takes secrets out of text that others wrote. Pure.

Two ways together: the secrets that are known are taken out wherever they stand, as they are and as URLs, JSON and
Python write them; and what looks like the place of a secret is taken out whatever stands there. In doubt too much is
taken.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

TAKEN: Final = "[redacted]"
SHORTEST: Final = 4
"""A known secret of fewer characters is only taken out of places of secrets: it would be part of other words."""

_WORDS: Final = r"pass(?:word|wd|phrase)|pwd|secret|token|credential|api[_-]?key|private[_-]?key|authorization|cookie"
_SECRET_NAME: Final = re.compile(_WORDS, re.IGNORECASE)
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_SUSPECT: Final = re.compile(rf"@|-----BEGIN|bearer|basic|plain|scram|{_WORDS}", re.IGNORECASE)
"""What has none of these has no secret by its place: most texts by far."""
_RUN: Final = re.compile(r"\S+")
_BEFORE_A_USER: Final = "=,;([{<'\""
_OPTION: Final = re.compile(rf"(--?[\w-]{{0,40}}(?:{_WORDS})[\w-]{{0,40}}[ =])\s{{0,4}}\S+", re.IGNORECASE)
_NAMED: Final = re.compile(rf"((?:{_WORDS})[\w.-]{{0,40}}[\"']?\s{{0,4}}[:=])[^\n]+", re.IGNORECASE)
"""To the end of the line: a password may have spaces. All repetitions have a limit: text of others is long and odd."""
_SCHEME: Final = re.compile(r"\b(bearer|basic|plain|scram[\w-]{0,20})\s{1,4}[\w+/=.~-]{6,}", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether what has that name may be a secret."""
    return bool(_SECRET_NAME.search(name))


class Redaction:
    """The promise: no known secret of at least `SHORTEST` characters is in what comes out."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if len(secret) >= SHORTEST for form in _forms(secret)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def text(self, text: str) -> str:
        """`text` without secrets."""
        if self._known is not None:
            text = self._known.sub(TAKEN, text)
        if not _SUSPECT.search(text):
            return text
        text = _PRIVATE_KEY.sub(TAKEN, text)
        text = _RUN.sub(_without_user_info, text)
        text = _SCHEME.sub(rf"\1 {TAKEN}", text)
        text = _OPTION.sub(rf"\1{TAKEN}", text)
        return _NAMED.sub(rf"\1 {TAKEN}", text)

    def document(self, value: object) -> object:
        """A value that JSON can carry, without secrets; what has the name of a secret loses its value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self._named(str(name), inner) for name, inner in value.items()}
        if isinstance(value, Sequence):
            return [self.document(inner) for inner in value]
        return value if isinstance(value, int | float | None) else self.text(str(value))

    def _named(self, name: str, value: object) -> object:
        if is_secret_name(name) and not isinstance(value, bool | int | float | None):
            return TAKEN
        return self.document(value)


def _without_user_info(match: re.Match[str]) -> str:
    """Of characters without white space: nothing between `//` and the last `@`, nor what looks like USER:PASSWORD@."""
    run = match[0]
    end, slashes, colon = run.rfind("@"), run.find("//"), run.find(":")
    if 0 <= slashes < end:
        return f"{run[: slashes + 2]}{TAKEN}{run[end:]}"
    if 0 <= colon < end:
        start = 1 + max(run.rfind(char, 0, colon) for char in _BEFORE_A_USER)
        return f"{run[:start]}{TAKEN}{run[end:]}"
    return run


def _forms(secret: str) -> set[str]:
    """As other programs write it. Base64 is that of SASL PLAIN and of HTTP for the secret alone."""
    encoded = base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode("ascii")
    forms = {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1], encoded}
    return {form for form in forms if len(form) >= SHORTEST}
