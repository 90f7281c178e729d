"""The process that has loaded the agent, asked through `ocf/qpid-ha`, as Pacemaker does it; and what becomes of an
action when it is killed, hangs, is of an older version, or is not there.

The broker and Pacemaker's tools are scripted; an action that takes its time is a monitor of a broker that is stopped.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import qpid_ha_agent
from child_process import child_process
from ocf_resource import IN_SYNC, PRIMARY
from polling import wait_until
from qpid_ha_agent import actions
from qpid_ha_agent.ocf import action_server
from qpid_ha_agent.ocf.codes import OcfCode
from qpid_ha_agent.ocf.memory import DIRECTORY_VARIABLE, MemoryFile
from qpid_ha_agent.pacemaker import companions
from qpid_ha_agent.pacemaker.companions import client_file_of, end_server, server_of, socket_of, start_server
from scripted_broker import ScriptedBroker
from scripted_pacemaker import NODE, ScriptedPacemaker

SCRIPT = Path(__file__).parents[2] / "ocf" / "qpid-ha"
TIMEOUT_S = 20.0
HANG_TIMEOUT_S, LONG_S = 2.0, 10.0
PLAIN = "plain"
"""Said by the program that is run where no server answers."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the agent wants to be root, as Pacemaker's agents are")


class Node:
    """One with a broker that runs, and an action server."""

    def __init__(self, broker: ScriptedBroker, pacemaker: ScriptedPacemaker) -> None:
        self.broker = broker
        self.memory = MemoryFile("broker", broker.directory / "state")
        self.memory.note(control_socket=str(broker.control_socket), is_started=True, score="500")
        tools = broker.directory / "plain"
        tools.mkdir()
        agent = "import sys; from qpid_ha_agent.cli.quick import main; main()"
        program = tools / "qpid-ha-agent"
        program.write_text(f"#!/bin/sh\necho {PLAIN}\nexec {sys.executable} -c '{agent}' \"$@\"\n", encoding="utf-8")
        program.chmod(0o755)
        self.environment = {
            "PATH": f"{tools}:{pacemaker.path}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OCF_RESOURCE_INSTANCE": "broker:0",
            "OCF_RESKEY_config": str(broker.config),
            "OCF_RESKEY_log_file": str(broker.log_file),
            "OCF_RESKEY_user": pwd.getpwuid(os.geteuid()).pw_name,
            "OCF_RESKEY_hang_timeout": f"{HANG_TIMEOUT_S:g}s",
            "OCF_RESKEY_watch": "false",
            "OCF_RESKEY_CRM_meta_timeout": "20000",
            "OCF_RESKEY_CRM_meta_interval": "10000",
            "OCF_RESKEY_CRM_meta_on_node": NODE,
            DIRECTORY_VARIABLE: str(self.memory.directory),
        }

    @property
    def server_pid(self) -> int:
        return server_of(self.memory).pid()

    def serve(self) -> int:
        """Until the server listens: its process id."""
        start_server(self.memory)
        wait_until(client_file_of(self.memory).exists, lambda: "no action server listens")
        return self.server_pid

    def begin(self, action: str = "monitor", **parameters: str) -> subprocess.Popen[str]:
        given = {f"OCF_RESKEY_{name}": text for name, text in parameters.items()}
        return subprocess.Popen(
            ["/bin/sh", str(SCRIPT), action], env=self.environment | given,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def do(self, action: str = "monitor", **parameters: str) -> tuple[int, str, str]:
        """Code, what the plain agent says when it is run, the log."""
        return end_of(self.begin(action, **parameters))

    def begin_one_that_waits(self, hang_timeout_s: float = HANG_TIMEOUT_S) -> tuple[subprocess.Popen[str], int]:
        """A monitor of a broker that does not answer; the process that the server has forked for it."""
        self.broker.send(signal.SIGSTOP)
        before = self.server_pid
        action = self.begin(hang_timeout=f"{hang_timeout_s:g}s")
        children = Path(f"/proc/{before}/task/{before}/children")
        wait_until(lambda: children.read_text(encoding="ascii").strip(), lambda: "the server has forked nothing")
        (worker,) = children.read_text(encoding="ascii").split()
        output = Path(f"/proc/{worker}/fd/1")
        wait_until(lambda: output.readlink().name.startswith("pipe:"), lambda: "it has not begun")
        return action, int(worker)


def end_of(action: subprocess.Popen[str]) -> tuple[int, str, str]:
    said, log = action.communicate(timeout=TIMEOUT_S)
    return action.returncode, said.strip(), log


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    pacemaker = ScriptedPacemaker(tmp_path, "broker")
    with ScriptedBroker() as broker:
        broker.says(**IN_SYNC)
        actions.start(broker.service, TIMEOUT_S)
        node = Node(broker, pacemaker)
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(node.memory.directory))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        yield node
        program = Path(f"/proc/{node.server_pid}/exe")
        end_server(node.memory)
        # It writes in the broker's directory, which is removed next.
        wait_until(lambda: not program.exists(), lambda: "the action server does not end")


def test_an_action_has_the_same_end_with_a_server_and_without(node: Node) -> None:
    def outcomes() -> list[tuple[int, str]]:
        found = []
        for status in (IN_SYNC, PRIMARY, PRIMARY | {"min_in_sync": 3}):
            node.broker.says(**status)
            code, _plain, log = node.do()
            found.append((code, log))
        code, _plain, log = node.do(max_lag="many")  # a wrong parameter
        return [*found, (code, log)]

    without = outcomes()
    end_server(node.memory)  # the first monitor has started one
    node.serve()

    assert outcomes() == without
    assert [code for code, _log in without] == [0, 8, 191, 191]
    assert "ocf-exit-reason:max_lag" in without[-1][1]
    assert node.do() == (OcfCode.DEGRADED_PROMOTED, "", without[2][1]), "without the program that takes a while"


def test_who_is_not_root_can_neither_ask_nor_say_what_is_run(node: Node) -> None:
    node.serve()
    socket_mode = socket_of(node.memory).stat()
    assert stat.S_IMODE(socket_mode.st_mode) == 0o600
    assert socket_mode.st_uid == os.geteuid()
    assert stat.S_IMODE(node.memory.directory.stat().st_mode) == 0o700


def test_an_action_that_only_plain_ones_do_is_refused(node: Node) -> None:
    """A broker that is started is not to be the server's child."""
    node.serve()
    code, plain, _log = node.do("stop")
    assert (code, plain) == (OcfCode.SUCCESS, PLAIN)
    assert not node.broker.pid
    assert not server_of(node.memory).pid(), "with the stop it has ended"
    assert not socket_of(node.memory).exists()


def test_the_server_is_killed_in_the_middle_of_an_action_and_the_action_comes_to_its_end(node: Node) -> None:
    server = node.serve()
    action, worker = node.begin_one_that_waits()

    os.kill(server, signal.SIGKILL)

    code, plain, log = end_of(action)
    assert (code, plain) == (OcfCode.ERR_GENERIC, ""), log
    assert "no answer" in log
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), lambda: "it is left over")
    assert node.do()[1] == PLAIN, "nobody listens"


def test_what_carries_an_action_out_is_killed_and_the_client_does_it_itself(node: Node) -> None:
    node.serve()
    action, worker = node.begin_one_that_waits()

    os.kill(worker, signal.SIGKILL)
    node.broker.send(signal.SIGCONT)

    assert end_of(action) == (OcfCode.SUCCESS, PLAIN, "")


def test_an_action_that_pacemaker_gives_up_ends(node: Node) -> None:
    node.serve()
    action, worker = node.begin_one_that_waits(LONG_S)

    given_up_s = time.monotonic()
    action.kill()
    action.communicate()  # the output ends with the last who has it

    wait_until(lambda: not Path(f"/proc/{worker}").exists(), lambda: "it goes on, and nobody waits for it")
    assert time.monotonic() - given_up_s < LONG_S / 2


def test_a_server_that_hangs_costs_one_action_a_moment_and_is_replaced(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = node.serve()
    os.kill(server, signal.SIGSTOP)

    assert node.do() == (OcfCode.SUCCESS, PLAIN, "")
    assert not socket_of(node.memory).exists(), "nobody else waits for it"
    began_s = time.monotonic()
    assert node.do()[:2] == (OcfCode.SUCCESS, PLAIN)
    assert time.monotonic() - began_s < TIMEOUT_S

    monkeypatch.setattr(companions, "STARTING_S", 0.0)
    monkeypatch.setattr(companions, "END_S", 0.2)
    start_server(node.memory)
    wait_until(lambda: server_of(node.memory).pid() not in (0, server), lambda: "another one runs")
    wait_until(socket_of(node.memory).exists, lambda: "another one listens")
    assert node.do() == (OcfCode.SUCCESS, "", "")


def test_what_a_hanging_server_had_not_begun_it_does_not_begin_when_it_wakes_up(node: Node) -> None:
    """The client has hung up, and has done it itself."""
    server = node.serve()
    os.kill(server, signal.SIGSTOP)
    node.do()
    asked = len(node.broker.asked("status"))

    os.kill(server, signal.SIGCONT)

    wait_until(lambda: not node.server_pid, lambda: "without a socket it is not wanted any more")
    assert len(node.broker.asked("status")) == asked


def test_one_of_an_older_version_refuses_and_ends(node: Node, tmp_path: Path) -> None:
    """As after an upgrade, which replaces all files."""
    copy = tmp_path / "older" / "qpid_ha_agent"
    shutil.copytree(Path(qpid_ha_agent.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(copy.parent), *sys.path])
    command = [sys.executable, "-m", "qpid_ha_agent.ocf.action_server", "broker"]
    with child_process(command, env=os.environ | {"PYTHONPATH": path}, cwd="/") as server:
        wait_until(client_file_of(node.memory).exists, lambda: "no action server listens")
        assert node.do() == (OcfCode.SUCCESS, "", "")

        os.utime(copy / "ocf" / "action_server.py", (1, 1))

        assert node.do() == (OcfCode.SUCCESS, PLAIN, "")
        assert server.wait(TIMEOUT_S) == 0
        wait_until(lambda: node.server_pid > 0, lambda: "the action has started no other one")


def test_a_socket_that_nobody_listens_at_is_no_obstacle(node: Node) -> None:
    node.serve()
    client_file = client_file_of(node.memory).read_text(encoding="utf-8")
    end_server(node.memory)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
        gone.bind(os.fspath(socket_of(node.memory)))
    client_file_of(node.memory).write_text(client_file, encoding="utf-8")

    assert node.do() == (OcfCode.SUCCESS, PLAIN, "")
    wait_until(lambda: node.do() == (OcfCode.SUCCESS, "", ""), lambda: "the monitor has started one")


@pytest.mark.parametrize("lines", ["", "/no/such/python\n/no/such/client\n", f"{sys.executable}\n"])
def test_a_damaged_note_of_how_to_ask_is_no_obstacle(node: Node, lines: str) -> None:
    node.serve()
    client_file_of(node.memory).write_text(lines, encoding="utf-8")
    assert node.do()[:2] == (OcfCode.SUCCESS, PLAIN)


def test_without_the_parameter_there_is_none(node: Node) -> None:
    node.serve()
    assert node.do("reload-agent", action_server="false")[0] == OcfCode.SUCCESS
    assert not node.server_pid
    assert node.do("monitor", action_server="false") == (OcfCode.SUCCESS, PLAIN, "")
    assert not node.server_pid


def test_a_second_server_leaves_the_work_to_the_first(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    first = node.serve()
    assert action_server.main(["broker"]) == 0
    assert node.server_pid == first
