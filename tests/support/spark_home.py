"""A home of Spark for the tests, and an archive of the classes that its Java loads there.

A session takes eight seconds of processor time before it does anything, three of them for Java to read fourteen
thousand classes from their jars and to check them. An archive of classes (CDS) has them read and checked. Java takes it
only for the class path that it was made with, so all processes that tests start have the same home.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

import pyspark

log = logging.getLogger(__name__)

_PLACE: Final = Path(sys.prefix) / "spark-of-tests"
"""In the environment that has PySpark: what is made there stays for the next run, and goes with it."""
_MAKER: Final = Path(__file__).with_name("class_archive.py")
_MAKE_S: Final = 300.0
_ARCHIVE: Final = "-XX:SharedArchiveFile="
_QUIET: Final = "-Xlog:disable"
"""Java says on its output that it goes without an archive, where tests read what a job has printed."""


def spark_home() -> Path:
    """PySpark's directory but for its archive of itself: Python processes that Spark starts would read that first, and
    compile all of it anew in each, since nobody keeps the bytecode of an archive.

    The same one for this PySpark each time; where that cannot be kept, one for this process.
    """
    source = Path(pyspark.__file__).parent
    try:
        return _linked(_PLACE / _version(source), source)
    except OSError as error:
        log.warning("%s cannot be kept: %s", _PLACE, error)
    home = Path(tempfile.mkdtemp(prefix="qpid-ha-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return _linked(home, source)


def use_class_archive(environment: MutableMapping[str, str], maker: Path = _MAKER) -> None:
    """Have every Java that is started there use the archive of its home; `maker` is the program that makes it, once.

    Where Java makes none, or Spark has another home, it goes without.
    """
    home, options = Path(environment["SPARK_HOME"]), environment.get("JDK_JAVA_OPTIONS", "")
    if home.parent != _PLACE:
        return
    try:
        archive = home / f"classes-{_digest(_java_version(environment), options, maker.read_text())}.jsa"
        with (_PLACE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                _make(archive, environment, maker)
                _remove_all_but(archive)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("Java goes without an archive of Spark's classes: %s", error)
        return
    environment["JDK_JAVA_OPTIONS"] = f"{options} {_ARCHIVE}{archive} {_QUIET}"


def archive_of(environment: Mapping[str, str]) -> str | None:
    """The path of the one that is used there, if any."""
    words = environment.get("JDK_JAVA_OPTIONS", "").split()
    return next((word.removeprefix(_ARCHIVE) for word in words if word.startswith(_ARCHIVE)), None)


def _linked(home: Path, source: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    for part in source.iterdir():
        link = home / part.name
        if part.name != "python" and not link.is_symlink():
            try:
                link.symlink_to(part)
            except FileExistsError:  # another process of this run was faster
                continue
    return home


def _version(source: Path) -> str:
    """What changes when it is installed anew: an archive knows the times of its jars."""
    return f"{pyspark.__version__}-{_digest(str(source), str((source / 'jars').stat().st_mtime_ns))}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _java_version(environment: Mapping[str, str]) -> str:
    java = Path(environment["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in environment else "java"
    command = [str(java), "-version"]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stderr


def _make(archive: Path, environment: Mapping[str, str], maker: Path) -> None:
    new = archive.with_suffix(".new")
    command = [sys.executable, str(maker), str(new)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_MAKE_S, check=False)
    if done.returncode != 0 or not new.exists():
        raise OSError(f"{maker.name} ended with {done.returncode}: {done.stderr[-2000:]}")
    new.rename(archive)


def _remove_all_but(archive: Path) -> None:
    """Those of an older PySpark, Java or maker: one has 160 MB."""
    for old in _PLACE.iterdir():
        if old.is_dir() and old != archive.parent:
            shutil.rmtree(old, ignore_errors=True)
    for other in archive.parent.glob("classes-*"):
        if other != archive:
            other.unlink()
