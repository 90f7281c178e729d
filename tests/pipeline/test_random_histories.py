"""Random lives of clusters, and what the data source says of them compared with what is true."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from random import Random

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from journal_rows import Row, expected_rows, read_rows
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.journal.positions import generation_at
from qpid_ha_pipeline.journal_stream import JournalStreamReader, Offsets
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import schema_of
from random_history import RandomHistory, State, lived

COLUMNS = ("lsn", "event", "queue", "queue_id", "message_id", "reason", "in_transaction")
SEEDS = range(200)


def declared(records: list[LogRecord]) -> dict[int, str]:
    return {record.lsn: record.event.name for record in records if isinstance(record.event, ev.QueueDeclared)}


def deleted(records: list[LogRecord]) -> set[int]:
    return {record.event.queue for record in records if isinstance(record.event, ev.QueueDeleted)}


def facts(rows: list[Row]) -> list[tuple[object, ...]]:
    return sorted(tuple(row[name] for name in COLUMNS) for row in rows)


StreamedEvent = tuple[int, tuple[int, str, str | None]]
"""LSN, generation, event, and of a message its AMQP message-id."""


def of_the_log(history: RandomHistory, rows: list[StreamedEvent]) -> list[StreamedEvent]:
    """Those of a branch that was discarded left out."""
    ids = {lsn: history.ids[event.payload] for lsn, event, _ in history.log if isinstance(event, ev.Enqueued)}
    events = {
        lsn: (generation_at([GenerationEntry(*entry) for entry in history.history], lsn), kind, ids.get(lsn))
        for lsn, kind, *_ in expected_rows(history.log, {})
    }
    return [row for row in rows if events.get(row[0]) == row[1]]


class LogQuery:
    """A stream of the replicated log: LSN and event of each row, one for each message."""

    def __init__(self, path: Path, **options: str) -> None:
        self._given = {"path": str(path), "columns": "lsn,generation,event,amqp_message_id,local", **options}
        self.rows: list[StreamedEvent] = []
        self.restart()
        self._offset: Offsets = self.reader.initialOffset()

    def restart(self) -> None:
        """As a new process."""
        options = JournalOptions.parse(self._given)
        self.reader = JournalStreamReader(options, schema_of(options.columns))

    def batch(self, limit: ReadLimit) -> bool:
        """Read one; whether it had anything in it."""
        end = self.reader.latestOffset(self._offset, limit)
        before = len(self.rows)
        for part in self.reader.partitions(self._offset, end):
            for batch in self.reader.read(part):
                for row in batch.to_pylist():
                    event = row["lsn"], (row["generation"], row["event"], row["amqp_message_id"])
                    if not row["local"] and self.rows[-1:] != [event]:  # one event may be several rows
                        self.rows.append(event)
        has_moved, self._offset = end != self._offset, json.loads(json.dumps(end))
        return has_moved or len(self.rows) > before


def streamed(directory: Path, seed: int) -> tuple[RandomHistory, LogQuery]:
    """Read while it happens. Nothing is folded that was not read, the reader restarts, and batches have any size."""
    random, history = Random(seed), RandomHistory(directory, seed)
    query: LogQuery | None = None
    for _ in history.live():
        if query is None:
            query, history.read_lsn = LogQuery(directory / "*", failOnDataLoss="false"), 0
        if random.random() < 0.2:
            query.restart()
        if random.random() < 0.5:
            query.batch(ReadMaxRows(random.randint(1, 30)) if random.random() < 0.5 else ReadAllAvailable())
        read = {lsn for lsn, _ in of_the_log(history, query.rows)}
        history.read_lsn = next(lsn for lsn in count(1) if lsn not in read) - 1
    assert query is not None
    while query.batch(ReadAllAvailable()):
        pass
    return history, query


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_read_of_a_cluster_is_what_happened(tmp_path: Path, seed: int) -> None:
    if seed % 2:
        history, query = streamed(tmp_path, seed)
        check_stream(history, query)
    else:
        history = lived(tmp_path, seed)
    check_branches(history, read_rows(tmp_path / "*", replicas="discarded", event="enqueued"))
    history.tear_ends()
    if seed % 3 == 0:
        history.move()
    check_events(history, read_rows(tmp_path / "*"))
    check_state(history, read_rows(tmp_path / "*", view="state", event="enqueued"))
    history.damage_a_block()
    for check, view in ((check_events, "events"), (check_state, "state")):
        try:
            rows = read_rows(tmp_path / "*", view=view)
        except PipelineError:
            continue  # no other copy has what was in it
        check(history, rows)


def check_stream(history: RandomHistory, query: LogQuery) -> None:
    """Each committed event once, whichever replica it came from."""
    committed = of_the_log(history, query.rows)
    known = max(store.committed for store in history.stores.values() if store.history == history.history)
    if history.forced < 2:
        assert [lsn for lsn, _ in committed] == list(range(1, known + 1))
    assert {lsn for lsn, _ in committed} == set(range(1, known + 1))  # what was discarded twice may come twice
    assert history.forced or query.rows == committed


def check_events(history: RandomHistory, rows: list[Row]) -> None:
    """Each event of the log that counts once, and before them what was left of what was folded away."""
    rows = [row for row in rows if not row["local"]]
    (complete_from,) = {row["complete_from"] for row in rows}
    log = history.log
    names, gone = declared(log), deleted(log[complete_from - 1 :])
    # The name of a queue that was declared and deleted in what was folded away since is nowhere any more.
    since = [row for row in rows if not row["from_snapshot"]]
    unnamed = {row["queue_id"] for row in since if row["queue"] is None and row["queue_id"] is not None}
    assert unnamed <= {queue for queue in gone if queue < complete_from}
    known = {queue: name for queue, name in names.items() if queue not in unnamed}
    assert facts(since) == sorted(expected_rows(log[complete_from - 1 :], known))
    before = [row for row in rows if row["from_snapshot"] and row["event"] == "enqueued"]
    left = State().apply(log[: complete_from - 1], history.ids).messages
    assert sorted((row["queue_id"], row["message_id"], row["amqp_message_id"]) for row in before) == sorted(
        (queue, message, name) for queue, messages in left.items() for message, name in messages.items()
    )
    assert not any(row["discarded"] for row in rows)


def check_state(history: RandomHistory, rows: list[Row]) -> None:
    """Each message that is in a queue."""
    rows = [row for row in rows if row["event"] == "enqueued"]
    state = history.state
    expected = [
        (queue, message, name, state.names[queue])
        for queue, messages in state.messages.items()
        for message, name in messages.items()
    ]
    assert sorted(
        (row["queue_id"], row["message_id"], row["amqp_message_id"], row["queue"]) for row in rows if not row["local"]
    ) == sorted(expected)
    own = sorted((row["broker"], row["message_id"] + (1 << 64)) for row in rows if row["local"])
    assert own == sorted(
        (name, message) for name, store in history.stores.items() for message, there in store.own.items() if there
    )


def check_branches(history: RandomHistory, rows: list[Row]) -> None:
    """What only branches hold with which the cluster did not go on, as far as it was not folded away."""
    found = {(row["broker"], row["lsn"], row["queue_id"]) for row in rows}
    counting = {id(turn) for turn in history.stores[history.primary].turns}
    for name, store in history.stores.items():
        branch = [record for turn in store.turns if id(turn) not in counting for record in turn]
        if store.history[-1][0] == history.generation:
            branch = []  # behind what the others have, and nobody has led since: that may count yet
        held = {
            (name, lsn, queue) for lsn, event, _ in branch if isinstance(event, ev.Enqueued) for queue in event.queues
        }
        of_store = {each for each in found if each[0] == name}
        assert of_store <= held
        assert {each for each in held - of_store if each[1] > store.folded_to} == set()
