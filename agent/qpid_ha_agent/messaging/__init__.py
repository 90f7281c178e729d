"""Sending, receiving and measuring messages from the command line, at any broker that speaks AMQP 1.0."""
