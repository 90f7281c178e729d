"""The project and all that it needs as wheels, so that machines without a network can install it."""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".lab"
_NOT_SHIPPED: Final = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "node_modules"
)


class NoWheels(Exception):
    """pip could not make them."""


def build(target: Path) -> None:
    """Fill the directory: the project as it lies in the checkout, built anew, and its dependencies, kept in `.lab/`
    until setup.cfg names others. Raises NoWheels."""
    with _one_at_a_time():
        dependencies = CACHE / f"wheels-{_fingerprint()}"
        if not (dependencies / "complete").exists():
            shutil.rmtree(dependencies, ignore_errors=True)
            _pip_wheel(dependencies, *_requirements())
            (dependencies / "complete").touch()
    target.mkdir(parents=True, exist_ok=True)
    for wheel in dependencies.glob("*.whl"):
        shutil.copy(wheel, target)
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, "qpid-ha")  # setuptools leaves its work in the tree that it builds
        shutil.copytree(ROOT, copy, ignore=_NOT_SHIPPED)
        _pip_wheel(target, "--no-deps", str(copy))


def _pip_wheel(target: Path, *what: str) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--wheel-dir"]
    done = subprocess.run(
        [*command, str(target), *what], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise NoWheels(f"pip wheel {' '.join(what)}: {done.stderr.strip()}")


def _requirements() -> list[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config["options"]["install_requires"].split("\n")[1:]


def _fingerprint() -> str:
    """Of what decides which wheels are needed: the requirements, and the interpreter that compiles them."""
    text = "\n".join([*_requirements(), sysconfig.get_platform(), sys.version])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
