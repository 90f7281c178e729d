"""Users with passwords whom a cluster keeps, as `qpid-ha user` makes them: the password itself never leaves it."""

from __future__ import annotations

import secrets
from typing import Final

from qpid_ha_broker.access.scram import SALT_BYTES, UserLogin, name_problem

__all__ = ["HASHES", "make_user", "name_problem", "read_user"]

HASHES: Final = "SCRAM-SHA-512, SCRAM-SHA-256"
"""By what a password of a user can be checked."""


def make_user(name: str, password: str) -> str:
    """The verifiers of a password, with a salt of their own. Raises ValueError, which does not quote it."""
    return UserLogin.of(name, password, secrets.token_bytes(SALT_BYTES)).text


def read_user(name: str, verifiers: str) -> str:
    """The same text, once it is known that it can be read. Raises ValueError, which does not quote it."""
    return UserLogin.read(name, verifiers).text
