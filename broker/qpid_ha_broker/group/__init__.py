"""Replication of one resource set by a group, of which every member writes: the core, without I/O.

Nothing in the broker uses this package yet. docs/architecture.md, "Groups", says what is there and what is not.
"""
