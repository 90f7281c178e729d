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
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab.netns.commands import PATH

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".lab"
_OUR_VERSION: Final = [str(number) for number in sys.version_info[:2]]
_NOT_SHIPPED: Final = shutil.ignore_patterns(
    ".*", "__pycache__", "_kernel.*", "*.egg-info", "build", "dist", "tests", "node_modules"
)


class NoWheels(Exception):
    """pip could not make them."""


def build(target: Path) -> None:
    """Fill the directory: the project as it lies in the checkout, built anew, and its dependencies. Raises NoWheels."""
    target.mkdir(parents=True, exist_ok=True)
    for wheel in dependencies().glob("*.whl"):
        shutil.copy(wheel, target)
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, "qpid-ha")  # setuptools leaves its work in the tree that it builds
        shutil.copytree(ROOT, copy, ignore=_NOT_SHIPPED)
        _pip_wheel(target, "--no-deps", str(copy))


def dependencies() -> Path:
    """A directory in `.lab/` with what the project needs, and its extra `conformance`; kept until setup.cfg names
    others. Raises NoWheels."""
    with one_at_a_time("lock"):
        directory = CACHE / f"wheels-{_fingerprint()}"
        if not (directory / "complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            _pip_wheel(directory, *_requirements())
            _ensure_proton_has_sasl(directory)
            (directory / "complete").touch()
    return directory


def _ensure_proton_has_sasl(directory: Path) -> None:
    """pip may keep a Proton that it built before the headers of Cyrus SASL were here. Raises NoWheels."""
    (proton,) = directory.glob("python_qpid_proton-*.whl")
    if _mentions(proton, b"libsasl2.so"):
        return
    proton.unlink()
    version = proton.name.split("-")[1]
    _pip_wheel(directory, "--no-deps", "--no-cache-dir", f"python-qpid-proton=={version}")
    (proton,) = directory.glob("python_qpid_proton-*.whl")
    if not _mentions(proton, b"libsasl2.so"):
        raise NoWheels("Proton was built without SASL: pkg-config --exists libsasl2 openssl has to succeed")


def _mentions(wheel: Path, words: bytes) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        return any(words in archive.read(name) for name in archive.namelist() if name.endswith(".so"))


def _pip() -> list[str]:
    """Wheels have to fit the python3 of the machines, which is that of this host's system, not that of `.venv/`."""
    python = shutil.which("python3", path=PATH) or sys.executable
    asked = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    is_ours = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split() == _OUR_VERSION
    return [sys.executable, "-m", "pip", *([] if is_ours else ["--python", python])]


def _pip_wheel(target: Path, *what: str) -> None:
    command = [*_pip(), "wheel", "--quiet", "--disable-pip-version-check", "--wheel-dir"]
    done = subprocess.run(
        [*command, str(target), *what], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise NoWheels(f"pip wheel {' '.join(what)}: {done.stderr.strip()}")


def _requirements() -> list[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    needed = config["options"]["install_requires"], config["options.extras_require"]["conformance"]
    return [line for lines in needed for line in lines.split("\n")[1:]]


def _fingerprint() -> str:
    """Of what decides which wheels are needed: the requirements, and the interpreter that compiles them."""
    text = "\n".join([*_requirements(), sysconfig.get_platform(), sys.version])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Of the processes that make something in `.lab/`: whoever comes later waits."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
