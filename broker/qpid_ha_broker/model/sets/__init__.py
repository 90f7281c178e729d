"""Resource sets: a log and the state that follows from it, what brokers share of them, and what time does."""
