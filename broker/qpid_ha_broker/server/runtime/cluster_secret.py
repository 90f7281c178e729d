"""By what brokers of one machine know each other that have no login: a secret that its user alone can read.

A cluster without `ha.username` listens on loopback alone, where every program of the machine can connect, and could say
that it is a broker: it would get all messages, and act for any client. So brokers prove that they know the secret,
which the first of them writes where a user's brokers have their control sockets. They say a digest that counts for a
minute, and not the secret: whoever takes the port of a broker that is down learns nothing for later.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from qpid_ha_broker.server.runtime.socket_directory import make_socket_directory
from qpid_ha_config.defaults import control_socket
from qpid_ha_config.errors import SettingsError

log = logging.getLogger("cluster")

SECRET_BYTES: Final = 32
VALID_S: Final = 60.0
"""Before and after it was made, by the clock of the machine, which both sides read."""
_INSTEAD: Final = "or set ha.username and ha.password-file alike on all brokers"


class ClusterSecret:
    """The promise: a proof is made, and taken, by processes alone that can read the file."""

    def __init__(self, file: Path | None = None, now_s: Callable[[], float] = time.time) -> None:
        """`file` None: below the directory of control sockets, in one that containers may share without those."""
        self.file = file or control_socket("any").parent / "cluster" / "secret"
        self._now_s = now_s

    def proof(self) -> str:
        """For another broker of this machine. Raises SettingsError where there can be no secret."""
        claim = f"{self._now_s():.0f}.{secrets.token_hex(8)}"
        return f"{claim}.{self._digest(claim)}"

    def is_proof(self, text: str) -> bool:
        """Whether who says this knows the secret, and has made it just now."""
        claim, _, digest = text.rpartition(".")
        made_s, _, _ = claim.partition(".")
        if not text.isascii() or not made_s.isdecimal() or len(made_s) > 20:
            return False
        try:
            expected = self._digest(claim)
        except SettingsError as error:
            log.error("no broker can be let in: %s", error)
            return False
        return hmac.compare_digest(digest, expected) and abs(self._now_s() - int(made_s)) <= VALID_S

    def _digest(self, claim: str) -> str:
        return hmac.new(self.read(), claim.encode(), hashlib.sha256).hexdigest()

    def read(self) -> bytes:
        """The secret, which is made if there is none. Raises SettingsError."""
        try:
            if not self.file.exists():
                self._make()
            found = self.file.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                problem = f"{self.file} is not a file that the brokers' user alone may read: remove it, {_INSTEAD}"
                raise SettingsError("ha.username", problem)
            secret = self.file.read_bytes()
        except OSError as error:
            problem = f"cannot make or read {self.file}, by which brokers of this machine know each other"
            raise SettingsError("ha.username", f"{problem}: {error.strerror}; let them, {_INSTEAD}") from None
        if len(secret) < SECRET_BYTES:
            raise SettingsError("ha.username", f"{self.file} holds no secret: remove it, {_INSTEAD}")
        return secret

    def _make(self) -> None:
        """Whole, or not at all: of brokers that start together one makes it."""
        make_socket_directory("ha.username", self.file.parent.parent)
        self.file.parent.mkdir(mode=0o700, exist_ok=True)
        new = self.file.with_name(f".{self.file.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(secrets.token_bytes(SECRET_BYTES))
            with suppress(FileExistsError):
                os.link(new, self.file)
        finally:
            new.unlink(missing_ok=True)
