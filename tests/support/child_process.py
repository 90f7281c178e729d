"""A process that does not outlive its test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def child_process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """It is killed at the end, if it still runs then. `with Popen` waits for its end instead: for ever, where the test
    has failed before it came to end it, and the failure is shown to nobody."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
