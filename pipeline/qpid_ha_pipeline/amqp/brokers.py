"""Which brokers are meant, and who we are to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from qpid_ha_config.addresses import Address, parse_brokers
from qpid_ha_config.settings import read_password_file
from qpid_ha_pipeline.errors import PipelineError

PASSWORD_VARIABLE: Final = "QPID_HA_PASSWORD"


@dataclass(frozen=True)
class BrokerLogin:
    """Without a user: nobody in particular. The password is in no text that this makes."""

    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True)
class Cluster:
    """Brokers of which one, the primary, serves us; or one virtual address that leads to it."""

    brokers: tuple[Address, ...]
    login: BrokerLogin = BrokerLogin()
    ca_file: str = ""
    failover_timeout_s: float = 60.0
    """How long a primary is looked for."""
    reply_timeout_s: float = 10.0
    """A broker that says nothing for so long while it owes an answer is given up."""

    def __str__(self) -> str:
        return ", ".join(map(str, self.brokers))

    def may_read_password(self, broker: Address) -> bool:
        """Whether the password may be said in clear, without TLS: within this machine, and not where a broker of
        another one has sent us."""
        return broker.is_loopback and (broker in self.brokers or all(given.is_loopback for given in self.brokers))

    @property
    def digest(self) -> str:
        """Tells clusters apart that one query reads: the UUID of one is known to its brokers alone."""
        return sha256(",".join(sorted(map(str, self.brokers))).encode()).hexdigest()[:8]


def read_brokers(text: str) -> tuple[tuple[Address, ...], str]:
    """Brokers of `amqp[s]://[USER@]HOST[:PORT],...`, and the user. Raises PipelineError."""
    expected = "expected amqp://[USER@]HOST[:PORT],... or amqps, or the virtual address of the cluster"
    try:
        brokers = parse_brokers(text)
    except ValueError as error:
        problem = f"{error}; {expected}; a password is for passwordFile or the environment variable {PASSWORD_VARIABLE}"
        raise PipelineError(f"brokers: {problem}") from None
    if not brokers:
        raise PipelineError(f"brokers: missing: {expected}")
    users = {broker.user for broker in brokers if broker.user}
    if len(users) > 1:
        raise PipelineError(f"brokers: one user for all, found {', '.join(sorted(users))}")
    return tuple(broker.as_user("") for broker in brokers), "".join(users)


def find_login(user: str, password_file: str, environment: Mapping[str, str]) -> BrokerLogin:
    """With the first line of the file, else with the environment's password. Raises PipelineError."""
    if not user:
        if password_file:
            raise PipelineError("passwordFile: whose password it is, the option user says")
        return BrokerLogin()
    if not password_file:
        if PASSWORD_VARIABLE not in environment:
            raise PipelineError(
                f"user {user}: where is the password? Give passwordFile, or set {PASSWORD_VARIABLE} before `register`"
            )
        return BrokerLogin(user, environment[PASSWORD_VARIABLE])
    try:
        return BrokerLogin(user, read_password_file(Path(password_file)))
    except (OSError, ValueError) as error:
        raise PipelineError(f"passwordFile: cannot read {password_file}: {error}") from None
