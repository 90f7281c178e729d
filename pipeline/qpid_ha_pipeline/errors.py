"""What can go wrong with an analysis, as its user is told it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar

_MARK: Final = "qpid-ha: "
_REASON: Final = re.compile(rf"{_MARK}(.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)

_P = ParamSpec("_P")
_R = TypeVar("_R")


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


def reason_of(error: BaseException) -> str | None:
    """The reason within what Spark made of one of these: it comes back wrapped in stack traces. None: it is not one."""
    if isinstance(error, PipelineError):
        return error.reason
    found = _REASON.search(str(error))
    return found.group(1).strip() if found else None


def told_plainly(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """At the border to Spark, which shows its user the whole way to an error: of ours, only the reason is of use."""

    @wraps(function)
    def called(*args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*args, **named)
        except (PipelineError, OSError) as error:
            plain = _plain(error)
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
    """Have this worker of Spark tell of its end without a stack trace. It ends with it, so it tells no other."""
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
