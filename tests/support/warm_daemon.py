"""Spark's daemon that forks Python workers, with everything imported before that each of them would import by itself.

Planning one query with a data source in Python takes two such processes, and Spark uses none of them again: half a
second of processor time each. Its own daemon (`pyspark.daemon`) imports after it has forked, because a library may
start threads when it is imported; those that are imported here start theirs when they have work.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

_IMPORTED: Final = (
    "numpy", "pyarrow", "pyspark.sql.worker.plan_data_source_read", "qpid_ha_pipeline.journal_source",
)  # fmt: skip
_SETTING: Final = f" -Dspark.python.daemon.module={Path(__file__).stem}"


def have_every_session_use_it(environment: MutableMapping[str, str]) -> None:
    """Of those that this process and its children begin: Spark takes a property of its Java for a setting."""
    options = environment.get("JDK_JAVA_OPTIONS", "")
    if _SETTING not in options:  # a worker of pytest-xdist has what the process has that began it
        environment["JDK_JAVA_OPTIONS"] = options + _SETTING
    paths = [environment.get("PYTHONPATH", ""), str(Path(__file__).parent)]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def without_it(environment: MutableMapping[str, str]) -> None:
    """For processes that do not find this module."""
    environment["JDK_JAVA_OPTIONS"] = environment.get("JDK_JAVA_OPTIONS", "").replace(_SETTING, "")


def main() -> None:
    """Argument: the module that the workers run."""
    for name in (*_IMPORTED, *sys.argv[1:2]):
        importlib.import_module(name)
    gc.freeze()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
