"""What this machine tells of its broker: the configuration file, the disk, certificates, processes, the log."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from qpid_ha_agent.broker_process import BrokerProcess, BrokerProcessError, find_pid
from qpid_ha_agent.service import DEFAULT_LOG_DIRECTORY
from qpid_ha_broker.coordination.pause import is_heeded_with
from qpid_ha_broker.diagnosis.facts import LocalProcess, MachineState, Supervisor
from qpid_ha_broker.diagnosis.machine_looks import CERTIFICATES, look_at_certificates, with_disk
from qpid_ha_config.access_rules import read_file
from qpid_ha_config.configuration import WrittenSettings
from qpid_ha_config.defaults import control_socket
from qpid_ha_config.errors import ConfigError, ForbiddenConfig, UnreadableConfig

LAST_LINES: Final = 3
LINE_LENGTH: Final = 200
TAIL_BYTES: Final = 64 * 1024
_JOURNAL_TIMEOUT_S: Final = 2.0
_UNITS: Final = ("qpidd", "qpid-ha-agent")
_SECRET_FILES: Final = (
    "ha.password-file",
    "tls.key",
    "sasl.users-db",
    "admin.tokens",
    "ha.coordinator-password-file",
    "ha.coordinator-key",
)
_AGENTS: Final = ("qpid-ha-agent", "qpid_ha_agent.cli.agent", "qpid_ha_agent.cli.quick")


@dataclass
class LookedAt:
    """What was found, as far as it was looked at when the time is over, and what could not be looked at."""

    state: MachineState = field(default_factory=MachineState)
    written: WrittenSettings | None = None
    """What the configuration file says."""
    problems: dict[str, str] = field(default_factory=dict)


def read_written(path: Path, looked: LookedAt) -> None:
    """The configuration file, without whether all of it goes together."""
    looked.state = replace(looked.state, config=str(path))
    try:
        written = WrittenSettings.read(path)
        looked.state = replace(looked.state, name=written.get("name"), supervisor=_supervisor(written))
        looked.written = written
    except (ForbiddenConfig, UnreadableConfig) as error:
        looked.problems["the configuration"] = str(error)
    except ConfigError as error:
        looked.state = replace(looked.state, config_problem=str(error))


def socket_of(written: WrittenSettings) -> Path:
    """Where the broker of this configuration has its control socket. Raises ConfigError."""
    socket: Path = written.get("control-socket") if written.has("control-socket") else Path()
    return socket if written.has("control-socket") else control_socket(written.get("name"))


def look_at_machine(looked: LookedAt, environment: Mapping[str, str]) -> None:
    """All but the broker's process, of the configuration that was read."""
    written = looked.written
    if written is None:
        return
    with suppress(ConfigError):  # the check of the configuration says it
        _look_at_disk(looked, written.get("data-dir"))
    _look_at_certificates(looked, written)
    _check_rules(looked, written)
    _check_configuration(looked, written, environment)
    if looked.state.supervisor is Supervisor.AGENT:
        looked.state = replace(looked.state, has_agent=_is_agent_running(looked.state.config))


def _supervisor(written: WrittenSettings) -> Supervisor:
    """Raises ConfigError."""
    url = written.coordinator_settings().url
    if url.property_set is not None:
        return Supervisor.PACEMAKER
    return Supervisor.AGENT if written.get("ha.cluster") and is_heeded_with(url) else Supervisor.SYSTEMD


def _look_at_disk(looked: LookedAt, data_dir: Path | None) -> None:
    if data_dir is None:
        return
    try:
        looked.state = with_disk(looked.state, data_dir)
    except OSError as error:
        looked.state = replace(looked.state, data_dir=str(data_dir))
        looked.problems[str(data_dir)] = error.strerror or str(error)


def _look_at_certificates(looked: LookedAt, written: WrittenSettings) -> None:
    paths: dict[str, Path] = {}
    for key in CERTIFICATES:
        with suppress(ConfigError):
            path: Path | None = written.get(key)
            if path is not None:
                paths[key] = path
    look = look_at_certificates(paths)
    looked.state = replace(looked.state, certificates=look.ends)
    looked.problems |= look.problems


def _check_rules(looked: LookedAt, written: WrittenSettings) -> None:
    with suppress(ConfigError):
        path: Path | None = written.get("acl.file")
        if path is None or (path.exists() and not os.access(path, os.R_OK)):
            return
        try:
            read_file(path)
        except ConfigError as error:
            looked.state = replace(looked.state, acl_problem=str(error))


def _check_configuration(looked: LookedAt, written: WrittenSettings, environment: Mapping[str, str]) -> None:
    """As the broker does when it starts; who may not read its secrets cannot tell."""
    from qpid_ha_config.loading import load_each

    closed = []
    with suppress(ConfigError):
        paths: list[Path | None] = [written.get(key) for key in _SECRET_FILES]
        closed = [str(path) for path in paths if path is not None and path.exists() and not os.access(path, os.R_OK)]
    if closed:
        looked.problems["whether the configuration is right"] = f"we may not read {', '.join(closed)}: run this as root"
        return
    try:
        load_each(Path(looked.state.config), {}, environment)
    except ConfigError as error:
        if not (looked.state.acl_problem and error.key == "acl.file"):
            looked.state = replace(looked.state, config_problem=str(error))


# --- processes


def look_at_process(looked: LookedAt, timed_out: bool, is_forbidden: bool) -> None:
    """Why the broker of this machine did not answer on its control socket."""
    if looked.written is None or is_forbidden:
        return
    with suppress(ConfigError):
        path = socket_of(looked.written)
        pid, is_held = _process_at(path) if timed_out or path.exists() else (0, False)
        if pid or timed_out:
            process = LocalProcess.HELD if is_held else LocalProcess.SILENT
            looked.state = replace(looked.state, process=process, pid=pid)
            return
        lines = tuple(line[:LINE_LENGTH] for line in last_lines(looked.written, LAST_LINES))
        looked.state = replace(looked.state, process=LocalProcess.ABSENT, last_lines=lines)


def _process_at(path: Path) -> tuple[int, bool]:
    """Who listens there, and whether it was stopped by a signal; 0: nobody, or nobody can tell."""
    import psutil

    try:
        process = BrokerProcess.adopt(path)
        pid = 0 if process is None else process.pid
        if process is not None:
            process.close()
    except BrokerProcessError:  # its queue of connections is full
        pid = find_pid(path)
    with suppress(psutil.Error):
        return pid, bool(pid) and psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return pid, False


def _is_agent_running(config: str) -> bool:
    """Whether there is an agent for that file; one whose file cannot be told counts as well."""
    import psutil

    wanted = Path(config).absolute()
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "run" not in words or not any(word.rpartition("/")[2] in _AGENTS for word in words):
            continue
        named = _config_named(words)
        if not named or (Path(process.info["cwd"] or "/") / named) == wanted:
            return True
    return False


def config_of_process(pid: int) -> str:
    """The configuration file that a process of this machine was started with; empty: none, or nobody may look."""
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        named = _config_named(process.cmdline())
        return str(Path(process.cwd()) / named) if named else ""
    return ""


def _config_named(words: Sequence[str]) -> str:
    at = next((number for number, word in enumerate(words[:-1]) if word == "--config"), None)
    if at is not None:
        return words[at + 1]
    return next((word.removeprefix("--config=") for word in words if word.startswith("--config=")), "")


# --- the log


def log_paths(written: WrittenSettings) -> list[Path]:
    """Where the broker of this configuration may have written, as far as there is something. Raises ConfigError."""
    named: Path | None = written.get("log-file")
    paths = [*([named] if named is not None else []), DEFAULT_LOG_DIRECTORY / f"{written.get('name')}.log"]
    return [path for path in paths if path.is_file()]


def last_lines(written: WrittenSettings, count: int) -> list[str]:
    """The end of its log: of a file, else of systemd's journal. Raises ConfigError."""
    for path in log_paths(written):
        with suppress(OSError):
            lines = [line for line in tail_of(path, TAIL_BYTES).splitlines() if line.strip()]
            if lines:
                return lines[-count:]
    return list(deque(journal_lines(count), count))


def tail_of(path: Path, most_bytes: int) -> str:
    """The last whole lines of a file, in so many bytes. Raises OSError."""
    with path.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - most_bytes))
        content = opened.read(most_bytes)
    if size > most_bytes:
        content = content.partition(b"\n")[2]
    return content.decode("utf-8", errors="replace")


def journal_lines(count: int, timeout_s: float = _JOURNAL_TIMEOUT_S) -> list[str]:
    """Of our units in systemd's journal; none where there is no journal, or nothing of ours in it."""
    if shutil.which("journalctl") is None:
        return []
    units = [word for unit in _UNITS for word in ("-u", unit)]
    command = ["journalctl", "--quiet", "--no-pager", *units, "-n", str(count)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
