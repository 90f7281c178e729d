"""The environment of the process that asks, for the processes that Spark plans and reads in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from .amqp.brokers import PASSWORD_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMES: Final = (PASSWORD_VARIABLE,)


@contextmanager
def environment_handed_over(spark: SparkSession) -> Iterator[None]:
    """Sources that are registered meanwhile see those variables of ours as they are in this process now.

    They run in processes of Spark's own, which have the environment with which Spark's JVM was started. To a server of
    Spark Connect none of ours comes: there its own counts.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        yield
        return
    before = dict(context.environment)
    context.environment.update({name: os.environ[name] for name in _NAMES if name in os.environ})
    try:
        yield
    finally:
        context.environment.clear()
        context.environment.update(before)
