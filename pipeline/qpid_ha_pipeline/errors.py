"""What can go wrong with an analysis, as its user is told it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar

_MARK: Final = "qpid-ha: "
_REASON: Final = re.compile(rf"{_MARK}(.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_PYTHON: Final = "or name another Python of theirs with PYSPARK_PYTHON"
_OF_SPARK: Final = (
    (
        re.compile(r"No module named '(pyarrow|numpy|pandas|proton)"),
        f"the executors' Python has no {{}}: install it there, {_PYTHON}; docs/pipeline.md says what they need",
    ),
    (
        re.compile(r"PACKAGE_NOT_INSTALLED\] (\S+)"),
        f"the executors' Python has no {{}}: install it there, {_PYTHON}; docs/pipeline.md says what they need",
    ),
    (
        re.compile(r"No module named '(qpid_ha_\w+)"),
        "the executors have no {}: call qpid_ha_pipeline.register(spark) in this session, which gives it to them",
    ),
    (re.compile(r'Cannot run program "([^"]+)"'), f"the executors have no program {{}}: install Python, {_PYTHON}"),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH"),
        f"the executors have another version of Python than this process: install {sys.version_info[0]}."
        f"{sys.version_info[1]} there, {_PYTHON}",
    ),
    (
        re.compile(r"JAVA_GATEWAY_EXITED"),
        "Java ended before Spark had started; what it said stands above: check JAVA_HOME and Spark's configuration",
    ),
)
"""What Spark says of executors that lack something, and what to do."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


_OPTIONS_OF_COMMANDS = {"failOnDataLoss=false": "--no-fail-on-data-loss", "mode=permissive": "--mode permissive"}


class PipelineError(Exception):
    """Cannot go on; the text says why and what to do. It is one line, so that `reason_of` finds all of it."""

    def __init__(self, text: str) -> None:
        super().__init__(_MARK + " ".join(text.removeprefix(_MARK).split()))

    @property
    def reason(self) -> str:
        """The text alone."""
        return str(self).removeprefix(_MARK)


class JournalDamaged(PipelineError):
    """What lies in a file is not what was written."""

    def __init__(self, file: str, offset: int, text: str) -> None:
        self.file, self.offset, self.text = file, offset, text
        super().__init__(
            f"{file}, offset {offset}: {text}; to read what is good of it, use the option mode=permissive,"
            " and to see what can be done, `qpid-ha store check`"
        )

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str]]:
        return PipelineError, (self.reason,)


def in_words_of_commands(reason: str) -> str:
    """A text that names options of a data source, as somebody reads it who has typed a command."""
    for option, words in _OPTIONS_OF_COMMANDS.items():
        reason = reason.replace(option, words)
    return reason


def reason_of(error: BaseException) -> str | None:
    """The reason within what Spark made of one of these, or of what executors lack. None: of neither.

    Errors come back wrapped in stack traces.
    """
    if isinstance(error, PipelineError):
        return error.reason
    text = str(error)
    if match := _REASON.search(text):
        return match.group(1).strip()
    for pattern, reason in _OF_SPARK:
        if match := pattern.search(text):
            return reason.format(*match.groups())
    return None


def told_plainly(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """At the border to Spark, which shows its user the whole way to an error: of ours, only the reason is of use."""

    @wraps(function)
    def called(*args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*args, **named)
        except (PipelineError, OSError) as error:
            plain = _plain(error)
        _hide_the_way()
        raise plain

    return called


def rows_told_plainly(function: Callable[_P, Iterator[_R]]) -> Callable[_P, Iterator[_R]]:
    """The same for what makes rows on an executor."""

    @wraps(function)
    def called(*args: _P.args, **named: _P.kwargs) -> Iterator[_R]:
        try:
            yield from function(*args, **named)
            return
        except (PipelineError, OSError) as error:
            plain = _plain(error)
        _hide_the_way()
        raise plain

    return called


def _plain(error: PipelineError | OSError) -> PipelineError:
    if isinstance(error, PipelineError):
        return PipelineError(error.reason)
    return PipelineError(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _hide_the_way() -> None:
    """Have this process end without a stack trace, if it is one of Spark's Python processes.

    Such a process ends with its first error, so the variable, which is Spark's own, changes nothing for any other task
    or query, and no setting of the user's.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
