"""Stories about who `qpid-ha` is to a broker on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_agent.broker_address import AddressError, RemoteBroker, read_remote
from qpid_ha_agent.login import Login, find_login

CONFIG = """
ha:
  brokers-url: amqp://node1:5672,node2
  username: replicator
  password-file: {directory}/password
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a member of the cluster node1, node2."""
    (tmp_path / "password").write_text("correct horse\n")
    (tmp_path / "config.yaml").write_text(CONFIG.format(directory=tmp_path))
    return {"QPID_HA_CONFIG": str(tmp_path / "config.yaml")}


def test_a_member_of_the_cluster_administers_its_other_brokers_as_they_do(environment: dict[str, str]) -> None:
    for address in ("amqp://node2", "NODE1:5672", "amqp://node2:5672"):
        assert find_login(read_remote(address), None, environment) == Login("replicator", "correct horse")


def test_strangers_are_not_given_the_clusters_password(environment: dict[str, str]) -> None:
    for address in ("amqp://node3", "amqp://node2:5673"):
        assert find_login(read_remote(address), None, environment) == Login("", None)
    assert find_login(read_remote("node1"), None, {"QPID_HA_CONFIG": "/nonexistent"}) == Login("", None)


def test_whoever_is_named_has_the_password_that_is_given(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("staple\n")
    mine = read_remote("amqp://me@node1")
    assert find_login(mine, str(tmp_path / "mine"), environment) == Login("me", "staple")
    assert find_login(mine, None, {"QPID_HA_PASSWORD": "battery"}) == Login("me", "battery")
    with pytest.raises(AddressError, match="absent"):
        find_login(mine, str(tmp_path / "absent"), environment)


def test_settings_may_be_dotted_and_the_password_among_them(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("ha.brokers-url: [a, 'b:7000']\nha.username: me\nha.password: pw\n")
    environment = {"QPID_HA_CONFIG": str(tmp_path / "config.yaml")}
    assert find_login(RemoteBroker("amqp", "b", 7000), None, environment) == Login("me", "pw")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amqp://node1", RemoteBroker("amqp", "node1", 5672)),
        ("amqps://me@node1/", RemoteBroker("amqps", "node1", 5671, "me")),
        ("[::1]:7000", RemoteBroker("amqp", "::1", 7000)),
    ],
)
def test_a_remote_broker_is_named_as_in_any_amqp_client(text: str, expected: RemoteBroker) -> None:
    assert read_remote(text) == expected
    assert read_remote(str(expected)) == expected._replace(user="")


@pytest.mark.parametrize("text", ["", "http://a", "amqp://", "a:0", "a:99999", "a b", "amqp://me:pw@a", "a/queue"])
def test_what_names_no_remote_broker_is_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        read_remote(text)
    assert "pw" not in str(caught.value)
