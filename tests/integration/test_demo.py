"""The demo: what somebody sees who runs the project for the first time, and whether it notices a broken promise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from child_process import child_process
from failover_load import FailoverLoad
from limits import LIMIT_S
from one_corosync import our_turn
from qpid_ha_demo.corosync_daemon import what_is_missing
from qpid_ha_demo.ledger import Arrival, Ledger, LedgerAudit
from qpid_ha_demo.zookeeper_ensemble import why_not_here
from running_agent import wait_until
from running_broker import RunningBroker


def play_demo(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qpid_ha_demo", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120, check=False
    )


def processes_of(directory: str) -> dict[psutil.Process, str]:
    """Those that have the directory in their command lines, and these."""
    found = dict[psutil.Process, str]()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found[process] = " ".join(process.cmdline())
    return {process: line for process, line in found.items() if directory in line}


def processes_with(directory: str) -> list[str]:
    """Their command lines."""
    return list(processes_of(directory).values())


def brokers_of(directory: str) -> list[psutil.Process]:
    """Of the demo that works in that directory."""
    return [process for process, line in processes_of(directory).items() if "--control-socket" in line]


@contextmanager
def without_leftovers(directory: str) -> Iterator[None]:
    """Whatever works in that directory at the end, as what a demo has started and did not end, is killed."""
    try:
        yield
    finally:
        for process in processes_of(directory):
            with suppress(psutil.Error):
                process.kill()


# --- the demo as a whole


def test_one_round_tells_its_story_into_a_pipe_and_leaves_nothing_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as directory:  # shorter than tmp_path: sockets lie in it
        shown = play_demo("--once", PYTHONIOENCODING="ascii", TMPDIR=directory)
        assert list(Path(directory).iterdir()) == []
        assert processes_with(directory) == []
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stdout
    for part in ("confirmed", "received", "lost", "detection", "promotion", "client recovery", "Nothing that was"):
        assert part in shown.stdout
    assert "\x1b[" not in shown.stdout


def test_clients_of_proxies_are_told_of_no_error_while_the_primary_and_a_proxy_die() -> None:
    shown = play_demo("--proxy", "--once", PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stdout
    for part in ("the primary: ", "a proxy: ", "orders-3", "no client was told of an error"):
        assert part in shown.stdout


@pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())
def test_clients_of_the_other_members_of_a_group_see_a_short_gap_and_nothing_is_lost() -> None:
    with our_turn(), tempfile.TemporaryDirectory(prefix="demo-") as directory:
        shown = play_demo("--group", "--once", PYTHONIOENCODING="ascii", TMPDIR=directory)
        assert list(Path(directory).iterdir()) == []
        assert processes_with(directory) == []
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stdout
    for part in ("which led default", "what clients at the others saw", "invoices-3", "nothing lost"):
        assert part in shown.stdout


def rows_of(shown: str) -> list[list[str]]:
    """The cells of each row of the table of outages."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in shown.splitlines()]
    return [row for row in rows if len(row) == 8 and row[0].endswith((" killed", " cut off"))]


def test_a_round_with_zookeeper_breaks_three_things_and_ends_with_a_table_of_what_clients_saw() -> None:
    if problem := why_not_here():
        pytest.fail(problem)
    with tempfile.TemporaryDirectory(prefix="demo-") as directory:
        shown = play_demo("--zookeeper", "--once", "--rate", "200", PYTHONIOENCODING="ascii", TMPDIR=directory)
        assert list(Path(directory).iterdir()) == []
        assert processes_with(directory) == []
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stdout
    first, second, third = rows_of(shown.stdout)
    assert first[1] != first[2] == second[1] == second[2] == third[1] != third[2]
    assert [row[5:6] + row[7:] for row in (first, second, third)] == [["0", "0"]] * 3
    assert "Nothing that was" in shown.stdout


def test_without_java_the_demo_with_zookeeper_says_what_to_install() -> None:
    shown = play_demo("--zookeeper", "--once", PATH="/nowhere")
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (1, "", 1)
    assert "java" in shown.stderr
    assert "./dev setup, or apt-get install" in shown.stderr


def _heed_interrupts() -> None:
    """A shell has what it runs in the background ignore them, and so would all that the tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_demo_ends_at_ctrl_c_and_leaves_nothing_behind_though_a_broker_is_stopped() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as directory, without_leftovers(directory):
        command = [sys.executable, "-m", "qpid_ha_demo", "--rate", "200"]
        environment = {**os.environ, "TMPDIR": directory}
        with child_process(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, preexec_fn=_heed_interrupts
        ) as demo:
            wait_until(lambda: len(brokers_of(directory)) == 3, lambda: "there are no three brokers")
            brokers_of(directory)[0].suspend()
            demo.send_signal(signal.SIGINT)
            _, said = demo.communicate(timeout=LIMIT_S)
            assert (demo.returncode, said) == (130, b"")
        assert list(Path(directory).iterdir()) == []
        assert processes_with(directory) == []


# --- the account


def test_the_longest_gap_is_between_confirmations_or_before_the_first_or_after_the_last() -> None:
    ledger = Ledger(sent=4)
    for number, at_s in enumerate([9.0, 10.5, 12.0, 13.0]):
        ledger.confirm(number, at_s)
    assert ledger.longest_gap_s(10.0, 12.5) == 1.5
    assert ledger.longest_gap_s(10.0, 20.0) == 7.0
    assert ledger.longest_gap_s(1.0, 10.0) == 8.0
    assert ledger.longest_gap_s(14.0, 17.0) == 3.0


def arrivals(*copies: tuple[int, str]) -> list[Arrival]:
    """Number and marks: `m` by the broker, `a` for sent again."""
    return [Arrival(number, 0.0, "m" in marks, "a" in marks) for number, marks in copies]


def audit(confirmed: int, *copies: tuple[int, str], refused: int | None = None) -> LedgerAudit:
    ledger = Ledger(sent=confirmed)
    for number in range(confirmed):
        ledger.confirm(number, 0.0)
    for arrival in arrivals(*copies):
        ledger.arrive(arrival)
    if refused is not None:
        ledger.refused.add(refused)
    return ledger.audit()


def test_lost_is_what_was_confirmed_and_never_came() -> None:
    account = audit(3, (0, ""), (2, ""))
    assert (account.lost, account.received, account.is_flawless) == ((1,), 2, False)


def test_what_was_never_confirmed_may_come_or_not() -> None:
    account = audit(1, (0, ""), (1, ""))
    assert (account.lost, account.is_flawless) == ((), True)


@pytest.mark.parametrize(
    ("second_copy", "figures"), [("m", (1, 0, ())), ("a", (0, 1, ())), ("ma", (1, 0, ())), ("", (0, 0, (0,)))]
)
def test_a_copy_is_fine_only_if_somebody_warned_the_consumer(
    second_copy: str, figures: tuple[int, int, tuple[int, ...]]
) -> None:
    account = audit(1, (0, "m"), (0, second_copy))
    found = (account.duplicates_marked, account.duplicates_sent_again, account.duplicates_unmarked)
    assert (found, account.is_flawless) == (figures, second_copy != "")


def test_what_was_sent_again_explains_the_first_copy_when_that_comes_last() -> None:
    account = audit(1, (0, "a"), (0, ""))
    assert (account.duplicates_sent_again, account.duplicates_unmarked) == (1, ())


def test_order_is_that_of_first_arrivals() -> None:
    assert audit(3, (0, ""), (1, ""), (0, "m"), (1, "m"), (2, "")).out_of_order == ()
    assert audit(3, (0, ""), (2, ""), (1, "")).out_of_order == (1,)


def test_a_message_that_was_refused_and_sent_again_may_be_late() -> None:
    assert audit(3, (0, ""), (2, ""), (1, "a"), refused=1).is_flawless


# --- the load, against a broker that keeps no promise: one without backups


def test_a_killed_broker_without_backups_is_noticed_as_loss() -> None:
    with RunningBroker() as broker:
        port = broker.port
        with FailoverLoad([broker.url], rate=1000, consume=False) as load:
            load.wait_confirmed(100)
            if broker.process is not None:
                broker.process.kill()
                broker.process.wait()
            with RunningBroker({"listen": f"amqp://127.0.0.1:{port}"}):
                load.wait_confirmed(100)
                account = load.finish(timeout_s=1.0)
    assert len(account.lost) >= 100
    assert not account.is_flawless


def test_a_broker_that_lives_loses_nothing_and_the_second_address_is_found() -> None:
    with RunningBroker() as broker, FailoverLoad(["amqp://127.0.0.1:1", broker.url], rate=1000) as load:
        load.wait_confirmed(200)
        account = load.finish()
    assert account.is_flawless
    assert (account.received, account.duplicates_marked, account.duplicates_sent_again) == (account.sent, 0, 0)
