"""`qpid-ha` as an operator types it, against a running broker: what it prints, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from proton import Message

from blocking_client import BlockingClient, bodies
from running_broker import RunningBroker

pytestmark = pytest.mark.direct_only("an operator asks a broker about itself, over its socket")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def qpid_ha(broker: RunningBroker) -> Run:
    """Runs `qpid-ha WORDS` on the module's broker."""

    def run(*words: str, socket: Path = broker.control_socket) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", *words]
        environment = {**os.environ, "QPID_HA_SOCKET": str(socket)}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)

    return run


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_ping_status_and_query_describe_the_broker(qpid_ha: Run) -> None:
    assert done(qpid_ha("ping")) == "test is alive\n"
    assert done(qpid_ha("status")) == "standalone\n"
    assert done(qpid_ha("status", "--expect", "standalone")) == ""
    assert qpid_ha("status", "--is-primary").returncode == 1
    facts = json.loads(done(qpid_ha("query", "--format", "json")))
    assert (facts["name"], facts["state"]) == ("test", "standalone")


def test_a_queue_is_created_listed_purged_and_deleted(
    qpid_ha: Run, client: BlockingClient, address: str, broker: RunningBroker
) -> None:
    done(qpid_ha("queue", "create", address, "--max-messages", "3", "--policy", "ring"))
    client.send(address, *"abcd")
    (row,) = [row for row in json.loads(done(qpid_ha("queue", "list", "--format", "json"))) if row["name"] == address]
    assert (row["messages"], row["enqueued"], row["consumers"]) == (3, 4, 0)
    assert address in done(qpid_ha("queue", "list"))
    assert json.loads(done(qpid_ha("queue", "show", address, "--format", "json")))["arguments"]["qpid.max_count"] == 3
    purged = qpid_ha("queue", "purge", address)
    assert (purged.returncode, purged.stderr) == (0, f"Queue {address} has 3 messages.\n")
    assert bodies(client.browse(address)) == []
    client.send(address, "left")
    refused = qpid_ha("queue", "delete", address, "--if-empty")
    assert refused.returncode == 1
    assert "purge" in refused.stderr
    deleted = qpid_ha("queue", "delete", address)
    assert (deleted.returncode, deleted.stderr) == (0, f"Queue {address} has 1 message.\n")
    assert qpid_ha("queue", "show", address).returncode == 1
    logged = [line.partition(" info ")[2] for line in broker.log().splitlines() if f"queue {address} " in line]
    assert logged == [
        f"configuration queue {address} created qpid.max_count=3 qpid.policy_type=ring",
        f"configuration queue {address} deleted; messages in it: 1",
    ]


def test_an_exchange_is_created_bound_and_deleted(qpid_ha: Run, client: BlockingClient, address: str) -> None:
    done(qpid_ha("exchange", "create", address, "--kind", "topic"))
    done(qpid_ha("queue", "create", f"{address}-queue"))
    done(qpid_ha("exchange", "bind", address, f"{address}-queue", "news.#"))
    client.send(f"{address}/news.today", "a")
    client.send(f"{address}/weather", "b")
    assert bodies(client.consume(f"{address}-queue")) == ["a"]
    shown = json.loads(done(qpid_ha("exchange", "show", address, "--format", "json")))
    assert shown["bindings"][0]["key"] == "news.#"
    done(qpid_ha("exchange", "unbind", address, f"{address}-queue", "news.#"))
    done(qpid_ha("exchange", "delete", address))
    assert qpid_ha("exchange", "delete", "amq.topic").returncode == 1


def test_a_setting_is_changed_and_the_broker_acts_on_it(
    qpid_ha: Run, client: BlockingClient, address: str, broker: RunningBroker
) -> None:
    assert done(qpid_ha("get", "auto-create")) == "true\n"
    try:
        done(qpid_ha("set", "auto-create", "false"))
        assert done(qpid_ha("get", "auto-create")) == "false\n"
        with pytest.raises(Exception, match="amqp:not-found"):
            client.sender(address)
    finally:
        done(qpid_ha("set", "auto-create=true"))
    client.send(address, "a")
    assert "info broker setting auto-create changed from True to False" in broker.log()


def test_exit_codes_tell_apart_no_wrong_usage_and_nobody_there(qpid_ha: Run, tmp_path: Path) -> None:
    assert qpid_ha("queue", "delete", "nowhere").returncode == 1
    assert qpid_ha("queue", "create", "x", "--max-messages", "many").returncode == 2
    assert qpid_ha("get", "no-such-key").returncode == 1
    assert qpid_ha("set", "name", "other").returncode == 1
    unreachable = qpid_ha("ping", socket=tmp_path / "absent.sock")
    assert unreachable.returncode == 3
    assert "absent.sock" in unreachable.stderr


DEFINED = """\
format: 1
exchanges:
- {name: EVENTS, kind: topic, arguments: {qpid.alternate_exchange: DEAD}}
- {name: DEAD, kind: fanout}
queues:
- {name: ORDERS, arguments: {qpid.max_count: 100, app: x}}
bindings:
- {exchange: EVENTS, queue: ORDERS, key: 'a.#'}
"""


def test_definitions_are_imported_once_exported_and_changed_only_when_asked(
    qpid_ha: Run, address: str, tmp_path: Path
) -> None:
    file, exported = tmp_path / "definitions.yaml", tmp_path / "exported.yaml"
    text = DEFINED.replace("EVENTS", f"{address}-events").replace("DEAD", f"{address}-dead").replace("ORDERS", address)
    file.write_text(text, encoding="utf-8")
    assert f"queue {address}" in done(qpid_ha("definitions", "import", str(file), "--dry-run"))
    assert qpid_ha("queue", "show", address).returncode == 1
    assert "4 done, 0 were there" in done(qpid_ha("definitions", "import", str(file)))
    assert "0 done, 4 were there" in done(qpid_ha("definitions", "import", str(file)))
    assert qpid_ha("definitions", "export", str(exported)).returncode == 0
    assert "0 done" in done(qpid_ha("definitions", "import", str(exported)))

    file.write_text(text.replace("100", "200"), encoding="utf-8")
    refused = qpid_ha("definitions", "import", str(file))
    assert (refused.returncode, "--update" in refused.stderr) == (1, True)
    assert "1 done, 3 were there" in done(qpid_ha("definitions", "import", str(file), "--update"))
    assert json.loads(done(qpid_ha("queue", "show", address, "--format", "json")))["arguments"]["qpid.max_count"] == 200


def test_definitions_with_a_slip_are_refused_before_anything_is_made(
    qpid_ha: Run, address: str, tmp_path: Path
) -> None:
    file = tmp_path / "definitions.yaml"
    for slip, code, word in (
        ("- {name: b, arguments: {qpid.max_cuont: 1}}", 1, "qpid.max_count"),
        ("- {name: b, arguments: {qpid.max_count: many}}", 1, "qpid.max_count"),
        ("- {nmae: b}", 2, "did you mean name?"),
    ):
        file.write_text(f"format: 1\nqueues:\n- name: {address}\n{slip}\n", encoding="utf-8")
        refused = qpid_ha("definitions", "import", str(file))
        assert (refused.returncode, word in refused.stderr) == (code, True), refused.stderr
        assert qpid_ha("queue", "show", address).returncode == 1


def test_messages_are_copied_chosen_and_dead_letters_are_tried_again(
    qpid_ha: Run, client: BlockingClient, address: str
) -> None:
    dead, other, exchange = f"{address}-dead", f"{address}-other", f"{address}-dlx"
    done(qpid_ha("queue", "create", dead))
    done(qpid_ha("queue", "create", other))
    done(qpid_ha("exchange", "create", exchange, "--kind", "fanout"))
    done(qpid_ha("exchange", "bind", exchange, dead))
    done(qpid_ha("queue", "create", address, "--alternate-exchange", exchange))
    client.send(address, *(Message(body=text, properties={"colour": text}) for text in ("red", "blue", "red")))
    assert done(qpid_ha("queue", "copy", address, other)).startswith(f"3 messages copied from queue {address}")
    moved = done(qpid_ha("queue", "move", other, dead, "--selector", "colour = 'blue'"))
    assert moved == f"1 message moved from queue {other} to {dead}; 2 stay, which are not meant\n"
    refused = qpid_ha("queue", "move", other, dead, "--selector", "colour = = 1")
    assert (refused.returncode, "selector" in refused.stderr) == (1, True)

    receiver = client.connection.create_receiver(address)
    for _ in range(3):
        receiver.receive(timeout=5)
        receiver.reject()
    receiver.close()
    retried = done(qpid_ha("queue", "retry", dead))
    assert f"3 messages of queue {dead} are to be delivered again: 3 to {address}" in retried
    assert bodies(client.browse(address)) == ["red", "blue", "red"]
    assert bodies(client.browse(dead)) == ["blue"]


def test_messages_are_redirected_to_where_an_exchange_leads_with_each(
    qpid_ha: Run, client: BlockingClient, address: str
) -> None:
    exchange, red, all_of_them = f"{address}-x", f"{address}-red", f"{address}-all"
    done(qpid_ha("exchange", "create", exchange, "--kind", "topic"))
    for queue, key in ((red, "red"), (all_of_them, "red"), (all_of_them, "blue")):
        done(qpid_ha("queue", "create", queue))
        done(qpid_ha("exchange", "bind", exchange, queue, key))
    done(qpid_ha("queue", "create", address))
    client.send(address, *(Message(body=text, subject=text) for text in ("red", "blue", "green", "red")))
    told = done(qpid_ha("queue", "redirect", address, exchange, "--count", "3"))
    where = f"3 to {all_of_them}, 2 to {red}"
    stays = "; 1 stays, which no binding takes"
    assert told == f"3 messages of queue {address} published to {exchange}: {where}{stays}\n"
    assert bodies(client.browse(red)) == ["red", "red"]
    assert bodies(client.browse(all_of_them)) == ["red", "blue", "red"]
    assert bodies(client.browse(address)) == ["green"]
    done(qpid_ha("queue", "set", red, "--max-messages", "2"))
    full = done(qpid_ha("queue", "redirect", address, exchange, "--key", "red"))
    assert full.startswith(
        f"0 messages of queue {address} published to {exchange}; 1 stays, for which there is no room:"
    )
    assert f"queue {red} is full" in full
    answer = json.loads(done(qpid_ha("queue", "redirect", address, exchange, "--key", "blue", "--format", "json")))
    assert (answer["moved"], answer["to"], answer["unrouted"]) == (1, {all_of_them: 1}, 0)
    refused = qpid_ha("queue", "redirect", address, "nowhere")
    assert (refused.returncode, "no exchange nowhere" in refused.stderr) == (1, True), refused.stderr
