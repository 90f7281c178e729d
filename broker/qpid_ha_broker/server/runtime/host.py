"""The broker around its parts, as each of them may see it. Those that need more say so themselves."""

from __future__ import annotations

from typing import Protocol

from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.server.runtime.logs import NoticeLog
from qpid_ha_config.settings import BrokerSettings


class Host(Protocol):
    """Settings, container, turns, and an end."""

    container: Container
    notices: NoticeLog
    is_in_turn: bool
    """Near the end of a turn: what was sent is written before it is over."""

    def current(self) -> BrokerSettings:
        """The settings in force."""

    def schedule_turn(self) -> None:
        """Have a turn at the end of this round of the loop."""

    def tell_committed(self) -> None:
        """Something was committed: have those told who wait for it, at the end of this turn, or without one."""

    def fail(self, reason: str) -> None:
        """Serve nobody any more: whoever runs this broker has to end it, and gets the reason."""
