"""Queues, exchanges, bindings and transactions: `apply(event)` over a log. Pure."""
