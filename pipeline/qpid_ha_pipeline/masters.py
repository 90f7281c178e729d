"""Where Spark runs: in this process's own Java, on a cluster, or behind a Connect server."""

from __future__ import annotations

import re
import socket
import sys
from typing import Final

from pyspark.sql import SparkSession

from .errors import PipelineError

_MASTERS: Final = re.compile(r"local(\[[^]]+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_STANDALONE: Final = "spark://"
_ANSWER_S: Final = 20.0


def check_master(master: str) -> None:
    """Raises PipelineError for what Spark takes for no master, and for a standalone one that does not answer."""
    if not _MASTERS.fullmatch(master):
        raise PipelineError(
            f"{master!r} is no master of Spark: expected local[*], local[N], spark://HOST:PORT, yarn or k8s://URL;"
            " a Connect server (sc://HOST:PORT) goes to --remote"
        )
    if master.startswith(_STANDALONE) and not any(map(_answers, master.removeprefix(_STANDALONE).split(","))):
        raise PipelineError(f"{master}: no master of Spark answers there: see whether it runs, and host and port")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    except (OSError, ValueError):
        return False
    return True


def check_remote(url: str) -> None:
    """Raises PipelineError where no Connect server answers: Spark itself would try for ten minutes."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        channel = DefaultChannelBuilder(url).toChannel()
    except PySparkException as error:
        raise PipelineError(f"{url!r} is no URL of a Connect server, sc://HOST:PORT: {error}") from None
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWER_S)
    except grpc.FutureTimeoutError:
        raise PipelineError(
            f"{url}: no Spark Connect server answers there after {_ANSWER_S:.0f} s: see whether it runs"
            " (sbin/start-connect-server.sh), and host and port"
        ) from None
    finally:
        channel.close()


def names_local(master: str) -> bool:
    """Whether executors of this master are in the driver's own process."""
    return master == "local" or master.startswith("local[")


def is_remote(spark: SparkSession) -> bool:
    """Whether `spark` is a session of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_local(spark: SparkSession) -> bool:
    """Whether its Python processes are of this machine and this Python, and so import what this one does."""
    if is_remote(spark):
        return False
    context = spark.sparkContext
    return names_local(context.master or "") and context.pythonExec == sys.executable
