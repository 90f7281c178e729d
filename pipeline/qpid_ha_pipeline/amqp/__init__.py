"""A client for live queues: blocking, over the broker's own AMQP engine."""
