"""How far a job is, for people: finished and wanted tasks of what Spark runs right now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

_LOOK_S = 0.5


@contextmanager
def watched(spark: SparkSession, title: str, console: Console) -> Iterator[None]:
    """A bar on a terminal, as long as the block runs; elsewhere nothing."""
    if not console.is_terminal:
        yield
        return
    done = Event()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        watcher = Thread(target=_watch, args=(spark.sparkContext, bar, title, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _watch(context: SparkContext, bar: Progress, title: str, done: Event) -> None:
    task = bar.add_task(title, total=None, tasks="")
    tracker = context.statusTracker()
    while not done.wait(_LOOK_S):
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
        total = sum(info.numTasks for info in stages)
        if total:
            finished = sum(info.numCompletedTasks for info in stages)
            bar.update(task, total=total, completed=finished, tasks=f"{finished} of {total} tasks")
