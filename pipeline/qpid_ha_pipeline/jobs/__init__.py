"""Jobs over journals: each is a function on DataFrames or paths, and a command of `qpid-ha-pipeline`."""
