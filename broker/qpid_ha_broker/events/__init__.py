"""Event types and the one codec. Pure."""
