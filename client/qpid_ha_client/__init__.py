"""A client of brokers that keep sessions: exactly-once over failovers, for applications that use Proton.

`SessionClient` goes step by step; `SessionHandler` is for Proton's reactor. docs/clients.md has both.
"""

from qpid_ha_client.core.addresses import Backoff
from qpid_ha_client.core.errors import (
    ClientClosed,
    ClientError,
    LinkUnusable,
    LoginRefused,
    MessageAbandoned,
    MessageRefused,
    MessageWithdrawn,
    SessionLost,
    SessionRefused,
    SessionsNotOffered,
    SessionTaken,
)
from qpid_ha_client.core.events import Guarantee
from qpid_ha_client.proton_driver import ConnectOptions
from qpid_ha_client.session_client import SessionClient
from qpid_ha_client.session_handler import ReceivedMessage, SessionHandler, SessionReceiver, SessionSender

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "ClientClosed",
    "ClientError",
    "ConnectOptions",
    "Guarantee",
    "LinkUnusable",
    "LoginRefused",
    "MessageAbandoned",
    "MessageRefused",
    "MessageWithdrawn",
    "ReceivedMessage",
    "SessionClient",
    "SessionHandler",
    "SessionLost",
    "SessionReceiver",
    "SessionRefused",
    "SessionSender",
    "SessionTaken",
    "SessionsNotOffered",
]
