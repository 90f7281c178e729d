"""Calls and streams of etcd's gateway at servers that answer some requests, and hang in others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from limits import LIMIT_S
from qpid_ha_broker.coordination import etcd_gateway
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.deadline import Deadline
from qpid_ha_broker.coordination.etcd_gateway import EtcdGateway
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings

SHORT_S = 0.05
"""How long a server may take in these tests."""
HUNG_S = 5.0
"""Then a server that hangs ends the connection, so that who waits for it fails with another error."""
RANGE, WATCH = "/v3/kv/range", "/v3/watch"


class FakeEtcd:
    """One server; requests to a path in `hanging` are read, and not answered."""

    def __init__(self) -> None:
        self.hanging: set[str] = set()
        self.says_more = threading.Event()
        """Then the stream goes on after its first message."""
        self.is_over = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if self.path in fake.hanging:
                    fake.is_over.wait(HUNG_S)
                    return
                self.send_response(200)
                if self.path == WATCH:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self._tell(1)
                    fake.says_more.wait()
                    self._tell(2)
                    self.wfile.write(b"0\r\n\r\n")
                    return
                content = json.dumps({"header": {"revision": "1"}}).encode()
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _tell(self, revision: int) -> None:
                line = json.dumps({"result": {"header": {"revision": str(revision)}}}).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

            def log_message(self, format: str, *args: object) -> None:
                """Nowhere."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that has gone is none."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.is_over.set()
        self.says_more.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeEtcd]]:
    """Two, which are asked in this order."""
    monkeypatch.setattr(etcd_gateway, "ATTEMPT_S", SHORT_S)
    monkeypatch.setattr("random.shuffle", lambda servers: None)
    with ExitStack() as stack:
        fakes = [FakeEtcd(), FakeEtcd()]
        for fake in fakes:
            stack.callback(fake.close)
        yield fakes


@pytest.fixture
def gateway(servers: list[FakeEtcd], tmp_path: Path) -> Iterator[EtcdGateway]:
    url = CoordinatorUrl.parse(f"etcd://{','.join(each.address for each in servers)}/c1")
    opened = EtcdGateway(CoordinatorSettings(url))
    yield opened
    opened.close()


def test_a_server_that_hangs_before_its_stream_begins_is_left_at_once(
    servers: list[FakeEtcd], gateway: EtcdGateway
) -> None:
    first = gateway.read_prefix("c1/", Deadline.after(LIMIT_S)).server
    servers[0].hanging = {RANGE, WATCH}
    with pytest.raises(CoordinatorError, match=f"{first}: no answer"):
        gateway.open_watch(first, "c1/", 1)
    assert gateway.read_prefix("c1/", Deadline.after(LIMIT_S)).server != first


def test_a_stream_that_has_begun_may_be_silent_for_longer_than_a_call(
    servers: list[FakeEtcd], gateway: EtcdGateway
) -> None:
    read = gateway.read_prefix("c1/", Deadline.after(LIMIT_S))
    told = iter(gateway.open_watch(read.server, "c1/", 1))
    assert next(told).revision == 1
    threading.Timer(4 * SHORT_S, servers[0].says_more.set).start()
    assert next(told).revision == 2


def test_a_stream_of_a_server_at_which_a_call_has_failed_meanwhile_ends(
    servers: list[FakeEtcd], gateway: EtcdGateway
) -> None:
    """No later call goes to that server first, so nobody would notice that the stream says nothing."""
    read = gateway.read_prefix("c1/", Deadline.after(LIMIT_S))
    servers[0].hanging = {RANGE}
    assert gateway.read_prefix("c1/", Deadline.after(LIMIT_S)).server != read.server
    stream = gateway.open_watch(read.server, "c1/", 1)
    servers[0].says_more.set()
    assert 2 not in [answer.revision for answer in stream]
