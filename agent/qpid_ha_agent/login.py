"""Who `qpid-ha` is to a remote broker, and with which password: never from the command line.

On a machine of the cluster nothing has to be said: its brokers are administered as they administer each other.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from qpid_ha_agent.broker_address import AddressError, RemoteBroker, read_config, read_remote
from qpid_ha_agent.control import Forbidden

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


def resolve(host: str) -> frozenset[str]:
    """The addresses of a host; none if it has no name or the name service is silent."""
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return frozenset()


def find_login(
    broker: RemoteBroker, password_file: str | None, environment: Mapping[str, str], resolve: Resolve = resolve
) -> tuple[RemoteBroker, Login]:
    """The user of the address, with the password from the file, else from `QPID_HA_PASSWORD`; and where to go.

    A broker that this machine's configuration lists, in `ha.brokers-url` or `ha.public-url`, by this name or by another
    one of the same address, is spoken to as other brokers do: at the address as it is listed, with the `tls` of the
    configuration, and without a user as `ha.username`. Nobody else gets that password.
    Raises AddressError, or Forbidden for a password that we may not read.
    """
    config = read_config(environment)
    ha, tls = _section(config, "ha"), _section(config, "tls")
    listed = _find_listed(broker, ha, resolve)
    there = broker if listed is None else listed._replace(user=broker.user)
    files = Tls() if listed is None else Tls(*(str(tls.get(name) or "") for name in Tls._fields))
    if broker.user:
        given = environment.get("QPID_HA_PASSWORD") if password_file is None else _first_line(password_file)
        return there, Login(broker.user, given, files)
    user, password, named_file = ha.get("username"), ha.get("password"), ha.get("password-file")
    if listed is None or not isinstance(user, str):
        return there, Login("", None, files)
    if isinstance(named_file, str):
        return there, Login(user, _first_line(named_file), files)
    return there, Login(user, password if isinstance(password, str) else None, files)


def _first_line(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except PermissionError:
        raise Forbidden(f"no permission to read the password in {path}: run this as root") from None
    except (OSError, UnicodeDecodeError) as error:
        raise AddressError(f"cannot read the password in {path}: {error}") from None


def _section(config: Mapping[str, object], name: str) -> dict[str, object]:
    """Nested or dotted, as the broker takes it."""
    section, prefix = config.get(name), f"{name}."
    dotted = {str(key).removeprefix(prefix): value for key, value in config.items() if str(key).startswith(prefix)}
    return {**section, **dotted} if isinstance(section, dict) else dotted


def _find_listed(broker: RemoteBroker, ha: Mapping[str, object], resolve: Resolve) -> RemoteBroker | None:
    """The listed broker that is meant. A password is not for whoever is asked by a wrong name."""
    listed = [there for key in ("brokers-url", "public-url") for there in read_brokers(ha.get(key))]
    same_port = [there for there in listed if there.port == broker.port]
    for there in same_port:
        if there.host.lower() == broker.host.lower():
            return there
    addresses = resolve(broker.host) if same_port else frozenset()
    return next((there for there in same_port if addresses & resolve(there.host)), None)


def listed_brokers(environment: Mapping[str, str]) -> list[RemoteBroker]:
    """The brokers of the cluster that this machine's configuration names. Raises AddressError."""
    return list(read_brokers(_section(read_config(environment), "ha").get("brokers-url")))


def read_brokers(value: object) -> Iterator[RemoteBroker]:
    """The brokers of a setting such as `ha.brokers-url`, without those that cannot be read. A scheme counts until the
    next one, as it does for the broker."""
    texts, scheme = value if isinstance(value, list) else [value] if value else [], "amqp"
    for part in ",".join(str(text) for text in texts).split(","):
        with suppress(AddressError):
            text = part.strip()
            found = read_remote(text if "://" in text else f"{scheme}://{text}")
            scheme = found.scheme
            yield found
