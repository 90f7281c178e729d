"""Channels between brokers, and the questions asked on them."""
