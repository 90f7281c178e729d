"""What a support bundle shows, what it takes out, and how it is written."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from qpid_ha_agent.support.archive import MOST_BYTES, BundleFiles, write_archive
from qpid_ha_agent.support.redaction import TAKEN, Redaction
from qpid_ha_agent.support.shown_settings import SHOWN, WITHHELD, shown_settings
from qpid_ha_config.settings import SECRETS, TABLE

SECRET = "Zx9-planted"
KNOWN = 's3cr3t "quoted" & so/on@home'
NOW_S = 1_800_000_000.0

PLACES = [
    f"cannot reach amqp://replicator:{SECRET}@node1:5672: refused",
    f"cannot reach amqp://{SECRET}@node1:5672",
    f"two of them: amqp://a:{SECRET}@b,amqp://c:{SECRET}@d/orders",
    f"with an @ in it: amqps://me:p@{SECRET}@node1/x",
    f"with a slash and quotes: amqp://me:\"{SECRET}'/x@node1",
    f"no scheme: //me:{SECRET}@node1",
    f"no scheme at all: me:{SECRET}@node1:5672",
    f"password: {SECRET} with spaces",
    f"ha.password={SECRET}",
    f"{{'user': 'a', 'password': '{SECRET}', 'url': 'x'}}",
    f'{{"ha.password": "{SECRET}"}}',
    f"coordinator_password = '{SECRET}'",
    f"QPID_HA_TOKEN={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"sent bearer {SECRET} to it",
    f"qpid-ha --password {SECRET} status",
    f"x --api-key={SECRET}",
    f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}\n-----END EC PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
]
ORDINARY = [
    "2026-01-31T03:00:00.123Z info cluster Status change: ready -> primary (the agent of node1 got the lock)",
    "peer=127.0.0.1:5555 sent a frame of 70000 bytes; the limit is 65536",
    "node1 listens on amqp://127.0.0.1:5672, control socket /run/qpid-ha/node1.sock",
    "cannot log in: node2 refuses the password of replicator",
]


@pytest.mark.parametrize("text", PLACES)
def test_whatever_stands_in_the_place_of_a_secret_is_taken_out(text: str) -> None:
    clean = Redaction([]).text(f"before\n{text}\nafter")
    assert SECRET not in clean
    assert TAKEN in clean
    assert clean.startswith("before\n")


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_line_stays_as_it_is(text: str) -> None:
    assert Redaction([SECRET]).text(text) == text


def test_a_known_secret_is_taken_out_wherever_it_stands() -> None:
    redaction = Redaction([KNOWN, SECRET, "", "abc"])
    for form in (KNOWN, quote(KNOWN, safe=""), json.dumps(KNOWN)[1:-1], repr(KNOWN)[1:-1]):
        assert redaction.text(f"it said {form}, twice") == f"it said {TAKEN}, twice"
    assert redaction.text("abcdef") == "abcdef"
    document = redaction.document({"queue": f"q-{SECRET}", "list": [SECRET, 1, True, None, 2.5], "token": "x"})
    assert document == {"queue": f"q-{TAKEN}", "list": [TAKEN, 1, True, None, 2.5], "token": TAKEN}


def test_long_and_odd_text_is_no_trouble() -> None:
    """Each of these takes longer than the test may if the time grows with the square of the length."""
    size = 100_000
    for part in ("x", "//", "x:", "password", "--token", " ", "-----BEGIN PRIVATE KEY-----", "bearer "):
        assert len(Redaction([SECRET]).text(part * (size // len(part)))) < 3 * size


def test_somebody_has_thought_about_each_setting() -> None:
    assert set(TABLE) == SHOWN | WITHHELD
    assert not SHOWN & WITHHELD
    assert set(SECRETS) <= WITHHELD
    assert not any("password" in key or "sasl" in key or key.endswith(".key") for key in SHOWN)


def test_of_other_settings_only_the_name_is_shown() -> None:
    shown = shown_settings({"name": "node1", "ha.password": SECRET, "acl.file": None, "ha.pasword": SECRET})
    assert shown == {"settings": {"name": "node1"}, "set_and_not_shown": ["ha.password", "ha.pasword"]}


def bundle_of(*secrets: str) -> BundleFiles:
    return BundleFiles(Redaction(secrets))


def read(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        assert {member.mode for member in opened.getmembers()} == {0o600}
        files = {member.name: opened.extractfile(member) for member in opened.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_the_archive_is_for_its_owner_alone_and_says_what_is_in_it(tmp_path: Path) -> None:
    bundle = bundle_of(SECRET)
    bundle.add_text("logs/a.log", f"one {SECRET}\n")
    bundle.add_document("brokers/node1/status.json", {"state": "primary"})
    bundle.lack(f"node2 {SECRET}", f"refused {SECRET}")
    path = tmp_path / "bundle.tar.gz"
    write_archive(path, bundle, {"host": "node1"}, NOW_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["bundle.tar.gz"]
    files = read(path)
    assert list(files) == ["bundle/index.json", "bundle/brokers/node1/status.json", "bundle/logs/a.log"]
    assert SECRET.encode() not in b"".join(files.values())
    index = json.loads(files["bundle/index.json"])
    assert index["host"] == "node1"
    assert index["missing"] == {f"node2 {TAKEN}": f"refused {TAKEN}"}


def test_each_file_is_bounded_and_the_index_says_what_was_cut() -> None:
    bundle = bundle_of()
    bundle.add_text("log", "a line of a log\n" * (MOST_BYTES // 8))
    bundle.add_document("queues.json", [{"name": f"queue-{number}-{'x' * 200}"} for number in range(10_000)])
    bundle.add_document("large.json", {"text": "x" * (MOST_BYTES + 1)})
    assert max(map(len, bundle.files.values())) <= MOST_BYTES
    assert bundle.files["log"].startswith(b"a line of a log\n")
    assert set(bundle.cut) == {"log", "queues.json"}
    assert "of 10000 entries" in bundle.cut["queues.json"]
    assert set(bundle.missing) == {"large.json"}


def test_an_archive_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    bundle = bundle_of()
    bundle.files["ok"] = b"x"
    bundle.files["zz"] = range(5)  # type: ignore[assignment]  # has a length, and cannot be written
    with pytest.raises(TypeError):
        write_archive(path, bundle, {}, NOW_S)
    assert list(tmp_path.iterdir()) == []
    path.write_text("another one")
    with pytest.raises(FileExistsError):
        write_archive(path, bundle_of(), {}, NOW_S)
    assert path.read_text() == "another one"
