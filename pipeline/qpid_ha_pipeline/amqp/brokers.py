"""Which brokers are meant, and who we are to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from qpid_ha_pipeline.errors import PipelineError

_URL: Final = re.compile(
    r"(?:(amqps?)://)?(?:([^@/\s]*)@)?(\[[^\[\]/\s]+\]|[^\[\]:/@?#\s,]+)(?::([0-9]{1,5}))?/?", re.ASCII
)
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
PASSWORD_VARIABLE: Final = "QPID_HA_PASSWORD"


@dataclass(frozen=True)
class Broker:
    """Where one listens. `host` carries no brackets."""

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp{'s' if self.is_tls else ''}://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Nobody else can listen on the way."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True)
class Login:
    """Without a user: nobody in particular. The password is in no text that this makes."""

    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True)
class Cluster:
    """Brokers of which one, the primary, serves us; or one virtual address that leads to it."""

    brokers: tuple[Broker, ...]
    login: Login = Login()
    ca_file: str = ""
    failover_timeout_s: float = 60.0
    """How long a primary is looked for."""
    reply_timeout_s: float = 10.0
    """A broker that says nothing for so long while it owes an answer is given up."""

    def __str__(self) -> str:
        return ", ".join(map(str, self.brokers))


def parse_brokers(text: str) -> tuple[tuple[Broker, ...], str]:
    """Brokers of `amqp[s]://[USER@]HOST[:PORT],...`, and the user. Raises PipelineError."""
    brokers, users, scheme = [], set(), "amqp"
    for part in filter(None, map(str.strip, text.split(","))):
        found = _URL.fullmatch(part)
        if found is None:
            shown = part.rpartition("@")[2]
            raise PipelineError(f"brokers: {shown!r} is no broker: expected amqp://[USER@]HOST[:PORT],... or amqps")
        if ":" in (found[2] or ""):
            raise PipelineError(
                f"brokers: no password in an address, which ends up in plans and logs: use passwordFile or the"
                f" environment variable {PASSWORD_VARIABLE}"
            )
        scheme = found[1] or scheme  # of `amqps://a,b` the second is meant to be the same
        port = int(found[4]) if found[4] else _PORTS[scheme]
        if not 0 < port < 65536:
            raise PipelineError(f"brokers: there is no port {port}")
        brokers.append(Broker(found[3].strip("[]"), port, scheme == "amqps"))
        users |= {found[2]} if found[2] else set()
    if not brokers:
        raise PipelineError("brokers: missing: expected amqp://HOST[:PORT],... or the virtual address of the cluster")
    if len(users) > 1:
        raise PipelineError(f"brokers: one user for all, found {', '.join(sorted(users))}")
    return tuple(brokers), users.pop() if users else ""


def find_login(user: str, password_file: str, environment: Mapping[str, str]) -> Login:
    """With the first line of the file, else with the environment's password. Raises PipelineError."""
    if not user:
        if password_file:
            raise PipelineError("passwordFile: whose password it is, the option user says")
        return Login()
    if not password_file:
        if PASSWORD_VARIABLE not in environment:
            raise PipelineError(f"user {user}: where is the password? Give passwordFile or set {PASSWORD_VARIABLE}")
        return Login(user, environment[PASSWORD_VARIABLE])
    try:
        return Login(user, Path(password_file).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r"))
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"passwordFile: cannot read {password_file}: {error}") from None
