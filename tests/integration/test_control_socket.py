"""Stories told over a real control socket: who may come in, what comes back, and what a bad caller can spoil."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from limits import LIMIT_S
from polling import wait_until
from qpid_ha_agent.control import ControlClient, RequestRefused, TimedOut, Unreachable
from qpid_ha_broker.server.control.control import ControlError, ControlLimits, ControlServer
from qpid_ha_broker.server.control.control_socket import PeerCredentials
from qpid_ha_broker.server.runtime.data_directory import lock_data_directory
from qpid_ha_broker.server.runtime.logs import configure_logging
from qpid_ha_config.errors import SettingsError
from running_broker import RunningBroker

Story = Callable[[ControlServer], Awaitable[None]]


def echo(params: dict[str, object]) -> object:
    return params


async def echo_later(params: dict[str, object]) -> object:
    await asyncio.sleep(0)
    return params


def refuse(params: dict[str, object]) -> object:
    raise ControlError(-32000, "the queue has messages; purge it first", {"messages": 3})


def fail(params: dict[str, object]) -> object:
    raise KeyError("a bug")


def nothing_json_knows(params: dict[str, object]) -> object:
    return {1, 2}


NESTED = b"[" * 100 + b"]" * 100
METHODS = {
    "echo": echo,
    "echo_later": echo_later,
    "refuse": refuse,
    "fail": fail,
    "nothing_json_knows": nothing_json_knows,
}


def tell(
    tmp_path: Path, story: Story, limits: ControlLimits | None = None, run: Callable[..., None] = asyncio.run
) -> None:
    """Run the story against a server of its own."""

    async def told() -> None:
        server = ControlServer(tmp_path / "node1.sock", METHODS, limits or ControlLimits())
        await server.start()
        try:
            async with asyncio.timeout(20):
                await story(server)
        finally:
            await server.close()

    run(told())


async def ask(path: Path, *lines: bytes) -> list[dict[str, object]]:
    """Send lines as they are, then the end; every answer until the server closes."""
    return await asyncio.to_thread(_ask, path, b"".join(lines))


def _ask(path: Path, lines: bytes) -> list[dict[str, object]]:
    """With a blocking socket: what came before a reset is read first, as any caller can."""
    answers = b""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
        with suppress(BrokenPipeError, ConnectionResetError):
            caller.sendall(lines)
            caller.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while part := caller.recv(65536):
                answers += part
    return [json.loads(answer) for answer in answers.splitlines()]


def request(method: str, identity: object = 1, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": identity, "method": method, "params": params}).encode() + b"\n"


def code_of(answer: dict[str, object]) -> object:
    error = answer["error"]
    return error["code"] if isinstance(error, dict) else None


@pytest.fixture(autouse=True)
def _log_file(tmp_path: Path) -> Iterator[None]:
    configure_logging("info", tmp_path / "log")
    yield
    configure_logging("warning")


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "log").read_text()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_the_client_gets_results_refusals_and_bugs_apart(tmp_path: Path, run: Callable[..., None]) -> None:
    def calls(client: ControlClient) -> None:
        with client:
            assert client.call("echo", name="q", n=[1, "\n", "é"]) == {"name": "q", "n": [1, "\n", "é"]}
            assert client.call("echo_later", a=1) == {"a": 1}
            with pytest.raises(RequestRefused, match="purge it first") as refused:
                client.call("refuse")
            assert (refused.value.code, refused.value.data) == (-32000, {"messages": 3})
            for buggy in ("fail", "nothing_json_knows"):
                with pytest.raises(RequestRefused, match="bug") as bug:
                    client.call(buggy)
                assert bug.value.code == -32603
            with pytest.raises(RequestRefused, match="did you mean echo") as unknown:
                client.call("ecko")
            assert (unknown.value.code, unknown.value.data) == (-32601, {"methods": sorted(METHODS)})
            assert client.call("echo") == {}

    async def story(server: ControlServer) -> None:
        await asyncio.to_thread(calls, ControlClient(server.path))

    tell(tmp_path, story, run=run)
    assert "KeyError: 'a bug'" in log_of(tmp_path)
    assert "purge" not in log_of(tmp_path)


@pytest.mark.parametrize(
    ("line", "code", "goes_on"),
    [
        (b"garbage\n", -32700, False),
        (b"GET / HTTP/1.1\r\n", -32700, False),
        (b"AMQP\x00\x01\x00\x00\n", -32700, False),
        (b"\xff\xfe\n", -32700, False),
        (b"[" * 100_000 + b"\n", -32700, False),
        (b'{"jsonrpc": "2.0", "id": NaN, "method": "echo"}\n', -32700, False),
        (b"x" * 2_000_000 + b"\n", -32600, False),
        (b'{"jsonrpc": "2.0", "id": 1e400, "method": "echo"}\n', -32600, True),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"n": [-1e400]}}\n', -32600, True),
        (b'{"jsonrpc": "2.0", "id": 1%s, "method": "echo"}\n' % (b"0" * 4000), -32600, True),
        (b'{"jsonrpc": "2.0", "id": 1%s, "method": "echo"}\n' % (b"0" * 5000), -32700, False),
        (b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "echo"}\n', -32600, True),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"\\udfff": 1}}\n', -32600, True),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"a": %s}}\n' % NESTED, -32600, True),
        (b"17\n", -32600, True),
        (b"[]\n", -32600, True),
        (b'{"id": 1, "method": "echo"}\n', -32600, True),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 5}\n', -32600, True),
        (b'{"jsonrpc": "2.0", "id": [], "method": "echo"}\n', -32600, True),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": [1]}\n', -32602, True),
        (request("no such"), -32601, True),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_request_gets_one_error_and_spoils_nothing_for_others(
    tmp_path: Path, line: bytes, code: int, goes_on: bool
) -> None:
    async def story(server: ControlServer) -> None:
        answers = await ask(server.path, line, request("echo", 2))
        assert code_of(answers[0]) == code
        assert [answer.get("id") for answer in answers[1:]] == ([2] if goes_on else [])
        (good,) = await ask(server.path, request("echo", 3, ok=True))
        assert good == {"jsonrpc": "2.0", "id": 3, "result": {"ok": True}}

    tell(tmp_path, story)


def test_a_notification_gets_no_answer_and_a_last_line_needs_no_newline(tmp_path: Path) -> None:
    async def story(server: ControlServer) -> None:
        notification = b'{"jsonrpc": "2.0", "method": "echo"}\n'
        answers = await ask(server.path, notification, request("echo", "last")[:-1])
        assert [answer["id"] for answer in answers] == ["last"]

    tell(tmp_path, story)


def test_a_silent_connection_is_closed(tmp_path: Path) -> None:
    async def story(server: ControlServer) -> None:
        reader, writer = await asyncio.open_unix_connection(server.path)
        assert await reader.read() == b""
        writer.close()

    tell(tmp_path, story, ControlLimits(idle_timeout_s=0.05))


def test_one_connection_too_many_is_told_so_and_the_others_go_on(tmp_path: Path) -> None:
    async def story(server: ControlServer) -> None:
        held = [await asyncio.open_unix_connection(server.path) for _ in range(2)]
        for reader, writer in held:
            writer.write(request("echo"))
            await reader.readline()
        with pytest.raises(RequestRefused, match="2 control connections"):
            await asyncio.to_thread(ControlClient(server.path).call, "echo")
        held[0][1].write(request("echo", 2))
        assert json.loads(await held[0][0].readline())["id"] == 2
        held[1][1].write_eof()
        assert await held[1][0].read() == b""  # the server has let go of it
        assert "result" in (await ask(server.path, request("echo")))[0]
        held[0][1].close()

    tell(tmp_path, story, ControlLimits(connections=2))


def test_the_socket_is_for_user_and_group_and_goes_away_with_the_broker(tmp_path: Path) -> None:
    async def story(server: ControlServer) -> None:
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o660

    tell(tmp_path, story)
    assert not (tmp_path / "node1.sock").exists()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_socket_whose_file_was_removed_is_made_again_for_new_callers_and_the_old_ones_go_on(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    async def story(server: ControlServer) -> None:
        reader, writer = await asyncio.open_unix_connection(server.path)
        server.path.unlink()
        await server.restore_socket()

        assert await ask(server.path, request("echo", 1)) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o660
        writer.write(request("echo", 2))
        assert json.loads(await reader.readline())["id"] == 2
        writer.close()

    tell(tmp_path, story, run=run)
    assert not (tmp_path / "node1.sock").exists()


def test_a_socket_that_cannot_be_made_again_is_named_once_and_made_when_it_can_be(tmp_path: Path) -> None:
    directory = tmp_path / "run"

    async def story(server: ControlServer) -> None:
        directory.rename(tmp_path / "away")
        directory.write_text("in the way")
        await server.restore_socket()
        await server.restore_socket()
        assert log_of(tmp_path).count("cannot be made again") == 1
        directory.unlink()
        await server.restore_socket()
        assert await ask(server.path, request("echo", 1)) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]

    directory.mkdir()
    tell(directory, story)


def test_peers_are_judged_by_what_the_kernel_says() -> None:
    ours, _theirs = socket.socketpair(socket.AF_UNIX)
    with ours, _theirs:
        assert PeerCredentials.of(ours) == PeerCredentials(os.getpid(), os.geteuid(), os.getegid())
    group = 4242
    assert PeerCredentials(1, 0, 0).may_administer(group)
    assert PeerCredentials(1, os.geteuid(), 99).may_administer(group)
    assert PeerCredentials(1, 54321, group).may_administer(group)
    assert not PeerCredentials(1, 54321, 54321).may_administer(group)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_another_user_is_refused_even_if_the_file_lets_him_in(tmp_path: Path) -> None:
    async def story(server: ControlServer) -> None:
        server.path.chmod(0o666)
        for directory in (tmp_path, *tmp_path.parents[:3]):
            directory.chmod(0o755)
        command = ["/usr/bin/perl", "-MIO::Socket::UNIX", "-e", NOBODY_ASKS, str(server.path)]
        nobody = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, user=65534, group=65534, extra_groups=[]
        )
        out, _err = await nobody.communicate()
        assert code_of(json.loads(out)) == -32001

    tell(tmp_path, story)
    assert "uid=65534 may not use the control socket" in log_of(tmp_path)


# Not Python: nobody may not be let into where it is installed.
NOBODY_ASKS = "print IO::Socket::UNIX->new(shift)->getline"


def test_what_a_dead_broker_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "node1.sock"))

    async def story(server: ControlServer) -> None:
        assert await ask(server.path, request("echo"))

    tell(tmp_path, story)


def test_a_live_brokers_socket_is_not_taken_over(tmp_path: Path) -> None:
    async def story(server: ControlServer) -> None:
        with pytest.raises(SettingsError, match=r"already listens at .*node1\.sock"):
            await ControlServer(server.path, METHODS).start()
        assert await ask(server.path, request("echo"))

    tell(tmp_path, story)


def test_a_path_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(SettingsError, match="is no socket"):
        asyncio.run(ControlServer(tmp_path / "precious", METHODS).start())
    assert (tmp_path / "precious").read_text() == "data"
    with pytest.raises(SettingsError, match="cannot make"):
        asyncio.run(ControlServer(tmp_path / "no" / "where" / "x.sock", METHODS).start())


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away takes root")
def test_a_directory_that_somebody_else_made_under_a_public_one_is_a_trap(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "qpid-ha-0").mkdir()
    os.chown(tmp_path / "qpid-ha-0", 65534, 65534)
    with pytest.raises(SettingsError, match="belongs to somebody else"):
        asyncio.run(ControlServer(tmp_path / "qpid-ha-0" / "x.sock", METHODS).start())


def test_a_reply_that_is_under_way_goes_out_when_the_broker_stops(tmp_path: Path) -> None:
    async def story(server: ControlServer) -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def slow(params: dict[str, object]) -> object:
            entered.set()
            await leave.wait()
            return "done"

        other = ControlServer(tmp_path / "other.sock", {"slow": slow})
        await other.start()
        asked = asyncio.create_task(ask(other.path, request("slow")))
        await entered.wait()
        asyncio.get_running_loop().call_later(0.05, leave.set)  # while `close` waits for it
        await other.close()
        assert (await asked)[0]["result"] == "done"

    tell(tmp_path, story)


@pytest.mark.parametrize(("identity", "done"), [(1, []), (None, ["pause"])], ids=["a request", "a notification"])
def test_what_was_asked_of_a_stopped_broker_is_not_done_once_the_caller_has_gone(
    tmp_path: Path, identity: int | None, done: list[str]
) -> None:
    """He has given it up, and may have had another broker do it. Who wants no answer need not wait for it."""
    pauses: list[str] = []

    async def story(server: ControlServer) -> None:
        other = ControlServer(tmp_path / "other.sock", {"pause": lambda params: pauses.append("pause")})
        await other.start()
        document = {"jsonrpc": "2.0", "method": "pause"} | ({} if identity is None else {"id": identity})
        with socket.socket(socket.AF_UNIX) as caller:  # the loop stands still until he has gone
            caller.connect(str(other.path))
            caller.sendall(json.dumps(document).encode() + b"\n")
        await ask(other.path, request("no such method"))  # that is behind it
        await other.close()
        assert other.refused == ({("pause", "caller-gone"): 1} if identity else {})

    tell(tmp_path, story)
    assert pauses == done
    assert ("who has gone since" in log_of(tmp_path)) is (identity is not None)


# --- the client alone -------------------------------------------------------------------------------------


def test_who_connects_as_the_broker_stops_is_hung_up_on_without_a_traceback(tmp_path: Path) -> None:
    async def story(server: ControlServer) -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        await server.close()
        await server._serve(reader, writer)  # as for who was accepted a moment before that
        await writer.wait_closed()
        with ours:
            assert ours.recv(1) == b""

    tell(tmp_path, story)


def test_no_broker_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"absent\.sock: No such file"):
        ControlClient(tmp_path / "absent.sock").call("ping")
    with pytest.raises(Unreachable, match="too long"):
        ControlClient("/" + "x" * 200).call("ping")


def test_a_broker_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(tmp_path / "s"))
        hanging.listen()
        with pytest.raises(TimedOut, match=r"within 0\.05 s"):
            ControlClient(tmp_path / "s", timeout_s=0.05).call("ping")


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\n", b"[]\n", b'{"id": 7, "result": 1}\n', b'{"id": 1}\n'])
def test_what_is_no_broker_is_unreachable(tmp_path: Path, answer: bytes) -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    async def story() -> None:
        server = await asyncio.start_unix_server(impostor, tmp_path / "s")
        async with server:
            with pytest.raises(Unreachable, match=r"no qpid-ha broker|without an answer"):
                await asyncio.to_thread(ControlClient(tmp_path / "s", 5).call, "ping")

    asyncio.run(story())


# --- the data directory and the log -----------------------------------------------------------------------


def test_one_broker_per_data_directory(tmp_path: Path) -> None:
    first = lock_data_directory(tmp_path / "data")
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    with pytest.raises(SettingsError, match=rf"data-dir: .*/data is in use by another broker \(pid {os.getpid()}\)"):
        lock_data_directory(tmp_path / "data")
    os.close(first)
    os.close(lock_data_directory(tmp_path / "data"))


def test_a_data_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"data-dir: cannot use .*/file"):
        lock_data_directory(tmp_path / "file")


def test_a_peer_cannot_forge_a_log_line_or_flood_one(tmp_path: Path) -> None:
    logging.getLogger("qpid_ha_broker.server.connection").warning("peer=%s", "evil\n2026 info fake \x1b[31m\u202e")
    logging.getLogger("qpid_ha_broker.server.connection").info("peer=%s", "x" * 100_000)
    logging.getLogger("qpid_ha_broker.server.connection").debug("nobody asked")
    forged, flood = log_of(tmp_path).splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(stamp + r" warning connection peer=evil\\n2026 info fake \\x1b\[31m\\u202e", forged)
    assert len(flood) < 5000


def test_a_traceback_is_for_bugs_or_for_who_asks(tmp_path: Path) -> None:
    def log_both() -> None:
        try:
            raise ValueError("what")
        except ValueError:
            logging.getLogger("x").warning("peer did wrong", exc_info=True)
            logging.getLogger("x").exception("we did wrong")

    log_both()
    assert log_of(tmp_path).count("Traceback") == 1
    configure_logging("debug", tmp_path / "log")
    log_both()
    assert log_of(tmp_path).count("Traceback") == 3
    assert all(line[0] in "2 " for line in log_of(tmp_path).splitlines())


def test_a_log_file_that_cannot_be_written_is_named() -> None:
    with pytest.raises(SettingsError, match="log-file: cannot write /nonexistent/log"):
        configure_logging("info", Path("/nonexistent/log"))


def test_a_running_broker_makes_its_socket_again_when_somebody_has_removed_the_file() -> None:
    with RunningBroker() as broker:
        broker.control_socket.unlink()
        wait_until(broker.control_socket.exists, lambda: broker.log_path.read_text(encoding="utf-8"))
        with ControlClient(broker.control_socket, LIMIT_S) as client:
            assert client.call("ping")


def test_a_broker_says_which_process_it_is_and_has_the_name_that_an_operator_looks_for() -> None:
    with RunningBroker() as broker, ControlClient(broker.control_socket, LIMIT_S) as client:
        facts = client.call("query")
        assert isinstance(facts, dict)
        comm = Path(f"/proc/{facts['pid']}/comm").read_text(encoding="utf-8")
        assert (broker.process is not None and broker.process.pid, comm) == (facts["pid"], "qpidd\n")
