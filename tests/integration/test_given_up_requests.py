"""Requests that a broker finds when it goes on after it was stopped, and whose callers have given up meanwhile.

They may have had another broker do it, or have changed their minds: at no door is such a request begun.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from proton import Message

from blocking_client import BlockingClient, Management
from http_port import http_url, write_tokens
from limits import LIMIT_S
from qpid_ha_agent.control import ControlClient, TimedOut
from qpid_ha_agent.http_control import HttpControlClient, HttpLogin
from qpid_ha_agent.remote_control import RemoteControlClient
from qpid_ha_config.addresses import Address
from qpid_ha_config.tokens import TokenRole
from running_broker import RunningBroker
from stopped_processes import stop_processes

GIVE_UP_S = 0.2

Ask = Callable[[], None]
"""Ask for the queue `orders`, and give up."""


def by_control_socket(broker: RunningBroker, token: str) -> Ask:
    return lambda: give_up(ControlClient(broker.control_socket))


def by_http(broker: RunningBroker, token: str) -> Ask:
    host, port = http_url(broker).removeprefix("http://").split(":")
    client = HttpControlClient(Address("http", host, int(port)), HttpLogin(token))
    client.call("ping")
    return lambda: give_up(client)


def by_amqp(broker: RunningBroker, token: str) -> Ask:
    client = RemoteControlClient(Address("amqp", "127.0.0.1", broker.port), timeout_s=LIMIT_S)
    client.call("ping")
    client._connection.timeout = GIVE_UP_S
    return lambda: give_up(client)


def give_up(client: ControlClient | HttpControlClient | RemoteControlClient) -> None:
    client.timeout_s = GIVE_UP_S
    with client, pytest.raises(TimedOut):
        client.call("queues", action="create", name="orders", arguments={})


def by_management(broker: RunningBroker, token: str) -> Ask:
    """A program that is killed."""
    client = BlockingClient(broker.url)
    requests, replies = client.sender("$management"), client.receiver("$management")
    properties = {"operation": "CREATE", "type": "queue", "name": "orders"}
    request = Message(reply_to=replies.link.name, properties=properties, body={})

    def ask() -> None:
        client.write_together(lambda: requests.link.send(request))
        client.break_connection()

    return ask


@pytest.mark.parametrize("door", [by_control_socket, by_http, by_amqp, by_management])
def test_what_somebody_has_given_up_is_not_begun_when_a_stopped_broker_goes_on(
    tmp_path: Path, door: Callable[[RunningBroker, str], Ask]
) -> None:
    tokens = write_tokens(tmp_path / "tokens")
    settings = {"admin.listen": "http://127.0.0.1:0", "admin.tokens": str(tmp_path / "tokens")}
    with RunningBroker(settings) as broker:
        ask = door(broker, tokens[TokenRole.OPERATOR])
        stop_processes([broker.pid])
        try:
            ask()
        finally:
            os.kill(broker.pid, signal.SIGCONT)

        assert broker.await_log(r"was asked for by .*, who has gone since: not done")
        with BlockingClient(broker.url) as client:
            assert Management(client).queue("orders") is None
