"""Whether an output can be written, before the work whose outcome it is for: hours may lie between."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from .errors import PipelineError
from .journal.remote import as_path, is_remote

if TYPE_CHECKING:  # options are looked at before PySpark is: a user without it is told so
    from pyspark.sql import SparkSession


def check_file(path: Path) -> None:
    """Raises PipelineError where this process cannot write such a file. What is there stays as it is."""
    try:
        if path.exists():
            if path.is_file():  # a pipe would take it for its end
                path.open("a").close()
            return
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(str(path), error) from None


def check_directory(spark: SparkSession, path: str) -> None:
    """Raises PipelineError where an executor cannot write into such a directory, or make it. Leaves nothing behind.

    Only of mounted filesystems: what an object store allows, it says when it is written to.
    """
    if not is_remote(as_path(path)):
        from .executors import on_an_executor

        on_an_executor(spark, lambda: _check_directory(path))


def _check_directory(path: str) -> None:
    there = Path(as_path(path)).absolute()
    try:
        while not there.exists():
            there = there.parent
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: str, error: OSError) -> PipelineError:
    return PipelineError(f"--output {path}: cannot be written ({error.strerror}): choose another")
