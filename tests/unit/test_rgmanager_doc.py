"""docs/rgmanager.md and rgmanager/cluster.conf say what the scripts do: names that people are told to type exist."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from qpid_ha_agent.cli import lsb
from qpid_ha_config.loading import load_settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "rgmanager.md").read_text(encoding="utf-8")
CONF = ElementTree.parse(ROOT / "rgmanager" / "cluster.conf").getroot()
NODES = [node.attrib["name"] for node in CONF.iterfind("clusternodes/clusternode")]
SERVICES = {service.attrib["name"]: service.attrib for service in CONF.iterfind("rm/service")}
SHARED = list(CONF.iterfind("rm/resources/*"))
SCRIPTS = ("qpidd", "qpidd-primary")


def test_the_brokers_configuration_on_the_page_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = tmp_path / "qpid-ha.yaml"
    config.write_text(block.replace("/etc/qpid-ha", str(tmp_path)), encoding="utf-8")
    for secret in ("replicator.password", "users.sasldb"):
        (tmp_path / secret).write_text("secret", encoding="utf-8")
        (tmp_path / secret).chmod(0o600)
    settings = load_settings(config, {})
    assert (settings.name, yaml.safe_load(block)["ha"]["cluster"]) == ("node1", True)


def test_services_and_nodes_that_are_typed_are_those_of_the_example() -> None:
    typed = re.findall(r"clusvcadm -[a-zA-Z] (qpidd\S*?)(?: -m (\w+))?[;\s`]", PAGE)
    assert {service for service, _ in typed} == set(SERVICES)
    assert {node for _, node in typed if node} <= set(NODES)


def test_the_example_has_a_broker_on_each_node_and_nowhere_else_and_one_primary() -> None:
    domains = {
        domain.attrib["name"]: (domain.get("restricted"), [node.attrib["name"] for node in domain])
        for domain in CONF.iterfind("rm/failoverdomains/failoverdomain")
    }
    assert set(SERVICES) == {"qpidd-primary", *(f"qpidd-{node}" for node in NODES)}
    for node in NODES:
        service = SERVICES[f"qpidd-{node}"]
        assert (domains[service["domain"]], service["recovery"]) == (("1", [node]), "restart")
    primary = SERVICES["qpidd-primary"]
    assert domains[primary["domain"]] == ("1", NODES)
    assert (primary["recovery"], primary["exclusive"], primary["autostart"]) == ("relocate", "0", "1")


def test_what_a_service_of_the_example_refers_to_is_there() -> None:
    resources = {(resource.tag, resource.get("name") or resource.get("address")) for resource in SHARED}
    for service in CONF.iterfind("rm/service"):
        references = [(resource.tag, resource.attrib["ref"]) for resource in service]
        assert set(references) <= resources
        tags = ["ip", "script"] if service.attrib["name"] == "qpidd-primary" else ["script"]
        assert [tag for tag, _name in references] == tags


def test_scripts_are_where_the_example_looks_for_them() -> None:
    files = {Path(script.attrib["file"]) for script in SHARED if script.tag == "script"}
    assert {file.name for file in files} == set(SCRIPTS)
    assert {str(file.parent) for file in files} == {"/usr/local/lib/qpid-ha"}
    assert "/usr/local/lib/qpid-ha/qpidd" in PAGE
    assert all((ROOT / "rgmanager" / file.name).stat().st_mode & 0o111 for file in files)


def test_every_setting_is_on_the_page_with_its_default() -> None:
    rows = dict(re.findall(r"\| `(QPID_HA_\w+)` \| `([^`]*)` \|", PAGE))
    assert {name: rows[f"QPID_HA_{name.upper()}_TIMEOUT"] for name in lsb.TIMEOUTS} == lsb.TIMEOUTS
    assert rows["QPID_HA_USER"] == lsb.USER
    assert set(rows) == {f"QPID_HA_{name.upper()}_TIMEOUT" for name in lsb.TIMEOUTS} | {
        "QPID_HA_CONFIG", "QPID_HA_USER", "QPID_HA_LOG_FILE",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["service", "primary"])
def test_every_action_is_on_the_page(kind: str) -> None:
    actions = lsb.Script(kind, {}).actions()
    assert all(f"`{action}`" in PAGE for action in actions)
    assert "|".join(actions) in (ROOT / "rgmanager" / lsb.KINDS[kind]).read_text(encoding="utf-8")


@pytest.mark.parametrize("code", [*lsb.LsbCode, *lsb.LsbStatus])
def test_every_exit_code_is_on_the_page(code: int) -> None:
    assert f"\n| {int(code)} | " in PAGE


def test_the_two_scripts_differ_in_nothing_but_their_names() -> None:
    one, other = (
        [
            line
            for line in (ROOT / "rgmanager" / name).read_text(encoding="utf-8").splitlines()
            if not line.startswith("#")
        ]
        for name in SCRIPTS
    )
    assert [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]] == [
        ("name=qpidd", "name=qpidd-primary"),
        ("kind=service", "kind=primary"),
    ]
