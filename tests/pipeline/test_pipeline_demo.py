"""`./dev demo --pipeline`, as somebody types it: one failover, and what Spark makes of what it left."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_ends_with_an_audit_and_a_report_of_its_failover() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as directory:  # shorter than tmp_path: sockets lie in it
        shown = subprocess.run(
            [str(ROOT / "dev"), "demo", "--pipeline", "--once"], capture_output=True, text=True, timeout=400,
            env={**os.environ, "TMPDIR": directory, "PYTHONIOENCODING": "ascii"}, check=False,
        )  # fmt: skip
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert not re.search(r"log4j|log level|WARN ", shown.stderr), shown.stderr
        lines = [line.strip() for line in shown.stdout.splitlines()]
        confirmed = int(next(line.split()[1] for line in lines if line.startswith("confirmed ")))
        assert confirmed > 100
        assert "flawless" in lines
        assert any(re.match(r"cluster \w+: availability \d+\.\d+%", line) for line in lines)
        assert [line.split()[0] for line in lines if re.match(r"\d+ +broker\d ", line)] == ["1", "2"]
        report = Path(lines[-1].removeprefix("report: "))
        assert report.is_relative_to(directory)
        assert report.read_text(encoding="utf-8").count("<figure") == 2
