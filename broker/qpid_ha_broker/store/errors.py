"""What can be wrong with a store, as an operator is told it."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot be used as it is; the text says why and what to do."""


class BlockError(StoreError):
    """These bytes are no header of a file of ours."""


class StatusError(StoreError):
    """These bytes are no STATUS of ours."""


class NewerFormat(StoreError):
    """Written by a newer release than this one: nothing is wrong with it, but only that one can read it."""

    def __init__(self, format_number: int, known: int) -> None:
        super().__init__(
            f"format {format_number} is newer than format {known}, the newest that this release knows: "
            "it was written by a newer release: upgrade this one"
        )
        self.format_number = format_number


class StoreDamaged(StoreError):
    """What was on disk is not what was written: not the traces of a crash, and nothing that may be skipped."""

    def __init__(self, file: str, offset: int, text: str) -> None:
        super().__init__(f"{file}, offset {offset}: {text}")
        self.file = file
        self.offset = offset
        self.text = text


class JournalDead(StoreError):
    """A write or a sync failed: what of it is on disk is unknown, and nothing may be said to be kept any more."""
