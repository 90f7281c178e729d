"""Reading journals in tests without Spark, and what the rows should be, by a plain loop over the codec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.bodies import WRITERS
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.layout import RecordKind
from qpid_ha_pipeline.journal_source import JournalTableReader
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import full_schema, schema_of

Row = dict[str, Any]


def read_rows(path: Path | str, *columns: str, **options: str) -> list[Row]:
    """What the data source gives, in the order of its parts."""
    parsed = JournalOptions.parse({"path": str(path), **options})
    schema = schema_of(columns) if columns else full_schema(is_permissive=parsed.is_permissive)
    reader = JournalTableReader(parsed, schema)
    rows: list[Row] = []
    arrow = to_arrow_schema(schema, timezone="UTC")
    for part in reader.partitions():
        for batch in reader.read(part):
            assert batch.schema.equals(arrow)
            rows += [
                dict(zip(batch.schema.names, values, strict=True))
                for values in zip(*batch.to_pydict().values(), strict=True)
            ]
    return rows


def expected_rows(records: list[LogRecord], names: dict[int, str]) -> Iterator[tuple[Any, ...]]:
    """LSN, event, queue, queue_id, message_id, reason, in_transaction."""
    for lsn, event, part in records:
        kind = RecordKind(WRITERS[type(event)][0]).name.lower()
        for queue, message, reason in _subjects(lsn, event):
            yield (
                signed(lsn), kind, names.get(queue) if queue is not None else None, signed(queue), signed(message),
                reason, part,
            )  # fmt: skip


def signed(number: int | None) -> int | None:
    """As Spark shows it."""
    return number if number is None or number < 1 << 63 else number - (1 << 64)


def _subjects(lsn: int, event: ev.Event) -> list[tuple[int | None, int | None, str | None]]:
    match event:
        case ev.Enqueued():
            return [(queue, lsn, None) for queue in event.queues]
        case ev.Dequeued():
            return [(event.queue, each, event.reason.name.lower()) for each in event.ids]
        case ev.Acquired():
            return [(event.queue, each, None) for each in event.ids]
        case ev.Released():
            return [(event.queue, each, "failed" if event.failed else None) for each in event.ids]
        case ev.QueueDeclared():
            return [(lsn, None, None)]
    return [(getattr(event, "queue", None), None, None)]
