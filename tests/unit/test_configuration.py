"""Broker and agent read one file: whatever is written there means the same to both, or is refused by both."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_agent.broker_address import find_socket, read_config
from qpid_ha_agent.login import find_login
from qpid_ha_agent.service import read_configured
from qpid_ha_config.addresses import Address
from qpid_ha_config.configuration import WrittenSettings
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.errors import ConfigError
from qpid_ha_config.loading import load_settings
from qpid_ha_config.settings import TABLE, BrokerSettings, CoordinatorSettings

MEMBER = "ha.cluster: true\nha.brokers-url: 127.0.0.1:5672,127.0.0.1:5673\n"
ODD_VALUES = (
    """
None|"None"|none|NONE|" none "|~||''|true|yes|"on"|y|off|0|1|-1|010|"010"|0x10|1_000|1e3|.inf|.nan|10s|"10 s"|1.5KiB
2026-01-31|"a b"|a/b|é|[]|{}|[a]|[a, a]|{a: b}|17|"17"|auto|info|INFO|messages|all|~/x|~nobody-at-all/x|relative|/
file|file:|file:/a/../b|file:///x|file:relative|FILE:/x|pacemaker|Pacemaker|pacemaker:|pacemaker:orders|zookeeper:a:1
amqp://a|AMQP://a|amqps://a,b|a,b:7000|[a, 5]|amqp://a:0|amqp://0.0.0.0|amqp://me@a|amqp://me:secret@a|"[::1]:7000"
tmp.*=none|tmp.*=never|PLAIN|plain|[PLAIN, EXTERNAL]|TLSv1.1|abort
""".strip()
    .replace("\n", "|")
    .split("|")
)


def file_of(directory: Path, text: str) -> Path:
    path = directory / "qpid-ha.yaml"
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return path


def of_broker(path: Path) -> BrokerSettings | str:
    """The settings, or the refusal."""
    try:
        return load_settings(path, {}, {})
    except ConfigError as error:
        return str(error)


def of_agent(path: Path, key: str) -> tuple[object, str]:
    """One setting, as agent and tools read it, or the refusal."""
    try:
        return WrittenSettings.read(path).get(key), ""
    except ConfigError as error:
        return None, str(error)


ONE_OF_EACH_KIND = {row.setting.kind.expected: key for key, row in TABLE.items()}.values()


@pytest.mark.parametrize("key", ONE_OF_EACH_KIND)
def test_an_odd_value_means_the_same_to_broker_and_agent_or_is_refused_by_both_in_the_same_words(
    tmp_path: Path, key: str
) -> None:
    row = TABLE[key]
    for value in ODD_VALUES:
        path = file_of(tmp_path, f"{key}: {value}\n")
        broker, (agent, refusal) = of_broker(path), of_agent(path, key)
        if refusal:
            assert broker == refusal, value
        elif isinstance(broker, BrokerSettings):
            assert agent == getattr(getattr(broker, row.section) if row.section else broker, row.name), value
        # else the value does not go with the others, which only the broker has to know


@pytest.mark.parametrize("value", [*ODD_VALUES, "file:/shared", "[file:/shared]"])
def test_the_coordinator_of_a_cluster_is_the_same_to_whoever_starts_a_broker(tmp_path: Path, value: str) -> None:
    path = file_of(tmp_path, f"{MEMBER}ha.coordinator: {value}\n")
    broker = of_broker(path)
    if isinstance(broker, BrokerSettings):
        assert read_configured(path, {}).coordinator == broker.coordinator
        return
    with pytest.raises(ConfigError) as refused:
        read_configured(path, {})
    assert str(refused.value) == broker


@pytest.mark.parametrize("text", ["'None'", "NONE", "none"])
def test_no_coordinator_is_none_in_any_case_of_letters(tmp_path: Path, text: str) -> None:
    path = file_of(tmp_path, f"{MEMBER}ha.coordinator: {text}\n")
    assert read_configured(path, {}).coordinator.url == load_settings(path, {}, {}).coordinator.url == CoordinatorUrl()


@pytest.mark.parametrize("name", ["a/b", "../b", "-a", "17", "''", "2026-01-31"])
def test_a_name_that_could_not_be_a_file_is_refused_by_both(tmp_path: Path, name: str) -> None:
    path = file_of(tmp_path, f"{MEMBER}name: {name}\n")
    with pytest.raises(ConfigError) as refused:
        read_configured(path, {})
    assert str(refused.value) == of_broker(path)


TWICE = [
    "name: a\nname: b\n",
    "ha: {coordinator: none}\nha.coordinator: file:/shared\n",
    "ha: {coordinator: none, coordinator: file:/shared}\n",
    "ha: {cluster: true}\nha: {cluster: false}\n",
    "link-heartbeat-interval: 1s\nha.link-heartbeat-interval: 2s\n",
    "auto-create-arguments: {qpid.max_count: 1, qpid.max_count: 2}\n",
]


@pytest.mark.parametrize("text", TWICE)
def test_a_key_that_is_there_twice_is_refused_by_whoever_reads_the_file(tmp_path: Path, text: str) -> None:
    path = file_of(tmp_path, text)
    broker = of_broker(path)
    assert isinstance(broker, str)
    assert "twice" in broker
    for read in (
        lambda: read_configured(path, {}),
        lambda: read_config({"QPID_HA_CONFIG": str(path)}),
        lambda: find_login(Address("amqp", "a", 5672), None, {"QPID_HA_CONFIG": str(path)}),
    ):
        with pytest.raises(ConfigError) as refused:
            read()
        assert str(refused.value) == broker


def test_a_slip_of_the_pen_is_named_where_it_has_an_agent_find_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ha\.clustre: .*did you mean ha\.cluster\?"):
        read_configured(file_of(tmp_path, "ha: {clustre: true}\nname: n\n"), {})


def test_an_agent_reads_what_it_needs_from_a_file_with_which_no_broker_would_start(tmp_path: Path) -> None:
    """So that a broker that runs can be stopped."""
    path = file_of(tmp_path, f"{MEMBER}name: n\ncontrol-socket: /s/n.sock\nmax-connections: lots\nno-such-key: 1\n")
    assert isinstance(of_broker(path), str)
    assert read_configured(path, {}) == ("n", Path("/s/n.sock"), CoordinatorSettings(CoordinatorUrl()))
    assert find_socket(None, {"QPID_HA_CONFIG": str(path)}) == Path("/s/n.sock")


def test_a_broker_and_its_agent_agree_where_the_control_socket_is(tmp_path: Path) -> None:
    path = file_of(tmp_path, f"{MEMBER}name: n\n")
    broker = load_settings(path, {}, {})
    assert read_configured(path, {})[:2] == ("n", broker.control_socket)


# --- what is said of a mistake


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: a\n\nmax-connections: lots\n", 3),
        ("name: a\nha:\n  cluster: false\n  coordinator: zoo\n", 4),
        ("name: a\nmax-conections: 1\n", 2),
        ("ha.backup-timeout: 1s\nname: a\n", 1),
        ("name: a\nlog-file: 2026-99-99\n", 2),
    ],
)
def test_a_mistake_is_shown_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    found = of_broker(file_of(tmp_path, text))
    assert isinstance(found, str)
    assert found.startswith(f"{tmp_path}/qpid-ha.yaml:{line}: ")


@pytest.mark.parametrize(
    "text",
    [
        "listen: amqp://me:secret@127.0.0.1",
        "ha.brokers-url: me:secret@a,b",
        "ha.brokers-url: [b, 'amqp://me:se/cret@a']",
        "ha.public-url: me:secret@amqp://a",
        "ha.password: [secret]",
        "ha: {username: a, password: !secret }",
        "ha: {username: a, password: secret, passwrd: secret}",
    ],
)
def test_a_password_is_in_no_refusal(tmp_path: Path, text: str) -> None:
    found = of_broker(file_of(tmp_path, text))
    assert isinstance(found, str)
    assert "secret" not in found
    assert "se/cret" not in found
