"""Replication of one resource set by a group, of which every member writes: the core, without I/O.

`server.sets.group_set_member` drives it. docs/architecture.md, "Groups", says what is there and what is not.
"""
