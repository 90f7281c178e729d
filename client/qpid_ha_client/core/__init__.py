"""What a client does with its session, without I/O: inputs in, effects out."""
