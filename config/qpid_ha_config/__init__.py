"""The settings of broker, agent and pipeline: one parser for each of them, and one reader for the file."""
