"""A Python that has the libraries of this one, but none of our code, nor whatever else is to be missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from sysconfig import get_paths

import warm_daemon


def plain_python(directory: Path, without: Iterable[str] = ()) -> Path:
    """The interpreter of a new environment. `without`: how names of more libraries begin that it lacks."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=60)
    libraries = directory / "libraries"
    libraries.mkdir()
    missing = ("qpid_ha", "__editable__", "_distutils_hack", *without)
    for entry in Path(get_paths()["purelib"]).iterdir():
        if not entry.name.startswith(missing) and entry.suffix != ".pth":
            (libraries / entry.name).symlink_to(entry)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return directory / "bin" / "python"


def plain_environment() -> dict[str, str]:
    """The environment of this process without the path to our code, which tests have for what they start."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    warm_daemon.without_it(environment)
    return environment
