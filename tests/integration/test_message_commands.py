"""`qpid-ha send`, `receive` and `perf` against a broker, of its own and through a proxy."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import proton
import pytest

from admin_tool import qpid_ha
from blocking_client import BlockingClient, Management, bodies
from certificate_authority import Authority
from limits import LIMIT_S
from polling import wait_until
from proxied_broker import Served
from running_broker import RunningBroker

SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin") or "saslpasswd2"


def done(*words: object, answer: str = "", **environment: str) -> str:
    result = qpid_ha(*words, answer=answer, **environment)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture
def queue(management: Management, address: str) -> str:
    """A queue that is there: the commands make none."""
    management.create_queue(address)
    return address


def test_what_is_sent_is_received_with_all_of_it(broker: Served, queue: str) -> None:
    done("-b", broker.url, "send", queue, "a", "b", "--count", "2", "--subject", "s", "-p", "n=5", "--priority", "7")
    done("-b", broker.url, "send", queue, "--lines", answer="c\nd\n")
    looked = done("-b", broker.url, "--format", "json", "receive", queue, "--browse", "--wait", "1")
    rows: list[dict[str, Any]] = [json.loads(line) for line in looked.splitlines()]
    assert [row["body"]["content"] for row in rows] == ["a", "a", "b", "b", "c", "d"]
    first = rows[0]
    assert (first["durable"], first["priority"], first["application_properties"]) == (True, 7, {"n": 5})
    assert done("-b", broker.url, "receive", queue, "--selector", "n = 5", "--count", "4") == "a\na\nb\nb\n"
    assert done("-b", broker.url, "receive", queue, "--wait", "1") == "c\nd\n"
    short = qpid_ha("-b", broker.url, "receive", queue, "--wait", "0.1", "--count", "1")
    assert (short.exit_code, short.stdout) == (1, "")


def test_a_file_is_a_body_and_binary_is_binary(broker: Served, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(bytes(range(256)) * 1000)
    refused = qpid_ha("-b", broker.url, "send", queue, "--file", file)
    assert (refused.exit_code, "--binary" in refused.stderr) == (2, True)
    done("-b", broker.url, "send", queue, "--file", file, "--binary", "--transient")
    row = json.loads(done("-b", broker.url, "--format", "json", "receive", queue, "--count", "1"))
    assert (row["body"]["bytes"] > 256_000, row["body"]["encoding"], row["durable"]) == (True, "base64", False)


def test_more_than_a_window_is_sent_and_received_in_order(broker: Served, queue: str) -> None:
    lines = [str(number) for number in range(1500)]
    done("-b", broker.url, "send", queue, "--lines", answer="\n".join(lines))
    assert done("-b", broker.url, "receive", queue, "--count", "1500").split() == lines


def test_what_is_refused_is_said_with_exit_code_1(broker: Served, client: BlockingClient, queue: str) -> None:
    result = qpid_ha("-b", broker.url, "send", "$nowhere", "a")
    assert (result.exit_code, "amqp:not-found" in result.stderr) == (1, True)
    result = qpid_ha("-b", broker.url, "receive", queue, "--selector", "a =")
    assert (result.exit_code, "amqp:invalid-field" in result.stderr) == (1, True)
    result = qpid_ha("-b", broker.url, "perf", "$nowhere", "--count", "1")
    assert (result.exit_code, "amqp:not-found" in result.stderr) == (1, True)
    done("-b", broker.url, "send", queue, "--at-most-once", "kept")
    assert bodies(client.consume(queue)) == ["kept"]


def test_a_full_queue_takes_some_and_the_reason_is_told(broker: Served, address: str) -> None:
    connection: Any = proton.utils.BlockingConnection(broker.url, timeout=LIMIT_S)
    sender = connection.create_sender(address, options=_Limited())
    result = qpid_ha("-b", broker.url, "--format", "json", "send", address, "a", "b", "c")
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert (facts["accepted"], facts["rejected"]) == (2, 1)
    assert "resource-limit-exceeded" in facts["problem"]
    sender.close()
    connection.close()


class _Limited(proton.reactor.SenderOption):
    """A queue that takes two messages."""

    def apply(self, sender: Any) -> None:
        sender.target.properties.put_object({proton.symbol("qpid.max_count"): 2})


def test_a_measurement_counts_all_and_says_how_long_they_took(broker: Served, queue: str) -> None:
    words = ("--producers", "2", "--consumers", "2", "--count", "500", "--size", "1000", "--durable")
    facts = json.loads(done("-b", broker.url, "--format", "json", "perf", queue, *words))
    assert (facts["sent"], facts["confirmed"], facts["received"], facts["refused"]) == (500, 500, 500, 0)
    assert (facts["received_unmarked"], facts["problem"]) == (0, None)
    for name in ("confirm", "transit"):
        found = facts[f"{name}_ms"]
        assert 0 < found["p50"] <= found["p90"] <= found["p99"] <= found["p999"] <= found["max"]
        assert sum(count for _, count in facts[f"{name}_histogram_ms"]) == 500
    table = done("-b", broker.url, "perf", queue, "--duration", "0.5", "--rate", "100")
    assert "send to receipt, ms:  p50" in table


def test_the_control_socket_is_an_address_too(broker: Served, queue: str) -> None:
    if not isinstance(broker, RunningBroker):
        pytest.skip("a proxy has a socket of its own")
    done("-b", broker.control_socket, "send", queue, "a")
    assert done("-b", broker.control_socket, "receive", queue, "--count", "1") == "a\n"


@pytest.mark.parametrize(
    "words", [("receive",), ("receive", "--count", "1", "--wait", "1"), ("receive", "--browse"), ("send",), ("perf",)]
)
def test_a_typing_error_makes_no_queue_and_what_may_be_meant_is_said(
    broker: Served, management: Management, queue: str, words: tuple[str, ...]
) -> None:
    wrong = f"{queue[:-2]}{queue[-1]}"
    result = qpid_ha("-b", broker.url, words[0], wrong, *words[1:])
    assert result.exit_code == 1, result.stderr
    assert f"there is no queue or exchange {wrong}; nearest: {queue}" in result.stderr
    assert "--create" in result.stderr
    assert management.queue(wrong) is None
    asked = ("--count", "1", "--wait", "0.1") if words[0] == "receive" else ("--count", "1")
    created = qpid_ha("-b", broker.url, words[0], wrong, "--create", *asked)
    assert "there is no queue" not in created.stderr
    assert management.queue(wrong) is not None


@pytest.mark.parametrize("words", [("receive",), ("perf", "--producers", "0")])
def test_ctrl_c_ends_it_with_a_summary(
    broker: Served, management: Management, address: str, words: tuple[str, ...]
) -> None:
    management.create_queue(address)
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "-b", broker.url, *words, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: (management.queue(address) or {}).get("consumers"), lambda: "nobody consumes", LIMIT_S)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert "0 messages received" in err if words[0] == "receive" else "received" in out


@pytest.mark.direct_only("it is about how a broker is spoken to")
@pytest.mark.skipif(not proton.SASL.extended(), reason="this Proton was built without Cyrus SASL (libsasl2-dev)")
def test_tls_and_a_login_come_from_files_or_the_environment(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    users_db, password = tmp_path / "users.sasldb", tmp_path / "password"
    words = [SASLPASSWD, "-p", "-c", "-f", str(users_db), "ada"]
    subprocess.run(words, input=b"secret of ada", check=True, timeout=LIMIT_S)
    password.touch(mode=0o600)
    password.write_text("secret of ada\n")
    settings = {
        "listen": "amqps://127.0.0.1:0", "tls.certificate": certificate, "tls.key": key, "sasl.users-db": users_db,
        "sasl.allow-anonymous": False,
    }  # fmt: skip
    with RunningBroker(settings) as broker:
        url = broker.url.replace("://127.0.0.1", "://ada@localhost")
        ca = ("--ca", str(authority.certificate))
        done("-b", url, "send", "q", "a", "--create", *ca, QPID_HA_PASSWORD="secret of ada")
        assert done("-b", url, "--password-file", password, "receive", "q", "--count", "1", *ca) == "a\n"
        facts = json.loads(
            done("-b", url, "--format", "json", "perf", "q", "--count", "5", *ca, QPID_HA_PASSWORD="secret of ada")
        )
        assert facts["received"] == 5
        wrong = qpid_ha("-b", url, "send", "q", "a", *ca, QPID_HA_PASSWORD="wrong")
        assert wrong.exit_code == 4, wrong.stderr
        without = qpid_ha("-b", url, "send", "q", "a", *ca)
        assert (without.exit_code, "QPID_HA_PASSWORD" in without.stderr) == (4, True)
        stranger = qpid_ha("-b", url, "send", "q", "a", QPID_HA_PASSWORD="secret of ada")
        assert stranger.exit_code == 3, stranger.stderr
