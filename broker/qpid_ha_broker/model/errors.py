"""What can be refused, and why: every error of the model is one of these, and its text says what to do."""

from __future__ import annotations


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


class NotEnoughReplicas(ModelError):
    """Too few brokers hold what is written: the primary takes nothing in before there are enough."""


class NotPrimary(ModelError):
    """This broker may not write: another one is, or must become, the primary."""


class QueueLocked(ModelError):
    """The queue is somebody else's to fill and to empty: it may only be browsed."""


class OtherSet(ModelError):
    """It concerns a queue of another resource set, and what was asked stays within one."""


class LimitReached(ModelError):
    """It would take so long that all others had to wait, or there is as much of it as there may be."""
