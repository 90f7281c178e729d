"""What consumers have said of messages of one queue when they gave them back, for whoever gets these next.

It is kept beside the messages, whose bytes stay as they came: of nearly all messages nothing is said, and what is on
disk need not be written anew. What it says, and how it is merged into a message, is for whoever speaks the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class QueueAnnotations(dict[int, bytes]):
    """By id: all that was said of that message, encoded. Of messages that are in the queue alone.

    Changed by its own methods alone, so that `size` is right.
    """

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0
        """Bytes of all of it."""

    def note(self, ids: Iterable[int], annotations: bytes) -> None:
        """This is said of messages that are here, in the place of what was said of them before."""
        for message_id in ids:
            self.size += len(annotations) - len(self.get(message_id, b""))
            self[message_id] = annotations

    def forget(self, ids: Iterable[int]) -> None:
        """These leave, if anything was said of them."""
        for message_id in ids:
            self.size -= len(self.pop(message_id, b""))

    def renumber(self, new_ids: Mapping[int, int]) -> None:
        """The messages have other ids."""
        said = {new_ids[message_id]: annotations for message_id, annotations in self.items()}
        self.clear()
        self.update(said)

    def check_invariants(self, ids: Iterable[int]) -> None:
        """Raise AssertionError where it does not fit the messages of the queue, which have these ids."""
        size, strangers = sum(map(len, self.values())), self.keys() - set(ids)
        if size != self.size or strangers:
            raise AssertionError(f"counted {size} bytes, believed {self.size}; said of what is not here: {strangers}")
