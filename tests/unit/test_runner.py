"""What the agent's loop rests on: what it heard and when, a lock that never blocks it, a process, its settings."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from event_loops import in_event_loop
from limits import LIMIT_S
from qpid_ha_agent import broker_process
from qpid_ha_agent.amqp_port import is_awake
from qpid_ha_agent.broker_process import BrokerProcess
from qpid_ha_agent.broker_talk import BrokerTalk
from qpid_ha_agent.broker_view import BrokerView
from qpid_ha_agent.cli import agent as agent_command
from qpid_ha_agent.control import INVALID_PARAMS, RequestRefused
from qpid_ha_agent.decision import Action, Known, LockView, decide
from qpid_ha_agent.lock import PrimaryLock
from qpid_ha_agent.run_settings import read_run_settings
from qpid_ha_agent.tenure import LeaseWatch, Refusals, Tenure
from qpid_ha_broker.coordination.coordinator import CoordinatorError, Lease
from qpid_ha_broker.coordination.file import Lock
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.states import State
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.errors import ConfigError

TIMEOUT_S = 10.0
READY = {"state": "ready", "lsn": 5, "primary": "b"}


def view_of(lock: PrimaryLock) -> LockView:
    """Asked anew each time: it changes behind the type checker's back."""
    return lock.view


def state_of(view: BrokerView) -> State | None:
    return view.state


# --- its end


@pytest.mark.parametrize("steps", range(5))
def test_a_loop_that_is_cancelled_at_the_moment_in_which_it_is_woken_ends(steps: int) -> None:
    """`steps` of the event loop lie between the two."""

    @in_event_loop
    async def story() -> None:
        talk = BrokerTalk(Path("none"), LIMIT_S, LIMIT_S, lambda: False, lambda: None)
        polling = asyncio.create_task(talk.poll_forever())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        talk.poll_soon()
        for _ in range(steps):
            await asyncio.sleep(0)
        polling.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert polling.done()

    story()


# --- a broker whose control socket cannot be used


def silence_after_a_question(control_socket: Path, is_awake: bool) -> float:
    """How long a broker counts as silent that has said nothing for a minute, and is asked now."""

    async def ask() -> float:
        loop = asyncio.get_running_loop()
        talk = BrokerTalk(control_socket, LIMIT_S, LIMIT_S, lambda: False, lambda: None, lambda: is_awake)
        talk.begin(BrokerView(started_at_s=loop.time() - 60.0))
        await talk._poll(talk.view)
        return talk.view.silent_s(loop.time())

    return asyncio.run(ask())


def test_a_broker_that_answers_its_clients_is_not_silent_when_the_file_of_its_control_socket_is_gone(
    tmp_path: Path,
) -> None:
    assert silence_after_a_question(tmp_path / "none.sock", is_awake=True) == 0.0
    assert silence_after_a_question(tmp_path / "none.sock", is_awake=False) >= 60.0


def test_a_broker_that_refuses_a_question_is_not_silent(tmp_path: Path) -> None:
    """Too many ask it, or we may not: killing it would help nobody."""

    def refuse(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1024)
            error = {"code": -32002, "message": "64 control connections are open already"}
            connection.sendall(json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode() + b"\n")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "a.sock"))
        server.listen()
        threading.Thread(target=refuse, args=(server,), daemon=True).start()
        assert silence_after_a_question(tmp_path / "a.sock", is_awake=False) == 0.0


class Asked(BrokerTalk):
    """What is asked of a broker that knows of agents, or of one that an older agent has started."""

    def __init__(self, is_older: bool) -> None:
        super().__init__(Path("unused"), LIMIT_S, LIMIT_S, lambda: False, lambda: None)
        self.is_older, self.questions = is_older, list[dict[str, object]]()

    async def request(self, method: str, timeout_s: float, **params: object) -> object:
        self.questions.append(params)
        if self.is_older and params:
            raise RequestRefused(INVALID_PARAMS, "status takes no parameter agent")
        return {"state": "ready"}


def test_an_agent_says_to_its_broker_who_asks_and_asks_an_older_one_without() -> None:
    """So the broker knows when its agent asked last; and during an upgrade none is taken for one that hangs."""

    async def questions(talk: Asked) -> list[dict[str, object]]:
        for _ in range(2):
            talk.begin(BrokerView(started_at_s=asyncio.get_running_loop().time()))
            await talk.look()
            await talk.look()
            assert talk.view.state is State.READY
        return talk.questions

    told: dict[str, object] = {"agent": True}
    assert asyncio.run(questions(Asked(is_older=False))) == [told] * 4
    assert asyncio.run(questions(Asked(is_older=True))) == [told, {}, {}] * 2, "a new process may be a newer one"


def test_a_process_that_is_stopped_answers_at_no_port_though_the_kernel_takes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        assert not is_awake([f"amqp://127.0.0.1:{stopped.getsockname()[1]}"], timeout_s=0.05)


@pytest.mark.parametrize("answer", [b"AMQP\x03\x01\x00\x00", b"\x15\x03\x03\x00\x02\x02\x46", b""])
def test_whatever_a_process_says_at_its_port_shows_that_it_has_its_turns(answer: bytes) -> None:
    """SASL, the alert of a TLS listener, the end of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(8)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        assert is_awake(["amqp://127.0.0.1:1", f"amqps://0.0.0.0:{port}"], LIMIT_S)
        thread.join()


# --- what the broker said


def test_silence_counts_from_the_first_question_without_an_answer() -> None:
    view = BrokerView(started_at_s=0.0)
    view.answer(READY, asked_at_s=1.0)
    assert view.silent_s(9.0) == 0.0

    view.ask(10.0)
    view.ask(10.5)

    assert view.silent_s(11.0) == 1.0
    view.answer(READY, asked_at_s=10.5)
    assert view.silent_s(11.0) == 0.0


def test_a_new_process_is_silent_from_its_start() -> None:
    assert BrokerView(started_at_s=3.0).silent_s(5.0) == 2.0


def test_after_a_broker_that_observed_has_lost_its_primary_the_others_are_let_go_first() -> None:
    view = BrokerView()
    for at_s, state, paused_s in (
        (1.0, "ready", 0.0), (2.0, "observer", 5.0), (3.0, "connecting", 4.0), (9.0, "connecting", 0.0),
        (10.0, "observer", 5.0), (11.0, "ready", 0.0), (12.0, "connecting", 0.0),
    ):  # fmt: skip
        view.answer({"state": state, "lsn": 9}, at_s)
        assert view.pause_s(at_s) == paused_s


def test_a_silence_in_which_the_process_works_is_told_from_one_in_which_it_does_not() -> None:
    slow, dead = BrokerView(), BrokerView()
    for view in (slow, dead):
        view.answer(READY, asked_at_s=1.0)
        view.note_work(7.0)
        view.ask(10.0)
    slow.note_work(7.9)
    dead.note_work(7.1)
    assert slow.is_working(11.0)
    assert not dead.is_working(11.0)

    slow.forgive(11.0)
    assert not slow.is_working(12.0)  # since then it did nothing


def test_an_answer_that_is_older_than_what_we_know_changes_nothing() -> None:
    """Else a promoted broker would look like one that was demoted."""
    view = BrokerView()
    view.answer(READY, asked_at_s=1.0)
    view.assume(State.PRIMARY, now_s=2.0)

    view.answer(READY, asked_at_s=1.9)
    assert state_of(view) is State.PRIMARY
    view.answer(READY, asked_at_s=2.1)
    assert state_of(view) is State.READY


@pytest.mark.parametrize("status", [None, [], {}, {"state": "odd"}, {"state": 1}])
def test_an_answer_that_cannot_be_understood_is_none(status: object) -> None:
    view = BrokerView()
    view.answer(status, asked_at_s=1.0)

    assert view.state is None
    assert view.silent_s(2.0) == 2.0


def test_how_long_a_store_has_taken_nothing_goes_on_between_two_answers() -> None:
    view = BrokerView()
    assert view.unwritable_s(1.0) == 0.0
    view.answer({"state": "primary", "store_problem": "no room", "unwritable_s": 1.5}, 10.0)
    assert view.store_problem == "no room"
    assert view.unwritable_s(10.4) == pytest.approx(1.9)
    view.answer({"state": "primary"}, 11.0)
    assert (view.store_problem, view.unwritable_s(11.4)) == ("", 0.0)


def test_a_broker_has_data_when_its_log_has_an_entry() -> None:
    empty, filled = BrokerView(), BrokerView()
    empty.answer({"state": "connecting", "lsn": 0}, asked_at_s=1.0)
    filled.answer(READY, asked_at_s=1.0)
    assert not empty.has_data
    assert filled.has_data
    assert filled.primary == "b"


def test_a_broker_that_was_just_promoted_is_not_disowned_by_a_record_older_than_its_promotion() -> None:
    view, older = BrokerView(), ClusterRecord("cluster", 2, "b", 5, ("a", "b"))
    view.answer({**READY, "generation": 1}, asked_at_s=1.0)
    view.assume(State.PRIMARY, now_s=2.0)
    assert not view.is_disowned("a", older)

    view.answer({"state": "primary", "lsn": 9, "generation": 3}, asked_at_s=2.1)
    assert not view.is_disowned("a", older)
    assert not view.is_disowned("a", older._replace(generation=4, primary="a"))
    assert view.is_disowned("a", older._replace(generation=4))
    assert not view.is_disowned("a", None)


def test_an_agent_that_was_held_up_counts_anew_how_long_its_broker_is_disowned() -> None:
    tenure = Tenure()
    tenure.note(LockView.HELD, is_primary=True, is_disowned=True, now_s=1.0)
    assert tenure.disowned_s(2.0) == 1.0

    tenure.forgive(5.0)

    assert tenure.disowned_s(5.5) == 0.5
    tenure.note(LockView.HELD, is_primary=True, is_disowned=False, now_s=6.0)
    tenure.forgive(7.0)
    assert tenure.disowned_s(8.0) == 0.0


# --- the lock


@pytest.fixture
def came() -> queue.Queue[bool]:
    return queue.Queue()


@pytest.fixture
def lock(tmp_path: Path, came: queue.Queue[bool]) -> PrimaryLock:
    return PrimaryLock(lambda: Lock(tmp_path), lambda: came.put(True))


def test_a_free_lock_is_had_at_once_and_can_be_let_go(tmp_path: Path, lock: PrimaryLock) -> None:
    assert lock.try_now()
    assert view_of(lock) is LockView.HELD
    assert not Lock(tmp_path).try_lock()
    lock.release()
    assert view_of(lock) is LockView.NONE
    assert Lock(tmp_path).try_lock()


def test_it_waits_without_blocking_and_says_when_the_lock_came(
    tmp_path: Path, lock: PrimaryLock, came: queue.Queue[bool]
) -> None:
    other = Lock(tmp_path)
    assert other.try_lock()
    lock.wait_for()
    assert view_of(lock) is LockView.WAITING

    other.release()

    assert came.get(timeout=TIMEOUT_S)
    assert view_of(lock) is LockView.HELD


def test_a_lock_that_came_too_late_is_given_back(tmp_path: Path, lock: PrimaryLock, came: queue.Queue[bool]) -> None:
    other, third = Lock(tmp_path), Lock(tmp_path)
    assert other.try_lock()
    lock.wait_for()
    lock.release()
    assert view_of(lock) is LockView.NONE

    other.release()

    assert third.acquire(threading.Event())
    assert view_of(lock) is LockView.NONE
    assert came.empty()


def test_who_wants_it_again_after_leaving_the_queue_gets_it(
    tmp_path: Path, lock: PrimaryLock, came: queue.Queue[bool]
) -> None:
    other = Lock(tmp_path)
    assert other.try_lock()
    for _ in range(5):
        lock.wait_for()
        lock.release()
    lock.wait_for()

    other.release()

    assert came.get(timeout=TIMEOUT_S)
    assert view_of(lock) is LockView.HELD
    assert sum(thread.name == "lock" for thread in threading.enumerate()) <= 1


def test_a_lock_whose_file_is_gone_is_lost(tmp_path: Path, lock: PrimaryLock) -> None:
    assert lock.try_now()
    lock.check()
    assert view_of(lock) is LockView.HELD

    Lock(tmp_path).path.unlink()
    lock.check()

    assert view_of(lock) is LockView.LOST
    lock.release()
    assert view_of(lock) is LockView.NONE


def test_a_wait_that_fails_says_why(tmp_path: Path) -> None:
    came: queue.Queue[bool] = queue.Queue()
    lock = PrimaryLock(lambda: Lock(tmp_path / "missing"), lambda: came.put(True))
    lock.wait_for()

    assert came.get(timeout=TIMEOUT_S)
    assert view_of(lock) is LockView.NONE
    assert "missing" in str(lock.take_problem())
    assert lock.take_problem() is None
    with pytest.raises(CoordinatorError):
        lock.try_now()


def test_a_lock_won_just_when_nobody_wants_it_is_not_kept() -> None:
    """The moment between the kernel's yes and our bookkeeping."""
    released = threading.Event()

    class WonTooLate:
        def try_lock(self) -> bool:
            return False

        def acquire(self, cancel: threading.Event) -> bool:
            cancel.set()
            return True

        def is_held(self) -> bool:
            return not released.is_set()

        def renew(self) -> None:
            pass

        def last_renewal(self) -> str:
            return ""

        def holder(self) -> str:
            return ""

        def release(self) -> None:
            released.set()

    def make() -> Lease:
        return WonTooLate()

    lock = PrimaryLock(make, lambda: None)
    lock.wait_for()

    assert released.wait(TIMEOUT_S)
    assert view_of(lock) is LockView.NONE


class Hangs(Lock):
    """Its directory is on a server that does not answer any more."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.goes_on = threading.Event()

    def release(self) -> None:
        self.goes_on.wait(TIMEOUT_S)
        super().release()


def test_giving_back_a_lost_lock_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    lease = Hangs(tmp_path)
    lock = PrimaryLock(lambda: lease, lambda: None)
    lease.goes_on.set()
    assert lock.try_now()
    lease.goes_on.clear()
    lock.declare_lost()

    lock.release()

    assert view_of(lock) is LockView.NONE
    lease.goes_on.set()
    assert Lock(tmp_path).acquire(threading.Event())


# --- who has it says again and again that he goes on


def test_who_has_the_lock_renews_it_at_each_check(tmp_path: Path, lock: PrimaryLock) -> None:
    other = PrimaryLock(lambda: Lock(tmp_path), lambda: None)
    assert lock.try_now()
    renewals = [other.last_renewal()]
    for _ in range(12):
        lock.check()
        renewals.append(other.last_renewal())
    assert len(set(renewals)) == 13
    other.check()  # it is not his
    assert other.last_renewal() == renewals[-1]


def test_a_backups_agent_that_let_the_lock_go_for_the_primarys_keeps_out_of_its_way_until_there_is_no_primary() -> None:
    """Else it would have the lock again before that one: two backups' agents gave it to each other for long."""
    tenure = Tenure()
    known = Known(state=State.READY, lock=LockView.NONE)
    assert decide(known).action is Action.ACQUIRE_LOCK
    tenure.give_way(10.0)
    assert decide(replace(known, pause_s=tenure.gives_way_s(State.READY, 12.0))).action is Action.WAIT
    orphaned = replace(known, state=State.CONNECTING, has_data=True)
    assert decide(replace(orphaned, pause_s=tenure.gives_way_s(State.CONNECTING, 12.1))).action is Action.ACQUIRE_LOCK
    assert tenure.gives_way_s(State.READY, 12.2) == 0.0  # behind another primary: that one's agent is another one

    tenure.give_way(20.0)
    assert tenure.gives_way_s(State.READY, 30.0) == 0.0  # it does not want it, or has had it


def test_a_primary_whose_hand_over_came_to_nothing_wants_its_lock_back_at_once() -> None:
    """The coordinator was away; when it is back the lock shall follow the record, however that went."""
    failed = Known(state=State.PRIMARY, lock=LockView.NONE, recordless_s=9.0, hand_over_tried=True)
    assert decide(failed).action is Action.ACQUIRE_LOCK


def test_a_lock_that_is_not_renewed_counts_as_silent_by_what_was_seen_of_it() -> None:
    watch = LeaseWatch(look_max_s=1.0)
    watch.note("1", 100.0)
    watch.note("1", 100.5)
    watch.note("1", 101.0)
    assert watch.silent_s == pytest.approx(1.0)
    watch.note("2", 101.5)
    assert watch.silent_s == 0.0
    watch.note("2", 102.0)
    watch.forget()  # it was ours in between
    assert watch.silent_s == 0.0


def test_an_agent_that_slept_itself_has_seen_nobody_silent() -> None:
    watch = LeaseWatch(look_max_s=1.0)
    watch.note("1", 100.0)
    watch.note("1", 3700.0)
    assert watch.silent_s == pytest.approx(1.0)


def test_a_refusal_that_repeats_itself_is_asked_for_less_and_less_often_until_something_changes() -> None:
    refusals = Refusals()
    pauses = [refusals.pauses("the coordinator's record is empty") for _ in range(Refusals.SOON + 5)]
    assert pauses[: Refusals.SOON] == [1.0] * Refusals.SOON
    assert pauses[Refusals.SOON :] == [2.0, 4.0, 8.0, 8.0, 8.0]
    assert refusals.pauses("b cannot be asked") == 1.0
    refusals.pauses("the coordinator's record is empty")
    refusals.forget()
    assert refusals.pauses("the coordinator's record is empty") == 1.0


# --- the process


def test_a_process_that_may_be_starting_is_not_taken_for_one_that_lost_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be killed for its silence before it ever listened."""
    monkeypatch.setattr(broker_process, "find_pid", lambda _path: os.getpid())
    for age_s, is_found in ((1.0, False), (3600.0, True)):
        monkeypatch.setattr(broker_process, "age_s", lambda _pid, age_s=age_s: age_s)
        found = BrokerProcess.find(tmp_path / "none.sock", older_than_s=10.0)
        assert (found is not None) == is_found
        if found is not None:
            found.close()


def test_where_nobody_listens_there_is_nothing_to_take_over(tmp_path: Path) -> None:
    assert BrokerProcess.adopt(tmp_path / "missing.sock") is None


# --- settings


def settings_file(directory: Path, text: str) -> Path:
    path = directory / "qpid-ha.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "name: n\ncontrol-socket: /s/n.sock\nha: {cluster: true, coordinator: 'file:/tmp'}\n",
        "name: n\ncontrol-socket: /s/n.sock\nha.cluster: on\nha.coordinator: file:///tmp\n",
    ],
)
def test_what_an_agent_needs_is_read_from_the_brokers_file(tmp_path: Path, text: str) -> None:
    path = settings_file(tmp_path, text)
    settings = read_run_settings(path, [], ["qpidd"])

    assert (settings.name, settings.control_socket) == ("n", Path("/s/n.sock"))
    assert settings.coordinator.url == CoordinatorUrl("file", "/tmp")
    assert settings.command == ("qpidd", "--config", str(path), "--control-socket", "/s/n.sock")


def test_what_is_said_on_the_command_line_beats_the_file_for_agent_and_broker(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "name: n\nha: {cluster: false}\n")
    changes = ["ha.cluster=true", "ha.coordinator=file:/var", "control-socket=/s/x.sock"]
    settings = read_run_settings(path, changes, ["qpidd"])

    assert settings.coordinator.url == CoordinatorUrl("file", "/var")
    assert settings.command[-2:] == ("--set", "control-socket=/s/x.sock")
    assert "/s/x.sock" in settings.command


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not YAML"),
        ("[]", "keys and values"),
        ("name: n\n", "ha.cluster"),
        ("ha.cluster: true\n", "file:DIRECTORY"),
        ("ha: {cluster: true, coordinator: none}\n", "file:DIRECTORY"),
        ("ha: {cluster: true, coordinator: 'file:/tmp', virtual-ip: 127.0.0.1/8}\n", "no network can reach"),
        ("ha: {cluster: true, coordinator: 'file:/tmp', virtual-ip: 'fe80::1/64'}\n", "ha.virtual-ip.*@INTERFACE"),
        ("ha: {cluster: true, coordinator: zoo}\n", "'zoo' is not none, or file:"),
    ],
)
def test_settings_without_which_agents_cannot_agree_are_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_run_settings(settings_file(tmp_path, text), [], ["qpidd"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ha.cluster: true\n", ["ha.coordinator", "file:DIRECTORY"]),
        ("name: a\n", ["ha.cluster"]),
        ("ha: {cluster: true, coordinator: 'file:/no/such/directory'}\n", ["/no/such/directory"]),
        (
            "ha: {cluster: true, coordinator: 'zookeeper://127.0.0.1:1/c1', coordinator-username: me,"
            " coordinator-password-file: /no/such/password}\n",
            ["ha.coordinator-password-file", "/no/such/password"],
        ),
    ],
)
def test_an_agent_that_cannot_begin_says_why_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, named: list[str]
) -> None:
    monkeypatch.setattr(agent_command, "_configure_logging", lambda _name: None)  # it would be this process's
    done = CliRunner().invoke(agent_command.agent, ["run", "--config", str(settings_file(tmp_path, text))])
    assert done.exit_code == 1
    assert done.stderr.startswith("qpid-ha-agent: ")
    assert all(word in done.stderr for word in named), done.stderr
    assert done.stderr.count("\n") == 1
