"""What is closed at the end of the `with` in which it is used. Monitors import this: it imports next to nothing."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """`with` such a thing leaves nothing of it behind, whatever happens inside."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what it holds, if it holds anything."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is closed")
