"""Stories about clients that speak AMQP over WebSockets at the HTTP port: the same broker, logins and limits."""

from __future__ import annotations

import asyncio
import shutil
import signal
import ssl
import subprocess
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import proton
import pytest

from certificate_authority import Authority
from http_port import http_url
from limits import LIMIT_S
from running_broker import RunningBroker
from running_cluster import RunningCluster
from web_socket_client import WebSocketClient

pytestmark = pytest.mark.direct_only("the HTTP port is about the broker that is asked")

SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin") or "saslpasswd2"
NODE_DIRECTORY = Path(__file__).parent / "node"
HANDSHAKE_S = 3
SHOP = "https://shop.example.org"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    settings: dict[str, Any] = {
        "admin.listen": "http://127.0.0.1:0",
        "admin.amqp": True,
        "admin.amqp-origins": SHOP,
        "handshake-timeout": f"{HANDSHAKE_S}s",
        "max-connections": 5,
    }
    with RunningBroker(settings) as broker:
        yield broker
        assert "a bug" not in broker.log()
        assert "Traceback" not in broker.log()


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return http_url(broker)


def run(story: Coroutine[Any, Any, Any]) -> Any:
    async def within() -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await story

    return asyncio.run(within())


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_messages_go_to_and_fro_however_their_frames_are_cut(url: str, cut: int) -> None:
    async def story() -> None:
        bodies = ["a", "b" * (2000 if cut == 1 else 200_000), {"c": [1, 2]}]
        async with WebSocketClient(url, cut=cut) as client:
            assert client.socket.protocol == "amqp"
            sender = await client.sender(f"web-{cut}")
            assert await client.send(sender, *bodies) == [proton.Delivery.ACCEPTED] * 3
            assert await client.receive(f"web-{cut}", 3) == bodies
            client.connection.close()
            with pytest.raises(EOFError):
                await client.until(lambda: False)
            assert client.connection.state & proton.Endpoint.REMOTE_CLOSED
            assert client.close_code == 1000

    run(story())


def test_what_a_web_client_sends_others_get(url: str, broker: RunningBroker) -> None:
    async def story() -> None:
        async with WebSocketClient(url) as client:
            await client.send(await client.sender("shared"), "from the web")

    run(story())
    from proton.utils import BlockingConnection

    connection = BlockingConnection(broker.url, timeout=LIMIT_S)
    receiver = connection.create_receiver("shared", credit=1)
    assert receiver.receive(timeout=LIMIT_S).body == "from the web"
    receiver.accept()
    connection.close()


@pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_DIRECTORY / "node_modules" / "rhea").exists(),
    reason="Node or rhea is missing: ./dev setup installs them",
)
def test_rhea_speaks_over_the_web_socket_of_its_platform(url: str) -> None:
    command = ["node", "--experimental-websocket", str(NODE_DIRECTORY / "web_socket.js")]
    command += [f"{url.replace('http', 'ws')}/amqp", "rhea"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (result.returncode, result.stdout) == (0, "[1,200000]\n"), result.stderr


def test_text_is_refused_and_a_ping_is_answered(url: str, broker: RunningBroker) -> None:
    async def story() -> None:
        async with WebSocketClient(url, autoping=False) as client:
            await client.sender("pinged")
            await client.socket.ping(b"are you there")
            message = await client.socket.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.PONG, b"are you there")
            await client.socket.send_str("AMQP")
            with pytest.raises(EOFError):
                await client.until(lambda: False)
            assert client.close_code == 1003

    run(story())
    assert "AMQP comes in binary messages, not in text" in broker.log()


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"protocols": ()}, 400),
        ({"protocols": ("mqtt",)}, 400),
        ({"origin": "https://evil.example.org"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_who_asks_for_another_protocol_or_comes_from_another_site_is_refused(
    url: str, options: dict[str, Any], status: int
) -> None:
    async def story() -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with WebSocketClient(url, **options):
                pass
        assert refused.value.status == status

    run(story())


@pytest.mark.parametrize("is_own", [False, True])
def test_a_page_of_a_named_site_or_of_the_port_itself_may(url: str, is_own: bool) -> None:
    async def story() -> None:
        async with WebSocketClient(url, origin=url if is_own else SHOP) as client:
            await client.sender("shop")

    run(story())


def test_what_is_no_upgrade_is_told_what_to_do(url: str) -> None:
    async def story() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/amqp") as answer:
                assert (answer.status, answer.headers["Upgrade"]) == (426, "websocket")
            headers = {"Upgrade": "websocket", "Connection": "keep-alive, Upgrade", "Sec-WebSocket-Version": "12"}
            async with session.get(f"{url}/amqp", headers=headers) as answer:
                assert (answer.status, answer.headers["Sec-WebSocket-Version"]) == (426, "13")
            headers |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Protocol": "amqp", "Sec-WebSocket-Key": "no"}
            async with session.get(f"{url}/amqp", headers=headers) as answer:
                assert answer.status == 400
            async with session.post(f"{url}/amqp") as answer:
                assert answer.status == 405

    run(story())


def test_they_are_counted_among_the_clients_and_who_is_silent_is_dropped(url: str) -> None:
    async def story() -> None:
        silent = WebSocketClient(url)
        async with silent, contextful(url, 5):
            async with WebSocketClient(url) as refused:
                with pytest.raises(EOFError):
                    await refused.until(lambda: False)
                assert refused.connection.remote_condition.name == "amqp:resource-limit-exceeded"
            message = await silent.socket.receive()
            assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING)

    run(story())


class contextful:  # noqa: N801 - a context, used once
    """So many clients that are connected."""

    def __init__(self, url: str, count: int) -> None:
        self._clients = [WebSocketClient(url) for _ in range(count)]

    async def __aenter__(self) -> None:
        for client in self._clients:
            await client.__aenter__()
            await client.sender("many")

    async def __aexit__(self, *error: Any) -> None:
        for client in self._clients:
            await client.__aexit__(*error)


def test_who_does_not_read_is_sent_no_more_than_the_socket_takes(url: str) -> None:
    """Of 32 MB that it has credit for it reads a part: others are served, and the rest is there for them."""

    async def story() -> None:
        body, count = "x" * 256 * 1024, 128
        async with WebSocketClient(url) as client:
            sender = await client.sender("deep")
            for _ in range(count):
                await client.send(sender, body)
            async with WebSocketClient(url, max_msg_size=0) as lazy:
                link = lazy.session.receiver("lazy")
                link.source.address = "deep"
                await lazy.attach(link, count)  # and it reads nothing more
                await client.send(await client.sender("other"), "x")
                assert await client.receive("other", 1) == ["x"]
                lazy.socket._response.close()  # the socket is gone, without a word
                assert len(await client.receive("deep", count)) == count

    run(story())


@pytest.mark.skipif(not proton.SASL.extended(), reason="this Proton was built without Cyrus SASL (libsasl2-dev)")
def test_the_login_is_that_of_sasl(tmp_path: Path) -> None:
    users_db = tmp_path / "users.sasldb"
    command = [SASLPASSWD, "-p", "-c", "-f", str(users_db), "ada"]
    subprocess.run(command, input=b"secret of ada", check=True, timeout=LIMIT_S)
    settings: dict[str, Any] = {
        "admin.listen": "http://127.0.0.1:0",
        "admin.amqp": True,
        "sasl.users-db": users_db,
        "sasl.allow-anonymous": False,
    }

    async def story(url: str) -> None:
        async with WebSocketClient(url, user="ada", password="secret of ada") as client:
            await client.send(await client.sender("mine"), "x")
        async with WebSocketClient(url, user="ada", password="wrong") as client:
            with pytest.raises(EOFError):
                await client.until(lambda: client.connection.state & proton.Endpoint.REMOTE_ACTIVE)
        async with WebSocketClient(url) as nobody:
            with pytest.raises(EOFError):
                await nobody.until(lambda: nobody.connection.state & proton.Endpoint.REMOTE_ACTIVE)

    with RunningBroker(settings) as broker:
        run(story(http_url(broker)))


def test_over_https_it_is_encrypted_as_the_port_is(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    settings = {
        "admin.listen": "https://127.0.0.1:0",
        "admin.amqp": True,
        "tls.certificate": certificate,
        "tls.key": key,
    }

    async def story(url: str) -> None:
        trusted = ssl.create_default_context(cafile=str(authority.certificate))
        async with WebSocketClient(url, ssl=trusted) as client:
            sender = await client.sender("hidden")
            assert await client.send(sender, "x" * 300_000) == [proton.Delivery.ACCEPTED]
            client.connection.close()
            with pytest.raises(EOFError):
                await client.until(lambda: False)
            assert client.close_code == 1000

    with RunningBroker(settings) as broker:
        run(story(http_url(broker)))


def test_without_the_setting_there_is_no_such_path() -> None:
    async def story(url: str) -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with WebSocketClient(url):
                pass
        assert refused.value.status == 404

    with RunningBroker({"admin.listen": "http://127.0.0.1:0"}) as broker:
        run(story(http_url(broker)))


def test_a_client_at_a_proxy_goes_on_when_the_primary_is_killed(tmp_path: Path) -> None:
    settings = {"admin": {"listen": "http://127.0.0.1:0", "amqp": True}, "ha": {"clients": "proxy"}}
    with RunningCluster(tmp_path, settings=settings) as cluster:
        cluster.form(0)

        async def story() -> None:
            async with WebSocketClient(http_url(cluster.broker(2))) as client:
                sender = await client.sender("q")
                assert await client.send(sender, "before") == [proton.Delivery.ACCEPTED]
                cluster.kill(0)
                cluster.promote(1)
                assert await client.send(sender, "after") == [proton.Delivery.ACCEPTED]
                assert await client.receive("q", 2) == ["before", "after"]

        run(story())


def test_a_broker_that_stops_says_so_and_ends() -> None:
    async def story(broker: RunningBroker) -> None:
        async with WebSocketClient(http_url(broker)) as client:
            await client.sender("last")
            assert broker.process is not None
            broker.process.send_signal(signal.SIGTERM)
            with pytest.raises(EOFError):
                await client.until(lambda: False)
            assert client.connection.remote_condition.name == "amqp:connection:forced"
            assert client.close_code == 1000

    with RunningBroker({"admin.listen": "http://127.0.0.1:0", "admin.amqp": True}) as broker:
        run(story(broker))
