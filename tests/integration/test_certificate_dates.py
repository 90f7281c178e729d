"""Certificates that are expired, or not valid yet: told by `--check` and at a start, and not taken by a reload."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from certificate_authority import Authority
from qpid_ha_broker.server.command_line import look_before_start
from qpid_ha_broker.server.command_line import main as qpidd
from qpid_ha_broker.server.runtime.engines import Engines
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.loading import certificate_problems, load_settings
from qpid_ha_config.settings import BrokerSettings

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("broker", days=10)


def with_tls(pair: tuple[Path, Path], **more: object) -> BrokerSettings:
    files = {"tls.certificate": str(pair[0]), "tls.key": str(pair[1])}
    values = {"name": "a", "listen": "amqps://127.0.0.1:0", "sasl.allow-anonymous": True, **files, **more}
    return BrokerSettings.from_values(values)


@pytest.mark.parametrize(("in_days", "problem"), [(0, ""), (11, "it expired at 20"), (-2, "it is not valid before 20")])
def test_a_certificate_that_is_not_valid_now_is_told_with_the_date(
    pair: tuple[Path, Path], in_days: int, problem: str
) -> None:
    found = look_before_start(with_tls(pair), time.time() + in_days * DAY_S)
    assert [str(pair[0]) in each.problem and problem in each.problem for each in found] == [True] * bool(problem)


def test_check_refuses_a_certificate_with_which_a_broker_that_has_to_serve_starts(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        f"listen: amqps://127.0.0.1:0\nsasl: {{allow-anonymous: true}}\ntls: {{certificate: {pair[0]}, key: {pair[1]}}}"
    )
    config = tmp_path / "qpid-ha.yaml"
    config.write_text(text)
    assert CliRunner().invoke(qpidd, ["--check", "--config", str(config)]).exit_code == 0
    later_s = time.time() + 11 * DAY_S
    monkeypatch.setattr(time, "time", lambda: later_s)
    done = CliRunner().invoke(qpidd, ["--check", "--config", str(config)])
    assert done.exit_code == 1
    assert f"tls.certificate: {pair[0]}: it expired at" in done.output
    assert load_settings(config, {}, {}).tls.certificate == pair[0]


def test_of_a_file_with_authorities_one_has_to_be_valid(
    authority: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    old, both = authority.certificate, tmp_path / "authorities.pem"  # it is valid for a day
    both.write_text(old.read_text() + pair[0].read_text())
    for file, keys in ((both, []), (old, ["tls.ca", "ha.coordinator-ca", "remote-brokers"])):
        far = [{"url": "amqps://far", "ca": str(file)}]
        etcd = {"ha.coordinator": "etcd://e1/x", "ha.coordinator-tls": True, "ha.coordinator-ca": str(file)}
        settings = with_tls(pair, **{"tls.ca": str(file), "remote-brokers": far, **etcd})
        problems = certificate_problems(settings, time.time() + 2 * DAY_S)
        assert [each.key for each in problems] == keys


def test_no_certificate_that_is_not_valid_takes_the_place_of_another(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = with_tls(pair)
    engines = Engines(lambda: settings)
    engines.for_listener(settings.listen[0])
    assert engines.reload_tls() == 1
    later_s = time.time() + 11 * DAY_S
    monkeypatch.setattr(time, "time", lambda: later_s)
    with pytest.raises(SettingsError, match="it expired at"):
        engines.reload_tls()
