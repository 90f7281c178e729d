"""Where stores are: a directory of this machine, or `host:/directory` of another one, asked through the operator's ssh.

Facts are read without touching anything. Whoever changes something holds the lock that a broker would hold.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from qpid_ha_broker.events.set_names import set_name_problem
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.store.advice import host_of
from qpid_ha_broker.store.facts import FactsError, StoreFacts, set_of
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.inspection import Progress, examine, nobody_watches
from qpid_ha_broker.store.layout import SEGMENTS
from qpid_ha_broker.store.status import STATUS_FILE, holds_store_of, read_status

LOCK_FILE = "LOCK"
READ_TIMEOUT_S = 600.0
"""A large store takes minutes to read."""
_CONNECT_TIMEOUT_S = 10


class SourceError(Exception):
    """A store that cannot be looked at: where, and why."""


class SourceForbidden(SourceError):
    """The store is there, or may be, and the system does not let us at it."""


class StoreBusy(Exception):
    """A broker works on the store."""


class Found(NamedTuple):
    """What came of asking."""

    stores: list[StoreFacts]
    problems: list[SourceError]


def find_all(
    sources: Sequence[str],
    timeout_s: float | None = None,
    watch: Callable[[str], Progress] = lambda _name: nobody_watches,
    set_name: str | None = None,
) -> Found:
    """The facts of all stores, in the order given, of each source set by set; remote ones are asked at the same time.

    `set_name`: of that set only.
    """
    wanted = list(dict.fromkeys(sources))

    def ask(source: str) -> list[StoreFacts] | SourceError:
        try:
            if host_of(source)[0]:
                return ask_host(source, timeout_s or READ_TIMEOUT_S, set_name)
            return facts_of_source(source, set_name, watch(source))
        except SourceError as error:
            return error

    with ThreadPoolExecutor(max_workers=max(1, len(wanted))) as pool:
        remote = {source: pool.submit(ask, source) for source in wanted if host_of(source)[0]}
        answers = [remote[source].result() if source in remote else ask(source) for source in wanted]
    stores = [facts for answer in answers if not isinstance(answer, SourceError) for facts in answer]
    return Found(stores, [answer for answer in answers if isinstance(answer, SourceError)])


@contextmanager
def _failures(text: str) -> Iterator[None]:
    """What the operating system says of `text`, or of a file below it, is a SourceError."""
    try:
        yield
    except OSError as error:
        raise source_error(error.filename or text, error) from None


def source_error(where: Path | str, error: OSError) -> SourceError:
    """What the operating system said of it."""
    if isinstance(error, PermissionError):
        return SourceForbidden(f"{where}: we may not: do this as root, or as the broker's user")
    return SourceError(f"{where}: {error.strerror or error}")


# --- here


def store_directory(text: str, set_name: str | None = None) -> Path:
    """Of a data directory the store of that set, `default` if none is named; or the store itself. Raises
    SourceError."""
    path = Path(text).expanduser().absolute()
    with _failures(text):
        if not path.is_dir():
            raise SourceError(f"{text}: there is no such directory")
        if path.name.partition(".")[0] == DEFAULT_SET or _is_store(path):
            return path
    return path / (set_name or DEFAULT_SET)


def store_directories(text: str, set_name: str | None = None) -> list[Path]:
    """Of a data directory all sets' stores, `default` first, or the store itself; of one set only when it is named.

    `default` is there, though empty, where there is no other; a set that is named and has no store there is not.
    Raises SourceError.
    """
    with _failures(text):
        return _store_directories(text, set_name)


def _store_directories(text: str, set_name: str | None) -> list[Path]:
    first = store_directory(text)
    if first == Path(text).expanduser().absolute():
        return [first]
    if set_name is not None:
        path = first.with_name(set_name)
        return [path] if set_name == DEFAULT_SET or holds_store_of(LocalDisk(path), set_name) else []
    others = [
        path
        for path in sorted(first.parent.iterdir())
        if path.name != DEFAULT_SET
        and set_name_problem(path.name) is None
        and holds_store_of(LocalDisk(path), path.name)
    ]
    return [first, *others] if first.exists() or not others else others


def is_store(source: str, stores: Sequence[StoreFacts]) -> bool:
    """Whether `source` names one store, and not a data directory, by what was found there: then others are not."""
    name = Path(host_of(source)[1]).name
    return name.partition(".")[0] == DEFAULT_SET or any(Path(host_of(store.where)[1]).name == name for store in stores)


def _is_store(path: Path) -> bool:
    return any((path / name).exists() for name in (STATUS_FILE, SEGMENTS))


def facts_of_source(text: str, set_name: str | None = None, progress: Progress = nobody_watches) -> list[StoreFacts]:
    """What is in each of `store_directories`. Raises SourceError."""
    stores = []
    for path in store_directories(text, set_name):
        facts = facts_of_directory(path, progress)
        if not facts.set and path.name != DEFAULT_SET and set_name_problem(path.name) is None:
            facts = replace(facts, set=path.name)
        if set_name in (None, set_of(facts)):
            stores.append(facts)
    return stores


def facts_of_directory(store: Path, progress: Progress = nobody_watches) -> StoreFacts:
    """What is in it; a directory that is not there is an empty store. Raises SourceError."""
    try:
        facts = examine(LocalDisk(store), str(store), progress, is_running=is_running(store))
        return replace(facts, modified_ms=_modified_ms(store))
    except OSError as error:
        raise source_error(error.filename or store, error) from None


def _modified_ms(store: Path) -> int:
    times = [0.0]
    for path in (store / STATUS_FILE, *store.glob("journal/*.log")):
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return int(max(times) * 1000)


def is_running(store: Path) -> bool:
    """Whether a broker holds the lock of the data directory."""
    try:
        descriptor = os.open(store.parent / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """No broker can start on it meanwhile. Raises StoreBusy, SourceError."""
    path = store.parent / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise source_error(path, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise StoreBusy(f"a broker (pid {pid}) works on {store}: stop it first") from None
        _give_to_owner(path, store.parent)
        yield
    finally:
        os.close(descriptor)


def mark_chosen(store: Path, facts: StoreFacts, reason: str) -> None:
    """Write into STATUS that this one may be promoted as it is. Hold the lock. Raises SourceError."""
    disk = LocalDisk(store)
    history = tuple((entry.generation, entry.primary, entry.first_lsn) for entry in facts.history)
    try:
        status = read_status(disk)
        if status is None:
            raise SourceError(f"{store / STATUS_FILE}: there is none: run qpid-ha store check {store}")
        # STATUS is written after the log: after a crash it may be behind it, and the mark is about the log's end.
        level = replace(status, history=history, epoch=facts.epoch, members=facts.members)
        chosen = replace(level, chosen=(facts.generation, facts.last_lsn, reason), revision=level.revision + 1)
        disk.replace(STATUS_FILE, chosen.encode())
        _give_to_owner(store / STATUS_FILE, store)
    except OSError as error:
        raise source_error(store / STATUS_FILE, error) from None


def set_aside(store: Path) -> Path:
    """Give the store another name, under which no broker looks for it. Hold the lock. Raises SourceError."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = store.with_name(f"{store.name}.set-aside-{stamp}")
    try:
        if aside.exists():
            raise SourceError(f"{aside} is there already: try again")
        store.rename(aside)
        LocalDisk(store.parent).sync_directory("")
    except OSError as error:
        raise source_error(store, error) from None
    return aside


def _give_to_owner(path: Path, directory: Path) -> None:
    """What root writes must stay the broker's."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


# --- elsewhere


def ask_host(source: str, timeout_s: float, set_name: str | None = None) -> list[StoreFacts]:
    """The facts of the stores at `host:/directory`, which `qpid-ha store facts` finds there. Raises SourceError."""
    host, directory = host_of(source)
    connect_s = max(1, min(_CONNECT_TIMEOUT_S, math.ceil(timeout_s)))
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect_s}"]
    only = "" if set_name is None else f" --set {quote(set_name)}"
    command = ["ssh", *options, "--", host, f"qpid-ha store facts {quote(directory)}{only}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{source}: no answer through ssh within {timeout_s:g} s") from None
    except OSError as error:
        raise SourceError(f"{source}: cannot start ssh: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"ssh ended with {done.returncode}"])[-1]
        raise SourceError(f"{source}: {said}")
    try:
        lines = done.stdout.removesuffix("\n").split("\n") if done.stdout or set_name is None else []
        return [StoreFacts.from_json(json.loads(line)).seen_from(host) for line in lines]
    except (ValueError, FactsError) as error:
        raise SourceError(f"{source}: its answer cannot be understood: {error}") from None
