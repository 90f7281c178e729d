"""What can be refused, and why: every error of the model is one of these, and its text says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

Kept = TypeVar("Kept", bound=Exception)


def fresh(error: Kept) -> Kept:
    """An equal one, to raise what somebody keeps, or has in a variable.

    An error that is raised refers to the frames that it comes through, and so to what is in their variables. Where it
    is there itself, or in an object that is, nothing of all that is freed before a collector runs.
    """
    again = type(error).__new__(type(error), *error.args)
    again.__dict__.update(error.__dict__)
    return again


class ModelError(Exception):
    """A command was refused; nothing changed."""


class NotFound(ModelError):
    """No queue or exchange has that name."""


class AlreadyExists(ModelError):
    """The name is taken by something else, or by the same kind of object with other arguments."""


class InvalidArgument(ModelError):
    """An argument's name or value makes no sense."""


class QueueFull(ModelError):
    """The message does not fit: the queue's policy is `reject`, or a ring cannot make room."""


class InUse(ModelError):
    """Somebody uses the object: its exclusive owner, a consumer, or messages where it had to be empty."""


class NotSupported(ModelError):
    """What was asked for is not there now; the text says what to do."""


class RefusedBefore(ModelError):
    """A numbered message was refused when it came before: it is not taken under that number any more."""


class NumberTooHigh(ModelError):
    """The number of a message is so far above its producer's last one that it must be a mistake."""


class NotEnoughReplicas(ModelError):
    """Too few brokers hold what is written: the primary takes nothing in before there are enough."""


class NotPrimary(ModelError):
    """This broker may not write: another one is, or must become, the primary."""


class QueueLocked(ModelError):
    """The queue is somebody else's to fill and to empty: it may only be browsed."""


class OtherSet(ModelError):
    """The request concerns a queue of another resource set, and has to stay within one."""


class LimitReached(ModelError):
    """The request would take so long that all others had to wait, or there is as much of something as there may be."""


class Unavailable(ModelError):
    """Whoever decides about it could not be asked, or gave no answer: whether it is done is not known. Ask again."""


class BeingWritten(Protocol):
    """As `model.logs.log.Commitment`, which raises these."""

    @property
    def is_committed(self) -> bool:
        """Whether it counts."""

    @property
    def failure(self) -> ModelError | None:
        """Why it never will; None: it may."""


class BeingMade(Unavailable):
    """A queue or exchange was asked for, of a group, and does not count yet: ask again once `written` is committed, or
    has failed."""

    def __init__(self, text: str, written: BeingWritten) -> None:
        super().__init__(text)
        self.written = written


class ControllerRefusal(ModelError):
    """The controller of the cluster does not do it; the text says why."""


REASONS: Final[Mapping[type[ModelError], str]] = {
    NotFound: "not-found",
    AlreadyExists: "already-exists",
    InUse: "in-use",
    InvalidArgument: "invalid-argument",
    NotPrimary: "not-primary",
    OtherSet: "other-set",
    LimitReached: "limit-reached",
    Unavailable: "unavailable",
}
"""In a word, for programs and for other brokers."""
_ERRORS: Final = {reason: kind for kind, reason in REASONS.items()}


def reason_of(error: ModelError) -> str:
    """The word for it, or for what it is a kind of; `refused` where there is none."""
    return next((REASONS[kind] for kind in type(error).__mro__ if kind in REASONS), "refused")


def error_of(reason: object, text: str) -> ModelError:
    """What another broker has refused, for that reason."""
    return _ERRORS.get(str(reason), ControllerRefusal)(text)
