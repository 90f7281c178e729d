"""`qpid-ha store` over data directories with many resource sets: set by set, and in few lines for all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.server.stores.discarded import DiscardedMessages
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.layout import segment_path
from store_tool import Run, chosen, done, store_tool
from store_writing import CLUSTER, StoreWriter, message, opening

MEMBERS = ("node1", "node2", "node3")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return store_tool(tmp_path)


def make_store(
    data_directory: Path, broker: str, set_name: str, messages: int, members: tuple[str, ...],
    map_events: Sequence[ev.MapEvent] = (),
) -> Path:  # fmt: skip
    store = data_directory / set_name
    store.mkdir(parents=True)
    writer = StoreWriter(LocalDisk(store), broker, set_name=set_name).write([*opening("node1", members), *map_events])
    writer.status(role="ready")
    for _ in range(messages):
        writer.write([message()])
    writer.kill()
    return store


def make_sets(tmp_path: Path, furthest: dict[str, str], members: tuple[str, ...] = MEMBERS) -> list[Path]:
    """A data directory for each of three brokers; of each set somebody's store is further than the others."""
    for name, best in furthest.items():
        for broker in members:
            make_store(tmp_path / broker, broker, name, 5 if broker == best else 3, members)
    return [tmp_path / broker for broker in members]


def in_map(name: str, members: tuple[str, ...], generation: int = 1, cluster: str = CLUSTER) -> list[ev.MapEvent]:
    """What the log of `default` has of a set."""
    record = ev.SetRecorded(name, cluster, generation, members[0], 1, members, False)
    return [ev.SetPlaced(name, members, (), "", 0, 0), record]


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    return make_sets(tmp_path, {"default": "node1", "orders": "node2", "shard-2": "node2", "shard-10": "node3"})


def test_list_has_a_line_for_each_set_of_each_directory_and_the_set_in_a_column(
    run: Run, directories: list[Path]
) -> None:
    lines = done(run("list", *directories)).splitlines()
    assert lines[0].split()[:3] == ["store", "set", "broker"]
    assert [line.split()[1] for line in lines[1:5]] == ["default", "orders", "shard-10", "shard-2"]
    assert len(lines) == 1 + 12

    only = json.loads(done(run("list", "--set", "orders", "--format", "json", *directories)))
    assert [(each["set"], each["broker"]) for each in only] == [("orders", name) for name in MEMBERS]


def test_with_default_alone_there_is_no_column_for_it(run: Run, tmp_path: Path) -> None:
    (first, *_) = make_sets(tmp_path, {"default": "node1"})
    assert done(run("list", first)).splitlines()[0].split()[:2] == ["store", "broker"]


def test_best_says_for_each_set_whose_store_to_begin_with_in_a_line_for_those_that_agree(
    run: Run, directories: list[Path]
) -> None:
    lines = done(run("best", *directories)).splitlines()
    assert [line.split(maxsplit=2) for line in lines[:4]] == [
        ["begin", "with", "sets  which"],
        ["node2", "2", "orders, shard-2"],
        ["node1", "1", "default"],
        ["node3", "1", "shard-10"],
    ]
    assert "Of none of the 4 sets anything that was confirmed is lost." in lines
    assert any("store recover" in line and "default" in line for line in lines)
    assert all(len(line) <= 80 for line in lines[:6])


def test_best_of_one_set_is_told_as_that_of_one_store_always_was(run: Run, directories: list[Path]) -> None:
    text = done(run("best", "--set", "orders", *directories))
    assert "WINNER: node2." in text
    assert f"qpid-ha store recover {directories[1] / 'orders'} --winner node2" in text
    assert "qpid-ha promote" not in text


def test_five_hundred_sets_stay_readable_and_the_one_in_doubt_is_not_lost_among_them(run: Run, tmp_path: Path) -> None:
    names = {f"shard-{number}": "node1" for number in range(1, 500)}
    (directory,) = make_sets(tmp_path, {"default": "node1", **names}, ("node1",))
    make_store(directory, "node1", "invoices", 3, MEMBERS)

    result = run("best", directory)

    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert len(lines) < 20
    assert lines[1].split()[:3] == ["node1", "500", "default,"]
    assert lines[1].endswith("more")
    assert "shard-2, shard-3" in lines[1]
    assert max(map(len, lines[:6])) <= 80
    assert "ADMIN: 1 of 501 sets need a decision. What is known, set by set:" in lines
    assert f"  qpid-ha store best --set invoices {directory}" in lines


def test_programs_get_the_verdict_of_each_set(run: Run, directories: list[Path]) -> None:
    (directories[2] / "shard-10").rename(directories[2] / "shard-10.set-aside-20260131T120000Z")
    result = run("best", "--format", "json", *directories)
    assert result.exit_code == 1
    verdicts = json.loads(result.stdout)["sets"]
    assert list(verdicts) == ["default", "orders", "shard-2", "shard-10"]
    assert [each["verdict"] for each in verdicts.values()] == ["winner", "winner", "winner", "admin"]
    assert verdicts["shard-10"]["missing"] == ["node3"]
    assert "--set shard-10" in verdicts["shard-10"]["options"][0]["commands"][0]


def test_a_broker_without_a_replica_of_a_set_is_no_empty_store_of_it(run: Run, tmp_path: Path) -> None:
    directories = make_sets(tmp_path, {"default": "node1"})
    make_store(directories[0], "node1", "orders", 1, ("node1",))
    verdicts = json.loads(done(run("best", "--format", "json", *directories)))["sets"]
    assert [reason["broker"] for reason in verdicts["orders"]["reasons"]] == ["node1"]


def test_other_machines_are_asked_for_all_their_sets_or_for_one(
    run: Run, directories: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "hosts" / "far").mkdir()
    directories[2].rename(tmp_path / "hosts" / "far" / "data")
    sources = [*directories[:2], "far:data"]
    verdicts = json.loads(done(run("best", "--format", "json", *sources)))["sets"]
    assert verdicts["shard-10"]["store"]["where"].startswith("far:")
    assert "WINNER: node3." in done(run("best", "--set", "shard-10", *sources))
    result = run("list", "--set", "unknown", "far:data")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "there is no store of the resource set unknown" in result.stderr


def test_recover_marks_in_each_set_the_store_that_is_here(run: Run, directories: list[Path]) -> None:
    done(run("recover", *directories))
    for name, best in {"default": 0, "orders": 1, "shard-2": 1, "shard-10": 2}.items():
        marks = [chosen(directory / name) for directory in directories]
        assert [mark is not None for mark in marks] == [place == best for place in range(3)]


def test_recover_leaves_sets_in_doubt_as_they_are_and_says_so_with_1(run: Run, directories: list[Path]) -> None:
    result = run("recover", *directories[:2])
    assert result.exit_code == 1
    assert "4 of 4 sets need a decision and stay as they are (default, orders, shard-2, shard-10)" in result.stderr
    assert chosen(directories[0] / "default") is None

    result = run("recover", "--winner", "node2", "--force", *directories[:2])
    assert result.exit_code == 2
    assert "name the one of --winner with --set" in result.stderr

    done(run("recover", "--winner", "node2", "--force", "--set", "orders", *directories[:2]))
    assert chosen(directories[1] / "orders") is not None
    assert chosen(directories[1] / "default") is None


def test_check_reads_all_sets_and_names_the_one_that_is_damaged(run: Run, directories: list[Path]) -> None:
    assert done(run("check", *directories)) == "ok\n"
    path = directories[1] / "orders" / segment_path(1)
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    result = run("check", *directories)
    assert result.exit_code == 1
    assert str(directories[1] / "orders") in result.stdout
    assert str(directories[0] / "orders") not in result.stdout
    assert done(run("check", "--set", "default", *directories)) == "ok\n"


def test_set_aside_takes_the_store_of_the_set_that_is_named(run: Run, directories: list[Path]) -> None:
    done(run("set-aside", "--set", "orders", directories[0]))
    names = sorted(path.name for path in directories[0].iterdir())
    assert "orders" not in names
    assert "default" in names
    assert json.loads(done(run("list", "--format", "json", directories[0])))[-1]["set"] == "shard-2"


def test_a_copy_that_an_operator_put_beside_the_stores_is_no_set(run: Run, directories: list[Path]) -> None:
    before = done(run("list", directories[0]))
    shutil.copytree(directories[0] / "default", directories[0] / "before")
    assert done(run("list", directories[0])) == before
    assert len(done(run("list", directories[0] / "before")).splitlines()) == 2


def test_what_can_be_no_sets_name_is_an_error_of_usage(run: Run, directories: list[Path]) -> None:
    result = run("best", "--set", "../x", *directories)
    assert result.exit_code == 2
    assert "cannot be the name of a resource set" in result.stderr


# --- beside the records in the cluster map


@pytest.fixture
def recorded(tmp_path: Path) -> list[Path]:
    """Stores whose `default` has a map: of bills newer stores than these are needed, of mail there are none here."""
    names = {"orders": "node2", "bills": "node1", "left-over": "node3"}
    directories = make_sets(tmp_path, names)
    events = [*in_map("orders", MEMBERS[:2]), *in_map("bills", MEMBERS[1:], 4), *in_map("mail", ("node4", "node5"))]
    for broker in MEMBERS:
        make_store(tmp_path / broker, broker, "default", 5, MEMBERS, events)
    return directories


def test_best_says_of_each_set_whose_copy_it_is_and_whether_the_map_has_that_broker_in_sync(
    run: Run, recorded: list[Path]
) -> None:
    result = run("best", "--each", *recorded)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["set", "best", "copy", "at", "recorded", "verdict"]
    rows = {line.split()[0]: line.split()[1:4] for line in lines[1:] if not line.startswith(" ")}
    assert rows == {
        "default": ["node1", "1:14", "-"], "bills": ["node1", "1:8", "no"], "left-over": ["-", "-", "-"],
        "mail": ["-", "-", "-"], "orders": ["node2", "1:8", "yes"],
    }  # fmt: skip
    assert max(map(len, lines)) <= 80
    texts = [line.partition("ADMIN: ")[2] for line in lines if "ADMIN: " in line]
    assert [text[:20] for text in texts] == ["older than the recor", "no stores: node4, no"]

    lines = run("best", *recorded).stdout.splitlines()
    assert "ADMIN: 2 of 5 sets need a decision. What is known, set by set:" in lines
    assert any(line.startswith("nothing to begin with") for line in lines)
    assert max(len(line) for line in lines if not line.startswith("  qpid-ha")) <= 80


def test_best_of_one_set_shows_its_record(run: Run, recorded: list[Path]) -> None:
    text = done(run("best", "--set", "orders", *recorded))
    assert (
        "RECORD: in the cluster map: generation 1, epoch 1, led by node1; in sync node1, node2; node2 is one of those."
        in text.splitlines()
    )
    result = run("best", "--set", "mail", "--format", "json", *recorded)
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["verdict"], document["missing"], document["recorded"]) == ("admin", ["node4", "node5"], None)
    assert document["record"]["members"] == ["node4", "node5"]
    # A directory of a set is judged alone, as it always was: the commands that are printed name it.
    done(run("best", *(each / "orders" for each in recorded)))


def test_recover_of_a_set_goes_by_its_record_and_force_is_said_to_the_controller_as_well(
    run: Run, recorded: list[Path]
) -> None:
    result = run("recover", "--set", "bills", *recorded)
    assert result.exit_code == 1
    assert "nothing was changed" in result.stderr
    assert chosen(recorded[0] / "bills") is None

    text = done(run("recover", "--set", "bills", "--winner", "node1", "--force", *recorded))
    assert chosen(recorded[0] / "bills") == (1, 8, "an operator chose it by force")
    assert "qpid-ha set promote bills node1 --force" in text.splitlines()[-1]

    result = run("recover", *recorded)
    assert "2 of 5 sets need a decision and stay as they are (bills, mail)" in result.stderr
    assert "left-over: stays as it is" in result.stdout
    assert chosen(recorded[1] / "orders") is not None
    assert chosen(recorded[2] / "left-over") is None


# --- discarded messages


def test_what_was_discarded_of_another_set_lies_apart_and_is_listed_with_its_set(run: Run, tmp_path: Path) -> None:
    for name, queue in (("default", "orders"), ("shard-1", "orders")):
        kept = DiscardedMessages(tmp_path, name)
        kept.keep(queue, (7, 8), (b"a", b"b"))
    assert [path.parent.name for path in sorted(tmp_path.rglob("*.log"))] == ["discarded", "shard-1"]
    assert (tmp_path / "discarded" / "shard-1").stat().st_mode & 0o777 == 0o700
    lines = done(run("discarded", "list", "--data-dir", tmp_path)).splitlines()
    assert lines[0].split()[:3] == ["set", "queue", "messages"]
    assert sorted(line.split()[:2] for line in lines[1:]) == [["default", "orders"], ["shard-1", "orders"]]
    assert len(done(run("discarded", "export", "--data-dir", tmp_path)).splitlines()) == 4


def test_what_was_discarded_of_default_alone_is_listed_without_a_column_for_it(run: Run, tmp_path: Path) -> None:
    DiscardedMessages(tmp_path).keep("orders", (7,), (b"a",))
    lines = done(run("discarded", "list", "--data-dir", tmp_path)).splitlines()
    assert lines[0].split()[0] == "queue"
    (document,) = json.loads(done(run("discarded", "list", "--data-dir", tmp_path, "--format", "json")))
    assert "set" not in document
