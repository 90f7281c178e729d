"""What Spark does with a reader of streams of journals, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from qpid_ha_pipeline.journal_stream import JournalStreamReader, Offsets
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import schema_of

ALL = ReadAllAvailable()


class Query:
    """Does what Spark does with a reader: micro-batches, offsets that go through JSON, restarts from a checkpoint."""

    def __init__(self, path: Path | str, start: Offsets | None = None, **options: str) -> None:
        self._given = {"path": str(path), "columns": "lsn,broker", **options}
        self.restart()
        self.offset = start if start is not None else self._kept(self.reader.initialOffset())

    def restart(self) -> None:
        """As a new process."""
        options = JournalOptions.parse(self._given)
        self.reader = JournalStreamReader(options, schema_of(options.columns))

    def batch(self, limit: ReadLimit = ALL) -> list[int]:
        """The LSNs of one micro-batch."""
        end = self._kept(self.reader.latestOffset(self.offset, limit))
        lsns = list(self.read(self.offset, end))
        self.offset = end
        return lsns

    def read(self, start: Offsets, end: Offsets) -> Iterator[int]:
        """Between two offsets, as after a failure."""
        for part in self.reader.partitions(start, end):
            for batch in self.reader.read(part):
                yield from batch.column("lsn").to_pylist()

    @staticmethod
    def _kept(offset: Offsets) -> Offsets:
        found: Offsets = json.loads(json.dumps(offset))
        return found
