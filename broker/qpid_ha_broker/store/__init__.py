"""What survives the loss of every machine at once: journal, snapshots, STATUS. Files only through `files.Disk`."""
