"""The record in Pacemaker's configuration: how it is written there, and what the real `cibadmin` does with it.

The last part runs against a file (CIB_file) instead of a cluster; what a cluster does is in tests/lab.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_agent.run_settings import read_run_settings
from qpid_ha_broker.coordination import cib_record, pacemaker
from qpid_ha_broker.coordination.cib_record import CibAnswer, DamagedRecord, decode, encode, read_answer
from qpid_ha_broker.coordination.coordinator import LONGEST_NOTE_BYTES, CoordinatorError
from qpid_ha_broker.coordination.pacemaker import PacemakerCoordinator
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.errors import ConfigError
from qpid_ha_config.settings import CoordinatorSettings

EMPTY = ClusterRecord()
FIRST = ClusterRecord("c1", 1, "a", 1, ("a", "b"))
SECOND = ClusterRecord("c1", 2, "b", 2, ("b",))
CIB = """\
<cib validate-with="pacemaker-3.8" crm_feature_set="3.16.1"
     admin_epoch="0" epoch="7" num_updates="3" have-quorum="{quorum}">
  <configuration>
    <crm_config>
      <cluster_property_set id="cib-bootstrap-options">
        <nvpair id="o" name="record" value="not ours"/>
        <nvpair id="s" name="stonith-enabled" value="{has_fencing}"/>
      </cluster_property_set>
    </crm_config>
    <nodes><node id="1" uname="a"/><node id="2" uname="b"/><node id="9" uname="r" type="remote"/></nodes>
    <resources/><constraints/>
  </configuration>
  <status>
    <node_state id="1" uname="a" in_ccm="true" crmd="online" join="member" expected="member"/>
    <node_state id="2" uname="b" in_ccm="{b_is_there}" crmd="online" join="member" expected="{b_should_be}"/>
  </status>
</cib>
"""

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
records = st.builds(
    ClusterRecord,
    names,
    st.integers(0, 2**62),
    names,
    st.integers(0, 2**62),
    st.lists(names, max_size=4).map(tuple),
    st.booleans(),
)


# --- how it is written


def test_an_operator_can_read_it() -> None:
    record = ClusterRecord("c1", 3, "node1", 5, ("node1", "node2"))

    assert encode(record) == "1;cluster=c1;generation=3;primary=node1;epoch=5;members=node1,node2"
    assert encode(record._replace(claimed=True)) == f"{encode(record)};claimed=1"


@given(records)
def test_every_record_comes_back_and_fits_into_xml_and_xpath(record: ClusterRecord) -> None:
    value = encode(record)

    assert decode(value) == record
    assert value.isascii()
    assert not set(value) & set("\"'<>& \n\t")


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_every_note_comes_back_and_fits_into_xml(text: str) -> None:
    value = cib_record.encode_note(text)

    assert cib_record.decode_note(value) == text
    assert value.isascii()
    assert not set(value) & set("\"'<>&\n\t")


def test_a_note_that_was_not_written_by_us_is_damaged() -> None:
    value = cib_record.encode_note("paused")
    for damaged in ("", "paused", f"{value}x", value.replace("paused", "%ff"), value.upper()):
        with pytest.raises(DamagedRecord):
            cib_record.decode_note(damaged)


def test_the_longest_note_is_asked_for_in_an_argument_of_a_program() -> None:
    """Linux takes 128 KiB."""
    assert len(cib_record.note_condition_path("qpid-ha", "pause", "日" * (LONGEST_NOTE_BYTES // 3))) < 1000


def test_a_record_without_members_is_not_one_with_a_nameless_member() -> None:
    assert decode(encode(EMPTY)) == EMPTY
    with pytest.raises(ValueError, match="without a name"):
        encode(ClusterRecord("c1", 1, "a", 1, ("",)))


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        "2;cluster=c1;generation=3;primary=a;epoch=5;members=a",
        "1;cluster=c1;generation=-3;primary=a;epoch=5;members=a",
        "1;cluster=c1;generation=03;primary=a;epoch=5;members=a",
        "1;cluster=c1;generation=3;primary=a;epoch=5;members=a,",
        "1;cluster=c1;generation=3;primary=a;epoch=5;members=a;more=1",
        "1;cluster=c1;generation=3;primary=a;epoch=5;members=a;claimed=0",
        "1;cluster=c1;generation=3;primary=%ff;epoch=5;members=a",
        "1;cluster=c1;generation=3;primary=%61;epoch=5;members=a",
        "1;cluster=c1;generation=3;primary=a b;epoch=5;members=a",
        "1;cluster=c1;generation=3;primary=a;epoch=5;members=a\n",
    ],
)
def test_what_was_not_written_by_us_is_damaged_and_never_empty(value: str) -> None:
    with pytest.raises(DamagedRecord):
        decode(value)


def test_a_name_that_is_no_identifier_is_refused() -> None:
    for name in ("", "2", 'a"b', "a b", "a/b", "ä", "a" * 65):
        with pytest.raises(ValueError, match="property set"):
            PacemakerCoordinator(name)


def test_the_setting_names_the_property_set() -> None:
    found = open_coordinator(CoordinatorSettings(CoordinatorUrl.parse("pacemaker:orders")))
    assert isinstance(found, PacemakerCoordinator)
    assert found.name == "orders"


def test_the_embedded_resource_manager_says_that_pacemaker_is_one_itself(tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    config.write_text("name: a\ncontrol-socket: /s/a.sock\nha: {cluster: true, coordinator: pacemaker}\n")

    with pytest.raises(ConfigError, match=r"ha\.coordinator: .*Pacemaker.*file:DIRECTORY"):
        read_run_settings(config, [], ["qpidd"])


# --- what is asked, and what is answered


def test_an_update_begins_a_generation_above_all_that_was_cut_off() -> None:
    plain = ElementTree.fromstring(cib_record.update_xml("qpid-ha", encode(FIRST), outranks=False))
    above = ElementTree.fromstring(cib_record.update_xml("qpid-ha", encode(FIRST), outranks=True))

    assert plain.attrib == {}
    assert above.attrib == {"admin_epoch": "admin_epoch++"}
    assert [pair.get("value") for pair in above.iter("nvpair")] == [encode(FIRST)]


def test_a_quote_never_gets_into_a_condition() -> None:
    with pytest.raises(ValueError, match="quote"):
        cib_record.condition_path("qpid-ha", 'x" or "1"="1')


def test_an_answer_without_a_record_still_tells_the_quorum_and_the_nodes() -> None:
    nobody: frozenset[str] = frozenset()
    assert read_answer('<cib have-quorum="0"/>') == CibAnswer(False, None, nobody, nobody, nobody, True)
    states = (
        '<node_state uname="a" in_ccm="true" crmd="online" expected="member"/>',
        '<node_state uname="b" in_ccm="0" crmd="0" expected="member"/>',
        '<node_state uname="c" in_ccm="1700000000" crmd="1700000001" expected="member"/>',
        '<node_state uname="d" in_ccm="true" crmd="offline" expected="down"/>',
        '<node_state uname="r" in_ccm="true" crmd="online" expected="member"/>',
    )
    answer = read_answer(
        '<xpath-query><cib have-quorum="1"/><nvpair name="record" value="v"/>'
        '<nvpair name="stonith-enabled" value="No"/>'
        '<node uname="a"/><node uname="b"/><node uname="c"/><node uname="d"/><node uname="r" type="remote"/>'
        f"{''.join(states)}</xpath-query>"
    )
    assert answer == CibAnswer(True, "v", frozenset("abcd"), frozenset("ac"), frozenset("d"), False, {})


@pytest.mark.parametrize(
    "text",
    ["", "<cib", "<xpath-query/>", "<xpath-query><cib/><nvpair name='record'/><nvpair name='record'/></xpath-query>"],
)
def test_an_answer_that_cannot_be_used_is_an_error(text: str) -> None:
    with pytest.raises(DamagedRecord):
        read_answer(text)


# --- with a tool that does not do its work


@pytest.fixture
def fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `cibadmin` that comes before the real one."""
    tool = tmp_path / "bin" / "cibadmin"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return tool


def write_tool(tool: Path, script: str) -> None:
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_kwargs: None)

    with pytest.raises(CoordinatorError, match="install pacemaker-cli-utils"):
        PacemakerCoordinator().read()


def test_a_user_who_may_not_is_told_the_group(fake_tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tool(fake_tool, "exit 102")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(os, "getegid", lambda: 4711)
    monkeypatch.setattr(os, "getgroups", lambda: [4711])

    with pytest.raises(CoordinatorError, match="group haclient"):
        PacemakerCoordinator().read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root knows that it is not the group")
def test_a_cluster_that_does_not_run_is_said_to_be_that(fake_tool: Path) -> None:
    write_tool(fake_tool, "exit 102")

    with pytest.raises(CoordinatorError, match="is it running"):
        PacemakerCoordinator().read()


def test_a_tool_that_hangs_costs_no_more_than_the_limit(fake_tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tool(fake_tool, "exec sleep 60")
    monkeypatch.setattr(pacemaker, "LIMIT_S", 0.3)
    began_s = time.monotonic()

    with pytest.raises(CoordinatorError, match="no answer in time"):
        PacemakerCoordinator().compare_and_set(EMPTY, FIRST)
    assert time.monotonic() - began_s < 20, "not the minute that it would take"


def test_a_write_that_nobody_else_shows_to_have_is_not_confirmed(
    fake_tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, and not yet told so: the tool reports success, and the other node is silent."""
    write_tool(
        fake_tool,
        f"""case "$*" in
        *--modify*) exit 0;;
        *"--node b"*) exec sleep 60;;
        *) echo '<xpath-query><cib have-quorum="1"/><nvpair name="record" value="{encode(FIRST)}"/>'
           echo '<node uname="a"/><node uname="b"/>'
           for n in a b; do echo '<node_state uname="'$n'" in_ccm="true" crmd="online" expected="member"/>'; done
           echo '</xpath-query>';;
        esac""",
    )
    monkeypatch.setattr(pacemaker, "LIMIT_S", 1.0)

    with pytest.raises(CoordinatorError, match="no answer"):
        PacemakerCoordinator().compare_and_set(EMPTY, FIRST)


def copies_of_three(records: dict[str, ClusterRecord]) -> str:
    """A tool for which every write is done, and each node's copy says what is given; the own one is a's."""
    cases = "".join(f'*"--node {node}"*) v="{encode(record)}";;\n' for node, record in records.items())
    return f"""case "$*" in *--modify*) exit 0;; esac
        case "$*" in
        {cases}*) v="{encode(records["a"])}";;
        esac
        echo '<xpath-query><cib have-quorum="1"/>'
        echo '<nvpair name="record" value="'$v'"/>'
        for n in a b c; do echo '<node uname="'$n'"/><node_state uname="'$n'" in_ccm="true" crmd="online"/>'; done
        echo '</xpath-query>'"""


def test_what_others_began_behind_a_cut_does_not_confirm_what_was_written_before_it(
    fake_tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is whole again, and this node's copy not yet replaced."""
    alone = FIRST._replace(epoch=2, members=("a",))
    monkeypatch.setattr(pacemaker, "LIMIT_S", 1.0)
    for others in (SECOND, SECOND._replace(generation=1), alone._replace(members=("a", "b"))):
        write_tool(fake_tool, copies_of_three({"a": alone, "b": others, "c": others}))
        with pytest.raises(CoordinatorError, match="not known: no answer from b, c"):
            PacemakerCoordinator().compare_and_set(FIRST, alone)


def test_what_was_seen_is_told_when_the_time_ends_in_the_middle_of_another_look(
    fake_tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at this node's own copy but the first takes too long."""
    write_tool(
        fake_tool,
        f"""case "$*" in *--modify*) exit 0;; *"--node "*) ;;
        *) if [ -e {tmp_path}/looked ]; then exec sleep 60; fi; : > {tmp_path}/looked;; esac
        echo '<xpath-query><cib have-quorum="1"/><nvpair name="record" value="{encode(FIRST)}"/>'
        echo '<node uname="a"/><node_state uname="a" in_ccm="true" crmd="online" expected="member"/>'
        echo '<node uname="b"/><node_state uname="b" in_ccm="false" crmd="offline" expected="member"/>'
        echo '</xpath-query>'""",
    )
    monkeypatch.setattr(pacemaker, "LIMIT_S", 2.0)

    with pytest.raises(CoordinatorError, match="b is lost, and not fenced"):
        PacemakerCoordinator().compare_and_set(EMPTY, FIRST)


@pytest.mark.parametrize("other", [SECOND, FIRST._replace(primary="b", epoch=3)], ids=["generation", "primary"])
def test_a_record_that_was_replaced_while_it_was_being_confirmed_is_refused(
    other: ClusterRecord, fake_tool: Path, tmp_path: Path
) -> None:
    """Each look at this node's own copy but the first finds it replaced."""
    alone = FIRST._replace(epoch=2, members=("a",))
    begun = copies_of_three({"a": alone, "b": other, "c": other})
    over = copies_of_three({"a": other, "b": other, "c": other})
    write_tool(
        fake_tool,
        f"""if [ -e {tmp_path}/looked ]; then {over}\nelse {begun}\nfi
        case "$*" in *--query*) case "$*" in *"--node "*) ;; *) : > {tmp_path}/looked;; esac;; esac""",
    )

    assert PacemakerCoordinator().compare_and_set(FIRST, alone) == (False, other)


def test_what_the_same_primary_wrote_later_confirms_what_it_wrote_before(fake_tool: Path) -> None:
    wider = FIRST._replace(epoch=2, members=("a",))
    later = FIRST._replace(epoch=3)
    write_tool(fake_tool, copies_of_three({"a": wider, "b": later, "c": later}))

    assert PacemakerCoordinator().compare_and_set(FIRST, wider) == (True, wider)


def test_a_write_is_not_confirmed_when_the_quorum_is_lost_after_it(fake_tool: Path, tmp_path: Path) -> None:
    """The other node counts as absent at once, the quorum only a moment later."""
    write_tool(
        fake_tool,
        f"""case "$*" in
        *--modify*) exit 0;;
        esac
        q=1; [ -e {tmp_path}/looked ] && q=0
        case "$*" in *"--node a"*) q=1; : > {tmp_path}/looked;; esac
        echo '<xpath-query><cib have-quorum="'$q'"/><nvpair name="record" value="{encode(FIRST)}"/>'
           echo '<node uname="a"/><node uname="b"/>'
        echo '<node_state uname="a" in_ccm="true" crmd="online"/><node_state uname="b" in_ccm="false" expected="down"/>'
        echo '</xpath-query>'""",
    )

    with pytest.raises(CoordinatorError, match="cut off"):
        PacemakerCoordinator().compare_and_set(EMPTY, FIRST)


# --- with the real one, and a file


@pytest.fixture
def cib(tmp_path: Path, fake_tool: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in a file, which cibadmin takes for the cluster's. Nobody reads it while it is written."""
    real = shutil.which("cibadmin", path=f"{os.environ['PATH']}:/usr/sbin")
    if real is None:
        pytest.skip("cibadmin IS NOT INSTALLED, so nothing is known of the pacemaker coordinator: pacemaker-cli-utils")
    write_tool(fake_tool, f'exec flock {tmp_path}/lock {real} "$@"')
    path = tmp_path / "cib.xml"
    write_cib(path)
    monkeypatch.setenv("CIB_file", str(path))
    return path


def write_cib(
    path: Path, quorum: str = "1", b_is_there: str = "true", b_should_be: str = "member", has_fencing: str = "true"
) -> None:
    path.write_text(CIB.format(quorum=quorum, b_is_there=b_is_there, b_should_be=b_should_be, has_fencing=has_fencing))


def held(path: Path) -> list[str | None]:
    root = ElementTree.parse(path).getroot()
    return [pair.get("value") for pair in root.findall(".//cluster_property_set[@id='qpid-ha']/nvpair")]


def admin_epoch(path: Path) -> int:
    return int(ElementTree.parse(path).getroot().get("admin_epoch", ""))


def test_the_expected_record_must_be_there(cib: Path) -> None:
    coordinator = PacemakerCoordinator()
    assert coordinator.read() == EMPTY
    assert coordinator.compare_and_set(EMPTY, FIRST) == (True, FIRST)
    assert PacemakerCoordinator().read() == FIRST
    assert PacemakerCoordinator("other").read() == EMPTY
    coordinator.compare_and_set(FIRST, SECOND)

    assert coordinator.compare_and_set(FIRST, SECOND._replace(primary="a")) == (False, SECOND)
    assert coordinator.compare_and_set(EMPTY, FIRST) == (False, SECOND)
    assert held(cib) == [encode(SECOND)]


def test_a_write_that_had_been_done_before_counts_as_done(cib: Path) -> None:
    coordinator = PacemakerCoordinator()
    coordinator.compare_and_set(EMPTY, FIRST)

    assert coordinator.compare_and_set(EMPTY, FIRST) == (True, FIRST)


def test_an_older_record_that_came_back_is_told_and_replaced_once_that_is_wanted(cib: Path) -> None:
    """Another primary may have been recorded in between. What replaces it shall not be replaced by it once more."""
    coordinator = PacemakerCoordinator()
    coordinator.compare_and_set(EMPTY, FIRST)
    before = cib.read_text()
    coordinator.compare_and_set(FIRST, SECOND)
    cib.write_text(before)
    third = SECOND._replace(epoch=3, members=("a", "b"))

    assert coordinator.compare_and_set(SECOND, third) == (False, FIRST)
    rank = admin_epoch(cib)
    assert coordinator.compare_and_set(FIRST, third) == (True, third)
    assert admin_epoch(cib) > rank


def test_a_record_of_another_cluster_is_left_alone(cib: Path) -> None:
    coordinator = PacemakerCoordinator()
    coordinator.compare_and_set(EMPTY, FIRST)

    other = SECOND._replace(cluster="c2")
    assert coordinator.compare_and_set(other, other._replace(epoch=3)) == (False, FIRST)


def test_only_a_generation_raises_what_outranks_everything(cib: Path) -> None:
    coordinator = PacemakerCoordinator()
    coordinator.compare_and_set(EMPTY, FIRST)
    began = admin_epoch(cib)
    assert began > 0

    wider = FIRST._replace(epoch=2)
    coordinator.compare_and_set(FIRST, wider)
    assert admin_epoch(cib) == began
    coordinator.compare_and_set(wider, SECOND)
    assert admin_epoch(cib) > began


def test_without_quorum_nothing_is_read_or_written(cib: Path) -> None:
    write_cib(cib, quorum="0")

    with pytest.raises(CoordinatorError, match="no quorum"):
        PacemakerCoordinator().read()
    with pytest.raises(CoordinatorError, match="no quorum"):
        PacemakerCoordinator().compare_and_set(EMPTY, FIRST)
    with pytest.raises(CoordinatorError, match="no quorum"):
        PacemakerCoordinator().replace_note("pause", "", "until noon")
    assert held(cib) == []


@pytest.mark.parametrize(("should_be", "has_fencing"), [("down", "true"), ("member", "off")])
def test_a_partition_that_has_quorum_with_few_nodes_is_enough(cib: Path, should_be: str, has_fencing: str) -> None:
    """Two nodes, one of them fenced, or gone where nobody fences: what two_node, a quorum device and others allow."""
    write_cib(cib, b_is_there="false", b_should_be=should_be, has_fencing=has_fencing)

    assert PacemakerCoordinator().compare_and_set(EMPTY, FIRST) == (True, FIRST)


def test_half_of_the_nodes_are_not_enough_before_the_others_are_fenced(
    cib: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other half may have quorum too, and is perhaps about to fence us."""
    write_cib(cib, b_is_there="false")
    monkeypatch.setattr(pacemaker, "LIMIT_S", 2.0)

    with pytest.raises(CoordinatorError, match="b is lost, and not fenced"):
        PacemakerCoordinator().compare_and_set(EMPTY, FIRST)
    write_cib(cib, b_is_there="false", b_should_be="down")
    assert PacemakerCoordinator().compare_and_set(EMPTY, FIRST) == (True, FIRST)


def test_a_damaged_record_is_an_error_that_says_what_to_do(cib: Path) -> None:
    PacemakerCoordinator().compare_and_set(EMPTY, FIRST)
    cib.write_text(cib.read_text().replace("generation=1", "generation=one"))

    with pytest.raises(CoordinatorError, match="crm_attribute --set-name qpid-ha --name record --delete"):
        PacemakerCoordinator().read()
    with pytest.raises(CoordinatorError, match="damaged"):
        PacemakerCoordinator().compare_and_set(FIRST, SECOND)


def test_a_watch_reports_the_next_record_and_ends(cib: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacemaker, "WATCH_INTERVAL_S", 0.02)
    coordinator = PacemakerCoordinator()
    heard = threading.Semaphore(0)
    end = coordinator.watch(heard.release)
    try:
        coordinator.compare_and_set(ClusterRecord(), FIRST)
        assert heard.acquire(timeout=10)
        assert coordinator.read() == FIRST
    finally:
        end()


def test_a_note_is_kept_beside_the_record_whatever_is_in_it(cib: Path) -> None:
    coordinator, text = PacemakerCoordinator(), '{"until": "noon & <later>", "é": 1}\n'
    coordinator.compare_and_set(ClusterRecord(), FIRST)
    assert coordinator.read_note("pause") == ""
    assert coordinator.replace_note("pause", "", text)
    assert not coordinator.replace_note("pause", "", "other")
    assert coordinator.read_note("pause") == text
    assert coordinator.replace_note("pause", text, "")
    assert coordinator.replace_note("pause", "", "again")
    assert (coordinator.read(), coordinator.read_note("pause")) == (FIRST, "again")
