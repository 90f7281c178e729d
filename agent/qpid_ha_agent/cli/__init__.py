"""The command line: `qpid-ha`."""
