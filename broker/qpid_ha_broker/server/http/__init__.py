"""Administration, health and metrics over HTTP."""
