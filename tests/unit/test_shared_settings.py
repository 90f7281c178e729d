"""Settings of a cluster: what the controller has written, and what a map keeps of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_bench import Bench, report
from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.shared_settings import MOST, VALUE_BYTES_MOST
from qpid_ha_broker.cluster_map import SETTING_CHANGES_KEPT, USERS, WITHHELD, ClusterMap
from qpid_ha_broker.events import types as ev

KEY = "ha.min-in-sync"


def test_a_value_counts_once_it_is_committed_and_a_cluster_of_one_set_stays_one() -> None:
    bench = Bench("a", "b")
    bench.feed(ms.RequestReceived(1, ms.ChangeSetting(KEY, "2", "olga")))
    assert not bench.answers()
    bench.feed(ms.MapCommitted(bench.lsn))
    (told,) = bench.answers()
    assert told.done
    assert told.result == {"key": KEY, "old": "", "new": "2"}
    assert bench.map.settings == {KEY: "2"}
    assert [change[:3] for change in bench.map.setting_changes] == [(KEY, "2", "olga")]
    assert not bench.map.brokers


def test_the_same_value_again_is_no_change() -> None:
    bench = Bench("a")
    bench.ask(ms.ChangeSetting(KEY, "2"))
    assert bench.ask(ms.ChangeSetting(KEY, "2")).done
    assert len(bench.map.setting_changes) == 1


def test_what_is_taken_away_is_there_no_more_and_what_nobody_has_set_cannot_be() -> None:
    bench = Bench("a")
    bench.ask(ms.ChangeSetting(KEY, "2"))
    assert bench.ask(ms.ChangeSetting(KEY, "")).result == {"key": KEY, "old": "2", "new": ""}
    assert bench.map.settings == {}
    refused = bench.ask(ms.ChangeSetting(KEY, ""))
    assert (refused.done, "is not set for the cluster" in refused.text) == (False, True)


def test_nothing_is_written_that_a_broker_could_not_read() -> None:
    bench = Bench("a", "b")
    bench.feed(ms.ReportReceived(report("b")._replace(reads_settings=False)))
    refused = bench.ask(ms.ChangeSetting(KEY, "2"))
    assert (refused.done, refused.text.startswith("b is of a release")) == (False, True)
    bench.hosts("b")
    assert bench.ask(ms.ChangeSetting(KEY, "2")).done


def test_who_follows_default_and_has_not_reported_yet_is_waited_for() -> None:
    bench = Bench()
    backups = (ms.BackupReport("b", True, 0),)
    bench.hosts("a", ms.ReplicaReport("default", "primary", "active", 1, 5, "", backups))
    bench.feed(ms.RequestReceived(1, ms.ChangeSetting(KEY, "2")))
    assert not bench.answers()
    bench.hosts("b")
    bench.wait(0.2)
    bench.feed(ms.MapCommitted(bench.lsn))
    assert bench.answers()[-1].done
    assert bench.map.settings == {KEY: "2"}


def test_a_value_and_the_number_of_settings_are_bounded() -> None:
    bench = Bench("a")
    assert not bench.ask(ms.ChangeSetting(KEY, '"' + VALUE_BYTES_MOST * "x" + '"')).done
    for number in range(MOST):
        assert bench.ask(ms.ChangeSetting(f"k{number}", "1")).done
    assert not bench.ask(ms.ChangeSetting("one-more", "1")).done
    assert bench.ask(ms.ChangeSetting("k0", "2")).done


USER = "user/olga"


def test_a_user_is_kept_and_changed_and_nothing_tells_by_what() -> None:
    bench = Bench("a")
    assert bench.ask(ms.ChangeLogin(USER, '"one"', "root", is_new=True)).result == {"key": USER, "was_there": False}
    told = bench.ask(ms.ChangeLogin(USER, '"two"', "root", replaces=True))
    assert told.result == {"key": USER, "was_there": True}
    assert bench.map.secrets(USERS) == {"olga": '"two"'}
    assert bench.map.plain_settings == {}
    kept = [change.value for change in bench.map.setting_changes]
    assert kept == [WITHHELD, '"two"'], "what is in force has to go on to who joins"
    bench.ask(ms.ChangeLogin(USER, "", "root"))
    assert [change.value for change in bench.map.setting_changes] == [WITHHELD, WITHHELD, ""]
    notes = [effect.text for effect in bench.said if isinstance(effect, ms.ControllerNote)]
    assert notes == [f"user olga of the cluster: {done}, by root" for done in ("added", "changed", "removed")]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (ms.ChangeLogin(USER, "", ""), "has no user olga"),
        (ms.ChangeLogin(USER, '"x"', "", replaces=True), "has no user olga"),
        (ms.ChangeLogin("token/there", '"x"', "", is_new=True), "has a token there already"),
        (ms.ChangeLogin("ha.min-in-sync", '"x"', ""), "neither a user nor a token"),
        (ms.ChangeLogin(USER, "x" * 3000, ""), "2048 bytes at most"),
        (ms.ChangeSetting(USER, '"x"'), "is no setting"),
    ],
)
def test_what_cannot_be_done_with_users_and_tokens_is_refused(asked: ms.ClusterRequest, problem: str) -> None:
    bench = Bench("a")
    bench.ask(ms.ChangeLogin("token/there", '"viewer 0"'))
    refused = bench.ask(asked)
    assert (refused.done, problem in refused.text) == (False, True)
    assert [*bench.map.settings] == ["token/there"]


def test_no_user_is_written_that_a_broker_could_not_read() -> None:
    bench = Bench("a", "b")
    bench.feed(ms.ReportReceived(report("b")._replace(reads_logins=False)))
    refused = bench.ask(ms.ChangeLogin(USER, '"x"'))
    assert (refused.done, refused.text.startswith("b is of a release that knows no users")) == (False, True)
    assert bench.ask(ms.ChangeSetting(KEY, "2")).done
    bench.hosts("b")
    assert bench.ask(ms.ChangeLogin(USER, '"x"')).done


KEYS = st.sampled_from(["a", "b", "c", "d", "user/e", "token/f"])


@given(st.lists(st.tuples(KEYS, st.sampled_from(["", "1", "2"])), max_size=300))
def test_a_map_that_its_events_make_has_the_same_settings_and_the_same_history(changes: list[tuple[str, str]]) -> None:
    there, again = ClusterMap(), ClusterMap()
    there.apply(1, ev.SettingChanged("old", "7", "", 0))
    for number, (key, value) in enumerate(changes):
        there.apply(number + 2, ev.SettingChanged(key, value, "olga", number))
    for lsn, event in there.events(1000):
        again.apply(lsn, event)
    assert (again.settings, list(again.setting_changes)) == (there.settings, list(there.setting_changes))
    assert len(there.setting_changes) <= SETTING_CHANGES_KEPT
    copied = ClusterMap()
    copied.replace(there)
    there.apply(2000, ev.SettingChanged("old", "", "", 0))
    for change in there.setting_changes:
        is_current = there.settings.get(change.key) == change.value
        assert not change.key.startswith(("user/", "token/")) or is_current or change.value in ("", WITHHELD)
    assert (copied.settings, copied.setting_changes) == (again.settings, again.setting_changes)
