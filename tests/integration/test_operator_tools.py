"""`qpid-ha connections`, `queue peek|move|export|import` and `user` as an operator types them, on one broker."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from proton import Message
from proton.utils import BlockingConnection

from blocking_client import BlockingClient, bodies
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.invocation import Invocation, WallClock
from qpid_ha_agent.message_file import end_line, header_line
from running_broker import RunningBroker

pytestmark = pytest.mark.direct_only("an operator asks a broker about itself, over its socket")


def qpid_ha(
    broker: RunningBroker, *words: str, given: str | None = None, invocation: Invocation | None = None
) -> Result:
    """In this process: to start Python takes longer than most of these commands."""
    environment = {"QPID_HA_SOCKET": str(broker.control_socket)}
    return CliRunner().invoke(admin, words, input=given, env=environment, obj=invocation)


def done(result: Result) -> str:
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def as_json(result: Result) -> Any:
    return json.loads(done(result))


def test_connections_are_shown_and_one_is_closed(broker: RunningBroker, client: BlockingClient, address: str) -> None:
    with closing(BlockingConnection(broker.url)) as other:
        other.create_sender(address)
        (row,) = as_json(qpid_ha(broker, "connections", "list", "--node", address, "--format", "json"))
        assert (row["kind"], [link["node"] for link in row["links"]]) == ("client", [address])
        shown = done(qpid_ha(broker, "connections", "list"))
        assert max(map(len, shown.splitlines())) <= 80
        assert str(row["address"]) in shown
        assert "from client" in done(qpid_ha(broker, "connections", "list", "--links"))
        told = done(qpid_ha(broker, "connections", "close", str(row["id"]), "--reason", "maintenance"))
        assert told == f"connection {row['id']} of {row['address']} at test closed\n"
        assert as_json(qpid_ha(broker, "connections", "list", "--node", address, "--format", "json")) == []
    refused = qpid_ha(broker, "connections", "close", str(row["id"]))
    assert (refused.exit_code, "there is no connection" in refused.stderr) == (1, True)
    client.send(address, "y")


def test_queues_are_sorted_and_filtered(broker: RunningBroker, client: BlockingClient, address: str) -> None:
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        client.send(f"{address}.{name}", *map(str, range(count)))
    words = "queue", "list", "--filter", f"{address}.*", "--format", "json"
    assert [row["name"][-1] for row in as_json(qpid_ha(broker, *words))] == ["a", "b", "c"]
    assert [row["name"][-1] for row in as_json(qpid_ha(broker, *words, "--sort", "messages"))] == ["b", "c", "a"]


def test_the_table_of_queues_is_kept_up_to_date(broker: RunningBroker, client: BlockingClient, address: str) -> None:
    def publish_then_stop(_: float) -> None:
        if client.browse(address):
            raise KeyboardInterrupt
        client.send(address, "x")

    done(qpid_ha(broker, "queue", "create", address))
    watching = Invocation(clock=WallClock(pause=publish_then_stop))
    shown = done(qpid_ha(broker, "queue", "list", "--watch", "--filter", address, invocation=watching))
    assert ("messages" in shown, address[:20] in shown) == (True, True)
    assert qpid_ha(broker, "queue", "list", "--watch", "--format", "json").exit_code == 2


def test_messages_are_looked_at_and_moved(broker: RunningBroker, client: BlockingClient, address: str) -> None:
    client.send(address, Message("first\x1b[2J", subject="s"), "second")
    done(qpid_ha(broker, "queue", "create", f"{address}.to"))
    shown = done(qpid_ha(broker, "queue", "peek", address))
    assert "available" in shown
    assert "second" in shown
    assert "\x1b" not in done(qpid_ha(broker, "queue", "peek", address, "--body"))
    rows = as_json(qpid_ha(broker, "queue", "peek", address, "--format", "json"))["messages"]
    one = done(qpid_ha(broker, "queue", "peek", address, "--id", rows[1]["id"]))
    assert "  second" in one.splitlines()
    told = done(qpid_ha(broker, "queue", "move", address, f"{address}.to", "--id", rows[1]["id"]))
    assert told == f"1 message moved from queue {address} to {address}.to\n"
    assert bodies(client.browse(f"{address}.to")) == ["second"]
    assert len(client.browse(address)) == 1
    assert qpid_ha(broker, "queue", "move", address, "nowhere").exit_code == 1


def test_a_queue_is_exported_and_imported_and_a_second_import_makes_no_copies(
    broker: RunningBroker, client: BlockingClient, address: str, tmp_path: Path
) -> None:
    large = "x" * 1_500_000  # more than one answer of the control socket has
    given = [Message("first", subject="s", durable=True, properties={"k": 1}), Message(large), Message("last")]
    client.send(address, *given)
    file, target = tmp_path / "saved", f"{address}.to"
    assert done(qpid_ha(broker, "queue", "export", address, str(file))) == f"3 messages of queue {address} written\n"
    assert qpid_ha(broker, "queue", "export", address, str(file)).exit_code == 1
    assert file.stat().st_mode & 0o777 == 0o600
    done(qpid_ha(broker, "queue", "export", address, str(tmp_path / "far"), "-b", broker.url))
    assert (tmp_path / "far").read_bytes().splitlines()[1:] == file.read_bytes().splitlines()[1:]
    assert len(client.browse(address)) == 3
    assert "there is no queue" in qpid_ha(broker, "queue", "import", str(file), target).stderr
    done(qpid_ha(broker, "queue", "create", target))

    damaged = tmp_path / "damaged"
    lines = file.read_bytes().splitlines(keepends=True)
    damaged.write_bytes(b"".join(lines[:-1]))
    refused = qpid_ha(broker, "queue", "import", str(damaged), target)
    assert (refused.exit_code, "line 5: the file ends here" in refused.stderr) == (1, True)
    assert len(client.browse(target)) == 0

    for _ in range(2):
        assert "3 messages are in queue" in done(qpid_ha(broker, "queue", "import", str(file), target))
        first, second, third = client.browse(target)
        assert (first.body, first.subject, first.properties) == ("first", "s", {"k": 1})
        assert (second.body == large, third.body) == (True, "last")
    done(qpid_ha(broker, "queue", "import", str(file), target, "--run", "again", "-b", broker.url))
    assert len(client.browse(target)) == 6


def test_an_import_through_http_is_refused_with_the_way_that_there_is(tmp_path: Path) -> None:
    file = tmp_path / "messages"
    file.write_bytes(header_line("export", "q", at_ms=0) + end_line(0))
    refused = CliRunner().invoke(admin, ["-b", "https://127.0.0.1:1", "queue", "import", str(file), "q"])
    assert refused.exit_code == 2
    assert "give -b amqp://[USER@]HOST[:PORT]" in refused.stderr


def test_an_import_that_a_full_queue_has_stopped_goes_on_without_copies(
    broker: RunningBroker, client: BlockingClient, address: str, tmp_path: Path
) -> None:
    client.send(address, *"abcde")
    file, target = tmp_path / "saved", f"{address}.to"
    done(qpid_ha(broker, "queue", "export", address, str(file)))
    done(qpid_ha(broker, "queue", "create", target, "--max-messages", "3"))
    stopped = qpid_ha(broker, "queue", "import", str(file), target)
    assert (stopped.exit_code, "3 of 5 messages are in queue" in stopped.stderr) == (1, True)
    assert bodies(client.consume(target)) == ["a", "b", "c"]
    done(qpid_ha(broker, "queue", "import", str(file), target))
    assert bodies(client.consume(target)) == ["d", "e"]


def test_users_are_made_listed_and_removed(broker: RunningBroker, tmp_path: Path) -> None:
    words = "--sasldb", str(tmp_path / "users.sasldb")
    assert qpid_ha(broker, "user", "list", *words).exit_code == 1
    made = qpid_ha(broker, "user", "add", "olga", *words, given="correct horse\n")
    assert (made.exit_code, made.stdout) == (0, "user olga added\n")
    assert (tmp_path / "users.sasldb").stat().st_mode & 0o777 == 0o600
    (tmp_path / "password").write_text("battery staple\n")
    from_file = "--password-from", str(tmp_path / "password")
    done(qpid_ha(broker, "user", "add", "ivan", "--realm", "there", *from_file, *words))
    again = qpid_ha(broker, "user", "add", "olga", *words, given="x\n")
    assert (again.exit_code, "--replace" in again.stderr) == (1, True)
    done(qpid_ha(broker, "user", "add", "olga", "--replace", *words, given="another\n"))
    rows = as_json(qpid_ha(broker, "user", "list", "--format", "json", *words))
    assert [row["user"] for row in rows] == ["ivan", "olga"]
    assert rows[0]["realm"] == "there"
    done(qpid_ha(broker, "user", "remove", "olga", *words))
    assert qpid_ha(broker, "user", "remove", "olga", *words).exit_code == 1
    assert qpid_ha(broker, "user", "add", "-x@y", *words, given="x\n").exit_code == 2
    assert qpid_ha(broker, "user", "add", "empty", *words, given="").exit_code == 2
    assert "correct horse" not in made.stdout + made.stderr
