"""Calling a function on Spark's executors, through DataFrames: a session of Spark Connect has nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from .errors import PipelineError, reason_of, rows_told_plainly

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def on_executors(spark: SparkSession, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """`function(item)` of each item, in their order; a task calls it for one. Items and results travel as pickles.

    Raises PipelineError with what `function` says when it raises one, or an OSError.
    """
    if not items:
        return []

    @rows_told_plainly
    def called(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            results = [pickle.dumps(function(items[number])) for number in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], ["result"])

    numbers = spark.range(0, len(items), 1, len(items))
    try:
        rows = numbers.mapInArrow(called, "result binary").collect()
    except Exception as error:  # Spark's own, or those of its Java
        reason = reason_of(error)
        if reason is None:
            raise
        raise PipelineError(reason) from None
    return [cast(_Result, pickle.loads(row.result)) for row in rows]


def on_an_executor(spark: SparkSession, function: Callable[[], _Result]) -> _Result:
    """`function()` in one task: what looks at files has to run where they are, which the client may not be."""
    (result,) = on_executors(spark, lambda _: function(), [None])
    return result
