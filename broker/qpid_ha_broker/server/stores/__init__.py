"""A broker's stores on disk: loading, appending, syncing, folding, recovery."""
