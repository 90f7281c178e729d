"""An AMQP 1.0 broker whose whole state is `apply(event)` over a log."""

__version__ = "0.1.0"
