"""`qpid-ha store` as an operator types it: directories, hosts behind ssh, verdicts, marks, discarded messages."""

from __future__ import annotations

import fcntl
import json
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from proton import Message

from blocking_client import BlockingClient, bodies
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.server.stores.discarded import DiscardedMessages
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.layout import segment_path
from running_broker import RunningBroker
from running_cluster import RunningCluster
from store_tool import Run, chosen, done, store_tool
from store_writing import StoreWriter, message, opening

MEMBERS = ("node1", "node2", "node3")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return store_tool(tmp_path)


def make_store(
    data_directory: Path, broker: str, messages: int, members: Sequence[str] = MEMBERS, role: str = "ready"
) -> Path:
    """A data directory with a store that was not closed."""
    store = data_directory / "default"
    store.mkdir(parents=True)
    writer = StoreWriter(LocalDisk(store), broker).write(opening("node1", members)).status(role=role)
    for _ in range(messages):
        writer.write([message()])
    writer.kill()
    return data_directory


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """Of a cluster of three; node2 is the furthest."""
    return [make_store(tmp_path / name, name, count) for name, count in zip(MEMBERS, (5, 7, 6), strict=True)]


@contextmanager
def broker_at_work(data_directory: Path) -> Iterator[None]:
    """As long as a broker works there, it holds this lock."""
    with (data_directory / "LOCK").open("w") as file:
        file.write("4711\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- list and check


def test_list_tells_whose_and_how_far_and_takes_a_store_itself_too(run: Run, stores: list[Path]) -> None:
    rows = json.loads(done(run("list", stores[0], stores[1] / "default", "--format", "json")))
    assert [(row["broker"], row["last_lsn"], row["messages"], row["clean"]) for row in rows] == [
        ("node1", 8, 5, ""), ("node2", 10, 7, ""),
    ]  # fmt: skip
    table = done(run("list", *stores))
    assert "dirty" in table
    assert "node1, node2, node3" in table
    assert yaml.safe_load(done(run("list", stores[0], "--format", "yaml")))[0]["broker"] == "node1"


def test_a_store_in_use_is_read_all_the_same_and_says_so(run: Run, stores: list[Path]) -> None:
    with broker_at_work(stores[0]):
        assert "running" in done(run("list", stores[0]))


def test_a_directory_that_is_not_there_ends_with_3_after_the_others(run: Run, stores: list[Path]) -> None:
    result = run("list", stores[0], "nowhere")
    assert result.exit_code == 3
    assert "node1" in result.stdout
    assert "nowhere" in result.stderr


def test_check_is_content_with_what_was_written_and_names_the_place_of_what_was_not(
    run: Run, stores: list[Path]
) -> None:
    assert done(run("check", *stores)) == "ok\n"
    path = stores[1] / "default" / segment_path(1)
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    result = run("check", *stores, "--format", "json")
    assert result.exit_code == 1
    (flaw,) = json.loads(result.stdout)
    assert (flaw["what"], flaw["file"], flaw["offset"]) == ("damaged", segment_path(1), 512)
    assert f"set-aside {stores[1] / 'default'}" in result.stderr


# --- best


def test_best_finds_the_winner_says_why_and_gives_the_next_command(run: Run, stores: list[Path]) -> None:
    table = done(run("best", *stores))
    assert "WINNER: node2." in table
    assert f"  qpid-ha store recover {stores[1] / 'default'} --winner node2 --position 1:10\n" in table
    verdict = json.loads(done(run("best", *stores, "--format", "json")))
    assert (verdict["verdict"], verdict["safe"], verdict["store"]["broker"]) == ("winner", True, "node2")
    assert {reason["broker"]: reason["standing"] for reason in verdict["reasons"]} == {
        "node1": "behind", "node2": "best", "node3": "behind",
    }  # fmt: skip


def test_best_and_recover_ask_the_coordinator_that_this_machine_is_configured_with(
    run: Run, stores: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "broker.yaml").write_text(f"ha: {{coordinator: 'file:{tmp_path}'}}\n")
    cluster = json.loads(run("list", stores[0], "--format", "json").stdout)[0]["cluster"]
    FileCoordinator(tmp_path).compare_and_set(ClusterRecord(), ClusterRecord(cluster, 3, "node1", 9, MEMBERS))

    found = run("best", *stores)

    assert found.exit_code == 1
    assert "ADMIN: The coordinator's record says generation 3, epoch 9, led by node1, and no store here" in found.stdout
    assert run("recover", *stores).exit_code == 1
    assert [chosen(store / "default") for store in stores] == [None, None, None]
    (tmp_path / "record.json").write_text("{")
    found = run("best", *stores)
    assert found.exit_code == 0
    assert "judged without the coordinator's record" in found.stderr


def test_best_asks_hosts_through_ssh_and_an_away_one_is_a_store_that_is_missing(
    run: Run, stores: list[Path], tmp_path: Path
) -> None:
    for store in stores:
        (tmp_path / "hosts" / store.name).mkdir()
    hosts = [f"{store.name}:{store}" for store in stores]
    verdict = json.loads(done(run("best", *hosts, "--format", "json")))
    assert (
        verdict["next"][0] == f"ssh node2 qpid-ha store recover {stores[1] / 'default'} --winner node2 --position 1:10"
    )
    result = run("best", hosts[0], hosts[1], f"away:{stores[2]}", "--format", "json")
    assert result.exit_code == 1
    assert "No route to host" in result.stderr
    assert json.loads(result.stdout)["missing"] == ["node3"]
    assert run("best", "away:/data").exit_code == 3


def test_the_words_of_a_damaged_answer_are_not_taken_for_facts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bin" / "ssh").write_text("#!/bin/sh\necho '{\"where\": 1}'\n")
    result = run("best", "node1:/data")
    assert result.exit_code == 3
    assert "cannot be understood" in result.stderr


# --- recover


def test_recover_marks_the_winner_of_a_safe_verdict_and_touches_nothing_else(run: Run, stores: list[Path]) -> None:
    before = content(stores[0]), content(stores[2])
    out = done(run("recover", *stores))
    assert "marked" in out
    mark = chosen(stores[1] / "default")
    assert mark is not None
    assert mark[:2] == (1, 10)
    assert (content(stores[0]), content(stores[2])) == before


def test_a_dry_run_changes_nothing(run: Run, stores: list[Path]) -> None:
    assert "would be marked" in done(run("recover", *stores, "--dry-run", "--erase-others"))
    assert chosen(stores[1] / "default") is None
    assert all((store / "default").exists() for store in stores)


def test_others_are_set_aside_and_never_deleted(run: Run, stores: list[Path]) -> None:
    before = content(stores[0] / "default")
    done(run("recover", *stores, "--erase-others"))
    assert (stores[1] / "default").exists()
    for other in (stores[0], stores[2]):
        assert not (other / "default").exists()
    (aside,) = stores[0].glob("default.set-aside-*")
    assert content(aside) == before


def test_recover_refuses_without_proof_and_obeys_force(run: Run, stores: list[Path]) -> None:
    refused = run("recover", stores[1], "--winner", "node2")
    assert refused.exit_code == 1
    assert chosen(stores[1] / "default") is None
    assert "--force" in refused.stdout
    done(run("recover", stores[1], "--winner", "node2", "--force"))
    mark = chosen(stores[1] / "default")
    assert mark is not None
    assert "force" in mark[2]


def test_a_position_that_was_seen_elsewhere_is_proof_as_long_as_the_store_is_there(
    run: Run, stores: list[Path]
) -> None:
    assert run("recover", stores[1], "--winner", "node2", "--position", "1:9").exit_code == 1
    assert chosen(stores[1] / "default") is None
    done(run("recover", stores[1], "--winner", "node2", "--position", "1:10"))
    assert chosen(stores[1] / "default") is not None


def test_recover_and_set_aside_refuse_while_a_broker_works_there(run: Run, stores: list[Path]) -> None:
    with broker_at_work(stores[1]):
        for words in (["recover", *stores], ["set-aside", stores[1]]):
            result = run(*words)
            assert result.exit_code == 1
            assert "4711" in result.stderr
    assert chosen(stores[1] / "default") is None
    assert (stores[1] / "default").exists()


def test_a_broker_that_works_on_another_store_keeps_all_of_it_from_happening(run: Run, stores: list[Path]) -> None:
    with broker_at_work(stores[2]):
        assert run("recover", *stores, "--erase-others").exit_code == 1
    assert (stores[0] / "default").exists()
    assert chosen(stores[1] / "default") is None


def test_a_winner_on_another_machine_is_not_marked_from_here(run: Run, stores: list[Path], tmp_path: Path) -> None:
    (tmp_path / "hosts" / "node2").mkdir()
    result = run("recover", stores[0], f"node2:{stores[1]}", stores[2])
    assert result.exit_code == 1
    assert "ssh node2 qpid-ha store recover" in result.stderr


@pytest.mark.parametrize("words", [["--force"], ["--position", "1:1"]])
def test_what_is_about_a_winner_needs_one(run: Run, stores: list[Path], words: list[str]) -> None:
    assert run("recover", stores[0], *words).exit_code == 2


def test_set_aside_renames(run: Run, stores: list[Path]) -> None:
    assert "set-aside-" in done(run("set-aside", stores[0]))
    assert "empty" in done(run("list", stores[0]))


# --- discarded


@pytest.fixture
def data_directory(tmp_path: Path) -> Path:
    """Of a broker that has dropped two messages of a queue, and one of another."""
    directory = tmp_path / "data"
    directory.mkdir()
    kept = DiscardedMessages(directory)
    kept.keep("discarded orders", (7, 9), tuple(Message(body).encode() for body in ("first", b"\xff\x00")))
    kept.keep("discarded/bills", (8,), (Message("bill", properties={"kind": "late"}).encode(),))
    return directory


def test_what_was_discarded_is_listed_and_exported(run: Run, data_directory: Path) -> None:
    rows = json.loads(done(run("discarded", "list", "--data-dir", data_directory, "--format", "json")))
    assert [(row["queue"], row["messages"], row["first-id"]) for row in rows] == [
        ("discarded orders", 2, 7), ("discarded/bills", 1, 8),
    ]  # fmt: skip
    lines = done(run("discarded", "export", "--data-dir", data_directory)).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"queue": "discarded orders", "id": 7, "body": "first"},
        {"queue": "discarded orders", "id": 9, "body_base64": "/wA="},
        {"queue": "discarded/bills", "id": 8, "body": "bill", "properties": {"kind": "late"}},
    ]
    (line,) = done(run("discarded", "export", rows[1]["file"], "--raw")).splitlines()
    assert set(json.loads(line)) == {"queue", "id", "payload_base64"}


def test_a_file_that_was_cut_short_gives_what_is_in_it_and_says_that_there_was_more(
    run: Run, data_directory: Path
) -> None:
    path = next((data_directory / "discarded").glob("*orders*"))
    path.write_bytes(path.read_bytes()[:-3])
    result = run("discarded", "export", path)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1
    assert path.name in result.stderr


def test_messages_are_replayed_once_somebody_says_so_and_the_file_is_renamed(
    run: Run, data_directory: Path, broker: RunningBroker, client: BlockingClient
) -> None:
    words = ["discarded", "replay", "--data-dir", data_directory, "--queue", "discarded orders", "-b", broker.url]
    refused = run(*words, answer="n\n")
    assert refused.exit_code == 1
    assert not list((data_directory / "discarded").glob("*.replayed"))
    done(run(*words, "--yes"))
    assert bodies(client.consume("discarded orders")) == ["first", b"\xff\x00"]
    (replayed,) = (data_directory / "discarded").glob("*.replayed")
    assert "orders" in replayed.name
    assert done(run(*words, "--yes")) == "there is nothing to replay\n"
    rows = json.loads(done(run("discarded", "list", "--data-dir", data_directory, "--format", "json")))
    assert [row["replayed"] for row in rows if row["queue"] == "discarded orders"] == [True]


def test_a_replay_goes_to_an_address_and_one_that_nobody_listens_on_keeps_the_file(
    run: Run, data_directory: Path
) -> None:
    words = ["discarded", "replay", "--data-dir", data_directory, "--yes"]
    assert run(*words).exit_code == 2
    assert run(*words, "-b", "amqp://127.0.0.1:1").exit_code == 3
    assert not list((data_directory / "discarded").glob("*.replayed"))


def test_without_a_directory_there_is_a_question_and_not_a_guess(run: Run) -> None:
    assert run("discarded", "list").exit_code == 2


# --- with brokers


def test_a_cluster_goes_on_with_the_marked_store_when_one_is_lost_for_good(run: Run, tmp_path: Path) -> None:
    """The verdict's own commands, typed as they are printed."""
    kept = tmp_path / "stores"
    kept.mkdir()
    with RunningCluster(tmp_path, stores=kept) as cluster:
        cluster.form()
        with BlockingClient(cluster.urls[0]) as client:
            client.send("orders", *(Message(str(number), durable=True) for number in range(20)))
        cluster.crash()
        shutil.rmtree(kept / cluster.broker(0).name)
        left = [kept / cluster.broker(index).name for index in (1, 2)]
        verdict = json.loads(run("best", *left, "--format", "json").stdout)
        assert (verdict["verdict"], verdict["missing"]) == ("admin", [cluster.broker(0).name])
        for index in (1, 2):
            cluster.restart(index)
        with pytest.raises(RequestRefused, match="cannot be asked"):
            cluster.promote(1)
        for index in (1, 2):
            cluster.kill(index)
            cluster.broker(index).wait()
        verdict = json.loads(run("best", *left, "--format", "json").stdout)
        _qpid_ha, _store, *words = shlex.split(verdict["options"][1]["commands"][0])
        done(run(*words))
        winner = words[words.index("--winner") + 1]
        index = next(index for index in (1, 2) if cluster.broker(index).name == winner)
        for each in (1, 2):
            cluster.restart(each)
        cluster.promote(index)
        cluster.wait_state(index, "primary")
        cluster.wait_state(3 - index, "ready")
        with BlockingClient(cluster.urls[index]) as client:
            assert bodies(client.consume("orders")) == [str(number) for number in range(20)]
