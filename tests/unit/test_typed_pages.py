"""What the pages show to be typed or put into a file is read by whoever would read it, without running anything.

A block between fences says what it is: commands (`sh`) are parsed by the programs' own command lines, configurations of
brokers, definitions and rules of access by their loaders, Python is compiled and its imports are looked up. Programs
that are not ours have a row in `OTHERS`, with the reason why they are not run here; so has what another test runs.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pytest
import yaml

from doc_blocks import ROOT, Block, blocks_of, pages, titled_blocks, without_blocks
from python_names import problems_of
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.ocf.main import ACTIONS
from qpid_ha_broker.definitions.document import read_definitions
from qpid_ha_broker.ha.record_keeper import COORDINATOR, controller_of
from qpid_ha_config.access_rules import parse_entries, parse_lines
from qpid_ha_config.configuration import WrittenSettings
from qpid_ha_config.errors import ConfigError, SettingsError
from qpid_ha_config.reference import entry
from qpid_ha_config.settings import TABLE, BrokerSettings, find
from shell_lines import commands_of
from typed_commands import parse

PLACES = {
    "$node": "node1", "...": "ha.brokers-url=amqp://a:5672", "HOST:PORT": "node1:5672", "KIND": "sets", "N": "3",
    "JOB": "audit", "NAME": "proxy",
}  # fmt: skip
"""What a page leaves open, and something in its place."""
HOMES = (".venv/bin/", "/opt/qpid-ha/bin/", "/usr/local/bin/")
"""Where our programs are installed; the scripts of rgmanager/ are in `SCRIPTS`."""
SCRIPTS = "/usr/local/lib/qpid-ha/"
OTHERS = {
    "apt-get": "changes this system; packaging/test runs it in one of its own",
    "ccs_config_validate": "of rgmanager, which no system here has any more",
    "cat": "test_tutorial types it",
    "cd": "the shell's",
    "chkconfig": "of rgmanager's systems",
    "chmod": "files of an installation",
    "chown": "files of an installation",
    "clustat": "of rgmanager, which no system here has any more",
    "clusvcadm": "the same; test_rgmanager_doc has its services and nodes",
    "cman_tool": "of rgmanager, which no system here has any more",
    "cp": "files of an installation",
    "crm": "of Pacemaker; test_pacemaker_doc types the blocks with a title",
    "crm_attribute": "of Pacemaker; the lab uses it",
    "crm_mon": "of Pacemaker; the lab uses it",
    "crm_resource": "of Pacemaker; the lab uses it",
    "curl": "test_tutorial types it",
    "du": "the system's",
    "editor": "a person's",
    "etcdctl": "of etcd; test_etcd_coordinator makes such users",
    "export": "the shell's",
    "grep": "test_tutorial types it",
    "install": "files of an installation; what is installed is looked for",
    "ip": "the system's",
    "jobs": "test_tutorial types it",
    "journalctl": "of systemd",
    "kill": "test_tutorial types it",
    "kubectl": "of Kubernetes, of which no cluster is here; test_kubernetes_files reads what it is given",
    "ln": "files of an installation",
    "mkdir": "the system's",
    "mv": "files of an installation",
    "nft": "changes the firewall of this machine",
    "openssl": "test_tls types the blocks with a title",
    "pcs": "of Pacemaker; test_pacemaker_doc types the blocks with a title",
    "pgrep": "the system's",
    "pkill": "the system's",
    "pip": "takes from an index; test_client_wheel and packaging/test build and install the wheels",
    "podman-compose": "makes containers",
    "ps": "the system's",
    "pytest": "runs tests that somebody else has written",
    "rabbitmqctl": "of RabbitMQ",
    "rm": "test_tutorial types it",
    "sed": "test_tutorial types it",
    "service": "of rgmanager's systems",
    "sh": "the system's",
    "spark-submit": "of Spark, with a cluster of it",
    "systemctl": "of systemd; its units are looked for",
    "systemd-sysusers": "makes users of this system",
    "systemd-tmpfiles": "makes directories of this system",
    "tar": "the system's",
    "tee": "the system's",
    "usermod": "changes a user of this system",
    "vagrant": "makes virtual machines",
    "vi": "a person's",
    "wait": "test_tutorial types it",
}
"""Programs whose command lines are not ours, and why they are not run here."""
LANGUAGES_OF_OTHERS = {
    "cpp": "tests/integration/cpp has the same, compiled",
    "crmsh": "test_pacemaker_doc",
    "js": "tests/integration/node has clients that do the same",
    "mermaid": "test_states_doc",
    "pcs": "test_pacemaker_doc",
    "sql": "test_pipeline_doc",
    "text": "what a command prints, and drawings",
}
"""Languages that are not read here, and who does."""
UNITS = {path.name for path in (ROOT / "systemd").glob("*.service")} | {"qpid-ha.service"}
SHIPPED = {
    "/var/log/qpid-ha/*.log {": "packaging/etc/logrotate",
    "# /etc/corosync/uidgid.d/qpid-ha": "systemd/qpid-ha.uidgid",
}
"""Files that a page shows and packages have: by the first line there."""
TOP_KEYS = {key.partition(".")[0] for key in TABLE} | set(TABLE)
"""Keys with which a configuration of a broker begins."""
GIVEN_NAMES = {"clients.md": {"container"}, "management.md": {"connection", "requests", "Message"}}
"""By page: what Python on it takes from the text around it."""


def blocks(*languages: str) -> list[Block]:
    return [block for page in pages() for block in blocks_of(page) if block.language in languages]


def named(found: list[Block]) -> list[object]:
    return [pytest.param(block, id=block.name) for block in found]


# --- every block is of a kind


def test_every_block_says_what_it_is() -> None:
    read_here = {"sh", "yaml", "python", "json", "acl", "ini", "conf"}
    unknown = [
        f"{block.name}: {block.language or 'nothing'}"
        for page in pages()
        for block in blocks_of(page)
        if block.language not in read_here | set(LANGUAGES_OF_OTHERS)
    ]
    assert unknown == []
    shown = {block.language for page in pages() for block in blocks_of(page)}
    assert set(LANGUAGES_OF_OTHERS) <= shown, "a language that no page has any more"


# --- commands


def _of_click(module: str) -> Callable[[], click.Command]:
    @cache
    def command() -> click.Command:
        found = import_module(module).main
        assert isinstance(found, click.Command)
        return found

    return command


def _agent() -> click.Command:
    agent = import_module("qpid_ha_agent.cli.agent").agent
    assert isinstance(agent, click.Command)
    return agent


OURS: dict[str, Callable[[], click.Command]] = {
    "qpid-ha": lambda: admin,
    "qpid-ha-agent": _agent,
    "qpidd": _of_click("qpid_ha_broker.server.command_line"),
    "qpid-ha-pipeline": _of_click("qpid_ha_pipeline.main"),
}
VERBS: dict[str, Callable[[], click.Command] | None] = {
    "setup": None, "lint": None, "lab": None, "times": None, "package": None, "help": None,
    "demo": _of_click("qpid_ha_demo.__main__"),
    "test": _of_click("suite.__main__"),
    "bench": _of_click("bench.__main__"),
    "fuzz": _of_click("fuzz.__main__"),
    "soak": _of_click("bench.sets_soak"),
    "simulate": _of_click("simulation.__main__"),
}  # fmt: skip
"""Of ./dev; None: without options of Python's."""
OF_DEV = {"--pipeline"}
"""Options that ./dev takes out before."""


def check_command(words: list[str]) -> None:
    """Raises click.UsageError, or AssertionError."""
    program, *rest = words
    for home in HOMES:
        program = program.removeprefix(home)
    rest = [as_typed(word) for word in rest]
    if program in OURS:
        _parse(OURS[program](), rest)
    elif program == "./dev":
        _check_verb(rest)
    elif program in ("python", "python3"):
        _check_python(rest)
    elif program.startswith(SCRIPTS):
        assert (ROOT / "rgmanager" / program.removeprefix(SCRIPTS)).is_file(), f"{program} is not there"
    elif "/" in program:
        assert (ROOT / program).is_file(), f"{program} is not there"
    else:
        assert program in OTHERS, f"{program}: neither ours, nor in the table"
    check_files(words)
    if program == "systemctl":
        units = [word for word in rest if not word.startswith("-")][1:]
        assert {f"{unit.removesuffix('.service')}.service" for unit in units} <= UNITS


def check_script(script: str) -> None:
    """All of its commands."""
    for words in commands_of(script):
        check_command(words)


def as_typed(word: str) -> str:
    """With something in the places of what the page leaves open."""
    for place, value in PLACES.items():
        word = word.replace(place, value) if place in ("$node", "...") else value if word == place else word
    return word


def _parse(command: click.Command, words: list[str]) -> None:
    with suppress(click.exceptions.Exit):  # --help, --version
        parse(command, words)


def _check_verb(words: list[str]) -> None:
    verb, *rest = words
    if verb == "test" and [word for word in rest if not word.startswith("-")]:
        return  # paths and options go to pytest
    assert verb in VERBS, f"./dev has no verb {verb}"
    command = VERBS[verb]
    if command is not None:
        _parse(command(), [word for word in rest if word not in OF_DEV])


def _check_python(words: list[str]) -> None:
    """Of `python -c TEXT` and `python -m timeit [-s TEXT] TEXT`."""
    if words[:1] == ["-c"]:
        assert problems_of(words[1]) == []
    elif words[:2] == ["-m", "timeit"]:
        text = "\n".join(word for word in words[2:] if word not in ("-s", "-p"))
        assert "$setup" in text or problems_of(text) == []


def check_files(words: list[str]) -> None:
    """What a command takes from a checkout, or from what packages put on a machine, is there."""
    data_files = configparser.ConfigParser()
    data_files.read(ROOT / "setup.cfg", encoding="utf-8")
    shipped = {
        f"/opt/qpid-ha/{where}/{path.name}"
        for where, patterns in data_files["options.data_files"].items()
        for pattern in patterns.split()
        for path in ROOT.glob(pattern)
    }
    for word in words:
        if word.startswith("/opt/qpid-ha/share/"):
            assert word in shipped, f"no package has {word}"
        elif re.fullmatch(r"\./(client|pipeline)|(packaging|vagrant|docs|tests|contrib|systemd|rgmanager)/\S*", word):
            assert (ROOT / word).exists(), f"{word} is not there"


def test_a_wrong_option_command_verb_program_unit_or_file_is_found() -> None:
    for script in (
        "qpid-ha queue list --soort messages", "qpid-ha queue lists", "ssh node1 'qpid-ha status --al'",
        "runuser -u qpid-ha -- qpidd --chek", "qpid-ha status --wait soon", "for a in b; do qpid-ha promot; done",
        "qpid-ha-agent run", "qpid-ha-pipeline audits x", "cd x && ./dev tst", "./dev demo --twice", "sudoku",
        "systemctl stop qpid-hah", "cp /opt/qpid-ha/share/qpid-ha/none /etc", "vagrant/provision/nothing.sh",
        "python -c 'import qpid_ha_brokers'", "python -c 'print(x)'", "X=1 qpid-ha $(qpid-ha nothing)",
    ):  # fmt: skip
        with pytest.raises((click.UsageError, AssertionError)):
            check_script(script)


def test_the_pages_show_commands() -> None:
    found = [words[0] for block in blocks("sh") for words in commands_of(block.text)]
    assert len(found) > 200
    assert {"qpid-ha", "qpidd", "qpid-ha-agent", "qpid-ha-pipeline", "./dev"} <= set(found)
    names = {word.rpartition("/")[2] for word in found}
    assert set(OTHERS) - names <= {"du", "ps"}, "a program that no page has any more"


@pytest.mark.parametrize("block", named(blocks("sh")))
def test_a_command_that_a_page_shows_is_one(block: Block) -> None:
    for words in commands_of(block.text):
        try:
            check_command(words)
        except click.UsageError as error:
            pytest.fail(f"{shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("block", named(blocks("text")))
def test_a_command_in_what_a_program_prints_is_one(block: Block) -> None:
    for line in re.findall(r"^\s*(qpid-ha(?:-agent|-pipeline)? .*)", block.text, re.MULTILINE):
        check_script(line)


INLINE = re.compile(r"`((?:qpid-ha(?:-agent|-pipeline)?|qpidd|\./dev) [^`]+)`")
REFUSALS = "".join([*COORDINATOR, *controller_of("orders")])
"""What members of resource sets refuse with: it names commands, too."""


def mentions(text: str) -> list[str]:
    """Commands in sentences, which may leave out what a command is about."""
    return list(dict.fromkeys(INLINE.findall(text.replace("\n", " "))))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_commands_that_sentences_name_are_some(page: Path) -> None:
    for text in [*mentions(without_blocks(page)), *mentions(REFUSALS)]:
        check_mention(text)


def check_mention(text: str) -> None:
    program, *words = shlex.split(text)
    if program == "qpid-ha-agent" and words[0] in ACTIONS:
        return
    try:
        check_command([program, *words])
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        pass
    except click.UsageError as error:
        if not (isinstance(error, click.BadOptionUsage) and "requires an argument" in error.message):
            pytest.fail(f"{text}: {error.format_message()}")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_no_page_asks_again_and_again_without_an_end(page: Path) -> None:
    """A login that is refused would be refused for ever: `status --expect STATE --wait DURATION` ends."""
    lines = [line for block in blocks_of(page) if block.language == "sh" for line in block.text.splitlines()]
    assert [line for line in lines if re.search(r"\b(until|while)\b.*qpid-ha", line)] == []


# --- files


def test_every_file_of_yaml_is_of_a_kind() -> None:
    assert [block.name for block in blocks("yaml") if kind_of(block) is None] == []


def kind_of(block: Block) -> str | None:
    """Who reads it: a broker, an import of definitions, or Prometheus."""
    keys = set(yaml.safe_load(block.text))
    if "scrape_configs" in keys:
        return "prometheus"
    if "format" in keys:
        return "definitions"
    return "settings" if keys <= TOP_KEYS else None


BESIDE = {"tls": {"certificate": "/etc/qpid-ha/node1.crt", "key": "/etc/qpid-ha/node1.key"}}
"""What the files have beside what a page shows of them, where it does not show where the broker listens."""


def of_kind(kind: str) -> list[object]:
    return named([block for block in blocks("yaml") if kind_of(block) == kind])


@pytest.mark.parametrize("block", of_kind("settings"))
def test_a_broker_can_use_the_settings_that_a_page_shows(block: Block, tmp_path: Path) -> None:
    """Files of the machine are not looked for."""
    check_settings(block.text, tmp_path / "qpid-ha.yaml")


def check_settings(text: str, file: Path) -> BrokerSettings:
    """As a start reads them. Raises ConfigError, SettingsError."""
    shown = yaml.safe_load(text)
    file.write_text(text if "listen" in shown else yaml.safe_dump({**BESIDE, **shown}), encoding="utf-8")
    written = WrittenSettings.read(file)
    written.check_each()
    if "workers" in shown:
        written = WrittenSettings.of_flags({"worker": 1}).over(written)
    with written.blamed():
        settings = BrokerSettings.from_values(written.of_worker().values)
        if settings.access.rules is not None:
            parse_entries(settings.access.rules)
    return settings


def test_a_key_that_is_none_a_wrong_value_and_settings_that_do_not_fit_are_found(tmp_path: Path) -> None:
    for text in ("nam: node1", "ha: {cluster: perhaps}", "ha: {cluster: true}", "acl: {rules: [alow all all]}",
                 'address-rules: [{address: "{a}", que: "{a}"}]', "remote-nodes: {orders: {user: x}}"):  # fmt: skip
        with pytest.raises((ConfigError, SettingsError)):
            check_settings(text, tmp_path / "wrong.yaml")


@pytest.mark.parametrize("block", of_kind("definitions"))
def test_definitions_that_a_page_shows_can_be_imported(block: Block) -> None:
    shown = yaml.safe_load(block.text)
    read = read_definitions(block.name, block.text).as_document()
    assert {name: len(read[name]) for name in shown if name != "format"} == {
        name: len(entries) for name, entries in shown.items() if name != "format"
    }


@pytest.mark.parametrize("block", of_kind("prometheus"))
def test_prometheus_is_pointed_at_files_that_there_are(block: Block) -> None:
    for path in re.findall(r"# (contrib/\S+)", block.text):
        assert (ROOT / path).is_file()


@pytest.mark.parametrize("block", named(blocks("acl")))
def test_rules_of_access_that_a_page_shows_are_some(block: Block) -> None:
    """Groups are those of the page."""
    groups = [
        line
        for other in blocks_of(block.page)
        if other.language == "acl" and other != block
        for line in other.text.splitlines()
        if line.startswith("group ")
    ]
    lines = [*groups, *block.text.splitlines()]
    found = parse_lines([(f"line {number}", line) for number, line in enumerate(lines, 1)])
    assert found.rules or found.limits


@pytest.mark.parametrize("block", named(blocks("json")))
def test_json_that_a_page_shows_is_json(block: Block) -> None:
    for line in block.text.splitlines():
        json.loads(line)


@pytest.mark.parametrize("block", named(blocks("ini")))
def test_entry_points_that_a_page_shows_are_of_groups_that_are_looked_into(block: Block) -> None:
    shown, ours = configparser.ConfigParser(), configparser.ConfigParser()
    shown.read_string(block.text)
    ours.read(ROOT / "setup.cfg", encoding="utf-8")
    assert set(shown["options.entry_points"]) <= set(ours["options.entry_points"])


@pytest.mark.parametrize("block", named(blocks("conf")))
def test_a_file_that_a_page_shows_is_the_one_that_packages_have(block: Block) -> None:
    def lines(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]

    shipped = ROOT / SHIPPED[block.text.splitlines()[0]]
    assert lines(block.text) == lines(shipped.read_text(encoding="utf-8"))


RUN_ELSEWHERE = {"pipeline.md": titled_blocks("pipeline.md", "python")}
"""Blocks that another test runs: test_pipeline_doc."""


@pytest.mark.parametrize("block", named(blocks("python")))
def test_python_that_a_page_shows_compiles_and_uses_what_is_there(block: Block) -> None:
    if block.title in RUN_ELSEWHERE.get(block.page.name, {}):
        compile(block.text, block.name, "exec")
        return
    assert problems_of(block.text, GIVEN_NAMES.get(block.page.name, ())) == []


# --- names of settings


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_settings_that_a_page_names_are_some(page: Path) -> None:
    assert [key for key in settings_named(without_blocks(page)) if not is_setting(key)] == []


PREFIXES = ("ha", "store", "tls", "sasl", "acl", "admin", "metrics", "sessions", "deduplication", "audit")


def settings_named(text: str) -> Iterator[str]:
    """`ha.failback`, and the same with a value behind it: `ha.failback: preferred`."""
    for found in re.finditer(rf"`((?:{'|'.join(PREFIXES)})\.[a-z-]+[a-z])(?::? [^`]*)?`", text):
        yield found[1]


def is_setting(key: str) -> bool:
    try:
        find(key)
    except SettingsError:
        return False
    return True


def defaults_shown(page: Path) -> Iterator[tuple[str, str]]:
    """(key, default) of tables that begin with those two, but for settings.md, which is made from the settings."""
    is_of_settings = False
    for line in without_blocks(page).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if not line.startswith("|"):
            is_of_settings = False
        elif cells[:2] == ["key", "default"]:
            is_of_settings = True
        elif is_of_settings and not cells[0].startswith("---"):
            yield from ((key, cells[1]) for key in re.findall(r"`([a-z.-]+)`", cells[0]) if not key.startswith("-"))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_defaults_that_a_page_shows_are_those_of_the_settings(page: Path) -> None:
    for key, shown in defaults_shown(page):
        row = find(key)
        default = row.default() if callable(row.default) else row.default
        text = re.split(r"[:;]", shown)[0].replace("`", "").replace(",", "")
        if text.startswith("half of "):
            assert entry(row.setting.key).default == text
        elif text in ("", "none"):
            assert not default or row.setting.show(default) == text, f"{key} is {default}"
        else:
            assert row.setting.read(text.replace(" ", "")) == default, f"{key} is not {shown}"


def test_tables_of_settings_are_found_and_so_is_a_name_that_is_none() -> None:
    assert sum(len(list(defaults_shown(page))) for page in pages()) > 60
    assert [key for key in settings_named("`ha.failback: preferred`, `ha.faliback`") if not is_setting(key)] == [
        "ha.faliback"
    ]
