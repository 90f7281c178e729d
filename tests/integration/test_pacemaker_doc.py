"""docs/pacemaker.md: its configurations are loaded, by the tools that a sysadmin uses, into a CIB in a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from doc_blocks import DOCS, titled_blocks
from qpid_ha_agent.ocf.parameters import TABLE
from qpid_ha_agent.pacemaker.election import NEVER, SCORES

ROOT = DOCS.parent
CRMSH, PCS = titled_blocks("pacemaker.md", "crmsh"), titled_blocks("pacemaker.md", "pcs")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
THREE_NODES = """<pacemaker-result><summary><current_dc name="n1" with_quorum="true"/></summary><nodes>
<node name="n1" id="1" online="true" standby="false" pending="false"/>
<node name="n2" id="2" online="true" standby="false" pending="false"/>
<node name="n3" id="3" online="true" standby="false" pending="false"/>
</nodes></pacemaker-result>"""


class Cib:
    """A configuration in a file, for tools that are told CIB_file."""

    def __init__(self, home: Path) -> None:
        for tool, package in {"crm": "crmsh", "cibadmin": "pacemaker-cli-utils", "pcs": "pcs"}.items():
            if shutil.which(tool, path=PATH) is None:
                pytest.skip(f"NOT TESTED: {tool} is missing; install {package}")
        self._home = home
        self._bin = home / "bin"
        self._bin.mkdir()
        self.file = home / "cib.xml"
        self.file.write_text(self.run("cibadmin", "--empty"), encoding="utf-8")

    def run(self, *command: object) -> str:
        path = f"{self._bin}:{PATH}"
        environment = {**os.environ, "CIB_file": str(self.file), "HOME": str(self._home), "PATH": path}
        environment |= {"VIRTUAL_IP": os.environ.get("VIRTUAL_IP", "10.0.0.100/24")}
        done = subprocess.run(
            [str(part) for part in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def tool(self, name: str, text: str) -> None:
        """A command that is found before the system's."""
        (self._bin / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (self._bin / name).chmod(0o755)

    def load_with_resources_sh(self, *titles: str) -> None:
        """As in the lab, but that the cluster is a file, and that the agents need not be installed here."""
        self.tool("crm_mon", f"cat <<'XML'\n{THREE_NODES}\nXML")
        self.tool("crm", f'exec {shutil.which("crm", path=PATH)} --force "$@"')
        self.run(ROOT / "vagrant/provision/resources.sh", *titles)

    def type_pcs(self, *titles: str) -> None:
        commands = "\n".join(PCS[title] for title in titles)
        function = f'pcs() {{ command pcs -f {self.file} --force "$@"; }}'
        self.run("bash", "-euc", f"{function}\n{commands}")

    def found(self) -> Configuration:
        return read_configuration(ElementTree.parse(self.file).getroot())


class Configuration(NamedTuple):
    """What matters in a CIB, without the ids that a tool makes up."""

    primitives: dict[str, object]
    clones: dict[str, object]
    constraints: set[tuple[str, ...]]
    properties: dict[str, str]


def read_configuration(cib: ElementTree.Element) -> Configuration:
    primitives = {each.attrib["id"]: primitive(each) for each in cib.iter("primitive")}
    clones: dict[str, object] = {
        each.attrib["id"]: (each.find("primitive").attrib["id"], pairs(each, "meta_attributes"))  # type: ignore[union-attr]
        for each in cib.iter("clone")
    }
    constraints = {constraint(each) for each in cib.iterfind("configuration/constraints/*")}
    wanted = ("stonith-enabled", "no-quorum-policy")
    properties = {each.attrib["name"]: each.attrib["value"] for each in cib.iterfind(".//crm_config//nvpair")}
    return Configuration(primitives, clones, constraints, {name: properties[name] for name in wanted})


def primitive(element: ElementTree.Element) -> object:
    agent = tuple(element.get(name, "") for name in ("class", "provider", "type"))
    operations = {
        (op.attrib["name"], op.attrib["interval"].removesuffix("s"), op.get("timeout"), op.get("role"))
        for op in element.iter("op")
    }
    return agent, pairs(element, "instance_attributes"), pairs(element, "meta_attributes"), operations


def pairs(element: ElementTree.Element, kind: str) -> dict[str, str]:
    return {each.attrib["name"]: each.attrib["value"] for each in element.iterfind(f"{kind}/nvpair")}


def constraint(element: ElementTree.Element) -> tuple[str, ...]:
    names = ("rsc", "with-rsc", "with-rsc-role", "node", "first", "first-action", "then", "then-action")
    return (element.tag, *(element.get(name, "") for name in names))


@pytest.fixture
def cib(tmp_path: Path) -> Cib:
    return Cib(tmp_path)


@pytest.mark.parametrize(
    "titles", [("no-fencing", "virtual-ip"), ("no-fencing", "ipaddr2"), ("properties", "fencing-ipmi", "virtual-ip")]
)
def test_pacemaker_finds_no_fault_in_a_configuration_for_crmsh(cib: Cib, titles: tuple[str, ...]) -> None:
    cib.load_with_resources_sh(*titles)
    cib.run("crm_verify", "--xml-file", cib.file)
    assert "broker-clone" in cib.found().clones


def test_loading_it_again_changes_nothing(cib: Cib) -> None:
    cib.load_with_resources_sh("no-fencing", "virtual-ip")
    before = cib.found()
    cib.load_with_resources_sh("no-fencing", "virtual-ip")
    assert cib.found() == before


@pytest.mark.parametrize("policy", ["properties", "no-fencing"])
@pytest.mark.parametrize("address", ["virtual-ip", "ipaddr2"])
def test_crmsh_and_pcs_make_the_same_of_the_page(cib: Cib, tmp_path: Path, policy: str, address: str) -> None:
    cib.load_with_resources_sh(policy, address)
    by_crmsh = cib.found()
    other = tmp_path / "pcs"
    other.mkdir()
    typed = Cib(other)
    typed.type_pcs(policy, address)
    assert typed.found() == by_crmsh


def test_every_configuration_says_what_the_agent_cannot_do_without(cib: Cib) -> None:
    cib.load_with_resources_sh("properties", "ipaddr2")
    found = cib.found()
    assert found.clones["broker-clone"] == ("broker", {"promotable": "true", "notify": "true", "interleave": "true"})
    assert found.properties["no-quorum-policy"] == "demote"  # `stop` would end every broker, and memory with it


def test_the_address_of_the_page_is_replaced_by_ours(cib: Cib, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_IP", "192.0.2.7/27")
    cib.load_with_resources_sh("no-fencing", "ipaddr2")
    text = cib.file.read_text(encoding="utf-8")
    assert 'value="192.0.2.7"' in text
    assert 'value="27"' in text
    assert "10.0.0.100" not in text


def test_a_title_that_the_page_does_not_have_is_named(cib: Cib) -> None:
    with pytest.raises(AssertionError, match='has no block ```crmsh title="virtual-pi"'):
        cib.load_with_resources_sh("virtual-pi")


# --- the tables


def rows(after: str) -> list[list[str]]:
    """The cells of the first table after the line `after`, without its head."""
    lines = (DOCS / "pacemaker.md").read_text(encoding="utf-8").partition(f"\n{after}\n")[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| ---"))
    table = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return table


def test_the_page_lists_every_parameter_with_its_default() -> None:
    listed = [(name, default, reload == "yes") for name, default, reload, _meaning in rows("## Parameters")]
    assert listed == [(row.name, row.default, row.reloadable) for row in TABLE]


def test_the_page_lists_every_score() -> None:
    assert {score for score, _meaning in rows("## Scores and election")} == {NEVER, *map(str, SCORES.values())}


def test_time_outs_of_the_page_suit_the_parameters() -> None:
    """An action ends by itself, and says why, before Pacemaker loses patience."""
    defaults = {row.name: row.default for row in TABLE}
    for name in ("start", "stop", "promote"):
        (line,) = (line for line in CRMSH["virtual-ip"].splitlines() if f"op {name} " in line)
        allowed = line.partition("timeout=")[2].split()[0]
        assert int(allowed.rstrip("s")) >= int(defaults[f"{name}_timeout"].rstrip("s")) + 10, line
