"""What setup.cfg declares is what lies on the disk: a forgotten package would be missing from the wheel only."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

import qpid_ha_broker
import qpid_ha_client
from qpid_ha_broker.diagnosis.checks import JOURNAL, UNIT
from qpid_ha_broker.server.http.page_files import read_page_files

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("agent", "broker", "client", "config", "kernel", "pipeline")
HOMES = [home for name in NAMES if (home := ROOT / name).is_dir()]


@pytest.fixture
def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


def mapping(text: str) -> dict[str, str]:
    """`name = value` lines of a setup.cfg option."""
    pairs = (line.split("=", 1) for line in text.splitlines() if line.strip())
    return {name.strip(): value.strip() for name, value in pairs}


def packages_on_disk() -> dict[str, Path]:
    return {
        ".".join(path.parent.relative_to(home).parts): path.parent
        for home in HOMES
        for path in home.rglob("__init__.py")
    }


def test_every_package_on_disk_is_declared(setup_cfg: configparser.ConfigParser) -> None:
    assert setup_cfg["options"]["packages"].split() == sorted(packages_on_disk())


def test_every_package_is_found_where_package_dir_says(setup_cfg: configparser.ConfigParser) -> None:
    tops = {name: path for name, path in packages_on_disk().items() if "." not in name}
    declared = mapping(setup_cfg["options"]["package_dir"])
    assert {name: ROOT / place for name, place in declared.items()} == tops


def test_every_module_lies_in_a_package() -> None:
    """A directory without `__init__.py` imports as a namespace here and is missing from the wheel."""
    homeless = [path for home in HOMES for path in home.rglob("*.py") if not (path.parent / "__init__.py").exists()]
    assert homeless == []


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.name)
def test_the_homes_are_not_packages_themselves(home: Path) -> None:
    """`agent` and `broker` as import names belong to others; a second install would overwrite theirs."""
    assert not (home / "__init__.py").exists()


def test_types_are_shipped() -> None:
    tops = [path for name, path in packages_on_disk().items() if "." not in name]
    assert [top for top in tops if not (top / "py.typed").exists()] == []


def test_the_files_of_the_web_page_are_shipped(setup_cfg: configparser.ConfigParser) -> None:
    """They are in a folder that is no package: undeclared, the wheel would have a port without its page."""
    assert setup_cfg["options.package_data"]["qpid_ha_broker.server.http"] == "page/*"
    page = ROOT / "broker" / "qpid_ha_broker" / "server" / "http" / "page"
    assert {path.suffix for path in page.iterdir() if path.is_file()} == {".html", ".css", ".js"}
    assert set(read_page_files()) == {"/"} | {f"/page/{path.name}" for path in page.iterdir() if path.suffix != ".html"}


def test_what_monitors_take_is_shipped(setup_cfg: configparser.ConfigParser) -> None:
    """Alert rules, dashboard and load balancer: whoever has installed a package has no checkout to take them from."""
    declared = dict(setup_cfg["options.data_files"])
    shipped = {path for where, what in declared.items() if "/contrib" in where for path in ROOT.glob(what)}
    assert shipped == {path for path in (ROOT / "contrib").rglob("*") if path.is_file()}
    kept = {f"share/qpid-ha/{path.parent.relative_to(ROOT)}" for path in shipped}
    assert kept == {where for where in declared if "/contrib" in where}, "each in the folder that it has here"


def test_every_command_has_its_function(setup_cfg: configparser.ConfigParser) -> None:
    commands = mapping(setup_cfg["options.entry_points"]["console_scripts"])
    packages = packages_on_disk()
    for target in commands.values():
        module, function = target.split(":")
        package, _, name = module.rpartition(".")
        tree = ast.parse((packages[package] / f"{name}.py").read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, target


def test_the_wheel_for_applications_has_the_client_and_wants_proton_alone(setup_cfg: configparser.ConfigParser) -> None:
    slim = configparser.ConfigParser()
    slim.read(ROOT / "client" / "setup.cfg", encoding="utf-8")
    packages = [name for name in setup_cfg["options"]["packages"].split() if name.startswith("qpid_ha_client")]
    assert slim["options"]["packages"].split() == packages
    (proton,) = words(slim["options"]["install_requires"])
    assert proton in words(setup_cfg["options"]["install_requires"])
    assert proton.startswith("python-qpid-proton")
    assert qpid_ha_client.__version__ == qpid_ha_broker.__version__
    assert slim["options"]["python_requires"] == setup_cfg["options"]["python_requires"]


def words(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_wheel_for_analyses_wants_what_this_one_wants(setup_cfg: configparser.ConfigParser) -> None:
    slim = configparser.ConfigParser()
    slim.read(ROOT / "pipeline" / "setup.cfg", encoding="utf-8")
    extras = setup_cfg["options.extras_require"]
    offered = {*words(setup_cfg["options"]["install_requires"]), *words(extras["pipeline"])}
    assert set(words(slim["options"]["install_requires"])) < offered
    assert set(words(extras["pipeline"])) <= set(words(slim["options"]["install_requires"]))
    for extra, wanted in slim["options.extras_require"].items():
        assert words(wanted) == words(extras[extra])
    assert set(slim["options"]["packages"].split()) < set(setup_cfg["options"]["packages"].split())
    for option in ("version", "license"):
        assert slim["metadata"][option] == setup_cfg["metadata"][option]
    assert slim["options"]["python_requires"] == setup_cfg["options"]["python_requires"]


def test_whichever_unit_is_enabled_has_the_one_name_that_the_pages_use() -> None:
    """`systemctl stop qpidd` does nothing where the agent's unit runs, and to start qpidd then stops the agent."""
    for name in ("qpidd", "qpid-ha-agent"):
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read(ROOT / "systemd" / f"{name}.service", encoding="utf-8")
        assert unit["Install"]["Alias"] == "qpid-ha.service"
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
    wrong = re.compile(r"systemctl (?:stop|start|restart) (?:qpidd|qpid-ha-agent)\b(?!` where)")
    assert {name: wrong.findall(text) for name, text in pages.items() if wrong.search(text)} == {}


def test_who_installs_it_gets_no_plugin_for_tests_of_their_own(setup_cfg: configparser.ConfigParser) -> None:
    assert "pytest11" not in setup_cfg["options.entry_points"]


def test_what_is_typed_about_units_names_those_that_the_package_installs() -> None:
    """systemctl by the one name that whichever is enabled has; the journal, which knows no such name, by both."""
    units = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "systemd").glob("*.service")}
    aliases = {re.search(r"^Alias=(\S+)\.service$", text, re.MULTILINE)[1] for text in units.values()}  # type: ignore[index]
    assert aliases == {UNIT}
    assert set(re.findall(r"-u (\S+)", JOURNAL)) == set(units)
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(path for home in HOMES for path in home.rglob("*.py")),
        ROOT / "README.md",
    ]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for unit in re.findall(r"systemctl (?:start|stop|restart|status) ([a-z][a-z-]*)", text):
            assert unit in (UNIT, "corosync"), page
        for units_of_journal in re.findall(r"journalctl((?: -u [\w'*-]+)+)", text):
            assert f"journalctl{units_of_journal}" in (JOURNAL, "journalctl -u corosync"), page
