"""The scripts that make a node, the Vagrantfile, the systemd files: as far as that can be told without a machine.

The tests of the lab run the scripts for real.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from doc_blocks import titled_blocks

ROOT = Path(__file__).resolve().parents[2]
PROVISION = ROOT / "vagrant" / "provision"
SCRIPTS = sorted(PROVISION.glob("*.sh"))
PROGRAMS = [script for script in SCRIPTS if script.name != "common.sh"]
SYSTEMD = ROOT / "systemd"


def tool(name: str, package: str) -> str:
    """Where the program is; a test that cannot do without it is skipped, and says what to install."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"NOT TESTED: {name} is missing; install {package}")
    return path


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# --- the scripts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_is_sound(script: Path) -> None:
    assert run("bash", "-n", script).stderr == ""
    found = run(tool("shellcheck", "shellcheck"), "--external-sources", "--source-path", ROOT, script)
    assert found.stdout == ""


def test_programs_can_be_run_and_the_common_part_cannot() -> None:
    executable = {script.name for script in SCRIPTS if script.stat().st_mode & stat.S_IXUSR}
    assert executable == {script.name for script in PROGRAMS}


@pytest.mark.parametrize("name", ["keys.sh", "install.sh", "packages.sh", "resources.sh"])
def test_a_script_that_needs_an_argument_says_which(name: str) -> None:
    asked = run(PROVISION / name)
    assert (asked.returncode, asked.stderr.split()[:2]) == (2, ["usage:", name])


def test_secrets_are_made_once_and_only_the_owner_may_read_them(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert run(PROVISION / "keys.sh", keys).returncode == 0
    first = {path.name: path.read_bytes() for path in keys.iterdir()}
    assert run(PROVISION / "keys.sh", keys).returncode == 0

    assert {path.name: path.read_bytes() for path in keys.iterdir()} == first
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in [keys, *keys.iterdir()]} == {
        "keys": 0o700,
        "corosync.authkey": 0o600,
        "replicator.password": 0o600,
    }
    assert len(first["corosync.authkey"]) == 256
    assert re.fullmatch(rb"[0-9a-f]{48}", first["replicator.password"])


def test_two_labs_have_different_secrets(tmp_path: Path) -> None:
    for lab in ("one", "two"):
        run(PROVISION / "keys.sh", tmp_path / lab)
    one, two = ((tmp_path / lab / "replicator.password").read_bytes() for lab in ("one", "two"))
    assert one != two


@pytest.mark.parametrize(
    ("address", "is_there"),
    [("10.77.0.11", True), ("10.77.0.12", True), ("10.77.0.1", False), ("77.0.11", False), ("10.77.0.13", False)],
)
def test_a_node_that_the_brokers_do_not_know_is_not_configured(tmp_path: Path, address: str, is_there: bool) -> None:
    """`tmp_path` has no secrets, so the next check ends the script before it writes anything."""
    found = run(
        PROVISION / "configure.sh",
        NODE_NAME="node1",
        NODE_ADDRESS=address,
        BROKERS_URL="amqp://10.77.0.11:5672,10.77.0.12",
        KEYS=str(tmp_path),
    )
    assert found.returncode == 1
    assert ("does not name this node's address" in found.stderr) == (not is_there), found.stderr
    assert ("replicator.password is missing: keys.sh makes it" in found.stderr) == is_there


@pytest.mark.parametrize(
    ("name", "environment", "says"),
    [
        ("configure.sh", {}, "the environment variable NODE_NAME is missing"),
        ("cluster.sh", {}, "the environment variable CLUSTER_NODES is missing"),
        ("cluster.sh", {"CLUSTER_NODES": "n1=10.0.0.1", "TOKEN": "1s"}, "'1s' is not a number of milliseconds"),
        ("resources.sh", {"VIRTUAL_IP": "10.0.0.1"}, "'10.0.0.1' is not ADDRESS/PREFIX"),
    ],
)
def test_what_is_missing_or_wrong_is_named(name: str, environment: dict[str, str], says: str, tmp_path: Path) -> None:
    arguments = ["virtual-ip"] if name == "resources.sh" else []
    found = run(PROVISION / name, *arguments, **{"KEYS": str(tmp_path), **environment})
    assert found.returncode == 1
    assert says in found.stderr


# --- Vagrant


@pytest.mark.parametrize("variant", ["pacemaker", "rgmanager"])
def test_the_vagrantfile_is_valid(variant: str, tmp_path: Path) -> None:
    found = vagrant("validate", "--ignore-provider", tmp_path=tmp_path, variant=variant)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "validated successfully" in found.stdout


def test_a_variant_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    found = vagrant("validate", "--ignore-provider", tmp_path=tmp_path, variant="heartbeat")
    assert found.returncode != 0
    assert 'QPID_HA_VARIANT: "heartbeat" is not pacemaker or rgmanager' in found.stderr


def vagrant(*arguments: str, tmp_path: Path, variant: str) -> subprocess.CompletedProcess[str]:
    """Everything that Vagrant writes goes to `tmp_path`."""
    return run(
        tool("vagrant", "vagrant"),
        *arguments,
        VAGRANT_CWD=str(ROOT / "vagrant"),
        VAGRANT_HOME=str(tmp_path / "home"),
        VAGRANT_DOTFILE_PATH=str(tmp_path / "dot"),
        VAGRANT_CHECKPOINT_DISABLE="1",
        QPID_HA_VARIANT=variant,
    )


def test_the_vagrantfile_names_what_there_is() -> None:
    """Scripts, and blocks of the documentation: it can be read without Vagrant."""
    text = (ROOT / "vagrant" / "Vagrantfile").read_text(encoding="utf-8")
    scripts = set(re.findall(r'provision\(machine, "(\w+)"', text)) | {"keys"}
    assert scripts == {script.stem for script in PROGRAMS}
    (titles,) = re.findall(r'provision\(machine, "resources", (.*),$', text, re.MULTILINE)
    assert set(re.findall(r'"([\w-]+)"', titles)) <= titled_blocks("pacemaker.md", "crmsh").keys()


def test_nothing_that_is_made_for_a_lab_can_be_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert {"/vagrant/.keys/", "/vagrant/.vagrant/", "/vagrant/.wheels/"} <= set(ignored)


# --- systemd


def test_the_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    unit = tmp_path / "qpidd.service"
    text = (SYSTEMD / "qpidd.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/qpid-ha/bin/qpidd", "/bin/true"), encoding="utf-8")  # it is not installed here
    found = run(analyze, "verify", "--man=no", unit)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_unit_gives_the_broker_no_more_than_it_needs() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(SYSTEMD / "qpidd.service", encoding="utf-8")
    service = unit["Service"]
    assert service["User"] == service["Group"] == "qpid-ha"
    assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict")
    assert service["CapabilityBoundingSet"] == ""
    assert service["ReadWritePaths"].split() == ["/run/qpid-ha", "/var/lib/qpid-ha", "/var/log/qpid-ha"]


def test_the_user_and_the_directories_are_made(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root may give directories to another user")
    for name in ("sysusers", "tmpfiles"):
        directory = tmp_path / f"usr/lib/{name}.d"
        directory.mkdir(parents=True)
        shutil.copy(SYSTEMD / f"qpid-ha.{name}", directory / "qpid-ha.conf")
    (tmp_path / "etc").mkdir()
    for name in ("sysusers", "tmpfiles"):
        options = ["--create"] if name == "tmpfiles" else []
        made = run(tool(f"systemd-{name}", "systemd"), "--root", tmp_path, *options)
        assert made.returncode == 0, made.stderr

    (entry,) = (tmp_path / "etc/passwd").read_text(encoding="utf-8").splitlines()
    name, _x, uid, gid, _comment, home, shell = entry.split(":")
    assert (name, home, shell) == ("qpid-ha", "/var/lib/qpid-ha", "/usr/sbin/nologin")
    assert "haclient" not in (tmp_path / "etc/group").read_text(encoding="utf-8")
    owned = {path: (tmp_path / path).stat() for path in ("etc/qpid-ha", "run/qpid-ha", "var/lib/qpid-ha")}
    assert {path: (stat.S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid) for path, entry in owned.items()} == {
        "etc/qpid-ha": (0o750, 0, int(gid)),
        "run/qpid-ha": (0o755, int(uid), int(gid)),
        "var/lib/qpid-ha": (0o750, int(uid), int(gid)),
    }


# --- packaging


def test_a_wheel_brings_what_install_puts_into_the_system() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    shipped = {
        f"{place}/{path.name}"
        for place, patterns in setup["options.data_files"].items()
        for pattern in patterns.split()
        for path in ROOT.glob(pattern)
    }
    wanted = re.findall(r'"\$share/([\w/.-]+)"', (PROVISION / "install.sh").read_text(encoding="utf-8"))
    assert wanted
    assert {f"share/qpid-ha/{path}" for path in wanted} <= shipped
    assert {"share/qpid-ha/rgmanager/qpidd", "share/qpid-ha/docs/pacemaker.md"} <= shipped


@pytest.mark.parametrize("path", ["ocf/qpid-ha", "rgmanager/qpidd", "rgmanager/qpidd-primary"])
def test_what_a_resource_manager_runs_has_the_run_bit(path: str) -> None:
    assert (ROOT / path).stat().st_mode & stat.S_IXUSR
