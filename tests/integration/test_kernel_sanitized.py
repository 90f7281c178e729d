"""The kernel under random calls, built with the address and undefined-behaviour sanitizers; and that they tell."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kernel" / "qpid_ha_kernel"
ROUNDS = 25
OPTIONS = "detect_leaks=0:halt_on_error=1:abort_on_error=0:exitcode=99"


def built(directory: Path, *, sources: Path = PACKAGE) -> Path:
    """A directory for Python's path, with the package and the module that is built of its sources."""
    package = directory / "path" / "qpid_ha_kernel"
    shutil.copytree(sources, package, ignore=shutil.ignore_patterns("_kernel.*", "__pycache__"))
    command = [sys.executable, str(package / "build.py"), "--sanitize", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return package.parent


def run(path: Path, module: str, seed: int, rounds: int) -> subprocess.CompletedProcess[str]:
    """The random calls, in an interpreter whose memory the sanitizer watches, too."""
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=60, check=True
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(path), os.environ["PYTHONPATH"], str(ROOT / "tests" / "support")]),
        "LD_PRELOAD": library.stdout.strip(),
        "ASAN_OPTIONS": OPTIONS,
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    environment.pop("QPID_HA_WITHOUT_KERNEL", None)
    command = [sys.executable, "-m", module, str(seed), str(rounds)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("sanitized"))


@pytest.mark.parametrize("module", ["kernel_fuzz", "scan_fuzz"])
@pytest.mark.parametrize("seed", [1, 2, pytest.param(random.randrange(1 << 30), id="new")])
def test_random_calls_touch_nothing_that_is_not_theirs(path: Path, module: str, seed: int) -> None:
    done = run(path, module, seed, ROUNDS)
    assert (done.returncode, done.stdout[:4]) == (0, "done"), f"seed {seed}\n{done.stdout}\n{done.stderr[-8000:]}"


PLANTED = {
    "frames.c": ("if (left < 6 || data[at + 4] != 2)", "if (data[at + 4] != 2)"),
    "scan.c": (" && count < records_room) {", ") {"),
    "deliveries.c": ("return length >= 0 && (size_t)length <= size - at;", "return length >= 0 && length <= 200000;"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_bound_that_is_not_checked_is_told(tmp_path: Path, name: str) -> None:
    """Or the test before shows nothing."""
    sources = tmp_path / "sources"
    shutil.copytree(PACKAGE, sources, ignore=shutil.ignore_patterns("_kernel.*", "__pycache__"))
    text = (sources / name).read_text(encoding="utf-8")
    assert text.count(PLANTED[name][0]) == 1
    (sources / name).write_text(text.replace(*PLANTED[name]), encoding="utf-8")
    module = "scan_fuzz" if name == "scan.c" else "kernel_fuzz"
    done = run(built(tmp_path, sources=sources), module, 1, ROUNDS)
    assert done.returncode
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
