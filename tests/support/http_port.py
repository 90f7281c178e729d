"""The HTTP port of a broker in a test's hands: tokens for each role, and requests."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import requests

from polling import wait_until
from qpid_ha_config.tokens import TokenRole, make_token
from qpid_ha_demo.cluster import LocalBroker
from running_broker import RunningBroker

PATIENCE_S = 30.0


def write_tokens(path: Path) -> dict[TokenRole, str]:
    """A file with a token for each role; the tokens."""
    made = {role: make_token(role.value, role) for role in TokenRole}
    path.touch(mode=0o600)
    path.write_text("".join(f"{entry}\n" for _, entry in made.values()), encoding="ascii")
    return {role: token for role, (token, _) in made.items()}


def http_url(broker: RunningBroker | LocalBroker) -> str:
    """Where it answers. Raises RuntimeError when it does not say so."""
    found = re.search(r"monitoring are answered on (\S+)", broker.log())
    if found is None:
        raise RuntimeError(f"there is no HTTP port: {broker.log()}")
    return found[1].rstrip(",")


class HttpPort:
    """Requests to one broker."""

    def __init__(self, url: str, tokens: dict[TokenRole, str], ca: Path | None = None) -> None:
        self.url = url
        self.tokens = tokens
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = True if ca is None else str(ca)

    def get(self, path: str, role: TokenRole | None = None) -> requests.Response:
        """One answer."""
        return self.session.get(self.url + path, headers=self.headers(role), timeout=PATIENCE_S)

    def headers(self, role: TokenRole | None) -> dict[str, str]:
        """What says who asks."""
        return {} if role is None else {"Authorization": f"Bearer {self.tokens[role]}"}

    def rpc(self, method: str, role: TokenRole, **params: object) -> dict[str, Any]:
        """The reply of JSON-RPC."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = self.session.post(f"{self.url}/rpc", json=request, headers=self.headers(role), timeout=PATIENCE_S)
        answer.raise_for_status()
        reply: dict[str, Any] = answer.json()
        return reply

    def wait_status(self, path: str, status: int) -> None:
        """Until that is the answer. Raises TimeoutError when it never is."""
        self.wait_status_of(path, None, status)

    def wait_status_of(self, path: str, role: TokenRole | None, status: int) -> None:
        """The same with a token, of what may go on without an end."""
        statuses = [0]

        def is_answered() -> bool:
            headers = self.headers(role)
            with self.session.get(self.url + path, headers=headers, timeout=PATIENCE_S, stream=True) as answer:
                statuses.append(answer.status_code)
            return statuses[-1] == status

        wait_until(is_answered, lambda: f"{self.url}{path} answers {statuses[-1]}, not {status}", PATIENCE_S)

    def open_socket(self) -> socket.socket:
        """A connection by hand."""
        host, _, port = self.url.partition("://")[2].partition(":")
        return socket.create_connection((host, int(port)), timeout=PATIENCE_S)

    def send_raw(self, data: bytes) -> bytes:
        """All that is answered to `data`, until the broker closes the connection."""
        with self.open_socket() as connection:
            connection.sendall(data)
            parts = []
            try:
                while part := connection.recv(65536):
                    parts.append(part)
            except ConnectionResetError:
                pass
        return b"".join(parts)


def status_of(answer: bytes) -> int:
    """Of raw bytes; 0: there is none."""
    found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    return 0 if found is None else int(found[1])


def error_of(response: requests.Response) -> str:
    """What is told of a refusal."""
    return str(json.loads(response.text)["error"])
