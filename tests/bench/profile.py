"""Where the broker spends its time while a figure is made: py-spy, from outside, so that the broker is the real one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from bench.load_client import BenchError

HOTTEST = 25
SAMPLES_PER_S = 500
_STOP_TIMEOUT_S = 30.0


class Profile:
    """`with Profile(pid, path):` writes folded stacks (for flamegraph.pl, speedscope) and prints the hottest functions.

    Sampling costs the broker some speed: a figure made under it is not one to quote. Needs the right to trace (root, or
    `kernel.yama.ptrace_scope=0`).
    """

    def __init__(self, pid: int, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._command = [
            str(Path(sys.executable).with_name("py-spy")), "record", "--nonblocking", "--rate", str(SAMPLES_PER_S),
            "--duration", "3600", "--format", "raw", "--function", "--output", str(path), "--pid", str(pid),
        ]  # fmt: skip

    def __enter__(self) -> Profile:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(0.5)  # it says nowhere that it has begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        _, complaint = self._process.communicate(timeout=_STOP_TIMEOUT_S)
        if self._path.exists():
            print(self._hottest())
        elif error is None:
            raise BenchError(f"py-spy recorded nothing: {complaint.decode(errors='replace').strip()}")

    def _hottest(self) -> str:
        own: Counter[str] = Counter()
        with_callees: Counter[str] = Counter()
        for line in self._path.read_text(encoding="utf-8").splitlines():
            stack, _space, samples = line.rpartition(" ")
            frames = stack.split(";")
            own[frames[-1]] += int(samples)
            for frame in set(frames):
                with_callees[frame] += int(samples)
        total = max(own.total(), 1)
        rows = [
            f"  {samples / total:6.1%} {with_callees[name] / total:6.1%}  {name}"
            for name, samples in own.most_common(HOTTEST)
        ]
        return "\n".join([f"{self._path}: {own.total()} samples; own time, with callees", *rows])
