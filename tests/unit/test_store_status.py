"""Stories about STATUS: what a store says of itself, believed only when it is just what was written."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any
from zlib import crc32

import pytest

from qpid_ha_broker.store.errors import NewerFormat, StatusError
from qpid_ha_broker.store.status import STATUS_FILE, Status
from simulated_disk import SimulatedDisk

STATUS = Status(
    cluster="5f0c",
    broker="alpha",
    set="default",
    history=((1, "alpha", 1), (2, "bêta", 77)),
    role="primary",
    epoch=4,
    members=("alpha", "bêta"),
    clean="0b54",
    journal_end=(9, 4096),
    last_lsn=(1 << 64) - 1,
    local_lsn=1 << 63,
    promised=3,
    promised_to="gamma",
    store="77ab",
    revision=12,
    journal_synced=(9, 512),
    claims=(1, 3),
)


@pytest.mark.parametrize("status", [STATUS, Status("", "alpha", "default")])
def test_status_says_what_was_put_into_it(status: Status) -> None:
    disk = SimulatedDisk(Random(1))
    disk.replace(STATUS_FILE, status.encode())
    found = Status.decode(disk.after_power_cut().open(STATUS_FILE).read(0, 1 << 20))
    assert found == status
    assert found.generation == (2 if status is STATUS else 0)


def test_no_byte_of_status_changes_unnoticed() -> None:
    whole = STATUS.encode()
    for at in range(len(whole)):
        for byte in {whole[at] ^ 1, whole[at] ^ 0x80, ord(" "), ord("\t"), ord("1"), ord("}")} - {whole[at]}:
            with pytest.raises(StatusError):
                Status.decode(whole[:at] + bytes([byte]) + whole[at + 1 :])


def test_status_that_was_cut_off_or_never_written_is_none() -> None:
    whole = STATUS.encode()
    for length in range(len(whole)):
        with pytest.raises(StatusError):
            Status.decode(whole[:length])


def sealed(**changes: Any) -> bytes:
    """As somebody writes it who knows how the checksum is made, and that alone."""
    fields = {**json.loads(STATUS.encode()), **changes}
    del fields["crc32"]
    fields = {name: value for name, value in fields.items() if value is not ...}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**fields, "crc32": crc32(text.encode())}, indent=2, ensure_ascii=False).encode() + b"\n"


def test_the_checksum_is_made_as_the_protocol_page_says() -> None:
    assert sealed() == STATUS.encode()


def test_status_of_a_newer_release_is_refused_as_such() -> None:
    with pytest.raises(NewerFormat, match="upgrade this one"):
        Status.decode(sealed(format=4, weather="fine"))


def test_status_of_format_1_is_read_and_says_nothing_of_what_came_later() -> None:
    later = {"store": ..., "revision": ..., "journal_synced": ..., "claims": ...}
    first = replace(STATUS, store="", revision=0, journal_synced=None, claims=())
    assert Status.decode(sealed(format=1, **later)) == first
    for version, mixed in ((1, {}), (2, later), (1, {**later, "revision": 5}), (1, {**later, "claims": [3]})):
        with pytest.raises(StatusError):
            Status.decode(sealed(format=version, **mixed))


def test_a_status_without_a_claim_is_one_that_the_release_before_reads() -> None:
    unclaimed = replace(STATUS, claims=())
    assert unclaimed.encode() == sealed(format=2, claims=...)
    assert Status.decode(unclaimed.encode()) == unclaimed
    with pytest.raises(StatusError):
        Status.decode(sealed(format=2))


def test_of_a_format_without_claims_the_promise_to_itself_is_one() -> None:
    before = replace(STATUS, claims=())
    assert replace(before, promised_to=before.broker).known_claims == (3,)
    assert (before.known_claims, STATUS.known_claims) == ((), (1, 3))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"format": "1"},
        {"cluster": 7},
        {"cluster": ...},
        {"epoch": -1},
        {"epoch": True},
        {"last_lsn": 1 << 64},
        {"history": [[1, "alpha"]]},
        {"history": 5},
        {"members": ["alpha", 2]},
        {"journal_end": [1]},
        {"clean": None},
        {"claims": [-1]},
        {"weather": "fine"},
    ],
)
def test_fields_that_make_no_sense_are_refused_even_under_a_good_checksum(change: dict[str, Any]) -> None:
    with pytest.raises(StatusError):
        Status.decode(sealed(**change))


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"\xff", b"[" * 5000, b'{"format": 1, "crc32": NaN}'])
def test_what_is_no_status_at_all_is_refused(text: bytes) -> None:
    with pytest.raises(StatusError):
        Status.decode(text)
