"""What is in a support bundle: each part for itself, so that one that cannot be had costs no other."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from qpid_ha_agent.diagnosis.gathering import Gathered
from qpid_ha_agent.diagnosis.machine import journal_lines, log_paths, tail_of
from qpid_ha_agent.diagnosis.questions import in_parallel
from qpid_ha_agent.support.archive import MOST_BYTES, BundleFiles
from qpid_ha_agent.support.redaction import is_secret_name
from qpid_ha_agent.support.shown_settings import shown_settings
from qpid_ha_broker.diagnosis.answers import BrokerAnswers
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.store.facts import StoreFacts
from qpid_ha_config.configuration import WrittenSettings
from qpid_ha_config.errors import ConfigError
from qpid_ha_config.settings import read_password_file

ABOUT: Final = """\
What a qpid-ha cluster looked like from one machine. index.json says what is here, what was cut, and what could not
be had.

In it are names of brokers, queues, exchanges, resource sets and users, addresses, file names, figures, settings from a
list of those that may be shown, and log lines. Not in it are messages, passwords, tokens, keys, users' databases and
rules of access control. Names may say something about your business: look through it before you hand it on.
"""
JOURNAL_LINES: Final = 5000
JOURNAL_TIMEOUT_S: Final = 10.0
MOST_FILES: Final = 10_000
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_PACKAGES: Final = ("qpid-ha", "python-qpid-proton", "aiohttp", "click", "psutil", "pyyaml", "uvloop", "kazoo")
_MEMORY: Final = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "Dirty", "Writeback")


def collect(bundle: BundleFiles, gathered: Gathered, environment: Mapping[str, str], timeout_s: float) -> None:
    """All parts but the diagnosis."""
    bundle.add_text("README.txt", ABOUT)
    for reply in gathered.answers:
        _add_answers(bundle, reply)
    written = gathered.machine.written if gathered.is_here else None
    parts: dict[str, Callable[[], None]] = {"machine": lambda: _add_machine(bundle, environment)}
    if gathered.coordinator.state.url != "none":
        parts["coordinator"] = lambda: _add_coordinator(bundle, gathered)
    if written is not None:
        parts |= {
            "configuration": lambda: _add_configuration(bundle, written),
            "logs": lambda: _add_logs(bundle, written),
            "files of data-dir": lambda: _add_files(bundle, written),
        }
    else:
        bundle.lack("configuration, logs, store", "there is none that we may read, or another broker was asked with -b")
    for name, part in parts.items():
        _guarded(bundle, name, part)
    if written is not None:
        _add_stores(bundle, written, timeout_s)


def known_secrets(
    written: WrittenSettings | None, environment: Mapping[str, str], password_file: str | None
) -> Iterator[str]:
    """The secrets that this machine has, to be taken out wherever they stand; without those that we may not read."""
    for name in ("QPID_HA_PASSWORD", "QPID_HA_TOKEN"):
        if environment.get(name):
            yield environment[name]
    files: list[Path] = [] if password_file is None else [Path(password_file).expanduser()]
    if written is not None:
        for key, value in written.values.items():
            if isinstance(value, str) and is_secret_name(key) and not key.endswith("-file"):
                yield value  # whatever a mistyped key is called
        for key in ("ha.password-file", "ha.coordinator-password-file"):
            with suppress(ConfigError):
                path: Path | None = written.get(key)
                files += [] if path is None else [path]
        for key in ("remote-nodes", "remote-brokers"):
            with suppress(ConfigError):
                files += [
                    remote.login.password_file for remote in written.get(key) if remote.login.password_file is not None
                ]
    for path in files:
        with suppress(OSError, ValueError):
            yield read_password_file(path)


def _guarded(bundle: BundleFiles, name: str, part: Callable[[], None]) -> None:
    try:
        part()
    except Exception as error:  # noqa: BLE001 - whoever asks for help has a fault already; the index names this one
        bundle.lack(name, f"{type(error).__name__}: {error}")


def _add_answers(bundle: BundleFiles, reply: BrokerAnswers) -> None:
    name = bundle.redaction.text(str((reply.status or {}).get("name") or reply.where))
    directory = f"brokers/{_UNSAFE.sub('-', name).strip('-') or 'unknown'}"
    if reply.silence:
        bundle.lack(f"{directory}: some or all answers", reply.silence)
    for method, why in reply.refused.items():
        bundle.lack(f"{directory}/{method}.json", why)
    for method, answer in reply.answers.items():
        if method == "get":
            shown = shown_settings(answer) if isinstance(answer, dict) else {}
            bundle.add_document(f"{directory}/settings.json", shown)
        elif method != "queues-again":
            bundle.add_document(f"{directory}/{method}.json", answer)


def _add_configuration(bundle: BundleFiles, written: WrittenSettings) -> None:
    shown = shown_settings(written.values)
    bundle.add_document("configuration.json", {"file": str(written.source), **shown})


def _add_coordinator(bundle: BundleFiles, gathered: Gathered) -> None:
    state = gathered.coordinator.state
    if state.problem:
        bundle.lack("coordinator.json", state.problem)
        return
    record = None if state.record is None else state.record._asdict()
    document = {"url": state.url, "moved_to": state.moved_to, "record": record, "notes": gathered.coordinator.notes}
    bundle.add_document("coordinator.json", document)


def _add_logs(bundle: BundleFiles, written: WrittenSettings) -> None:
    paths = log_paths(written)
    for path in paths:
        try:
            bundle.add_text(f"logs/{path.name}", tail_of(path, MOST_BYTES))
        except OSError as error:
            bundle.lack(f"logs/{path.name}", error.strerror or str(error))
    lines = journal_lines(JOURNAL_LINES, JOURNAL_TIMEOUT_S)
    if lines:
        bundle.add_text("logs/journal.txt", "\n".join(lines) + "\n")
    elif not paths:
        bundle.lack("logs", "there is no log file, and nothing of qpidd or qpid-ha-agent in the journal")


def _add_files(bundle: BundleFiles, written: WrittenSettings) -> None:
    """Names and sizes; nothing of what is in them. Raises OSError, ConfigError."""
    data_dir: Path | None = written.get("data-dir")
    if data_dir is None:
        bundle.lack("store", "data-dir is not set: there is no store")
        return
    lines: list[str] = []
    left_out = 0
    for directory, _, names in os.walk(data_dir, onerror=_raise):
        for name in sorted(names):
            if len(lines) == MOST_FILES:
                left_out += 1
                continue
            path = Path(directory, name)
            with suppress(FileNotFoundError):
                status = path.lstat()
                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.st_mtime))
                lines.append(f"{status.st_size:>14} {at} {oct(status.st_mode & 0o7777)} {path}")
    if left_out:
        bundle.cut["store/files.txt"] = f"{counted(left_out, 'more file')}"
    bundle.add_text("store/files.txt", "\n".join(lines) + "\n")


def _raise(error: OSError) -> None:
    raise error


def _add_stores(bundle: BundleFiles, written: WrittenSettings, timeout_s: float) -> None:
    """A large store takes minutes to read: so long nobody waits for it here."""
    data_dir: Path | None = None
    with suppress(ConfigError):
        data_dir = written.get("data-dir")
    if data_dir is None or not data_dir.is_dir():
        return
    source, stores = str(data_dir), list[StoreFacts]()

    def look() -> None:
        from qpid_ha_agent.store_sources import facts_of_source

        _guarded(bundle, "store/facts.json", lambda: stores.extend(facts_of_source(source)))

    if in_parallel({"the store": look}, time.monotonic() + timeout_s):
        bundle.lack("store/facts.json", f"it takes longer than {timeout_s:g} s to read the store: give more --timeout")
    elif "store/facts.json" not in bundle.missing:
        bundle.add_document("store/facts.json", [store.to_json() for store in stores])


def _add_machine(bundle: BundleFiles, environment: Mapping[str, str]) -> None:
    """No values of the environment, and no arguments of processes: both may have secrets in them."""
    versions = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    document = {
        "system": platform.platform(),
        "python": sys.version,
        "versions": versions,
        "processors": os.cpu_count(),
        "load": list(os.getloadavg()),
        "memory": _memory(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": sorted(name for name in environment if name.startswith("QPID_HA_")),
        "processes": list(_processes()),
    }
    bundle.add_document("machine.json", document)


def _memory() -> dict[str, str]:
    """Raises OSError."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    figures = dict(line.partition(":")[::2] for line in lines)
    return {name: figures[name].strip() for name in _MEMORY if name in figures}


def _processes() -> Iterator[dict[str, object]]:
    """Brokers and agents."""
    import psutil

    own_programs = (
        "qpidd",
        "qpid-ha-agent",
        "qpid_ha_broker.server.main",
        "qpid_ha_agent.cli.agent",
        "qpid_ha_agent.cli.quick",
    )
    for process in psutil.process_iter(["cmdline"]):
        words = [word.rpartition("/")[2] for word in process.info["cmdline"] or []]
        program = next((word for word in words if word in own_programs), None)
        if program is None:
            continue
        with suppress(psutil.Error):
            yield {
                "pid": process.pid, "program": program, "state": process.status(),
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(process.create_time())),
                "resident_bytes": process.memory_info().rss, "threads": process.num_threads(),
                "descriptors": process.num_fds(),
            }  # fmt: skip
