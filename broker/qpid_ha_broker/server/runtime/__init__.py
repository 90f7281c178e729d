"""What every part of a running broker is given: the host, logs, tasks, identity, engines."""
