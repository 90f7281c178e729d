"""Stories about what an operator writes into the configuration, and what comes back when it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.replication import level_by_rule
from qpid_ha_broker.server.runtime.data_directory import lock_data_directory
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import ConfigError, SettingsError
from qpid_ha_config.loading import load_settings
from qpid_ha_config.scalars import format_duration, format_period, format_size, parse_duration_s, parse_size_bytes
from qpid_ha_config.settings import TABLE, AccessSettings, BrokerSettings

MIB = 1024**2


def settings_of(tmp_path: Path, text: str, flags: dict[str, object] | None = None) -> BrokerSettings:
    file = tmp_path / "qpid-ha.yaml"
    file.touch(mode=0o600)
    file.write_text(text)
    return load_settings(file, flags, environment={})


# --- what goes well ---------------------------------------------------------------------------------------


def test_an_empty_file_gives_a_broker_that_only_this_machine_can_reach(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "# nothing yet\n")
    assert settings.listen == (Address("amqp", "127.0.0.1", 5672),)
    assert settings.mechanisms_for(settings.listen[0]) == ("ANONYMOUS",)
    assert settings.data_dir is None


def test_a_full_file_is_read_with_its_units(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        """
        name: node1
        data-dir: /var/lib/qpid-ha
        listen: ["amqp://127.0.0.1:0", "amqp://[::1]"]
        control-socket: /run/qpid-ha/node1.sock
        max-message-size: 10MiB
        memory-limit: 2GB
        idle-timeout: 2m
        handshake-timeout: 500ms
        stop-timeout: 5
        auto-create: no
        auto-create-arguments: {qpid.max_count: 1000, qpid.policy_type: ring}
        sasl: {allow-anonymous: true}
        ha: {cluster: false}
        """,
    )
    assert (settings.name, settings.data_dir) == ("node1", Path("/var/lib/qpid-ha"))
    assert [str(address) for address in settings.listen] == ["amqp://127.0.0.1:0", "amqp://[::1]:5672"]
    assert settings.control_socket == Path("/run/qpid-ha/node1.sock")
    assert (settings.max_message_bytes, settings.memory_limit_bytes) == (10 * MIB, 2_000_000_000)
    assert (settings.idle_timeout_s, settings.handshake_timeout_s, settings.stop_timeout_s) == (120, 0.5, 5)
    assert settings.addresses.auto_create is False
    assert dict(settings.addresses.auto_create_arguments) == {"qpid.max_count": 1000, "qpid.policy_type": "ring"}
    assert settings.sasl.allow_anonymous is True


def test_sections_may_be_dotted_or_nested_and_empty(tmp_path: Path) -> None:
    text = "tls:\nsasl.allow-anonymous: false\nlisten: amqp://0.0.0.0\nsasl.users-db: /dev/null"
    settings = settings_of(tmp_path, text)
    assert settings.mechanisms_for(settings.listen[0]) == ("SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1")


def test_flags_beat_the_file_and_the_file_beats_the_defaults(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "max-connections: 10\nlog-level: debug", {"max-connections": "20"})
    assert (settings.max_connections, settings.log_level, settings.publisher_credit) == (20, "debug", 1000)


def test_the_environment_names_a_file_and_config_beats_it(tmp_path: Path) -> None:
    (tmp_path / "named.yaml").write_text("name: named")
    (tmp_path / "given.yaml").write_text("name: given")
    environment = {"QPID_HA_CONFIG": str(tmp_path / "named.yaml")}
    assert load_settings(environment=environment).name == "named"
    assert load_settings(tmp_path / "given.yaml", environment=environment).name == "given"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10s", 10), ("200ms", 0.2), ("2m", 120), ("1h", 3600), ("1.5", 1.5), (7, 7), ("0", 0), ("10 s", 10)],
)
def test_durations_take_a_unit_or_are_seconds(text: object, expected: float) -> None:
    assert parse_duration_s(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100MiB", 100 * MIB), ("64KiB", 65536), ("1GB", 10**9), ("512", 512), (512, 512), ("1.5KiB", 1536), ("9b", 9)],
)
def test_sizes_take_a_unit_or_are_bytes(text: object, expected: int) -> None:
    assert parse_size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "fast", "-1", "1 0", "1y", True, None, [1], float("nan"), "1e3", "٣s"])
def test_what_is_no_quantity_is_refused(text: object) -> None:
    for parse in (parse_duration_s, parse_size_bytes):
        with pytest.raises(ValueError):
            parse(text)


@pytest.mark.parametrize(
    ("period_s", "text"),
    [
        (0, "0 s"), (0.06, "0.1 s"), (5.0, "5 s"), (7.46, "7.5 s"), (10.4, "10 s"), (119, "119 s"), (120, "2 minutes"),
        (7199, "119 minutes"), (7200, "2 hours"), (172_799, "47 hours"), (172_800, "2 days"),
    ],
)  # fmt: skip
def test_how_long_something_lasts_is_told_in_one_way(period_s: float, text: str) -> None:
    assert format_period(period_s) == text


@given(st.integers(0, 2**50), st.integers(0, 86_400_000))
def test_quantities_are_read_back_as_they_are_shown(size_bytes: int, duration_ms: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes
    shown = format_duration(duration_ms / 1000)
    assert parse_duration_s(shown) == pytest.approx(duration_ms / 1000)


@pytest.mark.parametrize("text", ["[/bin/mail, -s, a b, root]", "/bin/mail -s 'a b' root"])
def test_a_program_is_a_list_or_is_parted_into_words_as_a_shell_would(tmp_path: Path, text: str) -> None:
    settings = settings_of(tmp_path, f"ha.on-promoted: {text if text[0] == '[' else repr(text)}")
    assert settings.activation.on_promoted == ("/bin/mail", "-s", "a b", "root")
    assert settings.get("ha.on-promoted") == ["/bin/mail", "-s", "a b", "root"]


@pytest.mark.parametrize("text", ["192.168.1.100/24", "192.168.1.100/24@eth0", "2001:db8::100/64@bond0.7"])
def test_a_virtual_ip_is_shown_as_it_is_written(tmp_path: Path, text: str) -> None:
    assert settings_of(tmp_path, f"ha.virtual-ip: {text}").get("ha.virtual-ip") == text


def test_rules_of_addresses_are_shown_as_they_are_written(tmp_path: Path) -> None:
    text = """
    address-rules:
    - {address: "/exchanges/{x}/{key}", exchange: "{x}", key: "{key}", percent-encoded: true}
    - {address: "{name}", queue: "{name}", auto-create: false, arguments: {qpid.max_count: 5}}
    - {address: "{name}", topic: "{name}", auto-create: yes}
    """
    settings = settings_of(tmp_path, text)
    shown = settings.get("address-rules")
    assert shown == [
        {"address": "/exchanges/{x}/{key}", "exchange": "{x}", "key": "{key}", "percent-encoded": True},
        {"address": "{name}", "queue": "{name}", "auto-create": False, "arguments": {"qpid.max_count": 5}},
        {"address": "{name}", "topic": "{name}", "auto-create": True},
    ]
    assert settings.with_changes({"address-rules": json.dumps(shown)}).addresses == settings.addresses
    assert settings.with_changes({"address-rules": shown}).addresses == settings.addresses


# --- what goes wrong --------------------------------------------------------------------------------------

CLUSTER = "ha.cluster: true\nha.brokers-url: amqp://127.0.0.1:5672,127.0.0.1:5673,127.0.0.1:5674\n"

WRONG_FILES = [
    # (file, what the one line must name)
    ("ha: {coordinator-loss: die}", ["ha.coordinator-loss", "'die'", "continue, stop"]),
    ("ha: {failback: always}", ["ha.failback", "'always'", "stay, preferred"]),
    ("ha: {priority: 1001}", ["ha.priority", "1001", "from 0 to 1000"]),
    ("ha: {failback-delay: 0}", ["ha.failback-delay", "0", "from 1s"]),
    ("ha: {on-promoted: run-me}", ["ha.on-promoted", "'run-me'", "absolute path"]),
    ("ha: {on-demoted: [/bin/x, 5]}", ["ha.on-demoted", "5 is not text", "quotes"]),
    ('ha: {on-demoted: "/bin/x \'y"}', ["ha.on-demoted", "No closing quotation"]),
    ("ha: {on-promoted: []}", ["ha.on-promoted", "list"]),
    ("ha: {virtual-ip: 10.0.0.9}", ["ha.virtual-ip", "ADDRESS/PREFIX@INTERFACE"]),
    ("ha: {virtual-ip: node1/24}", ["ha.virtual-ip", "'node1'"]),
    ("ha: {virtual-ip: 10.0.0.9/33}", ["ha.virtual-ip", "10.0.0.9/33"]),
    ("ha: {virtual-ip: 10.0.0.9/24@}", ["ha.virtual-ip", "no interface"]),
    ("ha: {coordinator: pacemaker, failback: preferred}", ["ha.failback", "location constraint", "docs/pacemaker.md"]),
    ("ha: {coordinator: pacemaker, virtual-ip: 10.0.0.9/24}", ["ha.virtual-ip", "virtual_ip"]),
    ("ha: {coordinator: pacemaker, on-demoted: /bin/x}", ["ha.on-demoted", "alerts"]),
    ("max-conections: 5", ["max-conections", "max-connections"]),
    ("max_connections: 5", ["max_connections", "max-connections"]),
    ("tls: {certficate: /x}", ["tls.certficate", "tls.certificate"]),
    ("certificate: /x", ["certificate", "tls.certificate"]),
    ("sasl: {user-db: /x}", ["sasl.user-db", "sasl.users-db"]),
    ("ha: {clutser: true}", ["ha.clutser", "ha.cluster"]),
    ("zzzzzzzz: 1", ["zzzzzzzz", "max-connections", "listen"]),
    ("5: 6", ["5", "known"]),
    ("tlss: {}", ["tlss", "unknown key"]),
    ("max-connections: many", ["max-connections", "'many'", "whole number"]),
    ("max-connections: 0", ["max-connections", "0", "from 1"]),
    ("max-connections: true", ["max-connections", "True", "whole number"]),
    ("max-connections: [5]", ["max-connections", "[5]", "whole number"]),
    ("max-connections:", ["max-connections", "no value", "whole number"]),
    ("auto-create: maybe", ["auto-create", "'maybe'", "true or false"]),
    ("idle-timeout: 10 parsecs", ["idle-timeout", "'parsecs'", "10s"]),
    ("idle-timeout: -1", ["idle-timeout", "-1", "10s"]),
    ("memory-limit: 12XB", ["memory-limit", "'XB'", "MiB"]),
    ("memory-limit: 1KiB", ["memory-limit", "'1KiB'", "16MiB"]),
    ("max-frame-size: 100", ["max-frame-size", "100", "512B"]),
    ("log-level: loud", ["log-level", "'loud'", "warning"]),
    ("name: 17", ["name", "17", "quotes"]),
    ("name: 2026-01-31", ["name", "2026", "text"]),
    ("name: a/b", ["name", "'a/b'", "letters"]),
    ("listen: []", ["listen", "[]", "amqp://"]),
    ("listen: 127.0.0.1:5672", ["listen", "127.0.0.1:5672", "scheme"]),
    ("listen: http://127.0.0.1", ["listen", "'http'", "amqps"]),
    ("listen: amqp://127.0.0.1:99999", ["listen", "99999", "65535"]),
    ("listen: amqp://::1", ["listen", "::1", "brackets"]),
    ("listen: 'amqp://[::zz]'", ["listen", "::zz", "IPv6"]),
    ("listen: amqp://300.1.1.1", ["listen", "300.1.1.1", "IPv4"]),
    ("listen: 'amqp://:5672'", ["listen", "host", "0.0.0.0"]),
    ("listen: amqp://guest@localhost", ["listen", "user", "sasl.users-db"]),
    ("listen: [amqp://127.0.0.1:5000, amqp://127.0.0.1:5000]", ["listen", "5000", "twice"]),
    ("listen: amqp://0.0.0.0", ["listen", "amqp://0.0.0.0:5672", "sasl.users-db", "sasl.allow-anonymous: true"]),
    ("listen: amqp://node1.example.org", ["listen", "node1.example.org", "sasl.users-db"]),
    ("listen: amqps://127.0.0.1", ["tls.certificate", "amqps://127.0.0.1:5671", "tls.key"]),
    ("tls: {certificate: /x}", ["tls.key", "tls.certificate"]),
    ("tls: {key: /x}", ["tls.certificate", "tls.key"]),
    ("tls: {require-client-certificate: true}", ["tls.ca", "tls.require-client-certificate"]),
    ("tls: {ca: /nonexistent/ca.pem}", ["tls.ca", "/nonexistent/ca.pem", "No such file"]),
    ("tls: {ca: /dev/null}", ["tls.ca", "/dev/null", "PEM"]),
    ("tls: {certificate: /dev/null, key: /dev/null}", ["tls.certificate", "/dev/null", "PEM"]),
    ("sasl: {users-db: /nonexistent/db}", ["sasl.users-db", "/nonexistent/db", "No such file"]),
    ("sasl: {mechanisms: [PLAIN]}", ["sasl.mechanisms", "PLAIN", "sasl.users-db"]),
    ("sasl: {mechanisms: [KERBEROS]}", ["sasl.mechanisms", "KERBEROS", "SCRAM-SHA-256"]),
    ("sasl: {allow-anonymous: false}", ["listen", "sasl.users-db"]),
    ("max-message-size: 120MiB\nmemory-limit: 100MiB", ["max-message-size", "120MiB", "memory-limit", "100MiB"]),
    ("auto-create-arguments: ring", ["auto-create-arguments", "'ring'", "mapping"]),
    ("auto-create-arguments: {a: [1]}", ["auto-create-arguments", "'a'"]),
    ("auto-create-arguments: {qpid.max_cuont: 5}", ["auto-create-arguments", "qpid.max_cuont", "qpid.max_count"]),
    ("auto-create-arguments: {x-max-length: 5}", ["auto-create-arguments", "x-max-length", "qpid.max_count"]),
    ("auto-create-arguments: {qpid.policy_type: ring}", ["auto-create-arguments", "qpid.max_count"]),
    ("address-rules: {a: b}", ["address-rules", "a list of rules"]),
    ("address-rules: 'a=b'", ["address-rules", "JSON"]),
    ("address-rules: [a]", ["address-rules", "entry 1", "'a'", "mapping"]),
    ("address-rules: [{adress: a, queue: a}]", ["address-rules", "entry 1", "adress", "address?"]),
    ("address-rules: [{address: a}]", ["address-rules", "entry 1", "one of queue, topic, exchange"]),
    ("address-rules: [{address: a, queue: a, topic: a}]", ["address-rules", "entry 1", "one of"]),
    ("address-rules: [{address: a, queue: a}, {address: 5, queue: a}]", ["entry 2", "5", "quotes"]),
    ("address-rules: [{address: $a, queue: a}]", ["entry 1", "'$a'", "the broker's own"]),
    ('address-rules: [{address: "a{x", queue: a}]', ["entry 1", "a{x", "brace"]),
    ('address-rules: [{address: "{x}{y}", queue: a}]', ["entry 1", "{x}{y}", "nothing between"]),
    ('address-rules: [{address: "{x}.{x}", queue: a}]', ["entry 1", "twice"]),
    ('address-rules: [{address: "/q/{x}", queue: "{y}"}]', ["entry 1", "{y} is not in the address"]),
    ("address-rules: [{address: a, topic: a, key: k}]", ["entry 1", "key", "exchange"]),
    ("address-rules: [{address: a, topic: a, arguments: {}}]", ["entry 1", "arguments", "queue"]),
    ("address-rules: [{address: a, exchange: a, auto-create: true}]", ["entry 1", "auto-create"]),
    ("address-rules: [{address: a, queue: a, auto-create: maybe}]", ["entry 1", "auto-create", "'maybe'"]),
    ("address-rules: [{address: a, queue: a, arguments: {qpid.max_cuont: 5}}]", ["entry 1", "qpid.max_count"]),
    ("address-rules: [{address: a, queue: a, arguments: {qpid.policy_type: ring}}]", ["entry 1, a", "qpid.max_count"]),
    ("address-rules: [{address: a, queue: a, arguments: [1]}]", ["entry 1", "arguments", "mapping"]),
    (
        'address-rules: [{address: "/q{x}", queue: "{x}"}, {address: "/queue/{x}", topic: "{x}"}]',
        ["entry 2", "entry 1, /q{x}", "put that one behind it"],
    ),
    (
        'address-rules: [{address: "{a}", topic: "{a}"}, {address: "{a}", topic: "t.{a}"}]',
        ["entry 2", "entry 1, {a}", "take one out"],
    ),
    (f"control-socket: /{'x' * 120}", ["control-socket", "121", "107"]),
    ("ha: {cluster: true}", ["ha.brokers-url", "missing", "ha.cluster"]),
    (CLUSTER + "ha.min-in-sync: 4", ["ha.min-in-sync", "4", "names 3"]),
    (CLUSTER + "ha.min-in-sync: 0", ["ha.min-in-sync", "from 1"]),
    (CLUSTER + "listen: amqp://0.0.0.0\nsasl.users-db: /dev/null", ["ha.username", "0.0.0.0", "ha.password-file"]),
    (CLUSTER + "ha.backup-timeout: 1s", ["ha.backup-timeout", "1s", "link-heartbeat-interval"]),
    (CLUSTER + "link-heartbeat-interval: 6s\nha.backup-timeout: 10s", ["ha.backup-timeout", "heartbeat-interval"]),
    ("ha: {cluster: true, brokers-url: 'amqp://127.0.0.1'}", ["ha.brokers-url", "127.0.0.1:5672", "only this broker"]),
    ("ha: {cluster: true, brokers-url: 'amqp://127.0.0.1:5000'}", ["ha.brokers-url", "one broker", "all of the"]),
    ("ha: {cluster: true, brokers-url: 'amqp://node1,node2'}", ["ha.username", "node1:5672"]),
    ("ha: {brokers-url: 'amqp://a,b:5672,A'}", ["ha.brokers-url", "a:5672", "twice"]),
    ("ha: {brokers-url: 'http://a,b'}", ["ha.brokers-url", "'http'", "amqps"]),
    ("ha: {brokers-url: 'amqp://me@a,b'}", ["ha.brokers-url", "user", "ha.username"]),
    ("ha: {brokers-url: 'amqp://0.0.0.0,b'}", ["ha.brokers-url", "0.0.0.0", "name the host"]),
    ("ha: {brokers-url: [a, 5]}", ["ha.brokers-url", "5", "not text"]),
    ("ha: {public-url: 'amqp://a:0'}", ["ha.public-url", "port 0"]),
    ("ha: {username: me}", ["ha.password", "missing", "ha.username"]),
    ("ha: {password: secret}", ["ha.username", "missing"]),
    ("ha: {username: me, password: a, password-file: /dev/null}", ["ha.password", "ha.password-file"]),
    ("ha: {username: me, password-file: /nonexistent/pw}", ["ha.password-file", "/nonexistent/pw", "No such file"]),
    ("ha: {username: me, password-file: /dev/null}", ["ha.password-file", "/dev/null", "empty"]),
    (f"idle-timeout: {'9' * 400}", ["idle-timeout", "duration"]),
    (f"memory-limit: {'9' * 400}", ["memory-limit", "size"]),
    ("ha: {replicate: some}", ["ha.replicate", "'some'", "configuration"]),
    ("ha: {coordinator: zookeeper}", ["ha.coordinator", "'zookeeper'", "file:DIRECTORY"]),
    ("ha: {coordinator: 'file:state'}", ["ha.coordinator", "absolute"]),
    ("ha: {mechanism: KERBEROS}", ["ha.mechanism", "KERBEROS", "SCRAM-SHA-256"]),
    ("ha: {brokers-urls: a}", ["ha.brokers-urls", "ha.brokers-url"]),
    ("replication-rules: tmp.*", ["replication-rules", "'tmp.*'", "PATTERN=LEVEL"]),
    ("replication-rules: tmp.*=never", ["replication-rules", "'never'", "configuration"]),
    ("replication-rules: [{pattern: a}]", ["replication-rules", "{pattern: PATTERN, replicate: LEVEL}"]),
    ("resource-sets: orders.*", ["resource-sets", "'orders.*'", "PATTERN=SET"]),
    ("resource-sets: orders.*=Orders", ["resource-sets", "'Orders'", "lower-case"]),
    ("resource-sets: a*=s,b*=t,a*=t", ["resource-sets", "a*", "s and in t"]),
    ("resource-sets: {spread: 8}", ["resource-sets", "resource-sets.spread"]),
    ("resource-sets.spread: 1001", ["resource-sets.spread", "1001", "1000"]),
    ("replica-policies: a*=3,b*=2,a*=5", ["replica-policies", "a* wants 3 and 5"]),
    ("link-heartbeat-interval: 1s\nha: {link-heartbeat-interval: 2s}", ["link-heartbeat-interval", "twice"]),
    ("ha: {cluster: perhaps}", ["ha.cluster", "'perhaps'", "true or false"]),
    ("name: a\nname: b", ["qpid-ha.yaml:2:1", "'name'", "twice"]),
    ("tls.ca: /x\ntls: {ca: /y}", ["tls.ca", "twice"]),
    ("name: a\nlisten: [", ["qpid-ha.yaml:2:10", "expected"]),
    ("name: {a\n b: c: d}", ["qpid-ha.yaml:2"]),
    ("name: a\n\tlisten: b", ["qpid-ha.yaml:2:1", "\\t"]),
    ("a: &a [1]\nb: *a", ["qpid-ha.yaml:2", "references"]),
    ("name: !!python/object/apply:os.system [ls]", ["qpid-ha.yaml:1:7", "python"]),
    ("name: 2026-99-99", ["month"]),
    ("just words", ["name: node1"]),
    ("- a\n- b", ["name: node1"]),
    ("name: a\n---\nname: b", ["qpid-ha.yaml:2", "document"]),
    ("name: \x07", ["qpid-ha.yaml:1:7", "U+0007"]),
    ("[" * 5000, ["nested"]),
    ("#" * (MIB + 1), ["1 MiB"]),
]


@pytest.mark.parametrize(("text", "named"), WRONG_FILES, ids=[text[:40] for text, _named in WRONG_FILES])
def test_a_mistake_is_one_line_that_names_file_key_and_remedy(tmp_path: Path, text: str, named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, text)
    line = str(caught.value)
    assert line.startswith(str(tmp_path / "qpid-ha.yaml"))
    assert "\n" not in line
    assert not [word for word in named if word not in line], line


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot read it: No such file"):
        load_settings(tmp_path / "absent.yaml", environment={})
    with pytest.raises(ConfigError, match="cannot read it: Is a directory"):
        load_settings(tmp_path, environment={})


def test_a_file_in_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: a\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml:2: it is not UTF-8"):
        load_settings(tmp_path / "latin.yaml", environment={})


def test_a_wrong_flag_blames_the_command_line_and_not_the_file(tmp_path: Path) -> None:
    for key in ("max-conections", "max-connections"):
        with pytest.raises(ConfigError, match=f"^command line: {key}: "):
            settings_of(tmp_path, "name: a", {key: "x"})
    with pytest.raises(ConfigError, match=r"^command line: listen: nobody could log in"):
        settings_of(tmp_path, "name: a", {"listen": "amqp://0.0.0.0"})


# --- who may log in where ---------------------------------------------------------------------------------

PLAIN_EVERYWHERE, TLS_EVERYWHERE = Address.parse("amqp://0.0.0.0"), Address.parse("amqps://0.0.0.0")


def test_passwords_travel_in_the_clear_only_when_that_is_asked_for(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "sasl: {users-db: /dev/null}")
    assert "PLAIN" in settings.mechanisms_for(settings.listen[0])
    assert "PLAIN" in settings.mechanisms_for(TLS_EVERYWHERE)
    assert "PLAIN" not in settings.mechanisms_for(PLAIN_EVERYWHERE)
    settings = settings_of(tmp_path, "sasl: {users-db: /dev/null, allow-insecure-plain: true}")
    assert "PLAIN" in settings.mechanisms_for(PLAIN_EVERYWHERE)


def test_anonymous_clients_come_in_through_loopback_unless_said_otherwise(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "sasl: {users-db: /dev/null}")
    assert "ANONYMOUS" in settings.mechanisms_for(settings.listen[0])
    assert "ANONYMOUS" not in settings.mechanisms_for(PLAIN_EVERYWHERE)
    settings = settings_of(tmp_path, "sasl: {users-db: /dev/null, allow-anonymous: false}")
    assert "ANONYMOUS" not in settings.mechanisms_for(settings.listen[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback_addresses_are_known(host: str) -> None:
    address = Address.parse(f"amqp://{host}:0")
    assert address.is_loopback
    assert Address.parse(str(address)) == address


# --- secrets -------------------------------------------------------------------------------------------------


def test_a_secret_on_the_command_line_is_refused_and_not_quoted() -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(None, {"ha.username": "me", "ha.password": "correct horse"}, {})
    assert "ha.password-file" in str(refused.value)
    assert "correct horse" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601])
def test_a_secret_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    password.chmod(mode)
    with pytest.raises(ConfigError, match=f"ha.password-file: .*chmod o-rwx {password}"):
        settings_of(tmp_path, f"ha: {{username: me, password-file: {password}}}")
    password.chmod(0o640)
    assert settings_of(tmp_path, f"ha: {{username: me, password-file: {password}}}").ha.read_password()


def test_a_configuration_with_a_password_is_a_secret_too(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("ha: {username: me, password: correct horse}")
    config.chmod(0o644)
    with pytest.raises(ConfigError, match=f"ha.password: {config} is a secret"):
        load_settings(config, {}, {})
    config.chmod(0o600)
    assert load_settings(config, {}, {}).ha.password == "correct horse"


def test_a_coordinator_in_which_everybody_may_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match=f"ha.coordinator: .*chmod o-w {shared}"):
        settings_of(tmp_path, f"ha.coordinator: file:{shared}")
    shared.chmod(0o770)
    assert settings_of(tmp_path, f"ha.coordinator: file:{shared}").coordinator.url.directory == shared


def test_a_data_directory_in_which_everybody_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match=r"data-dir: .*chmod o-w"):
        lock_data_directory(tmp_path)


# --- TLS ---


def test_tls_below_1_2_cannot_be_asked_for(tmp_path: Path) -> None:
    assert settings_of(tmp_path, "name: a").get("tls.versions") == ["TLSv1.2", "TLSv1.3"]
    assert settings_of(tmp_path, "tls.versions: tlsv1.3").tls.versions == ("TLSv1.3",)
    with pytest.raises(ConfigError, match=r"tls.versions: .*TLSv1\.1"):
        settings_of(tmp_path, "tls.versions: [TLSv1.1]")
    with pytest.raises(ConfigError, match=r"tls.ciphers: .*openssl ciphers"):
        settings_of(tmp_path, "tls.ciphers: ROT13")


# --- a cluster --------------------------------------------------------------------------------------------


def test_a_member_of_a_cluster_is_described_as_qpids_users_know_it(tmp_path: Path) -> None:
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text("correct horse\n")
    settings = settings_of(
        tmp_path,
        f"""
        listen: amqp://0.0.0.0
        sasl.users-db: /dev/null
        ha:
          cluster: true
          brokers-url: amqp://node1:5672,node2,[::1]:7000
          public-url: amqps://10.0.0.100
          replicate: all
          backup-timeout: 5s
          min-in-sync: 2
          username: replicator
          password-file: {tmp_path}/password
          mechanism: scram-sha-256
          coordinator: file:/srv/shared/state
          tail-size: 1MiB
          link-heartbeat-interval: 200ms
        """,
    )
    ha = settings.ha
    assert [str(address) for address in ha.brokers_url] == [
        "amqp://node1:5672",
        "amqp://node2:5672",
        "amqp://[::1]:7000",
    ]
    assert (ha.public_url[0].scheme, ha.public_url[0].host, ha.public_url[0].port) == ("amqps", "10.0.0.100", 5671)
    assert (ha.cluster, ha.min_in_sync, ha.confirm_dequeue, ha.queue_replication) == (True, 2, True, False)
    assert (ha.replicate, ha.backup_timeout_s, ha.link_heartbeat_interval_s) == (Replicate.MESSAGES, 5, 0.2)
    assert (ha.read_password(), ha.mechanism, ha.tail_bytes) == ("correct horse", "SCRAM-SHA-256", MIB)
    assert settings.coordinator.url.directory == Path("/srv/shared/state")


def test_brokers_are_listed_in_one_url_or_in_several(tmp_path: Path) -> None:
    written = ["a:5672,b", "amqp://a,b:5672", "amqp://a,amqp://b", "[a, b]", "['amqp://a', 'b:5672']"]
    texts = [settings_of(tmp_path, f"ha.brokers-url: {text}").get("ha.brokers-url") for text in written]
    assert texts == ["amqp://a:5672,b:5672"] * len(written)
    mixed = settings_of(tmp_path, "ha.brokers-url: amqps://a,b,amqp://c")
    assert mixed.get("ha.brokers-url") == "amqps://a:5671,b:5671,amqp://c:5672"


@pytest.mark.parametrize(
    "text",
    [
        "replication-rules: [{pattern: tmp.*, replicate: none}, {pattern: '*', replicate: all}]",
        "replication-rules: tmp.*=none, *=messages",
        "ha: {replication-rules: {tmp.*: none, '*': messages}}",
    ],
)
def test_the_first_rule_that_matches_says_how_far_something_is_replicated(tmp_path: Path, text: str) -> None:
    rules = [(rule.pattern, rule.replicate) for rule in settings_of(tmp_path, text).ha.replication_rules]
    found = [level_by_rule(name, rules, Replicate.CONFIGURATION) for name in ("tmp.a", "Tmp.a", "orders")]
    assert found == ["none", "messages", "messages"]


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "ha: {username: me, password: correct horse}")
    assert settings.ha.read_password() == "correct horse"
    assert settings.get("ha.password") == settings.as_mapping()["ha.password"] == "********"
    assert "correct horse" not in repr(settings)
    assert BrokerSettings(name="a").get("ha.password") is None
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, "ha: {username: me, password: 123456}")
    assert "123456" not in str(caught.value)
    assert "quotes" in str(caught.value)


def test_rules_of_resource_sets_are_written_in_any_form(tmp_path: Path) -> None:
    for text in (
        "resource-sets: [{pattern: orders.*, set: orders}, {pattern: '*', set: default}]",
        "resource-sets: orders.*=orders, *=default",
        "resource-sets: {orders.*: orders, '*': default}",
    ):
        settings = settings_of(tmp_path, f"{text}\nresource-sets.spread: 4")
        assert settings.resource_sets.rules == (("orders.*", "orders"), ("*", "default")), text
        assert settings.resource_sets.spread == 4
        shown = settings.get("resource-sets")
        assert settings.with_changes({"resource-sets": shown}).resource_sets.rules == settings.resource_sets.rules


def test_a_running_member_takes_changes_that_go_with_the_rest() -> None:
    urls = "127.0.0.1:5672,127.0.0.1:5673"
    settings = BrokerSettings.from_values({"name": "a", "ha.cluster": True, "ha.brokers-url": urls})
    changes = {
        "ha.brokers-url": f"amqp://{urls},127.0.0.1:5674",
        "ha.public-url": "amqp://127.0.0.9:5672",
        "ha.backup-timeout": "3s",
        "ha.min-in-sync": 3,
        "ha.replicate": "configuration",
        "ha.confirm-dequeue": False,
        "link-heartbeat-interval": "500ms",
        "replication-rules": [{"pattern": "tmp.*", "replicate": "none"}],
    }
    for key, value in changes.items():
        settings = settings.with_changes({key: value})
    assert {key: settings.get(key) for key in changes} == changes
    assert settings.with_changes({"ha.public-url": ""}).ha.public_url == ()
    assert settings.with_changes({"ha.link-heartbeat-interval": 1}).get("link-heartbeat-interval") == "1s"
    for key, value, named in (
        ("ha.min-in-sync", 4, "names 3"),
        ("ha.brokers-url", "127.0.0.1", "only this broker"),
        ("ha.brokers-url", "node1,node2,node3", "ha.username"),
        ("ha.cluster", False, "restart"),
        ("link-heartbeat-interval", "2s", "ha.backup-timeout"),
    ):
        with pytest.raises(SettingsError, match=named):
            settings.with_changes({key: value})


# --- get and set ------------------------------------------------------------------------------------------


def test_a_running_broker_takes_a_change_and_shows_it() -> None:
    before = BrokerSettings(name="a")
    after = before.with_changes({"memory-limit": "1GiB"}).with_changes({"log-level": "debug"})
    after = after.with_changes({"auto-create": "no"})
    assert (after.memory_limit_bytes, after.log_level, after.addresses.auto_create) == (1024 * MIB, "debug", False)
    assert (after.get("memory-limit"), after.get("auto-create"), after.get("idle-timeout")) == ("1GiB", False, "60s")
    assert before.log_level == "info"


def test_every_changeable_setting_takes_back_what_it_shows() -> None:
    settings = BrokerSettings(name="a", access=AccessSettings(rules=("allow alice consume q",)))
    changeable = {key for key, row in TABLE.items() if row.setting.changeable}
    for key in changeable:
        assert settings.with_changes({key: settings.get(key)}) == settings
    for key in set(settings.as_mapping()) - changeable:
        with pytest.raises(SettingsError, match="restart"):
            settings.with_changes({key: settings.get(key)})


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("max-conections", "5", "max-connections"),
        ("listen", "amqp://127.0.0.1", "restart"),
        ("tls.key", "/x", "restart"),
        ("max-connections", "lots", "whole number"),
        ("max-message-size", "900TiB", "127MiB"),
        ("memory-limit", "50MiB", "raise memory-limit"),
    ],
)
def test_a_change_that_cannot_be_is_refused(key: str, value: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        BrokerSettings(name="a").with_changes({key: value})


def test_an_unknown_key_names_the_nearest_one_on_get() -> None:
    with pytest.raises(SettingsError, match="did you mean idle-timeout"):
        BrokerSettings(name="a").get("idle_timout")


def test_remote_nodes_are_read_and_shown_as_they_are_written(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text("s\n", encoding="utf-8")
    node = {"url": "amqp://a:5672,b:5673//exchange/x/a%20b.#", "user": "u", "password-file": str(secret)}
    broker = {"url": "amqps://c:5671"}
    settings = BrokerSettings.from_values({"remote-nodes": {"orders": node}, "remote-brokers": [broker]})
    assert settings.remote.nodes[0].url.node == "/exchange/x/a b.#"
    assert settings.get("remote-nodes") == {"orders": node}
    assert settings.get("remote-brokers") == [broker]
    text = f"remote-nodes:\n  orders: {{url: 'amqp://a/q', user: u, password-file: {secret}}}\n"
    assert settings_of(tmp_path, text).remote.nodes[0].login.password_file == secret


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{url: 'amqp://u:top-secret@h/q'}", "no place for a user or a password"),
        ("{url: 'amqp://h'}", "the node is missing"),
        ("{url: 'amqp://h/%00'}", "printable"),
        ("{url: 'amqp://h/%ff'}", "UTF-8"),
        ("{url: 'http://h/q'}", "neither amqp nor amqps"),
        ("{urll: 'amqp://h/q'}", "did you mean url?"),
        ("{url: 'amqp://h/q', user: u}", "password-file is missing"),
        ("{url: 'amqp://h/q', password-file: /x}", "user is missing"),
        ("{url: 'amqp://h/q', password: top-secret}", "put it into a file"),
        ("{url: 'amqp://h/q', user: u, password-file: /nowhere}", "cannot read /nowhere"),
        ("{url: 'amqp://h/q', user: u, password-file: OPEN}", "chmod o-rwx"),
        ("{url: 'amqp://h/q', ca: OPEN}", "ca: "),
    ],
)
def test_a_remote_node_that_cannot_be_is_refused_with_its_key_and_name(
    tmp_path: Path, entry: str, problem: str
) -> None:
    readable = tmp_path / "open"
    readable.write_text("s\n", encoding="utf-8")
    readable.chmod(0o644)
    with pytest.raises(ConfigError) as refused:
        settings_of(tmp_path, f"remote-nodes:\n  orders: {entry.replace('OPEN', str(readable))}\n")
    assert refused.value.key == "remote-nodes"
    assert "orders: " in str(refused.value)
    assert problem in str(refused.value)
    assert "top-secret" not in str(refused.value)


def test_a_remote_broker_is_there_once(tmp_path: Path) -> None:
    text = "remote-brokers:\n  - {url: 'amqp://a,b'}\n  - {url: 'amqp://b'}\n"
    with pytest.raises(ConfigError, match="b:5672 is there twice"):
        settings_of(tmp_path, text)
