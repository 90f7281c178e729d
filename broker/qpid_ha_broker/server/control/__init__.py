"""The control socket, its methods, and what waits for a commit."""
