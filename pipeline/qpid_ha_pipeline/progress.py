"""How far a job is, for people: finished and wanted tasks of what Spark runs right now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from .masters import is_remote

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOK_S = 0.5


@contextmanager
def watched(spark: SparkSession, title: str, console: Console) -> Iterator[None]:
    """A bar on a terminal, as long as the block runs; elsewhere nothing."""
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = _Bar(progress, progress.add_task(title, total=None, tasks=""))
        with _told_by_server(spark, bar) if is_remote(spark) else _asked_of_context(spark.sparkContext, bar):
            yield


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def show(self, tasks: int, finished: int) -> None:
        if tasks:
            words = f"{finished} of {tasks} tasks"
            self._progress.update(self._task, total=tasks, completed=finished, tasks=words)


@contextmanager
def _told_by_server(spark: SparkSession, bar: _Bar) -> Iterator[None]:
    """Spark Connect says by itself how far it is."""

    def show(stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        active = [stage for stage in stages or () if not stage.done]
        bar.show(sum(stage.num_tasks for stage in active), sum(stage.num_completed_tasks for stage in active))

    spark.registerProgressHandler(show)  # type: ignore[arg-type]
    try:
        yield
    finally:
        spark.removeProgressHandler(show)  # type: ignore[arg-type]


@contextmanager
def _asked_of_context(context: SparkContext, bar: _Bar) -> Iterator[None]:
    done = Event()
    watcher = Thread(target=_ask, args=(context, bar, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _ask(context: SparkContext, bar: _Bar, done: Event) -> None:
    tracker = context.statusTracker()
    while not done.wait(_LOOK_S):
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
        bar.show(sum(info.numTasks for info in stages), sum(info.numCompletedTasks for info in stages))
