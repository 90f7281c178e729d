"""Who `qpid-ha` is to a remote broker, and with which password: never from the command line.

On a machine of the cluster nothing has to be said: its brokers are administered as they administer each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from qpid_ha_agent.broker_address import AddressError, RemoteBroker, read_config, read_remote


class Login(NamedTuple):
    """`password` None: there is none."""

    user: str
    password: str | None


def find_login(broker: RemoteBroker, password_file: str | None, environment: Mapping[str, str]) -> Login:
    """The user of the address, with the password from the file, else from `QPID_HA_PASSWORD`.

    Without a user: `ha.username` of this machine's configuration, for brokers of its `ha.brokers-url` and no others.
    Raises AddressError.
    """
    if broker.user:
        given = environment.get("QPID_HA_PASSWORD") if password_file is None else _first_line(password_file)
        return Login(broker.user, given)
    config = _ha_section(read_config(environment))
    user, password, named_file = config.get("username"), config.get("password"), config.get("password-file")
    if not isinstance(user, str) or not _is_listed(broker, config.get("brokers-url")):
        return Login("", None)
    if isinstance(named_file, str):
        return Login(user, _first_line(named_file))
    return Login(user, password if isinstance(password, str) else None)


def _first_line(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise AddressError(f"cannot read the password in {path}: {error}") from None


def _ha_section(config: Mapping[str, object]) -> dict[str, object]:
    """Nested or dotted, as the broker takes it."""
    section = config.get("ha")
    dotted = {str(key).removeprefix("ha."): value for key, value in config.items() if str(key).startswith("ha.")}
    return {**section, **dotted} if isinstance(section, dict) else dotted


def _is_listed(broker: RemoteBroker, brokers_url: object) -> bool:
    """A password is not for whoever is asked by a wrong name."""
    texts = brokers_url if isinstance(brokers_url, list) else [brokers_url]
    for part in ",".join(str(text) for text in texts).split(","):
        with suppress(AddressError):
            listed = read_remote(part.strip())
            if (listed.host.lower(), listed.port) == (broker.host.lower(), broker.port):
                return True
    return False
