"""Decides and acts for a resource manager and an administrator: the agent side of qpid-ha."""
