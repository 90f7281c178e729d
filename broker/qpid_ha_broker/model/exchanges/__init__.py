"""Exchanges: where a message goes."""
