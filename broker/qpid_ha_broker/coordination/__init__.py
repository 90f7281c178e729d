"""Where a generation and an in-sync set are recorded, and the locks by which a primary is elected."""
