"""What the Debian package is made from, as far as that can be told without building it; `./dev package --test` does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import yaml

import command_pages
from certificate_authority import Authority
from qpid_ha_config.loading import load_settings
from qpid_ha_config.settings import TABLE

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
UNITS = sorted((ROOT / "systemd").glob("*.service"))
BUILD = (PACKAGING / "build").read_text(encoding="utf-8")


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)


def all_commands() -> list[click.Context]:
    return [
        context
        for name, command in command_pages.programs().items()
        for context in command_pages.contexts(command, name)
    ]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pages")
    command_pages.write_pages(root)
    return root


# --- man pages and completion


def test_each_command_has_a_page_with_each_of_its_options(pages: Path) -> None:
    commands = all_commands()
    assert {"qpidd", "qpid-ha queue create", "qpid-ha-agent run"} <= {context.command_path for context in commands}
    for context in commands:
        text = (pages / command_pages.MANUAL.format(command_pages.page_name(context))).read_text(encoding="utf-8")
        options = [option for option in context.command.get_params(context) if isinstance(option, click.Option)]
        shown = text.replace("\\-", "-")
        assert [name for option in options if not option.hidden for name in option.opts if name not in shown] == []
    assert len(list((pages / "usr/share/man/man1").iterdir())) == len(commands)
    settings = (pages / command_pages.SETTINGS_MANUAL).read_text(encoding="utf-8")
    assert all(f".B {command_pages.roff(key)}\n" in settings for key in TABLE)


def test_no_line_of_a_page_is_taken_for_a_request() -> None:
    assert command_pages.roff(".TH is 'quoted'\n'a\\b --c") == "\\&.TH is 'quoted'\n\\&'a\\eb \\-\\-c"


@pytest.mark.parametrize("program", ["qpidd", "qpid-ha", "qpid-ha-agent"])
def test_bash_takes_the_completion(pages: Path, program: str) -> None:
    script = pages / command_pages.COMPLETIONS["bash"].format(program)
    found = run("bash", "-c", f". '{script}' && complete -p {program}")
    assert (found.returncode, found.stderr) == (0, "")
    for shell in ("zsh", "fish"):
        assert program in (pages / command_pages.COMPLETIONS[shell].format(program)).read_text(encoding="utf-8")


# --- systemd


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    assert program, "systemd-analyze is missing: ./dev setup installs it (package systemd)"
    return run(program, *arguments)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_understood_and_exposes_little(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert command, text
    assert command[1] in {"/opt/qpid-ha/bin/qpidd", "/opt/qpid-ha/bin/qpid-ha-agent"}
    copy = tmp_path / unit.name
    copy.write_text(text.replace(command[1], "/bin/true"), encoding="utf-8")  # it is not installed here
    found = analyze("verify", "--man=no", copy)
    assert (found.returncode, found.stderr) == (0, "")
    found = analyze("security", "--offline=true", "--threshold=30", copy)
    assert found.returncode == 0, found.stdout


# --- control files


def test_each_script_of_the_package_is_sound_and_built_in() -> None:
    scripts = {"preinst", "postinst", "prerm", "postrm"}
    assert {path.name for path in (PACKAGING / "debian").iterdir()} == {*scripts, "control.in"}
    for name in scripts:
        path = PACKAGING / "debian" / name
        assert os.access(path, os.X_OK)
        assert run("sh", "-n", path).returncode == 0
        assert "\nset -e\n" in path.read_text(encoding="utf-8")


def test_the_control_file_has_what_a_package_needs() -> None:
    text = (PACKAGING / "debian" / "control.in").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", text, re.MULTILINE))
    assert {"Package", "Version", "Architecture", "Maintainer", "Depends", "Description"} <= fields.keys()
    assert {"libsasl2-modules", "iproute2", "procps"} <= {word.strip() for word in fields["Depends"].split(",")}
    assert set(re.findall(r"@(\w+)@", text)) == set(re.findall(r"/@(\w+)@/", BUILD))


def test_the_package_takes_all_there_is_for_the_system() -> None:
    """What is named by pattern there cannot be forgotten; the rest is named by itself."""
    assert '"$checkout"/rgmanager/qpidd*' in BUILD
    assert '"$checkout"/systemd/*.service' in BUILD
    for path in (*(ROOT / "systemd").iterdir(), *(ROOT / "rgmanager").iterdir(), *(ROOT / "ocf").iterdir()):
        assert path.suffix == ".service" or path.name.startswith("qpidd") or f"{path.parent.name}/{path.name}" in BUILD
    for path in (PACKAGING / "etc").iterdir():
        assert f"$parts/etc/{path.name}" in BUILD
    assert 'ln -s /opt/qpid-ha/share/qpid-ha/contrib "$root/usr/share/doc/qpid-ha/contrib"' in BUILD


# --- configuration


def test_the_configuration_as_it_comes_listens_on_loopback_alone() -> None:
    settings = load_settings(PACKAGING / "etc" / "qpid-ha.yaml", {}, {})
    assert [listener.host for listener in settings.listen] == ["127.0.0.1"]
    assert settings.data_dir == Path("/var/lib/qpid-ha")


def test_its_examples_are_settings_that_a_broker_takes(tmp_path: Path) -> None:
    text = (PACKAGING / "etc" / "qpid-ha.yaml").read_text(encoding="utf-8")
    examples = re.sub(r"(?m)^#(?! )|^#(?=  \S)", "", text)
    lines = [line for line in examples.splitlines() if not line.startswith(("listen: [amqp:", "#"))]
    Authority(tmp_path).issue("node1")  # node1.pem, node1.key and ca.pem
    for name in ("users.sasldb", "replicator.password"):
        (tmp_path / name).write_text("secret", encoding="utf-8")
        (tmp_path / name).chmod(0o600)
    raw = yaml.safe_load("\n".join(lines).replace("/etc/qpid-ha", str(tmp_path)))
    assert set(raw) == {"name", "listen", "data-dir", "auto-create", "tls", "sasl", "acl", "ha"}
    (tmp_path / "all.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert load_settings(tmp_path / "all.yaml", {}, {}).ha.cluster


# --- containers


def test_the_compose_file_has_three_brokers_that_name_each_other() -> None:
    services = yaml.safe_load((PACKAGING / "container" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    listening, peers = [], []
    for name, service in services.items():
        file, target, _mode = service["volumes"][0].split(":")
        assert target == "/etc/qpid-ha/qpid-ha.yaml"
        settings = load_settings(PACKAGING / "container" / file, {}, {})
        assert settings.name == name
        listening += [(one.host, one.port) for one in settings.listen]
        peers.append([(one.host, one.port) for one in settings.ha.brokers_url])
    assert len(services) == 3
    assert peers == [listening] * 3


def test_what_catches_up_is_healthy_in_a_container_and_whether_it_is_ready_can_be_asked() -> None:
    """The health check is about life, and not about readiness: who restarts by it may restart no backup."""
    image = (PACKAGING / "container" / "Containerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r'^HEALTHCHECK .*CMD \["(.*)"\]$', image, re.MULTILINE)
    assert command.split('", "') == ["qpid-ha", "ping"]
    services = yaml.safe_load((PACKAGING / "container" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    asked = []
    for name, service in services.items():
        assert service["healthcheck"]["test"] == ["CMD", "qpid-ha", "ping"]
        (port,) = load_settings(PACKAGING / "container" / f"{name}.yaml", {}, {}).admin.listen
        asked.append((port.host, port.port))
    assert asked == [("127.0.0.1", 8672 + number) for number in range(3)]
