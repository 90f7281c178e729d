"""What a machine needs before a job can start, and what to do where it is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Final

from .errors import PipelineError

_MIN_JAVA: Final = 17
_MIN_PYSPARK: Final = (4, 2)
_LIBRARIES: Final = ("pyspark", "pyarrow", "pandas", "numpy")
_CONNECT_LIBRARIES: Final = ("grpc", "grpc_status", "google.rpc", "zstandard")
GATEWAY: Final = "PYSPARKGATEWAY_PORT"
"""Set by spark-submit, which has started Java already."""
_LOOK_S: Final = 20.0
_VERSION: Final = re.compile(r'"?(?:1\.)?(\d+)')


def check_requirements(*, is_remote: bool) -> None:
    """Raises PipelineError where libraries are missing, or a Java for Spark. `is_remote`: Spark runs elsewhere."""
    is_remote = is_remote or "SPARK_REMOTE" in os.environ
    _check_libraries(_LIBRARIES, "qpid-ha-pipeline, or beside a broker or an agent 'qpid-ha[pipeline]'")
    check_pyspark()
    if is_remote:
        _check_libraries(_CONNECT_LIBRARIES, "'qpid-ha-pipeline[connect]' or 'qpid-ha[connect,pipeline]'")
    elif GATEWAY not in os.environ:
        _check_java()


def check_pyspark() -> None:
    """Raises PipelineError for a PySpark that lacks what our sources build on."""
    import pyspark

    version = tuple(int(number) for number in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < _MIN_PYSPARK:
        raise PipelineError(
            f"PySpark {pyspark.__version__} is too old: it cannot limit the batches of streams of Python sources;"
            " install 4.2 or newer: pip install --upgrade pyspark"
        )


def _check_libraries(names: tuple[str, ...], distribution: str) -> None:
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise PipelineError(
                f"the library {name.partition('.')[0]} cannot be imported ({error}):"
                f" install what jobs need with pip install {distribution}"
            ) from None


def _check_java() -> None:
    install = f"install Java {_MIN_JAVA} or newer (Debian: openjdk-17-jre-headless), or set JAVA_HOME to one"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise PipelineError(f"there is no java on PATH, and JAVA_HOME is not set; Spark runs on it: {install}")
    if not os.access(java, os.X_OK):
        raise PipelineError(f"JAVA_HOME={home}: there is no bin/java that can be run; Spark runs on it: {install}")
    version = _version_of(Path(java).resolve())
    if version is not None and version < _MIN_JAVA:
        raise PipelineError(f"{java} is Java {version}, which is too old for Spark: {install}")


def _version_of(java: Path) -> int | None:
    """The major version: of the file that comes with it, which is faster than to ask. None: nobody can tell."""
    try:
        text = (java.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^JAVA_VERSION=(.*)", text, re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        try:
            done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_LOOK_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r"version (.*)", done.stderr)
    number = _VERSION.match(match.group(1)) if match else None
    return int(number.group(1)) if number else None
