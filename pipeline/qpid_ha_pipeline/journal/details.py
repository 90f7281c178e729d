"""Events that are not about messages, as JSON: they are few, and each kind has fields of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from qpid_ha_broker.events.layout import ENQUEUED_KINDS, RecordKind
from qpid_ha_broker.model.transactions.producers import name_of

from .records import Records, Rows

_OF_MESSAGES: Final = (*ENQUEUED_KINDS, RecordKind.DEQUEUED, RecordKind.ACQUIRED, RecordKind.RELEASED)


def details_of(records: Records, rows: Rows) -> pa.Array:
    """For each row a JSON object; null for events that are about messages."""
    documents: list[str | None] = [None] * len(rows)
    for index in np.flatnonzero(~np.isin(rows.kinds, [int(kind) for kind in _OF_MESSAGES])):
        event = records.event(int(rows.record[index])).event
        documents[index] = json.dumps(
            {name: _plain(value) for name, value in event._asdict().items()}, ensure_ascii=False
        )  # fmt: skip
    return pa.array(documents, pa.string())


def _plain(value: object) -> object:
    if isinstance(value, bytes):  # the key of a producer, whose name is text nearly always
        return name_of(value).decode("utf-8", "backslashreplace")
    return dict(value) if isinstance(value, Mapping) else value
