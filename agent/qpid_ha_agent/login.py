"""Who `qpid-ha` is to a remote broker, and with which password: never from the command line.

On a machine of the cluster nothing has to be said: its brokers are administered as they administer each other.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from qpid_ha_agent.broker_address import AddressError, read_config
from qpid_ha_agent.control import Forbidden
from qpid_ha_config.addresses import Address
from qpid_ha_config.configuration import WrittenSettings
from qpid_ha_config.settings import read_password_file

HOW_TO_LOG_IN = (
    "log in with amqp://USER@HOST, or run this where the configuration lists this address and may be read, as root"
)
Resolve = Callable[[str], frozenset[str]]


class Tls(NamedTuple):
    """Paths, each "" where there is none: who signs the broker's certificate (else the system's authorities), and our
    own certificate with its key."""

    ca: str = ""
    certificate: str = ""
    key: str = ""


class Login(NamedTuple):
    """`password` None: there is none."""

    user: str
    password: str | None
    tls: Tls = Tls()


def nobody() -> Login:
    """Of who does not log in."""
    return Login("", None)


def resolve(host: str) -> frozenset[str]:
    """The addresses of a host; none if it has no name or the name service is silent."""
    try:
        return frozenset(str(resolved[4][0]) for resolved in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return frozenset()


def find_login(
    broker: Address, password_file: str | None, environment: Mapping[str, str], resolve: Resolve = resolve
) -> tuple[Address, Login]:
    """The user of the address, with the password from the file, else from `QPID_HA_PASSWORD`; and where to go.

    A broker that this machine's configuration lists, in `ha.brokers-url` or `ha.public-url`, by this name or by another
    one of the same address, is spoken to as other brokers do: at the address as it is listed, with the `tls` of the
    configuration, and without a user as `ha.username`. Nobody else gets that password.
    Raises ConfigError, AddressError, or Forbidden for a password that we may not read.
    """
    config = read_config(environment)
    listed = None if config is None else _find_listed(broker, config, resolve)
    if config is None or listed is None:
        return broker, _complete(broker, _given_login(broker.user, password_file, environment))
    files = Tls(*(str(config.get(f"tls.{name}") or "") for name in Tls._fields))
    there, user = listed.as_user(broker.user), config.get("ha.username")
    if broker.user or user is None:
        given = _given_login(broker.user, password_file, environment)._replace(tls=files)
        return there, given if files.certificate else _complete(there, given)
    named_file = config.get("ha.password-file")
    password = config.get("ha.password") if named_file is None else _read_password(named_file)
    return there, Login(user, password, files)


def _given_login(user: str, password_file: str | None, environment: Mapping[str, str]) -> Login:
    if not user:
        return Login("", None)
    if password_file is None:
        return Login(user, environment.get("QPID_HA_PASSWORD"))
    return Login(user, _read_password(Path(password_file).expanduser()))


def _complete(broker: Address, login: Login) -> Login:
    """Raises Forbidden for a user without a password: SASL would say that it has no mechanism."""
    if login.user and not login.password:
        raise Forbidden(f"{broker}: no password for {login.user}: give --password-file FILE, or set QPID_HA_PASSWORD")
    return login


def _read_password(path: Path) -> str:
    try:
        return read_password_file(path)
    except PermissionError:
        raise Forbidden(f"no permission to read the password in {path}: run this as root") from None
    except (OSError, ValueError) as error:
        raise AddressError(f"cannot read the password in {path}: {error}") from None


def _find_listed(broker: Address, config: WrittenSettings, resolve: Resolve) -> Address | None:
    """The listed broker that is meant. A password is not for whoever is asked by a wrong name."""
    listed: list[Address] = [*config.get("ha.brokers-url"), *config.get("ha.public-url")]
    same_port = [there for there in listed if there.port == broker.port]
    for there in same_port:
        if there.host.lower() == broker.host.lower():
            return there
    addresses = resolve(broker.host) if same_port else frozenset()
    return next((there for there in same_port if addresses & resolve(there.host)), None)


def listed_brokers(environment: Mapping[str, str]) -> tuple[Address, ...]:
    """The brokers of the cluster that this machine's configuration names. Raises ConfigError."""
    config = read_config(environment)
    return () if config is None else config.get("ha.brokers-url")
