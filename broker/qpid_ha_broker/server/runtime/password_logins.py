"""Users and passwords that come by another way than AMQP: whether somebody who says them could log in as a client.

It is a client that logs in: one end of a connection in memory says the user and the password by PLAIN, and the other
end is that of a listener. So whom files and the cluster know, and what is computed beside the loop, is as for clients.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, NamedTuple

from qpid_ha_broker.access.scram import UserLogin
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.peer_input import Security
from qpid_ha_broker.amqp.wire.sasl_server import PLAIN, PasswordAsked
from qpid_ha_broker.server.runtime.engines import EngineFactory, client_engine
from qpid_ha_config.addresses import Address
from qpid_ha_config.settings import BrokerSettings

_STEPS_MOST: Final = 16
"""A login takes four."""
_KEY_BITS: Final = 256


class PasswordOutcome(Enum):
    """What came of a user and a password."""

    IN = "the password is that user's"
    WRONG = "nobody is called that, or it is another password"
    TURNED_AWAY = "this broker does not know yet whom its cluster lets in"


class CheckedPassword(NamedTuple):
    """`login`: by which the cluster knows a user who is in; None: a file does."""

    outcome: PasswordOutcome
    login: UserLogin | None = None


def password_problem(settings: BrokerSettings, address: Address) -> str:
    """Why nobody can log in by a password at a port with that address, as at a listener; empty: there is no reason."""
    if not settings.sasl.takes_passwords(address):
        return f"passwords are not taken at {address}, where others may read them: use https"
    of_cluster = settings.sasl.for_users_of_cluster(address) if settings.ha.cluster else ()
    if PLAIN in (*of_cluster, *settings.mechanisms_for(address)):
        return ""
    if settings.sasl.mechanisms is not None and PLAIN not in settings.sasl.mechanisms:
        return "passwords are not taken here: sasl.mechanisms leaves PLAIN out"
    return "there are no users with passwords here: sasl.users-db names none, and this broker is in no cluster"


async def check_password(engines: EngineFactory, is_tls: bool, user: str, password: str) -> CheckedPassword:
    """What comes of it. Nothing of the password is kept but what a client's login keeps of it."""
    if not user or "\0" in user or "\0" in password or not password:
        return CheckedPassword(PasswordOutcome.WRONG)
    server = engines.make(Security(_KEY_BITS, None) if is_tls else None)
    client = client_engine(user=user, password=password, mechanism=PLAIN, insecure_plain=True)
    try:
        return await _log_in(engines, server, client)
    finally:
        client.close()
        server.close()


async def _log_in(engines: EngineFactory, server: Engine, client: Engine) -> CheckedPassword:
    for _ in range(_STEPS_MOST):
        said = client.take_output()
        if said:
            server.push(said)
        asked = server.input.take_asked()
        if asked is not None:
            server.input.password_checked(asked, await _computed(engines, asked))
        answer = server.take_output()
        if server.input.is_turned_away:
            return CheckedPassword(PasswordOutcome.TURNED_AWAY)
        if _is_in(server):
            login = server.input.login
            return CheckedPassword(PasswordOutcome.IN, None if login is None else login.login)
        if not said and not answer:
            break
        client.push(answer)
    return CheckedPassword(PasswordOutcome.WRONG)


async def _computed(engines: EngineFactory, asked: PasswordAsked) -> bool:
    is_right: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    engines.password_checks.start(asked, lambda: not is_right.done(), is_right.set_result)
    return await is_right


def _is_in(server: Engine) -> bool:
    transport = server.transport
    return bool(server.input.user or (transport.authenticated and transport.user))
