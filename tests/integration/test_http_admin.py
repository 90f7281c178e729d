"""Stories about the HTTP port of a broker: who is let in, what load balancers and Prometheus read, bad requests."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from admin_tool import qpid_ha
from certificate_authority import Authority
from http_port import PATIENCE_S, HttpPort, error_of, http_url, status_of, write_tokens
from polling import wait_until
from qpid_ha_broker.metrics.families import all_families
from qpid_ha_broker.server.http.state_news import LISTENERS_MAX
from qpid_ha_config.tokens import TokenRole
from running_broker import RunningBroker

pytestmark = pytest.mark.direct_only("the HTTP port is about the broker that is asked")

METRICS, VIEWER, OPERATOR, ADMIN = TokenRole
OF_OTHERS = ("agent", "backup", "controller", "replica", "group")
"""Parts of names of figures that are told elsewhere, or there only for some sets."""
HEALTH = ("/live", "/ready", "/primary", "/replica", "/in-sync")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, HttpPort]]:
    """One broker for all questions that leave it as it was."""
    tokens_file = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens = write_tokens(tokens_file)
    settings = {"admin.listen": "http://127.0.0.1:0", "admin.tokens": str(tokens_file)}
    with RunningBroker(settings) as broker:
        yield broker, HttpPort(http_url(broker), tokens)


@pytest.fixture
def port(shared: tuple[RunningBroker, HttpPort]) -> Iterator[HttpPort]:
    broker, port = shared
    yield HttpPort(port.url, port.tokens)
    assert port.get("/live").status_code == 200
    assert "a bug" not in broker.log()
    assert "Traceback" not in broker.log()
    assert not any(token in broker.log() for token in port.tokens.values())


# --- load balancers


def test_load_balancers_need_no_token_and_learn_why_not(port: HttpPort) -> None:
    answers = {path: port.get(path) for path in HEALTH}
    assert [answers[path].status_code for path in HEALTH] == [200, 200, 200, 503, 200]
    assert answers["/replica"].json() == {
        "name": "test",
        "state": "standalone",
        "lag_s": 0.0,
        "reason": "it is standalone",
    }
    for path in HEALTH:
        head = port.session.head(port.url + path, timeout=PATIENCE_S)
        assert (head.status_code, head.content) == (answers[path].status_code, b"")
        options = port.session.options(port.url + path, timeout=PATIENCE_S)
        assert (options.status_code, options.headers["Allow"]) == (204, "GET, HEAD, OPTIONS")


@pytest.mark.parametrize("query", ["max-lag=x", "max-lag=-1", "max-lag=nan", "max-lag=1&max-lag=2", "lag=1"])
def test_a_question_with_a_slip_is_refused(port: HttpPort, query: str) -> None:
    assert port.get(f"/replica?{query}").status_code == 400


# --- who may what


def test_without_the_role_nothing_is_told_and_nothing_done(port: HttpPort) -> None:
    assert port.get("/metrics").status_code == 401
    assert port.get("/metrics", METRICS).status_code == 200
    assert port.rpc("queues", VIEWER)["result"] == []
    refused = port.rpc("queues", VIEWER, action="create", name="q")["error"]
    assert refused["code"] == -32001
    assert "queues create takes operator" in refused["message"]
    assert port.rpc("shutdown", OPERATOR)["error"]["code"] == -32001
    assert port.rpc("no-such", OPERATOR)["error"]["code"] == -32001
    assert "did you mean" in port.rpc("statu", ADMIN)["error"]["message"]
    answer = port.session.post(f"{port.url}/rpc", json={}, headers=port.headers(METRICS), timeout=PATIENCE_S)
    assert (answer.status_code, error_of(answer)) == (403, "metrics has the role metrics, and this takes viewer")


def test_a_wrong_token_is_told_and_counted_and_not_logged(
    shared: tuple[RunningBroker, HttpPort], port: HttpPort
) -> None:
    wrong = {"Authorization": "Bearer not-a-token-of-anybody"}
    answer = port.session.get(f"{port.url}/metrics", headers=wrong, timeout=PATIENCE_S)
    assert (answer.status_code, "Bearer" in answer.headers["WWW-Authenticate"]) == (401, True)
    assert "qpid_ha_http_wrong_tokens_total 1\n" in port.get("/metrics", METRICS).text
    assert shared[0].await_log("a wrong token came from 127.0.0.1")
    assert "not-a-token" not in shared[0].log()


def test_many_wrong_tokens_keep_no_right_one_waiting(port: HttpPort) -> None:
    wrong = {"Authorization": "Bearer not-a-token-of-anybody"}

    def guess(_: int) -> int:
        return requests.get(f"{port.url}/metrics", headers=wrong, timeout=PATIENCE_S).status_code

    with ThreadPoolExecutor(48) as pool:
        guesses = [pool.submit(guess, number) for number in range(48)]
        assert port.get("/metrics", METRICS).status_code == 200
        assert {each.result() for each in guesses} == {401, 429}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_page_of_another_site_can_ask_for_nothing(port: HttpPort, headers: dict[str, str]) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    sent = {**port.headers(ADMIN), **headers}
    answer = port.session.post(f"{port.url}/rpc", json=request, headers=sent, timeout=PATIENCE_S)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


# --- charts


def test_charts_have_figures_of_the_process_and_of_the_messages_for_who_may_look(port: HttpPort) -> None:
    assert port.get("/charts").status_code == 401
    assert port.get("/charts", METRICS).status_code == 403
    told: dict[str, Any] = {}

    def has_rates() -> bool:
        told.update(port.get("/charts?span=20m", VIEWER).json())
        return any(each is not None for each in told["figures"]["in"])

    wait_until(has_rates, lambda: f"no rates: {told}", PATIENCE_S)
    assert {len(values) for values in told["figures"].values()} == {len(told["figures"]["in"])}
    last = {name: values[-1] for name, values in told["figures"].items()}
    assert (last["depth"], last["in"], last["connections"] >= 0) == (0, 0, True)
    assert 10_000_000 < last["memory"] < 1_000_000_000
    assert 0 < last["descriptors"] < told["limits"]["descriptors"]
    assert "disk_free" not in told["limits"]  # it keeps nothing on a disk
    assert abs(told["newest_ms"] - time.time() * 1000) < 2000 * told["step_s"] + 2000
    assert port.get("/charts?span=24h", VIEWER).json()["step_s"] == 360


@pytest.mark.parametrize("query", ["span=1w", "spam=1h"])
def test_a_chart_that_is_asked_for_with_a_slip_is_refused(port: HttpPort, query: str) -> None:
    assert port.get(f"/charts?{query}", VIEWER).status_code == 400


def test_there_is_no_chart_of_a_queue_that_is_not_here(port: HttpPort) -> None:
    answer = port.get("/charts?queue=no-such-queue", VIEWER)
    assert (answer.status_code, "no replica of a queue 'no-such-queue'" in error_of(answer)) == (404, True)


# --- the web page


def test_the_page_is_served_to_everybody_and_can_run_nothing_but_its_own_scripts(port: HttpPort) -> None:
    page = port.get("/")
    assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    named = re.findall(r'(?:src|href)="(/[^"]*)"', page.text)
    assert len(named) >= 2
    for path in ("/", *named):
        headers = port.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    assert "<script>" not in page.text
    assert "style=" not in page.text


@pytest.mark.parametrize("path", ["/events", "/queues"])
def test_what_the_page_asks_for_takes_a_token_of_a_viewer_and_a_page_of_this_broker(port: HttpPort, path: str) -> None:
    assert port.get(path).status_code == 401
    assert port.get(path, METRICS).status_code == 403
    foreign = {**port.headers(ADMIN), "Origin": "https://evil.example"}
    assert port.session.get(port.url + path, headers=foreign, timeout=PATIENCE_S).status_code == 403


@pytest.mark.parametrize(
    "query", ["sort=x", "count=101", "count=-1", "offset=x", "descending=yes", "only=x", "x=1", "filter=" + "a" * 257]
)
def test_a_list_of_queues_with_a_slip_is_refused(port: HttpPort, query: str) -> None:
    assert port.get(f"/queues?{query}", VIEWER).status_code == 400


def test_so_many_pages_listen_and_no_more_and_each_hears_who_it_is(port: HttpPort) -> None:
    streams = []
    for _ in range(LISTENERS_MAX):
        stream = port.session.get(f"{port.url}/events", headers=port.headers(VIEWER), timeout=PATIENCE_S, stream=True)
        streams.append(stream)
        assert (stream.status_code, stream.headers["Content-Type"]) == (200, "text/event-stream")
    lines = streams[0].iter_lines()
    assert next(lines) == b"event: hello"
    assert json.loads(next(lines).removeprefix(b"data: "))["role"] == "viewer"
    assert port.get("/events", VIEWER).status_code == 503
    for stream in streams:
        stream.close()
    port.wait_status_of("/events", VIEWER, 200)


# --- bad requests


def test_requests_that_are_too_large_or_of_another_kind_are_refused(port: HttpPort) -> None:
    large = b"x" * (1024 * 1024 + 1)
    headers = {**port.headers(ADMIN), "Content-Type": "application/json"}
    assert port.session.post(f"{port.url}/rpc", data=large, headers=headers, timeout=PATIENCE_S).status_code == 413
    chunked = (large[at : at + 65536] for at in range(0, len(large), 65536))
    assert port.session.post(f"{port.url}/rpc", data=chunked, headers=headers, timeout=PATIENCE_S).status_code == 413
    form = {"method": "ping"}
    sent = port.headers(ADMIN)
    assert port.session.post(f"{port.url}/rpc", data=form, headers=sent, timeout=PATIENCE_S).status_code == 415
    assert (
        port.session.post(f"{port.url}/rpc", data="{", headers=headers, timeout=PATIENCE_S).json()["error"]["code"]
        == -32700
    )
    assert port.session.put(f"{port.url}/rpc", timeout=PATIENCE_S).status_code == 405
    head = b"GET /live HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n"
    assert status_of(port.send_raw(head)) == 400


def test_a_slow_request_goes_and_a_slow_body_is_told(port: HttpPort) -> None:
    head = (
        f"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {port.tokens[ADMIN]}"
    )
    body = f"{head}\r\nContent-Length: 100\r\n\r\n{{".encode()
    with ThreadPoolExecutor(2) as pool:
        drop_by_drop, half_a_body = pool.submit(_is_dropped, port), pool.submit(port.send_raw, body)
        assert status_of(half_a_body.result()) == 408
        assert drop_by_drop.result()


def _is_dropped(port: HttpPort) -> bool:
    """A head that goes on and on: whether the broker ends the connection."""
    with port.open_socket() as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\nX: ")
        connection.settimeout(0.2)
        for _ in range(int(PATIENCE_S / 0.2)):
            try:
                connection.sendall(b"y")
                if connection.recv(1) == b"":
                    return True
            except TimeoutError:
                continue
            except ConnectionError:
                return True
    return False


def answered(connection: socket.socket) -> bytes:
    """What the broker says to one that sends nothing."""
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


def test_more_connections_than_there_is_room_for_are_told_so_and_the_others_served(port: HttpPort) -> None:
    held = [port.open_socket() for _ in range(140)]  # 128 have room; those that have sent nothing for longest lose it
    try:
        # 0: it was reset before the answer was read
        assert all(status_of(answered(each)) in (0, 503) for each in held[:12])
    finally:
        for each in held:
            each.close()
    port.wait_status("/live", 200)
    assert "qpid_ha_http_refused_connections_total 0" not in port.get("/metrics", METRICS).text


# --- metrics


def test_each_figure_is_told_once_something_has_happened(port: HttpPort) -> None:
    """Those of a cluster are in the story of a cluster."""
    port.rpc("queues", OPERATOR, action="create", name='a "queue"\\')
    port.rpc("queues", OPERATOR, action="read", name="missing")
    text = port.get("/metrics", METRICS).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    told = {sample.name for family in families.values() for sample in family.samples}
    expected = {family.name for family in all_families() if family.kind != "histogram"}
    of_others = {name for name in expected if any(part in name for part in OF_OTHERS)}
    of_stores = {name for name in expected if "store" in name or "journal" in name or "snapshot" in name}
    of_stores |= {"qpid_ha_set_paged_bytes", "qpid_ha_set_unreadable_messages"}
    assert expected - told == of_others | of_stores
    (depth,) = families["qpid_ha_queue_messages"].samples
    assert depth.labels == {"queue": 'a "queue"\\', "set": "default"}
    refused = families["qpid_ha_requests_refused"].samples
    assert {"method": "queues", "reason": "not-found"} in [each.labels for each in refused]
    port.rpc("queues", OPERATOR, action="delete", name='a "queue"\\')


def test_promtool_finds_nothing(port: HttpPort) -> None:
    if shutil.which("promtool") is None:
        pytest.fail("promtool is missing: ./dev setup installs Debian's prometheus")
    text = port.get("/metrics", METRICS).text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_scrapes_at_once_all_get_the_whole_text(port: HttpPort) -> None:
    def scrape(_: int) -> bool:
        return port.get("/metrics", METRICS).text.endswith("\n")

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(scrape, range(200)))


# --- TLS, and what is imported


def test_an_administrator_comes_through_https_and_no_other_way(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    key.chmod(0o600)
    tokens = write_tokens(tmp_path / "tokens")
    settings = {
        "admin.listen": "https://127.0.0.1:0", "admin.tokens": str(tmp_path / "tokens"),
        "tls.certificate": str(certificate), "tls.key": str(key), "tls.versions": "TLSv1.3",
    }  # fmt: skip
    with RunningBroker(settings) as broker:
        url = http_url(broker)
        given = {"QPID_HA_TOKEN": tokens[OPERATOR], "REQUESTS_CA_BUNDLE": str(authority.certificate)}
        assert qpid_ha("-b", url, "queue", "create", "orders", **given).stdout == "queue orders created\n"
        assert "orders" in qpid_ha("-b", url, "queue", "list", **given).stdout
        refused = qpid_ha("-b", url, "set", "log-level", "debug", **given)
        assert (refused.exit_code, "takes admin" in refused.stderr) == (4, True)
        without = qpid_ha("-b", url, "ping", REQUESTS_CA_BUNDLE=str(authority.certificate))
        assert (without.exit_code, "QPID_HA_TOKEN" in without.stderr) == (4, True)
        stranger = qpid_ha("-b", url, "ping", QPID_HA_TOKEN=tokens[ADMIN])
        assert (stranger.exit_code, "TLS with" in stranger.stderr) == (3, True)
        far = qpid_ha("-b", url.replace("https", "http").replace("127.0.0.1", "192.0.2.1"), "ping", **given)
        assert (far.exit_code, "in the clear" in far.stderr) == (2, True)

        old = ssl.create_default_context(cafile=str(authority.certificate))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        port = HttpPort(url, tokens, authority.certificate)
        with port.open_socket() as plain, pytest.raises((ssl.SSLError, ConnectionError)):
            old.wrap_socket(plain, server_hostname="127.0.0.1")
        assert port.get("/primary").status_code == 200


def test_a_token_is_made_used_and_taken_away_while_the_broker_runs(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    made = qpid_ha("token", "create", "ops", "--role", "viewer", "--file", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    assert qpid_ha("token", "create", "ops", "--role", "admin", "--file", str(file)).exit_code == 1
    with RunningBroker({"admin.listen": "http://127.0.0.1:0", "admin.tokens": str(file)}) as broker:
        url, token = http_url(broker), made.stdout.strip()
        assert qpid_ha("-b", url, "ping", QPID_HA_TOKEN=token).stdout == "test is alive\n"
        file.write_text("rubbish\n")
        assert qpid_ha("token", "list", "--file", str(file)).exit_code == 1
        requests.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S)
        file.write_text("# nobody\n")
        second = qpid_ha("token", "create", "two", "--role", "viewer", "--file", str(file)).stdout.strip()
        port = HttpPort(url, {VIEWER: second, ADMIN: token})
        while port.session.get(f"{url}/metrics", headers=port.headers(VIEWER), timeout=PATIENCE_S).status_code != 200:
            pass  # a wrong token waits for longer each time
        assert port.get("/metrics", ADMIN).status_code == 401
        assert qpid_ha("token", "remove", "two", "--file", str(file)).exit_code == 0
        assert "two" not in file.read_text()


def test_without_a_port_nothing_of_it_is_imported(tmp_path: Path) -> None:
    code = "import sys; import qpid_ha_broker.server.command_line; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    imported = set(found.stdout.split())
    assert not {"aiohttp", "requests", "qpid_ha_broker.metrics", "qpid_ha_config.tokens"} & imported


def test_while_the_store_is_loaded_the_broker_lives_and_is_not_ready_and_stops_in_order(tmp_path: Path) -> None:
    settings = {"admin.listen": "http://127.0.0.1:0", "data-dir": str(tmp_path / "data")}
    with RunningBroker(settings) as broker:
        port = HttpPort(http_url(broker), {})
        assert port.get("/primary").status_code == 200
        os.kill(broker.pid, signal.SIGTERM)
        assert broker.stop() == 0
