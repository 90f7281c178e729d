"""Queues: their messages in order, who gets which, what they may hold, and what is on disk alone."""
