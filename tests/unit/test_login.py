"""Stories about who `qpid-ha` is to a broker on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_agent.broker_address import AddressError, find_broker, read_remote
from qpid_ha_agent.control import Forbidden
from qpid_ha_agent.login import Login, Tls, find_login
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import ConfigError

CONFIG = """
ha:
  brokers-url: amqp://node1:5672,node2,10.0.0.3
  public-url: amqp://10.0.0.100
  username: replicator
  password-file: {directory}/password
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a member of the cluster node1, node2."""
    (tmp_path / "password").write_text("correct horse\n")
    (tmp_path / "config.yaml").write_text(CONFIG.format(directory=tmp_path))
    return {"QPID_HA_CONFIG": str(tmp_path / "config.yaml")}


NAMES = {"node1": "10.0.0.1", "node1.example": "10.0.0.1", "node3": "10.0.0.3", "vip": "10.0.0.100", "far": "192.0.2.1"}


def resolve(host: str) -> frozenset[str]:
    """The name service of the test; an address is its own."""
    return frozenset({NAMES[host]} if host in NAMES else {host} if host[0].isdigit() else ())


def login(address: str, environment: dict[str, str], password_file: str | None = None) -> tuple[str, Login]:
    """Where `qpid-ha -b ADDRESS` goes, and as whom."""
    there, found = find_login(read_remote(address), password_file, environment, resolve)
    return str(there), found


REPLICATOR = Login("replicator", "correct horse")


def test_a_member_of_the_cluster_administers_its_other_brokers_as_they_do(environment: dict[str, str]) -> None:
    for address in ("amqp://node2", "NODE1:5672", "amqp://node2:5672"):
        assert login(address, environment)[1] == REPLICATOR


@pytest.mark.parametrize(
    ("typed", "listed"),
    [
        ("amqp://10.0.0.1", "amqp://node1:5672"),
        ("amqp://node1.example:5672", "amqp://node1:5672"),
        ("amqp://node3", "amqp://10.0.0.3:5672"),
        ("vip:5672", "amqp://10.0.0.100:5672"),
    ],
)
def test_another_name_of_a_listed_address_is_as_good_and_the_listed_one_is_asked(
    environment: dict[str, str], typed: str, listed: str
) -> None:
    assert login(typed, environment) == (listed, REPLICATOR)


def test_strangers_are_not_given_the_clusters_password(environment: dict[str, str]) -> None:
    for address in ("amqp://node4", "amqp://node2:5673", "amqp://far", "amqp://node3:5671"):
        assert login(address, environment)[1] == Login("", None)
    assert login("amqp://node1", {"QPID_HA_CONFIG": "/dev/null"})[1] == Login("", None)


def test_whoever_is_named_has_the_password_that_is_given(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("staple\n")
    assert login("amqp://me@node1", environment, str(tmp_path / "mine"))[1] == Login("me", "staple")
    assert login("amqp://me@node1", {"QPID_HA_PASSWORD": "battery"})[1] == Login("me", "battery")
    with pytest.raises(AddressError, match="absent"):
        login("amqp://me@node1", environment, str(tmp_path / "absent"))


def test_who_is_named_and_has_no_password_is_told_so_before_sasl_says_it_in_its_words(
    environment: dict[str, str],
) -> None:
    for here in (environment, {"QPID_HA_CONFIG": "/dev/null"}):
        with pytest.raises(Forbidden, match="no password for me: give --password-file FILE, or set QPID_HA_PASSWORD"):
            login("amqp://me@node1", here)


def test_a_configuration_that_is_named_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    named = {"QPID_HA_CONFIG": str(tmp_path / "typo.yaml")}
    with pytest.raises(ConfigError, match=r"QPID_HA_CONFIG=.*typo.yaml: cannot read it: No such file"):
        login("amqp://node1", named)
    with pytest.raises(AddressError, match="QPID_HA_CONFIG"):
        find_broker(None, named)


def test_settings_may_be_dotted_and_the_password_among_them(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("ha.brokers-url: [a, 'b:7000']\nha.username: me\nha.password: pw\n")
    assert login("amqp://b:7000", {"QPID_HA_CONFIG": str(tmp_path / "config.yaml")})[1] == Login("me", "pw")


def test_a_listed_broker_is_spoken_to_with_the_scheme_and_the_authorities_that_the_brokers_use(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "ha: {brokers-url: 'amqps://node1,10.0.0.3', username: me, password: pw}\n"
        "tls: {ca: /etc/ca.pem, certificate: /etc/c.pem, key: /etc/k.pem}\n"
    )
    environment = {"QPID_HA_CONFIG": str(tmp_path / "config.yaml")}
    files = Tls("/etc/ca.pem", "/etc/c.pem", "/etc/k.pem")
    assert login("amqp://node3:5671", environment) == ("amqps://10.0.0.3:5671", Login("me", "pw", files))
    assert login("amqps://me@node1", environment)[1].tls == files
    assert login("amqps://far", environment)[1].tls == Tls()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amqp://node1", Address("amqp", "node1", 5672)),
        ("amqps://me@node1/", Address("amqps", "node1", 5671, "me")),
        ("[::1]:7000", Address("amqp", "::1", 7000)),
    ],
)
def test_a_remote_broker_is_named_as_in_any_amqp_client(text: str, expected: Address) -> None:
    assert read_remote(text) == expected
    assert read_remote(str(expected)) == expected.as_user("")


@pytest.mark.parametrize("text", ["", "ftp://a", "amqp://", "a:0", "a:99999", "a b", "amqp://me:pw@a", "a/queue"])
def test_what_names_no_remote_broker_is_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        read_remote(text)
    assert "pw" not in str(caught.value)
