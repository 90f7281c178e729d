"""The realm of users in a file: the one in which Cyrus SASL looks for them, on machines with and without a domain."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from qpid_ha_agent.cli.user import broker_realm


@pytest.mark.parametrize(
    ("host", "canonical", "realm"),
    [
        ("node1", "node1", "node1"),
        ("node1", "", "node1"),
        ("node1", None, "node1"),
        ("Node1", "localhost", "node1"),
        ("node1", "node1.example.org", "node1.example.org"),
        ("qpid-ha-0", "qpid-ha-0.qpid-ha-peers.messaging.svc.cluster.local",
         "qpid-ha-0.qpid-ha-peers.messaging.svc.cluster.local"),
        ("Node1.Example.org", "other.example.org", "node1.example.org"),
    ],
)  # fmt: skip
def test_a_user_is_made_where_the_broker_looks(
    host: str, canonical: str | None, realm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`canonical`: as the machine's own name is resolved; None: it is not."""

    def resolve(name: str, _service: None, **_how: Any) -> list[tuple[Any, ...]]:
        assert name == host
        if canonical is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, canonical, ("10.0.0.1", 0))]

    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert broker_realm() == realm
