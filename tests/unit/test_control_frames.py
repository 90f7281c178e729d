"""What brokers and the controller say to each other: the agreed bytes, both directions, and everything that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.cluster import control_frames as cf
from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.events.types import SetRecorded

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
NAMES = st.lists(TEXT, max_size=4).map(tuple)
SCALAR = TEXT | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.none() | st.floats(-1e9, 1e9)
ARGUMENTS = st.dictionaries(TEXT, SCALAR, max_size=3)
RECORD = st.builds(SetRecorded, TEXT, TEXT, U64, TEXT, U64, NAMES, st.booleans())
IDENTITY = st.builds(ms.BrokerIdentity, *[TEXT] * 7)
BACKUPS = st.lists(st.builds(ms.BackupReport, TEXT, st.booleans(), U64), max_size=3).map(tuple)
REPLICA = st.builds(ms.ReplicaReport, TEXT, TEXT, TEXT, U64, U64, TEXT, BACKUPS, st.builds(ms.SetLoad, U64, U64, U64))
REPORT = st.builds(
    ms.BrokerReport, IDENTITY, U64, st.booleans(), U64, st.lists(REPLICA, max_size=3).map(tuple), NAMES,
    st.lists(U64, max_size=3).map(tuple), st.lists(st.builds(ms.UnplacedQueue, TEXT, TEXT, ARGUMENTS)).map(tuple),
    st.lists(st.builds(ms.DeclaredQueues, TEXT, U64), max_size=3).map(tuple),
    st.lists(st.builds(ms.KeptQueue, U64, TEXT, U64, TEXT), max_size=3).map(tuple), st.booleans(),
)  # fmt: skip
FRAMES: st.SearchStrategy[cf.ControlFrame] = st.one_of(
    st.builds(cf.Reported, REPORT),
    st.builds(cf.RecordAsked, U64, TEXT, st.none() | RECORD, st.none() | RECORD),
    st.builds(cf.OrderDone, U64, st.booleans(), TEXT),
    st.builds(cf.Asked, U64, TEXT, ARGUMENTS, ARGUMENTS),
    st.builds(cf.Ordered, U64, TEXT, st.sampled_from(ms.OrderKind), TEXT, TEXT, st.booleans()),
    st.builds(ms.OrderDeletion, U64, TEXT, TEXT, U64, st.booleans(), st.booleans()),
    st.just(cf.ReportAsked()),
    st.builds(cf.RecordTold, U64, st.booleans(), st.none() | RECORD, TEXT),
    st.builds(cf.Told, U64, st.booleans(), TEXT, ARGUMENTS),
    st.builds(cf.Dismissed, TEXT),
)
VECTORS: list[tuple[str, cf.ControlFrame]] = [
    (
        '["report",[["b1","6f1c","1a","amqp://10.0.0.1:5672","","north","1.0"],7,true,1000000,'
        '[["orders","primary","active",3,1201,"",[["b2",true,4]],[10,2048,5],false]],["old"],[17],'
        '[["orders","q",{"a":1}]],[["orders",18]],[[19,"c0ffee",3,"in use"]],true,true,true]]',
        cf.Reported(
            ms.BrokerReport(
                ms.BrokerIdentity("b1", "6f1c", "1a", "amqp://10.0.0.1:5672", "", "north", "1.0"), 7, True, 1_000_000,
                (ms.ReplicaReport("orders", "primary", "active", 3, 1201, "", (ms.BackupReport("b2", True, 4),),
                                  ms.SetLoad(10, 2048, 5)),),
                ("old",), (17,), (ms.UnplacedQueue("orders", "q", {"a": 1}),), (ms.DeclaredQueues("orders", 18),),
                (ms.KeptQueue(19, "c0ffee", 3, "in use"),), True, True, True,
            )
        ),
    ),
    (
        '["record",4,"orders",["orders","",0,"",0,[],false],["orders","c0ffee",1,"b1",1,["b1","b2"],true]]',
        cf.RecordAsked(
            4, "orders", SetRecorded("orders", "", 0, "", 0, (), False),
            SetRecorded("orders", "c0ffee", 1, "b1", 1, ("b1", "b2"), True),
        ),
    ),
    ('["record",5,"orders",null,null]', cf.RecordAsked(5, "orders")),
    ('["order-done",9,false,"this broker is catchup"]', cf.OrderDone(9, False, "this broker is catchup")),
    (
        '["ask",2,"set-transfer",{"set":"orders","to":"b2"},{"user":"olga"}]',
        cf.Asked(2, "set-transfer", {"set": "orders", "to": "b2"}, {"user": "olga"}),
    ),
    (
        '["order",9,"orders","promote","","b1 is gone",true]',
        cf.Ordered(9, "orders", ms.OrderKind.PROMOTE, "", "b1 is gone", True),
    ),
    ('["order-deletion",10,"b1","orders",17,true,false]', ms.OrderDeletion(10, "b1", "orders", 17, True, False)),
    ('["report-all"]', cf.ReportAsked()),
    ('["record-told",5,false,null,"it is not known"]', cf.RecordTold(5, False, None, "it is not known")),
    ('["told",2,true,"b2 leads orders",{"generation":4}]', cf.Told(2, True, "b2 leads orders", {"generation": 4})),
    ('["dismissed","another broker has that name"]', cf.Dismissed("another broker has that name")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "frame"), VECTORS, ids=[f"{type(frame).__name__} {text[:30]}" for text, frame in VECTORS]
)
def test_a_frame_is_the_bytes_that_were_agreed(text: str, frame: cf.ControlFrame) -> None:
    assert cf.encode(frame).decode() == text
    assert cf.decode(text.encode()) == frame


def test_each_kind_of_frame_has_a_vector_and_a_row_in_the_documentation() -> None:
    assert {type(frame) for _, frame in VECTORS} == set(cf.KINDS.values())
    protocol = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert [word for word in cf.KINDS if f"| `{word}` | " not in protocol] == []


@given(FRAMES)
def test_what_goes_in_comes_out(frame: cf.ControlFrame) -> None:
    assert cf.decode(cf.encode(frame)) == frame


def test_a_later_release_may_add_fields_and_an_earlier_one_leaves_them_out() -> None:
    assert cf.decode(b'["order",1,"s","drop","b2","why",false,"what is new",[1]]') == cf.Ordered(
        1, "s", ms.OrderKind.DROP, "b2", "why"
    )
    assert cf.decode(b'["order",1,"s","drop"]') == cf.Ordered(1, "s", ms.OrderKind.DROP)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"{}", "expected a list that begins with"),
        (b'["nonsense"]', "expected a list that begins with"),
        (b'[["report"]]', "expected a list that begins with"),
        (b'["order",1,"s"]', "expected a list of number, set, kind"),
        (b'["order",-1,"s","drop"]', "number: expected an integer"),
        (b'["order",18446744073709551616,"s","drop"]', "number: expected an integer"),
        (b'["order",true,"s","drop"]', "number: expected an integer"),
        (b'["order",1,"s","fly"]', "kind: expected one of promote"),
        (b'["order",1,"\\ud800","drop"]', "set: expected text, found half of a character"),
        (b'["order",1,5,"drop"]', "set: expected text of at most"),
        (b'["order-done",1,1,""]', "done: expected true or false"),
        (b'["ask",1,"drain",{"a":NaN}]', "expected JSON, found NaN"),
        (b'["ask",1,"drain",[]]', "params: expected names and values"),
        (b'["record",1,"s",["s"],null]', "expected: expected a list of name, cluster"),
        (b'["record-told",1,false,5]', "record: expected a list of"),
    ],
)
def test_what_is_no_frame_is_refused_with_a_reason(data: bytes, part: str) -> None:
    with pytest.raises(cf.ControlFrameError) as raised:
        cf.decode(data)
    assert part in str(raised.value)


def test_arguments_that_the_log_could_not_hold_are_refused() -> None:
    """The controller writes them: what cannot be written there must not get so far."""
    report: list[Any] = json.loads(VECTORS[0][0])
    report[1][7] = [["orders", "q", {"a": [1]}]]
    with pytest.raises(cf.ControlFrameError, match=r"unplaced_queues: arguments: .*expected text, a number"):
        cf.decode(json.dumps(report).encode())
    report[1][7] = [["orders", "q" * 65_536, {}]]
    with pytest.raises(cf.ControlFrameError, match="unplaced_queues: name: expected text of at most 65535 bytes"):
        cf.decode(json.dumps(report).encode())


@given(st.binary(max_size=60), FRAMES, st.data())
def test_any_bytes_are_a_frame_or_an_error(noise: bytes, frame: cf.ControlFrame, data: st.DataObject) -> None:
    whole = cf.encode(frame)
    at = data.draw(st.integers(0, len(whole)))
    for damaged in (noise, whole[:at], whole[:at] + noise + whole[at:]):
        try:
            found = cf.decode(damaged)
        except cf.ControlFrameError:
            continue
        assert cf.decode(cf.encode(found)) == found


def test_a_request_is_read_by_the_names_of_its_fields() -> None:
    assert cf.read_request(ms.TransferPrimary, {"set": "orders", "to": "b2"}) == ms.TransferPrimary("orders", "b2")
    assert cf.read_request(ms.SetPolicies, {"policies": [["a*", 5]]}) == ms.SetPolicies((("a*", 5),))


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({}, "set is missing"),
        ({"set": "a", "too": "b"}, "unknown parameter 'too'; there are set, to, prefer"),
        ({"set": 5}, "set: expected text"),
        ({"set": "a", "prefer": "yes"}, "prefer: expected true or false"),
    ],
)
def test_a_request_with_other_fields_is_refused(params: dict[str, object], part: str) -> None:
    with pytest.raises(cf.ControlFrameError) as raised:
        cf.read_request(ms.TransferPrimary, params)
    assert part in str(raised.value)
