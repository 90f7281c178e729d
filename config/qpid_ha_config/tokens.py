"""The tokens of the HTTP port: a file with a line for each, `NAME ROLE SHA-256`; the token itself is in no file.

A token has 256 random bits, so one round of SHA-256 keeps it: nobody can guess it, as he could a password.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_broker.access.token_roles import TokenRole
from qpid_ha_config.errors import ConfigError, nearest

__all__ = [
    "KEY",
    "TOKENS_MAX",
    "TokenEntry",
    "TokenRole",
    "find_entry",
    "make_token",
    "read_entry",
    "read_tokens",
    "token_name_problem",
]

KEY: Final = "admin.tokens"
TOKENS_MAX: Final = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LARGEST_FILE_BYTES = 1024 * 1024


class TokenEntry(NamedTuple):
    """One line. `digest`: the token's SHA-256, as 64 lower-case hexadecimal digits."""

    name: str
    role: TokenRole
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.role} {self.digest}"


def make_token(name: str, role: TokenRole) -> tuple[str, TokenEntry]:
    """A new token, and its line. Raises ValueError for what cannot be a name."""
    if problem := token_name_problem(name):
        raise ValueError(f"{name!r:.80} is no name: {problem}")
    token = secrets.token_urlsafe(32)
    return token, TokenEntry(name, role, token_digest(token))


def token_name_problem(name: str) -> str:
    """Why a token cannot be called that; empty: there is no reason."""
    return "" if _NAME.fullmatch(name) else "it has 1 to 64 letters, digits and . _ -, the first a letter or digit"


def token_digest(token: str) -> str:
    """The SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def find_entry(entries: Iterable[TokenEntry], token: str) -> TokenEntry | None:
    """Whose token it is. Takes the same time whoever's it is, and if it is nobody's."""
    digest = token_digest(token)
    matching = None
    for entry in entries:
        if hmac.compare_digest(entry.digest, digest):
            matching = entry
    return matching


def read_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """What is in the file. Raises ConfigError that says in which line something is wrong, and what."""
    try:
        with path.open("rb") as opened:
            content = opened.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(path, KEY, f"cannot read it: {error.strerror}") from None
    if len(content) > _LARGEST_FILE_BYTES:
        raise ConfigError(path, KEY, "it is over 1 MiB, which no file of tokens is")
    entries: dict[str, TokenEntry] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            entry = read_entry(words)
            if entry.name in entries:
                raise ValueError(f"{entry.name} is there twice; take one out")
        except ValueError as error:
            raise ConfigError(f"{path}:{number}", KEY, str(error)) from None
        entries[entry.name] = entry
    if len(entries) > TOKENS_MAX:
        raise ConfigError(path, KEY, f"it has {len(entries)} tokens, and {TOKENS_MAX} may be")
    return tuple(entries.values())


def read_entry(words: list[str]) -> TokenEntry:
    """Raises ValueError, which never quotes what stands where a token, or its digest, could be."""
    if len(words) != 3:
        raise ValueError(f"a line is NAME ROLE SHA-256, not {len(words)} words; `qpid-ha token create` makes one")
    name, role, digest = words
    if not _NAME.fullmatch(name):
        raise ValueError("the name has 1 to 64 letters, digits and . _ -, the first a letter or digit")
    if role not in list(TokenRole):
        raise ValueError(f"there is no role {role!r:.40}; {nearest(role[:40], [role.value for role in TokenRole])}")
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"the SHA-256 of {name} is not 64 lower-case hexadecimal digits")
    return TokenEntry(name, TokenRole(role), digest)
