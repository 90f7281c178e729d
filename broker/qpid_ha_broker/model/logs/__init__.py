"""The log of a resource set, seen from memory."""
