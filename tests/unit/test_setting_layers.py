"""Layers of settings: a broker's own, and those of its cluster above them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_broker.server.control.setting_layers import SettingLayers, check_of_cluster, shown_value
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import BrokerSettings


def layers(**values: object) -> SettingLayers:
    own = {"name": "a", "control-socket": Path("/run/a.sock"), "memory-limit": "64MiB", "max-message-size": "1MiB"}
    return SettingLayers(BrokerSettings.from_values({**own, **values}))


def test_what_the_cluster_says_counts_above_what_a_broker_says() -> None:
    there = layers()
    there.shared = {"max-message-size": '"2MiB"', "idle-timeout": '"7s"'}
    there.change(there.own)
    assert (there.current.get("max-message-size"), there.current.get("idle-timeout")) == ("2MiB", "7s")
    there.change(there.own.with_changes({"max-message-size": "3MiB", "log-level": "debug"}))
    assert (there.current.get("max-message-size"), there.current.get("log-level")) == ("2MiB", "debug")
    there.shared = {}
    there.change(there.own)
    assert there.current.get("max-message-size") == "3MiB"


def test_what_does_not_go_together_with_its_own_is_left_out_alone_and_said() -> None:
    there = layers()
    there.shared = {
        "idle-timeout": '"7s"', "max-message-size": '"100MiB"', "of-the-future": "1", "publisher-credit": "x"
    }  # fmt: skip
    there.change(there.own)
    assert (there.current.get("max-message-size"), there.current.get("idle-timeout")) == ("1MiB", "7s")
    assert set(there.problems) == {"max-message-size", "of-the-future", "publisher-credit"}
    assert "memory-limit" in there.problems["max-message-size"]
    rows = {row.key: row for row in there.rows()}
    assert rows["max-message-size"][2:5] == ("1MiB", "100MiB", "1MiB")
    assert rows["idle-timeout"][1:] == ("60s", "60s", "7s", "7s", "")
    assert "unknown key" in rows["of-the-future"].problem


def test_a_broker_says_before_whether_it_could() -> None:
    there = layers()
    there.check("max-message-size", "2MiB")
    with pytest.raises(SettingsError, match="memory-limit"):
        there.check("max-message-size", "100MiB")
    there.shared = {"max-message-size": '"2MiB"', "publisher-credit": "x"}
    there.change(there.own)
    there.check("idle-timeout", "7s")
    there.check_unset("max-message-size")


@pytest.mark.parametrize(
    ("key", "advice"), [("log-level", "--here"), ("name", "configuration files"), ("max-mesage-size", "did you mean")]
)
def test_what_is_not_for_all_brokers_is_refused_with_what_to_do(key: str, advice: str) -> None:
    with pytest.raises(SettingsError, match=advice):
        check_of_cluster(key)


def test_a_value_is_kept_as_a_file_would_show_it() -> None:
    assert shown_value("ha.backup-timeout", "1500ms") == '"1.5s"'
    assert shown_value("ha.min-in-sync", "2") == "2"
    assert shown_value("resource-sets", "a.*=red") == '[{"pattern":"a.*","set":"red"}]'
    with pytest.raises(SettingsError):
        shown_value("ha.min-in-sync", "many")
