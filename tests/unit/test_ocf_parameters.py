"""The parameters of the resource, and the description of it that Pacemaker, pcs and crmsh read."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from qpid_ha_agent.ocf import main
from qpid_ha_agent.ocf.metadata import ACTIONS, metadata
from qpid_ha_agent.ocf.parameters import PREFIX, TABLE, ParameterError, read_parameters, without_wrong_ones

ROOT = Path(__file__).parents[2]

DURATIONS = ("start_timeout", "stop_timeout", "promote_timeout", "hang_timeout")
PATHS = ("config", "data_dir", "control_socket", "log_file")
WRONG = [
    *[(name, text) for name in DURATIONS for text in ("soon", "0", "0s", "-1s", "5 fortnights", "inf", "1e3s")],
    *[(name, text) for name in PATHS for text in ("qpid-ha.yaml", "./x", "~/x")],
    *[("max_lag", text) for text in ("-1", "many", "1.5", "²", "10%", "9" * 5000)],
    *[("watch", text) for text in ("maybe", "2", "tru")],
]


def given(**parameters: str) -> dict[str, str]:
    """The environment that Pacemaker makes of them."""
    return {PREFIX + name: text for name, text in parameters.items()}


def sentence(**parameters: str) -> str:
    with pytest.raises(ParameterError) as found:
        read_parameters(given(**parameters))
    return str(found.value)


# --- values


def test_without_any_parameter_there_is_a_default_for_each() -> None:
    found = read_parameters({})
    assert found.config == "/etc/qpid-ha/qpid-ha.yaml"
    assert found.user == "qpid-ha"
    assert (found.start_timeout_s, found.stop_timeout_s, found.promote_timeout_s, found.hang_timeout_s) == (
        60,
        30,
        20,
        3,
    )
    assert (found.max_lag, found.watch) == (10_000, True)
    assert {found.binary, found.data_dir, found.control_socket, found.log_file, found.virtual_ip} == {""}


def test_what_is_set_to_nothing_is_not_set() -> None:
    assert read_parameters(given(**{row.name: "" for row in TABLE})) == read_parameters({})


def test_times_have_units_and_without_one_are_seconds() -> None:
    found = read_parameters(given(start_timeout="2min", stop_timeout="500ms", hang_timeout="7"))
    assert (found.start_timeout_s, found.stop_timeout_s, found.hang_timeout_s) == (120, 0.5, 7)


@pytest.mark.parametrize(
    ("text", "value"), [("yes", True), ("On", True), ("1", True), ("TRUE", True), ("no", False), ("0", False)]
)
def test_truth_is_written_as_pacemaker_users_write_it(text: str, value: bool) -> None:
    assert read_parameters(given(watch=text)).watch is value


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_a_wrong_value_is_named_with_its_parameter_first(name: str, text: str) -> None:
    assert sentence(**{name: text}).startswith(f"{name}: ")


def test_it_is_said_what_would_be_right() -> None:
    assert sentence(max_lag="many") == "max_lag: 'many' is not a number of messages, 0 or more"
    assert sentence(hang_timeout="soon") == "hang_timeout: 'soon' is not a time above 0, such as 20s or 500ms"
    assert sentence(config="x.yaml") == "config: 'x.yaml' is not an absolute path"


def test_a_stop_can_do_without_the_wrong_ones_and_keeps_the_others() -> None:
    environment = given(max_lag="many", hang_timeout="soon", control_socket="/s.sock") | {"PATH": "/bin"}
    kept = without_wrong_ones(environment)
    assert kept == given(control_socket="/s.sock") | {"PATH": "/bin"}
    assert without_wrong_ones(kept) == kept


# --- metadata


@pytest.fixture(scope="module")
def described() -> ElementTree.Element:
    return ElementTree.fromstring(metadata())


def test_each_parameter_is_described_with_its_default(described: ElementTree.Element) -> None:
    found = {row.get("name"): row for row in described.iter("parameter")}
    assert list(found) == [row.name for row in TABLE]
    for row in TABLE:
        content = found[row.name].find("content")
        assert content is not None
        assert (content.get("type"), content.get("default")) == (row.kind, row.default)
        assert found[row.name].findtext("shortdesc") == row.short
        assert found[row.name].findtext("longdesc") == row.long
        assert (found[row.name].get("reloadable") == "1") is row.reloadable


def test_a_default_is_right_by_its_own_rules() -> None:
    assert read_parameters(given(**{row.name: row.default for row in TABLE})) == read_parameters({})


def test_what_is_offered_can_be_done_and_the_other_way_round(described: ElementTree.Element) -> None:
    """`status` is what rgmanager and old habits call monitor; it is nothing to configure."""
    offered = {row.get("name") for row in described.iter("action")}
    assert offered == set(main.ACTIONS) - {"status"}


def test_reload_agent_is_offered_exactly_when_there_is_something_to_reload() -> None:
    """Pacemaker restarts the broker for a parameter that is not reloadable."""
    assert any(row.reloadable for row in TABLE) == any(offer.name == "reload-agent" for offer in ACTIONS)
    assert not {row.name for row in TABLE if row.reloadable} & {"config", "binary", "user", *PATHS, "virtual_ip"}


def test_monitors_of_the_two_roles_have_different_intervals(described: ElementTree.Element) -> None:
    """Pacemaker tells two monitors of a resource apart by the interval alone."""
    monitors = [row for row in described.iter("action") if row.get("name") == "monitor"]
    assert {row.get("role") for row in monitors} == {"Promoted", "Unpromoted"}
    assert len({row.get("interval") for row in monitors}) == len(monitors)


def test_the_shell_script_lets_through_the_same_actions() -> None:
    text = (ROOT / "ocf" / "qpid-ha").read_text(encoding="utf-8")
    case = re.search(r"case \$action in\n(.*?)\) ;;", text)
    assert case is not None
    assert {word.strip() for word in case[1].split("|")} == set(main.ACTIONS)
