"""Connections, the container with its turn, sessions and transactions of clients."""
