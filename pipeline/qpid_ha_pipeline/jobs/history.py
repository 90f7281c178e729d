"""Histories: what clients did and saw, in files that Spark reads. A line that is no row is an error, never nulls.

A history proves that nothing was lost; a torn line that is left out may be the very one that says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from qpid_ha_pipeline.errors import PipelineError

OPERATIONS: Final = ("sent", "accepted", "rejected", "unknown", "received")
TYPES: Final[dict[str, DataType]] = {
    "op": StringType(), "id": StringType(), "client": StringType(), "queue": StringType(), "number": LongType(),
    "at_ms": DoubleType(), "marked": BooleanType(),
}  # fmt: skip
"""Of the columns of a history. `at_ms` may have fractions, and is null where a client did not look at its clock."""
SCHEMA: Final = StructType([StructField(name, type_) for name, type_ in TYPES.items()])

_CORRUPT: Final = "_corrupt"
_PARSING: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
_WITH_CORRUPT: Final = StructType([*SCHEMA.fields, StructField(_CORRUPT, StringType())])
_SHOWN_CHARACTERS: Final = 160
_SECOND_OBJECT: Final = r'\}\s*\{\s*"'
"""Spark's parser takes the first object of a line, and says nothing of another one behind it."""


def read_history(spark: SparkSession, paths: Sequence[str], format_name: str = "json") -> DataFrame:
    """The rows of all `paths`, with SCHEMA. `format_name`: `json` (a line for each row), `csv` (with a header), or any
    that Spark has.

    Whoever evaluates it meets a PipelineError's text in Spark's exception where a line is no row: `errors.reason_of`.
    Raises PipelineError here for a table without these columns.
    """
    if format_name == "json":
        return _checked(_json(spark, paths))
    if format_name == "csv":
        reader = spark.read.options(header=True, enforceSchema=False, **_PARSING).schema(_WITH_CORRUPT)
        rows = reader.csv(list(paths)).select("*", _file().alias("file"))
        return _checked(rows.withColumn("line", sql.coalesce(sql.col(_CORRUPT), _as_text())))
    return _checked(_table(spark.read.format(format_name).load(list(paths)), paths))


def _file() -> Column:
    return sql.col("_metadata.file_path")


def _as_text() -> Column:
    return sql.to_json(sql.struct(*TYPES))


def _json(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Line by line, because a reader of JSON takes a line that holds an empty list, or two rows, without a word."""
    lines = spark.read.text(list(paths)).select("value", _file().alias("file")).where(sql.trim("value") != "")
    rows = lines.withColumn("row", sql.from_json("value", _WITH_CORRUPT, _PARSING))
    is_one = sql.col("row").isNotNull() & ~sql.col("value").rlike(_SECOND_OBJECT)
    corrupt = sql.when(is_one, sql.col(f"row.{_CORRUPT}")).otherwise(sql.col("value"))
    return rows.select(
        *(f"row.{name}" for name in TYPES), corrupt.alias(_CORRUPT), "file", sql.col("value").alias("line")
    )


def _table(table: DataFrame, paths: Sequence[str]) -> DataFrame:
    missing = [name for name in TYPES if name not in table.columns]
    if missing:
        raise PipelineError(f"{', '.join(paths)}: expected a history with {', '.join(TYPES)}; {missing[0]} is missing")
    rows = table.select(*(sql.col(name).cast(type_).alias(name) for name, type_ in TYPES.items()))
    file = sql.lit(", ".join(paths))
    return rows.select("*", sql.lit(None).cast("string").alias(_CORRUPT), file.alias("file"), _as_text().alias("line"))


def _checked(rows: DataFrame) -> DataFrame:
    """The rows alone; to evaluate `op` is to check them, so that they are read once."""
    problem = (
        sql.when(sql.col(_CORRUPT).isNotNull(), "is no row of a history")
        .when(sql.col("op").isNull(), "has no op")
        .when(~sql.col("op").isin(*OPERATIONS), f"has an op that is none of {', '.join(OPERATIONS)}")
        .when(sql.col("id").isNull(), "has no id")
        .when((sql.col("op") == "received") & sql.col("at_ms").isNull(), "has no at_ms, and order is told by it")
    )
    line = sql.when(
        sql.length("line") > _SHOWN_CHARACTERS, sql.concat(sql.substring("line", 1, _SHOWN_CHARACTERS), sql.lit("..."))
    ).otherwise(sql.col("line"))
    text = sql.concat(sql.lit("qpid-ha: "), "file", sql.lit(": this line "), problem, sql.lit(": "), line)
    op = sql.when(problem.isNotNull(), sql.raise_error(text)).otherwise(sql.col("op")).alias("op")
    return rows.select(op, *(name for name in TYPES if name != "op"))
