"""What Spark's UI and its event log say of the work of a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

_DESCRIPTION: Final = "spark.job.description"


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Each action in the block is one of `text`, in this thread; with Spark Connect its operations have it as a tag.

    Streams describe their batches themselves: with the query's name, its ids, and the number of the batch.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        spark.addTag(text)
        try:
            yield
        finally:
            spark.removeTag(text)
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)
