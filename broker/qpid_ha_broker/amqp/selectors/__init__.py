"""Selectors of messages: their grammar, and what they find."""
