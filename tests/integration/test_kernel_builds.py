"""The kernel is built with the project where there is a compiler, and left out where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("agent", "broker", "client", "config", "kernel", "pipeline")
OTHERS = ("ocf", "rgmanager", "systemd", "contrib", "docs")
FILES = ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, without what was built in it."""
    directory = tmp_path_factory.mktemp("source")
    leave_out = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "_kernel.*")
    for name in (*PARTS, *OTHERS):
        shutil.copytree(ROOT / name, directory / name, ignore=leave_out)
    for name in FILES:
        shutil.copy(ROOT / name, directory)
    return directory


def wheel(source: Path, target: Path, **environment: str) -> list[str]:
    """The files of the kernel in the wheel that pip makes of the tree."""
    shutil.rmtree(source / "build", ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target), str(source)]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, **environment})
    (found,) = target.glob("*.whl")
    with zipfile.ZipFile(found) as packed:
        packed.extractall(
            target / "unpacked", [name for name in packed.namelist() if name.startswith("qpid_ha_kernel")]
        )
    return [path.name for path in (target / "unpacked" / "qpid_ha_kernel").iterdir()]


def loaded(path: Path) -> str:
    """What an interpreter says that has only this on its path."""
    code = "from qpid_ha_kernel import load; print(type(load()).__name__, *load()[:1])"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(
        command, env=environment, cwd=path, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_the_wheel_has_the_kernel_where_there_is_a_compiler(source: Path, tmp_path: Path) -> None:
    assert "_kernel.abi3.so" in wheel(source, tmp_path)
    assert loaded(tmp_path / "unpacked").startswith("Kernel ")


def test_without_a_compiler_there_is_a_wheel_all_the_same(source: Path, tmp_path: Path) -> None:
    names = wheel(source, tmp_path, CC="/bin/false")
    assert [name for name in names if name.startswith("_kernel")] == []
    assert "NoKernel it was not built" in loaded(tmp_path / "unpacked")


def test_nothing_compiled_is_imported_before_it_is_asked_for() -> None:
    code = "import qpid_ha_kernel, sys; print({'cffi', '_cffi_backend', 'qpid_ha_kernel._kernel'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
