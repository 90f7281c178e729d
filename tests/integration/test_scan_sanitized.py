"""The compiled scan under the sanitizers of addresses and of undefined behaviour."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import qpid_ha_kernel

ROOT = Path(__file__).resolve().parents[2]
KERNEL = Path(qpid_ha_kernel.__file__).parent


def sanitized(directory: Path) -> dict[str, str]:
    """A package of its own with the kernel as `build.py --sanitize` makes it; the environment in which it is found."""
    package = directory / "qpid_ha_kernel"
    package.mkdir()
    (package / "__init__.py").write_bytes((KERNEL / "__init__.py").read_bytes())
    subprocess.run([sys.executable, KERNEL / "build.py", "--sanitize", package], check=True, timeout=300)
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    return {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps what it keeps
        "PYTHONMALLOC": "malloc",  # else what cffi allocates lies in arenas, and nobody sees its end
        "PYTHONPATH": os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")]),
    }


SEED = int(os.environ.get("QPID_HA_SCAN_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
SECONDS = 8


@pytest.mark.direct_only("it is about no broker")
def test_it_keeps_to_what_it_was_given(tmp_path: Path) -> None:
    """From a seed that a failure prints: QPID_HA_SCAN_SEED repeats it."""
    print(f"QPID_HA_SCAN_SEED={SEED}")
    target = [sys.executable, str(ROOT / "tests/fuzz/scan_target.py"), str(SEED), str(SECONDS)]
    done = subprocess.run(
        target, env=sanitized(tmp_path), capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 100
