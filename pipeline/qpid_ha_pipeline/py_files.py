"""Our code for executors, and for a Connect server, that have none of it."""

from __future__ import annotations

import atexit
import operator
import shutil
import site
import tempfile
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from .masters import is_local

_PACKAGES: Final = ("qpid_ha_broker", "qpid_ha_config", "qpid_ha_kernel", "qpid_ha_pipeline")
_shipped: WeakSet[SparkSession] = WeakSet()


def ship_code(spark: SparkSession) -> None:
    """Have a cluster's executors import the code that runs here, as with `--py-files`; once for each session."""
    if spark not in _shipped and not is_local(spark):
        spark.addArtifacts(str(_archive()), pyfile=True)
        _shipped.add(spark)


@cache
def _archive() -> Path:
    """A zip of our packages. It stays as long as this process, because executors that start later fetch it, too."""
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            for name, module in _modules(files(package), package):
                # Without a date: what is the same has the same name, and Spark refuses two files of one name.
                archive.writestr(ZipInfo(name), module.read_bytes(), ZIP_DEFLATED)
    directory = tempfile.mkdtemp(prefix="qpid-ha-pipeline-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    archive_file = Path(directory, f"qpid_ha_pipeline-{sha256(buffer.getvalue()).hexdigest()[:16]}.zip")
    archive_file.write_bytes(buffer.getvalue())
    return archive_file


def _modules(directory: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    """Of a package, wherever it is imported from: a directory or an archive."""
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".py"):
            yield f"{name}/{entry.name}", entry
        elif entry.is_dir():
            yield from _modules(entry, f"{name}/{entry.name}")


class ShippedDataSource(DataSource):
    """A data source that brings the way to its own code along, where that came with `ship_code`.

    A Connect server's processes that plan streams get what was shipped (Spark 4.1 to 4.3), but look for it beside the
    directory of the session where it is. A pickle is read from its begin to its end: so it says first where our archive
    is, and only then of which class it is.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        archive = Path(__file__).parents[1]
        plain = (object.__new__, (type(self),), self.__dict__)
        if not archive.is_file():
            return plain
        return operator.getitem, ((_Call(site.addsitedir, (str(archive),)), _Call(*plain)), 1)


class _Call:
    """Is, once it was pickled and read again, the result of a call."""

    def __init__(self, *reduced: Any) -> None:
        self._reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced
