"""What `qpidd --check` and a start refuse: files that others may change or replace, and what cannot work."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from qpid_ha_broker.server.command_line import look_before_start
from qpid_ha_broker.server.command_line import main as qpidd
from qpid_ha_broker.server.control.placements import NoPlacement
from qpid_ha_broker.server.runtime.logs import configure_logging
from qpid_ha_config.certificates import Validity
from qpid_ha_config.errors import ConfigError, SettingsError
from qpid_ha_config.loading import load_settings
from qpid_ha_config.settings import BrokerSettings


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with one above it that a test may open to all."""
    place = tmp_path / "etc" / "qpid-ha"
    place.mkdir(parents=True)
    return place


def written(place: Path, text: str, mode: int = 0o600) -> Path:
    config = place / "qpid-ha.yaml"
    config.write_text(text)
    config.chmod(mode)
    return config


def secret(place: Path) -> Path:
    file = place / "secret"
    file.write_text("correct horse\n")
    file.chmod(0o600)
    return file


SECRETS = {
    "ha.password-file": "ha: {{username: me, password-file: {file}}}",
    "ha.coordinator-password-file": "ha: {{coordinator-username: me, coordinator-password-file: {file}}}",
    "remote-brokers": "remote-brokers: [{{url: amqp://far, user: me, password-file: {file}}}]",
    "acl.file": "acl: {{file: {file}}}",
    "audit.file": "audit: {{file: {file}}}",
}


@pytest.mark.parametrize("key", SECRETS)
@pytest.mark.parametrize("is_above", [False, True])
def test_a_file_that_everybody_could_replace_is_refused(place: Path, key: str, is_above: bool) -> None:
    file = secret(place)
    if key == "acl.file":
        file.write_text("allow all all\n")
    elsewhere = place.parent.parent / "config"
    elsewhere.mkdir()
    config = written(elsewhere, SECRETS[key].format(file=file))
    load_settings(config, {}, {})
    open_to_all = place.parent if is_above else place
    open_to_all.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{key}: .*every user may change what is in {open_to_all}.*chmod o-w"):
        load_settings(config, {}, {})
    open_to_all.chmod(0o1777)  # as /tmp: only owners rename there
    if key != "audit.file" or is_above:
        load_settings(config, {}, {})
    open_to_all.chmod(0o775)
    load_settings(config, {}, {})


def test_what_a_link_leads_to_counts_as_much_as_the_link(place: Path) -> None:
    file, link = secret(place), place.parent / "link"
    link.symlink_to(file)
    config = written(place.parent, f"ha: {{username: me, password-file: {link}}}")
    load_settings(config, {}, {})
    place.chmod(0o777)
    with pytest.raises(ConfigError, match=f"what is in {place}"):
        load_settings(config, {}, {})


def test_a_configuration_that_everybody_may_change_is_refused(place: Path) -> None:
    config = written(place, "acl: {rules: [allow all all]}", 0o666)
    with pytest.raises(ConfigError, match=f"every user may change {config}: chmod o-w {config}"):
        load_settings(config, {}, {})
    config.chmod(0o644)
    load_settings(config, {}, {})
    place.chmod(0o777)
    with pytest.raises(ConfigError, match=f"what is in {place}"):
        load_settings(config, {}, {})
    assert load_settings(Path("/dev/null"), {}, {}).name


def test_a_data_directory_below_one_that_everybody_may_change_is_refused_by_both(place: Path) -> None:
    config = written(place.parent.parent, f"data-dir: {place}/store")
    place.chmod(0o777)
    done = CliRunner().invoke(qpidd, ["--check", "--config", str(config)])
    assert (done.exit_code, "data-dir" in done.output) == (1, True)
    with pytest.raises(ConfigError, match="data-dir"):
        load_settings(config, {}, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_the_broker_may_not_write_is_told_before(place: Path) -> None:
    place.chmod(0o500)
    for key in ("data-dir", "log-file"):
        settings = BrokerSettings.from_values({"name": "a", key: str(place / "there")})
        with pytest.raises(SettingsError, match=f"{key}: cannot write"):
            look_before_start(settings, time.time())


def test_a_place_of_the_wrong_kind_is_told_before(place: Path) -> None:
    file = secret(place)
    for key, path in (("data-dir", file), ("data-dir", file / "store"), ("log-file", place)):
        with pytest.raises(SettingsError, match=key):
            look_before_start(BrokerSettings.from_values({"name": "a", key: str(path)}), time.time())
    fine = {"name": "a", "data-dir": str(place / "new" / "store"), "log-file": str(place / "log")}
    assert look_before_start(BrokerSettings.from_values(fine), time.time()) == []
    assert [path.name for path in place.iterdir()] == ["secret"]  # nothing was made


def test_rules_that_cannot_be_read_are_refused_by_check_and_start(place: Path) -> None:
    config = written(place, "acl: {rules: [allow all publsh]}")
    with pytest.raises(ConfigError, match=r"acl\.rules.*did you mean publish"):
        load_settings(config, {}, {})


@pytest.fixture
def quiet_logs() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("quiet_logs")
def test_a_log_is_for_the_broker_and_its_group(tmp_path: Path) -> None:
    before, file = os.umask(0o022), tmp_path / "broker.log"
    try:
        configure_logging("info", file)
        assert file.stat().st_mode & 0o777 == 0o640
        file.chmod(0o600)
        configure_logging("info", file)
        assert file.stat().st_mode & 0o777 == 0o600  # an operator's choice
        file.rename(tmp_path / "broker.log.1")
        logging.getLogger("broker").warning("the next one")
        assert file.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_a_placement_that_cannot_be_loaded_is_told_by_check_and_does_not_keep_a_broker_from_starting() -> None:
    (found,) = look_before_start(BrokerSettings.from_values({"name": "a", "ha.placement": "nowhere"}), time.time())
    assert isinstance(found, NoPlacement)


@pytest.mark.parametrize(
    ("now_s", "problem"),
    [
        (99.9, "it is not valid before 1970-01-01T00:01:40Z"),
        (100.0, ""),
        (199.9, ""),
        (200.0, "it expired at 1970-01-01T00:03:19Z"),
    ],
)
def test_a_certificate_is_valid_from_its_first_second_to_its_last(now_s: float, problem: str) -> None:
    said = Validity(100.0, 200.0).problem(now_s)
    assert said.startswith(problem)
    assert bool(said) is bool(problem)
